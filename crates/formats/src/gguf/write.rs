//! [`GgufWriter`]: declares tensors, writes the header of a version 3 file, then streams.

use std::collections::HashSet;
use std::io::Write;

use super::metadata::Metadata;
use super::value::{Array, Value};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES, MAX_RANK};
use crate::error::{Error, MEMORY, OUTPUT};
use crate::stream::{TensorStream, output_error};
use crate::tensor::TensorInfo;

const VERSION: u32 = 3;

/// The header of a file to be. [`GgufWriter::begin`] turns it into a [`TensorStream`].
#[derive(Debug)]
pub struct GgufWriter {
    metadata: Metadata,
    alignment: u32,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
}

impl GgufWriter {
    /// Starts a header. An alignment other than the default is added to the metadata.
    ///
    /// # Errors
    /// [`Error::Alignment`] if it is not a power of two; [`Error::KeyRange`] if the metadata
    /// state another one; [`Error::Limit`] for a key that is too long.
    pub fn new(mut metadata: Metadata, alignment: u32) -> Result<GgufWriter, Error> {
        if !alignment.is_power_of_two() {
            return Err(Error::Alignment {
                path: OUTPUT.into(),
                value: u64::from(alignment),
            });
        }
        match metadata.u32(ALIGNMENT_KEY)? {
            Some(stated) if stated != alignment => {
                return Err(Error::KeyRange {
                    path: OUTPUT.into(),
                    key: ALIGNMENT_KEY.into(),
                    expected: "alignment of this writer",
                    value: stated.to_string(),
                });
            }
            None if alignment != DEFAULT_ALIGNMENT => {
                metadata.insert(ALIGNMENT_KEY, Value::U32(alignment))?;
            }
            Some(_) | None => {}
        }
        for (key, _) in metadata.iter() {
            check_name("the length of a key", key)?;
        }
        Ok(GgufWriter {
            metadata,
            alignment,
            tensors: Vec::new(),
            names: HashSet::new(),
        })
    }

    /// Adds a tensor; the order of declaration is the order in the file.
    ///
    /// # Errors
    /// [`Error::DuplicateTensor`], [`Error::Rank`], [`Error::NoContainerType`],
    /// [`Error::DeclaredBytes`], [`Error::Limit`].
    pub fn declare(&mut self, tensor: TensorInfo) -> Result<(), Error> {
        check_name("the length of a tensor name", &tensor.name)?;
        if tensor.shape.len() > MAX_RANK as usize {
            return Err(Error::Rank {
                path: MEMORY.into(),
                rank: tensor.shape.len() as u64,
                tensor: tensor.name,
                max: u64::from(MAX_RANK),
            });
        }
        if tensor.dtype.to_ggml().is_none() {
            return Err(Error::NoContainerType {
                tensor: tensor.name,
                dtype: tensor.dtype,
                container: "GGUF",
            });
        }
        tensor.check_n_bytes()?;
        if !self.names.insert(tensor.name.clone()) {
            return Err(Error::DuplicateTensor {
                path: MEMORY.into(),
                tensor: tensor.name,
            });
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Writes the header to `out`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Limit`] if the file would exceed 2^64 bytes.
    pub fn begin<W: Write>(self, mut out: W) -> Result<TensorStream<W>, Error> {
        let alignment = u64::from(self.alignment);
        let mut header = self.header()?;
        let padded = (header.len() as u64).next_multiple_of(alignment);
        // The padding goes out in pieces: a large alignment must not cost memory.
        out.write_all(&header).map_err(output_error)?;
        let mut rest = padded - header.len() as u64;
        header = vec![0; rest.min(4096) as usize];
        while rest > 0 {
            let n = rest.min(header.len() as u64);
            out.write_all(&header[..n as usize]).map_err(output_error)?;
            rest -= n;
        }
        Ok(TensorStream::new(out, self.tensors, alignment))
    }

    fn header(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        put_len(&mut out, self.tensors.len());
        put_len(&mut out, self.metadata.len());
        for (key, value) in self.metadata.iter() {
            put_str(&mut out, key);
            out.extend_from_slice(&value.type_id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                out.extend_from_slice(&dim.to_le_bytes());
            }
            let id = tensor.dtype.to_ggml().expect("declare has checked it");
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset = tensor
                .n_bytes
                .checked_next_multiple_of(u64::from(self.alignment))
                .and_then(|n| offset.checked_add(n))
                .ok_or_else(|| Error::SizeOverflow {
                    path: OUTPUT.into(),
                    tensor: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                })?;
        }
        Ok(out)
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.len() as u64 <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Error::Limit {
        path: OUTPUT.into(),
        what: what.to_owned(),
        value: name.len() as u64,
        limit: MAX_NAME_BYTES,
    })
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.push(*x),
        Value::I8(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::U16(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I16(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::U32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::U64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::F32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::F64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::String(x) => put_str(out, x),
        Value::Array(x) => put_array(out, x),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put_all<const N: usize, T: Copy>(out: &mut Vec<u8>, xs: &[T], bytes: fn(T) -> [u8; N]) {
        out.extend(xs.iter().flat_map(|x| bytes(*x)));
    }
    out.extend_from_slice(&array.type_id().to_le_bytes());
    put_len(out, array.len());
    match array {
        Array::U8(xs) => out.extend_from_slice(xs),
        Array::I8(xs) => put_all(out, xs, i8::to_le_bytes),
        Array::U16(xs) => put_all(out, xs, u16::to_le_bytes),
        Array::I16(xs) => put_all(out, xs, i16::to_le_bytes),
        Array::U32(xs) => put_all(out, xs, u32::to_le_bytes),
        Array::I32(xs) => put_all(out, xs, i32::to_le_bytes),
        Array::U64(xs) => put_all(out, xs, u64::to_le_bytes),
        Array::I64(xs) => put_all(out, xs, i64::to_le_bytes),
        Array::F32(xs) => put_all(out, xs, f32::to_le_bytes),
        Array::F64(xs) => put_all(out, xs, f64::to_le_bytes),
        Array::Bool(xs) => out.extend(xs.iter().map(|x| u8::from(*x))),
        Array::Strings(xs) => xs.iter().for_each(|x| put_str(out, x)),
        Array::Nested(xs) => xs.iter().for_each(|x| put_array(out, x)),
    }
}
