//! What can be wrong with a vindex, one variant per thing a caller could do differently.

use std::io;
use std::path::{Path, PathBuf};

use larql_models::ModelError;
use larql_models::tokenizer::TokenizerError;

use crate::manifest::{FORMAT_VERSION, Level};
use crate::pack::{self, PackError};

/// Why a vindex cannot be written, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VindexError {
    /// A file of a vindex that is not what its manifest says.
    #[error("{path}: the file has changed since the vindex was made")]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// An output in a folder that is not there.
    #[error("{path}: there is no such folder")]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A type for matrices that have types of their own.
    #[error(
        "every tensor gets the type it had in the source: a type for matrices without one changes nothing"
    )]
    NothingToConvert,
    /// A folder of safetensors asked to become one.
    #[error("{path}: is a folder of safetensors already")]
    NothingToExport {
        /// The folder.
        path: PathBuf,
    },
    /// Not a directory with a manifest.
    #[error("{path}: not a vindex: expected a directory with vindex.json")]
    NotAVindex {
        /// What was given.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{path}: cannot {action}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The manifest is no JSON, or not of the shape that the version has.
    #[error("{path}: {}{problem}", field.as_ref().map_or_else(String::new, |field| format!("`{field}`: ")))]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The field at fault, where one can be named.
        field: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
    /// The manifest is larger than any that is written here.
    #[error("{path}: {size} bytes, a manifest has at most {limit}")]
    ManifestSize {
        /// The manifest.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// Another version of the format.
    #[error("{path}: format version {got}, this program reads version {FORMAT_VERSION}")]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        got: u64,
    },
    /// A file that the manifest names is not there.
    #[error("{path}: missing, the manifest names it")]
    MissingFile {
        /// The file.
        path: PathBuf,
    },
    /// A file has another size than the manifest says.
    #[error("{path}: {got} bytes, the manifest says {expected}")]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Size in the manifest.
        expected: u64,
        /// Size on disk.
        got: u64,
    },
    /// The vindex holds less than what was asked for.
    #[error("{path}: needs level {needs}, this vindex has {has}")]
    NeedsLevel {
        /// The vindex.
        path: PathBuf,
        /// What is needed.
        needs: Level,
        /// What is there.
        has: Level,
        /// Name of the source it was extracted from.
        source_name: String,
    },
    /// The vindex was extracted without a tokenizer.
    #[error("{path}: no tokenizer: the source had none when this vindex was extracted")]
    NoTokenizer {
        /// The vindex.
        path: PathBuf,
    },
    /// Something has the name that a new vindex should get.
    #[error("{path}: exists already")]
    Exists {
        /// The name.
        path: PathBuf,
    },
    /// The name for a new vindex names no directory entry.
    #[error("{path}: not a name for a new directory")]
    BadName {
        /// What was given.
        path: PathBuf,
    },
    /// The name for a new GGUF is not one by which it would be recognized.
    #[error("{path}: not a name for a GGUF, which is one file whose name ends in .gguf")]
    NotAGgufName {
        /// What was given.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("interrupted during {stage}")]
    Interrupted {
        /// What was being done.
        stage: &'static str,
    },
    /// The checkpoint is at fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The container of the weights is at fault.
    #[error(transparent)]
    Container(#[from] larql_formats::Error),
    /// The tokenizer cannot be built.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file it should come from.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<TokenizerError>,
    },
    /// A pack of tiles that this vindex cannot be run from.
    #[error("{path}: {source}")]
    Pack {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<PackError>,
    },
    /// A table cannot be read or written.
    #[error("{path}: {action} failed: {source}")]
    Table {
        /// The database.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: rusqlite::Error,
    },
    /// A table of another version.
    #[error("{path}: table version {got}, this program reads version {known}")]
    TableVersion {
        /// The database.
        path: PathBuf,
        /// Its version.
        got: i64,
        /// The version that is read.
        known: i64,
    },
    /// A relation of that name is defined.
    #[error("relation `{name}` exists already")]
    RelationExists {
        /// Its name.
        name: String,
    },
    /// No relation has that name.
    #[error("no relation `{name}`")]
    NoSuchRelation {
        /// The name.
        name: String,
    },
    /// A relation that cannot be stored.
    #[error("relation `{name}`: {problem}")]
    BadRelation {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl VindexError {
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NeedsLevel {
                needs, source_name, ..
            } => {
                let or_higher = match needs {
                    Level::Browse | Level::Inference => " or higher",
                    Level::All => "",
                };
                Some(format!(
                    "extract {source_name} again with --level {needs}{or_higher}"
                ))
            }
            Self::Exists { path } => Some(format!(
                "remove {} or choose another name; nothing is overwritten",
                path.display()
            )),
            Self::NotAGgufName { path } => Some(format!(
                "for example {}",
                path.with_extension("gguf").display()
            )),
            Self::Version { .. } => {
                Some("extract the source again with this program".to_owned())
            }
            Self::MissingFile { .. } | Self::FileSize { .. } => Some(
                "the directory is incomplete or damaged: copy it again, or extract the source again"
                    .to_owned(),
            ),
            Self::NoTokenizer { .. } => Some(
                "extract again from a folder with tokenizer.json or a GGUF with a vocabulary"
                    .to_owned(),
            ),
            Self::RelationExists { name } => Some(format!("drop `{name}` first, or choose another name")),
            Self::Pack { path, source } => Some(match source.is_replaceable() {
                true => pack::hint(path),
                false => pack::occupied_hint(path),
            }),
            Self::Changed { .. } => Some("`larql verify` says what else has changed".to_owned()),
            Self::NoFolder { .. } => Some("make it first, or choose another place".to_owned()),
            Self::NothingToConvert => Some("leave --dtype out".to_owned()),
            Self::NothingToExport { .. } => Some(
                "its files are what an export would write; extract it and export the vindex to get a copy"
                    .to_owned(),
            ),
            Self::NotAVindex { .. }
            | Self::Io { .. }
            | Self::Manifest { .. }
            | Self::ManifestSize { .. }
            | Self::BadName { .. }
            | Self::Interrupted { .. }
            | Self::Model(_)
            | Self::Container(_)
            | Self::Tokenizer { .. }
            | Self::Table { .. }
            | Self::TableVersion { .. }
            | Self::NoSuchRelation { .. }
            | Self::BadRelation { .. } => None,
        }
    }
}

/// Names the path and the action of a failed file operation.
pub(crate) fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> VindexError {
    let path = path.to_owned();
    move |source| VindexError::Io {
        path,
        action,
        source,
    }
}
