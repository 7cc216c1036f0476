//! Dots over tiles of eight rows, as plain loops: the specification of the order of every operation.
//!
//! Lane `r` is row `r`, and nothing ever moves between lanes.  In integer arithmetic the 32 products of a sub-block are
//! summed exactly, with the integer scales of the K formats; what is left are a few fused multiply-adds per sub-block, in
//! the order of the columns.  In float arithmetic every 64 columns are one chain of fused multiply-adds, and the chains
//! are added in order.  A position's result depends on nothing but the rows and that position.

use std::ops::Index;

use super::decode::{
    IQ4_VALUES, MXFP4_DOUBLED, e8m0_half, f16_at, five_bits, nibbles, q5_k_quant, q6_k_quant,
    scales_and_mins,
};
use crate::activations::Blocks;
use crate::arch::Plane;
use crate::format::{Format, Plain};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::tile::{TILE_ROWS, unpack_block};

/// Columns of one chain of float sums.
pub(crate) const CHAIN: usize = 64;

/// The chain that begins at `at`.
#[inline(always)]
pub(crate) fn cut<X>(values: &[X], at: usize) -> &[X; CHAIN] {
    values[at..]
        .first_chunk()
        .expect("the chain lies inside the row")
}

/// As [`cut`] for each of several rows. A loop, for closures of a caller that is compiled for more features are not inlined into
/// `map`.
#[inline(always)]
pub(crate) fn cut_each<X, const S: usize>(values: [&[X]; S], at: usize) -> [&[X; CHAIN]; S] {
    let mut chains = [cut(values[0], at); S];
    for s in 1..S {
        chains[s] = cut(values[s], at);
    }
    chains
}

/// Entry `i` of each of several rows.
#[inline(always)]
pub(crate) fn entries<R, const S: usize>(rows: [&R; S], i: usize) -> [&R::Output; S]
where
    R: Index<usize> + ?Sized,
{
    let mut entries = [&rows[0][i]; S];
    for s in 1..S {
        entries[s] = &rows[s][i];
    }
    entries
}

/// The integers of 32 weights of a row.
type Quants = [i32; 32];

/// The block of each lane.
fn lanes<const BYTES: usize>(format: Format, group: &[u8]) -> [[u8; BYTES]; TILE_ROWS] {
    std::array::from_fn(|lane| {
        let mut block = [0; BYTES];
        unpack_block(format, group, lane, &mut block);
        block
    })
}

fn dot(weights: &Quants, x: &Blocks<'_>, block: usize) -> i32 {
    let x = &x.quants[block * 32..block * 32 + 32];
    weights.iter().zip(x).map(|(w, x)| w * i32::from(*x)).sum()
}

/// Runs `one` for each tile with its sums.
pub(super) fn each<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
    mut one: impl FnMut(&[u8], &mut [[f32; TILE_ROWS]; N]),
) {
    for (tile, out) in tiles.iter().zip(out) {
        one(tile, out);
    }
}

/// Dots over blocks of 32; `unpack` gives quants, scale and minimum of a block, and `MIN` says whether the format has
/// minima.
fn per_32<const BYTES: usize, const MIN: bool, const T: usize, const N: usize>(
    format: Format,
    tiles: [&[u8]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
    unpack: impl Fn(&[u8; BYTES]) -> (Quants, f32, f32),
) {
    each(tiles, out, |tile, out| {
        for (b, group) in tile.chunks_exact(BYTES * TILE_ROWS).enumerate() {
            for (lane, block) in lanes::<BYTES>(format, group).iter().enumerate() {
                let (quants, scale, min) = unpack(block);
                for p in 0..N {
                    let acc = &mut out[p][lane];
                    let sum = dot(&quants, &x[p], b) as f32;
                    *acc = sum.mul_add(scale * x[p].scales[b], *acc);
                    if MIN {
                        *acc = min.mul_add(x[p].scaled_sums[b], *acc);
                    }
                }
            }
        }
    });
}

fn offset(q: [u8; 32], by: i32) -> Quants {
    q.map(|q| i32::from(q) - by)
}

fn lookup(q: [u8; 32], table: &[i8; 16]) -> Quants {
    q.map(|q| i32::from(table[usize::from(q)]))
}

pub(super) fn q4_0<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<18, false, T, N>(Format::Q4_0, tiles, x, out, |b| {
        (offset(nibbles(&b[2..]), 8), f16_at(b, 0), 0.0)
    });
}

pub(super) fn q4_1<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<20, true, T, N>(Format::Q4_1, tiles, x, out, |b| {
        (offset(nibbles(&b[4..]), 0), f16_at(b, 0), f16_at(b, 2))
    });
}

pub(super) fn q5_0<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<22, false, T, N>(Format::Q5_0, tiles, x, out, |b| {
        let quants = offset(five_bits(&b[2..6], &b[6..]), 16);
        (quants, f16_at(b, 0), 0.0)
    });
}

pub(super) fn q5_1<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<24, true, T, N>(Format::Q5_1, tiles, x, out, |b| {
        let quants = offset(five_bits(&b[4..8], &b[8..]), 0);
        (quants, f16_at(b, 0), f16_at(b, 2))
    });
}

pub(super) fn q8_0<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<34, false, T, N>(Format::Q8_0, tiles, x, out, |b| {
        let quants = std::array::from_fn(|i| i32::from(b[2 + i] as i8));
        (quants, f16_at(b, 0), 0.0)
    });
}

pub(super) fn iq4_nl<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<18, false, T, N>(Format::Iq4Nl, tiles, x, out, |b| {
        (lookup(nibbles(&b[2..]), &IQ4_VALUES), f16_at(b, 0), 0.0)
    });
}

pub(super) fn mxfp4<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    per_32::<17, false, T, N>(Format::Mxfp4, tiles, x, out, |b| {
        (
            lookup(nibbles(&b[1..]), &MXFP4_DOUBLED),
            e8m0_half(b[0]),
            0.0,
        )
    });
}

/// Dots over blocks of 256 with 6-bit scales and minima per 32.
fn with_mins<const BYTES: usize, const T: usize, const N: usize>(
    format: Format,
    tiles: [&[u8]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
    quant: impl Fn(&[u8; BYTES], usize, usize) -> u8,
) {
    each(tiles, out, |tile, out| {
        for (b, group) in tile.chunks_exact(BYTES * TILE_ROWS).enumerate() {
            for (lane, block) in lanes::<BYTES>(format, group).iter().enumerate() {
                let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
                let (scales, mins) = scales_and_mins(&block[4..16]);
                for p in 0..N {
                    let (mut products, mut minima) = (0f32, 0f32);
                    for j in 0..8 {
                        let at = b * 8 + j;
                        let quants = std::array::from_fn(|i| i32::from(quant(block, j, i)));
                        let sum = i32::from(scales[j]) * dot(&quants, &x[p], at);
                        products = (sum as f32).mul_add(x[p].scales[at], products);
                        minima = f32::from(mins[j]).mul_add(x[p].scaled_sums[at], minima);
                    }
                    let acc = &mut out[p][lane];
                    *acc = d.mul_add(products, *acc);
                    *acc = (-dmin).mul_add(minima, *acc);
                }
            }
        }
    });
}

pub(super) fn q4_k<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    with_mins::<144, T, N>(Format::Q4K, tiles, x, out, |b, sub, i| {
        b[16 + sub / 2 * 32 + i] >> (sub % 2 * 4) & 15
    });
}

pub(super) fn q5_k<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    with_mins::<176, T, N>(Format::Q5K, tiles, x, out, q5_k_quant);
}

pub(super) fn q6_k<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    _planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    each(tiles, out, |tile, out| {
        for (b, group) in tile.chunks_exact(210 * TILE_ROWS).enumerate() {
            for (lane, block) in lanes::<210>(Format::Q6K, group).iter().enumerate() {
                let d = f16_at(block, 208);
                for p in 0..N {
                    let mut products = 0f32;
                    for j in 0..8 {
                        let at = b * 8 + j;
                        let quants = std::array::from_fn(|i| {
                            let scale = i32::from(block[192 + j * 2 + i / 16] as i8);
                            scale * (i32::from(q6_k_quant(block, j, i)) - 32)
                        });
                        let sum = dot(&quants, &x[p], at) as f32;
                        products = sum.mul_add(x[p].scales[at], products);
                    }
                    let acc = &mut out[p][lane];
                    *acc = d.mul_add(products, *acc);
                }
            }
        }
    });
}

/// Planes are a way to be fast, which this set is not: its dots look at the tiles.
pub(super) fn expand(_: &[u8], _: &mut [Plane]) {}

pub(super) use {
    expand as expand_q4_0, expand as expand_q4_1, expand as expand_q5_0, expand as expand_q5_1,
    expand as expand_q8_0, expand as expand_iq4_nl, expand as expand_mxfp4, expand as expand_q4_k,
    expand as expand_q5_k, expand as expand_q6_k,
};

/// Decodes some groups of eight blocks of each tile to `out`, one entry per column.
pub(super) fn decode<const T: usize>(
    format: Format,
    tiles: [&[u8]; T],
    out: &mut [[[f32; TILE_ROWS]; T]],
) {
    for (t, groups) in tiles.into_iter().enumerate() {
        decode_group(format, groups, t, out);
    }
}

/// Decodes some groups of eight blocks of tile `t`.
#[inline(always)]
pub(crate) fn decode_group<const T: usize>(
    format: Format,
    groups: &[u8],
    t: usize,
    out: &mut [[[f32; TILE_ROWS]; T]],
) {
    match format.plain() {
        Some(Plain::F32) => return plain(groups, t, out, f32::from_le_bytes),
        Some(Plain::F16) => return plain(groups, t, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        Some(Plain::Bf16) => return plain(groups, t, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        None => {}
    }
    let (size, len) = (format.block_bytes(), format.block_len());
    let mut block = [0u8; 256];
    let mut values = [0f32; 256];
    for (group, out) in groups
        .chunks_exact(size * TILE_ROWS)
        .zip(out.chunks_exact_mut(len))
    {
        for lane in 0..TILE_ROWS {
            unpack_block(format, group, lane, &mut block[..size]);
            super::decode::decode(format, &block[..size], &mut values[..len]);
            for (out, value) in out.iter_mut().zip(&values) {
                out[t][lane] = *value;
            }
        }
    }
}

/// Values of their own, eight for each column.
#[inline(always)]
fn plain<const BYTES: usize, const T: usize>(
    groups: &[u8],
    t: usize,
    out: &mut [[[f32; TILE_ROWS]; T]],
    value: impl Fn([u8; BYTES]) -> f32,
) {
    let values = groups.as_chunks::<BYTES>().0.as_chunks::<TILE_ROWS>().0;
    for (values, out) in values.iter().zip(out) {
        for lane in 0..TILE_ROWS {
            out[t][lane] = value(values[lane]);
        }
    }
}

/// Adds to `out` the products of the columns `weights` of all tiles with `N` positions; a chain is [`CHAIN`] columns.
pub(super) fn floats<const T: usize, const N: usize>(
    weights: &[[[f32; TILE_ROWS]; T]],
    x: [&[f32]; N],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
) {
    for (t, out) in out.into_iter().enumerate() {
        for (first, chain) in (0..).step_by(CHAIN).zip(weights.chunks(CHAIN)) {
            for p in 0..N {
                let mut acc = [0f32; TILE_ROWS];
                for (w, x) in chain.iter().zip(&x[p][first..]) {
                    for lane in 0..TILE_ROWS {
                        acc[lane] = w[t][lane].mul_add(*x, acc[lane]);
                    }
                }
                for lane in 0..TILE_ROWS {
                    out[p][lane] += acc[lane];
                }
            }
        }
    }
}

/// As [`floats`] for whole tiles of values of their own, without decoding a tile ahead.
pub(crate) fn plain_dots<const T: usize, const N: usize>(
    format: Format,
    tiles: [&[u8]; T],
    x: [&[f32]; N],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
) {
    let chain_bytes = CHAIN * format.block_bytes() * TILE_ROWS;
    let mut weights = [[[0f32; TILE_ROWS]]; CHAIN];
    each(tiles, out, |tile, out| {
        for (first, groups) in (0..).step_by(CHAIN).zip(tile.chunks(chain_bytes)) {
            let x = x.map(|x| &x[first..x.len().min(first + CHAIN)]);
            let weights = &mut weights[..x[0].len()];
            decode_group(format, groups, 0, weights);
            floats(weights, x, [out]);
        }
    });
}
