//! [`Vindex`]: an opened directory.

use std::fs;
use std::path::{Path, PathBuf};

use larql_formats::gguf::GgufFile;
use larql_models::to_gguf::GgufContent;
use larql_models::tokenizer::{GgufVocab, Tokenizer};
use larql_models::{Checkpoint, StoredTensor, TensorRole};

use crate::error::{VindexError, io_error};
use crate::features::{FEATURES, FeatureTable};
use crate::knowledge::{KNOWLEDGE, KnowledgeDb};
use crate::manifest::{
    Level, MANIFEST, MANIFEST_BYTES_MAX, Manifest, TOKENIZER, TokenizerPlace, WEIGHTS,
};

/// An opened vindex: its manifest, and doors to the rest.
///
/// Opening costs the manifest and the sizes of the files; digests are the work of [`crate::verify()`].
#[derive(Debug, Clone)]
pub struct Vindex {
    path: PathBuf,
    manifest: Manifest,
}

impl Vindex {
    /// Whether `path` is a directory with a manifest, sound or not.
    pub fn is_vindex(path: &Path) -> bool {
        path.is_dir() && path.join(MANIFEST).is_file()
    }

    /// Reads the manifest and compares the sizes of the files.
    ///
    /// # Errors
    /// Names the field or the file at fault.
    pub fn open(path: &Path) -> Result<Self, VindexError> {
        let vindex = Self::open_manifest(path)?;
        for entry in &vindex.manifest.files {
            let file = path.join(&entry.name);
            let size = match fs::metadata(&file) {
                Ok(stat) if stat.is_file() => stat.len(),
                Ok(_) => return Err(VindexError::MissingFile { path: file }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(VindexError::MissingFile { path: file });
                }
                Err(error) => return Err(io_error(&file, "read the size of")(error)),
            };
            if size != entry.size {
                return Err(VindexError::FileSize {
                    path: file,
                    expected: entry.size,
                    got: size,
                });
            }
        }
        Ok(vindex)
    }

    /// Reads the manifest only.
    pub(crate) fn open_manifest(path: &Path) -> Result<Self, VindexError> {
        if !Self::is_vindex(path) {
            return Err(VindexError::NotAVindex {
                path: path.to_owned(),
            });
        }
        let manifest_path = path.join(MANIFEST);
        let size = fs::metadata(&manifest_path)
            .map_err(io_error(&manifest_path, "read the size of"))?
            .len();
        if size > MANIFEST_BYTES_MAX {
            return Err(VindexError::ManifestSize {
                path: manifest_path,
                size,
                limit: MANIFEST_BYTES_MAX,
            });
        }
        let text = fs::read(&manifest_path).map_err(io_error(&manifest_path, "read"))?;
        let manifest = Manifest::decode(&text, &manifest_path)?;
        Ok(Self {
            path: path.to_owned(),
            manifest,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the directory says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What is inside.
    pub fn level(&self) -> Level {
        self.manifest.level
    }

    /// Refuses work for which this vindex holds too little.
    ///
    /// # Errors
    /// [`VindexError::NeedsLevel`].
    pub fn requires(&self, needs: Level) -> Result<(), VindexError> {
        if self.level() >= needs {
            return Ok(());
        }
        Err(VindexError::NeedsLevel {
            path: self.path.clone(),
            needs,
            has: self.level(),
            source_name: self.manifest.source.name.clone(),
        })
    }

    /// The model, ready to be loaded: the weights with the manifest's spec.
    ///
    /// # Errors
    /// [`VindexError::NeedsLevel`] below [`Level::Inference`]: a model without attention is looked at tensor by tensor,
    /// by [`Self::tensor`]. Otherwise names what is wrong with the weights.
    pub fn checkpoint(&self) -> Result<Checkpoint, VindexError> {
        self.requires(Level::Inference)?;
        self.contents()
    }

    /// The tensors of this level, matched with the spec.
    ///
    /// # Errors
    /// Names what is wrong with the weights.
    pub fn contents(&self) -> Result<Checkpoint, VindexError> {
        let (path, spec) = (self.weights_path(), self.manifest.spec.clone());
        let content = self.level().content();
        Ok(Checkpoint::from_gguf_with_spec(
            self.weights()?,
            &path,
            spec,
            content,
        )?)
    }

    /// Every tensor that this level has.
    ///
    /// # Errors
    /// Names what is wrong with the weights.
    pub fn tensors(&self) -> Result<Vec<StoredTensor>, VindexError> {
        let contents = self.contents()?;
        let roles = contents.roles().into_iter();
        Ok(roles
            .map(|role| contents.tensor(role))
            .collect::<Result<_, _>>()?)
    }

    /// The tensor of a role, at any level that has it.
    ///
    /// # Errors
    /// [`VindexError::NeedsLevel`] if a higher level would have it; otherwise names what is wrong with the weights.
    pub fn tensor(&self, role: TensorRole) -> Result<StoredTensor, VindexError> {
        if !self.level().content().includes(role) {
            self.requires(Level::Inference)?;
        }
        Ok(self.contents()?.tensor(role)?)
    }

    /// The weights as a container.
    ///
    /// # Errors
    /// If the file is not a sound GGUF.
    pub fn weights(&self) -> Result<GgufFile, VindexError> {
        Ok(GgufFile::open(self.weights_path())?)
    }

    fn weights_path(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`VindexError::NoTokenizer`] if the source had none, or names what is wrong with it.
    pub fn tokenizer(&self) -> Result<Tokenizer, VindexError> {
        let Some(entry) = &self.manifest.tokenizer else {
            return Err(VindexError::NoTokenizer {
                path: self.path.clone(),
            });
        };
        let (path, built) = match entry.place {
            TokenizerPlace::Weights => {
                let weights = self.weights()?;
                let built =
                    GgufVocab::from_metadata(weights.metadata()).and_then(Tokenizer::from_gguf);
                (self.weights_path(), built)
            }
            TokenizerPlace::File => {
                let path = self.path.join(TOKENIZER);
                let json = fs::read(&path).map_err(io_error(&path, "read"))?;
                let special = entry.special.clone();
                let built = Tokenizer::restore(&json, special, entry.chat_template.clone());
                (path, built)
            }
        };
        built.map_err(|source| VindexError::Tokenizer {
            path,
            source: Box::new(source),
        })
    }

    /// The text of a tokenizer that is a file of its own.
    ///
    /// # Errors
    /// If the file is listed and cannot be read.
    pub fn tokenizer_json(&self) -> Result<Option<String>, VindexError> {
        let path = self.path.join(TOKENIZER);
        match self.manifest.file(TOKENIZER) {
            None => Ok(None),
            Some(_) => Ok(Some(
                fs::read_to_string(&path).map_err(io_error(&path, "read"))?,
            )),
        }
    }

    /// The cache of features; created with the first call.
    ///
    /// # Errors
    /// Only if not even a table in memory can be made.
    pub fn features(&self) -> Result<FeatureTable, VindexError> {
        FeatureTable::open(&self.path.join(FEATURES), &self.manifest.digest)
    }

    /// The relations.
    ///
    /// # Errors
    /// If there is a file and it cannot be read.
    pub fn knowledge(&self) -> Result<KnowledgeDb, VindexError> {
        KnowledgeDb::open(&self.path.join(KNOWLEDGE))
    }
}

impl Level {
    /// Which tensors the weights have at this level.
    pub(crate) fn content(self) -> GgufContent {
        match self {
            Self::Browse => GgufContent::WithoutAttention,
            Self::Inference | Self::All => GgufContent::Whole,
        }
    }
}
