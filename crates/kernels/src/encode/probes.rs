//! The inner loops of the searches: sums over one sub-block for one candidate.
//!
//! Eight running sums in a fixed order, so that the compiler may use vector registers of any width
//! and the bits stay the same.  `LEN` is a multiple of eight.

const LANES: usize = 8;

/// Adding and subtracting 1.5 * 2^23 rounds a magnitude below 2^22 to the nearest integer, ties to
/// even.
const ROUNDER: f32 = 12_582_912.0;

/// The integer in `low..=high` nearest to `value`.
#[inline(always)]
pub(super) fn round_within(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    value + ROUNDER - ROUNDER
}

#[inline(always)]
fn lanes<const LEN: usize, const N: usize>(
    x: &[f32; LEN],
    term: impl Fn(f32) -> [f32; N],
) -> [f32; N] {
    const { assert!(LEN.is_multiple_of(LANES)) };
    let mut sums = [[0f32; LANES]; N];
    for chunk in x.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let terms = term(chunk[lane]);
            for (sum, term) in sums.iter_mut().zip(terms) {
                sum[lane] += term;
            }
        }
    }
    sums.map(|s| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))
}

/// Sums over the integers `q = round(x * inverse)` within `low..=high`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignedSums {
    /// Sum of `x * q`.
    pub(super) xq: f32,
    /// Sum of `q * q`.
    pub(super) qq: f32,
}

#[inline(always)]
pub(super) fn signed_sums<const LEN: usize>(
    x: &[f32; LEN],
    inverse: f32,
    low: f32,
    high: f32,
) -> SignedSums {
    let [xq, qq] = lanes(x, |x| {
        let q = round_within(x * inverse, low, high);
        [x * q, q * q]
    });
    SignedSums { xq, qq }
}

/// Squared error of `x ~ scale * q` with the best integers.
#[inline(always)]
pub(super) fn signed_error<const LEN: usize>(
    x: &[f32; LEN],
    scale: f32,
    low: f32,
    high: f32,
) -> f32 {
    let inverse = inverse_of(scale);
    let [error] = lanes(x, |x| {
        let e = x - scale * round_within(x * inverse, low, high);
        [e * e]
    });
    error
}

/// Sums over the integers `q = round((x - low) * inverse)` within `0..=q_max`.
#[derive(Debug, Clone, Copy)]
pub(super) struct AffineSums {
    /// Sum of `q`.
    pub(super) q: f32,
    /// Sum of `q * q`.
    pub(super) qq: f32,
    /// Sum of `x * q`.
    pub(super) xq: f32,
}

#[inline(always)]
pub(super) fn affine_sums<const LEN: usize>(
    x: &[f32; LEN],
    low: f32,
    inverse: f32,
    q_max: f32,
) -> AffineSums {
    let [q, qq, xq] = lanes(x, |x| {
        let q = round_within((x - low) * inverse, 0.0, q_max);
        [q, q * q, x * q]
    });
    AffineSums { q, qq, xq }
}

/// Squared error of `x ~ scale * q + low` with the best integers.
#[inline(always)]
pub(super) fn affine_error<const LEN: usize>(
    x: &[f32; LEN],
    low: f32,
    scale: f32,
    q_max: f32,
) -> f32 {
    let inverse = inverse_of(scale);
    let [error] = lanes(x, |x| {
        // As it will be decoded: with coarse halves `x - low` may have lost `x`.
        let e = x - (scale * round_within((x - low) * inverse, 0.0, q_max) + low);
        [e * e]
    });
    error
}

/// One over `scale`; zero where that is zero or too large, so that every integer is zero.
#[inline(always)]
pub(super) fn inverse_of(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_even_and_clamped() {
        let cases = [
            (2.5, 2.0),
            (3.5, 4.0),
            (-2.5, -2.0),
            (-0.4, 0.0),
            (99.0, 7.0),
            (-99.0, -8.0),
        ];
        for (value, expected) in cases {
            assert_eq!(round_within(value, -8.0, 7.0), expected, "{value}");
        }
    }

    #[test]
    fn sums_follow_their_definitions() {
        let x: [f32; 16] = std::array::from_fn(|i| (i as f32 * 0.77).sin() * 3.0);
        let mut expected = [0f64; 6];
        for x in x.map(f64::from) {
            let signed = (x * 1.3).round().clamp(-3.0, 2.0);
            let affine = ((x + 2.0) * 1.7).round().clamp(0.0, 7.0);
            let terms = [
                x * signed,
                signed * signed,
                affine,
                affine * affine,
                x * affine,
                (x + 2.0 - affine / 1.7).powi(2),
            ];
            for (sum, term) in expected.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        let signed = signed_sums(&x, 1.3, -3.0, 2.0);
        let affine = affine_sums(&x, -2.0, 1.7, 7.0);
        let error = affine_error(&x, -2.0, 1.0 / 1.7, 7.0);
        let got = [signed.xq, signed.qq, affine.q, affine.qq, affine.xq, error];
        for (got, expected) in got.into_iter().zip(expected) {
            assert!((f64::from(got) - expected).abs() < 1e-4, "{got} {expected}");
        }
        assert_eq!(signed_error(&[2.0; 8], 0.0, -8.0, 7.0), 32.0);
        assert_eq!(signed_error(&[2.0; 8], 0.25, -8.0, 7.0), 8.0 * 0.0625);
    }
}
