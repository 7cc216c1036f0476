//! Matrix products: several matrices of tiled weights times the same activations, in one dispatch.
//!
//! The tiles of all jobs are laid end to end and split over the team by bytes, because reading the weights is what costs.
//! A tile is read from memory once for all positions; in float arithmetic it is also decoded once.  The sum of a row and a
//! position is computed by one thread in one fixed order, so neither the split nor the number of positions can change a
//! bit of it.

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::Activations;
use crate::arch::{FloatDots, Kernels, TileDots};
use crate::team::{Team, TileWriter};
use crate::tile::{TILE_ROWS, TileView};

/// Below this many weight bytes times positions a dispatch costs more than it saves.
const SERIAL_WORK_MAX: usize = 16 * 1024;

/// Columns that are decoded at a time: with the eight rows of a tile, half of a first-level cache.  A multiple of the
/// blocks of all formats and of the chains of sums.
const PANEL: usize = 512;

/// One output of a fused dispatch: `out[p * rows + r] = sum_k weight[r, k] * x[p, k]`.
#[derive(Debug)]
pub struct LinearJob<'a> {
    /// `[rows, cols]`.
    pub weight: TileView<'a>,
    /// `[n_pos, rows]`.
    pub out: &'a mut [f32],
}

/// The tiles of one job that one thread computes.
struct Share<'a> {
    weight: TileView<'a>,
    tiles: Range<usize>,
    writer: TileWriter<'a>,
}

/// Computes all jobs over the activations `x`.
///
/// With activations prepared for [`Arithmetic::Fast`](crate::Arithmetic::Fast), a format with an
/// integer kernel runs on it; everything else runs in floats.
///
/// # Panics
///
/// If a weight's columns differ from the activations', or an output has another size than `n_pos * rows`.
pub fn linear(team: &mut Team, kernels: &Kernels, x: &Activations, jobs: &mut [LinearJob<'_>]) {
    let mut work_bytes = 0usize;
    for job in &*jobs {
        assert_eq!(
            job.weight.cols(),
            x.cols(),
            "columns of weights and activations"
        );
        work_bytes = work_bytes.saturating_add(job.weight.bytes().len());
    }
    let n_threads = match work_bytes.saturating_mul(x.n_pos()) {
        0..=SERIAL_WORK_MAX => 1,
        _ => team.n_threads(),
    };
    let mut shares = split(jobs, x.n_pos(), work_bytes, n_threads);
    let run = |shares: &mut Vec<Share<'_>>| {
        for share in shares {
            compute(kernels, x, share);
        }
    };
    match &mut *shares {
        [only] => run(only),
        shares => team.chunks_mut(shares, 1, |_, share| share.iter_mut().for_each(run)),
    }
}

/// Gives every thread a contiguous run of tiles of about the same number of bytes.
fn split<'a>(
    jobs: &'a mut [LinearJob<'_>],
    n_pos: usize,
    work_bytes: usize,
    n_threads: usize,
) -> Vec<Vec<Share<'a>>> {
    let mut shares: Vec<Vec<Share<'a>>> = (0..n_threads).map(|_| Vec::new()).collect();
    let end_of = |thread: usize| crate::team::share(work_bytes, thread, n_threads).end;
    let (mut thread, mut at) = (0, 0);
    for job in jobs {
        let weight = job.weight;
        let mut rest = TileWriter::new(job.out, n_pos, weight.rows());
        let tile_len = weight.tile_len();
        let mut next = 0;
        while next < weight.n_tiles() {
            while thread + 1 < n_threads && at >= end_of(thread) {
                thread += 1;
            }
            let room = if thread + 1 == n_threads || tile_len == 0 {
                usize::MAX
            } else {
                (end_of(thread) - at).div_ceil(tile_len)
            };
            let n_tiles = (weight.n_tiles() - next).min(room);
            let tiles = next..next + n_tiles;
            shares[thread].push(Share {
                weight,
                writer: rest.split_before(tiles.end),
                tiles,
            });
            next += n_tiles;
            at += n_tiles * tile_len;
        }
    }
    shares
}

fn compute(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    match kernels.integer_dots(share.weight.format()) {
        Some(dots) if x.has_blocks() => integers(dots, x, share),
        Some(_) | None => floats(kernels, kernels.float_dots(), x, share),
    }
}

fn integers(dots: TileDots, x: &Activations, share: &mut Share<'_>) {
    for tile in share.tiles.clone() {
        let bytes = share.weight.tile(tile);
        let mut pos = 0;
        while pos + 4 <= x.n_pos() {
            let mut sums = [[0.0; TILE_ROWS]; 4];
            let xs = [pos, pos + 1, pos + 2, pos + 3].map(|p| x.blocks(p));
            (dots.four)(bytes, xs, &mut sums);
            share.writer.store(tile, pos, &sums);
            pos += 4;
        }
        while pos + 2 <= x.n_pos() {
            let mut sums = [[0.0; TILE_ROWS]; 2];
            (dots.two)(bytes, [pos, pos + 1].map(|p| x.blocks(p)), &mut sums);
            share.writer.store(tile, pos, &sums);
            pos += 2;
        }
        if pos < x.n_pos() {
            let mut sums = [[0.0; TILE_ROWS]];
            (dots.one)(bytes, [x.blocks(pos)], &mut sums);
            share.writer.store(tile, pos, &sums);
        }
    }
}

/// Buffers of one thread; kept, because a decode step asks for them hundreds of times.
#[derive(Default)]
struct Buffers {
    panel: Vec<[f32; TILE_ROWS]>,
    sums: Vec<[f32; TILE_ROWS]>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = const {
        RefCell::new(Buffers {
            panel: Vec::new(),
            sums: Vec::new(),
        })
    };
}

/// Decodes some columns of a tile, then meets every position with them.
fn floats(kernels: &Kernels, dots: FloatDots, x: &Activations, share: &mut Share<'_>) {
    let (format, cols) = (share.weight.format(), x.cols());
    let bytes_of = |cols: usize| cols / format.block_len() * format.block_bytes() * TILE_ROWS;
    BUFFERS.with_borrow_mut(|Buffers { panel, sums }| {
        panel.resize(PANEL, [0.0; TILE_ROWS]);
        for tile in share.tiles.clone() {
            sums.clear();
            sums.resize(x.n_pos(), [0.0; TILE_ROWS]);
            for first in (0..cols).step_by(PANEL) {
                let n = PANEL.min(cols - first);
                let groups = &share.weight.tile(tile)[bytes_of(first)..][..bytes_of(n)];
                let panel = &mut panel[..n];
                kernels.decode_tile(format, groups, panel);
                let part = |p: usize| &x.position(p)[first..first + n];
                let (fours, rest) = sums.as_chunks_mut::<4>();
                let mut pos = 0;
                for sums in fours {
                    let xs = [pos, pos + 1, pos + 2, pos + 3].map(part);
                    (dots.four)(panel, xs, sums);
                    pos += 4;
                }
                let (twos, rest) = rest.as_chunks_mut::<2>();
                for sums in twos {
                    (dots.two)(panel, [pos, pos + 1].map(part), sums);
                    pos += 2;
                }
                for sum in rest.as_chunks_mut::<1>().0 {
                    (dots.one)(panel, [part(pos)], sum);
                    pos += 1;
                }
            }
            share.writer.store(tile, 0, sums);
        }
    });
}
