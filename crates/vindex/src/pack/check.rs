//! Whether a pack is what its table says, and its tiles, taken apart, are the rows of the weights.

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

use larql_kernels::{TILE_ROWS, Team, TileView};
use larql_models::{Checkpoint, StoredTensor};

use super::table::ALIGNMENT;
use super::{PACK, Pack, PackedTiles, hint};
use crate::Progress;
use crate::digest::{HashingWriter, Reporter};
use crate::error::VindexError;
use crate::verify::Check;
use crate::vindex::Vindex;

/// Stage that is reported meanwhile.
const STAGE: &str = "tiles";

/// Bytes that are digested, and then compared, between two reports; pages that were looked at are given back as often.
const PIECE_BYTES: usize = 8 << 20;

/// Checks the pack of a vindex, if it has one, matrix by matrix.
pub(crate) fn check_file(
    vindex: &Vindex,
    team: &mut Team,
    reporter: &mut Reporter<'_>,
) -> Result<Option<Check>, VindexError> {
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
        Err(error) => return Ok(Some(failed(error.to_string(), error.hint()))),
    };
    Ok(Some(match pack.find(&checkpoint, team, reporter)? {
        Some(problem) => failed(problem, Some(hint(&pack.path))),
        None => Check {
            name: PACK.to_owned(),
            ok: true,
            detail: format!(
                "{} matrices, each with its digest and the bytes of the weights",
                pack.matrices().len()
            ),
            hint: None,
        },
    }))
}

fn failed(detail: String, hint: Option<String>) -> Check {
    Check {
        name: PACK.to_owned(),
        ok: false,
        detail,
        hint,
    }
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
        // Each byte is looked at twice.
        let total = 2 * sizes.sum::<u64>();
        let mut done = 0;
        for packed in &self.matrices {
            let named = |problem: String| Ok(Some(format!("`{}`: {problem}", packed.role)));
            let mut hashing = HashingWriter::new(io::sink());
            for start in (0..packed.tiles.len()).step_by(PIECE_BYTES) {
                reporter.tell(STAGE, done, total)?;
                let end = packed.tiles.len().min(start + PIECE_BYTES);
                let piece = packed.tiles.slice(start..end);
                hashing.write_all(&piece).expect("a sink takes everything");
                piece.release();
                done += piece.len() as u64;
            }
            let (sha256, stated) = (hashing.finish().sha256, &packed.sha256);
            if sha256 != *stated {
                return named(format!("digest {sha256}, its table says {stated}"));
            }
            let tensor = checkpoint.tensor(packed.role)?;
            let mut tell = |n: u64| reporter.tell(STAGE, done + n, total);
            if let Some(problem) = first_difference(packed, &tensor, team, &mut tell)? {
                return named(problem);
            }
            done += packed.tiles.len() as u64;
            if let Some(offset) = first_in_gap(self, packed) {
                return named(format!(
                    "the byte at offset {offset}, behind its tiles, is not zero"
                ));
            }
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
    tell: &mut dyn FnMut(u64) -> Result<(), VindexError>,
) -> Result<Option<String>, VindexError> {
    if packed.row_order != tensor.rows {
        return Ok(Some(format!(
            "rows in the order {:?}, the weights have {:?}",
            packed.row_order, tensor.rows
        )));
    }
    // Rows that only fill the last tile up are looked at too: they are zero.
    let n_padded = packed.rows.next_multiple_of(TILE_ROWS);
    let view = TileView::new(packed.format, n_padded, packed.cols, &packed.tiles)
        .expect("the table was checked");
    let row_bytes = tensor.row_bytes();
    let step = (PIECE_BYTES / row_bytes.max(1))
        .max(1)
        .next_multiple_of(TILE_ROWS);
    for first in (0..n_padded).step_by(step) {
        tell((first * row_bytes) as u64)?;
        let part = first..n_padded.min(first + step);
        let bad = first_bad_row(&view, part.clone(), packed.rows, tensor, team);
        match bad {
            None => {}
            Some(row) if row < packed.rows => {
                return Ok(Some(format!("row {row} is not the one of the weights")));
            }
            Some(row) => {
                return Ok(Some(format!("row {row} is behind the last and not zero")));
            }
        }
        let pages = part.start * row_bytes..part.end * row_bytes;
        packed.tiles.slice(pages.clone()).release();
        // Its rows are the same, but for the order in a head.
        let pages = pages.start..pages.end.min(tensor.bytes.len());
        tensor.bytes.slice(pages).release();
    }
    Ok(None)
}

/// The first of `part`'s rows that is not the tensor's, or not zero if the tensor has fewer; whole tiles.
fn first_bad_row(
    view: &TileView<'_>,
    part: Range<usize>,
    n_rows: usize,
    tensor: &StoredTensor,
    team: &mut Team,
) -> Option<usize> {
    let row_bytes = tensor.row_bytes();
    let (next, first_bad) = (AtomicUsize::new(part.start), AtomicUsize::new(usize::MAX));
    team.run(|_| {
        let mut bytes = vec![0; row_bytes];
        loop {
            let tile = next.fetch_add(TILE_ROWS, Ordering::Relaxed);
            if tile >= part.end {
                break;
            }
            for row in tile..tile + TILE_ROWS {
                view.row_bytes_into(row, &mut bytes);
                let same = if row < n_rows {
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
        row => Some(row),
    }
}
