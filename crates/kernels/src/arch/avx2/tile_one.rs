//! Integer dots of one position with a tile or some abreast, for blocks of 256: what decoding spends its time in.
//!
//! The sums and their order are those of `tiles.rs`, which has the other shapes. With one position nothing is reused, so
//! tiles take turns within a group, and what counts is the number of instructions per byte of weights: a vector of nibbles is
//! loaded once for both sub-blocks that it holds, and a scale gets to its lane by one shuffle. The weights to come are asked
//! for a few lines at a time: in one burst they take all the places of a core for lines under way, and the loads that are
//! needed now wait behind them.

#![expect(
    clippy::needless_range_loop,
    reason = "a sub-block indexes several arrays at once"
)]

use std::arch::x86_64::*;

use super::registers::{NEAR, load_f32, load_half, load_u8, part, prefetch, store_f32};
use super::tile_weights::{Q6_K_D, four, halves, nibbles, q6_k_at, scales_and_mins, vector};
use super::tiles::{group_at, groups};
use crate::activations::Blocks;

/// As [`NEAR`] for Q6_K: in its long unrolled loops the hardware's prefetching has nothing to follow.
const FAR: usize = 6144;

/// Bytes of eight rows to the low bytes of both halves of their lanes.
const TO_HALVES: [u8; 32] = lanes(&[0, NONE, 0, NONE]);

/// Bytes of eight rows to the low bytes of their lanes.
const TO_LANES: [u8; 32] = lanes(&[0, NONE, NONE, NONE]);

/// Bytes of eight rows to the high bytes of both halves of their lanes.
const TO_HIGH_HALVES: [u8; 32] = lanes(&[NONE, 0, NONE, 0]);

/// Bytes of eight rows and the eight that follow them to the high bytes of the two halves of their lanes.
const TO_BOTH_HALVES: [u8; 32] = lanes(&[NONE, 0, NONE, 8]);

/// A place that a shuffle fills with zero.
const NONE: u8 = 0x80;

/// The indices of a shuffle that does to each row's byte what `of_row_0` does to that of row 0.
const fn lanes(of_row_0: &[u8; 4]) -> [u8; 32] {
    let mut out = [NONE; 32];
    let mut i = 0;
    while i < 32 {
        if of_row_0[i % 4] != NONE {
            out[i] = of_row_0[i % 4] + (i / 4) as u8;
        }
        i += 1;
    }
    out
}

/// The eight bytes from the `SECOND` half of 16 on, moved as `to` says.
#[target_feature(enable = "avx2")]
#[inline]
fn spread<const SECOND: bool>(bytes: &[u8; 16], to: &[u8; 32]) -> __m256i {
    let bytes = _mm256_broadcastsi128_si256(load_half(bytes));
    let to = match SECOND {
        // Places without a byte stay so: their high bit remains.
        true => _mm256_or_si256(load_u8(to), _mm256_set1_epi8(8)),
        false => load_u8(to),
    };
    _mm256_shuffle_epi8(bytes, to)
}

/// Sums of 32 products of each of two sub-blocks, with their scales; `weights(c)` is vector `c` of both.
#[target_feature(enable = "avx2")]
#[inline]
fn two_sums<const RUN: usize>(
    x: [&[i8; 32]; 2],
    scales: [__m256i; 2],
    weights: impl Fn(usize) -> [__m256i; 2],
) -> [__m256i; 2] {
    let mut sums = [_mm256_setzero_si256(); 2];
    for run in 0..8 / RUN {
        let mut pairs = [_mm256_setzero_si256(); 2];
        for i in 0..RUN {
            let c = run * RUN + i;
            let w = weights(c);
            for s in 0..2 {
                let products = _mm256_maddubs_epi16(w[s], four(x[s], c));
                pairs[s] = match i {
                    0 => products,
                    _ => _mm256_add_epi16(pairs[s], products),
                };
            }
        }
        for s in 0..2 {
            let scaled = _mm256_madd_epi16(pairs[s], scales[s]);
            sums[s] = match run {
                0 => scaled,
                _ => _mm256_add_epi32(sums[s], scaled),
            };
        }
    }
    sums
}

/// The bit that `LEFT` brings to bit 4 of every byte.
#[target_feature(enable = "avx2")]
#[inline]
fn fifth_of<const LEFT: i32>(v: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_slli_epi16::<LEFT>(v), _mm256_set1_epi8(16))
}

/// Adds sub-blocks `2 pair` and `2 pair + 1` to the products and minima of a group.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn pair<const GROUP: usize, const FIVE: bool, const RUN: usize>(
    pair: usize,
    group: &[u8; GROUP],
    [scales, mins]: [&[u8; 64]; 2],
    quants: &[[i8; 32]; 8],
    x_scales: &[f32; 8],
    x_sums: &[f32; 8],
    [mut products, mut minima]: [__m256; 2],
) -> [__m256; 2] {
    let (scales, mins) = (part(scales, 16 * pair), part(mins, 16 * pair));
    prefetch::<NEAR>(&group[GROUP / 4 * pair..][..GROUP / 4]);
    let shift = _mm256_set1_epi32(2 * pair as i32);
    let weights = |c: usize| {
        let v = vector(group, GROUP - 1024 + 256 * pair + 32 * c);
        let low = [nibbles::<false>(v), nibbles::<true>(v)];
        match FIVE {
            true => {
                let high = _mm256_srlv_epi32(vector(group, 128 + 32 * c), shift);
                [
                    _mm256_or_si256(low[0], fifth_of::<4>(high)),
                    _mm256_or_si256(low[1], fifth_of::<3>(high)),
                ]
            }
            false => low,
        }
    };
    let sums = two_sums::<RUN>(
        [&quants[2 * pair], &quants[2 * pair + 1]],
        [
            spread::<false>(scales, &TO_HALVES),
            spread::<true>(scales, &TO_HALVES),
        ],
        weights,
    );
    let mins = [
        spread::<false>(mins, &TO_LANES),
        spread::<true>(mins, &TO_LANES),
    ];
    for s in 0..2 {
        let (sum, min) = (_mm256_cvtepi32_ps(sums[s]), _mm256_cvtepi32_ps(mins[s]));
        let scale = _mm256_set1_ps(x_scales[2 * pair + s]);
        products = _mm256_fmadd_ps(sum, scale, products);
        minima = _mm256_fmadd_ps(min, _mm256_set1_ps(x_sums[2 * pair + s]), minima);
    }
    [products, minima]
}

/// Dots over blocks of 256 with 6-bit scales and minima per 32, whose weights have a fifth bit if `FIVE`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn with_mins<
    const GROUP: usize,
    const FIVE: bool,
    const RUN: usize,
    const T: usize,
    const N: usize,
>(
    tiles: [&[u8]; T],
    x: &Blocks<'_>,
    out: [&mut [[f32; 8]; N]; T],
) {
    let tiles = groups::<GROUP, T>(tiles);
    let quants = x.quants.as_chunks::<32>().0.as_chunks::<8>().0;
    let scales = x.scales.as_chunks::<8>().0;
    let scaled_sums = x.scaled_sums.as_chunks::<8>().0;
    let mut acc = [_mm256_setzero_ps(); T];
    for t in 0..T {
        acc[t] = load_f32(&out[t][0]);
    }
    for (b, ((quants, x_scales), x_sums)) in quants
        .iter()
        .zip(scales)
        .zip(scaled_sums)
        .enumerate()
        .take(tiles[0].len())
    {
        let group = group_at(&tiles, b);
        let mut packed = [[[0; 64]; 2]; T];
        for t in 0..T {
            let (scales, mins) = scales_and_mins(part(group[t], 32));
            packed[t] = [part(scales.as_flattened(), 0), part(mins.as_flattened(), 0)]
                .map(|x: &[u8; 64]| *x);
        }
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        for at in 0..4 {
            for t in 0..T {
                sums[t] = pair::<GROUP, FIVE, RUN>(
                    at,
                    group[t],
                    [&packed[t][0], &packed[t][1]],
                    quants,
                    x_scales,
                    x_sums,
                    sums[t],
                );
            }
        }
        for t in 0..T {
            let [products, minima] = sums[t];
            acc[t] = _mm256_fmadd_ps(halves(group[t], 0), products, acc[t]);
            acc[t] = _mm256_fnmadd_ps(halves(group[t], 16), minima, acc[t]);
        }
    }
    for t in 0..T {
        store_f32(&mut out[t][0], acc[t]);
    }
}

/// Dots of Q4_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q4_k<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    x: &Blocks<'_>,
    out: [&mut [[f32; 8]; N]; T],
) {
    with_mins::<1152, false, 8, T, N>(tiles, x, out);
}

/// Dots of Q5_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q5_k<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    x: &Blocks<'_>,
    out: [&mut [[f32; 8]; N]; T],
) {
    with_mins::<1408, true, 4, T, N>(tiles, x, out);
}

/// Vectors `c` of the four sub-blocks of a half of a Q6_K group: four low bits and two high ones.
#[target_feature(enable = "avx2")]
#[inline]
fn q6_k_quarters(group: &[u8; 1680], half: usize, c: usize) -> [__m256i; 4] {
    let at = q6_k_at(half, c);
    let low = [vector(group, at), vector(group, at + 32)];
    let high = vector(group, at + 64);
    let two = _mm256_set1_epi8(0x30);
    [
        _mm256_or_si256(
            nibbles::<false>(low[0]),
            _mm256_and_si256(_mm256_slli_epi16::<4>(high), two),
        ),
        _mm256_or_si256(
            nibbles::<false>(low[1]),
            _mm256_and_si256(_mm256_slli_epi16::<2>(high), two),
        ),
        _mm256_or_si256(nibbles::<true>(low[0]), _mm256_and_si256(high, two)),
        _mm256_or_si256(
            nibbles::<true>(low[1]),
            _mm256_and_si256(_mm256_srli_epi16::<2>(high), two),
        ),
    ]
}

/// Adds the sixteen inputs from `16 SIXTEEN` on of four sub-blocks to their sums.
#[target_feature(enable = "avx2")]
#[inline]
fn q6_k_sixteen<const SIXTEEN: usize>(
    half: usize,
    group: &[u8; 1680],
    quants: &[[i8; 32]; 8],
    sums: &mut [__m256i; 4],
) {
    let mut scales = [_mm256_setzero_si256(); 4];
    for quarter in 0..4 {
        let bytes = part(group, 16 * (4 * half + quarter));
        let spread = match SIXTEEN {
            0 => spread::<false>(bytes, &TO_HIGH_HALVES),
            _ => spread::<true>(bytes, &TO_HIGH_HALVES),
        };
        scales[quarter] = _mm256_srai_epi16::<8>(spread);
    }
    for two in 0..2 {
        prefetch::<FAR>(&group[210 * (4 * half + 2 * SIXTEEN + two)..][..210]);
        let c = 4 * SIXTEEN + 2 * two;
        let (w, v) = (
            q6_k_quarters(group, half, c),
            q6_k_quarters(group, half, c + 1),
        );
        for quarter in 0..4 {
            let x = &quants[4 * half + quarter];
            let pairs = _mm256_add_epi16(
                _mm256_maddubs_epi16(w[quarter], four(x, c)),
                _mm256_maddubs_epi16(v[quarter], four(x, c + 1)),
            );
            let scaled = _mm256_madd_epi16(pairs, scales[quarter]);
            sums[quarter] = _mm256_add_epi32(sums[quarter], scaled);
        }
    }
}

/// Adds four sub-blocks to the products of a group.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn q6_k_half(
    half: usize,
    group: &[u8; 1680],
    quants: &[[i8; 32]; 8],
    x_scales: &[f32; 8],
    x_halves: &[[i16; 2]; 8],
    mut products: __m256,
) -> __m256 {
    let mut sums = [_mm256_setzero_si256(); 4];
    q6_k_sixteen::<0>(half, group, quants, &mut sums);
    q6_k_sixteen::<1>(half, group, quants, &mut sums);
    for quarter in 0..4 {
        let j = 4 * half + quarter;
        let bytes = part(group, 16 * j);
        let scales = _mm256_srai_epi16::<8>(spread::<false>(bytes, &TO_BOTH_HALVES));
        let [a, b] = x_halves[j];
        let halves = i32::from(a) & 0xffff | i32::from(b) << 16;
        let raised = _mm256_madd_epi16(scales, _mm256_set1_epi32(halves));
        let sum = _mm256_sub_epi32(sums[quarter], _mm256_slli_epi32::<5>(raised));
        let scale = _mm256_set1_ps(x_scales[j]);
        products = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, products);
    }
    products
}

/// Dots of Q6_K: 8-bit scales per 16, and weights that are 32 too high.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q6_k<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    x: &Blocks<'_>,
    out: [&mut [[f32; 8]; N]; T],
) {
    let tiles = groups::<1680, T>(tiles);
    let quants = x.quants.as_chunks::<32>().0.as_chunks::<8>().0;
    let scales = x.scales.as_chunks::<8>().0;
    let x_halves = x.halves.as_chunks::<2>().0.as_chunks::<8>().0;
    let mut acc = [_mm256_setzero_ps(); T];
    for t in 0..T {
        acc[t] = load_f32(&out[t][0]);
    }
    for (b, ((quants, x_scales), x_halves)) in quants
        .iter()
        .zip(scales)
        .zip(x_halves)
        .enumerate()
        .take(tiles[0].len())
    {
        let mut products = [_mm256_setzero_ps(); T];
        for half in 0..2 {
            for t in 0..T {
                products[t] =
                    q6_k_half(half, &tiles[t][b], quants, x_scales, x_halves, products[t]);
            }
        }
        for t in 0..T {
            acc[t] = _mm256_fmadd_ps(halves(&tiles[t][b], Q6_K_D), products[t], acc[t]);
        }
    }
    for t in 0..T {
        store_f32(&mut out[t][0], acc[t]);
    }
}
