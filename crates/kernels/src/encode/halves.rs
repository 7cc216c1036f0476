//! `f32` to half-precision bit patterns, rounding to nearest, ties to even.
//!
//! Values beyond the largest half become infinity; the encoders turn that into an error.

/// The IEEE half nearest to `value`; infinity beyond 65520, a quiet NaN for a NaN.
pub fn f32_to_f16(value: f32) -> u16 {
    /// Bits of 2^-14, the smallest normal half.
    const NORMAL_MIN: u32 = 113 << 23;
    /// Bits of 65520, halfway between the largest half and the next power of two.
    const OVERFLOW: u32 = 0x477f_f000;
    /// Adding this to a magnitude below 2^-14 leaves its multiple of 2^-24 in the low bits: the
    /// spacing of floats at one half is 2^-24.
    const SUBNORMAL_SHIFT: f32 = 0.5;
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= OVERFLOW {
        0x7c00
    } else if magnitude < NORMAL_MIN {
        let shifted = f32::from_bits(magnitude) + SUBNORMAL_SHIFT;
        shifted.to_bits() - SUBNORMAL_SHIFT.to_bits()
    } else {
        let odd = magnitude >> 13 & 1;
        (magnitude - (112 << 23) + 0xfff + odd) >> 13
    };
    sign | half as u16
}

/// The bfloat16 nearest to `value`; infinity beyond the largest, a quiet NaN for a NaN.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let odd = bits >> 16 & 1;
    ((bits + 0x7fff + odd) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::{bf16_to_f32, f16_to_f32};

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{value}");
            }
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn halfway_goes_to_even_and_around_it_to_the_nearest() {
        for low in 0..0x7bff_u16 {
            let (a, b) = (f16_to_f32(low), f16_to_f32(low + 1));
            let middle = (a + b) / 2.0;
            let even = low + (low & 1);
            assert_eq!(f32_to_f16(middle), even, "{middle}");
            assert_eq!(f32_to_f16(-middle), even | 0x8000, "{middle}");
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), low);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), low + 1);
        }
        for low in (0..0x7f7f_u16).step_by(7) {
            let middle = f32::from_bits(u32::from(low) << 16 | 0x8000);
            assert_eq!(f32_to_bf16(middle), low + (low & 1), "{middle}");
            let above = f32::from_bits(middle.to_bits() + 1);
            assert_eq!(f32_to_bf16(above), low + 1, "{above}");
        }
    }

    #[test]
    fn overflow_is_infinity() {
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(-1e30), 0xfc00);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
        assert_eq!(f32_to_f16(1e-39), 0);
        assert_eq!(f32_to_f16(-1e-39), 0x8000);
    }
}
