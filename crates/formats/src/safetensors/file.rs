//! [`SafetensorsFile`]: one opened file.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::header;
use crate::bytes::Bytes;
use crate::error::Error;
use crate::tensor::TensorInfo;

/// A checked safetensors file, mapped read-only.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Bytes,
    metadata: BTreeMap<String, String>,
    tensors: Vec<TensorInfo>,
    /// Of `tensors`, in the same order.
    ranges: Vec<Range<usize>>,
    index: HashMap<String, usize>,
}

impl SafetensorsFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`], or what is wrong with the header.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFile, Error> {
        let path = path.as_ref();
        SafetensorsFile::from_bytes(Bytes::map_file(path)?, path)
    }

    /// Reads a file that is in memory. `origin` is for messages.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn from_bytes(bytes: Bytes, origin: &Path) -> Result<SafetensorsFile, Error> {
        let header = header::parse(&bytes, origin)?;
        let index = header
            .tensors
            .iter()
            .enumerate()
            .map(|(idx, tensor)| (tensor.name.clone(), idx))
            .collect();
        Ok(SafetensorsFile {
            path: origin.to_path_buf(),
            bytes,
            metadata: header.metadata,
            tensors: header.tensors,
            ranges: header.ranges,
            index,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `__metadata__`; empty if the file has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All tensors in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|idx| &self.tensors[*idx])
    }

    /// The bytes of the tensor called `name`, without a copy; their address has no alignment.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn data(&self, name: &str) -> Result<Bytes, Error> {
        match self.index.get(name) {
            Some(idx) => Ok(self.bytes.slice(self.ranges[*idx].clone())),
            None => Err(Error::NoSuchTensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
            }),
        }
    }
}
