//! Ctrl-C: ends the work in hand, or the program if there is none.
//!
//! The first press raises the [`Interrupt`] that the engine looks at; a second one within two seconds ends the program,
//! for work that does not listen. Work that does gets the time to remove the files it has begun: the second press waits
//! for it, and not for long. Without work in hand the first press ends the program at once. Work that is ended says so by its
//! result, and the program, where it is ended from here, before it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larql_engine::Interrupt;

use crate::error::CliError;
use crate::printer::Printer;

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

/// How long a second press waits for work that is ending. Looks at the flag are milliseconds apart, but the system may
/// hold a write for longer.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long a second press after the end of the work leaves the program to itself.
const LINGER: Duration = Duration::from_millis(200);

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
    /// Takes over Ctrl-C of this process; `printer` tells of an end that no command tells of.
    ///
    /// # Errors
    /// If the system refuses the handler.
    pub(crate) fn install(printer: Printer) -> Result<Self, CliError> {
        let interrupts = Self {
            flag: Interrupt::default(),
            working: Arc::new(AtomicBool::new(false)),
        };
        let (flag, working) = (interrupts.flag.clone(), Arc::clone(&interrupts.working));
        let end = move || {
            printer.error(&CliError::interrupted());
            std::process::exit(EXIT_INTERRUPTED.into());
        };
        let mut last: Option<Instant> = None;
        ctrlc::set_handler(move || {
            let now = Instant::now();
            let again = last.is_some_and(|last| now.duration_since(last) < IMPATIENCE);
            match (again, working.load(Ordering::SeqCst)) {
                (false, true) => {}
                (false, false) => end(),
                (true, true) => {
                    if ends_within(&working, GRACE) {
                        // The first press was enough, and what began the work tells the end of it.
                        return;
                    }
                    end();
                }
                (true, false) => {
                    // A command whose work has just ended removes its temporary folders and ends by itself.
                    std::thread::sleep(LINGER);
                    end();
                }
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

/// Whether the work ends in this time.
fn ends_within(working: &AtomicBool, time: Duration) -> bool {
    let begin = Instant::now();
    while working.load(Ordering::SeqCst) {
        if begin.elapsed() >= time {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.interrupts.working.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_press_waits_for_work_that_ends_and_for_no_other() {
        let working = Arc::new(AtomicBool::new(true));
        assert!(!ends_within(&working, Duration::from_millis(20)));
        let ending = Arc::clone(&working);
        let work = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40));
            ending.store(false, Ordering::SeqCst);
        });
        assert!(ends_within(&working, Duration::from_secs(60)));
        work.join().unwrap();
    }
}
