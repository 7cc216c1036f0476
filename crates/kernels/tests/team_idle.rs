//! A team that waits costs nothing.  Alone in its process, so that its time is the team's.

#![expect(clippy::print_stdout, reason = "it says when it is skipped")]

use std::fs;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use larql_kernels::Team;

/// How long the team waits.
const IDLE: Duration = Duration::from_secs(2);

/// Of a core, that the process may use meanwhile.
const LIMIT: f64 = 0.01;

/// Time that the threads of this process have run, where Linux tells.
fn cpu_time() -> Option<Duration> {
    let mut ns = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // Nanoseconds on a core, nanoseconds waiting for one, times put on one.
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        ns += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(ns))
}

#[test]
fn an_idle_team_uses_less_than_a_hundredth_of_a_core() {
    for n_threads in [2, 5] {
        let mut team = Team::new(NonZeroUsize::new(n_threads).expect("not zero"));
        let mut counts = [0u64; 1000];
        for _ in 0..100 {
            team.chunks_mut(&mut counts, 3, |_, chunk| {
                chunk.iter_mut().for_each(|n| *n += 1);
            });
        }
        let Some(before) = cpu_time().filter(|time| !time.is_zero()) else {
            println!("skipped: this system does not tell the time that a thread has run");
            return;
        };
        let start = Instant::now();
        thread::sleep(IDLE);
        let used = cpu_time().expect("told before") - before;
        let part = used.as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(
            part < LIMIT,
            "{n_threads} threads used {used:?}, {part} of a core"
        );
        team.chunks_mut(&mut counts, 3, |_, chunk| {
            chunk.iter_mut().for_each(|n| *n += 1);
        });
        assert_eq!(counts, [101; 1000]);
    }
}
