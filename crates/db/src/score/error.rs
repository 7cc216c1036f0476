//! Why a text cannot be scored.

use std::io;

use thiserror::Error;

use super::run::WINDOW_TOKENS_MIN;
use crate::rows::counted;

/// Why a text cannot be scored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// The file cannot be read.
    #[error("{name}: cannot be read")]
    Read {
        /// The file.
        name: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// More than is read into memory.
    #[error("{name}: has more than {limit} bytes")]
    FileTooLong {
        /// The file.
        name: String,
        /// The limit.
        limit: u64,
    },
    /// A file without a byte.
    #[error("{name}: is empty, there is nothing to score")]
    EmptyText {
        /// The file.
        name: String,
    },
    /// A range that does not lie in the file, or is none.
    #[error(
        "{name}: bytes {start}..{end} are not in it, expected a start before the end and an end of at most {n_bytes}"
    )]
    ByteRange {
        /// The file.
        name: String,
        /// First byte asked for.
        start: u64,
        /// The byte behind the last.
        end: u64,
        /// Bytes of the file.
        n_bytes: u64,
    },
    /// A range that begins or ends within a character.
    #[error("{name}: byte {offset} is inside a character, a range must begin and end between two")]
    InsideCharacter {
        /// The file.
        name: String,
        /// The end of the range at fault.
        offset: u64,
    },
    /// Bytes that are no text.
    #[error("{name}: not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// The file.
        name: String,
        /// The first such byte, from the beginning of the file.
        offset: u64,
    },
    /// A window that predicts nothing, or does not fit the context.
    #[error("a window of {}, expected {min} to {max}: {model} takes {n_ctx} positions{}", counted(*got, "token"), prefix_text(*prefix), min = WINDOW_TOKENS_MIN)]
    WindowLength {
        /// The model with the shorter context.
        model: String,
        /// Tokens of a window.
        got: usize,
        /// The longest that fits.
        max: usize,
        /// Positions the model takes.
        n_ctx: usize,
        /// Positions of the beginning of sequence.
        prefix: usize,
    },
    /// No pass can be made of no position.
    #[error("0 positions per pass, expected 1 or more")]
    RowsPerPass,
    /// No token has anything before it.
    #[error("the text is one token, and {model} has no beginning of sequence to predict it from")]
    NothingScored {
        /// The model.
        model: String,
    },
    /// Distributions over different vocabularies.
    #[error(
        "{run} predicts {run_tokens} tokens and {reference} {reference_tokens}: distributions over different vocabularies cannot be compared"
    )]
    VocabularySize {
        /// The scored model.
        run: String,
        /// Rows of its head.
        run_tokens: u32,
        /// The model it is compared with.
        reference: String,
        /// Rows of its head.
        reference_tokens: u32,
    },
    /// Tokenizers that cut the text differently, or begin it differently.
    #[error(
        "the tokenizers of {run} and {reference} differ: token {at} of {what} is {} for the first and {} for the second",
        id_text(*run_id),
        id_text(*reference_id)
    )]
    UnequalTokenizers {
        /// The scored model.
        run: String,
        /// The model it is compared with.
        reference: String,
        /// Whose tokens.
        what: &'static str,
        /// Index of the first that differs.
        at: usize,
        /// The first one's id there, if it has one.
        run_id: Option<u32>,
        /// The second one's.
        reference_id: Option<u32>,
    },
    /// The same weights with the same arithmetic.
    #[error(
        "the run is compared with itself: the same weights with profile {profile} on both sides"
    )]
    SameRun {
        /// The arithmetic of both.
        profile: &'static str,
    },
    /// A probability cannot be made of such a logit.
    #[error("{model}, window {window}, position {position}: the logit of token {id} is not finite")]
    LogitNotFinite {
        /// The model.
        model: String,
        /// Index of the window.
        window: usize,
        /// Position in the window's context.
        position: usize,
        /// The token.
        id: usize,
    },
}

impl ScoreError {
    /// What would work.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::WindowLength { got, max, .. } if *max >= WINDOW_TOKENS_MIN => {
                Some(if *got < WINDOW_TOKENS_MIN {
                    format!("`--window {WINDOW_TOKENS_MIN}` is the shortest that works")
                } else {
                    format!("`--window {max}` is the longest that fits")
                })
            }
            Self::InsideCharacter { offset, .. } => Some(format!(
                "a character has at most 4 bytes: its first is one of the 3 before byte {offset}"
            )),
            Self::FileTooLong { .. } => {
                Some("score a part that was cut off into a file of its own".to_owned())
            }
            Self::SameRun { .. } => Some("name another profile, or another model".to_owned()),
            Self::VocabularySize { .. } | Self::UnequalTokenizers { .. } => Some(
                "score both apart and compare bits per byte, which does not depend on the tokens"
                    .to_owned(),
            ),
            Self::LogitNotFinite { .. } => {
                Some("`larql verify VINDEX` names the first weight that is not finite".to_owned())
            }
            Self::Read { .. }
            | Self::EmptyText { .. }
            | Self::ByteRange { .. }
            | Self::NotUtf8 { .. }
            | Self::WindowLength { .. }
            | Self::RowsPerPass
            | Self::NothingScored { .. } => None,
        }
    }
}

/// What the beginning of sequence takes of the positions, if there is one.
fn prefix_text(n: usize) -> String {
    match n {
        0 => String::new(),
        n => format!(", {n} of them for its beginning of sequence"),
    }
}

fn id_text(id: Option<u32>) -> String {
    id.map_or_else(|| "absent".to_owned(), |id| id.to_string())
}
