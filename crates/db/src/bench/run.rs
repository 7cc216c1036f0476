//! The repeats: prompt, steps, steps of a batch, in turns.

use std::time::Instant;

use larql_engine::{
    EngineError, Ledger, Logits, Model, Runtime, SequenceInput, SequenceState, WantedLogits,
    argmax, forward,
};

use super::control::{Ceilings, Reading, Refusal};
use super::report::{BatchReport, BenchReport, Ledgers, PhaseLedger};
use crate::database::Database;
use crate::error::DbError;
use crate::progress::{OnProgress, Progress};

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchOptions {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens decoded one by one.
    pub decode_tokens: usize,
    /// Repeats, at least one.
    pub repeats: usize,
    /// Sequences that are decoded together after one was decoded alone; one is no batch.
    pub batch: usize,
}

/// What the repeats gave.
#[derive(Default)]
struct Measured {
    /// Tokens per second of each repeat.
    prefill: Vec<f64>,
    decode: Vec<f64>,
    batch: Vec<f64>,
    prefill_ledger: Ledger,
    decode_ledger: Ledger,
}

/// The model at work, and what it is given.
struct Bench<'a> {
    name: String,
    model: &'a Model,
    runtime: &'a mut Runtime,
    /// One for each sequence, of one length.
    prompts: Vec<Vec<u32>>,
    n_steps: usize,
}

/// Measures prefill and decode.
///
/// # Errors
/// If the model cannot run so many tokens, a repeat gives other tokens than the first, a sequence of a batch gives others
/// than alone, or the run is interrupted.
pub fn bench(
    db: &Database,
    runtime: &mut Runtime,
    options: &BenchOptions,
    on_progress: OnProgress<'_>,
) -> Result<BenchReport, DbError> {
    let model = db.model()?;
    let (n_sequences, repeats) = (options.batch.max(1), options.repeats.max(1));
    let (n_tokens, n_steps) = (options.prompt_tokens.max(1), options.decode_tokens.max(1));
    let (wanted, n_ctx) = (
        n_tokens.saturating_add(n_steps),
        model.spec().n_ctx as usize,
    );
    if wanted > n_ctx {
        return Err(EngineError::ContextFull { wanted, n_ctx }.into());
    }
    let mut bench = Bench {
        name: db.name(),
        model,
        prompts: (0..n_sequences)
            .map(|sequence| prompt(model.spec().d_vocab, n_tokens, sequence))
            .collect(),
        n_steps,
        runtime,
    };
    let before = Reading::take(bench.runtime)?;
    bench.warm_up()?;
    // What every sequence answers alone; of the first one, what the first repeat says.
    let mut references: Vec<Vec<u32>> = vec![Vec::new()];
    let mut unused = Measured::default();
    for sequence in 1..n_sequences {
        references.push(bench.alone(sequence, &mut unused)?);
    }
    let mut measured = Measured::default();
    for repeat in 0..repeats {
        on_progress(Progress {
            stage: "measuring",
            done: repeat as u64,
            total: repeats as u64,
        });
        let tokens = bench.alone(0, &mut measured)?;
        if repeat == 0 {
            references[0] = tokens;
        } else if tokens != references[0] {
            return Err(DbError::Irreproducible { repeat });
        }
        if n_sequences > 1 {
            let answers = bench.together(&mut measured)?;
            if let Some(sequence) = (0..n_sequences).find(|s| answers[*s] != references[*s]) {
                return Err(DbError::BatchDiffers {
                    sequence,
                    n_sequences,
                });
            }
        }
    }
    let ceilings = before.and(&Reading::take(bench.runtime)?);
    Ok(bench.report(measured, ceilings, repeats))
}

/// Tokens that are spread over the vocabulary, so that the embedding rows are not all in one page; each sequence has others.
fn prompt(d_vocab: u32, n_tokens: usize, sequence: usize) -> Vec<u32> {
    /// A prime, far from the sizes of vocabularies.
    const STRIDE: u64 = 7919;
    (0..n_tokens as u64)
        .map(|i| {
            let at = (n_tokens as u64)
                .wrapping_mul(sequence as u64)
                .wrapping_add(i);
            // Below the size of the vocabulary, which is a u32.
            (at.wrapping_mul(STRIDE) % u64::from(d_vocab)) as u32
        })
        .collect()
}

/// The most likely next token of a sequence.
fn next(logits: &Logits, sequence: usize) -> u32 {
    let row = logits.last(sequence);
    argmax(row.expect("the last logits were asked for"))
}

fn last_of(tokens: &[u32]) -> SequenceInput<'_> {
    SequenceInput {
        tokens,
        logits: WantedLogits::Last,
    }
}

impl Bench<'_> {
    /// An empty state with room for a prompt and all steps.
    fn state(&self) -> SequenceState {
        let n_positions = self.prompts[0].len() + self.n_steps + 1;
        SequenceState::with_length(self.model.spec(), n_positions)
    }

    /// A prompt and one step, so that the first repeat finds caches, buffers and threads as the others do.
    fn warm_up(&mut self) -> Result<(), DbError> {
        let mut states = [self.state()];
        let mut tokens = self.prompts[0].clone();
        for _ in 0..2 {
            let logits = forward(
                self.model,
                self.runtime,
                &[last_of(&tokens)],
                &mut states,
                None,
            )?;
            tokens = vec![next(&logits, 0)];
        }
        Ok(())
    }

    /// One sequence: its prompt and its steps, timed; returns the tokens.
    fn alone(&mut self, sequence: usize, measured: &mut Measured) -> Result<Vec<u32>, DbError> {
        let (model, n_steps) = (self.model, self.n_steps);
        let mut states = [self.state()];
        let prompt = &self.prompts[sequence];
        let (mut token, seconds) = timed(self.runtime, &mut measured.prefill_ledger, |runtime| {
            let logits = forward(model, runtime, &[last_of(prompt)], &mut states, None)?;
            Ok(next(&logits, 0))
        })?;
        measured.prefill.push(prompt.len() as f64 / seconds);
        let (tokens, seconds) = timed(self.runtime, &mut measured.decode_ledger, |runtime| {
            let mut tokens = Vec::with_capacity(n_steps);
            for _ in 0..n_steps {
                tokens.push(token);
                let logits = forward(model, runtime, &[last_of(&[token])], &mut states, None)?;
                token = next(&logits, 0);
            }
            Ok(tokens)
        })?;
        measured.decode.push(n_steps as f64 / seconds);
        Ok(tokens)
    }

    /// The steps of all sequences, timed, after their prompts; returns the tokens of each.
    fn together(&mut self, measured: &mut Measured) -> Result<Vec<Vec<u32>>, DbError> {
        let model = self.model;
        let (mut states, mut tokens) = (Vec::new(), Vec::new());
        for prompt in &self.prompts {
            let mut state = [self.state()];
            let logits = forward(model, self.runtime, &[last_of(prompt)], &mut state, None)?;
            tokens.push(next(&logits, 0));
            states.extend(state);
        }
        let mut answers = vec![Vec::with_capacity(self.n_steps); states.len()];
        let start = Instant::now();
        for _ in 0..self.n_steps {
            let inputs: Vec<SequenceInput<'_>> = tokens.chunks(1).map(last_of).collect();
            let logits = forward(model, self.runtime, &inputs, &mut states, None)?;
            for (sequence, (answer, token)) in answers.iter_mut().zip(&mut tokens).enumerate() {
                answer.push(*token);
                *token = next(&logits, sequence);
            }
        }
        let n_tokens = self.n_steps * answers.len();
        measured
            .batch
            .push(n_tokens as f64 / start.elapsed().as_secs_f64());
        Ok(answers)
    }

    fn report(&self, measured: Measured, ceilings: Ceilings, repeats: usize) -> BenchReport {
        let Measured {
            prefill,
            decode,
            batch,
            prefill_ledger,
            decode_ledger,
        } = measured;
        let weight_bytes_per_token = self.model.weight_bytes_per_token();
        let kv_bytes_per_token = decode_ledger.sum().state_bytes / (self.n_steps * repeats) as u64;
        let token_bytes = weight_bytes_per_token + kv_bytes_per_token;
        let roofline_refused = ceilings.refuse_read(token_bytes);
        let roofline = |tok_s, gb_s| Ceilings::read_fraction(tok_s, token_bytes, gb_s);
        let read_gb_s = ceilings.read_gb_s.mean();
        let (decode_tok_s, [slowest, fastest]) = (median(&decode), range(&decode));
        let [least_gb_s, most_gb_s] = ceilings.read_gb_s.range();
        let trusted = roofline_refused.is_none();
        let prefill_tok_s = median(&prefill);
        let work = prefill_ledger.sum();
        let multiply_refused = ceilings.refuse_multiply(work.integer_macs, work.float_macs);
        let n_prompt_tokens = (self.prompts[0].len() * repeats) as f64;
        let multiply_s = ceilings.multiply_s(
            work.integer_macs as f64 / n_prompt_tokens,
            work.float_macs as f64 / n_prompt_tokens,
        );
        let batch = (!batch.is_empty()).then(|| {
            beside_one(
                self.prompts.len(),
                &batch,
                &decode,
                ceilings.refuse_speedup(),
            )
        });
        BenchReport {
            model: self.name.clone(),
            prompt_tokens: self.prompts[0].len(),
            decode_tokens: self.n_steps,
            prefill_tok_s,
            prefill_tok_s_range: range(&prefill),
            decode_tok_s,
            decode_tok_s_range: [slowest, fastest],
            threads: self.runtime.n_threads(),
            profile: self.runtime.profile().name(),
            isa: self.runtime.kernels().isa().name(),
            tiles: self.model.tile_place(),
            weight_bytes_per_token,
            kv_bytes_per_token,
            read_gb_s,
            roofline_fraction: trusted.then(|| roofline(decode_tok_s, read_gb_s)),
            roofline_fraction_range: trusted
                .then(|| [roofline(slowest, most_gb_s), roofline(fastest, least_gb_s)]),
            roofline_refused,
            multiply_fraction: multiply_refused
                .is_none()
                .then_some(prefill_tok_s * multiply_s),
            multiply_refused,
            ceilings,
            repeats,
            batch,
            ledger: Ledgers {
                prefill: PhaseLedger::of(&prefill_ledger),
                decode: PhaseLedger::of(&decode_ledger),
            },
        }
    }
}

/// The speeds of a batch beside those of one sequence in the same repeats, without a ratio if it is refused.
fn beside_one(
    sequences: usize,
    batch: &[f64],
    decode: &[f64],
    speedup_refused: Option<Refusal>,
) -> BatchReport {
    let ratios: Vec<f64> = batch.iter().zip(decode).map(|(b, one)| b / one).collect();
    let trusted = speedup_refused.is_none();
    BatchReport {
        sequences,
        decode_tok_s: median(batch),
        decode_tok_s_range: range(batch),
        speedup: trusted.then(|| median(&ratios)),
        speedup_range: trusted.then(|| range(&ratios)),
        speedup_refused,
    }
}

/// Runs `work` with a ledger, which joins `total`; returns its seconds too.
fn timed<T>(
    runtime: &mut Runtime,
    total: &mut Ledger,
    work: impl FnOnce(&mut Runtime) -> Result<T, EngineError>,
) -> Result<(T, f64), EngineError> {
    runtime.keep_ledger();
    let start = Instant::now();
    let result = runtime.measured(work);
    let seconds = start.elapsed().as_secs_f64();
    if let Some(ledger) = runtime.take_ledger() {
        total.add(&ledger);
    }
    result.map(|result| (result, seconds))
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_a_ratio_or_the_reason_why_there_is_none() {
        let report = |refused| beside_one(2, &[30.0, 40.0, 60.0], &[20.0, 20.0, 20.0], refused);
        let steady = report(None);
        assert_eq!(
            (steady.speedup, steady.speedup_range),
            (Some(2.0), Some([1.5, 3.0]))
        );
        assert_eq!(steady.speedup_refused, None);
        let drifted = report(Some(Refusal::Drifted));
        assert_eq!((drifted.speedup, drifted.speedup_range), (None, None));
        assert_eq!(drifted.speedup_refused, Some(Refusal::Drifted));
        assert_eq!(drifted.decode_tok_s, steady.decode_tok_s);
    }
}
