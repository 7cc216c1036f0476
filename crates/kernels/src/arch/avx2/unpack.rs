//! Stored values of a block as bytes in registers, for the integer dots and the decoders alike.

use std::arch::x86_64::*;

use super::registers::{f16_at, load_half, load_u8, part};
use crate::arch::scalar::decode::{IQ4_VALUES, MXFP4_DOUBLED, e8m0_half};

/// A block of 32 weights: `value[i] = scale * quants[i] + min`, quants signed.
pub(super) struct Unpacked {
    pub(super) quants: __m256i,
    pub(super) scale: f32,
    pub(super) min: f32,
}

/// The nibbles of 16 bytes: low ones in the lower half, high ones in the upper.
#[target_feature(enable = "avx2")]
#[inline]
fn nibbles(qs: &[u8; 16]) -> __m256i {
    let qs = load_half(qs);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(qs), qs);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// 32 bits as 32 bytes of all ones or all zeros.
#[target_feature(enable = "avx2")]
#[inline]
fn spread_bits(bits: &[u8; 4]) -> __m256i {
    let bits = _mm256_set1_epi32(i32::from_le_bytes(*bits));
    let byte_of_lane = _mm256_set_epi64x(
        0x0303_0303_0303_0303,
        0x0202_0202_0202_0202,
        0x0101_0101_0101_0101,
        0,
    );
    let bytes = _mm256_shuffle_epi8(bits, byte_of_lane);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// The table entries that the nibbles name.
#[target_feature(enable = "avx2")]
#[inline]
fn lookup(nibbles: __m256i, table: &[i8; 16]) -> __m256i {
    let table = load_half(&table.map(|v| v as u8));
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn q4_0(b: &[u8; 18]) -> Unpacked {
    let quants = _mm256_sub_epi8(nibbles(part(b, 2)), _mm256_set1_epi8(8));
    Unpacked {
        quants,
        scale: f16_at(b, 0),
        min: 0.0,
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn q4_1(b: &[u8; 20]) -> Unpacked {
    Unpacked {
        quants: nibbles(part(b, 4)),
        scale: f16_at(b, 0),
        min: f16_at(b, 2),
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn q5_0(b: &[u8; 22]) -> Unpacked {
    // A clear high bit means minus 16, which is all ones above the nibble.
    let minus_16 = _mm256_andnot_si256(spread_bits(part(b, 2)), _mm256_set1_epi8(-16));
    let quants = _mm256_or_si256(nibbles(part(b, 6)), minus_16);
    Unpacked {
        quants,
        scale: f16_at(b, 0),
        min: 0.0,
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn q5_1(b: &[u8; 24]) -> Unpacked {
    let high = _mm256_and_si256(spread_bits(part(b, 4)), _mm256_set1_epi8(16));
    let quants = _mm256_or_si256(nibbles(part(b, 8)), high);
    Unpacked {
        quants,
        scale: f16_at(b, 0),
        min: f16_at(b, 2),
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn q8_0(b: &[u8; 34]) -> Unpacked {
    Unpacked {
        quants: load_u8(part(b, 2)),
        scale: f16_at(b, 0),
        min: 0.0,
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn iq4_nl(b: &[u8; 18]) -> Unpacked {
    let quants = lookup(nibbles(part(b, 2)), &IQ4_VALUES);
    Unpacked {
        quants,
        scale: f16_at(b, 0),
        min: 0.0,
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn mxfp4(b: &[u8; 17]) -> Unpacked {
    let quants = lookup(nibbles(part(b, 1)), &MXFP4_DOUBLED);
    Unpacked {
        quants,
        scale: e8m0_half(b[0]),
        min: 0.0,
    }
}

/// Low and high nibbles of 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn nibble_pair(qs: &[u8; 32]) -> [__m256i; 2] {
    let (qs, low) = (load_u8(qs), _mm256_set1_epi8(15));
    [
        _mm256_and_si256(qs, low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(qs), low),
    ]
}

/// Values of sub-blocks `2 pair` and `2 pair + 1` of a Q4_K block, 0 to 15.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q4_k(block: &[u8; 144], pair: usize) -> [__m256i; 2] {
    nibble_pair(part(block, 16 + pair * 32))
}

/// Values of sub-blocks `2 pair` and `2 pair + 1` of a Q5_K block, 0 to 31.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q5_k(block: &[u8; 176], pair: usize) -> [__m256i; 2] {
    let [low, high] = nibble_pair(part(block, 48 + pair * 32));
    let shift = _mm_cvtsi32_si128(2 * pair as i32);
    let bits = _mm256_srl_epi16(load_u8(part(block, 16)), shift);
    let fifth = _mm256_set1_epi8(16);
    let even = _mm256_and_si256(_mm256_slli_epi16::<4>(bits), fifth);
    let odd = _mm256_and_si256(_mm256_slli_epi16::<3>(bits), fifth);
    [_mm256_or_si256(low, even), _mm256_or_si256(high, odd)]
}

/// The four groups of 32 values, 0 to 63, of one half of a Q6_K block.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn q6_k(block: &[u8; 210], half: usize) -> [__m256i; 4] {
    let [q0, q2] = nibble_pair(part(block, half * 64));
    let [q1, q3] = nibble_pair(part(block, half * 64 + 32));
    let bits = load_u8(part(block, 128 + half * 32));
    let upper = _mm256_set1_epi8(0x30);
    let join = |q, bits| _mm256_or_si256(q, _mm256_and_si256(bits, upper));
    [
        join(q0, _mm256_slli_epi16::<4>(bits)),
        join(q1, _mm256_slli_epi16::<2>(bits)),
        join(q2, bits),
        join(q3, _mm256_srli_epi16::<2>(bits)),
    ]
}
