//! A role's tensor as a container stores it, and how its bytes are cut out of the container.
//!
//! Where the rows of a role lie one after another, they are a view of the mapped file; rows that take turns with others,
//! transposed matrices and MXFP4 with separate exponents are copied into memory, in the stored type.

use larql_formats::Bytes;
use larql_kernels::{Format, decode};

use crate::error::{ModelError, ValuePlace};
use crate::layout::{Form, Layout, Run};
use crate::roles::{StoredValue, TensorRole};

/// Rows of a transposed matrix that are gathered together, so that each cache line is used whole.
const TRANSPOSE_ROWS: usize = 64;

/// Values of an MXFP4 block.
const MXFP4_BLOCK: usize = 32;

/// The exponent that stands for no number (OCP Microscaling Formats, E8M0).
const MXFP4_NAN: u8 = 255;

/// Bytes of an MXFP4 block with its exponent.
const MXFP4_BYTES: usize = 17;

/// Order of a stored tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredRows {
    /// As the engine wants them.
    Canonical,
    /// Within each head of this width, the two halves of RoPE's pairs alternate.
    Interleaved {
        /// Width of a head.
        d_head: u32,
    },
}

/// A tensor as it is stored, with what it takes to read it canonically.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// What it is for.
    pub role: TensorRole,
    /// Name of the container's tensor that holds it, alone or with others.
    pub name: String,
    /// Its block format.
    pub format: Format,
    /// Logical shape, outermost first.
    pub shape: Vec<u64>,
    /// Order of its rows.
    pub rows: StoredRows,
    /// How its values are stored.
    pub value: StoredValue,
    /// Its bytes, mapped or gathered.
    pub bytes: Bytes,
}

impl StoredTensor {
    /// Rows of the tensor; a vector has one value in each.
    pub fn n_rows(&self) -> usize {
        dim(self.shape.first().copied().unwrap_or(0))
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.shape[1..].iter().map(|len| dim(*len)).product()
    }

    /// All values as the engine wants them: rows in canonical order, norms as they multiply.
    ///
    /// # Panics
    /// If the bytes are fewer than the shape needs, which opening has checked.
    pub fn to_f32(&self) -> Vec<f32> {
        let (n_rows, cols) = (self.n_rows(), self.cols());
        let mut values = vec![0.0; n_rows * cols];
        decode(self.format, &self.bytes, &mut values);
        values
            .iter_mut()
            .for_each(|value| *value = self.value.effective(*value));
        match self.rows {
            StoredRows::Canonical => values,
            StoredRows::Interleaved { d_head } => {
                let mut canonical = vec![0.0; values.len()];
                for (stored, row) in values.chunks_exact(cols.max(1)).enumerate() {
                    let logical = canonical_row(stored, d_head as usize);
                    canonical[logical * cols..][..cols].copy_from_slice(row);
                }
                canonical
            }
        }
    }

    /// Where the canonical row lies among the stored ones.
    pub fn stored_row(&self, canonical: usize) -> usize {
        match self.rows {
            StoredRows::Canonical => canonical,
            StoredRows::Interleaved { d_head } => interleaved_row(canonical, d_head as usize),
        }
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.n_rows().max(1)
    }
}

impl StoredValue {
    /// The value that acts.
    pub fn effective(self, stored: f32) -> f32 {
        match self {
            Self::Effective => stored,
            Self::MinusOne => stored + 1.0,
            Self::LogOfNegative => -stored.exp(),
        }
    }

    /// The value to store for one that acts; not always exact.
    pub fn stored(self, effective: f32) -> f32 {
        match self {
            Self::Effective => effective,
            Self::MinusOne => effective - 1.0,
            Self::LogOfNegative => (-effective).ln(),
        }
    }
}

/// Canonical index of an interleaved row: within a head, row `2 i + j` is dimension `j * d_head / 2 + i`.
pub fn canonical_row(stored: usize, d_head: usize) -> usize {
    let (head, within) = (stored / d_head, stored % d_head);
    head * d_head + (within % 2) * (d_head / 2) + within / 2
}

/// Interleaved index of a canonical row: the inverse of [`canonical_row`].
pub fn interleaved_row(canonical: usize, d_head: usize) -> usize {
    let (head, within) = (canonical / d_head, canonical % d_head);
    head * d_head + 2 * (within % (d_head / 2)) + within / (d_head / 2)
}

/// A role's rows in one tensor of the container.
pub(crate) struct Piece<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) run: Run,
    /// The type of the container's tensor.
    pub(crate) stored: Format,
    /// The type in which the rows are wanted: the stored one, or F32.
    pub(crate) format: Format,
}

/// The role's bytes, row after row, in the type that the pieces are wanted in; `data` gives the bytes of a container's tensor.
pub(crate) fn gather(
    pieces: &[Piece<'_>],
    data: &dyn Fn(&str) -> Result<Bytes, ModelError>,
) -> Result<Bytes, ModelError> {
    if let [piece] = pieces
        && piece.layout.form == Form::Rows
        && piece.run.step == 1
        && piece.stored == piece.format
    {
        let row = row_bytes(piece.format, piece.layout.cols);
        let (at, count) = (dim(piece.run.at), dim(piece.run.count));
        return Ok(data(&piece.layout.name)?.slice(at * row..(at + count) * row));
    }
    let mut bytes = Vec::new();
    for piece in pieces {
        append(piece, data, &mut bytes)?;
    }
    Ok(Bytes::from_vec(bytes))
}

fn append(
    piece: &Piece<'_>,
    data: &dyn Fn(&str) -> Result<Bytes, ModelError>,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    let Piece {
        layout,
        run,
        stored,
        format,
    } = piece;
    let (cols, count) = (dim(layout.cols), dim(run.count));
    let row = row_bytes(*format, layout.cols);
    let source = match stored == format {
        true => data(&layout.name)?,
        false => decoded(*stored, layout, &data(&layout.name)?),
    };
    let stored = |i: usize| dim(run.at) + i * dim(run.step);
    let start = out.len();
    out.resize(start + count * row, 0);
    let out = &mut out[start..];
    match &layout.form {
        Form::Rows => {
            for (i, to) in out.chunks_exact_mut(row.max(1)).enumerate() {
                to.copy_from_slice(&source[stored(i) * row..][..row]);
            }
        }
        Form::Columns { out: slab } => {
            let (slab, size) = (dim(*slab), row / cols.max(1));
            for block in (0..count).step_by(TRANSPOSE_ROWS) {
                for col in 0..cols {
                    for i in block..(block + TRANSPOSE_ROWS).min(count) {
                        let (s, o) = (stored(i) / slab, stored(i) % slab);
                        let from = ((s * cols + col) * slab + o) * size;
                        out[i * row + col * size..][..size]
                            .copy_from_slice(&source[from..][..size]);
                    }
                }
            }
        }
        Form::Mxfp4Pairs { scales } => {
            let (exponents, blocks) = (data(scales)?, cols / MXFP4_BLOCK);
            for (i, to) in out.chunks_exact_mut(row.max(1)).enumerate() {
                for (b, to) in to.chunks_exact_mut(MXFP4_BYTES).enumerate() {
                    let at = stored(i) * blocks + b;
                    if exponents[at] == MXFP4_NAN {
                        let at = ValuePlace {
                            tensor: scales.clone(),
                            source_tensor: None,
                            row: stored(i) as u64,
                            column: b as u64,
                        };
                        return Err(ModelError::NotFinite {
                            at,
                            value: f32::NAN,
                        });
                    }
                    to[0] = exponents[at];
                    planar_nibbles(&source[at * 16..][..16], &mut to[1..]);
                }
            }
        }
    }
    Ok(())
}

/// A tensor's values in F32, in the order in which they are stored.
fn decoded(stored: Format, layout: &Layout, bytes: &[u8]) -> Bytes {
    let mut values = vec![0.0; dim(layout.n_rows()) * dim(layout.cols)];
    decode(stored, bytes, &mut values);
    Bytes::from_vec(
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
    )
}

/// From neighbours in one byte (even element low) to ggml's order: element `j` low and `j + 16` high in byte `j`.
fn planar_nibbles(pairs: &[u8], planar: &mut [u8]) {
    let nibble = |element: usize| (pairs[element / 2] >> (4 * (element % 2))) & 15;
    for (j, byte) in planar.iter_mut().enumerate() {
        *byte = nibble(j) | (nibble(j + 16) << 4);
    }
}

/// The inverse of [`planar_nibbles`].
pub(crate) fn paired_nibbles(planar: &[u8], pairs: &mut [u8]) {
    let nibble = |element: usize| (planar[element % 16] >> (4 * (element / 16))) & 15;
    for (i, byte) in pairs.iter_mut().enumerate() {
        *byte = nibble(2 * i) | (nibble(2 * i + 1) << 4);
    }
}

/// Bytes of a row of `cols` values.
pub(crate) fn row_bytes(format: Format, cols: u64) -> usize {
    dim(cols) / format.block_len() * format.block_bytes()
}

fn dim(n: u64) -> usize {
    usize::try_from(n).expect("a mapped tensor fits memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte `i` holds elements `2 i` and `2 i + 1` on one side, `i` and `i + 16` on the other.
    #[test]
    fn nibbles_change_their_order_and_come_back() {
        let pairs: Vec<u8> = (0..16u8)
            .map(|i| i.wrapping_mul(29).wrapping_add(7))
            .collect();
        let mut planar = [0; 16];
        planar_nibbles(&pairs, &mut planar);
        assert_eq!(planar[0], (pairs[0] & 15) | ((pairs[8] & 15) << 4));
        assert_eq!(planar[5], (pairs[2] >> 4) | (pairs[10] & 0xf0));
        let mut back = [0; 16];
        paired_nibbles(&planar, &mut back);
        assert_eq!(back, pairs[..]);
    }

    #[test]
    fn interleaving_is_inverted() {
        for row in 0..72 {
            assert_eq!(interleaved_row(canonical_row(row, 24), 24), row);
        }
        assert_eq!(canonical_row(1, 24), 12);
    }
}
