//! Why a run cannot be done.

use larql_models::ModelError;
use thiserror::Error;

use crate::runtime::Profile;

/// Why a run cannot be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The spec contradicts itself.
    #[error("layer {layer}: {what}")]
    Spec {
        /// The layer.
        layer: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A recurrent state has no past to go back to.
    #[error("layer {layer} keeps a running state, which cannot go back to position {n_positions}")]
    CannotRewind {
        /// The layer.
        layer: usize,
        /// Positions that were to stay.
        n_positions: usize,
    },
    /// The sequence outgrew the RoPE frequencies it began with.
    #[error(
        "the sequence was begun for at most {n_positions_max} positions and would have {wanted}"
    )]
    RopeLength {
        /// Positions it would have.
        wanted: usize,
        /// Positions that the frequencies are for.
        n_positions_max: usize,
    },
    /// A sequence is continued in another arithmetic than it was begun in.
    #[error("the sequence was begun in {} and cannot go on in {}", began.name(), profile.name())]
    StateProfile {
        /// The arithmetic of what it remembers.
        began: Profile,
        /// That of the pass.
        profile: Profile,
    },
    /// A matrix does not have the size its format needs.
    #[error("tensor `{tensor}`: {source}")]
    Matrix {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        #[source]
        source: larql_kernels::ShapeError,
    },
    /// There is no memory for the tiles of a matrix.
    #[error("tensor `{tensor}`: no memory for its tiles")]
    Memory {
        /// The tensor.
        tensor: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Tiles that were made before are not those of the checkpoint.
    #[error("packed tiles of `{role}`: expected {expected}, got {got}")]
    Packed {
        /// What they are for.
        role: String,
        /// What the checkpoint has.
        expected: String,
        /// What the tiles are.
        got: String,
    },
    /// No token was given.
    #[error("sequence {sequence} has no tokens to run")]
    EmptyInput {
        /// Index in the batch.
        sequence: usize,
    },
    /// As many states as sequences are needed.
    #[error("the batch has {sequences} sequences and {states} states")]
    StateCount {
        /// Sequences in the batch.
        sequences: usize,
        /// States given.
        states: usize,
    },
    /// A state made for another model.
    #[error("the sequence state has {got} layers, the model has {expected}")]
    StateLayers {
        /// Layers of the model.
        expected: usize,
        /// Layers of the state.
        got: usize,
    },
    /// A token id beyond the embedding.
    #[error("token id {id} is outside the vocabulary of {d_vocab}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        d_vocab: u32,
    },
    /// More positions than the model was made for.
    #[error("the sequence would have {wanted} positions, the model takes {n_ctx}")]
    ContextFull {
        /// Positions after the step.
        wanted: usize,
        /// The model's limit.
        n_ctx: usize,
    },
    /// A tap refused.
    #[error("tap at layer {layer}, {point}: {message}")]
    Tap {
        /// The layer.
        layer: usize,
        /// The point.
        point: &'static str,
        /// What the tap said.
        message: String,
    },
    /// A weight or an overflow has spoiled a pass.
    #[error("layer {layer}: the residual stream is not finite at position {position}")]
    NotFinite {
        /// The layer that wrote it; 0 also if the embedding did.
        layer: usize,
        /// The first such position.
        position: usize,
    },
    /// The head gives infinity or no number, before the softcap.
    #[error("the logit of token {id} is {value} at position {position}")]
    LogitNotFinite {
        /// The position after which it was asked for.
        position: usize,
        /// The first such token.
        id: usize,
        /// Its logit.
        value: f32,
    },
    /// Logits that are not numbers cannot be sampled from.
    #[error("logit of token {id} is not a number")]
    NotANumber {
        /// The first such token.
        id: usize,
    },
    /// A sampling option outside its range.
    #[error("{option} is {got}, expected {expected}")]
    SamplingOption {
        /// The option.
        option: &'static str,
        /// Its value.
        got: String,
        /// What would work.
        expected: &'static str,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}
