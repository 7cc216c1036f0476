//! Ctrl-C: ends the work in hand, or the program if there is none.
//!
//! The first press raises the [`Interrupt`] that the engine looks at; a second one within two seconds ends the program,
//! for work that does not listen. Without work in hand the first press ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larql_engine::Interrupt;

use crate::error::CliError;

/// Makes a write beyond the limit on the size of files (`ulimit -f`) fail like one on a full disk, instead of ending the
/// process before it can remove what it has begun. To be called before the first thread starts: threads inherit it.
#[cfg(unix)]
pub(crate) fn outlive_file_size_limit() {
    let mut signals = nix::sys::signal::SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGXFSZ);
    // If it cannot be blocked, the process ends as it would have without this.
    let _ = signals.thread_block();
}

/// Only Unix has that limit.
#[cfg(not(unix))]
pub(crate) fn outlive_file_size_limit() {}

/// Exit code of a program that was interrupted, as shells know it.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;
/// Two presses closer than this mean that the first was not enough.
const IMPATIENCE: Duration = Duration::from_secs(2);

/// The handler's end of the story that commands hold.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts {
    flag: Interrupt,
    working: Arc<AtomicBool>,
}

/// While this lives, Ctrl-C ends the work and not the program.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    interrupts: &'a Interrupts,
}

impl Interrupts {
    /// Takes over Ctrl-C of this process.
    ///
    /// # Errors
    /// If the system refuses the handler.
    pub(crate) fn install() -> Result<Self, CliError> {
        let interrupts = Self {
            flag: Interrupt::default(),
            working: Arc::new(AtomicBool::new(false)),
        };
        let (flag, working) = (interrupts.flag.clone(), Arc::clone(&interrupts.working));
        let mut last: Option<Instant> = None;
        ctrlc::set_handler(move || {
            let now = Instant::now();
            let again = last.is_some_and(|last| now.duration_since(last) < IMPATIENCE);
            if again || !working.load(Ordering::SeqCst) {
                std::process::exit(EXIT_INTERRUPTED.into());
            }
            last = Some(now);
            flag.raise();
        })
        .map_err(|source| {
            CliError::failure(
                "signal_handler",
                format!("cannot take over Ctrl-C: {source}"),
            )
        })?;
        Ok(interrupts)
    }

    /// The flag to hand to the engine.
    pub(crate) fn flag(&self) -> Interrupt {
        self.flag.clone()
    }

    /// Begins work that Ctrl-C can end.
    pub(crate) fn work(&self) -> Work<'_> {
        self.flag.clear();
        self.working.store(true, Ordering::SeqCst);
        Work { interrupts: self }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.interrupts.working.store(false, Ordering::SeqCst);
    }
}
