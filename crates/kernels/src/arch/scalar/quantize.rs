//! Activations to 8 bits: `x = scale * q`, scale = max |x| / 127, q rounded to nearest even; about a middle,
//! `x = scale * q + middle` with the middle between the smallest and the largest value, and scale = half their distance / 127.
//!
//! A block with a NaN or an infinity gets a NaN scale, so its dots are NaN and not a plausible
//! number.  A block whose maximum is too small for a reciprocal becomes zero.

use super::float::ROUND;
use crate::activations::{AsymmetricMut, QuantizedMut};

/// Quantizes one block; returns its scale.
#[inline(always)]
fn block<const LEN: usize>(x: &[f32; LEN], q: &mut [i8; LEN]) -> f32 {
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
        *q = nearest(x * inverse);
    }
    amax / 127.0
}

/// The nearest integer within -127 to 127.
#[inline(always)]
fn nearest(scaled: f32) -> i8 {
    let scaled = if scaled > 127.0 { 127.0 } else { scaled };
    let scaled = if scaled < -127.0 { -127.0 } else { scaled };
    (scaled + ROUND).to_bits() as u8 as i8
}

/// Quantizes one block about its middle; returns scale and middle.
#[inline(always)]
fn about_middle<const LEN: usize>(x: &[f32; LEN], q: &mut [i8; LEN]) -> (f32, f32) {
    let (mut min, mut max, mut finite) = (f32::INFINITY, f32::NEG_INFINITY, true);
    for &x in x {
        min = if x < min { x } else { min };
        max = if x > max { x } else { max };
        finite &= x.is_finite();
    }
    if !finite {
        q.fill(0);
        return (f32::NAN, f32::NAN);
    }
    // Halves first, for the sum and the difference of two large values are infinite.
    let middle = 0.5 * max + 0.5 * min;
    let reach = 0.5 * max - 0.5 * min;
    let inverse = 127.0 / reach;
    if !inverse.is_finite() {
        q.fill(0);
        return (0.0, middle);
    }
    for (q, x) in q.iter_mut().zip(x) {
        *q = nearest((x - middle) * inverse);
    }
    (reach / 127.0, middle)
}

/// Blocks of 16 about their middles.
#[inline(always)]
pub(crate) fn asymmetric(x: &[f32], out: &mut AsymmetricMut<'_>) {
    let (x, _) = x.as_chunks::<16>();
    let (q, _) = out.quants.as_chunks_mut::<16>();
    let to = out.scales.iter_mut().zip(out.middles.iter_mut());
    for ((x, q), (scale, middle)) in x.iter().zip(q).zip(to) {
        (*scale, *middle) = about_middle(x, q);
    }
}

/// Blocks of 32 with their sums, and the sums of their halves.
#[inline(always)]
pub(crate) fn blocks(x: &[f32], out: &mut QuantizedMut<'_>) {
    let (x, _) = x.as_chunks::<32>();
    let (q, _) = out.quants.as_chunks_mut::<32>();
    let (halves, _) = out.halves.as_chunks_mut::<2>();
    let rest = (out.scales.iter_mut())
        .zip(out.sums.iter_mut())
        .zip(out.scaled_sums.iter_mut());
    for (((x, q), halves), ((scale, sum), scaled)) in x.iter().zip(q).zip(halves).zip(rest) {
        *scale = block(x, q);
        for (half, q) in halves.iter_mut().zip(q.as_chunks::<16>().0) {
            *half = q.iter().map(|&q| i16::from(q)).sum();
        }
        *sum = i32::from(halves[0]) + i32::from(halves[1]);
        *scaled = *scale * *sum as f32;
    }
}
