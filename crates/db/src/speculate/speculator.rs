//! Where drafts come from, what they cost and what became of them.

use std::time::Instant;

use larql_engine::{EngineError, Model, Runtime, Sampler, has_running_state};
use larql_models::tokenizer::Tokenizer;
use serde::Serialize;

use crate::database::Database;
use crate::speculate::draft::DraftModel;
use crate::speculate::error::SpeculateError;
use crate::speculate::lookup::lookup;
use crate::speculate::pace::{DraftLength, Pace, Replay};

/// Makes drafts for [`crate::generate::generate`], as long as that pays.
#[derive(Debug)]
pub struct Speculator<'a> {
    source: Source<'a>,
    pace: Pace,
    /// The sequence so far: what was remembered, the prompt, what was made.
    context: Vec<u32>,
    drafted: u64,
    accepted: u64,
    passes: u64,
}

/// Where drafts come from.
#[derive(Debug)]
enum Source<'a> {
    Nothing,
    Lookup,
    Model(Box<DraftModel<'a>>),
}

/// What became of the drafts of one continuation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeculationReport {
    /// Where they came from: `lookup` or `draft`.
    pub source: &'static str,
    /// Tokens drafted.
    pub drafted: u64,
    /// Those of them that the model chose too.
    pub accepted: u64,
    /// Their share, if any were drafted.
    pub acceptance: Option<f64>,
    /// Passes of the model after the prompt; plain decoding needs one per token.
    pub passes: u64,
    /// Whether drafting was off at the end, because it did not pay.
    pub turned_off: bool,
    /// Times it was turned off.
    pub times_turned_off: u64,
}

impl<'a> Speculator<'a> {
    /// No drafts: plain decoding.
    pub fn none() -> Self {
        Self::new(Source::Nothing, DraftLength::Fixed(0), 0.0)
    }

    /// Drafts from what followed the same tokens earlier in the sequence.
    pub fn lookup(length: DraftLength) -> Self {
        Self::new(Source::Lookup, length, 0.0)
    }

    /// Drafts by a second model, which must have the same vocabulary.
    ///
    /// # Errors
    /// If one of the two cannot be run, or the first token that is not the same in both.
    pub fn draft_model(
        target: &Database,
        draft: &'a Database,
        length: DraftLength,
    ) -> Result<Self, SpeculateError> {
        check_vocabularies(target, draft)?;
        let model = DraftModel::new(draft.model()?);
        let target_bytes = target.model()?.weight_bytes_per_token().max(1);
        // Both read all their weights for a token, which is most of the work.
        let believed = model.weight_bytes() as f64 / target_bytes as f64;
        Ok(Self::new(Source::Model(Box::new(model)), length, believed))
    }

    fn new(source: Source<'a>, length: DraftLength, draft_believed: f64) -> Self {
        Self {
            source,
            pace: Pace::new(length, draft_believed),
            context: Vec::new(),
            drafted: 0,
            accepted: 0,
            passes: 0,
        }
    }

    /// What became of the drafts of the last continuation; absent for plain decoding.
    pub fn report(&self) -> Option<SpeculationReport> {
        let source = match self.source {
            Source::Nothing => return None,
            Source::Lookup => "lookup",
            Source::Model(_) => "draft",
        };
        Some(SpeculationReport {
            source,
            drafted: self.drafted,
            accepted: self.accepted,
            acceptance: (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64),
            passes: self.passes,
            turned_off: self.pace.is_paused(),
            times_turned_off: self.pace.n_pauses(),
        })
    }

    /// Begins a continuation by `model` of `prompt` behind `n_before` positions, by at most `n_max` tokens.
    ///
    /// The positions before are taken to be those of the continuation before; if they are not, drafts are worse, not wrong.
    pub(crate) fn begin(
        &mut self,
        model: &Model,
        runtime: &mut Runtime,
        n_before: usize,
        prompt: &[u32],
        n_max: usize,
    ) -> Result<(), EngineError> {
        (self.drafted, self.accepted, self.passes) = (0, 0, 0);
        self.pace.begin(if has_running_state(model.spec()) {
            Replay::OnePass
        } else {
            Replay::Free
        });
        self.context.truncate(n_before);
        self.context.extend_from_slice(prompt);
        match &mut self.source {
            Source::Nothing | Source::Lookup => Ok(()),
            Source::Model(model) => {
                let n_positions = self.context.len().saturating_add(n_max);
                model.begin(runtime, &self.context, n_positions)
            }
        }
    }

    /// The sequence has grown by a token.
    pub(super) fn grow(&mut self, token: u32) {
        self.context.push(token);
    }

    /// At most `n_max` tokens that may come next, fewer or none if that pays more.
    pub(super) fn draft(
        &mut self,
        runtime: &mut Runtime,
        sampler: &Sampler,
        n_max: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let n = self.pace.plan(n_max);
        if n == 0 {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let draft = match &mut self.source {
            Source::Nothing => Vec::new(),
            Source::Lookup => lookup(&self.context, n),
            Source::Model(model) => model.draft(runtime, &self.context, sampler.clone(), n)?,
        };
        self.pace.drafted(draft.len(), start.elapsed());
        Ok(draft)
    }

    /// A pass over the last token and a draft of `n_drafted` has begun at `start` and ended now.
    pub(super) fn passed(&mut self, n_drafted: usize, start: Instant) {
        self.passes += 1;
        self.drafted += n_drafted as u64;
        self.pace.passed(n_drafted + 1, start.elapsed());
    }

    /// A pass that only ran kept tokens again with the last one has ended.
    pub(super) fn replayed(&mut self) {
        self.passes += 1;
    }

    /// The model chose a drafted token too.
    pub(super) fn accept(&mut self) {
        self.accepted += 1;
    }

    /// A draft was kept up to a token that the model did not choose, or whole.
    pub(super) fn settle(&mut self, n_drafted: usize, n_kept: usize) {
        self.pace.settled(n_drafted, n_kept);
    }
}

/// Ids must mean the same to both: drafts are ids. How text is cut into them does not matter, because no draft is text.
fn check_vocabularies(target: &Database, draft: &Database) -> Result<(), SpeculateError> {
    let name = |db: &Database| db.path().display().to_string();
    let (theirs, ours): (&Tokenizer, &Tokenizer) = (draft.tokenizer()?, target.tokenizer()?);
    if theirs.n_vocab() != ours.n_vocab() {
        return Err(SpeculateError::VocabularySize {
            draft: name(draft),
            draft_tokens: theirs.n_vocab(),
            target: name(target),
            target_tokens: ours.n_vocab(),
        });
    }
    let n_ids = u32::try_from(ours.n_vocab()).expect("a vocabulary fits u32");
    match (0..n_ids).find(|id| theirs.token_piece(*id) != ours.token_piece(*id)) {
        None => Ok(()),
        Some(id) => Err(SpeculateError::UnequalTokenizers {
            draft: name(draft),
            target: name(target),
            id,
            draft_piece: theirs.token_piece(id).map(str::to_owned),
            target_piece: ours.token_piece(id).map(str::to_owned),
        }),
    }
}
