//! Speculative decoding: tokens guessed ahead, run in one traversal, kept as far as the sampler chooses them too.
//!
//! A draft never decides anything. Each token is drawn by the caller's sampler from the model's own logits, with the numbers
//! that plain decoding would have drawn it with; a draft only says which positions could be run before that was known. So
//! the tokens are those of plain decoding, at every temperature and seed, however long drafts are and whatever the clock
//! says. For a fixed draft `t` this is the rule of Leviathan et al. 2023 (arXiv:2211.17192): `t` is kept with
//! probability `p(t)`, and what takes its place follows `p` without `t`, renormalized. For a draft drawn from `q` their
//! rule, `min(1, p/q)` and a residual, would keep it with probability `1 - d`, `d` being the distance of `p` and `q`, but
//! what it leads to depends on where drafts begin, and so on the clock. Here the draft model draws with the numbers that
//! will decide (see [`larql_engine::Sampler`]), which keeps it with probability `(1 - d) / (1 + d)` or more and leads to
//! one text.
//!
//! Not a second loop: [`crate::generate::generate`] is the only one, and plain decoding is the case without drafts.
//! Cost: a pass of `k + 1` positions for up to `k + 1` tokens; [`Speculator`] weighs it against single steps.

mod draft;
mod error;
mod lookup;
mod pace;
mod speculator;
pub(crate) mod steps;

pub use error::SpeculateError;
pub use pace::{DRAFT_TOKENS_MAX, DraftLength};
pub use speculator::{SpeculationReport, Speculator};
