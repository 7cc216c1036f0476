//! [`GgufFile`]: an opened model, in one file or in shards.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::{parse, split};
use crate::bytes::Bytes;
use crate::error::Error;
use crate::tensor::TensorInfo;

/// A checked GGUF file, or all shards of one, mapped read-only.
#[derive(Debug)]
pub struct GgufFile {
    version: u32,
    alignment: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Of `tensors`, in the same order.
    places: Vec<Place>,
    index: HashMap<String, usize>,
    shards: Vec<Bytes>,
    paths: Vec<PathBuf>,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    range: Range<usize>,
}

impl GgufFile {
    /// Opens a file; of a split model, any shard opens all of them.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::MissingShard`], or what is wrong with a header.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, Error> {
        let path = path.as_ref();
        let first = GgufFile::from_bytes(Bytes::map_file(path)?, path)?;
        match split::shard_paths(path, &first.metadata)? {
            None => Ok(first),
            Some(paths) => split::open_all(&paths),
        }
    }

    /// Reads one file that is in memory, even if it is a shard. `origin` is for messages.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn from_bytes(bytes: Bytes, origin: &Path) -> Result<GgufFile, Error> {
        let header = parse::header(&bytes, origin)?;
        // It has been copied, and a vocabulary takes megabytes.
        bytes.release();
        let mut file = GgufFile {
            version: header.version,
            alignment: header.alignment,
            metadata: header.metadata,
            tensors: Vec::new(),
            places: Vec::new(),
            index: HashMap::with_capacity(header.tensors.len()),
            shards: vec![bytes],
            paths: vec![origin.to_path_buf()],
        };
        for (tensor, offset) in header.tensors.iter().zip(header.offsets) {
            // An empty tensor may sit behind the padding of a file that ends before it.
            let start = (header.data_start + offset).min(file.shards[0].len() as u64) as usize;
            file.places.push(Place {
                shard: 0,
                range: start..start + tensor.n_bytes as usize,
            });
        }
        for (idx, tensor) in header.tensors.iter().enumerate() {
            file.index.insert(tensor.name.clone(), idx);
        }
        file.tensors = header.tensors;
        Ok(file)
    }

    /// Appends the tensors of another shard.
    pub(super) fn append(&mut self, shard: GgufFile) -> Result<(), Error> {
        let GgufFile {
            version: _,
            alignment: _,
            metadata: _,
            tensors,
            places,
            index: _,
            shards,
            paths,
        } = shard;
        let base = self.shards.len();
        for (tensor, place) in tensors.into_iter().zip(places) {
            let idx = self.tensors.len();
            if self.index.insert(tensor.name.clone(), idx).is_some() {
                return Err(Error::DuplicateTensor {
                    path: paths[0].clone(),
                    tensor: tensor.name,
                });
            }
            self.tensors.push(tensor);
            self.places.push(Place {
                shard: base + place.shard,
                range: place.range,
            });
        }
        self.shards.extend(shards);
        self.paths.extend(paths);
        Ok(())
    }

    /// 2 or 3; of the first shard, as all that is not about tensors.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensors begin at multiples of this.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The key-value section.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|idx| &self.tensors[*idx])
    }

    /// The bytes of the tensor called `name`, `n_bytes` long, without a copy.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn data(&self, name: &str) -> Result<Bytes, Error> {
        let Some(idx) = self.index.get(name) else {
            return Err(Error::NoSuchTensor {
                path: self.paths[0].clone(),
                tensor: name.to_owned(),
            });
        };
        let Place { shard, range } = &self.places[*idx];
        Ok(self.shards[*shard].slice(range.clone()))
    }

    /// The files, in shard order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}
