//! The threads of a team, and one dispatch to them.
//!
//! A crew knows shares only by number; what they are is decided in [`super::chunks`].

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::protocol::{Handshake, Task};
use super::sync::{Arc, thread};
use super::wait::{self, Patience};

/// The workers of a team, as its caller sees them.
pub(super) struct Crew {
    handshake: Arc<Handshake>,
    workers: Vec<thread::JoinHandle<()>>,
    threads: Vec<thread::Thread>,
    patience: Patience,
    generation: u64,
}

impl Crew {
    /// Starts `n_workers` threads.
    ///
    /// # Panics
    ///
    /// If the system refuses a thread.
    pub(super) fn new(n_workers: usize, cores: NonZeroUsize) -> Self {
        let patience = if n_workers < cores.get() {
            Patience::WITH_CORES
        } else {
            Patience::WITHOUT_CORES
        };
        let handshake = Arc::new(Handshake::new(n_workers));
        let workers: Vec<_> = (0..n_workers)
            .map(|worker| {
                let handshake = Arc::clone(&handshake);
                thread::Builder::new()
                    .name(format!("larql-team-{}", worker + 1))
                    .spawn(move || handshake.work(worker, patience))
                    .expect("the system starts a thread")
            })
            .collect();
        let threads = workers
            .iter()
            .map(|worker| worker.thread().clone())
            .collect();
        Self {
            handshake,
            workers,
            threads,
            patience,
            generation: 0,
        }
    }

    pub(super) fn n_workers(&self) -> usize {
        self.threads.len()
    }

    /// Runs `f(i)` once for every `i` in `0..=n_workers`, see [`super::Team::run`].
    pub(super) fn dispatch<F: Fn(usize) + Sync>(&mut self, n_workers: usize, f: F) {
        if n_workers == 0 {
            f(0);
            return;
        }
        self.generation += 1;
        let (handshake, generation) = (&self.handshake, self.generation);
        // SAFETY: every dispatch ends with all its workers finished or withdrawn.  So does this one, in the loop below,
        // before `f` goes: panics of `f` are caught, and nothing else between here and there panics.
        unsafe {
            handshake.offer(Task::new(&f), generation, n_workers, |worker| {
                self.threads[worker].unpark();
            });
        }
        let mut own = catch_unwind(AssertUnwindSafe(|| f(0)));
        for worker in 0..n_workers {
            if handshake.withdraw(worker, generation) {
                own = own.and(catch_unwind(AssertUnwindSafe(|| f(worker + 1))));
            }
        }
        for worker in 0..n_workers {
            wait::until(self.patience, || handshake.is_over(worker, generation));
        }
        let theirs = handshake.take_panic();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.handshake.stop(|worker| self.threads[worker].unpark());
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is nothing to report.
            let _ = worker.join();
        }
    }
}
