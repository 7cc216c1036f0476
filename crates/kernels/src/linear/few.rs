//! One position or a few: reading the weights is what costs.
//!
//! Tiles of [`ABREAST`] places of a share are read together, because the hardware's prefetching follows each place for itself.
//! Their weights are not expanded ahead.

use std::ops::Range;

use super::panels::{Sums, by_positions, pairs_by_positions};
use super::{BLOCKS_MIN, Share};
use crate::activations::Activations;
use crate::arch::{ABREAST, AsymmetricDots, PlainDots, TileDots};
use crate::format::Format;
use crate::tile::{TILE_ROWS, TileView};

/// Bytes of a strip of all places, but for strips of [`STRIP_STEP`]. A call that reads more than a first-level cache holds reads
/// a fifth slower; why is not known, but eight to twenty KiB are alike.
const STRIP_BYTES: usize = 12 << 10;

/// The columns of a strip are a multiple of these, which are whole blocks in every format.
const STRIP_STEP: usize = 256;

/// From more positions on multiplying is what costs, and whole tiles are faster.
const STRIP_POSITIONS_MAX: usize = 2;

/// Columns that `n_pos` positions meet in one call.
fn strip(weight: TileView<'_>, n_pos: usize) -> usize {
    match n_pos {
        0..=STRIP_POSITIONS_MAX => {
            let step_bytes = weight.groups_len(STRIP_STEP) * ABREAST;
            (STRIP_BYTES / step_bytes).max(1) * STRIP_STEP
        }
        _ => weight.cols().max(1),
    }
}

/// Every tile with all `n_pos` positions: those of `N` places together, then the rest. `abreast` adds some columns, at most
/// `strip`, to the sums of its tiles, `one` all of them.
fn by_places<const N: usize>(
    share: &mut Share<'_>,
    n_pos: usize,
    strip: usize,
    mut abreast: impl FnMut([&[u8]; N], Range<usize>, [&mut [Sums]; N]),
    mut one: impl FnMut(&[u8], &mut [Sums]),
) {
    let weight = share.weight;
    let apart = share.tiles.len() / N;
    let (first, end) = (share.tiles.start, share.tiles.end);
    let mut sums = [[[0.0; TILE_ROWS]; BLOCKS_MIN]; N];
    for tile in first..first + apart {
        let tiles: [usize; N] = std::array::from_fn(|i| tile + i * apart);
        // Only what is used: every line that is written waits behind the weights.
        for sums in &mut sums {
            sums[..n_pos].fill([0.0; TILE_ROWS]);
        }
        for column in (0..weight.cols()).step_by(strip) {
            let columns = column..weight.cols().min(column + strip);
            let groups = tiles.map(|tile| weight.groups(tile, columns.clone()));
            let of_each = sums.each_mut().map(|sums| &mut sums[..n_pos]);
            abreast(groups, columns, of_each);
        }
        for (tile, sums) in tiles.iter().zip(&sums) {
            share.writer.store(*tile, 0, &sums[..n_pos]);
        }
    }
    for tile in first + apart * N..end {
        let mut sums = [[0.0; TILE_ROWS]; BLOCKS_MIN];
        one(weight.tile(tile), &mut sums[..n_pos]);
        share.writer.store(tile, 0, &sums[..n_pos]);
    }
}

/// Tiles with positions in blocks of 32.
pub(super) fn integers(dots: TileDots, x: &Activations, share: &mut Share<'_>) {
    let of = |p: usize| x.blocks(p);
    let four = |p: usize| [of(p), of(p + 1), of(p + 2), of(p + 3)];
    by_places(
        share,
        x.n_pos(),
        strip(share.weight, x.n_pos()),
        |tiles, columns, sums| {
            let of = |p: usize| of(p).after(columns.start / 32);
            let four = |p: usize| [of(p), of(p + 1), of(p + 2), of(p + 3)];
            let planes: [&[_]; ABREAST] = [&[]; ABREAST];
            pairs_by_positions(
                sums,
                |p, sums| (dots.abreast_four)(tiles, planes, &four(p), sums),
                |p, sums| (dots.abreast_two)(tiles, planes, &[of(p), of(p + 1)], sums),
                |p, sums| (dots.abreast)(tiles, planes, &[of(p)], sums),
            );
        },
        |tile, sums| {
            by_positions(
                0,
                sums,
                |p, sums| (dots.four)([tile], [&[]], &four(p), [sums]),
                |p, sums| (dots.two)([tile], [&[]], &[of(p), of(p + 1)], [sums]),
                |p, sums| (dots.one)([tile], [&[]], &[of(p)], [sums]),
            );
        },
    );
}

/// Tiles with the only position in blocks of 16.
pub(super) fn asymmetric(dots: AsymmetricDots, x: &Activations, share: &mut Share<'_>) {
    by_places(
        share,
        1,
        strip(share.weight, 1),
        |tiles, columns, [first, second]| {
            let x = [x.asymmetric(0).after(columns.start / 16)];
            let both = first
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip(second.as_chunks_mut().0);
            for (first, second) in both {
                (dots.abreast)(tiles, &x, [first, second]);
            }
        },
        |tile, sums| {
            for sums in sums.as_chunks_mut().0 {
                (dots.one)([tile], &[x.asymmetric(0)], [sums]);
            }
        },
    );
}

/// Values that need no decoding ahead.
pub(super) fn plain(dots: PlainDots, x: &Activations, share: &mut Share<'_>) {
    let format = share.weight.format();
    let all = share.weight.cols().max(1);
    let of = |p: usize| x.position(p);
    if x.n_pos() == 1 {
        let x = [x.position(0)];
        return by_places(
            share,
            1,
            all,
            |tiles, _, sums| {
                let sums = sums.map(|sums| sums.first_chunk_mut().expect("one position"));
                (dots.places)(format, tiles, x, sums);
            },
            |tile, sums| meet_one_stored(dots, format, tile, of, sums),
        );
    }
    by_places(
        share,
        x.n_pos(),
        all,
        |tiles, _, sums| meet_stored(dots, format, tiles, of, sums),
        |tile, sums| meet_one_stored(dots, format, tile, of, sums),
    );
}

/// Values of two tiles, as they are stored, with the positions that `of` names.
pub(crate) fn meet_stored<'a>(
    dots: PlainDots,
    format: Format,
    tiles: [&[u8]; ABREAST],
    of: impl Fn(usize) -> &'a [f32],
    sums: [&mut [Sums]; ABREAST],
) {
    let four = |p: usize| [of(p), of(p + 1), of(p + 2), of(p + 3)];
    pairs_by_positions(
        sums,
        |p, sums| (dots.abreast_four)(format, tiles, four(p), sums),
        |p, sums| (dots.abreast_two)(format, tiles, [of(p), of(p + 1)], sums),
        |p, sums| (dots.abreast)(format, tiles, [of(p)], sums),
    );
}

/// As [`meet_stored`] of one tile.
pub(crate) fn meet_one_stored<'a>(
    dots: PlainDots,
    format: Format,
    tile: &[u8],
    of: impl Fn(usize) -> &'a [f32],
    sums: &mut [Sums],
) {
    let four = |p: usize| [of(p), of(p + 1), of(p + 2), of(p + 3)];
    by_positions(
        0,
        sums,
        |p, sums| (dots.four)(format, [tile], four(p), [sums]),
        |p, sums| (dots.two)(format, [tile], [of(p), of(p + 1)], [sums]),
        |p, sums| (dots.one)(format, [tile], [of(p)], [sums]),
    );
}
