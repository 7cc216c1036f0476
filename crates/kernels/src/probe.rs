//! Measured ceilings of this host, to print beside a model's speed.
//!
//! Two of reading (memory, and a cache that a thread has for itself) and one of multiplying for each arithmetic. These are
//! measurements, so they vary from run to run; nothing may depend on their values.

use std::hint::black_box;
use std::time::Instant;

use crate::activations::{Activations, Arithmetic};
use crate::arch::Kernels;
use crate::format::Format;
use crate::linear::{LinearJob, linear};
use crate::team::{Team, share};
use crate::tile::{TileView, tile_bytes};

/// Times a probe repeats; the best one counts, as interference only slows.
const REPEATS: usize = 5;

/// Bytes of a thread's share of the cache probe: a quarter of the smallest second-level cache in use, several times a
/// first-level one.
const CACHE_BYTES: usize = 128 << 10;

/// Bytes that a thread reads in one repeat of the cache probe: some milliseconds, beside which a dispatch is nothing.
const CACHE_READ_BYTES: usize = 64 << 20;

/// Positions of the multiply probe: enough to load a tile once for many products, few enough to stay in a cache.
const POSITIONS: usize = 32;

/// Columns of the multiply probe: whole blocks, and activations of all positions that fit a cache beside the weights.
const COLS: usize = 640;

/// Bytes of a thread's weights in the multiply probe.
const WEIGHT_BYTES: usize = 64 << 10;

/// Products with the same weights in one dispatch of the multiply probe, for each thread: a dispatch is nothing beside them.
const PRODUCTS: usize = 8;

/// Dispatches of the multiply probe that are timed together.
const DISPATCHES: usize = 4;

/// Bytes per second, in units of 10^9, at which `team` reads `memory`, which it overwrites.
///
/// Choose memory several times the last-level cache, in pages of the kind that what it is compared with has: with small
/// pages a good part of the time goes into finding them.
pub fn read_bandwidth_gb_s(team: &mut Team, kernels: &Kernels, memory: &mut [u8]) -> f64 {
    let n_threads = team.n_threads();
    write_pages(team, memory);
    let memory = &*memory;
    best(memory.len() as f64, || {
        team.run(|worker| {
            black_box((kernels.read)(
                &memory[share(memory.len(), worker, n_threads)],
            ));
        });
    })
}

/// As [`read_bandwidth_gb_s`], from memory that stays in the second-level cache of each thread's core. A reading of memory
/// that is not well below this one did not reach memory.
pub fn cache_bandwidth_gb_s(team: &mut Team, kernels: &Kernels) -> f64 {
    let n_threads = team.n_threads();
    let mut memory = vec![0; CACHE_BYTES * n_threads];
    write_pages(team, &mut memory);
    let memory = &memory;
    best((CACHE_READ_BYTES * n_threads) as f64, || {
        team.run(|worker| {
            let part = &memory[share(memory.len(), worker, n_threads)];
            for _ in 0..CACHE_READ_BYTES / CACHE_BYTES {
                // Each round is read again, whatever the compiler knows of the one before.
                black_box((kernels.read)(black_box(part)));
            }
        });
    })
}

/// Multiply-adds per second, in units of 10^9, of `team` with weights and activations that stay in caches, for 32 positions
/// at a time: F32 weights for [`Arithmetic::Exact`], Q8_0 weights for the others.
pub fn multiply_rate_gmac_s(team: &mut Team, kernels: &Kernels, arithmetic: Arithmetic) -> f64 {
    let n_threads = team.n_threads();
    let format = match arithmetic {
        Arithmetic::Exact => Format::F32,
        Arithmetic::Fast | Arithmetic::Asym16 => Format::Q8_0,
    };
    let row_bytes = format.row_bytes(COLS).expect("whole blocks");
    let rows = (WEIGHT_BYTES / row_bytes).next_multiple_of(crate::tile::TILE_ROWS);
    let n_bytes = tile_bytes(format, rows, COLS).expect("a small matrix");
    // Zeros are multiplied at the speed of any other number; only subnormals are slower.
    let tiles = vec![0; n_bytes];
    let weight = TileView::new(format, rows, COLS, &tiles).expect("the bytes of its tiles");
    let mut x = Activations::new();
    let values: Vec<f32> = (0..POSITIONS * COLS)
        .map(|i| (i % 17) as f32 - 8.0)
        .collect();
    let forms = arithmetic.forms(COLS, [weight.format()]);
    x.prepare(team, kernels, &values, POSITIONS, forms);
    let n_products = PRODUCTS * n_threads;
    let mut outs = vec![vec![0.0; POSITIONS * rows]; n_products];
    let n_macs = DISPATCHES * n_products * POSITIONS * rows * COLS;
    best(n_macs as f64, || {
        for _ in 0..DISPATCHES {
            let mut jobs: Vec<LinearJob<'_>> = outs
                .iter_mut()
                .map(|out| LinearJob { weight, out })
                .collect();
            linear(team, kernels, &x, &mut jobs);
        }
        black_box(&outs);
    })
}

/// The most of `n` that a repeat of `work` gets done per nanosecond; one more repeat goes before, unmeasured.
fn best(n: f64, mut work: impl FnMut()) -> f64 {
    work();
    let mut best_s = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = Instant::now();
        work();
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    // A clock that did not move would make it infinite.
    n / best_s.max(1e-9) / 1e9
}

/// Writes every byte, by the threads that will read it, so that every page exists and is near its reader.
fn write_pages(team: &mut Team, memory: &mut [u8]) {
    let chunk_len = memory.len().div_ceil(team.n_threads()).max(1);
    team.chunks_mut(memory, chunk_len, |i, chunk| chunk.fill(i as u8 + 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Isa, READ_STEP};

    #[test]
    fn every_set_reads_all_bytes_of_whole_steps() {
        for n_steps in [0, 1, 3, 50] {
            let len = n_steps * READ_STEP;
            let bytes: Vec<u8> = (0..len + 77).map(|i| (i * 89 % 251) as u8).collect();
            let words = bytes[..len].as_chunks::<8>().0;
            let sum = words.iter().fold(0u64, |sum, word| {
                sum.wrapping_add(u64::from_le_bytes(*word))
            });
            for isa in Isa::available() {
                let kernels = Kernels::for_isa(isa).expect("listed as available");
                assert_eq!((kernels.read)(&bytes), sum, "{} {n_steps}", isa.name());
            }
        }
    }
}
