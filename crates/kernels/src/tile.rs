//! Row tiles: the bytes of a stored matrix, rearranged so that eight rows are computed in eight lanes.
//!
//! A tile holds eight rows.  Where row-major storage has the blocks of one row one after another, a tile has, for each
//! block column, the blocks of its eight rows interleaved in groups of a few bytes ([`fields`]), so that one load brings
//! the same four inputs of eight rows.  Nothing is decoded or rounded: a tile has as many bytes as its rows had, and
//! [`TileView::unpack_into`] gives them back.  A last tile with fewer than eight rows is filled up with zeros.
//!
//! The order of operations over tiles is that of `arch/scalar/tiles.rs`; nothing here computes.

use std::ops::Range;

use crate::arch::Kernels;
use crate::format::Format;
use crate::matrix::{MatrixView, ShapeError, checked_row_bytes};
use crate::team::{RowOrder, Team};

/// Rows of a tile, and lanes of every kernel over tiles.
pub const TILE_ROWS: usize = 8;

/// How one part of a block lies in a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// `groups` runs of `size` bytes, at `from` in the block: run `g` of row 0, of row 1, ..., of row 7, then run `g + 1`.
    Bytes {
        from: usize,
        groups: usize,
        size: usize,
    },
    /// The 32 high bits of a block, at `from`, one bit per weight, weight `4 v + b` at bit `v` of byte `b`: so one vector
    /// serves eight vectors of weights.
    HighBits { from: usize },
}

const fn bytes(from: usize, groups: usize, size: usize) -> Field {
    Field::Bytes { from, groups, size }
}

const fn high_bits(from: usize) -> Field {
    Field::HighBits { from }
}

/// Q6_K: scales, `d`, and then in the order in which they are read the four inputs at a time of both low parts of a half and of
/// its high part, so that a tile is read from its beginning to its end.
const Q6_K: [Field; 50] = {
    let mut fields = [bytes(192, 16, 1); 50];
    fields[1] = bytes(208, 1, 2);
    let mut i = 0;
    while i < 16 {
        let (half, c) = (i / 8, i % 8);
        fields[2 + 3 * i] = bytes(64 * half + 4 * c, 1, 4);
        fields[3 + 3 * i] = bytes(64 * half + 32 + 4 * c, 1, 4);
        fields[4 + 3 * i] = bytes(128 + 32 * half + 4 * c, 1, 4);
        i += 1;
    }
    fields
};

/// The parts of a block of `format`, in the order they have in the tile.
pub(crate) const fn fields(format: Format) -> &'static [Field] {
    match format {
        Format::F32 => const { &[bytes(0, 1, 4)] },
        Format::F16 | Format::Bf16 => const { &[bytes(0, 1, 2)] },
        Format::Q4_0 | Format::Iq4Nl => const { &[bytes(0, 1, 2), bytes(2, 4, 4)] },
        Format::Q4_1 => const { &[bytes(0, 2, 2), bytes(4, 4, 4)] },
        Format::Q5_0 => const { &[bytes(0, 1, 2), high_bits(2), bytes(6, 4, 4)] },
        Format::Q5_1 => const { &[bytes(0, 2, 2), high_bits(4), bytes(8, 4, 4)] },
        Format::Q8_0 => const { &[bytes(0, 1, 2), bytes(2, 8, 4)] },
        Format::Mxfp4 => const { &[bytes(0, 1, 1), bytes(1, 4, 4)] },
        Format::Q4K => const { &[bytes(0, 2, 2), bytes(4, 12, 1), bytes(16, 32, 4)] },
        Format::Q5K => {
            const {
                &[
                    bytes(0, 2, 2),
                    bytes(4, 12, 1),
                    bytes(16, 8, 4),
                    bytes(48, 32, 4),
                ]
            }
        }
        Format::Q6K => &Q6_K,
        // No kernel looks into these: the blocks lie side by side.
        Format::Q2K => const { &[bytes(0, 1, Format::Q2K.block_bytes())] },
        Format::Q3K => const { &[bytes(0, 1, Format::Q3K.block_bytes())] },
        Format::Iq4Xs => const { &[bytes(0, 1, Format::Iq4Xs.block_bytes())] },
    }
}

/// Bytes of a tiled matrix; `None` when a row is not whole blocks or the size overflows.
pub fn tile_bytes(format: Format, rows: usize, cols: usize) -> Option<usize> {
    rows.checked_next_multiple_of(TILE_ROWS)?
        .checked_mul(format.row_bytes(cols)?)
}

/// Rearranges `rows` into `out`, tile after tile, the tiles shared out over the team; row `r` of the matrix goes to where
/// `order` says.
///
/// # Panics
///
/// If `out` has another size than [`tile_bytes`] says, or `order` does not fit the rows.
pub fn pack_tiles(team: &mut Team, rows: MatrixView<'_>, order: RowOrder, out: &mut [u8]) {
    let (format, cols) = (rows.format(), rows.cols());
    assert_eq!(
        tile_bytes(format, rows.rows(), cols),
        Some(out.len()),
        "bytes of the tiles"
    );
    assert!(order.fits(rows.rows()), "whole heads");
    let tile_len = TILE_ROWS * rows.row_len_bytes();
    if tile_len == 0 {
        return;
    }
    let zeros = vec![0u8; rows.row_len_bytes()];
    team.chunks_mut(out, tile_len, |tile, out| {
        let sources: [&[u8]; TILE_ROWS] = std::array::from_fn(|lane| {
            let row = tile * TILE_ROWS + lane;
            match row < rows.rows() {
                true => rows.row_bytes(order.stored(row)),
                false => &zeros,
            }
        });
        pack_tile(format, sources, out);
    });
}

fn pack_tile(format: Format, rows: [&[u8]; TILE_ROWS], out: &mut [u8]) {
    let size = format.block_bytes();
    for (at, out) in (0..)
        .step_by(size)
        .zip(out.chunks_exact_mut(size * TILE_ROWS))
    {
        let blocks = rows.map(|row| &row[at..at + size]);
        walk(format, |field, from, to| match field {
            Field::Bytes { size: 4, .. } => interleave::<4>(blocks, from, &mut out[to..]),
            Field::Bytes { size: 2, .. } => interleave::<2>(blocks, from, &mut out[to..]),
            Field::Bytes { size: 1, .. } => interleave::<1>(blocks, from, &mut out[to..]),
            Field::Bytes { size, .. } => {
                for (lane, block) in blocks.iter().enumerate() {
                    out[to + lane * size..][..size].copy_from_slice(&block[from..from + size]);
                }
            }
            Field::HighBits { .. } => {
                for (lane, block) in blocks.iter().enumerate() {
                    let bits =
                        u32::from_le_bytes(*block[from..].first_chunk().expect("in a block"));
                    let bytes = spread_bits(bits).to_le_bytes();
                    out[to + lane * 4..][..4].copy_from_slice(&bytes);
                }
            }
        });
    }
}

/// One run of `SIZE` bytes of each lane.
#[inline(always)]
fn interleave<const SIZE: usize>(blocks: [&[u8]; TILE_ROWS], from: usize, out: &mut [u8]) {
    let out = out[..SIZE * TILE_ROWS].as_chunks_mut::<SIZE>().0;
    for (out, block) in out.iter_mut().zip(blocks) {
        *out = *block[from..].first_chunk().expect("in a block");
    }
}

/// Calls `run` with every field's runs, where they begin in a block, and where in the group of eight blocks.
#[inline(always)]
fn walk(format: Format, mut run: impl FnMut(Field, usize, usize)) {
    let mut to = 0;
    for field in fields(format) {
        let (first, groups, size) = match *field {
            Field::Bytes { from, groups, size } => (from, groups, size),
            Field::HighBits { from } => (from, 1, 4),
        };
        for group in 0..groups {
            run(*field, first + group * size, to);
            to += size * TILE_ROWS;
        }
    }
}

/// Bit `4 v + b` to bit `8 b + v`.
pub(crate) fn spread_bits(bits: u32) -> u32 {
    let mut out = 0;
    for b in 0..4 {
        // Every fourth bit, drawn together to one byte.
        let mut x = bits >> b & 0x1111_1111;
        x = (x | x >> 3) & 0x0303_0303;
        x = (x | x >> 6) & 0x000f_000f;
        x = (x | x >> 12) & 0xff;
        out |= x << (8 * b);
    }
    out
}

/// Bit `8 b + v` to bit `4 v + b`.
pub(crate) fn gather_bits(bits: u32) -> u32 {
    let mut out = 0;
    for b in 0..4 {
        let mut x = bits >> (8 * b) & 0xff;
        x = (x | x << 12) & 0x000f_000f;
        x = (x | x << 6) & 0x0303_0303;
        x = (x | x << 3) & 0x1111_1111;
        out |= x << b;
    }
    out
}

/// Bytes of rows that are packed between two calls of `done` in [`pack_tiles_releasing`].
const RELEASE_BYTES: usize = 8 << 20;

/// As [`pack_tiles`]; calls `done` with ranges of the source's bytes that have been read for good, so that a caller can
/// give their pages back.
///
/// # Panics
///
/// As [`pack_tiles`].
pub fn pack_tiles_releasing(
    team: &mut Team,
    rows: MatrixView<'_>,
    order: RowOrder,
    out: &mut [u8],
    done: &mut dyn FnMut(Range<usize>),
) {
    let (format, n_rows, cols) = (rows.format(), rows.rows(), rows.cols());
    assert_eq!(
        tile_bytes(format, n_rows, cols),
        Some(out.len()),
        "bytes of the tiles"
    );
    let row_bytes = rows.row_len_bytes();
    // Rows of a head change places among themselves, so heads are packed whole.
    let step = match order {
        RowOrder::Stored => (RELEASE_BYTES / row_bytes.max(1)).next_multiple_of(TILE_ROWS),
        RowOrder::Interleaved { .. } => n_rows,
    };
    let step = step.max(TILE_ROWS);
    for first in (0..n_rows).step_by(step) {
        let part = first..n_rows.min(first + step);
        let source = part.start * row_bytes..part.end * row_bytes;
        let view = MatrixView::new(format, part.len(), cols, &rows.bytes()[source.clone()])
            .expect("whole rows of a checked matrix");
        let end = part.end.next_multiple_of(TILE_ROWS) * row_bytes;
        pack_tiles(team, view, order, &mut out[source.start..end]);
        done(source);
    }
}

/// A borrowed matrix of tiles, checked once.
#[derive(Clone, Copy)]
pub struct TileView<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> TileView<'a> {
    /// Sees `bytes` as the tiles of `rows` rows of `cols` weights.
    ///
    /// # Errors
    ///
    /// When a row is not a whole number of blocks or the bytes are not exactly the tiles.
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let stored_rows = rows.checked_next_multiple_of(TILE_ROWS);
        checked_row_bytes(format, rows, cols, stored_rows, bytes.len())?;
        Ok(Self {
            format,
            rows,
            cols,
            bytes,
        })
    }

    /// Number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of weights in a row (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// All bytes, tile after tile.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of tiles.
    pub(crate) fn n_tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Bytes of one tile.
    pub(crate) fn tile_len(&self) -> usize {
        self.bytes.len().checked_div(self.n_tiles()).unwrap_or(0)
    }

    /// The bytes of one tile.
    pub(crate) fn tile(&self, tile: usize) -> &'a [u8] {
        &self.bytes[tile * self.tile_len()..][..self.tile_len()]
    }

    /// The bytes that so many columns of a tile have; a multiple of the format's block.
    pub(crate) fn groups_len(&self, cols: usize) -> usize {
        cols / self.format.block_len() * self.format.block_bytes() * TILE_ROWS
    }

    /// The bytes of some columns of one tile, of whole blocks.
    pub(crate) fn groups(&self, tile: usize, columns: Range<usize>) -> &'a [u8] {
        &self.tile(tile)[self.groups_len(columns.start)..self.groups_len(columns.end)]
    }

    /// The bytes of row `row` as they were before they were tiled.
    ///
    /// # Panics
    ///
    /// If there is no such row or `out` is not a row's bytes.
    pub fn row_bytes_into(&self, row: usize, out: &mut [u8]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(
            Some(out.len()),
            self.format.row_bytes(self.cols),
            "bytes of a row"
        );
        let (tile, lane) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        let size = self.format.block_bytes();
        for (group, out) in tile
            .chunks_exact(size * TILE_ROWS)
            .zip(out.chunks_exact_mut(size))
        {
            unpack_block(self.format, group, lane, out);
        }
    }

    /// Decodes row `row`; `out` has `cols` values.
    ///
    /// # Panics
    ///
    /// If there is no such row or `out` has another length.
    pub fn decode_row(&self, kernels: &Kernels, row: usize, out: &mut [f32]) {
        /// The largest block of any format.
        const BLOCK_BYTES_MAX: usize = 256;
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "columns of the row");
        let (tile, lane) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        let (size, len) = (self.format.block_bytes(), self.format.block_len());
        let mut block = [0; BLOCK_BYTES_MAX];
        for (group, out) in tile
            .chunks_exact(size * TILE_ROWS)
            .zip(out.chunks_exact_mut(len))
        {
            unpack_block(self.format, group, lane, &mut block[..size]);
            kernels.decode(self.format, &block[..size], out);
        }
    }

    /// All rows, in the order and the bytes they had.
    ///
    /// # Panics
    ///
    /// If `out` has another size, or `order` does not fit the rows.
    pub fn unpack_into(&self, order: RowOrder, out: &mut [u8]) {
        assert!(order.fits(self.rows), "whole heads");
        let row_bytes = self.format.row_bytes(self.cols).unwrap_or(0);
        assert_eq!(out.len(), self.rows * row_bytes, "bytes of the matrix");
        for row in 0..self.rows {
            let at = order.stored(row) * row_bytes;
            self.row_bytes_into(row, &mut out[at..at + row_bytes]);
        }
    }
}

/// The block of one lane out of eight interleaved ones.
#[inline(always)]
pub(crate) fn unpack_block(format: Format, group: &[u8], lane: usize, out: &mut [u8]) {
    walk(format, |field, from, to| match field {
        Field::Bytes { size, .. } => {
            out[from..from + size].copy_from_slice(&group[to + lane * size..][..size]);
        }
        Field::HighBits { .. } => {
            let bytes = *group[to + lane * 4..].first_chunk().expect("in a group");
            let bits = gather_bits(u32::from_le_bytes(bytes));
            out[from..from + 4].copy_from_slice(&bits.to_le_bytes());
        }
    });
}

impl std::fmt::Debug for TileView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TileView({} x {} {})", self.rows, self.cols, self.format)
    }
}
