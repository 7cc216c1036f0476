//! safetensors: one file, or a checkpoint folder with an index and shards.
//!
//! Layout: the length of the header (8 bytes, little-endian), a JSON object from names to type,
//! shape and byte span, then the data. Spans cover the data exactly: no gap, no overlap, no
//! rest. They need not be aligned.

mod checkpoint;
mod file;
mod header;
mod write;

pub use checkpoint::Checkpoint;
pub use file::SafetensorsFile;
pub use write::Writer;

/// What the reference implementation accepts; a longer header would be unreadable elsewhere.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The format sets no limit; frameworks stop at 64 (NumPy) and models at 6.
pub const MAX_RANK: usize = 64;

const METADATA_KEY: &str = "__metadata__";
