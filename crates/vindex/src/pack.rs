//! `tiles.pack`: the matrices of a vindex in the layout that they are computed in, beside its weights.
//!
//! A cache that can be deleted at any time: the manifest does not list it, no digest of the model covers it, and its bytes
//! are a permutation of those of `weights.gguf`. It is for models that are larger than memory, and for starts that read
//! nothing ahead: a [`Pack`] is a map and a table, so opening costs the table. A pack that is there and does not belong to
//! the vindex is an error, never passed over. What makes the tiles is not known here ([`write_pack`] is handed it).

mod check;
mod table;
mod write;

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use larql_formats::Bytes;
use larql_kernels::Format;
use larql_models::{Checkpoint, StoredRows, TensorRole, needed_tensors};

use crate::error::{VindexError, io_error};
use crate::manifest::WEIGHTS;
use crate::vindex::Vindex;

pub(crate) use check::check_file;
pub use table::PackError;
use table::{Entry, Table};
pub use write::{MakeTiles, Pieces, write_pack};

/// Name of the file in a vindex.
pub const PACK: &str = "tiles.pack";

/// Tiles that lie beside the weights, mapped.
#[derive(Debug, Clone)]
pub struct Pack {
    path: PathBuf,
    file: Bytes,
    matrices: Vec<PackedTiles>,
}

/// The tiles of one matrix.
#[derive(Debug, Clone)]
pub struct PackedTiles {
    /// What it is for.
    pub role: TensorRole,
    /// The storage format.
    pub format: Format,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// The order that its rows have in the weights; the tiles are in canonical order.
    pub row_order: StoredRows,
    /// The tiles.
    pub tiles: Bytes,
    /// Their digest, as the table states it.
    pub sha256: String,
    /// Where they begin in the file.
    pub offset: usize,
}

impl Pack {
    /// Maps the pack of a vindex whose weights are `checkpoint`; nothing if there is none. The tiles themselves are not
    /// looked at.
    ///
    /// # Errors
    /// [`VindexError::Pack`] if it is no file, damaged, or made of another model or for another layout of tiles.
    pub fn open(vindex: &Vindex, checkpoint: &Checkpoint) -> Result<Option<Self>, VindexError> {
        let path = vindex.path().join(PACK);
        let refused = |source| VindexError::Pack {
            path: path.clone(),
            source: Box::new(source),
        };
        match path.symlink_metadata() {
            Ok(stat) => is_file(&path, &stat)?.map_err(refused)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path, "open")(error)),
        }
        let bytes = Bytes::map_file(&path)?;
        let found = table::read(&bytes).and_then(|table| {
            same_model(&table, vindex)?;
            matched(&table.matrices, checkpoint, &bytes)
        });
        let matrices = found.map_err(refused)?;
        Ok(Some(Self {
            path,
            file: bytes,
            matrices,
        }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file.
    pub fn n_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    /// The matrices, in the order in which the model uses them.
    pub fn matrices(&self) -> &[PackedTiles] {
        &self.matrices
    }
}

/// What to do about a pack that cannot be used.
pub(crate) fn hint(pack: &Path) -> String {
    format!(
        "delete it, nothing is lost, or run {} to make it again",
        command(pack)
    )
}

/// What to do about something that no pack takes the place of.
pub(crate) fn occupied_hint(pack: &Path) -> String {
    format!(
        "move it away or delete it: the model runs without a pack, and {} makes one",
        command(pack)
    )
}

/// What makes a pack.
fn command(pack: &Path) -> String {
    let vindex = pack.parent().unwrap_or(Path::new("."));
    format!("`larql pack {}`", vindex.display())
}

/// Whether what lies at a place, or what it is a link to, is a file; `stat` is of the place itself.
fn is_file(path: &Path, stat: &Metadata) -> Result<Result<(), PackError>, VindexError> {
    if stat.is_dir() {
        return Ok(Err(PackError::Folder));
    }
    match path.metadata() {
        Ok(stat) if stat.is_file() => Ok(Ok(())),
        Ok(_) => Ok(Err(PackError::NotAFile)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(PackError::BrokenLink)),
        Err(error) => Err(io_error(path, "open")(error)),
    }
}

/// A matrix that a pack of a model has.
struct Wanted {
    role: TensorRole,
    format: Format,
    rows: u64,
    cols: u64,
}

/// The matrices of a model: every tensor of two dimensions or more.
fn wanted(checkpoint: &Checkpoint) -> Vec<Wanted> {
    let needed = needed_tensors(checkpoint.spec());
    let needed = needed.expect("a checkpoint is resolved by the tensors that its spec needs");
    let matrix = |(role, shape): (TensorRole, Vec<u64>)| {
        let (rows, rest) = shape.split_first()?;
        Some(Wanted {
            role,
            format: checkpoint.format(role)?,
            rows: *rows,
            cols: (!rest.is_empty()).then(|| rest.iter().product())?,
        })
    };
    let tensors = needed.into_iter().map(|tensor| (tensor.role, tensor.shape));
    tensors.filter_map(matrix).collect()
}

/// The digest of a vindex's weights, as its manifest states it.
fn weights_sha256(vindex: &Vindex) -> &str {
    let weights = vindex.manifest().file(WEIGHTS);
    &weights.expect("a manifest lists its weights").sha256
}

/// Whether a table is of the vindex it lies in.
fn same_model(table: &Table, vindex: &Vindex) -> Result<(), PackError> {
    let (expected, got) = (&vindex.manifest().digest, &table.digest);
    if got != expected {
        return Err(PackError::Model {
            expected: expected.clone(),
            got: got.clone(),
        });
    }
    let (expected, got) = (weights_sha256(vindex), &table.weights_sha256);
    if got != expected {
        return Err(PackError::Weights {
            expected: expected.to_owned(),
            got: got.clone(),
        });
    }
    Ok(())
}

/// The matrices of a table, if they are those of the model: these, so many, in this order.
fn matched(
    entries: &[Entry],
    checkpoint: &Checkpoint,
    bytes: &Bytes,
) -> Result<Vec<PackedTiles>, PackError> {
    let wanted = wanted(checkpoint);
    let mut matrices = Vec::with_capacity(wanted.len());
    for (index, (wanted, entry)) in wanted.iter().zip(entries).enumerate() {
        matrices.push(entry.matched(index, wanted, bytes)?);
    }
    if entries.len() != wanted.len() {
        return Err(PackError::Count {
            expected: wanted.len(),
            got: entries.len(),
        });
    }
    Ok(matrices)
}
