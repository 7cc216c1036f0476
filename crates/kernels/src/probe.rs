//! Measured ceilings of this host, to print beside a model's speed.
//!
//! These are measurements, so they vary from run to run; nothing may depend on their values.

use std::hint::black_box;
use std::time::Instant;

use crate::team::{Team, share};

/// Times a probe repeats; the best one counts, as interference only slows.
const REPEATS: usize = 5;

/// Bytes per second, in units of 10^9, at which `team` reads a buffer of `bytes` bytes.
///
/// Choose `bytes` several times the last-level cache to measure memory.
pub fn read_bandwidth_gb_s(team: &mut Team, bytes: usize) -> f64 {
    /// One cache line as eight words.
    type Line = [u64; 8];
    let n_lines = (bytes / size_of::<Line>()).max(1);
    let n_threads = team.n_threads();
    let mut lines: Vec<Line> = vec![[0; 8]; n_lines];
    // Written by the threads that read it, so that every page exists and is near its reader.
    let chunk_len = n_lines.div_ceil(n_threads);
    team.chunks_mut(&mut lines, chunk_len, |i, chunk| {
        chunk.fill([i as u64 + 1; 8])
    });
    let mut best_s = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = Instant::now();
        team.run(|worker| {
            let mut sums = [[0u64; 8]; 2];
            let part = &lines[share(n_lines, worker, n_threads)];
            let (pairs, rest) = part.as_chunks::<2>();
            for pair in pairs.iter().map(<[Line; 2]>::as_slice).chain([rest]) {
                for (sum, line) in sums.iter_mut().zip(pair) {
                    for (sum, word) in sum.iter_mut().zip(line) {
                        *sum = sum.wrapping_add(*word);
                    }
                }
            }
            black_box(sums);
        });
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    (n_lines * size_of::<Line>()) as f64 / best_s / 1e9
}
