//! Stored values of a tile as bytes in registers, four inputs of eight rows each, for the integer dots and the decoders.

#![expect(unsafe_code, reason = "two registers are seen as the bytes they hold")]

use std::arch::x86_64::*;

use super::registers::{load_half, load_u8, part};
use crate::arch::scalar::decode::{IQ4_VALUES, MXFP4_DOUBLED};

/// Eight f16 numbers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn halves(tile: &[u8], at: usize) -> __m256 {
    _mm256_cvtph_ps(load_half(part(tile, at)))
}

/// Eight bytes as eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn widen_u8(bytes: &[u8; 8]) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)))
}

/// Vector `at / 32` of a group of tiles.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn vector(group: &[u8], at: usize) -> __m256i {
    load_u8(part(group, at))
}

/// Inputs `4 c .. 4 c + 4` of a block, in every lane.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn four(block: &[i8; 32], c: usize) -> __m256i {
    let q = &block[4 * c..4 * c + 4];
    _mm256_set1_epi32(i32::from_le_bytes([
        q[0] as u8, q[1] as u8, q[2] as u8, q[3] as u8,
    ]))
}

/// The low (`HIGH` false) or high nibbles of a vector.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nibbles<const HIGH: bool>(v: __m256i) -> __m256i {
    let v = if HIGH { _mm256_srli_epi16::<4>(v) } else { v };
    _mm256_and_si256(v, _mm256_set1_epi8(15))
}

/// Nibbles of vector `c` of a block of 32, whose four vectors begin at `at`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nibbles_32(group: &[u8], at: usize, c: usize) -> __m256i {
    match c < 4 {
        true => nibbles::<false>(vector(group, at + 32 * c)),
        false => nibbles::<true>(vector(group, at + 32 * (c - 4))),
    }
}

/// Bit `bit` of every byte, moved to bit 4.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fifth(v: __m256i, bit: usize) -> __m256i {
    let v = match bit {
        0 => _mm256_slli_epi16::<4>(v),
        1 => _mm256_slli_epi16::<3>(v),
        2 => _mm256_slli_epi16::<2>(v),
        3 => _mm256_slli_epi16::<1>(v),
        4 => v,
        5 => _mm256_srli_epi16::<1>(v),
        6 => _mm256_srli_epi16::<2>(v),
        _ => _mm256_srli_epi16::<3>(v),
    };
    _mm256_and_si256(v, _mm256_set1_epi8(16))
}

/// Table entries that nibbles name.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn lookup(table: &[u8; 16], nibbles: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(table)), nibbles)
}

/// `MXFP4_DOUBLED`, 16 higher: no entry is negative.
pub(in crate::arch) const MXFP4_RAISED: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (MXFP4_DOUBLED[i] + 16) as u8;
        i += 1;
    }
    table
};

/// The bytes of `IQ4_VALUES`.
pub(in crate::arch) const IQ4_BYTES: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = IQ4_VALUES[i] as u8;
        i += 1;
    }
    table
};

/// Half of the power of two that each scale byte of MXFP4 names.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn e8m0_halves(bytes: &[u8; 8]) -> __m256 {
    let e = widen_u8(bytes);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_small))
}

/// The scales and minima of the eight sub-blocks of Q4_K and Q5_K, eight rows each.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn scales_and_mins(packed: &[u8; 96]) -> ([[u8; 8]; 8], [[u8; 8]; 8]) {
    let (a, b, c) = (
        load_u8(part(packed, 0)),
        load_u8(part(packed, 32)),
        load_u8(part(packed, 64)),
    );
    let (six, four, top) = (
        _mm256_set1_epi8(63),
        _mm256_set1_epi8(15),
        _mm256_set1_epi8(0x30),
    );
    let upper = _mm256_and_si256(_mm256_srli_epi16::<2>(a), top);
    let scales = [
        _mm256_and_si256(a, six),
        _mm256_or_si256(_mm256_and_si256(c, four), upper),
    ];
    let upper = _mm256_and_si256(_mm256_srli_epi16::<2>(b), top);
    let c = _mm256_srli_epi16::<4>(c);
    let mins = [
        _mm256_and_si256(b, six),
        _mm256_or_si256(_mm256_and_si256(c, four), upper),
    ];
    (bytes_of(scales), bytes_of(mins))
}

#[inline(always)]
fn bytes_of(v: [__m256i; 2]) -> [[u8; 8]; 8] {
    // SAFETY: both are 64 bytes without padding, and every pattern of bits is valid.
    unsafe { std::mem::transmute(v) }
}

/// Vector `c` of sub-block `j` of Q4_K.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q4_k_weights(group: &[u8; 1152], j: usize, c: usize) -> __m256i {
    let v = vector(group, 128 + 256 * (j / 2) + 32 * c);
    match j % 2 {
        0 => nibbles::<false>(v),
        _ => nibbles::<true>(v),
    }
}

/// Vector `c` of sub-block `j` of Q5_K.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q5_k_weights(group: &[u8; 1408], j: usize, c: usize) -> __m256i {
    let v = vector(group, 384 + 256 * (j / 2) + 32 * c);
    let low = match j % 2 {
        0 => nibbles::<false>(v),
        _ => nibbles::<true>(v),
    };
    _mm256_or_si256(low, fifth(vector(group, 128 + 32 * c), j))
}

/// Where `d` of the eight rows lies in a Q6_K group.
pub(in crate::arch) const Q6_K_D: usize = 128;

/// Where vectors `c` of a half of a Q6_K group lie: low bits, low bits of the sub-block after, high bits of four sub-blocks.
#[inline(always)]
pub(in crate::arch) fn q6_k_at(half: usize, c: usize) -> usize {
    144 + 768 * half + 96 * c
}

/// Scale `i` of the eight rows of a Q6_K group.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q6_k_scales(group: &[u8; 1680], i: usize) -> __m256i {
    let bytes: &[u8; 8] = part(group, 8 * i);
    _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)))
}

/// Vector `c` of sub-block `j` of Q6_K: four low bits and two high ones.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q6_k_weights(group: &[u8; 1680], j: usize, c: usize) -> __m256i {
    let (half, quarter) = (j / 4, j % 4);
    let at = q6_k_at(half, c);
    let (low, high) = (
        vector(group, at + 32 * (quarter % 2)),
        vector(group, at + 64),
    );
    let low = if quarter < 2 {
        nibbles::<false>(low)
    } else {
        nibbles::<true>(low)
    };
    let high = match quarter {
        0 => _mm256_slli_epi16::<4>(high),
        1 => _mm256_slli_epi16::<2>(high),
        2 => high,
        _ => _mm256_srli_epi16::<2>(high),
    };
    _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
}
