//! Loads and stores, most of registers whose halves belong to two tiles: lanes 0 to 7 are rows of the first, 8 to 15 of the
//! second.

#![expect(unsafe_code, reason = "load instructions take raw pointers")]

use std::arch::x86_64::*;

use crate::arch::avx2::registers::{load_f32, load_half, load_u8, store_f32};

/// 32 bytes of each tile.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_u8([a, b]: [&[u8; 32]; 2]) -> __m512i {
    both_integers(load_u8(a), load_u8(b))
}

/// 16 bytes of each tile.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_halves([a, b]: [&[u8; 16]; 2]) -> __m256i {
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load_half(a)), load_half(b))
}

/// 8 bytes of each tile.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_eights([a, b]: [&[u8; 8]; 2]) -> __m128i {
    _mm_set_epi64x(i64::from_le_bytes(*b), i64::from_le_bytes(*a))
}

/// 8 floats of each tile.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_f32([a, b]: [&[f32; 8]; 2]) -> __m512 {
    both_floats(load_f32(a), load_f32(b))
}

/// The first half and the second.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_integers(a: __m256i, b: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
}

/// The first half and the second.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn both_floats(a: __m256, b: __m256) -> __m512 {
    let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(a), b))
}

/// 8 floats of each tile that stand side by side.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn load_both(values: &[[f32; 8]; 2]) -> __m512 {
    // SAFETY: the array has 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr().cast()) }
}

/// Stores the 8 floats of each tile.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn store_both([a, b]: [&mut [f32; 8]; 2], from: __m512) {
    store_f32(a, _mm512_castps512_ps256(from));
    let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(from));
    store_f32(b, _mm256_castpd_ps(upper));
}

/// 64 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_bytes(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// 16 floats.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_16(values: &[f32; 16]) -> __m512 {
    // SAFETY: the array has 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Stores 16 floats.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_16(values: &mut [f32; 16], from: __m512) {
    // SAFETY: the array has 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), from) }
}
