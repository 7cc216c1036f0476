//! Which row of an output a tile's lane is, and the right to write it.
//!
//! The rows of a tile are eight elements per position of a `[n_pos, rows]` output, so the tiles of one thread are not one
//! slice; a writer owns a range of tiles and hands out their elements.

use std::marker::PhantomData;
use std::ops::Range;

use crate::tile::TILE_ROWS;

/// Which stored row becomes which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The same.
    Stored,
    /// The stored rows of a head are in interleaved-RoPE order: stored row
    /// `h * head_dim + 2 i + j` (`j` is 0 or 1) is output `h * head_dim + j * head_dim / 2 + i`.
    Interleaved {
        /// Rows of one head; even.
        head_dim: usize,
    },
}

impl RowOrder {
    /// The output index of stored row `row`.
    #[inline]
    pub fn logical(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
        }
    }

    /// The stored row of output index `row`; undoes [`Self::logical`].
    #[inline]
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + within % half * 2 + within / half
            }
        }
    }

    /// Whether `rows` rows can be in this order: then `logical` is a permutation of `0..rows`.
    pub(crate) fn fits(self, rows: usize) -> bool {
        match self {
            Self::Stored => true,
            Self::Interleaved { head_dim } => {
                head_dim > 0 && head_dim.is_multiple_of(2) && rows.is_multiple_of(head_dim)
            }
        }
    }
}

/// The right to write a range of tiles of a `[n_pos, rows]` output.
pub(crate) struct TileWriter<'a> {
    base: *mut f32,
    n_pos: usize,
    rows: usize,
    tiles: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

// SAFETY: writers of one output have disjoint tiles, which are disjoint elements.
unsafe impl Send for TileWriter<'_> {}

impl<'a> TileWriter<'a> {
    /// The writer of all tiles of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is not `[n_pos, rows]`.
    pub(crate) fn new(out: &'a mut [f32], n_pos: usize, rows: usize) -> Self {
        assert_eq!(
            Some(out.len()),
            n_pos.checked_mul(rows),
            "an output of {n_pos} x {rows}"
        );
        Self {
            base: out.as_mut_ptr(),
            n_pos,
            rows,
            tiles: 0..rows.div_ceil(TILE_ROWS),
            out: PhantomData,
        }
    }

    /// Splits off the tiles before `tile`.
    ///
    /// # Panics
    ///
    /// If `tile` is outside the range of this writer.
    pub(crate) fn split_before(&mut self, tile: usize) -> Self {
        let Range { start, end } = self.tiles;
        assert!(
            (start..=end).contains(&tile),
            "tile {tile} of {start}..{end}"
        );
        self.tiles = tile..end;
        Self {
            tiles: start..tile,
            ..*self
        }
    }

    /// Writes the rows of one tile for the positions from `pos` on.
    #[inline]
    pub(crate) fn store(&mut self, tile: usize, pos: usize, sums: &[[f32; TILE_ROWS]]) {
        assert!(self.tiles.contains(&tile) && pos + sums.len() <= self.n_pos);
        let first = tile * TILE_ROWS;
        let n = TILE_ROWS.min(self.rows - first);
        for (p, sums) in (pos..).zip(sums) {
            // SAFETY: the tile's rows and the position lie inside the borrowed output (checked above and in `new`), and
            // no other writer has the tile.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.base.add(p * self.rows + first), n) };
            match out.first_chunk_mut() {
                // The usual case, without a call.
                Some(out) => *out = *sums,
                None => out.copy_from_slice(&sums[..n]),
            }
        }
    }
}
