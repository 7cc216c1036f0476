//! What scoring comes to, as it is written in JSON.

use larql_engine::TilePlace;
use serde::Serialize;

use super::extent::Extent;
use super::position::{Compared, Scored};

/// Which divergence is reported.
pub const KL_DIRECTION: &str = "KL(against || run)";

/// What scoring comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreReport {
    /// SHA-256 of the whole file.
    pub file_sha256: String,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// First byte of the text in the file, and the byte behind its last.
    pub byte_range: [u64; 2],
    /// Bytes of the scored tokens; absent where tokens spell another text.
    pub bytes: Option<u64>,
    /// Characters (Unicode scalar values) of the scored tokens; absent as `bytes`.
    pub characters: Option<u64>,
    /// First byte of the text that its tokens do not spell, if there is one.
    pub differs_at_byte: Option<u64>,
    /// Scored tokens.
    pub tokens: usize,
    /// Tokens that were context only, because the model has no beginning of sequence.
    pub context_tokens: usize,
    /// Windows that were run.
    pub windows: usize,
    /// Tokens of a window at most.
    pub window: usize,
    /// Ids before each window.
    pub prefix_ids: Vec<u32>,
    /// SHA-256 of the ids of these windows, as little-endian u32.
    pub ids_sha256: String,
    /// The model.
    pub model: String,
    /// Arithmetic of the run.
    pub profile: &'static str,
    /// Where its weights were.
    pub tiles: TilePlace,
    /// Sum over the scored tokens.
    pub bits: f64,
    /// Over the scored tokens.
    pub bits_per_token: f64,
    /// Over their bytes.
    pub bits_per_byte: Option<f64>,
    /// Over their characters.
    pub bits_per_char: Option<f64>,
    /// The comparison, if another run was named.
    pub against: Option<Comparison>,
}

/// The run beside a reference, over the same positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The reference's model.
    pub model: String,
    /// The reference's arithmetic.
    pub profile: &'static str,
    /// Where its weights were.
    pub tiles: TilePlace,
    /// [`KL_DIRECTION`].
    pub kl_direction: &'static str,
    /// The reference's own score.
    pub bits_per_token: f64,
    /// Mean divergence in nats.
    pub kl_mean: f64,
    /// Median: the smallest value that half of the positions do not exceed.
    pub kl_p50: f64,
    /// The smallest value that 99 of 100 positions do not exceed.
    pub kl_p99: f64,
    /// The largest.
    pub kl_max: f64,
    /// Share of positions where both have the same most likely token.
    pub top1_agreement: f64,
    /// Positions where they have not.
    pub flips: usize,
}

/// Sums over the positions so far, in their order.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) tokens: usize,
    pub(super) bytes: u64,
    pub(super) characters: u64,
    nats: f64,
    reference_nats: f64,
    kls: Vec<f64>,
    flips: usize,
}

impl Tally {
    pub(super) fn add(&mut self, scored: &Scored) {
        self.tokens += 1;
        self.nats += scored.nats;
        if let Some(Compared {
            reference_nats,
            kl_nats,
            same_top,
        }) = scored.compared
        {
            self.reference_nats += reference_nats;
            self.kls.push(kl_nats);
            self.flips += usize::from(!same_top);
        }
    }

    pub(super) fn add_extent(&mut self, extent: Extent) {
        self.bytes += u64::from(extent.bytes);
        self.characters += u64::from(extent.characters);
    }

    pub(super) fn bits(&self) -> f64 {
        self.nats / std::f64::consts::LN_2
    }

    /// The comparison of at least one position.
    pub(super) fn comparison(
        mut self,
        model: String,
        profile: &'static str,
        tiles: TilePlace,
    ) -> Comparison {
        let n = self.kls.len();
        let kl_mean = self.kls.iter().sum::<f64>() / n as f64;
        self.kls.sort_by(f64::total_cmp);
        Comparison {
            model,
            profile,
            tiles,
            kl_direction: KL_DIRECTION,
            bits_per_token: self.reference_nats / std::f64::consts::LN_2 / n as f64,
            kl_mean,
            kl_p50: nearest_rank(&self.kls, 50),
            kl_p99: nearest_rank(&self.kls, 99),
            kl_max: nearest_rank(&self.kls, 100),
            top1_agreement: (n - self.flips) as f64 / n as f64,
            flips: self.flips,
        }
    }
}

/// The smallest value that `percent` of the sorted values do not exceed.
fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=201).map(f64::from).collect();
        let of = |n: usize| [50, 99, 100].map(|percent| nearest_rank(&values[..n], percent));
        assert_eq!(of(1), [1.0; 3]);
        assert_eq!(of(2), [1.0, 2.0, 2.0]);
        assert_eq!(of(100), [50.0, 99.0, 100.0]);
        assert_eq!(of(201), [101.0, 199.0, 201.0]);
    }

    #[test]
    fn sums_by_hand() {
        let mut tally = Tally::default();
        for (nats, reference_nats, kl_nats, same_top) in [
            (2.0, 1.0, 0.5, true),
            (4.0, 2.0, 0.1, false),
            (0.0, 0.0, 0.0, true),
        ] {
            tally.add(&Scored {
                nats: nats * std::f64::consts::LN_2,
                compared: Some(Compared {
                    reference_nats: reference_nats * std::f64::consts::LN_2,
                    kl_nats,
                    same_top,
                }),
            });
        }
        assert_eq!((tally.tokens, tally.bits()), (3, 6.0));
        let got = tally.comparison("m".to_owned(), "exact", TilePlace::Memory);
        assert_eq!(
            (got.bits_per_token, got.kl_p50, got.kl_p99),
            (1.0, 0.1, 0.5)
        );
        assert!((got.kl_mean - 0.2).abs() < 1e-15);
        assert_eq!((got.kl_max, got.flips), (0.5, 1));
        assert!((got.top1_agreement - 2.0 / 3.0).abs() < 1e-15);
    }
}
