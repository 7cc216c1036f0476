//! Rows of roles on their way into a container's tensor.
//!
//! The other direction of [`crate::stored`]: same layouts, same forms. Rows whose type and values stay as they are are
//! passed on as bytes; others are decoded, brought to the value the container stores, and encoded.

use std::cell::RefCell;
use std::sync::Mutex;

use larql_formats::{Bytes, Sink};
use larql_kernels::{EncodeError, Format, Team, decode, encode};

use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, ValuePlace};
use crate::layout::{Form, Layout, Run};
use crate::roles::{StoredValue, TensorRole};
use crate::stored::{StoredRows, StoredTensor, canonical_row, paired_nibbles, row_bytes};

/// Largest piece of a tensor that is passed on at once, so that a caller can report progress and stop.
const CHUNK_BYTES: usize = 2 << 20;

/// Values that are decoded before they are encoded together: enough rows for every thread.
const CHUNK_VALUES: usize = 1 << 20;

/// Bytes of an MXFP4 block with its exponent.
const MXFP4_BYTES: usize = 17;

/// Which of the tensors of a layout is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// The only one, or the nibbles of a pair.
    Main,
    /// The exponents of a pair.
    Scales,
}

/// Writes one tensor.
pub(crate) struct LayoutWriter<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) half: Half,
    /// The type it is written in.
    pub(crate) format: Format,
    /// How the container stores the values of a role.
    pub(crate) value: &'a dyn Fn(TensorRole) -> StoredValue,
    /// Head width by which the container interleaves a role's rows, if it does.
    pub(crate) interleaved: &'a dyn Fn(TensorRole) -> Option<u32>,
    pub(crate) checkpoint: &'a Checkpoint,
    /// Bytes of the checkpoint's own tensors.
    pub(crate) data: &'a dyn Fn(&str) -> Result<Bytes, ModelError>,
    /// Who encodes, where there is much to encode.
    pub(crate) team: Option<&'a RefCell<Team>>,
    /// What of floats that are not encoded.
    pub(crate) passed: Passed,
}

/// How floats are treated that are passed on as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Bytes are bytes.
    Any,
    /// They must be finite numbers, as those that are encoded must be.
    Finite,
}

impl Passed {
    /// The first number of rows that is to be refused: its row among them, its column and what it is.
    pub(crate) fn first_refused(
        self,
        format: Format,
        cols: u64,
        bytes: &[u8],
    ) -> Option<(usize, usize, f32)> {
        let row = row_bytes(format, cols);
        if self == Self::Any || format.block_len() > 1 || row == 0 {
            return None;
        }
        let mut values = vec![0.0; cols as usize];
        bytes.chunks_exact(row).enumerate().find_map(|(r, bytes)| {
            decode(format, bytes, &mut values);
            let column = values.iter().position(|x| !x.is_finite())?;
            Some((r, column, values[column]))
        })
    }
}

/// A role with the order in which its rows are wanted.
struct Source {
    tensor: StoredTensor,
    interleave: Option<usize>,
    first: usize,
    /// How the container stores the role's values.
    value: StoredValue,
}

impl Source {
    /// Index, among the stored rows, of the `r`-th row that is wanted.
    fn row(&self, r: usize) -> usize {
        let wanted = self.first + r;
        let canonical = self
            .interleave
            .map_or(wanted, |d_head| canonical_row(wanted, d_head));
        self.tensor.stored_row(canonical)
    }

    /// Whether wanted rows follow each other as stored ones do.
    fn is_in_order(&self) -> bool {
        match (self.tensor.rows, self.interleave) {
            (StoredRows::Canonical, None) => true,
            (StoredRows::Interleaved { d_head }, Some(wanted)) => d_head as usize == wanted,
            (StoredRows::Canonical, Some(_)) | (StoredRows::Interleaved { .. }, None) => false,
        }
    }

    fn bytes(&self, r: usize) -> &[u8] {
        let row = self.tensor.row_bytes();
        &self.tensor.bytes[self.row(r) * row..][..row]
    }
}

/// Rows under way: raw bytes in the type of the output, after values that still have to be encoded.
struct Rows {
    values: Vec<f32>,
    bytes: Vec<u8>,
    /// Rows that have left.
    done: usize,
}

impl LayoutWriter<'_> {
    /// Writes the tensor's rows in order.
    pub(crate) fn write(&self, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        let mut runs = self.layout.runs.clone();
        runs.sort_by_key(|run| run.at);
        let mut rows = Rows {
            values: Vec::new(),
            bytes: Vec::with_capacity(CHUNK_BYTES),
            done: 0,
        };
        let mut rest = runs.as_slice();
        while let Some(run) = rest.first() {
            // Rows that take turns come from as many runs as there are rows from one to the next.
            let (together, later) = rest.split_at(usize::try_from(run.step).unwrap_or(1));
            self.write_together(together, &mut rows, sink)?;
            rest = later;
        }
        self.encode(&mut rows)?;
        self.pass_on(&mut rows, sink, 0)?;
        Ok(())
    }

    fn write_together(
        &self,
        runs: &[Run],
        rows: &mut Rows,
        sink: &mut Sink<'_>,
    ) -> Result<(), ModelError> {
        let sources: Vec<Source> = runs
            .iter()
            .map(|run| {
                Ok(Source {
                    tensor: self.checkpoint.tensor_from(run.role, self.data)?,
                    interleave: (self.interleaved)(run.role).map(|d_head| d_head as usize),
                    first: run.first as usize,
                    value: (self.value)(run.role),
                })
            })
            .collect::<Result<_, ModelError>>()?;
        let count = runs[0].count as usize;
        if let [source] = sources.as_slice()
            && self.layout.form == Form::Rows
            && self.is_stored_so(source)
            && source.is_in_order()
        {
            // Whole tensors, which are most of a model, pass without being taken apart.
            self.encode(rows)?;
            self.pass_on(rows, sink, 0)?;
            let row = source.tensor.row_bytes();
            let bytes = &source.tensor.bytes[source.first * row..][..count * row];
            self.check(rows.done, bytes)?;
            put_chunks(bytes, sink)?;
            rows.done += count;
            return Ok(());
        }
        let cols = self.layout.cols as usize;
        for r in 0..count {
            for source in &sources {
                let tensor = &source.tensor;
                if self.is_stored_so(source) {
                    self.encode(rows)?;
                    let row = rows.done + rows.bytes.len() / source.tensor.row_bytes().max(1);
                    self.check(row, source.bytes(r))?;
                    rows.bytes.extend_from_slice(source.bytes(r));
                } else {
                    let at = rows.values.len();
                    rows.values.resize(at + cols, 0.0);
                    let row = &mut rows.values[at..];
                    decode(tensor.format, source.bytes(r), row);
                    if tensor.value != source.value {
                        row.iter_mut()
                            .for_each(|x| *x = source.value.stored(tensor.value.effective(*x)));
                    }
                }
            }
            if rows.values.len() >= CHUNK_VALUES {
                self.encode(rows)?;
            }
            self.pass_on(rows, sink, CHUNK_BYTES)?;
        }
        Ok(())
    }

    fn check(&self, first_row: usize, bytes: &[u8]) -> Result<(), ModelError> {
        let refused = self
            .passed
            .first_refused(self.format, self.layout.cols, bytes);
        match refused {
            None => Ok(()),
            Some((row, column, value)) => Err(ModelError::NotFinite {
                at: self.place(first_row + row, column),
                value,
            }),
        }
    }

    /// Where the tensor has what is at `column` of the `row`-th row of its roles.
    fn place(&self, row: usize, column: usize) -> ValuePlace {
        let Layout {
            name,
            shape,
            cols,
            runs,
            form,
        } = self.layout;
        let held = runs.iter().find(|run| run.has(row as u64));
        let mut sources = self.checkpoint.layouts().iter().filter(|layout| {
            held.is_some_and(|held| layout.runs.iter().any(|run| run.role == held.role))
        });
        let source = sources.next().filter(|_| sources.next().is_none());
        let (row, column) = (row as u64, column as u64);
        let (row, column) = match form {
            Form::Columns { out } => (row / out * cols + column, row % out),
            // The layout of a vector has a value in each row.
            Form::Rows | Form::Mxfp4Pairs { .. } if shape.len() < 2 => (0, row),
            Form::Rows | Form::Mxfp4Pairs { .. } => (row, column),
        };
        ValuePlace {
            tensor: name.clone(),
            source_tensor: source
                .map(|layout| layout.name.clone())
                .filter(|source| source != name),
            row,
            column,
        }
    }

    /// What is wrong with rows of which the first is the `first_row`-th of the tensor.
    fn not_encoded(&self, first_row: usize, error: EncodeError) -> ModelError {
        match error {
            EncodeError::NotFinite { row, col, value } => ModelError::NotFinite {
                at: self.place(first_row + row, col),
                value,
            },
            EncodeError::TooLarge {
                format,
                row,
                col,
                value,
            } => ModelError::TooLarge {
                at: self.place(first_row + row, col),
                value,
                format,
            },
            EncodeError::ScaleTooLarge {
                format,
                row,
                col,
                magnitude,
            } => ModelError::ScaleTooLarge {
                at: self.place(first_row + row, col),
                magnitude,
                format,
            },
            source => ModelError::Encode {
                origin: self.checkpoint.origin().display().to_string(),
                tensor: self.layout.name.clone(),
                source,
            },
        }
    }

    /// Whether the rows' bytes are already those that are wanted.
    fn is_stored_so(&self, source: &Source) -> bool {
        source.tensor.format == self.format && source.tensor.value == source.value
    }

    /// Turns the values that wait into bytes.
    fn encode(&self, rows: &mut Rows) -> Result<(), ModelError> {
        if rows.values.is_empty() {
            return Ok(());
        }
        let (cols, row) = (
            self.layout.cols as usize,
            row_bytes(self.format, self.layout.cols),
        );
        let n = rows.values.len() / cols;
        let start = rows.bytes.len();
        rows.bytes.resize(start + n * row, 0);
        let out = &mut rows.bytes[start..];
        let failed = |first: usize, error: EncodeError| {
            self.not_encoded(rows.done + start / row + first, error)
        };
        if self.format == Format::F32 {
            for (to, value) in out.chunks_exact_mut(4).zip(&rows.values) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            self.check(rows.done + start / row, &rows.bytes[start..])?;
        } else if let Some(team) = self.team {
            let first_failure: Mutex<Option<(usize, EncodeError)>> = Mutex::new(None);
            let (values, format) = (&rows.values, self.format);
            team.borrow_mut().chunks_mut(out, row, |r, out| {
                if let Err(error) = encode(format, &values[r * cols..][..cols], cols, out) {
                    let mut first = first_failure.lock().unwrap_or_else(|e| e.into_inner());
                    if first.as_ref().is_none_or(|(at, _)| r < *at) {
                        *first = Some((r, error));
                    }
                }
            });
            let first = first_failure
                .into_inner()
                .unwrap_or_else(|e| e.into_inner());
            if let Some((r, error)) = first {
                return Err(failed(r, error));
            }
        } else {
            encode(self.format, &rows.values, cols, out).map_err(|error| failed(0, error))?;
        }
        rows.values.clear();
        Ok(())
    }

    /// Hands over what is complete, once it is at least `enough` bytes.
    fn pass_on(
        &self,
        rows: &mut Rows,
        sink: &mut Sink<'_>,
        enough: usize,
    ) -> Result<(), ModelError> {
        let row = row_bytes(self.format, self.layout.cols);
        match &self.layout.form {
            Form::Rows => {
                if rows.bytes.len() >= enough.max(1) {
                    put_chunks(&rows.bytes, sink)?;
                    rows.done += rows.bytes.len() / row;
                    rows.bytes.clear();
                }
            }
            Form::Columns { out } => {
                let slab = row * *out as usize;
                while rows.bytes.len() >= slab && slab > 0 {
                    let columns = transposed(
                        &rows.bytes[..slab],
                        *out as usize,
                        self.layout.cols as usize,
                    );
                    put_chunks(&columns, sink)?;
                    rows.bytes.drain(..slab);
                    rows.done += *out as usize;
                }
            }
            Form::Mxfp4Pairs { .. } => {
                if rows.bytes.len() >= enough.max(1) {
                    put_chunks(&self.unpaired(&rows.bytes), sink)?;
                    rows.done += rows.bytes.len() / row;
                    rows.bytes.clear();
                }
            }
        }
        Ok(())
    }

    fn unpaired(&self, blocks: &[u8]) -> Vec<u8> {
        let blocks = blocks.chunks_exact(MXFP4_BYTES);
        match self.half {
            Half::Scales => blocks.map(|block| block[0]).collect(),
            Half::Main => {
                let mut pairs = vec![0; blocks.len() * 16];
                for (block, pairs) in blocks.zip(pairs.chunks_exact_mut(16)) {
                    paired_nibbles(&block[1..], pairs);
                }
                pairs
            }
        }
    }
}

/// `[cols, rows]` of `[rows, cols]`.
fn transposed(bytes: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let size = bytes.len() / (rows * cols).max(1);
    let mut out = vec![0; bytes.len()];
    for (r, row) in bytes.chunks_exact(cols * size).enumerate() {
        for (c, value) in row.chunks_exact(size).enumerate() {
            out[(c * rows + r) * size..][..size].copy_from_slice(value);
        }
    }
    out
}

/// Passes bytes on in pieces.
pub(crate) fn put_chunks(bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ModelError> {
    for chunk in bytes.chunks(CHUNK_BYTES) {
        sink.put(chunk)?;
    }
    Ok(())
}

/// Writes numbers in F32.
pub(crate) fn put_values(values: &[f32], sink: &mut Sink<'_>) -> Result<(), ModelError> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    put_chunks(&bytes, sink)
}
