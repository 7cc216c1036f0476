//! Runs a resolved model: the one forward pass, sequence state, sampling, taps.
//!
//! Useful for: logits, generation, observing and editing activations at named points. Not useful for: deciding what a
//! checkpoint means (that is `larql-models`) or answering questions about it (`larql-db`).
//! Cost: weights stay mapped; a pass works in memory that the runtime keeps, which the largest batch so far decides, and the
//! state grows by its new rows, with room for 64 positions at a time. So a step between two rooms allocates nothing.
#![forbid(unsafe_code)]

mod activation;
mod attention;
mod error;
mod ffn;
mod forward;
mod layers;
mod ledger;
mod load;
mod model;
mod pack;
mod pass;
mod recurrent;
mod rewind;
mod rope;
mod runtime;
mod sample;
mod softmax;
mod state;
mod streams;
mod tap;

pub use error::EngineError;
pub use forward::{Logits, SequenceInput, WantedLogits, forward};
pub use ledger::{Charge, Ledger, OperatorClass};
pub use model::{FfnView, Matrix, Model};
pub use pack::{PackedMatrices, PackedMatrix, TilePlace, write_tiles};
pub use rewind::{Mark, has_running_state, step_many};
pub use runtime::{Interrupt, Profile, Runtime};
pub use sample::{Sampler, SamplingOptions, argmax, log_softmax, log_sum_exp, top_k};
pub use state::SequenceState;
pub use tap::{Recorded, Recorder, RowPlace, Tap, TapPoint};
