//! The team runs every share exactly once, survives panics, and ends.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use larql_kernels::Team;
use support::team;

/// One-wide and all-wide dispatches in turn, on a core per thread and on fewer: a worker that runs a dispatch twice, or
/// runs the next one in place of its own, shows in the counts.
#[test]
fn every_chunk_runs_exactly_once() {
    const WIDE: usize = 7;
    for n_threads in [2, WIDE] {
        let mut team = team(n_threads);
        let mut counts = [0u32; WIDE];
        for dispatch in 0..100_000 {
            let width = if dispatch % 2 == 0 { 1 } else { WIDE };
            let before = counts;
            team.claim_chunks_mut(&mut counts[..width], 1, |_, chunk| chunk[0] += 1);
            for (i, (after, before)) in counts.iter().zip(before).enumerate() {
                assert_eq!(
                    after - before,
                    u32::from(i < width),
                    "dispatch {dispatch} chunk {i}"
                );
            }
        }
    }
}

/// As above for every width in turn, so that the workers that take part are others each time.
#[test]
fn workers_come_and_go() {
    let mut team = team(5);
    let mut counts = [0u32; 5];
    for dispatch in 0..5_000 {
        let width = dispatch * 7 % counts.len() + 1;
        team.chunks_mut(&mut counts[..width], 1, |_, chunk| chunk[0] += 1);
    }
    assert_eq!(counts, [5_000, 4_000, 3_000, 2_000, 1_000]);
}

/// A chunk that ends only when all others but its neighbor have ended: whoever has it, the rest of its share and the other
/// shares are relieved, or this waits forever.
#[test]
fn a_share_that_is_behind_is_relieved() {
    for n_threads in [2, 3] {
        let n_chunks = 16 * n_threads;
        for slow in [0, 16] {
            let ended = AtomicUsize::new(0);
            let mut visits = vec![0; n_chunks];
            team(n_threads).chunks_mut(&mut visits, 1, |i, visits| {
                let start = Instant::now();
                // A piece is two chunks here, and the other one comes after.
                while i == slow && ended.load(Ordering::Relaxed) < n_chunks - 2 {
                    assert!(start.elapsed() < Duration::from_secs(60), "chunk {slow}");
                    std::thread::yield_now();
                }
                visits[0] += 1;
                ended.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(visits, vec![1; n_chunks]);
        }
    }
}

#[test]
fn run_reaches_every_index_once() {
    for n_threads in [1, 2, 5] {
        let mut team = team(n_threads);
        for _ in 0..200 {
            let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
            team.run(|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1)
            );
        }
    }
}

#[test]
fn chunks_are_contiguous_and_numbered() {
    for (len, chunk_len) in [(0, 3), (1, 3), (10, 3), (12, 3), (5, 100), (64, 1)] {
        for n_threads in 1..=4 {
            let mut data = vec![usize::MAX; len];
            team(n_threads).chunks_mut(&mut data, chunk_len, |i, chunk| {
                assert!(chunk.len() == chunk_len || (i + 1) * chunk_len > len);
                chunk.fill(i);
            });
            let expected: Vec<usize> = (0..len).map(|at| at / chunk_len).collect();
            assert_eq!(data, expected, "{len} by {chunk_len} on {n_threads}");
            let mut claimed = vec![0; len];
            team(n_threads).claim_chunks_mut(&mut claimed, chunk_len, |i, chunk| {
                chunk.iter_mut().for_each(|at| *at += i + 1);
            });
            let expected: Vec<usize> = expected.iter().map(|i| i + 1).collect();
            assert_eq!(
                claimed, expected,
                "claimed, {len} by {chunk_len} on {n_threads}"
            );
        }
    }
}

/// Which shares panic must not matter; after each, the next dispatch is whole.
#[test]
fn a_panic_reaches_the_caller_and_the_team_lives() {
    for n_threads in [1, 2, 3] {
        let mut team = team(n_threads);
        for culprit in 0..n_threads {
            let payload = catch_unwind(AssertUnwindSafe(|| {
                team.run(|i| assert_ne!(i, culprit, "share {culprit} fails"));
            }))
            .unwrap_err();
            let message = payload.downcast_ref::<String>().unwrap();
            assert!(
                message.contains(&format!("share {culprit} fails")),
                "{message}"
            );
            let count = AtomicUsize::new(0);
            team.run(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), n_threads);
        }
    }
}

/// A panic in one chunk ends its thread's part of the dispatch only, and leaves nothing behind.
#[test]
fn a_panic_in_a_chunk_leaves_the_team_whole() {
    let mut team = team(3);
    for culprit in [0, 17, 46] {
        let mut data = [0u8; 47];
        let message = support::panic_message(|| {
            team.chunks_mut(&mut data, 1, |i, _| {
                assert_ne!(i, culprit, "chunk {culprit} fails");
            });
        });
        assert!(
            message.contains(&format!("chunk {culprit} fails")),
            "{message}"
        );
        team.chunks_mut(&mut data, 1, |_, chunk| chunk[0] += 1);
        assert_eq!(data, [1; 47]);
    }
}

#[test]
fn parked_workers_wake_and_end() {
    let start = Instant::now();
    for _ in 0..10 {
        let mut team = team(3);
        // Longer than a worker stays awake.
        std::thread::sleep(Duration::from_millis(5));
        let count = AtomicUsize::new(0);
        team.run(|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 3);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "a worker did not wake at once"
    );
}

#[test]
fn the_default_is_what_the_system_allows() {
    let n = Team::default_threads();
    assert_eq!(n, std::thread::available_parallelism().unwrap());
    assert_eq!(Team::new(n).n_threads(), n.get());
}
