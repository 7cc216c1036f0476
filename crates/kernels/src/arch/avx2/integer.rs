//! Integer row dots; the scalar functions of the same names say what they compute.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds pairs with saturation at 32767.  No
//! pair reaches it: signed weights go in as magnitudes with their sign moved to the activation, and
//! activations are within -127 to 127, so a pair is at most `2 * 128 * 127 = 32512`; the unsigned
//! weights of the K formats are at most 63.  `vpmaddwd` then adds neighbors into the eight lanes,
//! with the scale of the sub-block as the other factor where there is one.

#![expect(
    clippy::needless_range_loop,
    reason = "a lane or position indexes several arrays at once"
)]
#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{
    f16_at, fold4, fold8, halve, load_half, load_half_i16, load_i8, load_i16, part, prefetch,
};
use super::unpack::{self, Unpacked};
use crate::activations::{Blocks32, Blocks256};
use crate::arch::rows_with_sums;
use crate::arch::scalar::decode::scales_and_mins;
use crate::format::Format;

/// One position, cut to the blocks of a row so that indexing needs no further checks.
///
/// Made outside the feature functions: a closure written in one of them does not inline into
/// `array::map`, which lacks the features.
#[derive(Clone, Copy)]
struct Cut32<'a> {
    quants: &'a [[i8; 32]],
    scales: &'a [f32],
    sums: &'a [f32],
}

#[inline(always)]
fn cut_32<const N: usize>(x: [Blocks32<'_>; N], n: usize) -> [Cut32<'_>; N] {
    x.map(|x| Cut32 {
        quants: &x.quants.as_chunks().0[..n],
        scales: &x.scales[..n],
        sums: &x.sums[..n],
    })
}

/// As [`Cut32`], with `S` sums per block of 256.
#[derive(Clone, Copy)]
struct Cut256<'a, const S: usize> {
    quants: &'a [[[i8; 32]; 8]],
    scales: &'a [f32],
    sums: &'a [[i16; S]],
}

#[inline(always)]
fn cut_256<const S: usize, const N: usize>(
    x: [Blocks256<'_>; N],
    n: usize,
    sums: impl Fn(Blocks256<'_>) -> &[i16],
) -> [Cut256<'_, S>; N] {
    x.map(|x| Cut256 {
        quants: &x.quants.as_chunks().0.as_chunks().0[..n],
        scales: &x.scales[..n],
        sums: &sums(x).as_chunks().0[..n],
    })
}

#[inline(always)]
fn cut_with_sums_16<const N: usize>(x: [Blocks256<'_>; N], n: usize) -> [Cut256<'_, 16>; N] {
    cut_256(x, n, |x| x.sums16)
}

#[inline(always)]
fn cut_with_sums_32<const N: usize>(x: [Blocks256<'_>; N], n: usize) -> [Cut256<'_, 8>; N] {
    cut_256(x, n, |x| x.sums32)
}

macro_rules! dots_32 {
    ($($name:ident: $bytes:literal bytes, minima $min:literal;)*) => {$(
        pub(super) fn $name<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn kernel<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
                dot_32::<$bytes, $min, N>(rows, x, out, |block| unpack::$name(block))
            }
            // SAFETY: reachable only through the table that `super::kernels` guards.
            unsafe { kernel(rows, x, out) }
        }
    )*};
}

dots_32! {
    q4_0: 18 bytes, minima false;
    q4_1: 20 bytes, minima true;
    q5_0: 22 bytes, minima false;
    q5_1: 24 bytes, minima true;
    q8_0: 34 bytes, minima false;
    iq4_nl: 18 bytes, minima false;
    mxfp4: 17 bytes, minima false;
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot_32<const BYTES: usize, const MIN: bool, const N: usize>(
    rows: &[u8],
    x: [Blocks32<'_>; N],
    out: &mut [[f32; N]],
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked,
) {
    let x = cut_32(x, rows.len() / out.len() / BYTES);
    for (row, out) in rows_with_sums(rows, out) {
        row_dot_32::<BYTES, MIN, N>(row, x, out, &unpack);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn row_dot_32<const BYTES: usize, const MIN: bool, const N: usize>(
    row: &[u8],
    x: [Cut32<'_>; N],
    out: &mut [f32; N],
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked,
) {
    let blocks = row.as_chunks::<BYTES>().0;
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_ps(); 2]; N];
    let mut mins = [0f32; N];
    for first in (0..blocks.len()).step_by(2) {
        prefetch(&blocks[first]);
        for parity in 0..2 {
            let b = first + parity;
            if b == blocks.len() {
                break;
            }
            let Unpacked { quants, scale, min } = unpack(&blocks[b]);
            let (magnitude, scale) = (_mm256_abs_epi8(quants), _mm256_set1_ps(scale));
            for p in 0..N {
                let y = _mm256_sign_epi8(load_i8(&x[p].quants[b]), quants);
                let lanes = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, y), ones);
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(x[p].scales[b]));
                acc[p][parity] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(lanes), acc[p][parity]);
                if MIN {
                    mins[p] = min.mul_add(x[p].sums[b], mins[p]);
                }
            }
        }
    }
    for p in 0..N {
        out[p] = fold8(_mm256_add_ps(acc[p][0], acc[p][1]));
        if MIN {
            out[p] += mins[p];
        }
    }
}

pub(super) fn q4_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
        dot_with_mins(rows, x, out, |block, pair| unpack::q4_k(block, pair))
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(rows, x, out) }
}

pub(super) fn q5_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
        dot_with_mins(rows, x, out, |block, pair| unpack::q5_k(block, pair))
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(rows, x, out) }
}

/// Q4_K and Q5_K: `quants(block, pair)` are the values of sub-blocks `2 pair` and `2 pair + 1`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot_with_mins<const BYTES: usize, const N: usize>(
    rows: &[u8],
    x: [Blocks256<'_>; N],
    out: &mut [[f32; N]],
    quants: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) {
    let x = cut_with_sums_32(x, rows.len() / out.len() / BYTES);
    for (row, out) in rows_with_sums(rows, out) {
        row_dot_with_mins(row, x, out, &quants);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn row_dot_with_mins<const BYTES: usize, const N: usize>(
    row: &[u8],
    x: [Cut256<'_, 8>; N],
    out: &mut [f32; N],
    quants: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) {
    let blocks = row.as_chunks::<BYTES>().0;
    let mut acc = [_mm256_setzero_ps(); N];
    let mut min_acc = [_mm_setzero_ps(); N];
    for (b, block) in blocks.iter().enumerate() {
        prefetch(block);
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (scales, mins) = scales_and_mins(part::<12>(block, 4));
        let widen =
            |bytes: [u8; 8]| _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(bytes)));
        let mins = widen(mins);
        let scales = _mm256_broadcastsi128_si256(widen(scales));
        let mut lanes = [_mm256_setzero_si256(); N];
        for pair in 0..4 {
            let values = quants(block, pair);
            for (sub, q) in [2 * pair, 2 * pair + 1].into_iter().zip(values) {
                let at = _mm256_set1_epi16(((2 * sub) | ((2 * sub + 1) << 8)) as i16);
                let scale = _mm256_shuffle_epi8(scales, at);
                for p in 0..N {
                    let products = _mm256_maddubs_epi16(q, load_i8(&x[p].quants[b][sub]));
                    lanes[p] = _mm256_add_epi32(lanes[p], _mm256_madd_epi16(products, scale));
                }
            }
        }
        for p in 0..N {
            let scale = _mm256_set1_ps(d * x[p].scales[b]);
            acc[p] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(lanes[p]), acc[p]);
            let min = _mm_madd_epi16(mins, load_half_i16(&x[p].sums[b]));
            let scale = _mm_set1_ps(dmin * x[p].scales[b]);
            min_acc[p] = _mm_fmadd_ps(scale, _mm_cvtepi32_ps(min), min_acc[p]);
        }
    }
    for p in 0..N {
        out[p] = fold4(_mm_sub_ps(halve(acc[p]), min_acc[p]));
    }
}

pub(super) fn q6_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
        let x = cut_with_sums_16(x, rows.len() / out.len() / Format::Q6K.block_bytes());
        for (row, out) in rows_with_sums(rows, out) {
            row_dot_q6_k(row, x, out);
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(rows, x, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn row_dot_q6_k<const N: usize>(row: &[u8], x: [Cut256<'_, 16>; N], out: &mut [f32; N]) {
    let blocks = row.as_chunks::<{ Format::Q6K.block_bytes() }>().0;
    let mut acc = [_mm256_setzero_ps(); N];
    for (b, block) in blocks.iter().enumerate() {
        prefetch(block);
        let d = f16_at(block, 208);
        let scales = load_half(part(block, 192));
        let mut lanes = [_mm256_setzero_si256(); N];
        for half in 0..2 {
            for (quarter, q) in unpack::q6_k(block, half).into_iter().enumerate() {
                let group = half * 4 + quarter;
                // The two scales of the group, eight times each.
                let first = 2 * group as i64 * 0x0101_0101_0101_0101;
                let at = _mm_set_epi64x(first + 0x0101_0101_0101_0101, first);
                let scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, at));
                for p in 0..N {
                    let products = _mm256_maddubs_epi16(q, load_i8(&x[p].quants[b][group]));
                    lanes[p] = _mm256_add_epi32(lanes[p], _mm256_madd_epi16(products, scale));
                }
            }
        }
        let scales = _mm256_cvtepi8_epi16(scales);
        for p in 0..N {
            let offset = _mm256_madd_epi16(scales, load_i16(&x[p].sums[b]));
            let sum = _mm256_sub_epi32(lanes[p], _mm256_slli_epi32::<5>(offset));
            let scale = _mm256_set1_ps(d * x[p].scales[b]);
            acc[p] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), acc[p]);
        }
    }
    for p in 0..N {
        out[p] = fold8(acc[p]);
    }
}
