//! One opened model: a vindex, a GGUF file or a Hugging Face folder.
//!
//! Opening reads headers. The tokenizer and the weights are resolved when a statement first needs them.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use larql_engine::Model;
use larql_models::checkpoint::IgnoredTensor;
use larql_models::tokenizer::Tokenizer;
use larql_models::{Checkpoint, Container, ModelSpec};
use larql_vindex::{Level, Pack, Vindex};

use crate::error::DbError;
use crate::pack::matrices;

/// One opened model.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    source: Source,
    spec: ModelSpec,
    /// Absent below [`Level::Inference`], where some tensors are.
    checkpoint: Option<Checkpoint>,
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
        let (source, spec, checkpoint) = if Vindex::is_vindex(path) {
            let vindex = Vindex::open(path)?;
            let spec = vindex.manifest().spec.clone();
            let checkpoint = match vindex.level() {
                Level::Browse => None,
                Level::Inference | Level::All => Some(vindex.checkpoint()?),
            };
            (Source::Vindex(Box::new(vindex)), spec, checkpoint)
        } else {
            let checkpoint = Checkpoint::open(path)?;
            (
                Source::Checkpoint,
                checkpoint.spec().clone(),
                Some(checkpoint),
            )
        };
        Ok(Self {
            path: path.to_owned(),
            source,
            spec,
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
        match (
            &self.source,
            self.checkpoint.as_ref().map(Checkpoint::container),
        ) {
            (Source::Vindex(_), _) | (Source::Checkpoint, None) => "vindex",
            (Source::Checkpoint, Some(Container::Gguf(_))) => "gguf",
            (Source::Checkpoint, Some(Container::HuggingFace(_))) => "huggingface",
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
    ///
    /// # Errors
    /// If the vindex holds too little to run.
    pub fn checkpoint(&self) -> Result<&Checkpoint, DbError> {
        self.require(Level::Inference)?;
        Ok(self
            .checkpoint
            .as_ref()
            .expect("everything above level browse has its checkpoint"))
    }

    /// What a user should know about how the files were read.
    pub fn notes(&self) -> &[String] {
        self.checkpoint.as_ref().map_or(&[], Checkpoint::notes)
    }

    /// Tensors of the files that the forward pass does not need.
    pub fn ignored(&self) -> &[IgnoredTensor] {
        self.checkpoint.as_ref().map_or(&[], Checkpoint::ignored)
    }

    /// Tensors of the files that the forward pass needs; one may hold the matrices of many experts.
    ///
    /// # Errors
    /// If the weights of the vindex cannot be read.
    pub fn n_tensors(&self) -> Result<usize, DbError> {
        match (&self.checkpoint, &self.source) {
            (Some(checkpoint), _) => Ok(checkpoint.layouts().len()),
            (None, Source::Checkpoint) => Ok(0),
            (None, Source::Vindex(vindex)) => Ok(vindex.contents()?.layouts().len()),
        }
    }

    /// Elements and bytes of what is inside, by stored type.
    ///
    /// # Errors
    /// If the weights of the vindex cannot be read.
    pub fn stored(&self) -> Result<BTreeMap<&'static str, (u64, u64)>, DbError> {
        match (&self.checkpoint, &self.source) {
            (Some(checkpoint), _) => Ok(checkpoint.dtypes()),
            (None, Source::Checkpoint) => Ok(BTreeMap::new()),
            (None, Source::Vindex(vindex)) => {
                let mut by_type = BTreeMap::new();
                for tensor in vindex.tensors()? {
                    let entry: &mut (u64, u64) = by_type.entry(tensor.format.name()).or_default();
                    entry.0 += tensor.shape.iter().product::<u64>();
                    entry.1 += tensor.bytes.len() as u64;
                }
                Ok(by_type)
            }
        }
    }

    /// The model as plain data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
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
            Source::Checkpoint => self.checkpoint()?.tokenizer()?,
        };
        Ok(self.tokenizer.get_or_init(|| built))
    }

    /// The tiles beside the weights, if it is a vindex with a pack; what [`Self::model`] runs then.
    ///
    /// # Errors
    /// If the pack is damaged or of another model: it is never passed over.
    pub fn pack(&self) -> Result<Option<Pack>, DbError> {
        match (&self.source, &self.checkpoint) {
            (Source::Vindex(vindex), Some(checkpoint)) => Ok(Pack::open(vindex, checkpoint)?),
            (Source::Vindex(_), None) | (Source::Checkpoint, _) => Ok(None),
        }
    }

    /// The resolved weights.
    ///
    /// # Errors
    /// If the vindex holds too little to run, or a tensor or the pack does not fit.
    pub fn model(&self) -> Result<&Model, DbError> {
        if let Some(model) = self.model.get() {
            return Ok(model);
        }
        let checkpoint = self.checkpoint()?;
        let loaded = match self.pack()? {
            None => Model::load(checkpoint)?,
            Some(pack) => Model::load_packed(checkpoint, &matrices(&pack))?,
        };
        Ok(self.model.get_or_init(|| loaded))
    }
}
