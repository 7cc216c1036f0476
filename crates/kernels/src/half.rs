//! Half-precision bit patterns to `f32`; exact, as every f16 and bf16 is an f32.
//!
//! The reverse direction is in the encoders.

/// The value of an IEEE half.  A signaling NaN becomes quiet, as the hardware conversion makes it.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    /// Spacing of the subnormal halves, 2^-24.
    const SUBNORMAL_STEP: f32 = 5.960_464_5e-8;
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let rebased = if magnitude > 0x7c00 {
        0x7fc0_0000 | (magnitude << 13)
    } else if magnitude == 0x7c00 {
        0x7f80_0000
    } else if magnitude < 0x0400 {
        (magnitude as f32 * SUBNORMAL_STEP).to_bits()
    } else {
        (magnitude << 13) + (112 << 23)
    };
    f32::from_bits(sign | rebased)
}

/// The value of a bfloat16.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_follow_the_definition() {
        for bits in 0..=u16::MAX {
            let exponent = i32::from(bits >> 10 & 31);
            let fraction = f64::from(bits & 0x3ff) / 1024.0;
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-14),
                31 if bits & 0x3ff == 0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1.0 + fraction) * 2f64.powi(e - 15),
            };
            let expected = if bits >> 15 == 1 {
                -magnitude
            } else {
                magnitude
            } as f32;
            let got = f16_to_f32(bits);
            if expected.is_nan() {
                assert!(got.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(got.to_bits(), expected.to_bits(), "{bits:#06x}");
            }
        }
    }

    #[test]
    fn bf16_is_the_upper_half() {
        assert_eq!(bf16_to_f32(0x3fc0), 1.5);
        assert_eq!(bf16_to_f32(0xc2f7), -123.5);
    }
}
