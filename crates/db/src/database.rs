//! One opened model: a vindex, a GGUF file or a Hugging Face folder.
//!
//! Opening reads headers. The tokenizer and the weights are resolved when a statement first needs them.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use larql_engine::Model;
use larql_models::tokenizer::Tokenizer;
use larql_models::{Checkpoint, Container, ModelSpec};
use larql_vindex::{Level, Vindex};

use crate::error::DbError;

/// One opened model.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    source: Source,
    checkpoint: Checkpoint,
    tokenizer: OnceCell<Tokenizer>,
    model: OnceCell<Model>,
}

/// What a model was opened from.
#[derive(Debug)]
pub enum Source {
    /// A vindex directory.
    Vindex(Box<Vindex>),
    /// A checkpoint as it came.
    Checkpoint,
}

impl Database {
    /// Opens a vindex, a `.gguf` file or a Hugging Face folder.
    ///
    /// # Errors
    /// Names what is missing or does not fit.
    pub fn open(path: &Path) -> Result<Self, DbError> {
        if !path.exists() {
            return Err(DbError::NotFound {
                path: path.to_owned(),
            });
        }
        let (source, checkpoint) = if Vindex::is_vindex(path) {
            let vindex = Vindex::open(path)?;
            let checkpoint = vindex.checkpoint()?;
            (Source::Vindex(Box::new(vindex)), checkpoint)
        } else {
            (Source::Checkpoint, Checkpoint::open(path)?)
        };
        Ok(Self {
            path: path.to_owned(),
            source,
            checkpoint,
            tokenizer: OnceCell::new(),
            model: OnceCell::new(),
        })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Last part of the path.
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(
            || self.path.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The vindex, if it is one.
    pub fn vindex(&self) -> Option<&Vindex> {
        match &self.source {
            Source::Vindex(vindex) => Some(vindex),
            Source::Checkpoint => None,
        }
    }

    /// What kind of files these are, in words.
    pub fn kind(&self) -> &'static str {
        match (&self.source, self.checkpoint.container()) {
            (Source::Vindex(_), _) => "vindex",
            (Source::Checkpoint, Container::Gguf(_)) => "gguf",
            (Source::Checkpoint, Container::HuggingFace(_)) => "huggingface",
        }
    }

    /// What is inside; a checkpoint has everything.
    pub fn level(&self) -> Level {
        self.vindex().map_or(Level::All, Vindex::level)
    }

    /// Refuses a request that needs more than is inside.
    ///
    /// # Errors
    /// `needs level X, this vindex has Y`.
    pub fn require(&self, level: Level) -> Result<(), DbError> {
        match self.vindex() {
            None => Ok(()),
            Some(vindex) => Ok(vindex.requires(level)?),
        }
    }

    /// The files and their accounting.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The model as plain data.
    pub fn spec(&self) -> &ModelSpec {
        self.checkpoint.spec()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// If the files carry none, or one that cannot be built exactly.
    pub fn tokenizer(&self) -> Result<&Tokenizer, DbError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let built = match &self.source {
            Source::Vindex(vindex) => vindex.tokenizer()?,
            Source::Checkpoint => self.checkpoint.tokenizer()?,
        };
        Ok(self.tokenizer.get_or_init(|| built))
    }

    /// The resolved weights.
    ///
    /// # Errors
    /// If the vindex holds too little to run, or a tensor does not fit.
    pub fn model(&self) -> Result<&Model, DbError> {
        if let Some(model) = self.model.get() {
            return Ok(model);
        }
        self.require(Level::Inference)?;
        let loaded = Model::load(&self.checkpoint)?;
        Ok(self.model.get_or_init(|| loaded))
    }
}
