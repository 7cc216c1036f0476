//! One token after another, some of whose positions were run ahead.
//!
//! Draws nothing: it shows the logits at the current position and is told the token that was drawn from them. If that is
//! the drafted one, the next logits are there already; otherwise the rest of the draft is taken back and a new pass is run.

use std::time::Instant;

use larql_engine::{
    EngineError, Logits, Mark, Model, Runtime, Sampler, SequenceInput, SequenceState, WantedLogits,
    forward, step_many,
};
use larql_models::tokenizer::Tokenizer;

use crate::speculate::speculator::Speculator;

/// A sequence that grows token by token.
pub(crate) struct Steps<'s, 'd> {
    model: &'s Model,
    tokenizer: &'s Tokenizer,
    speculator: &'s mut Speculator<'d>,
    logits: Shown,
    draft: Vec<u32>,
    /// Tokens of the draft that were drawn too.
    n_kept: usize,
    /// Where the draft began, while it is not settled.
    mark: Option<Mark>,
    /// Tokens that were drawn and that the state has not run, without the newest: a running state had to go back.
    again: Vec<u32>,
}

/// Where the logits of the current position are.
enum Shown {
    /// Those after the prompt.
    Prompt(Vec<f32>),
    /// A row per token of the draft, behind that of the token before it.
    Pass(Logits),
}

impl<'s, 'd> Steps<'s, 'd> {
    /// Begins behind a prompt that has been run, with the logits after it.
    pub(crate) fn new(
        model: &'s Model,
        tokenizer: &'s Tokenizer,
        speculator: &'s mut Speculator<'d>,
        logits: Vec<f32>,
    ) -> Self {
        Self {
            model,
            tokenizer,
            speculator,
            logits: Shown::Prompt(logits),
            draft: Vec::new(),
            n_kept: 0,
            mark: None,
            again: Vec::new(),
        }
    }

    /// Logits at the current position.
    pub(crate) fn logits(&self) -> &[f32] {
        match &self.logits {
            Shown::Prompt(logits) => logits,
            Shown::Pass(logits) => {
                let mut rows = logits.rows();
                rows.nth(self.n_kept)
                    .map(|(_, row)| row)
                    .expect("a pass gives a row for its token and each drafted one")
            }
        }
    }

    /// Goes on by `next`, which `sampler` has drawn; at most `n_left` more tokens are wanted behind it.
    ///
    /// # Errors
    /// If the context is full or the pass fails; the state then has run whole tokens of the sequence only.
    pub(crate) fn step(
        &mut self,
        runtime: &mut Runtime,
        state: &mut SequenceState,
        next: u32,
        sampler: &Sampler,
        n_left: usize,
    ) -> Result<(), EngineError> {
        self.speculator.grow(next);
        if self.draft.get(self.n_kept) == Some(&next) {
            self.n_kept += 1;
            self.speculator.accept();
            return Ok(());
        }
        if !self.draft.is_empty() {
            self.speculator.settle(self.draft.len(), self.n_kept);
        }
        self.take_back(state)?;
        if !self.again.is_empty() {
            return self.run_again(runtime, state, next);
        }
        // The token after the last wanted one is nobody's business, so the last one need not be run.
        let mut draft = self
            .speculator
            .draft(runtime, sampler, n_left.saturating_sub(1))?;
        self.cut(&mut draft);
        match self.run(runtime, state, next, draft) {
            // What was asked for may fit where the draft does not.
            Err(EngineError::ContextFull { .. } | EngineError::RopeLength { .. }) => {
                self.run(runtime, state, next, Vec::new())
            }
            result => result,
        }
    }

    /// Ends the sequence: the state has run no token that was not drawn, and where a running state had to go back, fewer.
    ///
    /// # Errors
    /// If the state is another model's.
    pub(crate) fn finish(&mut self, state: &mut SequenceState) -> Result<(), EngineError> {
        self.take_back(state)
    }

    /// Runs `next` and behind it a draft.
    fn run(
        &mut self,
        runtime: &mut Runtime,
        state: &mut SequenceState,
        next: u32,
        draft: Vec<u32>,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        let mark = (!draft.is_empty()).then(|| state.mark());
        let tokens: Vec<u32> = std::iter::once(next).chain(draft.iter().copied()).collect();
        self.logits = Shown::Pass(step_many(self.model, runtime, &tokens, state)?);
        self.speculator.passed(draft.len(), start);
        (self.mark, self.draft, self.n_kept) = (mark, draft, 0);
        // Kept until the draft is settled, if it has to be run again.
        self.again = if self.mark.is_some() {
            vec![next]
        } else {
            Vec::new()
        };
        Ok(())
    }

    /// Runs what the state had to forget, and `next`.
    fn run_again(
        &mut self,
        runtime: &mut Runtime,
        state: &mut SequenceState,
        next: u32,
    ) -> Result<(), EngineError> {
        let mut tokens = self.again.clone();
        tokens.push(next);
        let input = SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::Last,
        };
        let states = std::slice::from_mut(state);
        self.logits = Shown::Pass(forward(self.model, runtime, &[input], states, None)?);
        self.again.clear();
        self.speculator.replayed();
        Ok(())
    }

    /// Takes back what was run of the draft and not drawn; what a running state forgets with it is noted in `again`.
    fn take_back(&mut self, state: &mut SequenceState) -> Result<(), EngineError> {
        let Some(mark) = self.mark.take() else {
            return Ok(());
        };
        // The token that the draft followed was run with it.
        let n_known = 1 + self.n_kept;
        if state.rewind(mark, n_known)? == n_known {
            self.again.clear();
        } else {
            self.again.extend_from_slice(&self.draft[..self.n_kept]);
        }
        self.draft.clear();
        self.n_kept = 0;
        Ok(())
    }

    /// Cuts a draft where it cannot be kept: at an end, which is never run, and at an id that the model does not have.
    fn cut(&self, draft: &mut Vec<u32>) {
        let d_vocab = self.model.spec().d_vocab;
        let is_end = |id: &u32| *id >= d_vocab || self.tokenizer.is_stop(*id);
        if let Some(end) = draft.iter().position(is_end) {
            draft.truncate(end);
        }
    }
}
