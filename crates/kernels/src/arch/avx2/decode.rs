//! Block decoders.
//!
//! The values come from the same unpacking as the integer dots and meet their scale in the scalar
//! order of operations.  Formats that are rare or already plain are the portable decoders, compiled
//! with wider registers.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::super::scalar::decode as portable;
use super::registers::{NEAR, f16_at, load_half, part, prefetch, store_f32};
use super::unpack::{self, Unpacked};
use crate::format::Format;

/// Decodes whole blocks; the caller has checked that the sizes agree.
pub(super) fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(format, bytes, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn kernel(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F16 => f16(bytes, out),
        Format::Q4_0 => per_32::<18, false>(bytes, out, |b| unpack::q4_0(b)),
        Format::Q4_1 => per_32::<20, true>(bytes, out, |b| unpack::q4_1(b)),
        Format::Q5_0 => per_32::<22, false>(bytes, out, |b| unpack::q5_0(b)),
        Format::Q5_1 => per_32::<24, true>(bytes, out, |b| unpack::q5_1(b)),
        Format::Q8_0 => per_32::<34, false>(bytes, out, |b| unpack::q8_0(b)),
        Format::Iq4Nl => per_32::<18, false>(bytes, out, |b| unpack::iq4_nl(b)),
        Format::Mxfp4 => per_32::<17, false>(bytes, out, |b| unpack::mxfp4(b)),
        Format::Q4K => with_mins::<144>(bytes, out, |b, pair| unpack::q4_k(b, pair)),
        Format::Q5K => with_mins::<176>(bytes, out, |b, pair| unpack::q5_k(b, pair)),
        Format::Q6K => q6_k(bytes, out),
        Format::F32 | Format::Bf16 | Format::Q2K | Format::Q3K | Format::Iq4Xs => {
            portable::decode(format, bytes, out);
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn f16(bytes: &[u8], out: &mut [f32]) {
    let (steps, rest) = bytes.as_chunks::<16>();
    let (values, tail) = out.as_chunks_mut::<8>();
    for (step, values) in steps.iter().zip(values) {
        store_f32(values, _mm256_cvtph_ps(load_half(part(step, 0))));
    }
    portable::decode(Format::F16, rest, tail);
}

/// The four groups of eight signed bytes as floats.
#[target_feature(enable = "avx2")]
#[inline]
fn floats(quants: __m256i) -> [__m256; 4] {
    let (low, high) = (
        _mm256_castsi256_si128(quants),
        _mm256_extracti128_si256::<1>(quants),
    );
    let widen = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    [
        widen(low),
        widen(_mm_srli_si128::<8>(low)),
        widen(high),
        widen(_mm_srli_si128::<8>(high)),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn per_32<const BYTES: usize, const MIN: bool>(
    bytes: &[u8],
    out: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked,
) {
    let values = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    for (block, values) in bytes.as_chunks::<BYTES>().0.iter().zip(values) {
        prefetch::<NEAR>(block);
        let Unpacked { quants, scale, min } = unpack(block);
        let (scale, min) = (_mm256_set1_ps(scale), _mm256_set1_ps(min));
        for (values, quants) in values.iter_mut().zip(floats(quants)) {
            let scaled = _mm256_mul_ps(quants, scale);
            store_f32(
                values,
                if MIN {
                    _mm256_add_ps(scaled, min)
                } else {
                    scaled
                },
            );
        }
    }
}

/// Q4_K and Q5_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn with_mins<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    quants: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) {
    let values = out
        .as_chunks_mut::<8>()
        .0
        .as_chunks_mut::<4>()
        .0
        .as_chunks_mut::<8>()
        .0;
    for (block, values) in bytes.as_chunks::<BYTES>().0.iter().zip(values) {
        prefetch::<NEAR>(block);
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (scales, mins) = portable::scales_and_mins(part::<12>(block, 4));
        for pair in 0..4 {
            for (odd, quants) in quants(block, pair).into_iter().enumerate() {
                let sub = 2 * pair + odd;
                let scale = _mm256_set1_ps(d * f32::from(scales[sub]));
                let min = _mm256_set1_ps(dmin * f32::from(mins[sub]));
                for (values, quants) in values[sub].iter_mut().zip(floats(quants)) {
                    store_f32(values, _mm256_sub_ps(_mm256_mul_ps(scale, quants), min));
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let values = out
        .as_chunks_mut::<8>()
        .0
        .as_chunks_mut::<4>()
        .0
        .as_chunks_mut::<8>()
        .0;
    for (block, values) in bytes.as_chunks::<210>().0.iter().zip(values) {
        prefetch::<NEAR>(block);
        let d = f16_at(block, 208);
        for half in 0..2 {
            for (quarter, quants) in unpack::q6_k(block, half).into_iter().enumerate() {
                let group = half * 4 + quarter;
                let quants = _mm256_sub_epi8(quants, _mm256_set1_epi8(32));
                for (i, quants) in floats(quants).into_iter().enumerate() {
                    let scale = d * f32::from(block[192 + group * 2 + i / 2] as i8);
                    let scaled = _mm256_mul_ps(_mm256_set1_ps(scale), quants);
                    store_f32(&mut values[group][i], scaled);
                }
            }
        }
    }
}
