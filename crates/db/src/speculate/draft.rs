//! A second, smaller model that drafts. It shares the caller's runtime, and with it the threads, and has its own state.
//!
//! It draws with a copy of the caller's sampler, so with the numbers that will decide. What it remembers follows the
//! sequence: wrong guesses are rewound, and whatever the sequence gained is run before the next draft.

use larql_engine::{
    EngineError, Mark, Model, Runtime, Sampler, SequenceInput, SequenceState, WantedLogits, forward,
};

use crate::generate::PROMPT_CHUNK;

/// A model that drafts, and what it remembers.
#[derive(Debug)]
pub(super) struct DraftModel<'a> {
    model: &'a Model,
    state: SequenceState,
    /// The tokens that `state` has run.
    ran: Vec<u32>,
    /// Where the last draft began.
    mark: Option<Mark>,
    /// Its context is full, or a token is beyond its embedding.
    is_exhausted: bool,
}

impl<'a> DraftModel<'a> {
    /// A model that has run nothing.
    pub(super) fn new(model: &'a Model) -> Self {
        Self {
            model,
            state: SequenceState::new(model.spec()),
            ran: Vec::new(),
            mark: None,
            is_exhausted: false,
        }
    }

    /// Bytes of weights that one of its steps reads.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes_per_token()
    }

    /// Runs what a sequence begins with, which may grow to `n_positions`.
    pub(super) fn begin(
        &mut self,
        runtime: &mut Runtime,
        context: &[u32],
        n_positions: usize,
    ) -> Result<(), EngineError> {
        self.is_exhausted = false;
        if !self.state.may_reach(n_positions) {
            self.state = SequenceState::with_length(self.model.spec(), n_positions);
            self.ran.clear();
            self.mark = None;
        }
        let result = self.catch_up(runtime, context).map(|_| ());
        self.unless_exhausted(result)
    }

    /// Up to `n` tokens that may follow `context`.
    pub(super) fn draft(
        &mut self,
        runtime: &mut Runtime,
        context: &[u32],
        mut sampler: Sampler,
        n: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let mut draft = Vec::with_capacity(n);
        if self.is_exhausted {
            return Ok(draft);
        }
        let result = self.extend(runtime, context, &mut sampler, n, &mut draft);
        self.unless_exhausted(result)?;
        Ok(draft)
    }

    fn extend(
        &mut self,
        runtime: &mut Runtime,
        context: &[u32],
        sampler: &mut Sampler,
        n: usize,
        draft: &mut Vec<u32>,
    ) -> Result<(), EngineError> {
        let mut logits = self.catch_up(runtime, context)?;
        self.mark = Some(self.state.mark());
        loop {
            let next = sampler.sample(&logits)?;
            draft.push(next);
            if draft.len() >= n {
                return Ok(());
            }
            logits = self.run(runtime, &[next], WantedLogits::Last)?;
        }
    }

    /// Goes back to where the context parts from what was run, runs the rest and gives the logits after it.
    fn catch_up(
        &mut self,
        runtime: &mut Runtime,
        context: &[u32],
    ) -> Result<Vec<f32>, EngineError> {
        let same = self.ran.iter().zip(context).take_while(|(a, b)| a == b);
        // At least one token has to run, or there would be no logits.
        let n_same = same.count().min(context.len().saturating_sub(1));
        self.go_back(n_same);
        let rest = &context[self.ran.len()..];
        let n_chunks = rest.len().div_ceil(PROMPT_CHUNK);
        let mut logits = Vec::new();
        for (i, chunk) in rest.chunks(PROMPT_CHUNK).enumerate() {
            let wanted = if i + 1 == n_chunks {
                WantedLogits::Last
            } else {
                WantedLogits::Absent
            };
            logits = self.run(runtime, chunk, wanted)?;
        }
        Ok(logits)
    }

    /// Forgets all but the first `n` tokens, or more where a running state cannot forget just these.
    fn go_back(&mut self, n: usize) {
        if n >= self.ran.len() {
            return;
        }
        let gone_back = match self.mark.take() {
            Some(mark) if mark.n_positions() <= n => {
                let n_kept = n - mark.n_positions();
                self.state.rewind(mark, n_kept).map(|_| ())
            }
            Some(_) | None => self.state.truncate(n),
        };
        if gone_back.is_err() {
            // The length it was made for stays decided: zero positions are always possible.
            self.state
                .truncate(0)
                .expect("every layer can forget everything");
        }
        self.ran.truncate(self.state.n_positions());
    }

    fn run(
        &mut self,
        runtime: &mut Runtime,
        tokens: &[u32],
        logits: WantedLogits,
    ) -> Result<Vec<f32>, EngineError> {
        let input = SequenceInput { tokens, logits };
        let states = std::slice::from_mut(&mut self.state);
        let logits = forward(self.model, runtime, &[input], states, None)?;
        self.ran.extend_from_slice(tokens);
        Ok(logits.last(0).map_or_else(Vec::new, <[f32]>::to_vec))
    }

    /// A model at its limits stops drafting, which is no reason to stop the one that decides.
    fn unless_exhausted(&mut self, result: Result<(), EngineError>) -> Result<(), EngineError> {
        match result {
            Err(
                EngineError::ContextFull { .. }
                | EngineError::RopeLength { .. }
                | EngineError::TokenOutOfRange { .. },
            ) => {
                self.is_exhausted = true;
                Ok(())
            }
            other => other,
        }
    }
}
