//! [`Error`]: everything that can be wrong with a container, with the place and the numbers.
//!
//! A variant exists for each thing that a caller could answer differently. The path is that
//! of the file at fault; objects that are built in memory are called `(memory)`, and streams
//! whose target this crate does not know are called `(output)`.

use std::io;
use std::path::PathBuf;

use crate::dtype::Dtype;

/// Stands for the path of metadata and tensors that no file holds yet.
pub(crate) const MEMORY: &str = "(memory)";
/// Stands for the path of a writer's target.
pub(crate) const OUTPUT: &str = "(output)";

/// How many names a message lists before it only counts.
const N_NAMES_SHOWN: usize = 8;

/// Why a container cannot be read or written.
#[expect(missing_docs, reason = "the messages say what the fields are")]
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot {action}")]
    Io {
        path: PathBuf,
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{path}: not a regular file")]
    NotAFile { path: PathBuf },
    #[error(
        "{path}: the file ends inside {what}: {needed} bytes needed at offset {offset}, {available} left"
    )]
    Truncated {
        path: PathBuf,
        what: String,
        offset: u64,
        needed: u64,
        available: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{path}: {count} {what} declared, but the {available} bytes left hold at most {room}")]
    Count {
        path: PathBuf,
        what: String,
        count: u64,
        room: u64,
        available: u64,
    },
    /// A number beyond what this crate accepts, whatever the size of the file.
    #[error("{path}: {what} is {value}, the limit is {limit}")]
    Limit {
        path: PathBuf,
        what: String,
        value: u64,
        limit: u64,
    },
    #[error("{path}: {what} at offset {offset} is not UTF-8")]
    NotUtf8 {
        path: PathBuf,
        what: String,
        offset: u64,
    },

    #[error("{path}: not a GGUF file: it starts with \"{}\"", found.escape_ascii())]
    BadMagic { path: PathBuf, found: Vec<u8> },
    #[error("{path}: a {magic} file, which GGUF replaced; convert the model again")]
    LegacyFormat { path: PathBuf, magic: &'static str },
    #[error("{path}: GGUF version {version}, supported are 2 and 3")]
    GgufVersion { path: PathBuf, version: u32 },
    #[error("{path}: a big-endian GGUF file; only little-endian files are supported")]
    BigEndian { path: PathBuf },
    #[error("{path}: tensor `{tensor}` has the unknown ggml type {id}")]
    UnknownGgmlType {
        path: PathBuf,
        tensor: String,
        id: u32,
    },
    #[error("{path}: key `{key}` has the unknown value type {id}")]
    UnknownValueType { path: PathBuf, key: String, id: u32 },
    #[error("{path}: key `{key}` holds the byte {value} as a bool")]
    BadBool {
        path: PathBuf,
        key: String,
        value: u8,
    },
    #[error("{path}: key `{key}` appears twice")]
    DuplicateKey { path: PathBuf, key: String },
    #[error("{path}: key `{key}` is missing")]
    MissingKey { path: PathBuf, key: String },
    #[error("{path}: key `{key}` is {found}, expected {expected}")]
    KeyType {
        path: PathBuf,
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("{path}: key `{key}` is {value}, which is no {expected}")]
    KeyRange {
        path: PathBuf,
        key: String,
        expected: &'static str,
        value: String,
    },
    #[error("{path}: alignment {value} is not a power of two")]
    Alignment { path: PathBuf, value: u64 },
    #[error(
        "{path}: tensor `{tensor}` begins at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Unaligned {
        path: PathBuf,
        tensor: String,
        offset: u64,
        alignment: u64,
    },
    #[error("{path}: shard {shard} of {n_shards} is missing")]
    MissingShard {
        path: PathBuf,
        shard: u64,
        n_shards: u64,
    },
    #[error(
        "{path}: one of {n_shards} shards, but its name does not end in -NNNNN-of-{n_shards:05}.gguf"
    )]
    ShardFileName { path: PathBuf, n_shards: u64 },
    #[error("{path}: key `{key}` is {}, expected {expected}", found.map_or("absent".to_owned(), |n| n.to_string()))]
    SplitMismatch {
        path: PathBuf,
        key: &'static str,
        expected: u64,
        found: Option<u64>,
    },

    #[error("{path}: tensor `{tensor}` appears twice")]
    DuplicateTensor { path: PathBuf, tensor: String },
    #[error("{path}: tensor `{tensor}` has {rank} dimensions, at most {max} are supported")]
    Rank {
        path: PathBuf,
        tensor: String,
        rank: u64,
        max: u64,
    },
    #[error(
        "{path}: tensor `{tensor}` of type {dtype} and shape {shape:?}: rows are not whole blocks of {block_len} values"
    )]
    PartialBlock {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
        shape: Vec<u64>,
        block_len: u64,
    },
    #[error("{path}: tensor `{tensor}` of type {dtype} and shape {shape:?}: its size overflows")]
    SizeOverflow {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
        shape: Vec<u64>,
    },
    #[error(
        "{path}: tensor `{tensor}` lies outside the file: offset {offset} in the data at {data_start}, {n_bytes} bytes, file of {file_len}"
    )]
    Outside {
        path: PathBuf,
        tensor: String,
        /// Relative to `data_start`, as the header says it.
        offset: u64,
        n_bytes: u64,
        data_start: u64,
        file_len: u64,
    },
    #[error(
        "{path}: tensors `{first}` and `{second}` overlap: the first ends at offset {end}, the second begins at {begin}"
    )]
    Overlap {
        path: PathBuf,
        first: String,
        second: String,
        end: u64,
        begin: u64,
    },
    #[error(
        "{path}: {n_bytes} bytes of no tensor after {after}, where {next} is expected: a type or a shape in the header is not that of the data"
    )]
    Unclaimed {
        path: PathBuf,
        after: String,
        next: String,
        n_bytes: u64,
    },
    #[error("{path}: no tensor `{tensor}`")]
    NoSuchTensor { path: PathBuf, tensor: String },

    #[error("{path}: not a safetensors file: the header begins with \"{}\", not {{", found.escape_ascii())]
    HeaderStart { path: PathBuf, found: u8 },
    #[error("{path}: the header is not the JSON of a safetensors file")]
    HeaderJson {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path}: tensor `{tensor}` has the unknown type `{dtype}`")]
    UnknownDtype {
        path: PathBuf,
        tensor: String,
        dtype: String,
    },
    #[error("{path}: tensor `{tensor}` begins at {begin} and ends at {end}")]
    OffsetOrder {
        path: PathBuf,
        tensor: String,
        begin: u64,
        end: u64,
    },
    #[error(
        "{path}: tensor `{tensor}` of type {dtype} and shape {shape:?} needs {needed} bytes, its offsets span {span}"
    )]
    SpanMismatch {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
        shape: Vec<u64>,
        needed: u64,
        span: u64,
    },
    #[error(
        "{path}: {} bytes before tensor `{tensor}` belong to no tensor: it begins at {begin}, expected {expected}",
        begin - expected
    )]
    Gap {
        path: PathBuf,
        tensor: String,
        begin: u64,
        expected: u64,
    },
    #[error("{path}: {n_bytes} bytes after the last tensor belong to no tensor")]
    TrailingBytes { path: PathBuf, n_bytes: u64 },
    #[error("{path}: not the index of a sharded checkpoint")]
    IndexJson {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path}: which weights? found {}", candidates.join(" and "))]
    Ambiguous {
        path: PathBuf,
        candidates: Vec<String>,
    },
    #[error(
        "{path}: no safetensors weights: neither model.safetensors nor model.safetensors.index.json"
    )]
    NoWeights { path: PathBuf },
    #[error("{path}: tensor `{tensor}` is in shard `{shard}`, which is not a plain file name")]
    ShardName {
        path: PathBuf,
        tensor: String,
        shard: String,
    },
    /// The index names a file that is not there.
    #[error("{path}: shard {shard} is missing; the index has {n_tensors} tensors in it")]
    MissingIndexShard {
        path: PathBuf,
        shard: String,
        n_tensors: usize,
    },
    /// All tensors, as `(tensor, shard)`, that the index promises and the shards do not have.
    #[error("{path}: {} tensors of the index are not in their shards: {}", tensors.len(), list(tensors))]
    MissingTensors {
        path: PathBuf,
        tensors: Vec<(String, String)>,
    },
    /// All tensors, as `(tensor, shard)`, that shards have and the index does not name.
    #[error("{path}: {} tensors of the shards are not in the index: {}", tensors.len(), list(tensors))]
    UnlistedTensors {
        path: PathBuf,
        tensors: Vec<(String, String)>,
    },
    /// A tensor in two shards, of which readers would take one or the other.
    #[error("{path}: tensor `{tensor}` is in two shards, {} and {}", shards[0], shards[1])]
    TensorInTwoShards {
        path: PathBuf,
        tensor: String,
        shards: Box<[String; 2]>,
    },

    #[error("tensor `{tensor}`: {container} cannot hold type {dtype}")]
    NoContainerType {
        tensor: String,
        dtype: Dtype,
        container: &'static str,
    },
    #[error("tensor `{tensor}` of type {dtype} and shape {shape:?} declared with {declared} bytes")]
    DeclaredBytes {
        tensor: String,
        dtype: Dtype,
        shape: Vec<u64>,
        declared: u64,
    },
    #[error("tensor `{tensor}` written out of order: {}", match expected { Some(name) => format!("`{name}` is due"), None => "none is due".to_owned() })]
    WrongOrder {
        tensor: String,
        expected: Option<String>,
    },
    #[error("tensor `{tensor}`: {declared} bytes declared, {written} written")]
    TensorBytes {
        tensor: String,
        declared: u64,
        written: u64,
    },
    #[error("{n_missing} declared tensors were not written, the first is `{tensor}`")]
    Unfinished { tensor: String, n_missing: usize },
}

fn list(tensors: &[(String, String)]) -> String {
    let mut text = tensors
        .iter()
        .take(N_NAMES_SHOWN)
        .map(|(tensor, shard)| format!("`{tensor}` ({shard})"))
        .collect::<Vec<_>>()
        .join(", ");
    if tensors.len() > N_NAMES_SHOWN {
        text += &format!(" and {} more", tensors.len() - N_NAMES_SHOWN);
    }
    text
}
