//! `rope_parameters` of a rope.

use super::keys::{Keys, Unsayable, decimal, is_near, simplest};
use crate::families::difference::{DIVISOR_ERROR, divisors_agree};
use crate::rope::yarn_attention_factor;
use crate::spec::{RopeScaling, RopeSpec};

/// Whether a class lets part of a head turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All of it turns.
    Whole,
    /// The part is stated.
    Stated,
}

/// Llama 3's rule as all published models state it.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
/// Factors and the context of the published models, which are tried before those that the divisors tell.
const PUBLISHED_FACTORS: [f64; 2] = [8.0, 32.0];
const PUBLISHED_CONTEXT: u32 = 8192;

/// Pairs between fast and slow that are asked for the original context; one would do.
const WITNESSES_MAX: usize = 4;

/// Parts of a head with larger denominators are written as they are; no head is this wide.
const DENOMINATOR_MAX: u32 = 1024;

/// The parameters of a rope of heads of this width.
pub(super) fn parameters(
    rope: &RopeSpec,
    d_head: u32,
    n_ctx: u32,
    share: Share,
) -> Result<Keys, Unsayable> {
    let mut keys = Keys::default();
    keys.number("rope_theta", rope.theta);
    match share {
        Share::Stated => keys.put("partial_rotary_factor", turned(rope.dims, d_head)),
        Share::Whole if rope.dims == d_head => {}
        Share::Whole => {
            let dims = rope.dims;
            return Err(Unsayable(format!(
                "a rope of {dims} of {d_head} dimensions"
            )));
        }
    }
    let recovered = match &rope.scaling {
        RopeScaling::Divisors { divisors } => Some(llama3_of(rope, divisors)?),
        RopeScaling::Unscaled
        | RopeScaling::Linear { .. }
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Yarn { .. }
        | RopeScaling::LongRope { .. }
        | RopeScaling::Proportional { .. } => None,
    };
    scaling(
        &mut keys,
        recovered.as_ref().unwrap_or(&rope.scaling),
        d_head,
        n_ctx,
    );
    Ok(keys)
}

fn scaling(keys: &mut Keys, scaling: &RopeScaling, d_head: u32, n_ctx: u32) {
    match scaling {
        RopeScaling::Unscaled => keys.put("rope_type", "default"),
        RopeScaling::Linear { factor } => {
            keys.put("rope_type", "linear");
            keys.number("factor", *factor);
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            keys.put("rope_type", "llama3");
            keys.number("factor", *factor);
            keys.number("low_freq_factor", *low_freq_factor);
            keys.number("high_freq_factor", *high_freq_factor);
            keys.put("original_max_position_embeddings", *original_context);
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            attention_factor,
            truncate,
        } => {
            keys.put("rope_type", "yarn");
            keys.number("factor", *factor);
            keys.number("beta_fast", *beta_fast);
            keys.number("beta_slow", *beta_slow);
            keys.put("original_max_position_embeddings", *original_context);
            if !is_near(*attention_factor, yarn_attention_factor(*factor)) {
                keys.put("attention_factor", factor_digits(*attention_factor));
            }
            if !truncate {
                keys.put("truncate", false);
            }
        }
        // Written out as Llama 3's rule, or refused, before.
        RopeScaling::Divisors { .. } => {}
        RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        } => {
            let list = |divisors: &[f64]| divisors.iter().map(|d| decimal(*d)).collect::<Vec<_>>();
            keys.put("rope_type", "longrope");
            keys.put("short_factor", list(short));
            keys.put("long_factor", list(long));
            if !is_near(*attention_factor, long_factor(n_ctx, *original_context)) {
                keys.put("attention_factor", factor_digits(*attention_factor));
            }
        }
        RopeScaling::Proportional { live_pairs } => {
            let live = live_pairs.saturating_mul(2);
            keys.put("rope_type", "proportional");
            keys.put("partial_rotary_factor", turned(live, d_head));
        }
    }
}

/// The part of a head that turns; classes cut the product with it to a whole number, so of all parts that lead there this is
/// the fraction with the smallest denominator: the one that people write.
fn turned(dims: u32, d_head: u32) -> f64 {
    let leads_there = |share: &f64| *share <= 1.0 && (f64::from(d_head) * share) as u32 == dims;
    let exact = f64::from(dims) / f64::from(d_head);
    let fractions = (1..=d_head.min(DENOMINATOR_MAX)).map(|denominator| {
        let denominator = f64::from(denominator);
        (exact * denominator).ceil() / denominator
    });
    // A quotient may have been rounded below what a product with it has to reach.
    fractions
        .chain([exact, exact.next_up()])
        .find(leads_there)
        .unwrap_or(exact)
}

/// A factor on cos and sin in the fewest digits; files may have it as a product of rounded numbers.
fn factor_digits(factor: f64) -> f64 {
    simplest(factor, |digits| is_near(factor, digits))
}

/// What the long-rope form multiplies cos and sin with where no key says.
fn long_factor(n_ctx: u32, original: u32) -> f64 {
    let original = f64::from(original);
    let stretch = f64::from(n_ctx) / original;
    if stretch <= 1.0 {
        1.0
    } else {
        (1.0 + stretch.ln() / original.ln()).sqrt()
    }
}

/// Llama 3's rule that gives these divisors.
///
/// The slowest pairs have the factor itself; where a pair lies between fast and slow, its divisor tells the original
/// context, and where none does, any context that leaves all pairs on their side is as good.
fn llama3_of(rope: &RopeSpec, divisors: &[f32]) -> Result<RopeScaling, Unsayable> {
    let slowest = f64::from(divisors.last().copied().unwrap_or(1.0));
    let told = simplest(slowest, |factor| {
        (factor - slowest).abs() <= DIVISOR_ERROR * slowest
    });
    let plain = RopeSpec {
        scaling: RopeScaling::Unscaled,
        ..rope.clone()
    };
    let frequencies = plain.frequencies(0);
    for factor in PUBLISHED_FACTORS.into_iter().chain([told]) {
        let contexts = divisors
            .iter()
            .zip(&frequencies)
            .filter_map(|(divisor, frequency)| {
                original_context(f64::from(*divisor), *frequency, factor)
            })
            .take(WITNESSES_MAX);
        for original_context in std::iter::once(PUBLISHED_CONTEXT).chain(contexts) {
            let scaling = RopeScaling::Llama3 {
                factor,
                low_freq_factor: LOW_FREQ_FACTOR,
                high_freq_factor: HIGH_FREQ_FACTOR,
                original_context,
            };
            let candidate = RopeSpec {
                scaling: scaling.clone(),
                ..rope.clone()
            };
            if divisors_agree(&candidate, divisors) {
                return Ok(scaling);
            }
        }
    }
    Err(Unsayable(
        "rope_freqs.weight, whose divisors are not those of Llama 3's rule for any factor and original context"
            .to_owned(),
    ))
}

/// The original context that gives a pair between fast and slow its divisor.
fn original_context(divisor: f64, frequency: f64, factor: f64) -> Option<u32> {
    let (fast, slow) = (1.0 + DIVISOR_ERROR, factor * (1.0 - DIVISOR_ERROR));
    if divisor <= fast || divisor >= slow {
        return None;
    }
    let smooth = (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor);
    let waves = smooth * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR) + LOW_FREQ_FACTOR;
    let original = waves * 2.0 * std::f64::consts::PI / frequency;
    (original < f64::from(u32::MAX)).then_some(original.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::RopeLayout;
    use crate::to_gguf::divisors;

    fn rope(theta: f64, dims: u32, factor: f64, original_context: u32) -> RopeSpec {
        RopeSpec {
            theta,
            dims,
            layout: RopeLayout::Split,
            scaling: RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context,
            },
        }
    }

    #[test]
    fn the_part_that_turns_is_the_one_that_people_write() {
        for (share, d_head) in [(0.25, 18), (0.4, 80), (0.5, 24), (0.75, 128), (1.0, 96)] {
            assert_eq!(turned((f64::from(d_head) * share) as u32, d_head), share);
        }
        for d_head in (2..200).step_by(2) {
            for dims in (2..=d_head).step_by(2) {
                let share = turned(dims, d_head);
                assert_eq!((f64::from(d_head) * share) as u32, dims, "{dims} {d_head}");
            }
        }
    }

    #[test]
    fn divisors_of_a_file_are_llama_3_s_rule_again() {
        for (theta, dims, factor, original) in [
            (500_000.0, 128, 8.0, 8192),
            (500_000.0, 64, 32.0, 8192),
            (500_000.0, 24, 8.0, 32),
            (10_000.0, 96, 4.0, 2048),
        ] {
            let rope = rope(theta, dims, factor, original);
            // As a converter has them that computes in f32.
            let divisors: Vec<f32> = divisors(&rope)
                .into_iter()
                .enumerate()
                .map(|(i, d)| d * (1.0 + (i % 3) as f32 * 2e-6))
                .collect();
            let found = llama3_of(&rope, &divisors).unwrap();
            assert_eq!(found, rope.scaling, "{theta} {dims} {factor} {original}");
        }
    }

    #[test]
    fn other_divisors_are_refused_by_name() {
        let rope = rope(500_000.0, 24, 8.0, 32);
        let mut wrong = divisors(&rope);
        wrong[5] *= 1.01;
        let Unsayable(what) = llama3_of(&rope, &wrong).unwrap_err();
        assert!(what.contains("rope_freqs.weight"), "{what}");
    }
}
