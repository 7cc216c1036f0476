//! Matrix products: several matrices of tiled weights times the same activations, in one dispatch.
//!
//! The tiles of all jobs are laid end to end and split over the team by bytes, because reading the weights is what costs.
//! Some tiles are read from memory together and meet one block of positions after the other before the next ones come; in
//! float arithmetic they are decoded for each block.  With one position tiles of several places are read at once.  The sum of
//! a row and a position is computed by one thread in one fixed order, so neither the split nor the number of positions can
//! change a bit of it.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::activations::{Activations, Blocks, Form, emptied};
use crate::arch::{
    ABREAST, AsymmetricDot, AsymmetricDots, FloatDots, Kernels, PlainDots, Plane, TileDots,
};
use crate::team::{Team, TileWriter};
use crate::tile::{TILE_ROWS, TileView};

/// Below this many weight bytes times positions a dispatch costs more than it saves.
const SERIAL_WORK_MAX: usize = 16 * 1024;

/// Columns of one tile that are decoded at a time, half as many of two: with their eight rows, half of a first-level cache.
/// A multiple of the blocks of all formats and of the chains of sums, and so is its half.
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
    thread: usize,
    weight: TileView<'a>,
    tiles: Range<usize>,
    writer: TileWriter<'a>,
}

/// Who computes what in a dispatch: empty between calls, kept because a decode step makes hundreds of them.
#[derive(Default)]
struct Lists {
    shares: Vec<Share<'static>>,
    /// The shares of each thread.
    by_thread: Vec<&'static mut [Share<'static>]>,
}

thread_local! {
    static LISTS: Cell<Lists> = const {
        Cell::new(Lists {
            shares: Vec::new(),
            by_thread: Vec::new(),
        })
    };
}

/// Computes all jobs over the activations `x`.
///
/// The arithmetic for which the activations were prepared says in which [`Form`] they meet each matrix.  Returns in how many
/// pieces the work was done, at most one per thread.
///
/// # Panics
///
/// If a weight's columns differ from the activations', or an output has another size than `n_pos * rows`.
pub fn linear(
    team: &mut Team,
    kernels: &Kernels,
    x: &Activations,
    jobs: &mut [LinearJob<'_>],
) -> usize {
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
    let Lists { shares, by_thread } = LISTS.take();
    let mut shares = emptied(shares);
    split(jobs, x.n_pos(), work_bytes, n_threads, &mut shares);
    let mut by_thread = emptied(by_thread);
    by_thread.extend(shares.chunk_by_mut(|a, b| a.thread == b.thread));
    let n_pieces = by_thread.len();
    team.chunks_mut(&mut by_thread, 1, |_, shares| {
        for share in shares.iter_mut().flat_map(|shares| shares.iter_mut()) {
            compute(kernels, x, share);
        }
    });
    LISTS.set(Lists {
        by_thread: emptied(by_thread),
        shares: emptied(shares),
    });
    n_pieces
}

/// Gives every thread a contiguous run of tiles of about the same number of bytes; the shares are in the order of threads.
fn split<'a>(
    jobs: &'a mut [LinearJob<'_>],
    n_pos: usize,
    work_bytes: usize,
    n_threads: usize,
    shares: &mut Vec<Share<'a>>,
) {
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
            shares.push(Share {
                thread,
                weight,
                writer: rest.split_before(tiles.end),
                tiles,
            });
            next += n_tiles;
            at += n_tiles * tile_len;
        }
    }
}

fn compute(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    let format = share.weight.format();
    match x.form(format) {
        Form::Blocks => {
            let dots = kernels.integer_dots(format);
            integers(
                dots.expect("this form is of formats that have them"),
                x,
                share,
            );
        }
        Form::Asymmetric => asymmetric(kernels.asymmetric, x, share),
        Form::Floats if x.n_pos() == 1 && format.block_len() == 1 => plain(kernels.plain, x, share),
        Form::Floats => floats(kernels, kernels.float_dots(), x, share),
    }
}

/// Every tile with the only position: those of [`ABREAST`] places of the share together, then the rest.
fn one_position(
    share: &mut Share<'_>,
    abreast: impl Fn([&[u8]; ABREAST], &mut [[[f32; TILE_ROWS]; 1]; ABREAST]),
    one: impl Fn([&[u8]; 1], &mut [[[f32; TILE_ROWS]; 1]; 1]),
) {
    let weight = share.weight;
    let apart = share.tiles.len() / ABREAST;
    let (first, end) = (share.tiles.start, share.tiles.end);
    for tile in first..first + apart {
        let tiles: [usize; ABREAST] = std::array::from_fn(|i| tile + i * apart);
        let mut sums = [[[0.0; TILE_ROWS]]; ABREAST];
        abreast(tiles.map(|tile| weight.tile(tile)), &mut sums);
        for (tile, sums) in tiles.iter().zip(&sums) {
            share.writer.store(*tile, 0, sums);
        }
    }
    for tile in first + apart * ABREAST..end {
        let mut sums = [[[0.0; TILE_ROWS]]];
        one([weight.tile(tile)], &mut sums);
        share.writer.store(tile, 0, &sums[0]);
    }
}

/// Values that need no decoding ahead with one position.
fn plain(dots: PlainDots, x: &Activations, share: &mut Share<'_>) {
    let (format, x) = (share.weight.format(), x.position(0));
    one_position(
        share,
        |tiles, sums| (dots.abreast)(format, tiles, x, sums),
        |tile, sums| (dots.one)(format, tile, x, sums),
    );
}

/// Each tile with all positions in blocks of 16.
fn asymmetric(dots: AsymmetricDots, x: &Activations, share: &mut Share<'_>) {
    if x.n_pos() == 1 {
        let x = [x.asymmetric(0)];
        return one_position(
            share,
            |tiles, sums| (dots.abreast)(tiles, &x, sums),
            |tile, sums| (dots.one)(tile, &x, sums),
        );
    }
    for tile in share.tiles.clone() {
        let mut pos = 0;
        while pos + 4 <= x.n_pos() {
            asymmetric_at(dots.four, x, share, tile, pos);
            pos += 4;
        }
        if pos + 2 <= x.n_pos() {
            asymmetric_at(dots.two, x, share, tile, pos);
            pos += 2;
        }
        if pos < x.n_pos() {
            asymmetric_at(dots.one, x, share, tile, pos);
        }
    }
}

/// One tile with `N` positions from `pos` on.
fn asymmetric_at<const N: usize>(
    dot: AsymmetricDot<1, N>,
    x: &Activations,
    share: &mut Share<'_>,
    tile: usize,
    pos: usize,
) {
    let xs = std::array::from_fn(|i| x.asymmetric(pos + i));
    let mut sums = [[[0.0; TILE_ROWS]; N]];
    dot([share.weight.tile(tile)], &xs, &mut sums);
    share.writer.store(tile, pos, &sums[0]);
}

/// Positions that meet a block of tiles before the next ones do: with their scales they stay in a second-level cache.
const BLOCK_POSITIONS: usize = 128;

/// Bytes of tiles that meet a block of positions: these stay there too.
const BLOCK_BYTES: usize = 256 << 10;

/// From so many positions on it pays to expand tiles.
const EXPANDED_MIN: usize = 8;

fn integers(dots: TileDots, x: &Activations, share: &mut Share<'_>) {
    if x.n_pos() == 1 {
        let x = [x.blocks(0)];
        return one_position(
            share,
            |tiles, sums| (dots.abreast)(tiles, [&[]; ABREAST], &x, sums),
            |tile, sums| (dots.one)(tile, [&[]], &x, sums),
        );
    }
    if x.n_pos() < EXPANDED_MIN {
        for tile in share.tiles.clone() {
            one_tile(dots, x, share, tile, 0..x.n_pos());
        }
        return;
    }
    let fours: Vec<[Blocks<'_>; 4]> = (0..x.n_pos() / 4 * 4)
        .step_by(4)
        .map(|p| {
            [
                x.blocks(p),
                x.blocks(p + 1),
                x.blocks(p + 2),
                x.blocks(p + 3),
            ]
        })
        .collect();
    // A pair of tiles is not taken apart.
    let step = (BLOCK_BYTES / share.weight.tile_len().max(1)).max(2) & !1;
    BUFFERS.with_borrow_mut(|Buffers { planes, .. }| {
        for planes in &mut *planes {
            planes.resize(x.cols() / 32, [[0; 32]; TILE_ROWS]);
        }
        for first in share.tiles.clone().step_by(step) {
            let tiles = first..share.tiles.end.min(first + step);
            for from in (0..x.n_pos()).step_by(BLOCK_POSITIONS) {
                let positions = from..x.n_pos().min(from + BLOCK_POSITIONS);
                let fours = &fours[from / 4..positions.end / 4];
                for tile in tiles.clone().step_by(2) {
                    if tile + 1 < tiles.end {
                        pair_of_tiles(dots, fours, share, tile, from, planes);
                        let rest = from + fours.len() * 4..positions.end;
                        one_tile(dots, x, share, tile, rest.clone());
                        one_tile(dots, x, share, tile + 1, rest);
                    } else {
                        one_tile(dots, x, share, tile, positions.clone());
                    }
                }
            }
        }
    });
}

/// Computes two tiles for the positions from `pos` on.
fn pair_of_tiles(
    dots: TileDots,
    fours: &[[Blocks<'_>; 4]],
    share: &mut Share<'_>,
    tile: usize,
    mut pos: usize,
    planes: &mut [Vec<Plane>; 2],
) {
    let pair = [share.weight.tile(tile), share.weight.tile(tile + 1)];
    for (bytes, planes) in pair.iter().zip(&mut *planes) {
        (dots.expand)(bytes, planes);
    }
    let planes = [&*planes[0], &*planes[1]];
    let mut sums = [[[0.0; TILE_ROWS]; 4]; 2];
    for xs in fours {
        (dots.pair)(pair, planes, xs, &mut sums);
        share.writer.store(tile, pos, &sums[0]);
        share.writer.store(tile + 1, pos, &sums[1]);
        pos += 4;
    }
}

/// Computes one tile for some positions.
fn one_tile(
    dots: TileDots,
    x: &Activations,
    share: &mut Share<'_>,
    tile: usize,
    positions: Range<usize>,
) {
    let bytes = [share.weight.tile(tile)];
    let mut pos = positions.start;
    while pos + 4 <= positions.end {
        let xs = [
            x.blocks(pos),
            x.blocks(pos + 1),
            x.blocks(pos + 2),
            x.blocks(pos + 3),
        ];
        let mut sums = [[[0.0; TILE_ROWS]; 4]];
        (dots.four)(bytes, [&[]], &xs, &mut sums);
        share.writer.store(tile, pos, &sums[0]);
        pos += 4;
    }
    if pos + 2 <= positions.end {
        let xs = [x.blocks(pos), x.blocks(pos + 1)];
        let mut sums = [[[0.0; TILE_ROWS]; 2]];
        (dots.two)(bytes, [&[]], &xs, &mut sums);
        share.writer.store(tile, pos, &sums[0]);
        pos += 2;
    }
    if pos < positions.end {
        let mut sums = [[[0.0; TILE_ROWS]]];
        (dots.one)(bytes, [&[]], &[x.blocks(pos)], &mut sums);
        share.writer.store(tile, pos, &sums[0]);
    }
}

/// Buffers of one thread, for two tiles; kept, because a decode step asks for them hundreds of times.
#[derive(Default)]
struct Buffers {
    panels: [Vec<[f32; TILE_ROWS]>; 2],
    sums: Vec<[f32; TILE_ROWS]>,
    planes: [Vec<Plane>; 2],
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = const {
        RefCell::new(Buffers {
            panels: [Vec::new(), Vec::new()],
            sums: Vec::new(),
            planes: [Vec::new(), Vec::new()],
        })
    };
}

/// Tiles whose sums over a block of positions are kept while the columns go by: with the activations of a panel's columns they
/// stay in a second-level cache, and those come from further away once for all of them.
const BLOCK_TILES: usize = 32;

/// Decodes some columns of one tile or two, then meets a block of positions with them, and the next tiles do the same, before
/// the next columns come.
fn floats(kernels: &Kernels, dots: FloatDots, x: &Activations, share: &mut Share<'_>) {
    let weight = share.weight;
    let (format, cols) = (weight.format(), x.cols());
    let bytes_of = |cols: usize| cols / format.block_len() * format.block_bytes() * TILE_ROWS;
    let (abreast, tiles_step) = match x.n_pos() {
        // A tile is read from its beginning to its end.
        0..4 => (1, 1),
        4..EXPANDED_MIN => (2, 2),
        _ => (2, BLOCK_TILES),
    };
    BUFFERS.with_borrow_mut(|Buffers { panels, sums, .. }| {
        for panel in &mut *panels {
            panel.resize(PANEL, [0.0; TILE_ROWS]);
        }
        let step = PANEL / abreast;
        for first_tile in share.tiles.clone().step_by(tiles_step) {
            let tiles = first_tile..share.tiles.end.min(first_tile + tiles_step);
            for from in (0..x.n_pos()).step_by(BLOCK_POSITIONS) {
                let positions = from..x.n_pos().min(from + BLOCK_POSITIONS);
                sums.clear();
                sums.resize(tiles.len() * positions.len(), [0.0; TILE_ROWS]);
                for first in (0..cols).step_by(step) {
                    let columns = first..cols.min(first + step);
                    let n = columns.len();
                    for (tile, sums) in (tiles.clone().step_by(abreast))
                        .zip(sums.chunks_mut(abreast * positions.len()))
                    {
                        for (tile, panel) in (tile..tiles.end).zip(panels.iter_mut().take(abreast))
                        {
                            let groups = &weight.tile(tile)[bytes_of(first)..][..bytes_of(n)];
                            kernels.decode_tile(format, groups, &mut panel[..n]);
                        }
                        let panels = panels.each_ref().map(|panel| &panel[..n]);
                        let of = |p: usize| &x.position(from + p)[columns.clone()];
                        match sums.split_at_mut(positions.len()) {
                            (first, []) => one_panel(dots, of, 0, panels[0], first),
                            (first, second) => pair_of_panels(dots, of, panels, [first, second]),
                        }
                    }
                }
                for (tile, sums) in tiles.clone().zip(sums.chunks(positions.len())) {
                    share.writer.store(tile, from, sums);
                }
            }
        }
    });
}

/// Two panels with the columns of as many positions as there are sums; `of(p)` are those of one.
fn pair_of_panels<'a>(
    dots: FloatDots,
    of: impl Fn(usize) -> &'a [f32],
    panels: [&[[f32; TILE_ROWS]]; 2],
    [first, second]: [&mut [[f32; TILE_ROWS]]; 2],
) {
    let (fours, first_rest) = first.as_chunks_mut::<4>();
    let (more_fours, second_rest) = second.as_chunks_mut::<4>();
    let mut pos = 0;
    for (first, second) in fours.iter_mut().zip(more_fours) {
        let xs = [of(pos), of(pos + 1), of(pos + 2), of(pos + 3)];
        (dots.pair)(panels, xs, [first, second]);
        pos += 4;
    }
    one_panel(dots, &of, pos, panels[0], first_rest);
    one_panel(dots, &of, pos, panels[1], second_rest);
}

/// One panel with the positions from `pos` on, one for each of the sums.
fn one_panel<'a>(
    dots: FloatDots,
    of: impl Fn(usize) -> &'a [f32],
    mut pos: usize,
    panel: &[[f32; TILE_ROWS]],
    sums: &mut [[f32; TILE_ROWS]],
) {
    let (fours, rest) = sums.as_chunks_mut::<4>();
    for sums in fours {
        let xs = [of(pos), of(pos + 1), of(pos + 2), of(pos + 3)];
        (dots.four)([panel], xs, [sums]);
        pos += 4;
    }
    let (twos, rest) = rest.as_chunks_mut::<2>();
    for sums in twos {
        (dots.two)([panel], [of(pos), of(pos + 1)], [sums]);
        pos += 2;
    }
    for sum in rest.as_chunks_mut::<1>().0 {
        (dots.one)([panel], [of(pos)], [sum]);
        pos += 1;
    }
}
