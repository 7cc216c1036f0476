//! [`Checkpoint`]: all weights of a model folder, in one file or in shards with an index.
//!
//! Which file holds the weights is decided by name and never guessed: a folder with two
//! candidates is an error that lists both.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::MAX_HEADER_BYTES;
use super::file::SafetensorsFile;
use super::header::Pairs;
use crate::bytes::Bytes;
use crate::error::Error;
use crate::tensor::TensorInfo;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The opened weights of a folder.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    paths: Vec<PathBuf>,
    tensors: Vec<TensorInfo>,
    /// Name to position in `tensors` and file.
    index: HashMap<String, (usize, usize)>,
}

/// The index file. Its other keys, such as the total size, say nothing that the shards do not.
#[derive(Deserialize)]
struct IndexJson {
    weight_map: Pairs<String>,
}

impl Checkpoint {
    /// Opens a folder, or a single safetensors file.
    ///
    /// In a folder: the index with its shards, else `model.safetensors`, else the only
    /// `*.safetensors` there is.
    ///
    /// # Errors
    /// [`Error::Ambiguous`], [`Error::NoWeights`], [`Error::MissingIndexShard`],
    /// [`Error::MissingTensors`], [`Error::UnlistedTensors`], [`Error::TensorInTwoShards`], or what is wrong with a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, Error> {
        let path = path.as_ref();
        if path.is_file() {
            return Checkpoint::of_single(path, path);
        }
        let single = path.join(SINGLE);
        let index = path.join(INDEX);
        match (single.exists(), index.exists()) {
            (true, true) => Err(Error::Ambiguous {
                path: path.to_path_buf(),
                candidates: vec![SINGLE.into(), INDEX.into()],
            }),
            (true, false) => Checkpoint::of_single(path, &single),
            (false, true) => Checkpoint::of_index(path, &index),
            (false, false) => Checkpoint::of_single(path, &only_file(path)?),
        }
    }

    fn of_single(path: &Path, file: &Path) -> Result<Checkpoint, Error> {
        let file = SafetensorsFile::open(file)?;
        let mut checkpoint = Checkpoint::empty(path);
        let tensors: Vec<_> = file.tensors().to_vec();
        checkpoint.add(file, tensors);
        Ok(checkpoint)
    }

    fn of_index(path: &Path, index: &Path) -> Result<Checkpoint, Error> {
        let shard_of = read_index(index)?;
        let mut names_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in &shard_of {
            names_of.entry(shard).or_default().push(tensor);
        }
        let mut checkpoint = Checkpoint::empty(path);
        let (mut missing, mut unlisted, mut twice) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, names) in names_of {
            let shard_path = path.join(shard);
            if !shard_path.exists() {
                return Err(Error::MissingIndexShard {
                    path: index.to_path_buf(),
                    shard: shard.to_owned(),
                    n_tensors: names.len(),
                });
            }
            let file = SafetensorsFile::open(&shard_path)?;
            missing.extend(
                names
                    .iter()
                    .filter(|name| file.tensor(name).is_none())
                    .map(|name| ((*name).to_owned(), shard.to_owned())),
            );
            let mut listed = Vec::with_capacity(names.len());
            for tensor in file.tensors() {
                match shard_of.get(&tensor.name) {
                    Some(its_shard) if its_shard == shard => listed.push(tensor.clone()),
                    Some(its_shard) => twice.push((tensor.name.clone(), its_shard, shard)),
                    None => unlisted.push((tensor.name.clone(), shard.to_owned())),
                }
            }
            checkpoint.add(file, listed);
        }
        let path = || index.to_path_buf();
        if !missing.is_empty() {
            missing.sort();
            return Err(Error::MissingTensors {
                path: path(),
                tensors: missing,
            });
        }
        // Where none is missing, the shard of the index has it too.
        if let Some((tensor, one, other)) = twice.into_iter().min() {
            return Err(Error::TensorInTwoShards {
                path: path(),
                tensor,
                shards: Box::new([one.clone(), other.to_owned()]),
            });
        }
        if !unlisted.is_empty() {
            unlisted.sort();
            return Err(Error::UnlistedTensors {
                path: path(),
                tensors: unlisted,
            });
        }
        Ok(checkpoint)
    }

    fn empty(path: &Path) -> Checkpoint {
        Checkpoint {
            path: path.to_path_buf(),
            files: Vec::new(),
            paths: Vec::new(),
            tensors: Vec::new(),
            index: HashMap::new(),
        }
    }

    fn add(&mut self, file: SafetensorsFile, tensors: Vec<TensorInfo>) {
        for tensor in tensors {
            let place = (self.tensors.len(), self.files.len());
            let previous = self.index.insert(tensor.name.clone(), place);
            debug_assert!(previous.is_none(), "the index has one shard per tensor");
            self.tensors.push(tensor);
        }
        self.paths.push(file.path().to_path_buf());
        self.files.push(file);
    }

    /// What was opened: the folder or the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weight files, ordered by name.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// `__metadata__` of the first file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.files.first().map_or(&NONE, SafetensorsFile::metadata)
    }

    /// All tensors, by file and then in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|(idx, _)| &self.tensors[*idx])
    }

    /// Index in [`Self::paths`] of the file that has the tensor.
    pub fn file_of(&self, name: &str) -> Option<usize> {
        self.index.get(name).map(|(_, file)| *file)
    }

    /// The bytes of the tensor called `name`, without a copy; their address has no alignment.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn data(&self, name: &str) -> Result<Bytes, Error> {
        match self.index.get(name) {
            Some((_, file)) => self.files[*file].data(name),
            None => Err(Error::NoSuchTensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
            }),
        }
    }
}

fn read_index(path: &Path) -> Result<HashMap<String, String>, Error> {
    let bytes = Bytes::map_file(path)?;
    if bytes.len() as u64 > MAX_HEADER_BYTES {
        return Err(Error::Limit {
            path: path.to_path_buf(),
            what: "the size of the index".into(),
            value: bytes.len() as u64,
            limit: MAX_HEADER_BYTES,
        });
    }
    let json: IndexJson = serde_json::from_slice(&bytes).map_err(|source| Error::IndexJson {
        path: path.to_path_buf(),
        source,
    })?;
    let mut shard_of = HashMap::with_capacity(json.weight_map.0.len());
    for (tensor, shard) in json.weight_map.0 {
        if !is_plain_file_name(&shard) {
            return Err(Error::ShardName {
                path: path.to_path_buf(),
                tensor,
                shard,
            });
        }
        if shard_of.contains_key(&tensor) {
            return Err(Error::DuplicateTensor {
                path: path.to_path_buf(),
                tensor,
            });
        }
        shard_of.insert(tensor, shard);
    }
    Ok(shard_of)
}

/// An index must not reach outside its folder, whichever system wrote it.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

fn only_file(folder: &Path) -> Result<PathBuf, Error> {
    let io = |source| Error::Io {
        path: folder.to_path_buf(),
        action: "list",
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            found.push(path);
        }
    }
    found.sort();
    match found.as_slice() {
        [] => Err(Error::NoWeights {
            path: folder.to_path_buf(),
        }),
        [file] => Ok(file.clone()),
        files => Err(Error::Ambiguous {
            path: folder.to_path_buf(),
            candidates: files
                .iter()
                .filter_map(|file| file.file_name())
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
        }),
    }
}
