//! A block rescaled by a power of two to magnitudes near one, and the halves that its scales become.
//!
//! The searches square and sum weights; in the unit neither 1e-39 nor 1e38 leaves the range of
//! `f32`.  The rescaling is exact, so nothing is lost by it.

use super::ScaleOverflow;
use super::halves::f32_to_f16;
use crate::half::f16_to_f32;

/// Smallest and largest finite half, as bits without the sign.
const HALF_MAX: u16 = 0x7bff;

/// A half that a block stores, and its value in the unit of the block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stored {
    pub(super) bits: u16,
    pub(super) value: f32,
}

impl Stored {
    pub(super) const ZERO: Self = Self {
        bits: 0,
        value: 0.0,
    };
}

/// The power of two between the weights of a block and what the searches see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    from_weights: f64,
    to_weights: f64,
}

impl Unit {
    /// The unit in which the largest magnitude is in 1 to 2; `None` for a block of zeros.
    pub(super) fn of(weights: &[f32]) -> Option<Self> {
        let magnitude = weights.iter().fold(0f32, |m, v| m.max(v.abs()));
        if magnitude == 0.0 {
            return None;
        }
        // Every f32 is a normal f64, so the exponent field is the exponent.
        let exponent = (f64::from(magnitude).to_bits() >> 52) as i32 - 1023;
        Some(Self {
            from_weights: power_of_two(-exponent),
            to_weights: power_of_two(exponent),
        })
    }

    /// The weights in the unit.
    pub(super) fn weights<const LEN: usize>(&self, weights: &[f32; LEN]) -> [f32; LEN] {
        weights.map(|w| (f64::from(w) * self.from_weights) as f32)
    }

    /// The half nearest to `value` (in the unit).
    pub(super) fn store(&self, value: f32) -> Result<Stored, ScaleOverflow> {
        let bits = f32_to_f16((f64::from(value) * self.to_weights) as f32);
        if bits & 0x7fff > HALF_MAX {
            return Err(ScaleOverflow);
        }
        Ok(self.stored(bits))
    }

    /// The half `offset` steps from `from` in magnitude; `None` past zero or the largest.
    pub(super) fn neighbor(&self, from: Stored, offset: i32) -> Option<Stored> {
        let magnitude = i32::from(from.bits & 0x7fff) + offset;
        if !(0..=i32::from(HALF_MAX)).contains(&magnitude) {
            return None;
        }
        Some(self.stored(from.bits & 0x8000 | magnitude as u16))
    }

    /// `center`, and the halves next to it when it is a subnormal: those are so far apart that the
    /// nearest is not the best, and zero may be the nearest.
    pub(super) fn subnormals_around(&self, center: Stored) -> impl Iterator<Item = Stored> {
        let reach = i32::from(center.bits & 0x7c00 == 0);
        let unit = *self;
        (-reach..=reach).filter_map(move |offset| unit.neighbor(center, offset))
    }

    fn stored(&self, bits: u16) -> Stored {
        if bits & 0x7fff == 0 {
            return Stored::ZERO;
        }
        let value = (f64::from(f16_to_f32(bits)) * self.from_weights) as f32;
        Stored { bits, value }
    }
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_exact_at_both_ends_of_f32() {
        for magnitude in [1e-45f32, 1e-39, 3.0, 1.0, f32::MAX] {
            let weights = [0.0, -magnitude, magnitude / 2.0];
            let unit = Unit::of(&weights).expect("not all zero");
            let rescaled = unit.weights(&weights);
            assert!((1.0..2.0).contains(&-rescaled[1]), "{magnitude}");
            let back = rescaled.map(|v| (f64::from(v) * unit.to_weights) as f32);
            assert_eq!(back, weights);
        }
        assert!(Unit::of(&[0.0, -0.0]).is_none());
    }

    #[test]
    fn stored_halves_and_neighbors() {
        let unit = Unit::of(&[3.0]).expect("not zero");
        let stored = unit.store(0.5).expect("a half");
        assert_eq!((stored.bits, stored.value), (0x3c00, 0.5));
        let below = unit.neighbor(stored, -1).expect("a half");
        assert_eq!((below.bits, below.value), (0x3bff, 0.5 - 0.5 / 2048.0));
        assert_eq!(unit.neighbor(Stored::ZERO, -1), None);
        let huge = Unit::of(&[1e9]).expect("not zero");
        assert_eq!(huge.store(1.0), Err(ScaleOverflow));
    }
}
