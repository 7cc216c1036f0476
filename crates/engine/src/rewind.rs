//! Running tokens on trial: several supplied ones in one traversal, and going back to before them.
//!
//! Not a second kind of pass: [`step_many`] is [`forward`] of one sequence. Attention layers forget single positions,
//! running states cannot, so a mark keeps a copy of those.

use larql_models::spec::{Mixer, ModelSpec};

use crate::error::EngineError;
use crate::forward::{Logits, SequenceInput, WantedLogits, forward};
use crate::model::Model;
use crate::runtime::Runtime;
use crate::state::{SequenceState, Snapshot};

/// Runs supplied tokens in one traversal and gives the logits after each: row `i` (`[d_vocab]`) follows `tokens[i]`.
///
/// Nothing is sampled in between. Logits and state are, bit for bit, those of running the tokens one by one.
///
/// # Errors
/// As [`forward`]; the state is then as it was.
pub fn step_many(
    model: &Model,
    runtime: &mut Runtime,
    tokens: &[u32],
    state: &mut SequenceState,
) -> Result<Logits, EngineError> {
    let input = SequenceInput {
        tokens,
        logits: WantedLogits::All,
    };
    forward(model, runtime, &[input], std::slice::from_mut(state), None)
}

/// A place in a sequence that it can go back to.
#[derive(Debug)]
pub struct Mark(Snapshot);

impl Mark {
    /// Positions run before it.
    pub fn n_positions(&self) -> usize {
        self.0.n_positions()
    }
}

impl SequenceState {
    /// Marks the end of the sequence. Free for attention; running states are copied.
    pub fn mark(&self) -> Mark {
        let mut snapshot = Snapshot::default();
        self.take_snapshot(&mut snapshot);
        Mark(snapshot)
    }

    /// Goes back towards a mark: keeps the first `n_kept` positions run since where every layer can, else none of them.
    /// Gives how many it kept. All of them are kept if there are no more.
    ///
    /// # Errors
    /// As [`Self::truncate`], a running state excepted.
    pub fn rewind(&mut self, mut mark: Mark, n_kept: usize) -> Result<usize, EngineError> {
        let n_since = self.n_positions().saturating_sub(mark.n_positions());
        if n_kept >= n_since {
            return Ok(n_since);
        }
        match self.truncate(mark.n_positions() + n_kept) {
            Ok(()) => Ok(n_kept),
            Err(EngineError::CannotRewind { .. }) => {
                self.restore(&mut mark.0);
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a layer keeps a state that every position updates, which cannot forget single ones.
pub fn has_running_state(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| match layer.mixer {
        Mixer::Kda(_) | Mixer::GatedDelta(_) => true,
        Mixer::Attention(_) | Mixer::Mla(_) => false,
    })
}
