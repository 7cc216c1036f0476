//! Encoding rows of `f32` weights into the block formats: the inverse of [`crate::decode`].
//!
//! Every encoder minimizes the plain squared error of its block: a grid of scales (and minima),
//! each judged by its own least-squares solution, then the stored half-precision scales with their
//! neighbors.  There is no importance weighting and no look at other rows, so rows may be encoded
//! in any order and on any thread.  The arithmetic is plain `f32` and `f64` in a fixed order: the
//! same input gives the same bytes on every machine.
//!
//! Not here: which format a tensor should get.  IQ4_NL, IQ4_XS and MXFP4 are decoded only.

mod affine;
mod blocks;
mod halves;
mod pack;
mod probes;
mod signed;
mod unit;

use crate::format::Format;

pub use halves::{f32_to_bf16, f32_to_f16};

/// Why rows cannot be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The format can be read but not written.
    #[error("no encoder for {format}")]
    NoEncoder {
        /// The format asked for.
        format: Format,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "a row of {cols} weights is not a whole number of {format} blocks of {}",
        format.block_len()
    )]
    PartialBlock {
        /// The format asked for.
        format: Format,
        /// Weights in a row.
        cols: usize,
    },
    /// A weight is not a number or infinite.
    #[error("row {row}, column {col}: {value} is not finite")]
    NotFinite {
        /// Row among those given.
        row: usize,
        /// Column of the weight.
        col: usize,
        /// The weight.
        value: f32,
    },
    /// A weight is beyond the largest value of a half-precision format.
    #[error("row {row}, column {col}: {value} is too large for {format}")]
    TooLarge {
        /// The format asked for.
        format: Format,
        /// Row among those given.
        row: usize,
        /// Column of the weight.
        col: usize,
        /// The weight.
        value: f32,
    },
    /// The scale or minimum of a block is beyond half precision.
    #[error(
        "row {row}, columns from {col}: the weights of a {format} block, up to {magnitude}, need a scale beyond half precision"
    )]
    ScaleTooLarge {
        /// The format asked for.
        format: Format,
        /// Row among those given.
        row: usize,
        /// First column of the block.
        col: usize,
        /// Largest magnitude in the block.
        magnitude: f32,
    },
}

/// Why one block has no encoding; [`encode`] adds where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScaleOverflow;

/// Whether [`encode`] writes `format`.
pub fn has_encoder(format: Format) -> bool {
    match format {
        Format::F32
        | Format::F16
        | Format::Bf16
        | Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K => true,
        Format::Iq4Nl | Format::Iq4Xs | Format::Mxfp4 => false,
    }
}

/// Encodes whole rows; `values` is `[rows, cols]`, `out` is `rows` times
/// [`Format::row_bytes`]`(cols)` bytes and is overwritten.
///
/// On an error the content of `out` is unspecified.
///
/// ```
/// use larql_kernels::{Format, decode, encode};
///
/// let row: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.0).collect();
/// let mut bytes = vec![0; Format::Q8_0.row_bytes(64).expect("two blocks")];
/// encode(Format::Q8_0, &row, 64, &mut bytes)?;
/// let mut back = [0.0; 64];
/// decode(Format::Q8_0, &bytes, &mut back);
/// assert!(row.iter().zip(back).all(|(a, b)| (a - b).abs() < 0.02));
/// # Ok::<(), larql_kernels::EncodeError>(())
/// ```
///
/// # Errors
///
/// When the format cannot be written, a row is not a whole number of blocks, a weight is not
/// finite, or a weight or the scale of a block does not fit; the error names the row among those
/// given.
///
/// # Panics
///
/// If `values` is not a whole number of rows or `out` has another size.
pub fn encode(
    format: Format,
    values: &[f32],
    cols: usize,
    out: &mut [u8],
) -> Result<(), EncodeError> {
    if !has_encoder(format) {
        return Err(EncodeError::NoEncoder { format });
    }
    let row_bytes = match format.row_bytes(cols) {
        Some(row_bytes) if cols > 0 => row_bytes,
        Some(_) | None => return Err(EncodeError::PartialBlock { format, cols }),
    };
    assert!(
        values.len().is_multiple_of(cols),
        "{} values are not rows of {cols}",
        values.len()
    );
    let rows = values.len() / cols;
    assert_eq!(
        Some(out.len()),
        row_bytes.checked_mul(rows),
        "bytes of {rows} rows"
    );
    let pairs = values
        .chunks_exact(cols)
        .zip(out.chunks_exact_mut(row_bytes));
    for (row, (values, out)) in pairs.enumerate() {
        if let Some(col) = values.iter().position(|v| !v.is_finite()) {
            let value = values[col];
            return Err(EncodeError::NotFinite { row, col, value });
        }
        encode_row(format, values, out).map_err(|at| at.error(format, row, values))?;
    }
    Ok(())
}

/// The block of a row that has no encoding.
struct FailedBlock {
    block_idx: usize,
}

impl FailedBlock {
    fn error(&self, format: Format, row: usize, values: &[f32]) -> EncodeError {
        let col = self.block_idx * format.block_len();
        let block = &values[col..col + format.block_len()];
        if let [value] = *block {
            return EncodeError::TooLarge {
                format,
                row,
                col,
                value,
            };
        }
        let magnitude = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        EncodeError::ScaleTooLarge {
            format,
            row,
            col,
            magnitude,
        }
    }
}

fn encode_row(format: Format, values: &[f32], out: &mut [u8]) -> Result<(), FailedBlock> {
    match format {
        Format::F32 => each(values, out, blocks::f32),
        Format::F16 => each(values, out, blocks::f16),
        Format::Bf16 => each(values, out, blocks::bf16),
        Format::Q4_0 => each(values, out, blocks::q4_0),
        Format::Q4_1 => each(values, out, blocks::q4_1),
        Format::Q5_0 => each(values, out, blocks::q5_0),
        Format::Q5_1 => each(values, out, blocks::q5_1),
        Format::Q8_0 => each(values, out, blocks::q8_0),
        Format::Q2K => each(values, out, blocks::q2_k),
        Format::Q3K => each(values, out, blocks::q3_k),
        Format::Q4K => each(values, out, blocks::q4_k),
        Format::Q5K => each(values, out, blocks::q5_k),
        Format::Q6K => each(values, out, blocks::q6_k),
        Format::Iq4Nl | Format::Iq4Xs | Format::Mxfp4 => {
            unreachable!("encode has refused formats without an encoder")
        }
    }
}

fn each<const LEN: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    one: impl Fn(&[f32; LEN], &mut [u8; BYTES]) -> Result<(), ScaleOverflow>,
) -> Result<(), FailedBlock> {
    let (blocks, rest) = values.as_chunks::<LEN>();
    let (encoded, tail) = out.as_chunks_mut::<BYTES>();
    debug_assert!(rest.is_empty() && tail.is_empty() && blocks.len() == encoded.len());
    for (block_idx, (block, bytes)) in blocks.iter().zip(encoded).enumerate() {
        one(block, bytes).map_err(|ScaleOverflow| FailedBlock { block_idx })?;
    }
    Ok(())
}
