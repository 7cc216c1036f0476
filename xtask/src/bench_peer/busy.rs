//! Busy threads that compete with a measured program, and what a fair scheduler would leave to it.

use std::hint::black_box;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// A process of this program in which threads spin; ends when dropped, or when this process ends.
pub(super) struct Busy(Child);

impl Busy {
    pub(super) fn start(n_threads: u64) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(program)
            .args(["spin", &n_threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start busy threads")?;
        Ok(Self(child))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Keeps this many threads busy until the standard input ends.
pub(crate) fn spin(n_threads: u64) -> Result<()> {
    for _ in 0..n_threads {
        thread::spawn(|| {
            let mut n = 0u64;
            loop {
                n = black_box(n.wrapping_add(1));
            }
        });
    }
    io::stdin()
        .read_to_end(&mut Vec::new())
        .context("cannot wait for the end of the standard input")?;
    Ok(())
}

/// The share of its idle speed that a program with `n_threads` keeps when every runnable thread gets as much of the
/// `n_cores` as any other, and none more than one core: `min(1, cores / (busy + threads)) / min(1, cores / threads)`.
pub(super) fn fair_share(n_cores: u64, n_busy: u64, n_threads: u64) -> f64 {
    let per_thread = |n_runnable: u64| (n_cores as f64 / n_runnable as f64).min(1.0);
    per_thread(n_busy.saturating_add(n_threads)) / per_thread(n_threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fair_share_counts_every_runnable_thread_once() {
        assert_eq!(fair_share(2, 4, 2), 2.0 / 6.0);
        assert_eq!(fair_share(2, 4, 1), 2.0 / 5.0);
        // A core is free for the one thread.
        assert_eq!(fair_share(2, 1, 1), 1.0);
        // Four threads had half a core each before.
        assert_eq!(fair_share(2, 4, 4), 0.5);
    }
}
