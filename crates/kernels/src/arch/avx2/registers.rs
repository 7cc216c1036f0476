//! Loads from arrays of the register's size, and the final fold.
//!
//! An array reference proves that the bytes are there, so the functions are safe where the features
//! are.

#![expect(unsafe_code, reason = "load instructions take raw pointers")]

use std::arch::x86_64::*;
use std::ops::Range;

/// 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn load_u8(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array has 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Stores 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_u8(bytes: &mut [u8; 32], from: __m256i) {
    // SAFETY: the array has 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), from) }
}

/// 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 8 floats.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn load_f32(values: &[f32; 8]) -> __m256 {
    // SAFETY: the array has 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Stores 8 floats.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::arch) fn store_f32(values: &mut [f32; 8], from: __m256) {
    // SAFETY: the array has 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), from) }
}

/// The `LEN` bytes of `block` from `at`; both are constants at every call, so the check folds.
#[inline(always)]
pub(in crate::arch) fn part<const LEN: usize>(block: &[u8], at: usize) -> &[u8; LEN] {
    block[at..]
        .first_chunk()
        .expect("the part lies inside the block")
}

/// The eight values from `at`.
#[inline(always)]
pub(super) fn part_f32(values: &[f32], at: usize) -> &[f32; 8] {
    values[at..]
        .first_chunk()
        .expect("the part lies inside the row")
}

/// The f16 at byte `at` of a block.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(in crate::arch) fn f16_at(block: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes(*part(block, at));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Asks for the weights `AHEAD` bytes after `block`, as many as the block has: what follows it in memory comes next, and the
/// hardware's own prefetching stops at the end of a page and loses its way in blocks of several streams. They come as far as the
/// second-level cache, which may have more lines under way than the first.
#[target_feature(enable = "avx2")]
#[inline]
#[allow(
    unused_unsafe,
    reason = "the intrinsic is safe in newer standard libraries only"
)]
pub(in crate::arch) fn prefetch<const AHEAD: usize>(block: &[impl Sized]) {
    const LINE: usize = 64;
    for at in (0..size_of_val(block)).step_by(LINE) {
        let at = block.as_ptr().cast::<i8>().wrapping_add(AHEAD + at);
        // SAFETY: a prefetch reads nothing, so the address may lie outside the matrix.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at) }
    }
}

/// The same range, of which the compiler knows nothing, so that it does not unroll a loop over it: then every load in the loop is
/// one instruction that goes on in even steps, which is what the hardware's prefetching follows.
#[inline(always)]
pub(in crate::arch) fn rolled(range: Range<usize>) -> Range<usize> {
    std::hint::black_box(range)
}

/// Far enough for the latency of memory at the speed of one core.
pub(in crate::arch) const NEAR: usize = 1536;

/// Lanes `l` and `l + 4` added.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halve(lanes: __m256) -> __m128 {
    _mm_add_ps(
        _mm256_castps256_ps128(lanes),
        _mm256_extractf128_ps::<1>(lanes),
    )
}

/// Four lanes folded: 2 into 0 and 3 into 1, then 1 into 0.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fold4(four: __m128) -> f32 {
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// As the scalar fold of eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fold8(lanes: __m256) -> f32 {
    fold4(halve(lanes))
}
