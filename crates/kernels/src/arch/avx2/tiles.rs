//! Integer dots over tiles of eight rows; the scalar functions of the same names say what they compute.
//!
//! Lane `r` is row `r`.  A vector of weights holds four inputs of every row, the activations bring the same four bytes to
//! all lanes, and `vpmaddubsw` multiplies unsigned weights by signed activations and adds neighbors into 16 bits, with
//! saturation at 32767.  Nothing reaches it: activations are within -127 to 127, so `RUN` sums of two products of
//! weights up to `w` stay below it while `RUN * 2 * 127 * w <= 32767`, which is 8 for 4-bit weights, 4 for 5-bit ones and
//! 2 for 6-bit ones.  Signed weights go in as magnitudes, their sign moved to the activations, one sum at a time
//! (`2 * 127 * 128 = 32512`).  `vpmaddwd` then adds the two halves of a lane, times the scale of the sub-block where it
//! has an integer one.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{part, store_f32};
use super::tile_weights::{
    IQ4_BYTES, MXFP4_RAISED, e8m0_halves, fifth, halves, lookup, nibbles_32, q4_k_weights,
    q5_k_weights, q6_k_scales, q6_k_weights, scales_and_mins, vector, widen_u8,
};
use crate::activations::Blocks;

/// One position, cut to the blocks of a row.
#[derive(Clone, Copy)]
struct Cut<'a> {
    quants: &'a [[i8; 32]],
    scales: &'a [f32],
    sums: &'a [i32],
    halves: &'a [[i16; 2]],
    scaled_sums: &'a [f32],
}

/// Made outside the feature functions: a closure written in one of them does not inline into `array::map`, which lacks
/// the features.
#[inline(always)]
fn cut<const N: usize>(x: [Blocks<'_>; N], n: usize) -> [Cut<'_>; N] {
    x.map(|x| Cut {
        quants: &x.quants.as_chunks().0[..n],
        scales: &x.scales[..n],
        sums: &x.sums[..n],
        halves: &x.halves.as_chunks().0[..n],
        scaled_sums: &x.scaled_sums[..n],
    })
}

/// Inputs `4 c .. 4 c + 4` of a block, in every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn four(block: &[i8; 32], c: usize) -> __m256i {
    let q = &block[4 * c..4 * c + 4];
    _mm256_set1_epi32(i32::from_le_bytes([
        q[0] as u8, q[1] as u8, q[2] as u8, q[3] as u8,
    ]))
}

/// Sums of 32 products per row, the weights unsigned; `factor(c)` multiplies the sums of vectors from `c` on.
#[target_feature(enable = "avx2")]
#[inline]
fn unsigned<const N: usize, const RUN: usize>(
    x: [&[i8; 32]; N],
    weights: impl Fn(usize) -> __m256i,
    factor: impl Fn(usize) -> __m256i,
) -> [__m256i; N] {
    let mut sums = [_mm256_setzero_si256(); N];
    for first in (0..8).step_by(RUN) {
        let mut pairs = [_mm256_setzero_si256(); N];
        for c in first..first + RUN {
            let w = weights(c);
            for p in 0..N {
                pairs[p] = _mm256_add_epi16(pairs[p], _mm256_maddubs_epi16(w, four(x[p], c)));
            }
        }
        let factor = factor(first);
        for p in 0..N {
            sums[p] = _mm256_add_epi32(sums[p], _mm256_madd_epi16(pairs[p], factor));
        }
    }
    sums
}

/// As [`unsigned`] for weights of either sign.
#[target_feature(enable = "avx2")]
#[inline]
fn signed<const N: usize>(x: [&[i8; 32]; N], weights: impl Fn(usize) -> __m256i) -> [__m256i; N] {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); N];
    for c in 0..8 {
        let w = weights(c);
        let magnitude = _mm256_abs_epi8(w);
        for p in 0..N {
            let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four(x[p], c), w));
            sums[p] = _mm256_add_epi32(sums[p], _mm256_madd_epi16(pairs, ones));
        }
    }
    sums
}

/// Dots over blocks of 32: `sums` gives the integer sums, from which `2^OFFSET` times the sum of the activations is taken
/// if that is not 0; `scale` and `min` are those of the eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn per_32<const GROUP: usize, const OFFSET: i32, const MIN: bool, const N: usize>(
    tile: &[u8],
    x: [Blocks<'_>; N],
    out: &mut [[f32; 8]; N],
    sums: impl Fn(&[u8; GROUP], [&[i8; 32]; N]) -> [__m256i; N],
    scale: impl Fn(&[u8; GROUP]) -> __m256,
) {
    let groups = tile.as_chunks::<GROUP>().0;
    let x = cut(x, groups.len());
    let mut acc = [_mm256_setzero_ps(); N];
    for (b, group) in groups.iter().enumerate() {
        let mut quants = [&x[0].quants[b]; N];
        for p in 1..N {
            quants[p] = &x[p].quants[b];
        }
        let sums = sums(group, quants);
        let scale = scale(group);
        for p in 0..N {
            let mut sum = sums[p];
            if OFFSET != 0 {
                let raised = _mm256_slli_epi32::<OFFSET>(_mm256_set1_epi32(x[p].sums[b]));
                sum = _mm256_sub_epi32(sum, raised);
            }
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(x[p].scales[b]));
            acc[p] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[p]);
            if MIN {
                let sum = _mm256_set1_ps(x[p].scaled_sums[b]);
                acc[p] = _mm256_fmadd_ps(halves(group, 16), sum, acc[p]);
            }
        }
    }
    for p in 0..N {
        store_f32(&mut out[p], acc[p]);
    }
}

/// A scale in both halves of every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn twice(scales: __m256i) -> __m256i {
    _mm256_or_si256(scales, _mm256_slli_epi32::<16>(scales))
}

/// Dots over blocks of 256 with 6-bit scales and minima per 32: `weights(group, j, c)` is vector `c` of sub-block `j`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn with_mins<const GROUP: usize, const RUN: usize, const N: usize>(
    tile: &[u8],
    x: [Blocks<'_>; N],
    out: &mut [[f32; 8]; N],
    weights: impl Fn(&[u8; GROUP], usize, usize) -> __m256i,
) {
    let groups = tile.as_chunks::<GROUP>().0;
    let x = cut(x, groups.len() * 8);
    let mut acc = [_mm256_setzero_ps(); N];
    for (b, group) in groups.iter().enumerate() {
        let (scales, mins) = scales_and_mins(part(group, 32));
        let mut products = [_mm256_setzero_ps(); N];
        let mut minima = [_mm256_setzero_ps(); N];
        for j in 0..8 {
            let at = b * 8 + j;
            let mut quants = [&x[0].quants[at]; N];
            for p in 1..N {
                quants[p] = &x[p].quants[at];
            }
            let scale = twice(widen_u8(&scales[j]));
            let min = _mm256_cvtepi32_ps(widen_u8(&mins[j]));
            let sums = unsigned::<N, RUN>(quants, |c| weights(group, j, c), |_| scale);
            for p in 0..N {
                let sum = _mm256_cvtepi32_ps(sums[p]);
                products[p] = _mm256_fmadd_ps(sum, _mm256_set1_ps(x[p].scales[at]), products[p]);
                let sum = _mm256_set1_ps(x[p].scaled_sums[at]);
                minima[p] = _mm256_fmadd_ps(min, sum, minima[p]);
            }
        }
        let (d, dmin) = (halves(group, 0), halves(group, 16));
        for p in 0..N {
            acc[p] = _mm256_fmadd_ps(d, products[p], acc[p]);
            acc[p] = _mm256_fnmadd_ps(dmin, minima[p], acc[p]);
        }
    }
    for p in 0..N {
        store_f32(&mut out[p], acc[p]);
    }
}

macro_rules! table_functions {
    ($($name:ident: |$tile:ident, $x:ident, $out:ident| $body:expr;)*) => {$(
        pub(super) fn $name<const N: usize>(
            tile: &[u8],
            x: [Blocks<'_>; N],
            out: &mut [[f32; 8]; N],
        ) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn kernel<const N: usize>($tile: &[u8], $x: [Blocks<'_>; N], $out: &mut [[f32; 8]; N]) {
                $body
            }
            // SAFETY: reachable only through the table that `super::kernels` guards.
            unsafe { kernel(tile, x, out) }
        }
    )*};
}

table_functions! {
    q4_0: |tile, x, out| per_32::<144, 3, false, N>(tile, x, out, |g, x| {
        unsigned::<N, 8>(x, |c| nibbles_32(g, 16, c), |_| _mm256_set1_epi16(1))
    }, |g| halves(g, 0));
    q4_1: |tile, x, out| per_32::<160, 0, true, N>(tile, x, out, |g, x| {
        unsigned::<N, 8>(x, |c| nibbles_32(g, 32, c), |_| _mm256_set1_epi16(1))
    }, |g| halves(g, 0));
    q5_0: |tile, x, out| per_32::<176, 4, false, N>(tile, x, out, |g, x| {
        let high = vector(g, 16);
        unsigned::<N, 4>(
            x,
            |c| _mm256_or_si256(nibbles_32(g, 48, c), fifth(high, c)),
            |_| _mm256_set1_epi16(1),
        )
    }, |g| halves(g, 0));
    q5_1: |tile, x, out| per_32::<192, 0, true, N>(tile, x, out, |g, x| {
        let high = vector(g, 32);
        unsigned::<N, 4>(
            x,
            |c| _mm256_or_si256(nibbles_32(g, 64, c), fifth(high, c)),
            |_| _mm256_set1_epi16(1),
        )
    }, |g| halves(g, 0));
    q8_0: |tile, x, out| per_32::<272, 0, false, N>(tile, x, out, |g, x| {
        signed::<N>(x, |c| vector(g, 16 + 32 * c))
    }, |g| halves(g, 0));
    iq4_nl: |tile, x, out| per_32::<144, 0, false, N>(tile, x, out, |g, x| {
        signed::<N>(x, |c| lookup(&IQ4_BYTES, nibbles_32(g, 16, c)))
    }, |g| halves(g, 0));
    mxfp4: |tile, x, out| per_32::<136, 4, false, N>(tile, x, out, |g, x| {
        unsigned::<N, 4>(
            x,
            |c| lookup(&MXFP4_RAISED, nibbles_32(g, 8, c)),
            |_| _mm256_set1_epi16(1),
        )
    }, |g| e8m0_halves(part(g, 0)));
    q4_k: |tile, x, out| {
        with_mins::<1152, 8, N>(tile, x, out, |g, j, c| q4_k_weights(g, j, c))
    };
    q5_k: |tile, x, out| {
        with_mins::<1408, 4, N>(tile, x, out, |g, j, c| q5_k_weights(g, j, c))
    };
    q6_k: |tile, x, out| q6_k_dots(tile, x, out);
}

/// Dots over blocks of 256 with 8-bit scales per 16 and weights that are 32 too high.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q6_k_dots<const N: usize>(tile: &[u8], x: [Blocks<'_>; N], out: &mut [[f32; 8]; N]) {
    let groups = tile.as_chunks::<1680>().0;
    let x = cut(x, groups.len() * 8);
    let mut acc = [_mm256_setzero_ps(); N];
    for (b, group) in groups.iter().enumerate() {
        let mut products = [_mm256_setzero_ps(); N];
        for j in 0..8 {
            let at = b * 8 + j;
            let mut quants = [&x[0].quants[at]; N];
            for p in 1..N {
                quants[p] = &x[p].quants[at];
            }
            let low = _mm256_set1_epi32(0xffff);
            let (first, second) = (
                _mm256_and_si256(q6_k_scales(group, 2 * j), low),
                _mm256_and_si256(q6_k_scales(group, 2 * j + 1), low),
            );
            let (both_first, both_second) = (twice(first), twice(second));
            let sums = unsigned::<N, 2>(
                quants,
                |c| q6_k_weights(group, j, c),
                |c| if c < 4 { both_first } else { both_second },
            );
            let scales = _mm256_or_si256(first, _mm256_slli_epi32::<16>(second));
            for p in 0..N {
                let [a, b] = x[p].halves[at];
                let halves = i32::from(a) & 0xffff | i32::from(b) << 16;
                let raised = _mm256_madd_epi16(scales, _mm256_set1_epi32(halves));
                let sum = _mm256_sub_epi32(sums[p], _mm256_slli_epi32::<5>(raised));
                let scale = _mm256_set1_ps(x[p].scales[at]);
                products[p] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, products[p]);
            }
        }
        let d = halves(group, 1664);
        for p in 0..N {
            acc[p] = _mm256_fmadd_ps(d, products[p], acc[p]);
        }
    }
    for p in 0..N {
        store_f32(&mut out[p], acc[p]);
    }
}
