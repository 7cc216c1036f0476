//! Why a request cannot be answered, and what would work.

use std::path::PathBuf;

use larql_engine::EngineError;
use larql_models::ModelError;
use larql_models::tokenizer::TokenizerError;
use thiserror::Error;

/// Why a request cannot be answered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DbError {
    /// The files of a model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A container cannot be read.
    #[error(transparent)]
    Container(#[from] larql_formats::Error),
    /// A vindex cannot be used.
    #[error(transparent)]
    Vindex(#[from] larql_vindex::VindexError),
    /// The run failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Text cannot be encoded or decoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A reference file does not fit.
    #[error("reference run: {what}")]
    Golden {
        /// What does not fit.
        what: String,
    },
    /// Something this version describes and does not do.
    #[error("{what} is not available in this version")]
    NotYet {
        /// What.
        what: &'static str,
    },
    /// A position behind the end of the prompt.
    #[error("position {position} is not in the prompt: it has tokens 0 to {}", n_tokens.saturating_sub(1))]
    Position {
        /// What was asked for.
        position: usize,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// A text cannot be scored.
    #[error(transparent)]
    Score(#[from] crate::score::ScoreError),
    /// The same run gave other tokens.
    #[error("repeat {repeat} gave other tokens than the first")]
    Irreproducible {
        /// Index of the repeat.
        repeat: usize,
    },
    /// A sequence that was decoded with others got other tokens than alone.
    #[error("sequence {sequence} of a batch of {n_sequences} got other tokens than alone")]
    BatchDiffers {
        /// Index of the sequence.
        sequence: usize,
        /// Sequences decoded together.
        n_sequences: usize,
    },
    /// No memory to measure the read bandwidth with.
    #[error("no memory to measure the read bandwidth with ({n_bytes} bytes): {source}")]
    ProbeMemory {
        /// What was asked for.
        n_bytes: usize,
        /// What the system says.
        source: std::io::Error,
    },
    /// Nothing there.
    #[error("{path}: no such file or folder")]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// A folder that cannot be listed.
    #[error("{path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The text is no statement.
    #[error(transparent)]
    Parse(#[from] larql_lql::ParseError),
    /// A statement that cannot be executed as written.
    #[error("{message}")]
    Query {
        /// The text at fault.
        span: larql_lql::Span,
        /// What is wrong with it.
        message: String,
        /// What would work.
        hint: Option<String>,
    },
    /// A statement about a model before any was opened.
    #[error("no model is open")]
    NoModel,
    /// The table that filters and orders rows.
    #[error("query table: {0}")]
    Sql(#[from] rusqlite::Error),
}
