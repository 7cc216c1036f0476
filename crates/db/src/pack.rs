//! Packing a vindex: the tiles that a load would make, kept beside the weights.
//!
//! The file is `larql-vindex`'s and the tiles are `larql-engine`'s; here the two meet. Cost: one pass over the weights, and
//! as many bytes on disk again.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_engine::{PackedMatrices, PackedMatrix, write_tiles};
use larql_kernels::Team;
use larql_models::{Checkpoint, StoredTensor};
use larql_vindex::{PACK, Pack, Pieces, Progress, Vindex, VindexError, write_pack};

use crate::error::DbError;

/// What became of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackReport {
    /// The file.
    pub path: PathBuf,
    /// Matrices in it.
    pub n_matrices: usize,
    /// Its size.
    pub n_bytes: u64,
    /// What was found there before.
    pub found: Found,
}

/// What lay in the place of a pack before it was to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing: it was made.
    Nothing,
    /// A sound pack of this model: it was left as it is.
    SamePack,
    /// A file that this model must not be run from, and why: it was replaced.
    Unusable(String),
}

/// Sees to it that a vindex has a pack that is sound: one that is there is read and compared with the weights, and replaced
/// if it is damaged, of another model, or of another version or layout of tiles.
///
/// # Errors
/// If `path` is no vindex or has too little to run, a folder is in the place of the file, the file cannot be written, or
/// `progress` wants to stop; nothing is left behind then.
pub fn pack(
    path: &Path,
    n_threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<PackReport, DbError> {
    let vindex = Vindex::open(path)?;
    let checkpoint = vindex.checkpoint()?;
    let mut team = Team::new(n_threads);
    let found = look(&vindex, &checkpoint, &mut team, progress)?;
    let write = match found {
        Found::Nothing | Found::Unusable(_) => true,
        Found::SamePack => false,
    };
    if write {
        let make = &mut |tensor: &StoredTensor, write: &mut Pieces<'_, DbError>| {
            write_tiles(&mut team, tensor, write)
        };
        write_pack(&vindex, &checkpoint, make, progress)?;
    }
    // As a run will open it.
    let pack = Pack::open(&vindex, &checkpoint)?.ok_or_else(|| DbError::NotFound {
        path: path.join(PACK),
    })?;
    Ok(PackReport {
        path: pack.path().to_owned(),
        n_matrices: pack.matrices().len(),
        n_bytes: pack.n_bytes(),
        found,
    })
}

/// What lies in the place of a pack.
fn look(
    vindex: &Vindex,
    checkpoint: &Checkpoint,
    team: &mut Team,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Found, DbError> {
    match Pack::open(vindex, checkpoint) {
        Ok(None) => Ok(Found::Nothing),
        Ok(Some(pack)) => Ok(match pack.first_problem(checkpoint, team, progress)? {
            None => Found::SamePack,
            Some(problem) => Found::Unusable(problem),
        }),
        Err(VindexError::Pack { source, .. }) if source.is_replaceable() => {
            Ok(Found::Unusable(source.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The tiles of a pack as the engine takes them.
pub(crate) fn matrices(pack: &Pack) -> PackedMatrices {
    let matrices = pack.matrices().iter();
    matrices
        .map(|matrix| {
            let packed = PackedMatrix {
                format: matrix.format,
                rows: matrix.rows,
                cols: matrix.cols,
                tiles: matrix.tiles.clone(),
            };
            (matrix.role, packed)
        })
        .collect()
}
