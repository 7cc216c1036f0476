//! [`TensorInfo`]: what both containers say about a tensor, in one convention.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, MEMORY};

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// As stored; unique in its file or checkpoint.
    pub name: String,
    /// How the values are stored.
    pub dtype: Dtype,
    /// Row-major, outermost first: a weight matrix is `[out, in]`, and `in` is contiguous.
    /// GGUF stores the reverse order; readers and writers turn it around.
    pub shape: Vec<u64>,
    /// `dtype.n_bytes(&shape)`.
    pub n_bytes: u64,
}

impl TensorInfo {
    /// Sizes a tensor that is going to be written.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] or [`Error::SizeOverflow`].
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: Vec<u64>,
    ) -> Result<TensorInfo, Error> {
        TensorInfo::sized(name.into(), dtype, shape, Path::new(MEMORY))
    }

    /// As [`TensorInfo::new`], blaming `path`.
    pub(crate) fn sized(
        name: String,
        dtype: Dtype,
        shape: Vec<u64>,
        path: &Path,
    ) -> Result<TensorInfo, Error> {
        match dtype.n_bytes(&shape) {
            Some(n_bytes) => Ok(TensorInfo {
                name,
                dtype,
                shape,
                n_bytes,
            }),
            None if shape.last().copied().unwrap_or(1) % dtype.block_len() != 0 => {
                Err(Error::PartialBlock {
                    path: path.to_path_buf(),
                    tensor: name,
                    dtype,
                    shape,
                    block_len: dtype.block_len(),
                })
            }
            None => Err(Error::SizeOverflow {
                path: path.to_path_buf(),
                tensor: name,
                dtype,
                shape,
            }),
        }
    }

    /// Number of values. [`Dtype::n_bytes`] has checked that the product fits.
    pub fn n_values(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Writers trust `n_bytes`, and its field is public.
    pub(crate) fn check_n_bytes(&self) -> Result<(), Error> {
        if self.dtype.n_bytes(&self.shape) == Some(self.n_bytes) {
            return Ok(());
        }
        Err(Error::DeclaredBytes {
            tensor: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            declared: self.n_bytes,
        })
    }
}
