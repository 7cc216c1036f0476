//! Activations to 8 bits: `x = scale * q`, scale = max |x| / 127, q rounded to nearest even.
//!
//! A block with a NaN or an infinity gets a NaN scale, so its dots are NaN and not a plausible
//! number.  A block whose maximum is too small for a reciprocal becomes zero.

use super::float::ROUND;
use crate::activations::QuantizedMut;

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
        let scaled = x * inverse;
        let scaled = if scaled > 127.0 { 127.0 } else { scaled };
        let scaled = if scaled < -127.0 { -127.0 } else { scaled };
        *q = (scaled + ROUND).to_bits() as u8 as i8;
    }
    amax / 127.0
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
