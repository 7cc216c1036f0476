//! The handshake between the caller of a team and its workers: one word per worker.
//!
//! The word holds a generation and a phase, and every step is one atomic operation on it:
//!
//! ```text
//!            offer (caller)           take (worker)           finish (worker)
//! idle(g) ------------------> offered(g+1) ------> taken(g+1) ---------------> idle(g+1)
//!   |  ^                      ^   |                                               ^
//!   |  |        offer + unpark|   +-----------------------------------------------+
//!   +--|---> parked(g) -------+            withdraw (caller)
//!     park (worker)
//! ```
//!
//! The caller writes the task only when no slot is taken, because it waits for every taken slot before a dispatch ends;
//! a worker reads it only between taking and finishing.  So the task is never written while it may be read, the closure
//! lives as long as anybody runs it, and a worker that slept through a dispatch cannot run it late.  As parking is a step
//! on the same word as an offer, one of the two comes first and no wakeup is lost.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::sync::atomic::{AtomicU64, Ordering};
use super::sync::{Mutex, UnsafeCell, thread};
use super::wait::{Patience, Rest};

/// What a panic carries.
pub(super) type Payload = Box<dyn Any + Send>;

/// Where a worker is in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing to do, and awake.
    Idle,
    /// Nothing to do, and asleep until it is unparked.
    Parked,
    /// A share is there and nobody has begun it.
    Offered,
    /// The worker runs its share.
    Taken,
    /// The worker must end.
    Stopped,
}

/// Bits of a word below the generation.
const PHASE_BITS: u32 = 3;

impl Phase {
    /// This phase of dispatch `generation`.
    fn of(self, generation: u64) -> u64 {
        generation << PHASE_BITS | self as u64
    }

    /// The generation and the phase that make `word`.
    fn split(word: u64) -> (u64, Self) {
        let phase = match word & ((1 << PHASE_BITS) - 1) {
            0 => Self::Idle,
            1 => Self::Parked,
            2 => Self::Offered,
            3 => Self::Taken,
            4 => Self::Stopped,
            other => unreachable!("no phase {other} is ever stored"),
        };
        (word >> PHASE_BITS, phase)
    }
}

/// A closure with its type and lifetime erased.
#[derive(Clone, Copy)]
pub(super) struct Task {
    call: unsafe fn(*const (), usize),
    closure: *const (),
}

impl Task {
    pub(super) fn new<F: Fn(usize) + Sync>(f: &F) -> Self {
        /// # Safety
        ///
        /// `closure` points to a live `F`.
        unsafe fn call<F: Fn(usize)>(closure: *const (), share: usize) {
            // SAFETY: the caller of `call` vouches for it.
            let f = unsafe { &*closure.cast::<F>() };
            f(share);
        }
        Self {
            call: call::<F>,
            closure: std::ptr::from_ref(f).cast(),
        }
    }
}

/// The word of one worker, in cache lines of its own: the caller polls one while other workers write theirs.
#[repr(align(128))]
struct Slot(AtomicU64);

/// What the caller and the workers share.
pub(super) struct Handshake {
    slots: Box<[Slot]>,
    task: UnsafeCell<Option<Task>>,
    panic: Mutex<Option<Payload>>,
}

// SAFETY: `task` is written only in `offer`, whose contract is that no slot is taken, and read only by the worker of a
// taken slot; the closure it points to is `Sync`; everything else is `Sync` by itself.
unsafe impl Sync for Handshake {}
// SAFETY: the pointer in `task` is used only while a slot is taken, and then `offer`'s contract keeps the closure alive.
unsafe impl Send for Handshake {}

impl Handshake {
    pub(super) fn new(n_workers: usize) -> Self {
        Self {
            slots: (0..n_workers)
                .map(|_| Slot(AtomicU64::new(Phase::Idle.of(0))))
                .collect(),
            task: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Offers `task` to the first `n_workers` workers as dispatch `generation`, and calls `unpark` for those that sleep.
    ///
    /// # Safety
    ///
    /// Every worker is finished with or withdrawn from every earlier generation.  The closure in `task` lives until this
    /// holds for `generation` too.
    pub(super) unsafe fn offer(
        &self,
        task: Task,
        generation: u64,
        n_workers: usize,
        unpark: impl Fn(usize),
    ) {
        self.task.with_mut(|slot| {
            // SAFETY: no slot is taken (the contract), so no worker reads the task.
            unsafe { *slot = Some(task) };
        });
        for (worker, slot) in self.slots[..n_workers].iter().enumerate() {
            // Releases the task to the worker that takes the offer.
            let before = slot
                .0
                .swap(Phase::Offered.of(generation), Ordering::Release);
            if Phase::split(before).1 == Phase::Parked {
                unpark(worker);
            }
        }
    }

    /// Takes the offer of `generation` back from `worker`; `false` if the worker has begun.
    pub(super) fn withdraw(&self, worker: usize, generation: u64) -> bool {
        self.slots[worker]
            .0
            .compare_exchange(
                Phase::Offered.of(generation),
                Phase::Idle.of(generation),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Whether `generation` is finished by `worker`, whose writes are then visible, or withdrawn from it.
    pub(super) fn is_over(&self, worker: usize, generation: u64) -> bool {
        let word = self.slots[worker].0.load(Ordering::Acquire);
        word == Phase::Idle.of(generation) || word == Phase::Parked.of(generation)
    }

    /// Ends the workers, and calls `unpark` for those that sleep.  No dispatch may be under way.
    pub(super) fn stop(&self, unpark: impl Fn(usize)) {
        for (worker, slot) in self.slots.iter().enumerate() {
            let before = slot.0.swap(Phase::Stopped.of(0), Ordering::Relaxed);
            if Phase::split(before).1 == Phase::Parked {
                unpark(worker);
            }
        }
    }

    /// The first panic since the last call.
    pub(super) fn take_panic(&self) -> Option<Payload> {
        self.panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The life of worker `worker`, counted without the caller.
    pub(super) fn work(&self, worker: usize, patience: Patience) {
        let slot = &self.slots[worker].0;
        let (mut seen, mut waiting) = (0, patience.start());
        loop {
            let word = slot.load(Ordering::Relaxed);
            let (generation, phase) = Phase::split(word);
            // An offer that was withdrawn unseen is also a sign that the next is near.
            if generation != seen {
                seen = generation;
                waiting.restart();
            }
            match phase {
                Phase::Idle => match waiting.rest() {
                    Rest::Awake => {}
                    // If it fails there is an offer, which the next round sees.
                    Rest::Enough => drop(slot.compare_exchange(
                        word,
                        Phase::Parked.of(generation),
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    )),
                },
                // The look at the word comes before each park, so a spurious or an early wakeup does no harm.
                Phase::Parked => thread::park(),
                Phase::Offered => {
                    let taken = Phase::Taken.of(generation);
                    // Acquires the task; fails if the offer was withdrawn.
                    if slot
                        .compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                    {
                        self.run_share(worker + 1);
                        slot.store(Phase::Idle.of(generation), Ordering::Release);
                        waiting.restart();
                    }
                }
                Phase::Taken => unreachable!("only this worker takes, and finishes what it takes"),
                Phase::Stopped => return,
            }
        }
    }

    /// Runs the task for `share`; the slot of its worker is taken.
    fn run_share(&self, share: usize) {
        // SAFETY: the slot is taken, so the task was written before and is not written now.
        let task = self.task.with(|task| unsafe { *task });
        let task = task.expect("an offer comes with a task");
        // SAFETY: the slot is taken, so the closure lives (the contract of `offer`).
        let run = || unsafe { (task.call)(task.closure, share) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            self.panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(payload);
        }
    }
}
