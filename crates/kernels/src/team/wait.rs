//! How the threads of a team wait: spin while an answer is near, yield while it may be, then park.
//!
//! Only workers park.  The caller would pay for its wakeup at every dispatch, and nobody would be there to unpark it.

use std::time::{Duration, Instant};

use super::sync::thread;

/// How long a thread spins: the serial work between two dispatches of a decode step is shorter than this.
const SPIN: Duration = Duration::from_micros(60);

/// How long a worker yields its core to others before it parks; waking from a park costs tens of microseconds.
const YIELD: Duration = Duration::from_micros(300);

/// A yield that takes longer than this has let another thread run for a slice of the scheduler's time.
const LOST: Duration = Duration::from_micros(200);

/// Waits after a lost core in which a worker parks at once in place of yielding.  Who yields goes to the end of the queue
/// and comes back milliseconds later, whatever happens meanwhile; who is unparked comes back at once.
const WAITS_WITHOUT_YIELD: u32 = 256;

/// Spins between two looks at the clock, which takes longer than one of them.
const SPINS_PER_LOOK: u32 = 64;

/// What to do after a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Look again.
    Awake,
    /// This has taken long: a worker parks.
    Enough,
}

/// How long a thread spins and then yields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    spinning: Duration,
    yielding: Duration,
}

impl Patience {
    /// Of a team whose threads have a core each.
    pub(super) const WITH_CORES: Self = Self {
        spinning: SPIN,
        yielding: YIELD,
    };

    /// Of a team with more threads than cores: one that spins would keep one that works from its core.
    pub(super) const WITHOUT_CORES: Self = Self {
        spinning: Duration::ZERO,
        yielding: YIELD,
    };

    /// Begins the first wait of a thread.
    pub(super) fn start(self) -> Waiting {
        Waiting {
            patience: self,
            since: None,
            spins: 0,
            waits_without_yield: 0,
        }
    }
}

/// The waits of a thread, one after another.
#[derive(Debug)]
pub(super) struct Waiting {
    patience: Patience,
    since: Option<Instant>,
    spins: u32,
    waits_without_yield: u32,
}

impl Waiting {
    /// Begins another wait.
    pub(super) fn restart(&mut self) {
        self.since = None;
        self.spins = 0;
        self.waits_without_yield = self.waits_without_yield.saturating_sub(1);
    }

    /// Spins or yields once.
    #[inline]
    pub(super) fn rest(&mut self) -> Rest {
        // Loom tries every length of a wait by itself.
        if cfg!(all(loom, test)) {
            return Rest::Enough;
        }
        if self.spins < SPINS_PER_LOOK && !self.patience.spinning.is_zero() {
            self.spins += 1;
            std::hint::spin_loop();
            return Rest::Awake;
        }
        self.look()
    }

    /// Looks at the clock, and yields if it is time to.
    fn look(&mut self) -> Rest {
        let Patience { spinning, yielding } = self.patience;
        let since = *self.since.get_or_insert_with(Instant::now);
        let waited = since.elapsed();
        if waited < spinning {
            self.spins = 0;
            return Rest::Awake;
        }
        if waited >= spinning + yielding || self.waits_without_yield > 0 {
            return Rest::Enough;
        }
        thread::yield_now();
        if since.elapsed() - waited > LOST {
            self.waits_without_yield = WAITS_WITHOUT_YIELD;
        }
        Rest::Awake
    }
}

/// Waits until `done`, without parking.
pub(super) fn until(patience: Patience, done: impl Fn() -> bool) {
    let mut waiting = patience.start();
    while !done() {
        match waiting.rest() {
            Rest::Awake => {}
            // The other thread has lost its core, perhaps to us.
            Rest::Enough => thread::yield_now(),
        }
    }
}
