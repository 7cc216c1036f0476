//! Tiles outside a load: made piece by piece for a file, or taken from one.
//!
//! Which file that is, and whether it belongs to the model, is the business of whoever keeps it.

use std::collections::BTreeMap;

use larql_formats::Bytes;
use larql_kernels::{Format, MatrixView, RowOrder, TILE_ROWS, Team, pack_tiles, tile_bytes};
use larql_models::{StoredRows, StoredTensor, TensorRole};

use crate::error::EngineError;

/// Bytes of rows that become tiles at a time: what making a pack of any model takes in memory, but for a matrix whose rows
/// are gathered.
const PIECE_BYTES: usize = 8 << 20;

/// Tiles that were made before, as [`write_tiles`] writes them.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    /// The storage format.
    pub format: Format,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// The tiles, mapped or in memory.
    pub tiles: Bytes,
}

/// The tiles of a model, by what they are for.
pub type PackedMatrices = BTreeMap<TensorRole, PackedMatrix>;

/// Where the tiles of a model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TilePlace {
    /// In memory, made of the stored rows when the model was loaded.
    Memory,
    /// In a mapped file, which holds them as they are computed with.
    Pack,
}

/// The order of a tensor's rows, as kernels call it.
pub(crate) fn row_order(rows: StoredRows) -> RowOrder {
    match rows {
        StoredRows::Canonical => RowOrder::Stored,
        StoredRows::Interleaved { d_head } => RowOrder::Interleaved {
            head_dim: d_head as usize,
        },
    }
}

/// The rows of a tensor that is a matrix.
pub(crate) fn stored_rows(tensor: &StoredTensor) -> Result<MatrixView<'_>, EngineError> {
    let (rows, cols) = (tensor.n_rows(), tensor.cols());
    MatrixView::new(tensor.format, rows, cols, &tensor.bytes).map_err(|source| {
        EngineError::Matrix {
            tensor: tensor.name.clone(),
            source,
        }
    })
}

/// Makes the tiles of a matrix, the ones that a load computes with, and hands them to `write` in pieces and in order. Pages
/// of the matrix that have been read are given back.
///
/// # Errors
/// If the tensor does not have the bytes of its shape; else what `write` returns.
pub fn write_tiles<E: From<EngineError>>(
    team: &mut Team,
    tensor: &StoredTensor,
    write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let view = stored_rows(tensor)?;
    let (order, row_bytes) = (row_order(tensor.rows), view.row_len_bytes());
    // A piece is whole tiles, and whole heads, for the rows of a head change places among themselves.
    let unit = match order {
        RowOrder::Stored => TILE_ROWS,
        RowOrder::Interleaved { head_dim } => TILE_ROWS * head_dim,
    };
    let step = (PIECE_BYTES / row_bytes.max(1) / unit).max(1) * unit;
    let mut tiles = Vec::new();
    for first in (0..view.rows()).step_by(step) {
        let part = first..view.rows().min(first + step);
        let source = part.start * row_bytes..part.end * row_bytes;
        let rows = &view.bytes()[source.clone()];
        let rows = MatrixView::new(view.format(), part.len(), view.cols(), rows)
            .expect("whole rows of a checked matrix");
        let n_bytes = tile_bytes(view.format(), part.len(), view.cols())
            .expect("a piece is smaller than the matrix, or padded by less than a tile");
        tiles.resize(n_bytes, 0);
        pack_tiles(team, rows, order, &mut tiles);
        tensor.bytes.slice(source).release();
        write(&tiles)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use larql_models::roles::StoredValue;

    use super::*;

    #[derive(Debug)]
    struct Never;

    impl From<EngineError> for Never {
        fn from(error: EngineError) -> Self {
            unreachable!("{error}")
        }
    }

    /// Matrices of several pieces give the same tiles as when they are made at once: with a last tile that is not full, and
    /// with heads that are no multiple of a tile.
    #[test]
    fn pieces_join_to_the_tiles_of_the_whole() {
        let cols = 1 << 14;
        for (rows, order) in [
            (301, StoredRows::Canonical),
            (18 * 17, StoredRows::Interleaved { d_head: 18 }),
        ] {
            let bytes: Vec<u8> = (0..(rows * cols * 4) as u64)
                .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8)
                .collect();
            let tensor = StoredTensor {
                role: TensorRole::Head,
                name: "head".into(),
                format: Format::F32,
                shape: vec![rows as u64, cols as u64],
                rows: order,
                value: StoredValue::Effective,
                bytes: Bytes::from_vec(bytes),
            };
            let mut team = Team::new(NonZeroUsize::new(2).unwrap());
            let mut whole = vec![0; tile_bytes(Format::F32, rows, cols).unwrap()];
            let view = stored_rows(&tensor).unwrap();
            pack_tiles(&mut team, view, row_order(order), &mut whole);
            let (mut joined, mut n_pieces) = (Vec::new(), 0);
            write_tiles(&mut team, &tensor, &mut |piece| {
                joined.extend_from_slice(piece);
                n_pieces += 1;
                Ok::<(), Never>(())
            })
            .unwrap();
            assert!(n_pieces > 1, "{order:?}");
            assert!(joined == whole, "{order:?}");
        }
    }
}
