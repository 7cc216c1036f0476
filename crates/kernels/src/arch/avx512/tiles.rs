//! Integer dots over pairs of tiles of eight rows; the scalar functions of the same names say what they compute.
//!
//! Lanes 0 to 7 are the rows of the first tile, 8 to 15 those of the second.  A vector of weights holds four inputs of every
//! row, the activations bring the same four bytes to all lanes, and `vpdpbusd` adds four products of unsigned weights and
//! signed activations to the lane's 32 bits, without saturation.  Signed weights go in 128 higher, and 128 times the sum of the
//! activations is taken off again.  Integers are exact in any order; an integer scale is multiplied in floats where the product
//! stays below 2^24, so that it is exact too.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "a position indexes several arrays at once"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::registers::{both_f32, both_u8, store_both};
use super::weights::{
    five_bits, halves, lookup, nibbles_32, powers, q4_k_two, q5_k_two, q6_k_four, q6_k_two, vector,
    widen_i8, widen_u8,
};
use crate::activations::Blocks;
use crate::arch::Plane;
use crate::arch::avx2::registers::{NEAR, part, prefetch, rolled};
use crate::arch::avx2::tile_weights::{IQ4_BYTES, MXFP4_RAISED, Q6_K_D, scales_and_mins};
use crate::arch::avx2::tiles::{Cut, cut, group_at, groups, quants};

/// Inputs `4 c .. 4 c + 4` of a block, in every lane.
#[target_feature(enable = "avx512f")]
#[inline]
fn four(block: &[i8; 32], c: usize) -> __m512i {
    let q = &block[4 * c..4 * c + 4];
    _mm512_set1_epi32(i32::from_le_bytes([
        q[0] as u8, q[1] as u8, q[2] as u8, q[3] as u8,
    ]))
}

/// Vector `c` of block `b` of both tiles, as they were expanded.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn expanded(planes: [&[Plane]; 2], b: usize, c: usize) -> __m512i {
    both_u8([&planes[0][b][c], &planes[1][b][c]])
}

/// Adds the products of those `vectors` of `S` blocks to the sums of each block and position.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_products<const S: usize, const N: usize>(
    sums: &mut [[__m512i; N]; S],
    x: &[[&[i8; 32]; N]; S],
    vectors: Range<usize>,
    weights: impl Fn(usize) -> [__m512i; S],
) {
    for c in vectors {
        let w = weights(c);
        for s in 0..S {
            for p in 0..N {
                sums[s][p] = _mm512_dpbusd_epi32(sums[s][p], w[s], four(x[s][p], c));
            }
        }
    }
}

/// The sums so far.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn load<const N: usize>(out: &[&mut [[f32; 8]; N]; 2]) -> [__m512; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for p in 0..N {
        acc[p] = both_f32([&out[0][p], &out[1][p]]);
    }
    acc
}

#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn store<const N: usize>(acc: &[__m512; N], [a, b]: [&mut [[f32; 8]; N]; 2]) {
    for p in 0..N {
        store_both([&mut a[p], &mut b[p]], acc[p]);
    }
}

/// Dots over blocks of 32: `2^OFFSET` times the sum of the activations is taken from the integer sums if that is not 0;
/// `weights(groups, c)` is vector `c`, 128 too low if `SIGNED`, `scale` and what is at byte 16 if `MIN` are those of the rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn per_32<
    const GROUP: usize,
    const SIGNED: bool,
    const OFFSET: u32,
    const MIN: bool,
    const PLANES: bool,
    const N: usize,
>(
    tiles: [&[u8]; 2],
    planes: [&[Plane]; 2],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; 2],
    weights: impl Fn([&[u8; GROUP]; 2], usize) -> __m512i,
    scale: impl Fn([&[u8; GROUP]; 2]) -> __m512,
) {
    let tiles = groups::<GROUP, 2>(tiles);
    let x = cut(x, tiles[0].len());
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let mut sums = [[_mm512_setzero_si512(); N]];
        add_products(&mut sums, &[quants(&x, b)], 0..8, |c| {
            let w = match PLANES {
                true => expanded(planes, b, c),
                false => weights(group, c),
            };
            match SIGNED {
                true => [_mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN))],
                false => [w],
            }
        });
        let scale = scale(group);
        for p in 0..N {
            let mut sum = sums[0][p];
            if OFFSET != 0 {
                let raised = _mm512_slli_epi32::<OFFSET>(_mm512_set1_epi32(x[p].sums[b]));
                sum = _mm512_sub_epi32(sum, raised);
            }
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x[p].scales[b]));
            acc[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[p]);
            if MIN {
                let sum = _mm512_set1_ps(x[p].scaled_sums[b]);
                acc[p] = _mm512_fmadd_ps(halves(group, 16), sum, acc[p]);
            }
        }
    }
    store(&acc, out);
}

/// Sub-blocks from `first` on of each position.
#[inline(always)]
fn blocks<'a, const S: usize, const N: usize>(
    x: &[Cut<'a>; N],
    first: usize,
) -> [[&'a [i8; 32]; N]; S] {
    let mut out = [quants(x, first); S];
    for s in 1..S {
        out[s] = quants(x, first + s);
    }
    out
}

/// Dots over blocks of 256 with 6-bit scales and minima per 32: `weights(groups, b, first, c)` are vectors `c` of the `S` sub-blocks
/// from `first` on of block `b`, whose stored form is `groups`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn with_mins<const GROUP: usize, const S: usize, const PLANES: bool, const N: usize>(
    tiles: [&[u8]; 2],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; 2],
    weights: impl Fn([&[u8; GROUP]; 2], usize, usize, usize) -> [__m512i; S],
) {
    let tiles = groups::<GROUP, 2>(tiles);
    let x = cut(x, tiles[0].len() * 8);
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let (scales, mins) = scales_and_mins(part(group[0], 32));
        let (more_scales, more_mins) = scales_and_mins(part(group[1], 32));
        let mut products = [_mm512_setzero_ps(); N];
        for first in (0..8).step_by(S) {
            // With fewer positions the hardware's own prefetching is ahead of the loads.
            if !PLANES && N > 2 {
                let len = GROUP / 8;
                prefetch::<NEAR>(&group[0][len * first..][..len * S]);
                prefetch::<NEAR>(&group[1][len * first..][..len * S]);
            }
            let mut sums = [[_mm512_setzero_si512(); N]; S];
            let at = b * 8 + first;
            add_products(&mut sums, &blocks(&x, at), 0..8, |c| {
                weights(group, b, first, c)
            });
            for s in 0..S {
                let factor = widen_u8([&scales[first + s], &more_scales[first + s]]);
                for p in 0..N {
                    let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[s][p]), factor);
                    let scale = _mm512_set1_ps(x[p].scales[at + s]);
                    products[p] = _mm512_fmadd_ps(sum, scale, products[p]);
                }
            }
        }
        // Apart from the products, so that the sums of both stay in registers.
        let mut minima = [_mm512_setzero_ps(); N];
        for j in 0..8 {
            let min = widen_u8([&mins[j], &more_mins[j]]);
            for p in 0..N {
                let sum = _mm512_set1_ps(x[p].scaled_sums[b * 8 + j]);
                minima[p] = _mm512_fmadd_ps(min, sum, minima[p]);
            }
        }
        let (d, dmin) = (halves(group, 0), halves(group, 16));
        for p in 0..N {
            acc[p] = _mm512_fmadd_ps(d, products[p], acc[p]);
            acc[p] = _mm512_fnmadd_ps(dmin, minima[p], acc[p]);
        }
    }
    store(&acc, out);
}

/// Dots over blocks of 256 with 8-bit scales per 16 and weights that are 32 too high; `weights` as [`with_mins`] has them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn q6_k_dots<const S: usize, const PLANES: bool, const N: usize>(
    tiles: [&[u8]; 2],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; 2],
    weights: impl Fn([&[u8; 1680]; 2], usize, usize, usize) -> [__m512i; S],
) {
    let tiles = groups::<1680, 2>(tiles);
    let x = cut(x, tiles[0].len() * 8);
    let low = _mm512_set1_epi32(0xffff);
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let mut products = [_mm512_setzero_ps(); N];
        for first in (0..8).step_by(S) {
            let at = b * 8 + first;
            let blocks = blocks(&x, at);
            let weights = |c| weights(group, b, first, c);
            let mut sums = [[[_mm512_setzero_si512(); N]; S]; 2];
            add_products(&mut sums[0], &blocks, rolled(0..4), weights);
            add_products(&mut sums[1], &blocks, rolled(4..8), weights);
            for s in 0..S {
                let scales = [
                    widen_i8(group, 16 * (first + s)),
                    widen_i8(group, 16 * (first + s) + 8),
                ];
                let of_halves = _mm512_or_si512(
                    _mm512_and_si512(scales[0], low),
                    _mm512_slli_epi32::<16>(scales[1]),
                );
                for p in 0..N {
                    let [a, b] = x[p].halves[at + s];
                    let halves = i32::from(a) & 0xffff | i32::from(b) << 16;
                    let raised = _mm512_madd_epi16(of_halves, _mm512_set1_epi32(halves));
                    let sum = _mm512_sub_epi32(
                        _mm512_add_epi32(
                            _mm512_mullo_epi32(sums[0][s][p], scales[0]),
                            _mm512_mullo_epi32(sums[1][s][p], scales[1]),
                        ),
                        _mm512_slli_epi32::<5>(raised),
                    );
                    let scale = _mm512_set1_ps(x[p].scales[at + s]);
                    products[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, products[p]);
                }
            }
        }
        let d = halves(group, Q6_K_D);
        for p in 0..N {
            acc[p] = _mm512_fmadd_ps(d, products[p], acc[p]);
        }
    }
    store(&acc, out);
}

/// For each format `$name` its dots.
macro_rules! table_functions {
    ($($name:ident: |$tiles:ident, $planes:ident, $x:ident, $out:ident| $body:expr;)*) => {$(
        pub(super) fn $name<const PLANES: bool, const N: usize>(
            tiles: [&[u8]; 2],
            planes: [&[Plane]; 2],
            x: &[Blocks<'_>; N],
            out: [&mut [[f32; 8]; N]; 2],
        ) {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
            fn kernel<const PLANES: bool, const N: usize>(
                $tiles: [&[u8]; 2],
                $planes: [&[Plane]; 2],
                $x: &[Blocks<'_>; N],
                $out: [&mut [[f32; 8]; N]; 2],
            ) {
                $body
            }
            // SAFETY: reachable only through the table that `super::kernels` guards.
            unsafe { kernel::<PLANES, N>(tiles, planes, x, out) }
        }
    )*};
}

table_functions! {
    q4_0: |tiles, planes, x, out| per_32::<144, false, 3, false, PLANES, N>(
        tiles, planes, x, out, |g, c| nibbles_32(g, 16, c), |g| halves(g, 0));

    q4_1: |tiles, planes, x, out| per_32::<160, false, 0, true, PLANES, N>(
        tiles, planes, x, out, |g, c| nibbles_32(g, 32, c), |g| halves(g, 0));

    q5_0: |tiles, planes, x, out| per_32::<176, false, 4, false, PLANES, N>(
        tiles, planes, x, out, |g, c| five_bits(g, 16, c), |g| halves(g, 0));

    q5_1: |tiles, planes, x, out| per_32::<192, false, 0, true, PLANES, N>(
        tiles, planes, x, out, |g, c| five_bits(g, 32, c), |g| halves(g, 0));

    q8_0: |tiles, planes, x, out| per_32::<272, true, 7, false, PLANES, N>(
        tiles, planes, x, out, |g, c| vector(g, 16 + 32 * c), |g| halves(g, 0));

    iq4_nl: |tiles, planes, x, out| per_32::<144, true, 7, false, PLANES, N>(
        tiles, planes, x, out, |g, c| lookup(&IQ4_BYTES, nibbles_32(g, 16, c)), |g| halves(g, 0));

    mxfp4: |tiles, planes, x, out| per_32::<136, false, 4, false, PLANES, N>(
        tiles, planes, x, out, |g, c| lookup(&MXFP4_RAISED, nibbles_32(g, 8, c)), |g| powers(g, 0));

    q4_k: |tiles, planes, x, out| match PLANES {
        true => with_mins::<1152, 1, PLANES, N>(
            tiles, x, out, |_, b, first, c| [expanded(planes, 8 * b + first, c)]),
        false => with_mins::<1152, 2, PLANES, N>(
            tiles, x, out, |g, _, first, c| q4_k_two(g, first / 2, c)),
    };

    q5_k: |tiles, planes, x, out| match PLANES {
        true => with_mins::<1408, 1, PLANES, N>(
            tiles, x, out, |_, b, first, c| [expanded(planes, 8 * b + first, c)]),
        false => with_mins::<1408, 2, PLANES, N>(
            tiles, x, out, |g, _, first, c| q5_k_two(g, first / 2, c)),
    };

    q6_k: |tiles, planes, x, out| match PLANES {
        true => q6_k_dots::<1, PLANES, N>(
            tiles, x, out, |_, b, first, c| [expanded(planes, 8 * b + first, c)]),
        false if N <= 2 => q6_k_dots::<4, PLANES, N>(
            tiles, x, out, |g, _, first, c| q6_k_four(g, first / 4, c)),
        // There are no registers for the sums of four.
        false => q6_k_dots::<2, PLANES, N>(
            tiles, x, out, |g, _, first, c| q6_k_two(g, first / 2, c)),
    };
}
