//! Writing a pack: one matrix after another, each made, digested and written in pieces.

use std::io::Write;
use std::ops::ControlFlow;

use larql_formats::publish;
use larql_kernels::tile_bytes;
use larql_models::{Checkpoint, StoredTensor};

use super::table::{ALIGNMENT, END, Entry, HEADER_BYTES, LAYOUT, MAGIC, Table, VERSION};
use super::{PACK, wanted, weights_sha256};
use crate::Progress;
use crate::digest::{HashingWriter, Reporter, hash_bytes};
use crate::error::{VindexError, io_error};
use crate::vindex::Vindex;

/// Takes the pieces of a matrix's tiles, in order.
pub type Pieces<'a, E> = dyn FnMut(&[u8]) -> Result<(), E> + 'a;

/// Makes the tiles of a matrix and hands them on in pieces.
pub type MakeTiles<'a, E> = dyn FnMut(&StoredTensor, &mut Pieces<'_, E>) -> Result<(), E> + 'a;

/// Stage that is reported while a pack is written.
const STAGE: &str = "tiles";

/// Writes the pack of a vindex whose weights are `checkpoint`, whole or not at all; one that is there is replaced. Returns its
/// size. `make` is handed every matrix.
///
/// # Errors
/// [`VindexError::Interrupted`], a file that cannot be written, or what `make` returns.
///
/// # Panics
/// If `make` gives tiles of another size than the matrix has.
pub fn write_pack<E: From<VindexError> + From<larql_formats::Error>>(
    vindex: &Vindex,
    checkpoint: &Checkpoint,
    make: &mut MakeTiles<'_, E>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<u64, E> {
    let path = vindex.path().join(PACK);
    let wanted = wanted(checkpoint);
    let n_bytes = |rows: u64, cols: u64, format| {
        let (rows, cols) = (usize::try_from(rows).ok()?, usize::try_from(cols).ok()?);
        Some(tile_bytes(format, rows, cols)? as u64)
    };
    let sizes = wanted.iter().map(|matrix| {
        n_bytes(matrix.rows, matrix.cols, matrix.format)
            .expect("the matrices of a checkpoint are mapped")
    });
    let sizes: Vec<u64> = sizes.collect();
    let total: u64 = sizes.iter().sum();
    let mut reporter = Reporter { call: progress };
    let mut table = Table {
        digest: vindex.manifest().digest.clone(),
        weights_sha256: weights_sha256(vindex).to_owned(),
        layout: LAYOUT,
        matrices: Vec::with_capacity(wanted.len()),
    };
    let (mut done, mut file_bytes) = (0, 0);
    publish(&path, |out| {
        let io = |error| E::from(io_error(&path, "write")(error));
        out.write_all(&header()).map_err(io)?;
        let mut offset = HEADER_BYTES;
        for (matrix, size) in wanted.iter().zip(&sizes) {
            let tensor = checkpoint.tensor(matrix.role).map_err(VindexError::from)?;
            let mut hashing = HashingWriter::new(&mut *out);
            make(&tensor, &mut |piece| {
                reporter.tell(STAGE, done, total)?;
                hashing.write_all(piece).map_err(io)?;
                done += piece.len() as u64;
                Ok(())
            })?;
            let hashed = hashing.finish();
            assert_eq!(hashed.size, *size, "bytes of the tiles of {}", matrix.role);
            table.matrices.push(Entry {
                matrix: matrix.role.to_string(),
                format: matrix.format.name().to_owned(),
                rows: matrix.rows,
                cols: matrix.cols,
                row_order: tensor.rows.into(),
                offset,
                bytes: hashed.size,
                sha256: hashed.sha256,
            });
            let end = offset + size;
            offset = end.next_multiple_of(ALIGNMENT);
            let gap = usize::try_from(offset - end).expect("less than a page");
            out.write_all(&vec![0; gap]).map_err(io)?;
        }
        let tail = tail(&table, offset);
        out.write_all(&tail).map_err(io)?;
        file_bytes = offset + tail.len() as u64;
        // The rename is what cannot be taken back.
        reporter.tell(STAGE, total, total).map_err(E::from)
    })?;
    Ok(file_bytes)
}

/// What stands before the first matrix.
fn header() -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.resize(HEADER_BYTES as usize, 0);
    header
}

/// What stands behind the last matrix, at `offset`.
fn tail(table: &Table, offset: u64) -> Vec<u8> {
    let mut text = serde_json::to_vec(table).expect("strings and numbers serialize");
    let (len, sha256) = (text.len() as u64, hash_bytes(&text));
    text.extend(offset.to_le_bytes());
    text.extend(len.to_le_bytes());
    text.extend(sha256.as_bytes());
    text.extend(END);
    text
}
