//! Prefill and decode speed, beside what this machine was measured to read.
//!
//! Each repeat runs the prompt and then the decode steps; medians are reported with their extremes. The answer is checked:
//! every repeat must give the same tokens.

use std::time::Instant;

use larql_engine::{Runtime, SequenceInput, SequenceState, WantedLogits, argmax, forward};
use larql_kernels::read_bandwidth_gb_s;
use serde::Serialize;

use crate::database::Database;
use crate::error::DbError;
use crate::progress::{OnProgress, Progress};

/// Bytes of the bandwidth probe: far beyond any cache.
const PROBE_BYTES: usize = 512 << 20;

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchOptions {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens decoded one by one.
    pub decode_tokens: usize,
    /// Repeats, at least one.
    pub repeats: usize,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
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
    /// Bytes of weights that one decoded token reads.
    pub weight_bytes_per_token: u64,
    /// Read bandwidth of this machine with these threads, measured around the repeats.
    pub read_gb_s: f64,
    /// Decode speed over what the bandwidth allows.
    pub roofline_fraction: f64,
    /// Repeats.
    pub repeats: usize,
}

/// Measures prefill and decode.
///
/// # Errors
/// If the model cannot run so many tokens, a repeat gives other tokens than the first, or the run is interrupted.
pub fn bench(
    db: &Database,
    runtime: &mut Runtime,
    options: &BenchOptions,
    on_progress: OnProgress<'_>,
) -> Result<BenchReport, DbError> {
    let model = db.model()?;
    let d_vocab = model.spec().d_vocab;
    // Spread over the vocabulary, so that the embedding rows are not all in one page.
    let prompt: Vec<u32> = (0..options.prompt_tokens.max(1) as u64)
        .map(|i| (i * 7919 % u64::from(d_vocab)) as u32)
        .collect();
    let mut bandwidths = vec![read_bandwidth_gb_s(runtime.team(), PROBE_BYTES)];
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    let mut reference: Option<Vec<u32>> = None;
    for repeat in 0..options.repeats.max(1) {
        on_progress(Progress {
            stage: "measuring",
            done: repeat as u64,
            total: options.repeats as u64,
        });
        let mut states = [SequenceState::with_length(
            model.spec(),
            prompt.len() + options.decode_tokens + 1,
        )];
        let start = Instant::now();
        let input = SequenceInput {
            tokens: &prompt,
            logits: WantedLogits::Last,
        };
        let logits = forward(model, runtime, &[input], &mut states, None)?;
        prefill.push(prompt.len() as f64 / start.elapsed().as_secs_f64());
        let mut next = argmax(logits.last(0).expect("the last logits were asked for"));
        let mut tokens = Vec::with_capacity(options.decode_tokens);
        let start = Instant::now();
        for _ in 0..options.decode_tokens.max(1) {
            tokens.push(next);
            let input = SequenceInput {
                tokens: &[next],
                logits: WantedLogits::Last,
            };
            let logits = forward(model, runtime, &[input], &mut states, None)?;
            next = argmax(logits.last(0).expect("the last logits were asked for"));
        }
        decode.push(tokens.len() as f64 / start.elapsed().as_secs_f64());
        if reference.get_or_insert_with(|| tokens.clone()) != &tokens {
            return Err(DbError::Irreproducible { repeat });
        }
    }
    bandwidths.push(read_bandwidth_gb_s(runtime.team(), PROBE_BYTES));
    let read_gb_s = median(&mut bandwidths);
    let (prefill_range, decode_range) = (range(&prefill), range(&decode));
    let decode_tok_s = median(&mut decode);
    let weight_bytes_per_token = model.weight_bytes_per_token();
    Ok(BenchReport {
        prefill_tok_s: median(&mut prefill),
        prefill_tok_s_range: prefill_range,
        decode_tok_s,
        decode_tok_s_range: decode_range,
        threads: runtime.n_threads(),
        profile: runtime.profile().name(),
        isa: runtime.kernels().isa().name(),
        weight_bytes_per_token,
        read_gb_s,
        roofline_fraction: decode_tok_s * weight_bytes_per_token as f64 / (read_gb_s * 1e9),
        repeats: options.repeats.max(1),
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

fn range(values: &[f64]) -> [f64; 2] {
    [
        values.iter().copied().fold(f64::INFINITY, f64::min),
        values.iter().copied().fold(0.0, f64::max),
    ]
}
