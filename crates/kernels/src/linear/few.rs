//! One position or a few: reading the weights is what costs.
//!
//! Tiles of [`ABREAST`] places of a share are read together, because the hardware's prefetching follows each place for itself.
//! Their weights are not expanded ahead.

use super::panels::{Sums, by_positions, pairs_by_positions};
use super::{BLOCKS_MIN, Share};
use crate::activations::Activations;
use crate::arch::{ABREAST, AsymmetricDots, PlainDots, TileDots};
use crate::format::Format;
use crate::tile::TILE_ROWS;

/// Every tile with all `n_pos` positions: those of [`ABREAST`] places together, then the rest.
fn by_places<const N: usize>(
    share: &mut Share<'_>,
    n_pos: usize,
    mut abreast: impl FnMut([&[u8]; N], [&mut [Sums]; N]),
    mut one: impl FnMut(&[u8], &mut [Sums]),
) {
    let weight = share.weight;
    let apart = share.tiles.len() / N;
    let (first, end) = (share.tiles.start, share.tiles.end);
    for tile in first..first + apart {
        let tiles: [usize; N] = std::array::from_fn(|i| tile + i * apart);
        let mut sums = [[[0.0; TILE_ROWS]; BLOCKS_MIN]; N];
        let of_each = sums.each_mut().map(|sums| &mut sums[..n_pos]);
        abreast(tiles.map(|tile| weight.tile(tile)), of_each);
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
        |tiles, sums| {
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
    let x = [x.asymmetric(0)];
    by_places(
        share,
        1,
        |tiles, [first, second]| {
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
                (dots.one)([tile], &x, [sums]);
            }
        },
    );
}

/// Values that need no decoding ahead.
pub(super) fn plain(dots: PlainDots, x: &Activations, share: &mut Share<'_>) {
    let format = share.weight.format();
    let of = |p: usize| x.position(p);
    if x.n_pos() == 1 {
        let x = [x.position(0)];
        return by_places(
            share,
            1,
            |tiles, sums| {
                let sums = sums.map(|sums| sums.first_chunk_mut().expect("one position"));
                (dots.places)(format, tiles, x, sums);
            },
            |tile, sums| meet_one_stored(dots, format, tile, of, sums),
        );
    }
    by_places(
        share,
        x.n_pos(),
        |tiles, sums| meet_stored(dots, format, tiles, of, sums),
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
