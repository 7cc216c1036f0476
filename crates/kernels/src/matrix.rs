//! A borrowed matrix of stored weights, checked once.
//!
//! Rows are output features and lie one after another, each a whole number of blocks; there is no
//! padding between rows.  The view owns nothing and copies nothing.

use crate::arch::Kernels;
use crate::format::Format;

/// Why bytes cannot be seen as a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A row is not a whole number of blocks.
    #[error(
        "a row of {cols} weights is not a whole number of {format} blocks of {}",
        format.block_len()
    )]
    PartialBlock {
        /// The storage format.
        format: Format,
        /// Weights in a row.
        cols: usize,
    },
    /// The byte count of the matrix does not fit in memory.
    #[error("a {rows} x {cols} {format} matrix does not fit in memory")]
    TooLarge {
        /// The storage format.
        format: Format,
        /// Rows asked for.
        rows: usize,
        /// Weights in a row.
        cols: usize,
    },
    /// The bytes are not exactly the matrix.
    #[error("a {rows} x {cols} {format} matrix takes {expected} bytes, got {got}")]
    WrongLength {
        /// The storage format.
        format: Format,
        /// Rows asked for.
        rows: usize,
        /// Weights in a row.
        cols: usize,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}

/// A row-major `[rows, cols]` matrix stored in one format.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

/// Bytes of a row, once `got` is found to be `stored_rows` of them; `None` when there are too many rows to count.
pub(crate) fn checked_row_bytes(
    format: Format,
    rows: usize,
    cols: usize,
    stored_rows: Option<usize>,
    got: usize,
) -> Result<usize, ShapeError> {
    if !cols.is_multiple_of(format.block_len()) {
        return Err(ShapeError::PartialBlock { format, cols });
    }
    let too_large = || ShapeError::TooLarge { format, rows, cols };
    let row_bytes = format.row_bytes(cols).ok_or_else(too_large)?;
    let expected = stored_rows
        .and_then(|stored| row_bytes.checked_mul(stored))
        .ok_or_else(too_large)?;
    if got != expected {
        return Err(ShapeError::WrongLength {
            format,
            rows,
            cols,
            expected,
            got,
        });
    }
    Ok(row_bytes)
}

impl<'a> MatrixView<'a> {
    /// Sees `bytes` as `rows` rows of `cols` weights.
    ///
    /// # Errors
    ///
    /// When a row is not a whole number of blocks or the bytes are not exactly the matrix.
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row_bytes = checked_row_bytes(format, rows, cols, Some(rows), bytes.len())?;
        Ok(Self {
            format,
            rows,
            cols,
            row_bytes,
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

    /// All bytes, row after row.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of stored row `row`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Bytes of one row.
    pub fn row_len_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl std::fmt::Debug for MatrixView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "MatrixView({} x {} {})",
            self.rows, self.cols, self.format
        )
    }
}

/// Decodes whole blocks with the kernels of this CPU; see [`Kernels::decode`].
///
/// # Panics
///
/// If the sizes do not agree.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    Kernels::detect().decode(format, bytes, out);
}

/// Decodes stored row `row` of `w`; `out` has `cols` values.
///
/// # Panics
///
/// If there is no such row or `out` has another length.
pub fn decode_row(w: MatrixView<'_>, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), w.cols, "columns of the row");
    decode(w.format, w.row_bytes(row), out);
}

/// Decodes column `col` of `w`, in stored row order; `out` has `rows` values.
///
/// Reads one block of every row.
///
/// # Panics
///
/// If there is no such column or `out` has another length.
pub fn decode_column(w: MatrixView<'_>, col: usize, out: &mut [f32]) {
    /// The longest block of any format.
    const BLOCK_LEN_MAX: usize = 256;
    assert!(col < w.cols, "column {col} of {}", w.cols);
    assert_eq!(out.len(), w.rows, "rows of the column");
    let (len, size) = (w.format.block_len(), w.format.block_bytes());
    let mut values = [0f32; BLOCK_LEN_MAX];
    let values = &mut values[..len];
    let at = col / len * size;
    for (row, out) in out.iter_mut().enumerate() {
        decode(w.format, &w.row_bytes(row)[at..at + size], values);
        *out = values[col % len];
    }
}
