//! The thread team: a caller and `n - 1` workers that run one closure at a time.
//!
//! Decoding a token makes hundreds of dispatches of a few microseconds, so a dispatch is one store
//! and one wait: the caller publishes a closure under a new generation, every worker runs its share
//! and acknowledges that generation, and the caller returns when all have.  As every worker
//! acknowledges every generation, the slot is never written while somebody may read it.
//!
//! A worker that has nothing to do spins briefly (only when the machine has a core for it), then
//! yields, then parks, so an idle team costs nothing.  The caller spins, then yields; it never
//! parks.  A dispatch takes `&mut Team`, so a dispatch inside a dispatch does not compile.
//!
//! This is not a scheduler: work is split into contiguous shares that are fixed before it starts, or, where pieces differ
//! in cost, into pieces that threads claim in order.

#![expect(
    unsafe_code,
    reason = "a closure of the caller's lifetime runs on threads that outlive it, and disjoint parts of one slice are written by several threads"
)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::tile::TILE_ROWS;

/// How long a worker spins for the next dispatch: the serial work between two dispatches of a
/// decode step is shorter than this.
const SPIN: Duration = Duration::from_micros(60);

/// How long a worker yields its core to others before it parks; waking from a park costs tens of
/// microseconds.
const YIELD: Duration = Duration::from_micros(300);

/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;

/// Threads that run closures together; see the module.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    generation: u64,
}

impl Team {
    /// Starts a team of the caller and `n_threads - 1` workers.
    ///
    /// # Panics
    ///
    /// If the system refuses a thread.
    pub fn new(n_threads: NonZeroUsize) -> Self {
        let n_workers = n_threads.get() - 1;
        let spin = if n_threads <= Self::default_threads() {
            SPIN
        } else {
            Duration::ZERO
        };
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            acknowledged: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            parked: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
            spin,
        });
        let workers: Vec<_> = (0..n_workers)
            .map(|worker| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("larql-team-{}", worker + 1))
                    .spawn(move || shared.work(worker))
                    .expect("the system starts a thread")
            })
            .collect();
        let threads = workers
            .iter()
            .map(|worker| worker.thread().clone())
            .collect();
        Self {
            shared,
            workers,
            threads,
            generation: 0,
        }
    }

    /// Threads that take part in a dispatch, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The threads that this process may use: the smaller of its CPU affinity and its cgroup CPU
    /// quota (v1 or v2) rounded down, at least 1.
    pub fn default_threads() -> NonZeroUsize {
        thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
    }

    /// Runs `f(i)` once for every `i` in `0..n_threads`, `f(0)` on the caller.
    ///
    /// # Panics
    ///
    /// With the first panic of `f`, after all shares have ended; the team stays usable.
    pub fn run<F: Fn(usize) + Sync>(&mut self, f: F) {
        if self.workers.is_empty() {
            f(0);
            return;
        }
        self.publish(Task::new(&f));
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        self.wait();
        let theirs = self.shared.take_panic();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Runs `f(i, chunk)` once for every `chunk_len` elements of `data` (the last chunk may be
    /// shorter); each thread takes a contiguous run of chunks.
    ///
    /// # Panics
    ///
    /// If `chunk_len` is 0, and as [`Self::run`].
    pub fn chunks_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &mut self,
        data: &mut [T],
        chunk_len: usize,
        f: F,
    ) {
        assert!(chunk_len > 0, "chunks must not be empty");
        let n_chunks = data.len().div_ceil(chunk_len);
        let n_threads = self.n_threads();
        if n_threads == 1 || n_chunks <= 1 {
            for (i, chunk) in data.chunks_mut(chunk_len).enumerate() {
                f(i, chunk);
            }
            return;
        }
        let shares = Shares {
            base: data.as_mut_ptr(),
            len: data.len(),
            data: PhantomData,
        };
        self.run(|worker| {
            let chunks = share(n_chunks, worker, n_threads);
            let first = chunks.start;
            // SAFETY: `run` calls this once per worker, and `share` gives workers disjoint chunks,
            // so the element ranges are disjoint.
            let part = unsafe { shares.part(first * chunk_len..chunks.end * chunk_len) };
            for (i, chunk) in part.chunks_mut(chunk_len).enumerate() {
                f(first + i, chunk);
            }
        });
    }

    /// As [`Self::chunks_mut`] where chunks differ in cost: a thread that is free takes the next chunk.
    ///
    /// # Panics
    ///
    /// If `chunk_len` is 0, and as [`Self::run`].
    pub fn claim_chunks_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &mut self,
        data: &mut [T],
        chunk_len: usize,
        f: F,
    ) {
        assert!(chunk_len > 0, "chunks must not be empty");
        let n_chunks = data.len().div_ceil(chunk_len);
        if self.n_threads() == 1 || n_chunks <= 1 {
            for (i, chunk) in data.chunks_mut(chunk_len).enumerate() {
                f(i, chunk);
            }
            return;
        }
        let shares = Shares {
            base: data.as_mut_ptr(),
            len: data.len(),
            data: PhantomData,
        };
        let next = AtomicUsize::new(0);
        self.run(|_| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n_chunks {
                    break;
                }
                // SAFETY: the counter gives every number once, so the element ranges are disjoint.
                let chunk = unsafe { shares.part(i * chunk_len..(i + 1) * chunk_len) };
                f(i, chunk);
            }
        });
    }

    fn publish(&mut self, task: Task) {
        self.shared.acknowledged.store(0, Ordering::Relaxed);
        // SAFETY: `wait` returned for the previous generation, so every worker has acknowledged it
        // and none reads the slot before it sees the generation stored below.
        unsafe { *self.shared.task.get() = Some(task) };
        self.generation += 1;
        // Sequentially consistent with the flag of a worker about to park: either it sees this
        // generation or we see its flag.
        self.shared
            .generation
            .store(self.generation, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for (parked, thread) in self.shared.parked.iter().zip(&self.threads) {
            if parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// Waits until every worker has acknowledged the current generation.
    fn wait(&self) {
        let done = || self.shared.acknowledged.load(Ordering::Acquire) == self.workers.len();
        let mut clock = None;
        while !done() {
            if self.shared.spin.is_zero() {
                thread::yield_now();
                continue;
            }
            for _ in 0..SPINS_PER_LOOK {
                std::hint::spin_loop();
            }
            // A worker that takes this long has lost its core, perhaps to us.
            if clock.get_or_insert_with(Instant::now).elapsed() > self.shared.spin {
                thread::yield_now();
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.store(u64::MAX, Ordering::SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}

/// The part of `0..n` that falls to `worker` of `n_threads`.
pub(crate) fn share(n: usize, worker: usize, n_threads: usize) -> Range<usize> {
    let at = |i: usize| n / n_threads * i + (n % n_threads) * i / n_threads;
    at(worker)..at(worker + 1)
}

/// A closure with its type and lifetime erased.
#[derive(Clone, Copy)]
struct Task {
    call: unsafe fn(*const (), usize),
    closure: *const (),
}

impl Task {
    fn new<F: Fn(usize) + Sync>(f: &F) -> Self {
        /// # Safety
        ///
        /// `closure` points to a live `F`.
        unsafe fn call<F: Fn(usize)>(closure: *const (), worker: usize) {
            // SAFETY: the caller of `call` vouches for it.
            let f = unsafe { &*closure.cast::<F>() };
            f(worker);
        }
        Self {
            call: call::<F>,
            closure: std::ptr::from_ref(f).cast(),
        }
    }
}

struct Shared {
    generation: AtomicU64,
    task: UnsafeCell<Option<Task>>,
    acknowledged: AtomicUsize,
    stop: AtomicBool,
    parked: Box<[AtomicBool]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spin: Duration,
}

// SAFETY: `task` is written only by `Team::publish`, when no worker reads it, and the closure it
// points to is `Sync`; everything else is `Sync` by itself.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `task` is used only while `Team::run` keeps the closure alive; see above.
unsafe impl Send for Shared {}

impl Shared {
    /// The life of worker `worker` (counted without the caller).
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_generation(worker, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the generation was published after the task was written, and the task is not
            // written again before this worker acknowledges below.
            let task = unsafe { *self.task.get() }.expect("a generation is published with a task");
            // SAFETY: `Team::run` keeps the closure alive until every worker has acknowledged.
            let run = || unsafe { (task.call)(task.closure, worker + 1) };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
                self.panic
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(payload);
            }
            self.acknowledged.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits for a generation other than `seen`: spins, yields, parks.
    fn next_generation(&self, worker: usize, seen: u64) -> u64 {
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_PER_LOOK {
                let generation = self.generation.load(Ordering::SeqCst);
                if generation != seen {
                    return generation;
                }
                if self.spin.is_zero() {
                    break;
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited > self.spin + YIELD {
                self.park(worker, seen);
            } else if waited > self.spin {
                thread::yield_now();
            }
        }
    }

    fn park(&self, worker: usize, seen: u64) {
        let parked = &self.parked[worker];
        parked.store(true, Ordering::SeqCst);
        // The look after raising the flag; an unpark between the two makes `park` return at once.
        while self.generation.load(Ordering::SeqCst) == seen {
            thread::park();
        }
        parked.store(false, Ordering::SeqCst);
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A slice whose disjoint parts go to different threads.
struct Shares<'a, T> {
    base: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a part is handed to one thread only (the contract of `part`), which amounts to sending it.
unsafe impl<T: Send> Sync for Shares<'_, T> {}

impl<T> Shares<'_, T> {
    /// The elements of `range`, cut at the end of the slice.
    ///
    /// # Safety
    ///
    /// No two calls may be given overlapping ranges.
    #[expect(clippy::mut_from_ref, reason = "the parts are disjoint by contract")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        // SAFETY: `start <= end <= len` of the borrowed slice, and nobody else has this range.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), end - start) }
    }
}

/// Which stored row becomes which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The same.
    Stored,
    /// The stored rows of a head are in interleaved-RoPE order: stored row
    /// `h * head_dim + 2 i + j` (`j` is 0 or 1) is output `h * head_dim + j * head_dim / 2 + i`.
    Interleaved {
        /// Rows of one head; even.
        head_dim: usize,
    },
}

impl RowOrder {
    /// The output index of stored row `row`.
    #[inline]
    pub fn logical(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
        }
    }

    /// The stored row of output index `row`; undoes [`Self::logical`].
    #[inline]
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + within % half * 2 + within / half
            }
        }
    }

    /// Whether `rows` rows can be in this order: then `logical` is a permutation of `0..rows`.
    pub(crate) fn fits(self, rows: usize) -> bool {
        match self {
            Self::Stored => true,
            Self::Interleaved { head_dim } => {
                head_dim > 0 && head_dim.is_multiple_of(2) && rows.is_multiple_of(head_dim)
            }
        }
    }
}

/// The right to write a range of tiles of a `[n_pos, rows]` output.
pub(crate) struct TileWriter<'a> {
    base: *mut f32,
    n_pos: usize,
    rows: usize,
    tiles: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

// SAFETY: writers of one output have disjoint tiles, which are disjoint elements.
unsafe impl Send for TileWriter<'_> {}

impl<'a> TileWriter<'a> {
    /// The writer of all tiles of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is not `[n_pos, rows]`.
    pub(crate) fn new(out: &'a mut [f32], n_pos: usize, rows: usize) -> Self {
        assert_eq!(
            Some(out.len()),
            n_pos.checked_mul(rows),
            "an output of {n_pos} x {rows}"
        );
        Self {
            base: out.as_mut_ptr(),
            n_pos,
            rows,
            tiles: 0..rows.div_ceil(TILE_ROWS),
            out: PhantomData,
        }
    }

    /// Splits off the tiles before `tile`.
    ///
    /// # Panics
    ///
    /// If `tile` is outside the range of this writer.
    pub(crate) fn split_before(&mut self, tile: usize) -> Self {
        let Range { start, end } = self.tiles;
        assert!(
            (start..=end).contains(&tile),
            "tile {tile} of {start}..{end}"
        );
        self.tiles = tile..end;
        Self {
            tiles: start..tile,
            ..*self
        }
    }

    /// Writes the rows of one tile for the positions from `pos` on.
    #[inline]
    pub(crate) fn store(&mut self, tile: usize, pos: usize, sums: &[[f32; TILE_ROWS]]) {
        assert!(self.tiles.contains(&tile) && pos + sums.len() <= self.n_pos);
        let first = tile * TILE_ROWS;
        let n = TILE_ROWS.min(self.rows - first);
        for (p, sums) in (pos..).zip(sums) {
            // SAFETY: the tile's rows and the position lie inside the borrowed output (checked above and in `new`), and
            // no other writer has the tile.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.base.add(p * self.rows + first), n) };
            out.copy_from_slice(&sums[..n]);
        }
    }
}
