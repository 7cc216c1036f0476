//! From bytes to metadata and tensor records: the untrusted part of reading a GGUF file.
//!
//! Every count is compared with the bytes that are left before anything is reserved for it,
//! so memory is bounded by a small multiple of the header's real size.

use std::collections::HashSet;
use std::fmt::{Arguments, Display};
use std::path::Path;

use super::metadata::Metadata;
use super::value::{Array, StringArray, Value};
use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_ARRAY_DEPTH, MAX_KEYS, MAX_NAME_BYTES, MAX_RANK,
    MAX_TENSORS,
};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::tensor::TensorInfo;

/// Length of the key, one byte of key, type, one byte of value. Empty keys do not occur.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// Length of the name, number of dimensions, type and offset of a scalar.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
/// Element type and count of an empty array.
const MIN_ARRAY_BYTES: u64 = 4 + 8;
/// A string is at least its length.
const MIN_STRING_BYTES: u64 = 8;

/// A parsed header: `offsets[i]` is where tensor `i` begins, relative to `data_start`.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) offsets: Vec<u64>,
    pub(crate) data_start: u64,
}

/// Parses a header and proves that every tensor lies in the file and overlaps no other.
pub(crate) fn header(bytes: &[u8], path: &Path) -> Result<Header, Error> {
    let mut cursor = Cursor {
        bytes,
        pos: 0,
        path,
    };
    let version = magic_and_version(&mut cursor)?;
    let n_tensors = cursor.u64(format_args!("the tensor count"))?;
    let n_keys = cursor.u64(format_args!("the key count"))?;
    cursor.check_count("tensors", n_tensors, MIN_TENSOR_BYTES, MAX_TENSORS)?;
    cursor.check_count("keys", n_keys, MIN_KEY_BYTES, MAX_KEYS)?;

    let mut metadata = Metadata::of_file(path);
    for idx in 0..n_keys {
        let key = cursor.name(format_args!("the name of key {idx}"))?;
        let id = cursor.u32(format_args!("the type of key `{key}`"))?;
        let value = cursor.value(&key, id)?;
        metadata.insert(key, value)?;
    }
    let alignment = alignment_of(&metadata, path)?;

    let mut tensors = Vec::with_capacity(n_tensors as usize);
    let mut offsets = Vec::with_capacity(n_tensors as usize);
    for idx in 0..n_tensors {
        let (tensor, offset) = cursor.tensor(idx)?;
        tensors.push(tensor);
        offsets.push(offset);
    }
    let header = Header {
        version,
        alignment,
        metadata,
        tensors,
        offsets,
        data_start: (cursor.pos as u64).next_multiple_of(u64::from(alignment)),
    };
    check_names(&header, path)?;
    check_placement(&header, bytes.len() as u64, path)?;
    Ok(header)
}

fn magic_and_version(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let path = cursor.path.to_path_buf();
    let found = &cursor.bytes[..cursor.bytes.len().min(4)];
    // The older formats stored their magic as a little-endian number, that is reversed.
    let legacy = match found {
        b"ggml" | b"lmgg" => Some("GGML"),
        b"ggmf" | b"fmgg" => Some("GGMF"),
        b"ggjt" | b"tjgg" | b"GGJT" => Some("GGJT"),
        b"ggla" | b"algg" => Some("GGLA"),
        _ => None,
    };
    if let Some(magic) = legacy {
        return Err(Error::LegacyFormat { path, magic });
    }
    if found != &MAGIC[..found.len()] {
        let found = found.to_vec();
        return Err(Error::BadMagic { path, found });
    }
    cursor.take(4, format_args!("the magic"))?;
    let version = cursor.u32(format_args!("the version"))?;
    match version {
        2 | 3 => Ok(version),
        // A small number whose bytes arrive in the wrong order.
        _ if version.swap_bytes() <= 0xffff && version > 0xffff => Err(Error::BigEndian { path }),
        _ => Err(Error::GgufVersion { path, version }),
    }
}

fn alignment_of(metadata: &Metadata, path: &Path) -> Result<u32, Error> {
    let alignment = metadata.u32(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() {
        Ok(alignment)
    } else {
        Err(Error::Alignment {
            path: path.to_path_buf(),
            value: u64::from(alignment),
        })
    }
}

fn check_names(header: &Header, path: &Path) -> Result<(), Error> {
    let mut seen = HashSet::with_capacity(header.tensors.len());
    match header
        .tensors
        .iter()
        .find(|t| !seen.insert(t.name.as_str()))
    {
        None => Ok(()),
        Some(tensor) => Err(Error::DuplicateTensor {
            path: path.to_path_buf(),
            tensor: tensor.name.clone(),
        }),
    }
}

/// Aligned, inside the file (by subtraction, because sums wrap), and apart from each other.
fn check_placement(header: &Header, file_len: u64, path: &Path) -> Result<(), Error> {
    let data_len = file_len.saturating_sub(header.data_start);
    for (tensor, &offset) in header.tensors.iter().zip(&header.offsets) {
        if offset % u64::from(header.alignment) != 0 {
            return Err(Error::Unaligned {
                path: path.to_path_buf(),
                tensor: tensor.name.clone(),
                offset,
                alignment: u64::from(header.alignment),
            });
        }
        if offset > data_len || tensor.n_bytes > data_len - offset {
            return Err(Error::Outside {
                path: path.to_path_buf(),
                tensor: tensor.name.clone(),
                offset,
                n_bytes: tensor.n_bytes,
                data_start: header.data_start,
                file_len,
            });
        }
    }
    let mut order: Vec<usize> = (0..header.tensors.len())
        .filter(|&i| header.tensors[i].n_bytes > 0)
        .collect();
    order.sort_by_key(|&i| header.offsets[i]);
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let end = header.offsets[first] + header.tensors[first].n_bytes;
        if header.offsets[second] < end {
            return Err(Error::Overlap {
                path: path.to_path_buf(),
                first: header.tensors[first].name.clone(),
                second: header.tensors[second].name.clone(),
                end,
                begin: header.offsets[second],
            });
        }
    }
    check_gaps(header, &order, data_len, path)
}

/// Every byte of the data belongs to a tensor or pads one: where a header calls a tensor smaller than it is, bytes are
/// left over. Writers of the format leave none, and ggml's reader demands the same.
fn check_gaps(header: &Header, order: &[usize], data_len: u64, path: &Path) -> Result<(), Error> {
    let alignment = u64::from(header.alignment);
    let name = |at: Option<&usize>, none: &str| match at {
        Some(&i) => format!("tensor `{}`", header.tensors[i].name),
        None => none.to_owned(),
    };
    for i in 0..=order.len() {
        let before = i.checked_sub(1).and_then(|i| order.get(i));
        let end = before.map_or(0, |&i| header.offsets[i] + header.tensors[i].n_bytes);
        let padded = end.next_multiple_of(alignment);
        let next = order.get(i);
        let begin = next.map_or(data_len, |&i| header.offsets[i]);
        if begin > padded {
            return Err(Error::Unclaimed {
                path: path.to_path_buf(),
                after: name(before, "the header"),
                next: name(next, "the end of the file"),
                n_bytes: begin - end,
            });
        }
    }
    Ok(())
}

/// A position in the header. `what` arguments are formatted only when something is wrong.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    fn available(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    fn take(&mut self, n_bytes: u64, what: Arguments<'_>) -> Result<&'a [u8], Error> {
        if n_bytes > self.available() {
            return Err(Error::Truncated {
                path: self.path.to_path_buf(),
                what: what.to_string(),
                offset: self.pos as u64,
                needed: n_bytes,
                available: self.available(),
            });
        }
        let taken = &self.bytes[self.pos..self.pos + n_bytes as usize];
        self.pos += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], Error> {
        let taken = self.take(N as u64, what)?;
        Ok(taken
            .try_into()
            .expect("take returns as many bytes as asked"))
    }

    fn u32(&mut self, what: Arguments<'_>) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: Arguments<'_>) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Refuses a count whose elements, of at least `min_bytes` each, cannot all be in the file.
    fn check_count(
        &self,
        what: impl Display,
        count: u64,
        min_bytes: u64,
        limit: u64,
    ) -> Result<(), Error> {
        let room = self.available() / min_bytes;
        if count > room {
            return Err(Error::Count {
                path: self.path.to_path_buf(),
                what: what.to_string(),
                count,
                room,
                available: self.available(),
            });
        }
        if count > limit {
            return Err(Error::Limit {
                path: self.path.to_path_buf(),
                what: format!("the number of {what}"),
                value: count,
                limit,
            });
        }
        Ok(())
    }

    /// A string in place.
    fn string(&mut self, limit: u64, what: Arguments<'_>) -> Result<&'a str, Error> {
        let len = self.u64(format_args!("the length of {what}"))?;
        if len > limit {
            return Err(Error::Limit {
                path: self.path.to_path_buf(),
                what: format!("the length of {what}"),
                value: len,
                limit,
            });
        }
        let offset = self.pos as u64;
        let text = self.take(len, what)?;
        std::str::from_utf8(text).map_err(|_| Error::NotUtf8 {
            path: self.path.to_path_buf(),
            what: what.to_string(),
            offset,
        })
    }

    fn name(&mut self, what: Arguments<'_>) -> Result<String, Error> {
        self.string(MAX_NAME_BYTES, what).map(str::to_owned)
    }

    fn value(&mut self, key: &str, id: u32) -> Result<Value, Error> {
        let what = format_args!("the value of key `{key}`");
        Ok(match id {
            0 => Value::U8(u8::from_le_bytes(self.array(what)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(what)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            7 => {
                let [byte] = self.array(what)?;
                Value::Bool(self.bool(key, byte)?)
            }
            8 => Value::String(self.string(u64::MAX, what)?.to_owned()),
            9 => Value::Array(self.array_value(key, 1)?),
            10 => Value::U64(u64::from_le_bytes(self.array(what)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            _ => return Err(self.unknown_value_type(key, id)),
        })
    }

    fn array_value(&mut self, key: &str, depth: u32) -> Result<Array, Error> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(Error::Limit {
                path: self.path.to_path_buf(),
                what: format!("the nesting of key `{key}`"),
                value: u64::from(depth),
                limit: u64::from(MAX_ARRAY_DEPTH),
            });
        }
        let id = self.u32(format_args!("the element type of key `{key}`"))?;
        let count = self.u64(format_args!("the element count of key `{key}`"))?;
        Ok(match id {
            0 => Array::U8(self.numbers(key, count, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, count, f32::from_le_bytes)?),
            7 => {
                let bytes = self.numbers(key, count, u8::from_le_bytes)?;
                let bools = bytes.into_iter().map(|byte| self.bool(key, byte));
                Array::Bool(bools.collect::<Result<_, _>>()?)
            }
            8 => Array::Strings(self.strings(key, count)?),
            9 => {
                self.check_elements(key, count, MIN_ARRAY_BYTES)?;
                let inner = (0..count).map(|_| self.array_value(key, depth + 1));
                Array::Nested(inner.collect::<Result<_, _>>()?)
            }
            10 => Array::U64(self.numbers(key, count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, count, f64::from_le_bytes)?),
            _ => return Err(self.unknown_value_type(key, id)),
        })
    }

    fn numbers<const N: usize, T>(
        &mut self,
        key: &str,
        count: u64,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        self.check_elements(key, count, N as u64)?;
        let bytes = self.take(count * N as u64, format_args!("the array of key `{key}`"))?;
        let (chunks, rest) = bytes.as_chunks::<N>();
        debug_assert!(rest.is_empty());
        Ok(chunks.iter().map(|chunk| decode(*chunk)).collect())
    }

    fn strings(&mut self, key: &str, count: u64) -> Result<StringArray, Error> {
        self.check_elements(key, count, MIN_STRING_BYTES)?;
        let mut strings = StringArray::with_capacity(count as usize);
        for idx in 0..count {
            // A vocabulary has a million strings; the general path is for those that are wrong.
            match self.next_string() {
                Some(string) => strings.push(string),
                None => {
                    let what = format_args!("string {idx} of key `{key}`");
                    strings.push(self.string(u64::MAX, what)?);
                }
            }
        }
        Ok(strings)
    }

    /// The string here if it is complete and UTF-8; otherwise nothing moves.
    fn next_string(&mut self) -> Option<&'a str> {
        let (len, rest) = self.bytes[self.pos..].split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let string = std::str::from_utf8(rest.get(..len)?).ok()?;
        self.pos += size_of::<u64>() + len;
        Some(string)
    }

    fn check_elements(&self, key: &str, count: u64, min_bytes: u64) -> Result<(), Error> {
        let what = format_args!("elements of key `{key}`");
        self.check_count(what, count, min_bytes, u64::MAX)
    }

    fn bool(&self, key: &str, byte: u8) -> Result<bool, Error> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Error::BadBool {
                path: self.path.to_path_buf(),
                key: key.to_owned(),
                value,
            }),
        }
    }

    fn unknown_value_type(&self, key: &str, id: u32) -> Error {
        Error::UnknownValueType {
            path: self.path.to_path_buf(),
            key: key.to_owned(),
            id,
        }
    }

    fn tensor(&mut self, idx: u64) -> Result<(TensorInfo, u64), Error> {
        let name = self.name(format_args!("the name of tensor {idx}"))?;
        let rank = self.u32(format_args!("the rank of tensor `{name}`"))?;
        if rank > MAX_RANK {
            return Err(Error::Rank {
                path: self.path.to_path_buf(),
                tensor: name,
                rank: u64::from(rank),
                max: u64::from(MAX_RANK),
            });
        }
        let mut shape = (0..rank)
            .map(|_| self.u64(format_args!("the shape of tensor `{name}`")))
            .collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let id = self.u32(format_args!("the type of tensor `{name}`"))?;
        let Some(dtype) = Dtype::from_ggml(id) else {
            return Err(Error::UnknownGgmlType {
                path: self.path.to_path_buf(),
                tensor: name,
                id,
            });
        };
        let offset = self.u64(format_args!("the offset of tensor `{name}`"))?;
        Ok((TensorInfo::sized(name, dtype, shape, self.path)?, offset))
    }
}
