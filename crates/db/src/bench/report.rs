//! What was measured, as it is printed.

use larql_engine::{Ledger, OperatorClass, TilePlace};
use serde::Serialize;

use super::control::{Ceilings, Refusal};

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// The model's name.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens decoded one by one in each repeat.
    pub decode_tokens: usize,
    /// Median prompt tokens per second.
    pub prefill_tok_s: f64,
    /// Slowest and fastest repeat.
    pub prefill_tok_s_range: [f64; 2],
    /// Median decoded tokens per second.
    pub decode_tok_s: f64,
    /// Slowest and fastest repeat.
    pub decode_tok_s_range: [f64; 2],
    /// Threads that worked.
    pub threads: usize,
    /// Arithmetic.
    pub profile: &'static str,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// Where the weights are: a mapped pack has small pages, which are read slower.
    pub tiles: TilePlace,
    /// Bytes of weights that one decoded token reads.
    pub weight_bytes_per_token: u64,
    /// Bytes of keys, values and recurrent states that one decoded token reads, on the average over the decoded tokens.
    pub kv_bytes_per_token: u64,
    /// Read bandwidth of this machine with these threads, between the readings before and after the repeats.
    pub read_gb_s: f64,
    /// Decode speed over what the bandwidth allows for weights, keys, values and states; absent if the bandwidth cannot be
    /// trusted.
    pub roofline_fraction: Option<f64>,
    /// The smallest and the largest fraction that the repeats and the readings allow.
    pub roofline_fraction_range: Option<[f64; 2]>,
    /// Why there is no such fraction.
    pub roofline_refused: Option<Refusal>,
    /// Prefill speed over what the multiply rates allow; absent if one of them cannot be trusted.
    pub multiply_fraction: Option<f64>,
    /// Why there is no such fraction.
    pub multiply_refused: Option<Refusal>,
    /// The ceilings before and after.
    pub ceilings: Ceilings,
    /// Repeats.
    pub repeats: usize,
    /// Several sequences decoded together, if that was asked for.
    pub batch: Option<BatchReport>,
    /// Where the time of the repeats went.
    pub ledger: Ledgers,
}

/// Several sequences decoded together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchReport {
    /// Sequences.
    pub sequences: usize,
    /// Median decoded tokens per second, of all sequences together.
    pub decode_tok_s: f64,
    /// Slowest and fastest repeat.
    pub decode_tok_s_range: [f64; 2],
    /// Median over the repeats of this speed by that of one sequence in the same repeat; absent if the bandwidth drifted.
    pub speedup: Option<f64>,
    /// Smallest and largest of these ratios.
    pub speedup_range: Option<[f64; 2]>,
    /// Why there is no such ratio.
    pub speedup_refused: Option<Refusal>,
}

/// The ledgers of the two phases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ledgers {
    /// Of the prompts.
    pub prefill: PhaseLedger,
    /// Of the steps, one sequence at a time.
    pub decode: PhaseLedger,
}

/// Where the time of a phase went; sums over all repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseLedger {
    /// Forward passes.
    pub passes: u64,
    /// Time of the whole phase, by a clock of its own.
    pub wall_s: f64,
    /// All classes of operators.
    pub classes: Vec<ClassLine>,
}

/// What one class of operators did in a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassLine {
    /// The class.
    pub class: OperatorClass,
    /// Operators.
    pub calls: u64,
    /// Pieces that the threads ran of one, on the average; absent without operators.
    pub slabs_per_call: Option<f64>,
    /// Bytes of weights, charged as read.
    pub stored_bytes: u64,
    /// Bytes of activations, outputs, keys, values and states, charged as read.
    pub transient_bytes: u64,
    /// Multiply-adds on 8-bit activations.
    pub integer_macs: u64,
    /// Multiply-adds in float32.
    pub float_macs: u64,
    /// Time in the class.
    pub wall_s: f64,
    /// Of the time of the phase.
    pub share: f64,
}

impl PhaseLedger {
    /// The lines of a ledger.
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let wall_s = ledger.total().as_secs_f64();
        let line = |class| {
            let charge = ledger.class(class);
            let class_s = charge.wall.as_secs_f64();
            ClassLine {
                class,
                calls: charge.calls,
                slabs_per_call: (charge.calls > 0)
                    .then(|| charge.slabs as f64 / charge.calls as f64),
                stored_bytes: charge.stored_bytes,
                transient_bytes: charge.transient_bytes,
                integer_macs: charge.integer_macs,
                float_macs: charge.float_macs,
                wall_s: class_s,
                share: if wall_s > 0.0 { class_s / wall_s } else { 0.0 },
            }
        };
        Self {
            passes: ledger.n_passes(),
            wall_s,
            classes: OperatorClass::ALL.map(line).into(),
        }
    }
}

impl ClassLine {
    /// Bytes per second, in units of 10^9.
    pub fn gb_s(&self) -> Option<f64> {
        let bytes = self.stored_bytes + self.transient_bytes;
        (self.wall_s > 0.0 && bytes > 0).then(|| bytes as f64 / self.wall_s / 1e9)
    }

    /// Multiply-adds per second, in units of 10^9.
    pub fn gmac_s(&self) -> Option<f64> {
        let macs = self.integer_macs + self.float_macs;
        (self.wall_s > 0.0 && macs > 0).then(|| macs as f64 / self.wall_s / 1e9)
    }
}
