//! The vindex directory: a model as files that can be queried, written once and mapped read-only.
//!
//! Useful for: turning a checkpoint into a directory ([`extract()`]), opening one in the time it takes to read its
//! manifest ([`Vindex::open`]), proving that it is intact ([`verify()`]), and the two SQLite tables beside the weights
//! ([`FeatureTable`], [`KnowledgeDb`]). Not useful for: running the model, or knowing what a query says.
//!
//! The one idea: the manifest is the only truth. Nothing is inferred from the name, presence or length of a file; what
//! the manifest does not state is not there, and what it states is checked.
#![forbid(unsafe_code)]

mod background;
mod digest;
mod error;
mod export;
mod extract;
mod features;
mod knowledge;
mod manifest;
mod pack;
mod source_digest;
mod sqlite;
mod stated_dtype;
mod stream;
mod verify;
mod vindex;

pub use error::VindexError;
pub use export::{ExportReport, ExportSource, export_gguf, export_safetensors};
pub use extract::{ExtractOptions, ExtractReport, WeightsPlacement, extract, staging_prefix};
pub use features::{FeatureRow, FeatureTable, OutputToken};
pub use knowledge::{KnowledgeDb, RelationOrigin, RelationRow};
pub use manifest::{
    CreatedBy, FORMAT_VERSION, FileEntry, Ignored, Level, Manifest, Source, SourceDigest,
    SourceFile, SourceKind, SourceTensor, TensorPlace, TextFile, TokenizerEntry, TokenizerPlace,
};
pub use pack::{MakeTiles, PACK, Pack, PackError, PackedTiles, Pieces, write_pack};
pub use verify::{Check, VerifyReport, verify};
pub use vindex::Vindex;

/// How far a long operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in a word or two.
    pub stage: &'static str,
    /// Bytes of the stage that are done.
    pub done: u64,
    /// Bytes of the stage.
    pub total: u64,
}
