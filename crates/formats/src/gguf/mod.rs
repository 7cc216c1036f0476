//! GGUF version 2 and 3, little-endian: read through a map, written as a stream.
//!
//! Layout: magic, version, counts; the metadata; one record per tensor; then the data, which
//! begins at the next multiple of the alignment. Tensor offsets are relative to that point.
//! Dimensions are stored innermost first and turned around here.

mod file;
mod metadata;
mod parse;
mod split;
mod value;
mod write;

pub use file::GgufFile;
pub use metadata::Metadata;
pub use value::{Array, StringArray, Value};
pub use write::GgufWriter;

/// The alignment of files that do not state one.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// ggml tensors have at most four dimensions.
pub const MAX_RANK: u32 = 4;

/// The specification limits keys to this; tensor names get the same room.
pub const MAX_NAME_BYTES: u64 = (1 << 16) - 1;

/// Ten times the tensors of the largest mixture-of-experts models stored expert by expert.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Real files have fewer than a hundred.
pub const MAX_KEYS: u64 = 1 << 16;

/// Arrays of arrays are legal and unused; this bounds the recursion.
pub const MAX_ARRAY_DEPTH: u32 = 4;

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
