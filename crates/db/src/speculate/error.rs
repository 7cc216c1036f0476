//! Why a model cannot draft for another.

use thiserror::Error;

use crate::error::DbError;

/// Why a model cannot draft for another.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpeculateError {
    /// One of the two cannot be used.
    #[error(transparent)]
    Model(Box<DbError>),
    /// Vocabularies of different sizes.
    #[error(
        "{draft} cannot draft for {target}: its tokenizer has {draft_tokens} tokens, the other {target_tokens}"
    )]
    VocabularySize {
        /// The draft model.
        draft: String,
        /// Tokens of its tokenizer.
        draft_tokens: usize,
        /// The model that decides.
        target: String,
        /// Tokens of its tokenizer.
        target_tokens: usize,
    },
    /// An id that means something else.
    #[error(
        "{draft} cannot draft for {target}: the tokenizers differ, token {id} is {} in the first and {} in the second",
        piece_text(draft_piece.as_deref()),
        piece_text(target_piece.as_deref())
    )]
    UnequalTokenizers {
        /// The draft model.
        draft: String,
        /// The model that decides.
        target: String,
        /// The first id that differs.
        id: u32,
        /// What it is for the draft model, if anything.
        draft_piece: Option<String>,
        /// What it is for the other, if anything.
        target_piece: Option<String>,
    },
}

impl From<DbError> for SpeculateError {
    fn from(error: DbError) -> Self {
        Self::Model(Box::new(error))
    }
}

fn piece_text(piece: Option<&str>) -> String {
    piece.map_or_else(|| "nothing".to_owned(), |piece| format!("`{piece}`"))
}
