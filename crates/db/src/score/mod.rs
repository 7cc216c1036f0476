//! How well a model predicts a text, and how far its predictions are from another run's.
//!
//! The ids of the text, without a beginning of sequence, are cut into windows. Each window is run in a fresh context behind
//! the model's own beginning of sequence, and every one of its tokens is scored: `-log2 p(token | what is before it in the
//! window)`. Where a model has no beginning of sequence the first token of a window is context and is not scored.
//! With a second run, the reference, the whole next-token distributions are compared at every scored position by
//! `KL(reference || run) = sum_i p_i (ln p_i - ln q_i)`, `p` the reference's and `q` the run's.
//!
//! Useful for: what a quantized copy, a profile or an edit costs. Not useful for: speed, or texts in a chat's format.
//! Cost: one prefill per window and run, with the head at every position; memory for the logits of a few positions.

mod error;
mod extent;
mod position;
mod report;
mod run;
mod text;

pub use error::ScoreError;
pub use position::kl_divergence;
pub use report::{Comparison, KL_DIRECTION, ScoreReport};
pub use run::{Arm, ROWS_PER_PASS, ScoreOptions, WINDOW_TOKENS, score};
pub use text::ScoreText;
