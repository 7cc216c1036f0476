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
#![expect(
    clippy::needless_range_loop,
    reason = "a tile and a position index several arrays at once"
)]

use std::arch::x86_64::*;

use super::registers::{NEAR, load_f32, load_u8, part, prefetch, store_f32, store_u8};
use super::tile_one;
use super::tile_weights::{
    IQ4_BYTES, MXFP4_RAISED, Q6_K_D, e8m0_halves, fifth, four, halves, lookup, nibbles_32,
    q4_k_weights, q5_k_weights, q6_k_scales, q6_k_weights, scales_and_mins, vector, widen_u8,
};
use crate::activations::Blocks;
use crate::arch::Plane;

/// One position, cut to the blocks of a row.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Cut<'a> {
    pub(in crate::arch) quants: &'a [[i8; 32]],
    pub(in crate::arch) scales: &'a [f32],
    pub(in crate::arch) sums: &'a [i32],
    pub(in crate::arch) halves: &'a [[i16; 2]],
    pub(in crate::arch) scaled_sums: &'a [f32],
}

#[inline(always)]
pub(in crate::arch) fn cut<'a, const N: usize>(x: &[Blocks<'a>; N], n: usize) -> [Cut<'a>; N] {
    let one = |x: &Blocks<'a>| Cut {
        quants: &x.quants.as_chunks().0[..n],
        scales: &x.scales[..n],
        sums: &x.sums[..n],
        halves: &x.halves.as_chunks().0[..n],
        scaled_sums: &x.scaled_sums[..n],
    };
    let mut out = [one(&x[0]); N];
    for p in 1..N {
        out[p] = one(&x[p]);
    }
    out
}

/// Vector `c` of block `b`: from the planes where the tile has been expanded, else out of its group.
#[target_feature(enable = "avx2")]
#[inline]
fn weight<const PLANES: bool>(
    planes: &[Plane],
    b: usize,
    c: usize,
    decode: impl Fn() -> __m256i,
) -> __m256i {
    match PLANES {
        true => load_u8(&planes[b][c]),
        false => decode(),
    }
}

/// Sums of 32 products per row of each tile, the weights unsigned; `factor(t, c)` multiplies the sums of vectors from `c` on.
#[target_feature(enable = "avx2")]
#[inline]
fn unsigned<const T: usize, const N: usize, const RUN: usize>(
    x: [&[i8; 32]; N],
    weights: impl Fn(usize, usize) -> __m256i,
    factor: impl Fn(usize, usize) -> __m256i,
) -> [[__m256i; N]; T] {
    let mut sums = [[_mm256_setzero_si256(); N]; T];
    for first in (0..8).step_by(RUN) {
        let mut pairs = [[_mm256_setzero_si256(); N]; T];
        for c in first..first + RUN {
            let mut w = [_mm256_setzero_si256(); T];
            for t in 0..T {
                w[t] = weights(t, c);
            }
            for p in 0..N {
                let x = four(x[p], c);
                for t in 0..T {
                    let products = _mm256_maddubs_epi16(w[t], x);
                    // The first sum of a run needs no zero to be added to.
                    pairs[t][p] = match c == first {
                        true => products,
                        false => _mm256_add_epi16(pairs[t][p], products),
                    };
                }
            }
        }
        for t in 0..T {
            let factor = factor(t, first);
            for p in 0..N {
                let run = _mm256_madd_epi16(pairs[t][p], factor);
                sums[t][p] = match first == 0 {
                    true => run,
                    false => _mm256_add_epi32(sums[t][p], run),
                };
            }
        }
    }
    sums
}

/// As [`unsigned`] for weights of either sign.
#[target_feature(enable = "avx2")]
#[inline]
fn signed<const T: usize, const N: usize>(
    x: [&[i8; 32]; N],
    weights: impl Fn(usize, usize) -> __m256i,
) -> [[__m256i; N]; T] {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); N]; T];
    for c in 0..8 {
        let mut w = [_mm256_setzero_si256(); T];
        let mut magnitude = [_mm256_setzero_si256(); T];
        for t in 0..T {
            w[t] = weights(t, c);
            magnitude[t] = _mm256_abs_epi8(w[t]);
        }
        for p in 0..N {
            let x = four(x[p], c);
            for t in 0..T {
                let pairs = _mm256_maddubs_epi16(magnitude[t], _mm256_sign_epi8(x, w[t]));
                sums[t][p] = _mm256_add_epi32(sums[t][p], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    sums
}

/// The whole groups of each tile.
#[inline(always)]
pub(in crate::arch) fn groups<const GROUP: usize, const T: usize>(
    tiles: [&[u8]; T],
) -> [&[[u8; GROUP]]; T] {
    let mut out = [tiles[0].as_chunks::<GROUP>().0; T];
    for t in 1..T {
        out[t] = &tiles[t].as_chunks::<GROUP>().0[..out[0].len()];
    }
    out
}

/// Group `b` of each tile.
#[inline(always)]
pub(in crate::arch) fn group_at<'a, const GROUP: usize, const T: usize>(
    tiles: &[&'a [[u8; GROUP]]; T],
    b: usize,
) -> [&'a [u8; GROUP]; T] {
    let mut out = [&tiles[0][b]; T];
    for t in 1..T {
        out[t] = &tiles[t][b];
    }
    out
}

/// Block `at` of each position.
#[inline(always)]
pub(in crate::arch) fn quants<'a, const N: usize>(
    x: &[Cut<'a>; N],
    at: usize,
) -> [&'a [i8; 32]; N] {
    let mut out = [&x[0].quants[at]; N];
    for p in 1..N {
        out[p] = &x[p].quants[at];
    }
    out
}

/// The sums so far.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load<const T: usize, const N: usize>(
    out: &[&mut [[f32; 8]; N]; T],
) -> [[__m256; N]; T] {
    let mut acc = [[_mm256_setzero_ps(); N]; T];
    for t in 0..T {
        for p in 0..N {
            acc[t][p] = load_f32(&out[t][p]);
        }
    }
    acc
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store<const T: usize, const N: usize>(
    acc: &[[__m256; N]; T],
    out: [&mut [[f32; 8]; N]; T],
) {
    for t in 0..T {
        for p in 0..N {
            store_f32(&mut out[t][p], acc[t][p]);
        }
    }
}

/// Sums of 32 products per row of each tile, of weights of either sign where `RUN` is 0 and else as [`unsigned`] has them.
#[target_feature(enable = "avx2")]
#[inline]
fn plain_sums<const T: usize, const N: usize, const RUN: usize>(
    x: [&[i8; 32]; N],
    weights: impl Fn(usize, usize) -> __m256i,
) -> [[__m256i; N]; T] {
    match RUN {
        0 => signed::<T, N>(x, weights),
        _ => unsigned::<T, N, RUN>(x, weights, |_, _| _mm256_set1_epi16(1)),
    }
}

/// Dots over blocks of 32: `2^OFFSET` times the sum of the activations is taken from the integer sums if that is not 0;
/// `weights(group, c)` is vector `c` of a group, `scale` and what is at byte 16 if `MIN` are those of its eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn per_32<
    const GROUP: usize,
    const RUN: usize,
    const OFFSET: i32,
    const MIN: bool,
    const PLANES: bool,
    const T: usize,
    const N: usize,
>(
    tiles: [&[u8]; T],
    planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
    weights: impl Fn(&[u8; GROUP], usize) -> __m256i,
    scale: impl Fn(&[u8; GROUP]) -> __m256,
) {
    let tiles = groups::<GROUP, T>(tiles);
    let x = cut(x, tiles[0].len());
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let vector_of = |t: usize, c| weight::<PLANES>(planes[t], b, c, || weights(group[t], c));
        let mut sums = [[_mm256_setzero_si256(); N]; T];
        if N == 1 {
            // There is no load to share, and the sums of one tile leave registers for its constants.
            for t in 0..T {
                prefetch::<NEAR>(group[t]);
                [sums[t]] = plain_sums::<1, N, RUN>(quants(&x, b), |_, c| vector_of(t, c));
            }
        } else {
            sums = plain_sums::<T, N, RUN>(quants(&x, b), vector_of);
        }
        for t in 0..T {
            let scale = scale(group[t]);
            for p in 0..N {
                let mut sum = sums[t][p];
                if OFFSET != 0 {
                    let raised = _mm256_slli_epi32::<OFFSET>(_mm256_set1_epi32(x[p].sums[b]));
                    sum = _mm256_sub_epi32(sum, raised);
                }
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(x[p].scales[b]));
                acc[t][p] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[t][p]);
                if MIN {
                    let sum = _mm256_set1_ps(x[p].scaled_sums[b]);
                    acc[t][p] = _mm256_fmadd_ps(halves(group[t], 16), sum, acc[t][p]);
                }
            }
        }
    }
    store(&acc, out);
}

/// A scale in both halves of every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn twice(scales: __m256i) -> __m256i {
    _mm256_or_si256(scales, _mm256_slli_epi32::<16>(scales))
}

/// Dots over blocks of 256 with 6-bit scales and minima per 32, for several positions: `weights(group, j, c)` is vector `c` of
/// sub-block `j`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn with_mins<
    const GROUP: usize,
    const RUN: usize,
    const PLANES: bool,
    const T: usize,
    const N: usize,
>(
    tiles: [&[u8]; T],
    planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
    weights: impl Fn(&[u8; GROUP], usize, usize) -> __m256i,
) {
    let tiles = groups::<GROUP, T>(tiles);
    let x = cut(x, tiles[0].len() * 8);
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let mut packed = [scales_and_mins(part(group[0], 32)); T];
        for t in 1..T {
            packed[t] = scales_and_mins(part(group[t], 32));
        }
        let mut products = [[_mm256_setzero_ps(); N]; T];
        let mut minima = [[_mm256_setzero_ps(); N]; T];
        for j in 0..8 {
            let at = b * 8 + j;
            let sums = unsigned::<T, N, RUN>(
                quants(&x, at),
                |t, c| weight::<PLANES>(planes[t], at, c, || weights(group[t], j, c)),
                |t, _| twice(widen_u8(&packed[t].0[j])),
            );
            for t in 0..T {
                for p in 0..N {
                    let sum = _mm256_cvtepi32_ps(sums[t][p]);
                    let scale = _mm256_set1_ps(x[p].scales[at]);
                    products[t][p] = _mm256_fmadd_ps(sum, scale, products[t][p]);
                }
            }
        }
        // Apart from the products, so that the sums of both stay in registers.
        for j in 0..8 {
            let mut min = [_mm256_setzero_ps(); T];
            for t in 0..T {
                min[t] = _mm256_cvtepi32_ps(widen_u8(&packed[t].1[j]));
            }
            for p in 0..N {
                let sum = _mm256_set1_ps(x[p].scaled_sums[b * 8 + j]);
                for t in 0..T {
                    minima[t][p] = _mm256_fmadd_ps(min[t], sum, minima[t][p]);
                }
            }
        }
        for t in 0..T {
            let (d, dmin) = (halves(group[t], 0), halves(group[t], 16));
            for p in 0..N {
                acc[t][p] = _mm256_fmadd_ps(d, products[t][p], acc[t][p]);
                acc[t][p] = _mm256_fnmadd_ps(dmin, minima[t][p], acc[t][p]);
            }
        }
    }
    store(&acc, out);
}

/// For each format `$name`, the dots `$name` and the expansion `$expand`. `$block` blocks of 32 lie in a group of `$group`
/// bytes, `$weights` is vector `c` of the `j`-th of them.
macro_rules! table_functions {
    ($(
        $name:ident, $expand:ident, $group:literal, $block:literal,
        |$g:ident, $j:ident, $c:ident| $weights:expr,
        |$tiles:ident, $planes:ident, $x:ident, $out:ident| $body:expr;
    )*) => {$(
        pub(super) fn $name<const PLANES: bool, const T: usize, const N: usize>(
            tiles: [&[u8]; T],
            planes: [&[Plane]; T],
            x: &[Blocks<'_>; N],
            out: [&mut [[f32; 8]; N]; T],
        ) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn kernel<const PLANES: bool, const T: usize, const N: usize>(
                $tiles: [&[u8]; T],
                $planes: [&[Plane]; T],
                $x: &[Blocks<'_>; N],
                $out: [&mut [[f32; 8]; N]; T],
            ) {
                $body
            }
            // SAFETY: reachable only through the table that `super::kernels` guards.
            unsafe { kernel::<PLANES, T, N>(tiles, planes, x, out) }
        }

        pub(super) fn $expand(tile: &[u8], planes: &mut [Plane]) {
            #[target_feature(enable = "avx2")]
            fn kernel(tile: &[u8], planes: &mut [Plane]) {
                let groups = tile.as_chunks::<$group>().0;
                for ($g, planes) in groups.iter().zip(planes.as_chunks_mut::<$block>().0) {
                    for $j in 0..$block {
                        for $c in 0..8 {
                            store_u8(&mut planes[$j][$c], $weights);
                        }
                    }
                }
            }
            // SAFETY: as above.
            unsafe { kernel(tile, planes) }
        }
    )*};
}

table_functions! {
    q4_0, expand_q4_0, 144, 1, |g, _j, c| nibbles_32(g, 16, c),
    |tiles, planes, x, out| per_32::<144, 8, 3, false, PLANES, T, N>(tiles, planes, x, out, |g, c| nibbles_32(g, 16, c), |g| halves(g, 0));

    q4_1, expand_q4_1, 160, 1, |g, _j, c| nibbles_32(g, 32, c),
    |tiles, planes, x, out| per_32::<160, 8, 0, true, PLANES, T, N>(tiles, planes, x, out, |g, c| nibbles_32(g, 32, c), |g| halves(g, 0));

    q5_0, expand_q5_0, 176, 1, |g, _j, c| five_bits(g, 16, c),
    |tiles, planes, x, out| per_32::<176, 4, 4, false, PLANES, T, N>(tiles, planes, x, out, |g, c| five_bits(g, 16, c), |g| halves(g, 0));

    q5_1, expand_q5_1, 192, 1, |g, _j, c| five_bits(g, 32, c),
    |tiles, planes, x, out| per_32::<192, 4, 0, true, PLANES, T, N>(tiles, planes, x, out, |g, c| five_bits(g, 32, c), |g| halves(g, 0));

    q8_0, expand_q8_0, 272, 1, |g, _j, c| vector(g, 16 + 32 * c),
    |tiles, planes, x, out| per_32::<272, 0, 0, false, PLANES, T, N>(tiles, planes, x, out, |g, c| vector(g, 16 + 32 * c), |g| halves(g, 0));

    iq4_nl, expand_iq4_nl, 144, 1, |g, _j, c| lookup(&IQ4_BYTES, nibbles_32(g, 16, c)),
    |tiles, planes, x, out| per_32::<144, 0, 0, false, PLANES, T, N>(tiles, planes, x, out, |g, c| lookup(&IQ4_BYTES, nibbles_32(g, 16, c)), |g| halves(g, 0));

    mxfp4, expand_mxfp4, 136, 1, |g, _j, c| lookup(&MXFP4_RAISED, nibbles_32(g, 8, c)),
    |tiles, planes, x, out| per_32::<136, 4, 4, false, PLANES, T, N>(tiles, planes, x, out, |g, c| lookup(&MXFP4_RAISED, nibbles_32(g, 8, c)), |g| e8m0_halves(part(g, 0)));

    q4_k, expand_q4_k, 1152, 8, |g, j, c| q4_k_weights(g, j, c),
    |tiles, planes, x, out| match N {
        1 => tile_one::q4_k(tiles, &x[0], out),
        _ => with_mins::<1152, 8, PLANES, T, N>(tiles, planes, x, out, |g, j, c| q4_k_weights(g, j, c)),
    };

    q5_k, expand_q5_k, 1408, 8, |g, j, c| q5_k_weights(g, j, c),
    |tiles, planes, x, out| match N {
        1 => tile_one::q5_k(tiles, &x[0], out),
        _ => with_mins::<1408, 4, PLANES, T, N>(tiles, planes, x, out, |g, j, c| q5_k_weights(g, j, c)),
    };

    q6_k, expand_q6_k, 1680, 8, |g, j, c| q6_k_weights(g, j, c),
    |tiles, planes, x, out| match N {
        1 => tile_one::q6_k(tiles, &x[0], out),
        _ => q6_k_dots::<PLANES, T, N>(tiles, planes, x, out),
    };
}

/// Vector `c` of a block of 32 with five bits, whose high bits begin at `at`.
#[target_feature(enable = "avx2")]
#[inline]
fn five_bits(group: &[u8], at: usize, c: usize) -> __m256i {
    _mm256_or_si256(nibbles_32(group, at + 32, c), fifth(vector(group, at), c))
}

/// Dots over blocks of 256 with 8-bit scales per 16 and weights that are 32 too high, for several positions.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q6_k_dots<const PLANES: bool, const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    planes: [&[Plane]; T],
    x: &[Blocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    let tiles = groups::<1680, T>(tiles);
    let x = cut(x, tiles[0].len() * 8);
    let low = _mm256_set1_epi32(0xffff);
    let mut acc = load(&out);
    for b in 0..tiles[0].len() {
        let group = group_at(&tiles, b);
        let mut products = [[_mm256_setzero_ps(); N]; T];
        for j in 0..8 {
            let at = b * 8 + j;
            let scale =
                |t: usize, i: usize| _mm256_and_si256(q6_k_scales(group[t], 2 * j + i), low);
            let sums = unsigned::<T, N, 2>(
                quants(&x, at),
                |t, c| weight::<PLANES>(planes[t], at, c, || q6_k_weights(group[t], j, c)),
                |t, c| twice(scale(t, c / 4)),
            );
            for t in 0..T {
                let scales = _mm256_or_si256(scale(t, 0), _mm256_slli_epi32::<16>(scale(t, 1)));
                for p in 0..N {
                    let [a, b] = x[p].halves[at];
                    let halves = i32::from(a) & 0xffff | i32::from(b) << 16;
                    let raised = _mm256_madd_epi16(scales, _mm256_set1_epi32(halves));
                    let sum = _mm256_sub_epi32(sums[t][p], _mm256_slli_epi32::<5>(raised));
                    let scale = _mm256_set1_ps(x[p].scales[at]);
                    products[t][p] =
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, products[t][p]);
                }
            }
        }
        for t in 0..T {
            let d = halves(group[t], Q6_K_D);
            for p in 0..N {
                acc[t][p] = _mm256_fmadd_ps(d, products[t][p], acc[t][p]);
            }
        }
    }
    store(&acc, out);
}
