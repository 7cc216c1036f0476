//! GGUF and safetensors as containers, checked against hostile files.
//!
//! Useful for: listing the tensors of a file, mapping their bytes without a copy, and
//! streaming new files that stock tools can read. Not useful for: knowing what a tensor
//! means, decoding a quantized block, or downloading anything.
//!
//! The one idea: a file is checked completely when it is opened. Counts, lengths, shapes,
//! offsets and names are compared with the size of the file before anything is allocated,
//! so that whoever holds a [`gguf::GgufFile`] or a [`safetensors::Checkpoint`] has nothing left to
//! re-check. Opening costs time and memory in proportion to the header, never to the weights.
//!
//! ```
//! use larql_formats::{Dtype, TensorInfo, gguf};
//!
//! let mut metadata = gguf::Metadata::new();
//! metadata.insert("general.architecture", gguf::Value::String("toy".into()))?;
//! let mut writer = gguf::GgufWriter::new(metadata, gguf::DEFAULT_ALIGNMENT)?;
//! writer.declare(TensorInfo::new("w", Dtype::F32, vec![2, 3])?)?;
//! let mut stream = writer.begin(Vec::new())?;
//! stream.write_tensor_bytes("w", &[7; 24])?;
//! let file = stream.finish()?;
//!
//! let bytes = larql_formats::Bytes::from_vec(file);
//! let file = gguf::GgufFile::from_bytes(bytes, "toy.gguf".as_ref())?;
//! assert_eq!(file.metadata().str("general.architecture")?, Some("toy"));
//! assert_eq!(file.tensors()[0].shape, [2, 3]);
//! assert_eq!(&file.data("w")?[..4], &[7, 7, 7, 7]);
//! # Ok::<(), larql_formats::Error>(())
//! ```

#![deny(unsafe_code)]

mod bytes;
mod dtype;
mod error;
pub mod gguf;
mod mmap;
mod publish;
pub mod safetensors;
mod stream;
mod tensor;

pub use bytes::Bytes;
pub use dtype::Dtype;
pub use error::Error;
pub use mmap::{Arena, ArenaBytes};
pub use publish::{PARTIAL_PREFIX, publish};
pub use stream::{Sink, TensorStream};
pub use tensor::TensorInfo;
