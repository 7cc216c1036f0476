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
    /// Nothing there.
    #[error("{path}: no such file or folder")]
    NotFound {
        /// The path.
        path: PathBuf,
    },
}
