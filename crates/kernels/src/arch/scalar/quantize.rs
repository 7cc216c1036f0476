//! Activations to 8 bits: `x = scale * q`, scale = max |x| / 127, q rounded to nearest even.
//!
//! A block with a NaN or an infinity gets a NaN scale, so its dots are NaN and not a plausible
//! number.  A block whose maximum is too small for a reciprocal becomes zero.

use super::float::ROUND;

/// Quantizes one block; returns its scale.
#[inline(always)]
pub(crate) fn block<const LEN: usize>(x: &[f32; LEN], q: &mut [i8; LEN]) -> f32 {
    // As integers, magnitudes order as their values do, and every NaN is above infinity.
    let mut max = 0;
    for x in x {
        max = max.max(x.to_bits() & 0x7fff_ffff);
    }
    let amax = f32::from_bits(max);
    let inverse = 127.0 / amax;
    if !inverse.is_finite() || !amax.is_finite() {
        q.fill(0);
        return if amax.is_finite() { 0.0 } else { f32::NAN };
    }
    for (q, x) in q.iter_mut().zip(x) {
        let scaled = x * inverse;
        let scaled = if scaled > 127.0 { 127.0 } else { scaled };
        let scaled = if scaled < -127.0 { -127.0 } else { scaled };
        *q = (scaled + ROUND).to_bits() as u8 as i8;
    }
    amax / 127.0
}

/// Blocks of 32 with `scale * sum(q)` each.
#[inline(always)]
pub(crate) fn per_32(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    let (x, _) = x.as_chunks::<32>();
    let (q, _) = q.as_chunks_mut::<32>();
    for (((x, q), scale), sum) in x.iter().zip(q).zip(scales).zip(sums) {
        *scale = block(x, q);
        *sum = *scale * q.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
    }
}

/// Blocks of 256 with integer sums per 16 and per 32.
#[inline(always)]
pub(crate) fn per_256(
    x: &[f32],
    q: &mut [i8],
    scales: &mut [f32],
    sums16: &mut [i16],
    sums32: &mut [i16],
) {
    let (x, _) = x.as_chunks::<256>();
    let (q, _) = q.as_chunks_mut::<256>();
    let (sums16, _) = sums16.as_chunks_mut::<16>();
    let (sums32, _) = sums32.as_chunks_mut::<8>();
    for ((((x, q), scale), s16), s32) in x.iter().zip(q).zip(scales).zip(sums16).zip(sums32) {
        *scale = block(x, q);
        for (sum, q) in s16.iter_mut().zip(q.as_chunks::<16>().0) {
            *sum = q.iter().map(|&q| i16::from(q)).sum();
        }
        for (i, sum) in s32.iter_mut().enumerate() {
            *sum = s16[2 * i] + s16[2 * i + 1];
        }
    }
}
