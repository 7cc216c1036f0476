//! Text from text: prompt in, tokens out one by one, characters never split.

use larql_engine::{
    EngineError, Logits, Model, Runtime, Sampler, SamplingOptions, SequenceInput, SequenceState,
    WantedLogits, forward,
};
use serde::Serialize;

use crate::database::Database;
use crate::error::DbError;
use crate::speculate::steps::Steps;
use crate::speculate::{SpeculationReport, Speculator};

/// Prompt tokens per forward pass, so that a long prompt can be interrupted and its buffers stay small.
pub(crate) const PROMPT_CHUNK: usize = 256;

/// How to continue a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Most tokens to make.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: SamplingOptions,
    /// Texts that end the continuation and are not part of it.
    pub stop: Vec<String>,
}

/// Why a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop text came.
    StopText,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
}

/// A finished continuation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generated {
    /// The continuation without the prompt and the stop text.
    pub text: String,
    /// Its tokens, the one that ended it excepted.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What became of drafts, if any were to be made.
    pub speculation: Option<SpeculationReport>,
}

/// Continues `prompt` after what `state` remembers, handing out text as it becomes final. The first text is empty and comes with
/// the first token, whose own text may be held back until it cannot be part of a stop text.
///
/// The tokens are the same with any `speculator`, at any temperature. Afterwards the state has run some of them, from the
/// first on: all but the last, or fewer where a model with running states had to go back.
///
/// # Errors
/// If the prompt is empty or too long, an option is out of range, or the run fails or is interrupted.
pub fn generate(
    db: &Database,
    runtime: &mut Runtime,
    state: &mut SequenceState,
    prompt: &[u32],
    options: &GenerateOptions,
    speculator: &mut Speculator<'_>,
    on_text: &mut dyn FnMut(&str),
) -> Result<Generated, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let mut sampler = Sampler::new(options.sampling)?;
    let mut text = Held::new(&options.stop);
    let mut stream = tokenizer.stream();
    let mut tokens = Vec::new();
    let n_before = state.n_positions();
    speculator.begin(model, runtime, n_before, prompt, options.max_tokens)?;
    let logits = prefill(db, runtime, state, prompt)?;
    let mut steps = Steps::new(model, tokenizer, speculator, logits);
    let mut finish_reason = loop {
        if tokens.len() >= options.max_tokens {
            break FinishReason::Length;
        }
        let next = sampler.sample(steps.logits())?;
        if tokenizer.is_stop(next) {
            break FinishReason::Stop;
        }
        tokens.push(next);
        if tokens.len() == 1 {
            on_text("");
        }
        if let Some(piece) = stream.push(next)
            && text.push(&piece, on_text)
        {
            break FinishReason::StopText;
        }
        let n_left = options.max_tokens - tokens.len();
        if n_left == 0 {
            continue;
        }
        match steps.step(runtime, state, next, &sampler, n_left) {
            Ok(()) => {}
            Err(EngineError::ContextFull { .. }) => break FinishReason::Context,
            Err(error) => return Err(error.into()),
        }
    };
    steps.finish(state)?;
    if !text.is_stopped() {
        let tail = stream.flush();
        if text.push(&tail, on_text) {
            finish_reason = FinishReason::StopText;
        } else {
            text.release(on_text);
        }
    }
    Ok(Generated {
        text: text.finish(),
        tokens,
        finish_reason,
        speculation: speculator.report(),
    })
}

/// Runs the prompt and gives the logits after its last token.
///
/// # Errors
/// As [`generate`].
pub fn prefill(
    db: &Database,
    runtime: &mut Runtime,
    state: &mut SequenceState,
    prompt: &[u32],
) -> Result<Vec<f32>, DbError> {
    let model = db.model()?;
    let mut last = Vec::new();
    let (wanted, n_ctx) = (
        state.n_positions() + prompt.len(),
        model.spec().n_ctx as usize,
    );
    if wanted > n_ctx {
        return Err(EngineError::ContextFull { wanted, n_ctx }.into());
    }
    let n_chunks = prompt.len().div_ceil(PROMPT_CHUNK);
    if n_chunks == 0 {
        return Err(EngineError::EmptyInput { sequence: 0 }.into());
    }
    for (i, chunk) in prompt.chunks(PROMPT_CHUNK).enumerate() {
        let wanted = if i + 1 == n_chunks {
            WantedLogits::Last
        } else {
            WantedLogits::Absent
        };
        let input = SequenceInput {
            tokens: chunk,
            logits: wanted,
        };
        let logits = forward(model, runtime, &[input], std::slice::from_mut(state), None)?;
        if let Some(row) = logits.last(0) {
            last = row.to_vec();
        }
    }
    Ok(last)
}

/// A continuation that grows by one token at a time, beside others.
pub(crate) struct Growing {
    /// Its tokens so far, at least one; the last has not run yet.
    pub(crate) tokens: Vec<u32>,
    /// What came before that last token.
    pub(crate) state: SequenceState,
    /// Whether it has ended.
    pub(crate) is_done: bool,
}

/// Runs the last token of each in one pass; row `i` of the logits belongs to the `i`-th.
///
/// # Errors
/// As [`generate`].
pub(crate) fn step_each(
    model: &Model,
    runtime: &mut Runtime,
    growing: &mut [&mut Growing],
) -> Result<Logits, DbError> {
    let lasts: Vec<[u32; 1]> = growing
        .iter()
        .map(|one| [*one.tokens.last().expect("it has at least one token")])
        .collect();
    let batch: Vec<SequenceInput<'_>> = lasts
        .iter()
        .map(|tokens| SequenceInput {
            tokens,
            logits: WantedLogits::Last,
        })
        .collect();
    let mut states: Vec<SequenceState> = growing
        .iter_mut()
        .map(|one| std::mem::replace(&mut one.state, SequenceState::new(model.spec())))
        .collect();
    let result = forward(model, runtime, &batch, &mut states, None);
    for (one, state) in growing.iter_mut().zip(states) {
        one.state = state;
    }
    Ok(result?)
}

/// Text that is held back as long as it may be the beginning of a stop text.
struct Held<'a> {
    stops: &'a [String],
    text: String,
    n_released: usize,
    stopped: bool,
}

impl<'a> Held<'a> {
    fn new(stops: &'a [String]) -> Self {
        Self {
            stops,
            text: String::new(),
            n_released: 0,
            stopped: false,
        }
    }

    /// Adds text and releases what is final; true if a stop text is complete.
    fn push(&mut self, piece: &str, on_text: &mut dyn FnMut(&str)) -> bool {
        self.text.push_str(piece);
        let found = self
            .stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .filter_map(|stop| {
                self.text[self.n_released..]
                    .find(stop.as_str())
                    .map(|at| at + self.n_released)
            });
        if let Some(at) = found.min() {
            self.text.truncate(at);
            self.stopped = true;
            self.release(on_text);
            return true;
        }
        let held = self
            .stops
            .iter()
            .map(|stop| held_bytes(&self.text[self.n_released..], stop))
            .max()
            .unwrap_or(0);
        let end = self.text.len() - held;
        if end > self.n_released {
            on_text(&self.text[self.n_released..end]);
            self.n_released = end;
        }
        false
    }

    fn release(&mut self, on_text: &mut dyn FnMut(&str)) {
        if self.text.len() > self.n_released {
            on_text(&self.text[self.n_released..]);
        }
        self.n_released = self.text.len();
    }

    fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn finish(self) -> String {
        self.text
    }
}

/// Length of the longest end of `text` that begins `stop`.
fn held_bytes(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|n| stop.is_char_boundary(*n) && text.ends_with(&stop[..*n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut held = Held::new(&stops);
        let mut out = Vec::new();
        let mut on_text = |text: &str| out.push(text.to_owned());
        let stopped = pieces.iter().any(|piece| held.push(piece, &mut on_text));
        if !stopped {
            held.release(&mut on_text);
        }
        (out, held.finish(), stopped)
    }

    #[test]
    fn a_stop_text_in_pieces_never_reaches_the_stream() {
        let (out, text, stopped) = run(&["DEFGHIJ"], &["abc", "DEF", "G", "HI", "J", "never"]);
        assert_eq!(
            (out.concat().as_str(), text.as_str(), stopped),
            ("abc", "abc", true)
        );
    }

    #[test]
    fn a_false_start_is_released_in_order() {
        let (out, text, stopped) = run(&["\n\n", "END"], &["a\n", "b", "EN", "C"]);
        assert_eq!(
            (out.concat().as_str(), text.as_str(), stopped),
            ("a\nbENC", "a\nbENC", false)
        );
    }

    #[test]
    fn the_earliest_of_several_wins() {
        let (out, ..) = run(&["yz", "x"], &["wxyz"]);
        assert_eq!(out, ["w"]);
    }

    #[test]
    fn a_stop_text_of_wide_characters_is_cut_between_them() {
        let (out, text, stopped) = run(&["\u{e9}\u{e8}"], &["a\u{e9}", "b\u{e9}", "\u{e8}c"]);
        assert_eq!(
            (out.concat().as_str(), text.as_str(), stopped),
            ("a\u{e9}b", "a\u{e9}b", true)
        );
    }
}
