//! [`Team`]: how others use the threads.

use std::num::NonZeroUsize;

use super::crew::Crew;
use super::split::{Claims, Division, Parts};

/// Pieces of a thread's share in [`Team::chunks_mut`]: what a thread without a core can hold up is one of them, and taking
/// one costs some nanoseconds.
const PIECES: u32 = 8;

/// Threads that run closures together: a caller and its workers.
///
/// ```
/// use larql_kernels::Team;
///
/// let mut team = Team::new(Team::default_threads());
/// let mut squares = [0; 100];
/// team.chunks_mut(&mut squares, 7, |i, chunk| {
///     for (at, square) in (7 * i..).zip(chunk) {
///         *square = at * at;
///     }
/// });
/// assert_eq!(squares[99], 9801);
/// ```
///
/// A dispatch needs the team for itself, so none can be made inside another:
///
/// ```compile_fail,E0499
/// # use larql_kernels::Team;
/// # let mut team = Team::new(Team::default_threads());
/// team.run(|_| team.run(|_| ()));
/// ```
pub struct Team {
    crew: Crew,
    claims: Claims,
}

impl Team {
    /// Starts a team of the caller and `n_threads - 1` workers.
    ///
    /// # Panics
    ///
    /// If the system refuses a thread.
    pub fn new(n_threads: NonZeroUsize) -> Self {
        Self {
            crew: Crew::new(n_threads.get() - 1, Self::default_threads()),
            claims: Claims::new(n_threads.get()),
        }
    }

    /// Threads that take part in a dispatch, the caller included.
    pub fn n_threads(&self) -> usize {
        self.crew.n_workers() + 1
    }

    /// The threads that this process may use: the smaller of its CPU affinity and its cgroup CPU
    /// quota (v1 or v2) rounded down, at least 1.
    ///
    /// A quota of less than all cores is not a number of cores but a time that the threads use up together; a team with
    /// more threads than this would run into it and then stand still until the next period.
    pub fn default_threads() -> NonZeroUsize {
        std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
    }

    /// Runs `f(i)` once for every `i` in `0..n_threads`: `f(0)` on the caller, and each other on a worker, or on the caller
    /// if that worker has not begun when the caller is done.
    ///
    /// # Panics
    ///
    /// With the first panic of `f`, after all shares have ended; the team stays usable.
    pub fn run<F: Fn(usize) + Sync>(&mut self, f: F) {
        self.crew.dispatch(self.crew.n_workers(), f);
    }

    /// Runs `f(i, chunk)` once for every `chunk_len` elements of `data` (the last chunk may be
    /// shorter); each thread takes a contiguous run of chunks, then parts of the runs of threads that are behind.
    ///
    /// # Panics
    ///
    /// If `chunk_len` is 0, and with the first panic of `f`, after which some chunks may not have been visited.
    pub fn chunks_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &mut self,
        data: &mut [T],
        chunk_len: usize,
        f: F,
    ) {
        self.pieces_mut(data, chunk_len, PIECES, f);
    }

    /// As [`Self::chunks_mut`] where chunks differ in cost: what a thread takes at a time is one chunk.
    ///
    /// # Panics
    ///
    /// As [`Self::chunks_mut`].
    pub fn claim_chunks_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &mut self,
        data: &mut [T],
        chunk_len: usize,
        f: F,
    ) {
        self.pieces_mut(data, chunk_len, u32::MAX, f);
    }

    /// [`Self::chunks_mut`] with at most `pieces_max` pieces per thread.
    fn pieces_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &mut self,
        data: &mut [T],
        chunk_len: usize,
        pieces_max: u32,
        f: F,
    ) {
        assert!(chunk_len > 0, "chunks must not be empty");
        let n_chunks = data.len().div_ceil(chunk_len);
        let n_threads = self.n_threads().min(n_chunks);
        if n_threads <= 1 {
            for (i, chunk) in data.chunks_mut(chunk_len).enumerate() {
                f(i, chunk);
            }
            return;
        }
        let division = Division {
            n_chunks,
            n_threads,
            pieces_max,
        };
        let claims = self.claims.divide(division);
        let parts = Parts::new(data);
        self.crew.dispatch(n_threads - 1, |thread| {
            claims.drain(division, thread, |chunks| {
                let at = |chunk: usize| chunk.saturating_mul(chunk_len);
                // SAFETY: `drain` gives every chunk once, so the element ranges are disjoint.
                let part = unsafe { parts.part(at(chunks.start)..at(chunks.end)) };
                for (i, chunk) in chunks.zip(part.chunks_mut(chunk_len)) {
                    f(i, chunk);
                }
            });
        });
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}
