//! Loom models of the team: every order in which the steps of its threads may meet, within the bounds named here.
//!
//! `cargo xtask loom` runs them.  They drive the code that ships; only the lengths of waits are left out, so a worker that
//! finds nothing parks at once.  Loom itself reports a race on the task or on the data, a lost wakeup (all threads
//! blocked) and a thread that does not end.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::crew::Crew;
use super::split::{Claims, Division};
use super::sync::UnsafeCell;
use super::sync::atomic::{AtomicUsize, Ordering};

/// Times that a thread may be interrupted against its will in one run of the larger models, whose orders are too many
/// without a limit.
const PREEMPTIONS: usize = 2;

/// Runs `model` in every order of its steps with at most `preemptions` interruptions.
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

fn crew(n_workers: usize) -> Crew {
    Crew::new(n_workers, NonZeroUsize::MIN)
}

/// An element that several threads write in turn; loom fails the model if two writes are not ordered.
struct Cell(UnsafeCell<u32>);

// SAFETY: what the models prove; loom sees every access.
unsafe impl Sync for Cell {}

impl Cell {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn add(&self, n: u32) {
        // SAFETY: loom's cell fails the model when this access is not exclusive.
        self.0.with_mut(|value| unsafe { *value += n });
    }

    fn value(&self) -> u32 {
        // SAFETY: as in `add`.
        self.0.with(|value| unsafe { *value })
    }
}

/// Every dispatch runs every share once, on data that belongs to the caller's frame, and its writes are visible after it.
fn dispatches(n_workers: usize, n_dispatches: u32) {
    let mut crew = crew(n_workers);
    for dispatch in 1..=n_dispatches {
        let cells: Vec<Cell> = (0..=n_workers).map(|_| Cell::new()).collect();
        crew.dispatch(n_workers, |share| cells[share].add(dispatch));
        for cell in &cells {
            assert_eq!(cell.value(), dispatch);
        }
    }
}

#[test]
fn one_worker_and_two_dispatches() {
    explore(None, || dispatches(1, 2));
}

#[test]
fn one_worker_and_three_dispatches() {
    explore(Some(PREEMPTIONS + 1), || dispatches(1, 3));
}

#[test]
fn two_workers_and_three_dispatches() {
    explore(Some(PREEMPTIONS), || dispatches(2, 3));
}

/// A worker that is left out of a dispatch must not run it, whenever it looks.
#[test]
fn narrow_and_wide_dispatches_alternate() {
    explore(Some(PREEMPTIONS), || {
        let mut crew = crew(2);
        let cells = [Cell::new(), Cell::new(), Cell::new()];
        for n_workers in [1, 2, 1] {
            crew.dispatch(n_workers, |share| cells[share].add(1));
        }
        assert_eq!(cells.each_ref().map(Cell::value), [3, 3, 1]);
    });
}

/// Nothing is ever dispatched: the workers are parked, about to park, or not yet running when they are told to end.
#[test]
fn workers_end_from_every_state() {
    explore(None, || drop(crew(2)));
    explore(None, || {
        let mut crew = crew(1);
        crew.dispatch(1, |_| ());
        drop(crew);
    });
}

/// A share that panics reaches the caller, once, and the next dispatch is whole.
#[test]
fn a_panic_is_carried() {
    for culprit in [0, 1] {
        explore(None, move || {
            let mut crew = crew(1);
            let payload = catch_unwind(AssertUnwindSafe(|| {
                crew.dispatch(1, |share| {
                    if share == culprit {
                        std::panic::resume_unwind(Box::new(share));
                    }
                });
            }))
            .expect_err("the share panics");
            assert_eq!(payload.downcast_ref(), Some(&culprit));
            let cells = [Cell::new(), Cell::new()];
            crew.dispatch(1, |share| cells[share].add(1));
            assert_eq!(cells.each_ref().map(Cell::value), [1, 1]);
        });
    }
}

/// Every chunk is computed once although threads take over each other's pieces, in two dispatches over the same claims.
#[test]
fn pieces_are_claimed_once() {
    explore(Some(PREEMPTIONS), || {
        let mut crew = crew(1);
        let mut claims = Claims::new(2);
        let cells: Vec<Cell> = (0..5).map(|_| Cell::new()).collect();
        let n_runs = AtomicUsize::new(0);
        for n_chunks in [5, 3] {
            let division = Division {
                n_chunks,
                n_threads: 2,
                pieces_max: 2,
            };
            let claims = claims.divide(division);
            crew.dispatch(1, |thread| {
                claims.drain(division, thread, |chunks| {
                    n_runs.fetch_add(1, Ordering::Relaxed);
                    for cell in &cells[chunks] {
                        cell.add(1);
                    }
                });
            });
        }
        let counts: Vec<u32> = cells.iter().map(Cell::value).collect();
        assert_eq!(counts, [2, 2, 2, 1, 1]);
        assert_eq!(n_runs.load(Ordering::Relaxed), 4 + 3);
    });
}
