//! Decoders of tiles: one entry of eight rows per column.
//!
//! The values meet their scale in the order of operations of the scalar row decoders. Formats that are rare or already
//! plain are the portable decoders.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{part, store_f32};
use super::tile_weights::{
    IQ4_BYTES, MXFP4_RAISED, Q6_K_D, e8m0_halves, fifth, halves, lookup, nibbles_32, q4_k_weights,
    q5_k_weights, q6_k_scales, q6_k_weights, scales_and_mins, vector, widen_u8,
};
use crate::arch::scalar::tiles as portable;
use crate::format::Format;

/// Decodes groups of eight blocks of each tile, one entry per column; the values are those of the scalar decoders.
pub(super) fn decode<const T: usize>(format: Format, tiles: [&[u8]; T], out: &mut [[[f32; 8]; T]]) {
    for (t, groups) in tiles.into_iter().enumerate() {
        // SAFETY: reachable only through the table that `super::kernels` guards.
        unsafe { decode_groups(format, groups, t, out) }
    }
}

/// Those of tile `t`.
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_groups<const T: usize>(
    format: Format,
    groups: &[u8],
    t: usize,
    out: &mut [[[f32; 8]; T]],
) {
    match format {
        Format::F16 => {
            for (group, out) in groups.as_chunks::<16>().0.iter().zip(out) {
                store_f32(&mut out[t], halves(group, 0));
            }
        }
        Format::Q4_0 => decode_32::<144, false, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| _mm256_sub_epi8(nibbles_32(g, 16, c), _mm256_set1_epi8(8)),
        ),
        Format::Q4_1 => decode_32::<160, true, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| nibbles_32(g, 32, c),
        ),
        Format::Q5_0 => decode_32::<176, false, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| {
                let q = _mm256_or_si256(nibbles_32(g, 48, c), fifth(vector(g, 16), c));
                _mm256_sub_epi8(q, _mm256_set1_epi8(16))
            },
        ),
        Format::Q5_1 => decode_32::<192, true, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| _mm256_or_si256(nibbles_32(g, 64, c), fifth(vector(g, 32), c)),
        ),
        Format::Q8_0 => decode_32::<272, false, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| vector(g, 16 + 32 * c),
        ),
        Format::Iq4Nl => decode_32::<144, false, T>(
            groups,
            t,
            out,
            |g| halves(g, 0),
            |g, c| lookup(&IQ4_BYTES, nibbles_32(g, 16, c)),
        ),
        Format::Mxfp4 => decode_32::<136, false, T>(
            groups,
            t,
            out,
            |g| e8m0_halves(part(g, 0)),
            |g, c| {
                let raised = lookup(&MXFP4_RAISED, nibbles_32(g, 8, c));
                _mm256_sub_epi8(raised, _mm256_set1_epi8(16))
            },
        ),
        Format::Q4K => decode_with_mins::<1152, T>(groups, t, out, |g, j, c| q4_k_weights(g, j, c)),
        Format::Q5K => decode_with_mins::<1408, T>(groups, t, out, |g, j, c| q5_k_weights(g, j, c)),
        Format::Q6K => decode_q6_k(groups, t, out),
        Format::F32 | Format::Bf16 | Format::Q2K | Format::Q3K | Format::Iq4Xs => {
            portable::decode_group(format, groups, t, out);
        }
    }
}

/// The four columns of a vector of signed bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn columns(v: __m256i) -> [__m256; 4] {
    let (a, b, c) = (
        _mm256_slli_epi32::<24>(v),
        _mm256_slli_epi32::<16>(v),
        _mm256_slli_epi32::<8>(v),
    );
    [
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(a)),
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(b)),
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(c)),
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(v)),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_32<const GROUP: usize, const MIN: bool, const T: usize>(
    groups: &[u8],
    t: usize,
    out: &mut [[[f32; 8]; T]],
    scale: impl Fn(&[u8; GROUP]) -> __m256,
    weights: impl Fn(&[u8; GROUP], usize) -> __m256i,
) {
    let (out, _) = out.as_chunks_mut::<32>();
    for (group, out) in groups.as_chunks::<GROUP>().0.iter().zip(out) {
        let scale = scale(group);
        for c in 0..8 {
            for (i, column) in columns(weights(group, c)).into_iter().enumerate() {
                let mut value = _mm256_mul_ps(column, scale);
                if MIN {
                    value = _mm256_add_ps(value, halves(group, 16));
                }
                store_f32(&mut out[4 * c + i][t], value);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_with_mins<const GROUP: usize, const T: usize>(
    groups: &[u8],
    t: usize,
    out: &mut [[[f32; 8]; T]],
    weights: impl Fn(&[u8; GROUP], usize, usize) -> __m256i,
) {
    let (out, _) = out.as_chunks_mut::<256>();
    for (group, out) in groups.as_chunks::<GROUP>().0.iter().zip(out) {
        let (scales, mins) = scales_and_mins(part(group, 32));
        let (d, dmin) = (halves(group, 0), halves(group, 16));
        for j in 0..8 {
            let scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(widen_u8(&scales[j])));
            let min = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(widen_u8(&mins[j])));
            for c in 0..8 {
                for (i, column) in columns(weights(group, j, c)).into_iter().enumerate() {
                    let value = _mm256_sub_ps(_mm256_mul_ps(scale, column), min);
                    store_f32(&mut out[32 * j + 4 * c + i][t], value);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_q6_k<const T: usize>(groups: &[u8], t: usize, out: &mut [[[f32; 8]; T]]) {
    let (out, _) = out.as_chunks_mut::<256>();
    for (group, out) in groups.as_chunks::<1680>().0.iter().zip(out) {
        let d = halves(group, Q6_K_D);
        for j in 0..8 {
            let scale = [0, 1].map(|half| q6_k_scales(group, 2 * j + half));
            for c in 0..8 {
                let q = _mm256_sub_epi8(q6_k_weights(group, j, c), _mm256_set1_epi8(32));
                let scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale[c / 4]));
                for (i, column) in columns(q).into_iter().enumerate() {
                    store_f32(
                        &mut out[32 * j + 4 * c + i][t],
                        _mm256_mul_ps(scale, column),
                    );
                }
            }
        }
    }
}
