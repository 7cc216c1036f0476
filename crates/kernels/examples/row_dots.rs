//! Measures matrix products per format: bytes of weights per second for one position, and
//! multiply-adds per second for many.
//!
//! Run with `cargo run --release -p larql-kernels --example row_dots [THREADS]`.  "Memory" reads a
//! matrix larger than most last-level caches, "cache" one that stays in the second level and shows
//! what the instructions allow.  The best of several runs counts, so that a busy machine distorts
//! the short ones little.

#![expect(clippy::print_stdout, reason = "a measurement prints its table")]

use std::num::NonZeroUsize;
use std::time::Instant;

use larql_kernels::{
    Activations, Arithmetic, Format, Kernels, LinearJob, MatrixView, RowOrder, Team, TileView,
    linear, pack_tiles, read_bandwidth_gb_s, tile_bytes,
};

const MEMORY_BYTES: usize = 96 << 20;
const CACHE_BYTES: usize = 128 << 10;
const MANY: usize = 32;

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let mut team = Team::new(threads.unwrap_or(NonZeroUsize::MIN));
    let kernels = Kernels::detect();
    let read = read_bandwidth_gb_s(&mut team, kernels, &mut vec![0; MEMORY_BYTES]);
    println!(
        "{} threads, {}, reads {read:.1} GB/s",
        team.n_threads(),
        kernels.isa().name()
    );
    println!("format   cols  how     memory GB/s  cache GB/s  GMAC/s, {MANY} positions");
    for &format in Format::ALL {
        let cols = format.block_len().max(128) * 5;
        let mut seen = Vec::new();
        for arithmetic in Arithmetic::ALL {
            let form = arithmetic.form(format, cols);
            if seen.contains(&form) {
                continue;
            }
            seen.push(form);
            let of = |team: &mut Team, n_pos, bytes| {
                speed(team, kernels, format, cols, arithmetic, n_pos, bytes)
            };
            let (memory, _) = of(&mut team, 1, MEMORY_BYTES);
            let (cache, _) = of(&mut team, 1, CACHE_BYTES);
            let (_, gmac_s) = of(&mut team, MANY, CACHE_BYTES / 2);
            let how = format!("{arithmetic:?}");
            println!(
                "{:7} {cols:5}  {how:6}  {memory:11.1}  {cache:10.1}  {gmac_s:6.1}",
                format.name()
            );
        }
    }
}

/// Best speed over a matrix of about `bytes`, in bytes and in multiply-adds, both 10^9 per second.
fn speed(
    team: &mut Team,
    kernels: &Kernels,
    format: Format,
    cols: usize,
    arithmetic: Arithmetic,
    n_pos: usize,
    bytes: usize,
) -> (f64, f64) {
    let row_bytes = format.row_bytes(cols).expect("whole blocks");
    let rows = bytes / row_bytes;
    // Small numbers in every float format; the values do not change the time.
    let data: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 7 % 50) as u8).collect();
    let weight = MatrixView::new(format, rows, cols, &data).expect("sized for the shape");
    let mut tiles = vec![0; tile_bytes(format, rows, cols).expect("fits in memory")];
    pack_tiles(team, weight, RowOrder::Stored, &mut tiles);
    let weight = TileView::new(format, rows, cols, &tiles).expect("sized for the shape");
    let values: Vec<f32> = (0..n_pos * cols).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut x = Activations::new();
    x.prepare(
        team,
        kernels,
        &values,
        n_pos,
        arithmetic.forms(cols, [format]),
    );
    let mut out = vec![0.0; rows * n_pos];
    let mut best_s = f64::INFINITY;
    for _ in 0..(256 << 20) / bytes.max(1) + 4 {
        let start = Instant::now();
        let job = LinearJob {
            weight,
            out: &mut out,
        };
        linear(team, kernels, &x, &mut [job]);
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    (
        data.len() as f64 / best_s / 1e9,
        (rows * cols * n_pos) as f64 / best_s / 1e9,
    )
}
