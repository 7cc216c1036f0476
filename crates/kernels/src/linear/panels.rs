//! In which order many positions meet the tiles of a share.
//!
//! Not the arithmetic, which is that of the dots: each adds some columns of one tile or two to the sums of one, two or four
//! positions, so sums may rest in memory between two panels of columns without a change of their bits.
//!
//! From [`BLOCKS_MIN`] positions on, a panel of columns of a block of positions meets some tiles, one pair after the other,
//! before the next panel comes.  The pair's panel is expanded to a form that the dots read fast, and stays in a near
//! cache while the positions go by; the positions' columns stay in the one after it, if it holds them, while the tiles go by.

use std::cell::RefCell;
use std::ops::Range;

use super::{BLOCKS_MIN, Share};
use crate::activations::Activations;
use crate::arch::{AsymmetricDots, FloatDots, Kernels, Plane, TileDots};
use crate::tile::{TILE_ROWS, TileView};

/// Positions of a block whose columns are of 8 bits.
const INTEGER_POSITIONS: usize = 128;

/// Positions of a block of floats: for each of them weights are decoded once more. Their columns of a panel of two tiles are 1 MiB.
const FLOAT_POSITIONS: usize = 512;

/// Tiles whose sums over a block of positions are kept while the columns go by.
const BLOCK_TILES: usize = 32;

/// As [`BLOCK_TILES`] of floats, whose blocks have more positions.
const FLOAT_TILES: usize = 8;

/// Columns of a panel of decoded weights of one tile, half as many of two: with their eight rows, 32 KiB.
/// A multiple of the blocks of all formats and of the chains of sums, and so is its half.
const FLOAT_PANEL: usize = 1024;

/// Columns of a panel of weights of 8 bits, a multiple of all blocks: narrower ones are no faster, and rows that are wider
/// leave no room for the positions of a block in a second-level cache.
const INTEGER_PANEL: usize = 2048;

/// Eight sums: one per row of a tile.
pub(crate) type Sums = [f32; TILE_ROWS];

/// How many positions, tiles, tiles abreast and columns go together.
#[derive(Clone, Copy)]
struct Blocking {
    positions: usize,
    tiles: usize,
    abreast: usize,
    columns: usize,
}

/// Buffers of one thread, for two tiles; kept, because a step of a few positions asks for them hundreds of times.
#[derive(Default)]
struct Buffers {
    sums: Vec<Sums>,
    values: Vec<[[f32; TILE_ROWS]; 1]>,
    both: Vec<[[f32; TILE_ROWS]; 2]>,
    planes: [Vec<Plane>; 2],
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = const {
        RefCell::new(Buffers {
            sums: Vec::new(),
            values: Vec::new(),
            both: Vec::new(),
            planes: [Vec::new(), Vec::new()],
        })
    };
}

/// Some columns of one tile or two that stand side by side, and some positions.
struct Meeting<'a> {
    weight: TileView<'a>,
    tile: usize,
    columns: Range<usize>,
    /// The first position; there are as many as there are sums of a tile.
    first: usize,
}

impl<'a> Meeting<'a> {
    /// The groups of tile `i`, 0 or 1.
    fn groups(&self, i: usize) -> &'a [u8] {
        self.weight.groups(self.tile + i, self.columns.clone())
    }
}

/// Calls `meet` for all columns of all tiles and positions with the sums of both tiles; those of the second are empty where
/// there is one.
fn in_panels(
    x: &Activations,
    share: &mut Share<'_>,
    blocking: Blocking,
    sums: &mut Vec<Sums>,
    mut meet: impl FnMut(&Meeting<'_>, [&mut [Sums]; 2]),
) {
    let (weight, n_pos, cols) = (share.weight, x.n_pos(), x.cols());
    for first_tile in share.tiles.clone().step_by(blocking.tiles) {
        let tiles = first_tile..share.tiles.end.min(first_tile + blocking.tiles);
        for first in (0..n_pos).step_by(blocking.positions) {
            let n = blocking.positions.min(n_pos - first);
            sums.clear();
            sums.resize(tiles.len() * n, [0.0; TILE_ROWS]);
            for column in (0..cols).step_by(blocking.columns) {
                let columns = column..cols.min(column + blocking.columns);
                let of_tiles = sums.chunks_mut(blocking.abreast * n);
                for (tile, sums) in tiles.clone().step_by(blocking.abreast).zip(of_tiles) {
                    let meeting = Meeting {
                        weight,
                        tile,
                        columns: columns.clone(),
                        first,
                    };
                    let (one, two) = sums.split_at_mut(n);
                    meet(&meeting, [one, two]);
                }
            }
            for (tile, sums) in tiles.clone().zip(sums.chunks(n)) {
                share.writer.store(tile, first, sums);
            }
        }
    }
}

/// Calls the functions for four, two and one positions until all from `pos` on have been seen.
pub(crate) fn by_positions(
    mut pos: usize,
    sums: &mut [Sums],
    mut four: impl FnMut(usize, &mut [Sums; 4]),
    mut two: impl FnMut(usize, &mut [Sums; 2]),
    mut one: impl FnMut(usize, &mut [Sums; 1]),
) {
    let (fours, rest) = sums.as_chunks_mut();
    for sums in fours {
        four(pos, sums);
        pos += 4;
    }
    let (twos, rest) = rest.as_chunks_mut();
    for sums in twos {
        two(pos, sums);
        pos += 2;
    }
    for sums in rest.as_chunks_mut().0 {
        one(pos, sums);
        pos += 1;
    }
}

/// Calls `pair` with `N` positions of both tiles until fewer are left; returns how many have been seen, and what is left of
/// the sums.
fn pairs<const N: usize>(
    [first, second]: [&mut [Sums]; 2],
    mut pair: impl FnMut(usize, [&mut [Sums; N]; 2]),
) -> (usize, [&mut [Sums]; 2]) {
    let n = first.len().min(second.len()) / N * N;
    let (a, first) = first.split_at_mut(n);
    let (b, second) = second.split_at_mut(n);
    let both = a.as_chunks_mut().0.iter_mut().zip(b.as_chunks_mut().0);
    for (pos, (a, b)) in (0..).step_by(N).zip(both) {
        pair(pos, [a, b]);
    }
    (n, [first, second])
}

/// As [`by_positions`] for two tiles.
pub(crate) fn pairs_by_positions(
    sums: [&mut [Sums]; 2],
    four: impl FnMut(usize, [&mut [Sums; 4]; 2]),
    mut two: impl FnMut(usize, [&mut [Sums; 2]; 2]),
    mut one: impl FnMut(usize, [&mut [Sums; 1]; 2]),
) {
    let (n, rest) = pairs(sums, four);
    let (more, rest) = pairs(rest, |p, sums| two(n + p, sums));
    pairs(rest, |p, sums| one(n + more + p, sums));
}

/// Tiles with positions in blocks of 32.
pub(super) fn integers(dots: TileDots, x: &Activations, share: &mut Share<'_>) {
    let blocking = Blocking {
        positions: INTEGER_POSITIONS,
        tiles: BLOCK_TILES,
        abreast: 2,
        columns: INTEGER_PANEL,
    };
    BUFFERS.with_borrow_mut(|Buffers { sums, planes, .. }| {
        for planes in &mut *planes {
            planes.resize(INTEGER_PANEL / 32, [[0; 32]; TILE_ROWS]);
        }
        in_panels(x, share, blocking, sums, |meeting, sums| {
            let block = meeting.columns.start / 32;
            let of = |pos: usize| x.blocks(meeting.first + pos).after(block);
            let one_tile = |tile: usize, pos: usize, sums: &mut [Sums]| {
                let groups = [meeting.groups(tile)];
                by_positions(
                    pos,
                    sums,
                    |p, sums| {
                        let x = [of(p), of(p + 1), of(p + 2), of(p + 3)];
                        (dots.four)(groups, [&[]], &x, [sums]);
                    },
                    |p, sums| (dots.two)(groups, [&[]], &[of(p), of(p + 1)], [sums]),
                    |p, sums| (dots.one)(groups, [&[]], &[of(p)], [sums]),
                );
            };
            let [first, second] = sums;
            if second.is_empty() {
                return one_tile(0, 0, first);
            }
            let groups = [meeting.groups(0), meeting.groups(1)];
            let planes = planes
                .each_mut()
                .map(|planes| &mut planes[..meeting.columns.len() / 32]);
            let [a, b] = planes;
            (dots.expand)(groups[0], a);
            (dots.expand)(groups[1], b);
            let planes = [&*a, &*b];
            let (eights, sums) = match dots.pair_eight {
                Some(dot) => pairs([first, second], |p, sums| {
                    dot(groups, planes, &std::array::from_fn(|i| of(p + i)), sums);
                }),
                None => (0, [first, second]),
            };
            let (fours, [first, second]) = pairs(sums, |p, sums| {
                let p = eights + p;
                let x = [of(p), of(p + 1), of(p + 2), of(p + 3)];
                (dots.pair)(groups, planes, &x, sums);
            });
            let pos = eights + fours;
            one_tile(0, pos, first);
            one_tile(1, pos, second);
        });
    });
}

/// Tiles with positions in blocks of 16.
pub(super) fn asymmetric(dots: AsymmetricDots, x: &Activations, share: &mut Share<'_>) {
    let blocking = Blocking {
        positions: INTEGER_POSITIONS,
        tiles: 1,
        abreast: 1,
        columns: x.cols().max(1),
    };
    BUFFERS.with_borrow_mut(|Buffers { sums, .. }| {
        in_panels(x, share, blocking, sums, |meeting, [sums, _]| {
            let tile = [meeting.groups(0)];
            let of = |pos: usize| x.asymmetric(meeting.first + pos);
            by_positions(
                0,
                sums,
                |p, sums| {
                    let x = [of(p), of(p + 1), of(p + 2), of(p + 3)];
                    (dots.four)(tile, &x, [sums]);
                },
                |p, sums| (dots.two)(tile, &[of(p), of(p + 1)], [sums]),
                |p, sums| (dots.one)(tile, &[of(p)], [sums]),
            );
        });
    });
}

/// Tiles with positions in floats; their weights are decoded a panel at a time.
pub(super) fn floats(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    let dots: FloatDots = kernels.float_dots();
    let (tiles, abreast) = match x.n_pos() {
        0..4 => (1, 1),
        4..BLOCKS_MIN => (2, 2),
        _ => (FLOAT_TILES, 2),
    };
    let blocking = Blocking {
        positions: FLOAT_POSITIONS,
        tiles,
        abreast,
        columns: FLOAT_PANEL / abreast,
    };
    BUFFERS.with_borrow_mut(
        |Buffers {
             sums, values, both, ..
         }| {
            values.resize(FLOAT_PANEL, [[0.0; TILE_ROWS]; 1]);
            both.resize(FLOAT_PANEL / 2, [[0.0; TILE_ROWS]; 2]);
            in_panels(x, share, blocking, sums, |meeting, [first, second]| {
                let format = meeting.weight.format();
                let n_cols = meeting.columns.len();
                let of = |pos: usize| &x.position(meeting.first + pos)[meeting.columns.clone()];
                if second.is_empty() {
                    let values = &mut values[..n_cols];
                    (kernels.decode_tile)(format, [meeting.groups(0)], values);
                    return meet_decoded(dots, values, of, first);
                }
                let both = &mut both[..n_cols];
                (kernels.decode_pair)(format, [meeting.groups(0), meeting.groups(1)], both);
                meet_decoded_pair(dots, both, of, [first, second]);
            });
        },
    );
}

/// Decoded weights of a tile with the positions that `of` names.
pub(crate) fn meet_decoded<'a>(
    dots: FloatDots,
    values: &[[[f32; TILE_ROWS]; 1]],
    of: impl Fn(usize) -> &'a [f32],
    sums: &mut [Sums],
) {
    by_positions(
        0,
        sums,
        |p, sums| (dots.four)(values, [of(p), of(p + 1), of(p + 2), of(p + 3)], [sums]),
        |p, sums| (dots.two)(values, [of(p), of(p + 1)], [sums]),
        |p, sums| (dots.one)(values, [of(p)], [sums]),
    );
}

/// As [`meet_decoded`] of two tiles.
pub(crate) fn meet_decoded_pair<'a>(
    dots: FloatDots,
    values: &[[[f32; TILE_ROWS]; 2]],
    of: impl Fn(usize) -> &'a [f32],
    sums: [&mut [Sums]; 2],
) {
    let (eights, sums) = match dots.pair_eight {
        Some(dot) => pairs(sums, |p, sums| {
            dot(values, std::array::from_fn(|i| of(p + i)), sums);
        }),
        None => (0, sums),
    };
    let of = |p: usize| of(eights + p);
    pairs_by_positions(
        sums,
        |p, sums| (dots.pair)(values, [of(p), of(p + 1), of(p + 2), of(p + 3)], sums),
        |p, sums| (dots.pair_two)(values, [of(p), of(p + 1)], sums),
        |p, sums| (dots.pair_one)(values, [of(p)], sums),
    );
}
