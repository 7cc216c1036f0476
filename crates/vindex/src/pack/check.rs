//! Whether a pack is what its table says, and its tiles, taken apart, are the rows of the weights.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use larql_kernels::{TILE_ROWS, Team, TileView};
use larql_models::{Checkpoint, StoredTensor};

use super::table::ALIGNMENT;
use super::{PACK, Pack, PackedTiles};
use crate::Progress;
use crate::digest::{HashingWriter, Reporter};
use crate::error::VindexError;
use crate::vindex::Vindex;

/// Stage that is reported meanwhile.
const STAGE: &str = "tiles";

/// Bytes that are digested between two reports.
const PIECE_BYTES: usize = 8 << 20;

/// Checks the pack of a vindex, if it has one, matrix by matrix.
pub(crate) fn check_file(
    vindex: &Vindex,
    team: &mut Team,
    reporter: &mut Reporter<'_>,
) -> Result<Option<Result<String, String>>, VindexError> {
    if vindex.path().join(PACK).symlink_metadata().is_err() {
        return Ok(None);
    }
    let opened = vindex.contents().and_then(|checkpoint| {
        let pack = Pack::open(vindex, &checkpoint)?;
        Ok(pack.map(|pack| (pack, checkpoint)))
    });
    let (pack, checkpoint) = match opened {
        Ok(None) => return Ok(None),
        Ok(Some(opened)) => opened,
        Err(error) => return Ok(Some(Err(error.to_string()))),
    };
    Ok(Some(match pack.find(&checkpoint, team, reporter)? {
        Some(problem) => Err(problem),
        None => Ok(format!(
            "{} matrices, each with its digest and the bytes of the weights",
            pack.matrices().len()
        )),
    }))
}

impl Pack {
    /// Reads the whole pack: what is wrong with the first matrix that has another digest than the table says or, taken apart,
    /// is not the one of the weights.
    ///
    /// # Errors
    /// [`VindexError::Interrupted`], or weights that cannot be read.
    pub fn first_problem(
        &self,
        checkpoint: &Checkpoint,
        team: &mut Team,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<String>, VindexError> {
        self.find(checkpoint, team, &mut Reporter { call: progress })
    }

    fn find(
        &self,
        checkpoint: &Checkpoint,
        team: &mut Team,
        reporter: &mut Reporter<'_>,
    ) -> Result<Option<String>, VindexError> {
        let sizes = self.matrices.iter().map(|matrix| matrix.tiles.len() as u64);
        let total = sizes.sum();
        let mut done = 0;
        for packed in &self.matrices {
            let named = |problem: String| Ok(Some(format!("`{}`: {problem}", packed.role)));
            let mut hashing = HashingWriter::new(io::sink());
            for piece in packed.tiles.chunks(PIECE_BYTES) {
                reporter.tell(STAGE, done, total)?;
                hashing.write_all(piece).expect("a sink takes everything");
                done += piece.len() as u64;
            }
            let (sha256, stated) = (hashing.finish().sha256, &packed.sha256);
            if sha256 != *stated {
                return named(format!("digest {sha256}, its table says {stated}"));
            }
            let tensor = checkpoint.tensor(packed.role)?;
            if let Some(problem) = first_difference(packed, &tensor, team) {
                return named(problem);
            }
            if let Some(offset) = first_in_gap(self, packed) {
                return named(format!(
                    "the byte at offset {offset}, behind its tiles, is not zero"
                ));
            }
            packed.tiles.release();
            tensor.bytes.release();
        }
        reporter.tell(STAGE, total, total)?;
        Ok(None)
    }
}

/// The place in the file of the first byte that is not zero between a matrix and what follows it.
fn first_in_gap(pack: &Pack, packed: &PackedTiles) -> Option<usize> {
    let end = packed.offset + packed.tiles.len();
    let gap = &pack.file[end..end.next_multiple_of(ALIGNMENT as usize)];
    gap.iter().position(|byte| *byte != 0).map(|at| end + at)
}

/// Takes the tiles apart and compares them with the rows they were made of.
fn first_difference(
    packed: &PackedTiles,
    tensor: &StoredTensor,
    team: &mut Team,
) -> Option<String> {
    if packed.row_order != tensor.rows {
        return Some(format!(
            "rows in the order {:?}, the weights have {:?}",
            packed.row_order, tensor.rows
        ));
    }
    // Rows that only fill the last tile up are looked at too: they are zero.
    let n_padded = packed.rows.next_multiple_of(TILE_ROWS);
    let view = TileView::new(packed.format, n_padded, packed.cols, &packed.tiles)
        .expect("the table was checked");
    let row_bytes = tensor.row_bytes();
    let n_tiles = n_padded / TILE_ROWS;
    let (next, first_bad) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    team.run(|_| {
        let mut bytes = vec![0; row_bytes];
        loop {
            let tile = next.fetch_add(1, Ordering::Relaxed);
            if tile >= n_tiles {
                break;
            }
            for row in tile * TILE_ROWS..(tile + 1) * TILE_ROWS {
                view.row_bytes_into(row, &mut bytes);
                let same = if row < packed.rows {
                    let at = tensor.stored_row(row) * row_bytes;
                    tensor.bytes[at..at + row_bytes] == bytes
                } else {
                    bytes.iter().all(|byte| *byte == 0)
                };
                if !same {
                    first_bad.fetch_min(row, Ordering::Relaxed);
                }
            }
        }
    });
    match first_bad.into_inner() {
        usize::MAX => None,
        row if row < packed.rows => Some(format!("row {row} is not the one of the weights")),
        row => Some(format!("row {row} is behind the last and not zero")),
    }
}
