//! Choosing the next token from logits.
//!
//! Temperature 0 is greedy and ignores the seed. Otherwise the order is temperature, top-k, top-p, min-p, draw; the draw
//! comes from a counter-based generator, so a seed gives the same tokens on every run.
//!
//! The draw is a race: token `i` with weight `w_i` arrives at `-ln(u_i) / w_i`, the first one is taken, which it is with
//! probability `w_i / sum w` (the Gumbel-max trick in another form). The `u_i` depend on the seed, on how many tokens were
//! drawn before, and on `i`, on nothing else. So two distributions at total variation distance `d` draw the same token with
//! probability `(1 - d) / (1 + d)` or more (Daliri et al. 2024, arXiv:2408.07978), which is what speculative decoding lives
//! on: one model's guess at another's draw.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::error::EngineError;

/// Up to this many of the best are found by insertion.
const SCANNED_MAX: usize = 64;

/// Logits that are compared side by side, and those among which one is then looked for.
const LANES: usize = 16;
const BLOCK: usize = 64;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingOptions {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the most likely; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keep the fewest whose probability reaches this; the one that crosses it is kept. 1 keeps all.
    pub top_p: f32,
    /// Drop those less likely than this share of the most likely. 0 keeps all.
    pub min_p: f32,
    /// Seed of the draw.
    pub seed: u64,
}

impl SamplingOptions {
    /// The most likely token, always.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
    };
}

/// Draws tokens, one after another.
///
/// Each token takes one step of the seed's stream, whatever the logits are: a copy that is given a guess at the logits to
/// come draws with the very numbers that the tokens to come will be drawn with.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    rng: ChaCha8Rng,
    /// Tokens that may be drawn, with their weights. Empty between draws.
    kept: Vec<(u32, f64)>,
}

impl Sampler {
    /// A sampler at the start of its seed's stream.
    ///
    /// # Errors
    /// Names an option outside its range.
    pub fn new(options: SamplingOptions) -> Result<Self, EngineError> {
        let bad = |option, got: f32, expected| {
            Err(EngineError::SamplingOption {
                option,
                got: got.to_string(),
                expected,
            })
        };
        if !options.temperature.is_finite() || options.temperature < 0.0 {
            return bad("temperature", options.temperature, "a number from 0");
        }
        if !(0.0..=1.0).contains(&options.top_p) {
            return bad("top-p", options.top_p, "a number from 0 to 1");
        }
        if !(0.0..=1.0).contains(&options.min_p) {
            return bad("min-p", options.min_p, "a number from 0 to 1");
        }
        if options.top_k == Some(0) {
            return bad("top-k", 0.0, "a whole number from 1");
        }
        Ok(Self {
            options,
            rng: ChaCha8Rng::seed_from_u64(options.seed),
            kept: Vec::new(),
        })
    }

    /// The next token.
    ///
    /// # Errors
    /// If a logit is not a number.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, EngineError> {
        if let Some(id) = first_nan(logits) {
            return Err(EngineError::NotANumber { id });
        }
        if self.options.temperature == 0.0 {
            return Ok(argmax(logits));
        }
        let step = self.rng.next_u64();
        keep(&self.options, logits, &mut self.kept);
        let arrivals = self
            .kept
            .iter()
            .map(|(id, weight)| (*id, arrival(step, *id, *weight)));
        let first = arrivals.min_by(|a, b| a.1.total_cmp(&b.1));
        self.kept.clear();
        // An infinite logit leaves no finite weight: it is the most likely.
        Ok(first.map_or_else(|| argmax(logits), |(id, _)| id))
    }
}

/// Fills `kept` with the tokens that may be drawn and their weights; that of the most likely is 1.
fn keep(options: &SamplingOptions, logits: &[f32], kept: &mut Vec<(u32, f64)>) {
    let max = f64::from(largest(logits));
    let weight = |logit: f32| ((f64::from(logit) - max) / f64::from(options.temperature)).exp();
    let weights = (0u32..).zip(logits.iter().map(|logit| weight(*logit)));
    kept.clear();
    kept.extend(weights.filter(|(_, p)| *p > 0.0));
    // No two are equal, so that sorting needs no memory to keep their order.
    let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if let Some(k) = options.top_k
        && k < kept.len()
    {
        kept.select_nth_unstable_by(k, order);
        kept.truncate(k);
    }
    if options.top_p < 1.0 {
        kept.sort_unstable_by(order);
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        let mut mass = 0.0;
        let crossing = kept.iter().position(|(_, p)| {
            mass += p / total;
            mass >= f64::from(options.top_p)
        });
        kept.truncate(crossing.map_or(kept.len(), |last| last + 1));
    }
    let floor = f64::from(options.min_p);
    kept.retain(|(_, p)| *p >= floor);
}

/// When a token arrives in the race of a step.
fn arrival(step: u64, id: u32, weight: f64) -> f64 {
    // SplitMix64 (Steele et al. 2014): the `id`-th number of the stream that begins at `step`.
    let mut z = step.wrapping_add(
        u64::from(id)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15),
    );
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // A number in (0, 1] with 53 random bits.
    let unit = ((z >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -unit.ln() / weight
}

/// Index of the largest logit; the first of equals. What is no number is not larger than anything.
pub fn argmax(logits: &[f32]) -> u32 {
    let (mut max, mut at) = (f32::NEG_INFINITY, 0);
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        let of_block = largest(values);
        if of_block > max {
            (max, at) = (of_block, block * BLOCK);
        }
    }
    let within = logits[at..].iter().position(|x| *x == max).unwrap_or(0);
    u32::try_from(at + within).expect("a vocabulary fits u32")
}

/// The largest value, in lanes that the compiler compares side by side.
fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in values.chunks(LANES) {
        for (max, x) in lanes.iter_mut().zip(values) {
            *max = if *x > *max { *x } else { *max };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The first value that is no number.
pub(crate) fn first_nan(values: &[f32]) -> Option<usize> {
    first_that(values, f32::is_nan)
}

/// The first value that is infinite or no number.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    first_that(values, |x| !x.is_finite())
}

/// The first value that `is` so, found by block, as a vocabulary of them takes long to look at one by one.
#[inline(always)]
fn first_that(values: &[f32], is: impl Fn(f32) -> bool) -> Option<usize> {
    let has = |values: &[f32]| values.iter().fold(false, |any, x| any | is(*x));
    let block = values.chunks(BLOCK).position(has)?;
    let within = values[block * BLOCK..].iter().position(|x| is(*x))?;
    Some(block * BLOCK + within)
}

/// Natural logarithm of the softmax's denominator: a token's log probability is its logit less this. In f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits
        .iter()
        .map(|x| (f64::from(*x) - max).exp())
        .sum::<f64>()
        .ln()
        + max
}

/// Natural logarithm of each token's probability, in f64.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let log_sum = log_sum_exp(logits);
    logits.iter().map(|x| f64::from(*x) - log_sum).collect()
}

/// The `k` largest logits with their ids, largest first; equals by id.
///
/// One scan against the smallest of the best so far, which is cheap where `k` is small beside the vocabulary.
pub fn top_k(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let k = k.min(logits.len());
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if k > SCANNED_MAX {
        let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
        all.select_nth_unstable_by(k - 1, order);
        all.truncate(k);
        all.sort_by(order);
        return all;
    }
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(k + 1);
    for entry in (0u32..).zip(logits.iter().copied()) {
        if best.len() == k && best.last().is_none_or(|worst| order(&entry, worst).is_ge()) {
            continue;
        }
        let at = best.partition_point(|kept| order(kept, &entry).is_lt());
        best.insert(at, entry);
        best.truncate(k);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.3, 2.1, -1.0, 2.1, 1.2, f32::NEG_INFINITY];

    fn draws(options: SamplingOptions, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        (0..n).map(|_| sampler.sample(&LOGITS).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_the_seed() {
        for seed in 0..5 {
            assert_eq!(
                draws(
                    SamplingOptions {
                        seed,
                        ..SamplingOptions::GREEDY
                    },
                    3
                ),
                [1, 1, 1]
            );
        }
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let with = |seed| {
            draws(
                SamplingOptions {
                    temperature: 0.9,
                    seed,
                    ..SamplingOptions::GREEDY
                },
                40,
            )
        };
        assert_eq!(with(42), with(42));
        assert_ne!(with(42), with(43));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let n = 20_000;
        let ids = draws(
            SamplingOptions {
                temperature: 0.8,
                seed: 7,
                ..SamplingOptions::GREEDY
            },
            n,
        );
        let z: f64 = LOGITS.iter().map(|x| (f64::from(*x) / 0.8).exp()).sum();
        for (id, logit) in LOGITS.iter().enumerate() {
            let share = ids.iter().filter(|drawn| **drawn == id as u32).count() as f64 / n as f64;
            let want = (f64::from(*logit) / 0.8).exp() / z;
            // Five standard deviations of a binomial share.
            assert!(
                (share - want).abs() <= 5.0 * (want * (1.0 - want) / n as f64).sqrt(),
                "{id}: {share} for {want}"
            );
        }
    }

    #[test]
    fn each_limit_drops_tokens() {
        let base = SamplingOptions {
            temperature: 3.0,
            seed: 1,
            ..SamplingOptions::GREEDY
        };
        let seen = |options| {
            let mut ids = draws(options, 2000);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(seen(base), [0, 1, 2, 3, 4]);
        assert_eq!(
            seen(SamplingOptions {
                top_k: Some(1),
                ..base
            }),
            [1]
        );
        assert_eq!(
            seen(SamplingOptions {
                top_k: Some(3),
                ..base
            }),
            [1, 3, 4]
        );
        assert_eq!(seen(SamplingOptions { top_p: 0.0, ..base }), [1]);
        // The two best hold 0.52 of the mass: the second crosses 0.4.
        assert_eq!(seen(SamplingOptions { top_p: 0.4, ..base }), [1, 3]);
        assert_eq!(seen(SamplingOptions { min_p: 0.7, ..base }), [1, 3, 4]);
    }

    /// How often two samplers with the same numbers draw the same token of two distributions, and their distance.
    fn agreement(a: &[f32], b: &[f32], n: u64) -> (f64, f64) {
        let draw = |logits: &[f32], seed| {
            let options = SamplingOptions {
                temperature: 1.0,
                seed,
                ..SamplingOptions::GREEDY
            };
            Sampler::new(options).unwrap().sample(logits).unwrap()
        };
        let n_same = (0..n)
            .filter(|seed| draw(a, *seed) == draw(b, *seed))
            .count();
        let (p, q) = (log_softmax(a), log_softmax(b));
        let distance = p.iter().zip(&q).map(|(p, q)| (p.exp() - q.exp()).abs());
        (n_same as f64 / n as f64, distance.sum::<f64>() / 2.0)
    }

    #[test]
    fn alike_distributions_draw_alike() {
        // Flat ones, in which the order of the tokens says little, and steep ones.
        for steepness in [0.2f32, 4.0] {
            let logits = |salt: u32| -> Vec<f32> {
                let noise = |i: u32| ((i * 7919 + salt * 104_729) % 97) as f32 / 97.0;
                (0..37)
                    .map(|i| steepness * noise(i) + 0.3 * noise(i + salt))
                    .collect()
            };
            let (same, distance) = agreement(&logits(0), &logits(1), 4000);
            let (bound, sigma) = ((1.0 - distance) / (1.0 + distance), 0.5 / 4000f64.sqrt());
            assert!(
                distance > 0.02 && same >= bound - 5.0 * sigma,
                "{same} of distance {distance}, expected {bound}"
            );
            assert!(
                same <= 1.0 - distance + 5.0 * sigma,
                "{same} is more than can be"
            );
        }
    }

    #[test]
    fn a_copy_draws_the_same_numbers() {
        let mut sampler = Sampler::new(SamplingOptions {
            temperature: 2.0,
            seed: 9,
            ..SamplingOptions::GREEDY
        })
        .unwrap();
        sampler.sample(&LOGITS).unwrap();
        let mut copy = sampler.clone();
        let ahead: Vec<u32> = (0..40).map(|_| copy.sample(&LOGITS).unwrap()).collect();
        let then: Vec<u32> = (0..40).map(|_| sampler.sample(&LOGITS).unwrap()).collect();
        assert_eq!(ahead, then);
    }

    #[test]
    fn an_infinite_logit_is_taken() {
        let mut sampler = Sampler::new(SamplingOptions {
            temperature: 1.0,
            ..SamplingOptions::GREEDY
        })
        .unwrap();
        assert_eq!(sampler.sample(&[0.0, f32::INFINITY, 3.0]).unwrap(), 1);
    }

    #[test]
    fn refusals_name_the_option_and_the_token() {
        let refused = |options| Sampler::new(options).unwrap_err().to_string();
        let base = SamplingOptions::GREEDY;
        assert_eq!(
            refused(SamplingOptions {
                temperature: -1.0,
                ..base
            }),
            "temperature is -1, expected a number from 0"
        );
        assert_eq!(
            refused(SamplingOptions { top_p: 1.5, ..base }),
            "top-p is 1.5, expected a number from 0 to 1"
        );
        assert_eq!(
            refused(SamplingOptions {
                min_p: -0.1,
                ..base
            }),
            "min-p is -0.1, expected a number from 0 to 1"
        );
        assert_eq!(
            refused(SamplingOptions {
                top_k: Some(0),
                ..base
            }),
            "top-k is 0, expected a whole number from 1"
        );
        let mut sampler = Sampler::new(base).unwrap();
        assert_eq!(
            sampler.sample(&[0.0, f32::NAN]).unwrap_err().to_string(),
            "logit of token 1 is not a number"
        );
    }

    #[test]
    fn the_largest_is_found_in_any_block() {
        let one_by_one = |logits: &[f32]| {
            let mut best = 0;
            for (i, x) in logits.iter().enumerate() {
                if *x > logits[best] {
                    best = i;
                }
            }
            best as u32
        };
        for n in [1, 15, 16, 17, 63, 64, 65, 333] {
            // Every value occurs twice or more.
            let mut logits: Vec<f32> = (0..n)
                .map(|i| ((i * 37) % (n / 2 + 1)) as f32 - 9.0)
                .collect();
            assert_eq!(argmax(&logits), one_by_one(&logits), "{n}");
            assert_eq!(
                (first_nan(&logits), first_not_finite(&logits)),
                (None, None)
            );
            for at in 0..n {
                let before = std::mem::replace(&mut logits[at], 1e9);
                assert_eq!(argmax(&logits), at as u32, "{n}");
                for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
                    logits[at] = infinite;
                    assert_eq!(first_nan(&logits), None, "{n}");
                    assert_eq!(first_not_finite(&logits), Some(at), "{n}");
                }
                logits[at] = f32::NAN;
                assert_eq!(first_nan(&logits), Some(at), "{n}");
                assert_eq!(first_not_finite(&logits), Some(at), "{n}");
                logits[at] = before;
            }
        }
        assert_eq!(argmax(&[f32::NEG_INFINITY; 70]), 0);
        assert_eq!(argmax(&[-1.0, -0.0, 0.0]), 1);
        assert_eq!(argmax(&[]), 0);
    }

    #[test]
    fn top_k_equals_a_sort() {
        assert_eq!(top_k(&LOGITS, 3), [(1, 2.1), (3, 2.1), (4, 1.2)]);
        assert_eq!(top_k(&LOGITS, 0), []);
        assert_eq!(top_k(&LOGITS, 99).len(), LOGITS.len());
        // Many equal values, both ways of finding, against a whole sort.
        let logits: Vec<f32> = (0..500).map(|i| ((i * 7919) % 97) as f32 - 50.0).collect();
        let mut sorted: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        for k in [1, 2, 63, 64, 65, 200, 500] {
            assert_eq!(top_k(&logits, k), sorted[..k], "{k}");
        }
    }
}
