//! Stored values of two tiles as bytes in registers, four inputs of sixteen rows each.

use std::arch::x86_64::*;

use super::registers::{both_eights, both_floats, both_halves, both_u8};
use crate::arch::avx2::registers::{load_half, part};
use crate::arch::avx2::tile_weights::{e8m0_halves, q6_k_at};

/// `LEN` bytes from `at` on of a group of each tile.
#[inline(always)]
fn parts<const LEN: usize, const GROUP: usize>(
    [a, b]: [&[u8; GROUP]; 2],
    at: usize,
) -> [&[u8; LEN]; 2] {
    [part(a, at), part(b, at)]
}

/// Vector `at / 32` of the groups.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn vector<const GROUP: usize>(groups: [&[u8; GROUP]; 2], at: usize) -> __m512i {
    both_u8(parts(groups, at))
}

/// The f16 numbers of sixteen rows.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn halves<const GROUP: usize>(groups: [&[u8; GROUP]; 2], at: usize) -> __m512 {
    _mm512_cvtph_ps(both_halves(parts(groups, at)))
}

/// Half of the power of two that each scale byte of MXFP4 names.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn powers<const GROUP: usize>(groups: [&[u8; GROUP]; 2], at: usize) -> __m512 {
    let [a, b] = parts(groups, at);
    both_floats(e8m0_halves(a), e8m0_halves(b))
}

/// The bytes of sixteen rows as numbers.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn widen_u8(bytes: [&[u8; 8]; 2]) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both_eights(bytes)))
}

/// The signed bytes of sixteen rows.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn widen_i8<const GROUP: usize>(groups: [&[u8; GROUP]; 2], at: usize) -> __m512i {
    _mm512_cvtepi8_epi32(both_eights(parts(groups, at)))
}

/// The low (`HIGH` false) or high nibbles of a vector.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn nibbles<const HIGH: bool>(v: __m512i) -> __m512i {
    let v = if HIGH { _mm512_srli_epi16::<4>(v) } else { v };
    _mm512_and_si512(v, _mm512_set1_epi8(15))
}

/// Nibbles of vector `c` of a block of 32, whose four vectors begin at `at`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn nibbles_32<const GROUP: usize>(
    groups: [&[u8; GROUP]; 2],
    at: usize,
    c: usize,
) -> __m512i {
    match c < 4 {
        true => nibbles::<false>(vector(groups, at + 32 * c)),
        false => nibbles::<true>(vector(groups, at + 32 * (c - 4))),
    }
}

/// Adds the lowest bit of every byte of `high` to the nibbles as their fifth.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn with_fifth<const LEFT: u32>(nibbles: __m512i, high: __m512i) -> __m512i {
    // What the shift brings in from a neighboring byte does not reach bit 4.
    or_masked(nibbles, _mm512_slli_epi16::<LEFT>(high), 16)
}

/// Every 16 bits moved to the right.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn right(v: __m512i, by: usize) -> __m512i {
    _mm512_srl_epi16(v, _mm_cvtsi32_si128(by as i32))
}

/// `a | b & mask`, the mask in every byte.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn or_masked(a: __m512i, b: __m512i, mask: i8) -> __m512i {
    const A_OR_B_AND_C: i32 = 0xf8;
    _mm512_ternarylogic_epi32::<A_OR_B_AND_C>(a, b, _mm512_set1_epi8(mask))
}

/// Vector `c` of a block of 32 with five bits, whose high bits begin at `at`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn five_bits<const GROUP: usize>(
    groups: [&[u8; GROUP]; 2],
    at: usize,
    c: usize,
) -> __m512i {
    let (nibbles, high) = (nibbles_32(groups, at + 32, c), vector(groups, at));
    match c {
        0..4 => with_fifth::<4>(nibbles, right(high, c)),
        _ => or_masked(nibbles, right(high, c - 4), 16),
    }
}

/// Table entries that nibbles name.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn lookup(table: &[u8; 16], nibbles: __m512i) -> __m512i {
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_half(table)), nibbles)
}

/// Vectors `c` of sub-blocks `2 pair` and `2 pair + 1` of Q4_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn q4_k_two(groups: [&[u8; 1152]; 2], pair: usize, c: usize) -> [__m512i; 2] {
    let v = vector(groups, 128 + 256 * pair + 32 * c);
    [nibbles::<false>(v), nibbles::<true>(v)]
}

/// As [`q4_k_two`] of Q5_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn q5_k_two(groups: [&[u8; 1408]; 2], pair: usize, c: usize) -> [__m512i; 2] {
    let v = vector(groups, 384 + 256 * pair + 32 * c);
    let high = right(vector(groups, 128 + 32 * c), 2 * pair);
    [
        with_fifth::<4>(nibbles::<false>(v), high),
        with_fifth::<3>(nibbles::<true>(v), high),
    ]
}

/// As [`q4_k_two`] of Q6_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn q6_k_two(groups: [&[u8; 1680]; 2], pair: usize, c: usize) -> [__m512i; 2] {
    let (at, by) = (q6_k_at(pair / 2, c), 4 * (pair % 2));
    let low = [0, 32].map(|low| nibbles::<false>(right(vector(groups, at + low), by)));
    let high = right(vector(groups, at + 64), by);
    [
        or_masked(low[0], _mm512_slli_epi16::<4>(high), 0x30),
        or_masked(low[1], _mm512_slli_epi16::<2>(high), 0x30),
    ]
}

/// Vectors `c` of the four sub-blocks of a half of Q6_K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn q6_k_four(groups: [&[u8; 1680]; 2], half: usize, c: usize) -> [__m512i; 4] {
    let at = q6_k_at(half, c);
    let low = [vector(groups, at), vector(groups, at + 32)];
    let high = vector(groups, at + 64);
    [
        or_masked(nibbles::<false>(low[0]), _mm512_slli_epi16::<4>(high), 0x30),
        or_masked(nibbles::<false>(low[1]), _mm512_slli_epi16::<2>(high), 0x30),
        or_masked(nibbles::<true>(low[0]), high, 0x30),
        or_masked(nibbles::<true>(low[1]), _mm512_srli_epi16::<2>(high), 0x30),
    ]
}
