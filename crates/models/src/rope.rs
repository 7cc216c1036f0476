//! RoPE frequencies and tables from a [`RopeSpec`].
//!
//! Pure numbers: the engine asks once per distinct rope and length, families only fill the spec.

use std::f64::consts::PI;

use crate::spec::{RopeScaling, RopeSpec};

impl RopeSpec {
    /// Angle per position of each pair, in radians; `frequencies[i]` for `i < dims / 2`.
    ///
    /// `seq_len` chooses between the lists of a long-rope model and is unused otherwise.
    pub fn frequencies(&self, seq_len: usize) -> Vec<f64> {
        let pairs = self.dims as usize / 2;
        let base = |i: usize| self.theta.powf(-((2 * i) as f64) / f64::from(self.dims));
        match &self.scaling {
            RopeScaling::Unscaled => (0..pairs).map(base).collect(),
            RopeScaling::Linear { factor } => (0..pairs).map(|i| base(i) / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => (0..pairs)
                .map(|i| {
                    llama3(
                        base(i),
                        *factor,
                        *low_freq_factor,
                        *high_freq_factor,
                        f64::from(*original_context),
                    )
                })
                .collect(),
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                truncate,
                attention_factor: _,
            } => {
                let (low, high) = yarn_ramp(
                    self,
                    *beta_fast,
                    *beta_slow,
                    f64::from(*original_context),
                    *truncate,
                );
                (0..pairs)
                    .map(|i| {
                        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        base(i) / factor * ramp + base(i) * (1.0 - ramp)
                    })
                    .collect()
            }
            RopeScaling::Divisors { divisors } => (0..pairs)
                .map(|i| base(i) / divisors.get(i).map_or(1.0, |d| f64::from(*d)))
                .collect(),
            RopeScaling::LongRope {
                short,
                long,
                original_context,
                attention_factor: _,
            } => {
                let list = if seq_len <= *original_context as usize {
                    short
                } else {
                    long
                };
                (0..pairs)
                    .map(|i| base(i) / list.get(i).copied().unwrap_or(1.0))
                    .collect()
            }
            RopeScaling::Proportional { live_pairs } => (0..pairs)
                .map(|i| {
                    if i < *live_pairs as usize {
                        base(i)
                    } else {
                        0.0
                    }
                })
                .collect(),
        }
    }

    /// Longest sequence that the first of two lists of frequencies is for, where there are two.
    pub fn original_context(&self) -> Option<u32> {
        match &self.scaling {
            RopeScaling::LongRope {
                original_context, ..
            } => Some(*original_context),
            RopeScaling::Unscaled
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Yarn { .. }
            | RopeScaling::Divisors { .. }
            | RopeScaling::Proportional { .. } => None,
        }
    }

    /// Factor on cos and sin.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            }
            | RopeScaling::LongRope {
                attention_factor, ..
            } => *attention_factor,
            RopeScaling::Unscaled
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Divisors { .. }
            | RopeScaling::Proportional { .. } => 1.0,
        }
    }
}

/// Llama 3's rule: keep short wavelengths, scale long ones, blend between.
fn llama3(
    freq: f64,
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original: f64,
) -> f64 {
    let wavelength = 2.0 * PI / freq;
    if wavelength < original / high_freq_factor {
        freq
    } else if wavelength > original / low_freq_factor {
        freq / factor
    } else {
        let smooth =
            (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

/// First and last pair of the YaRN ramp (arXiv:2309.00071, section 3.2).
fn yarn_ramp(
    rope: &RopeSpec,
    beta_fast: f64,
    beta_slow: f64,
    original: f64,
    truncate: bool,
) -> (f64, f64) {
    let dims = f64::from(rope.dims);
    let correction =
        |rotations: f64| dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * rope.theta.ln());
    let (mut low, mut high) = (correction(beta_fast), correction(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dims - 1.0));
    // A ramp of zero width would divide by zero; a thousandth of a pair is a step.
    if low == high {
        (low, high + 0.001)
    } else {
        (low, high)
    }
}

/// YaRN's default factor on cos and sin for a stretch of `factor` (arXiv:2309.00071, eq. 22).
pub fn yarn_attention_factor(factor: f64) -> f64 {
    yarn_mscale(factor, 1.0)
}

/// `0.1 m ln s + 1` for `s > 1`.
pub fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}
