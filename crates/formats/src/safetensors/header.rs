//! From bytes to tensor records: the untrusted part of reading a safetensors file.
//!
//! The JSON is read into lists of pairs, because maps would hide a key that appears twice.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::{MAX_HEADER_BYTES, MAX_RANK, METADATA_KEY};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::tensor::TensorInfo;

const LENGTH_BYTES: u64 = 8;

/// A parsed header; `ranges` are positions in the file, in the order of `tensors`.
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) ranges: Vec<Range<usize>>,
}

/// Parses a header and proves that its tensors tile the rest of the file.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Header, Error> {
    let text = json_text(bytes, path)?;
    let json: HeaderJson<'_> = serde_json::from_str(text).map_err(|source| Error::HeaderJson {
        path: path.to_path_buf(),
        source,
    })?;
    let mut metadata = BTreeMap::new();
    for (key, value) in json.metadata.unwrap_or_default() {
        if metadata.contains_key(&key) {
            return Err(duplicate_key(path, key));
        }
        metadata.insert(key, value);
    }
    let data_start = LENGTH_BYTES + text.len() as u64;
    let mut spans = json.tensors;
    check_names(&spans, path)?;
    // Stable, so that empty tensors keep the order of the header.
    spans.sort_by_key(|(_, span)| span.data_offsets);

    let mut header = Header {
        metadata,
        tensors: Vec::with_capacity(spans.len()),
        ranges: Vec::with_capacity(spans.len()),
    };
    let file_len = bytes.len() as u64;
    let mut expected = 0;
    for (name, span) in spans {
        let (begin, end) = span.data_offsets;
        let tensor = checked_tensor(name, span, data_start, file_len, path)?;
        if begin != expected {
            return Err(misplaced(&header, tensor, begin, expected, path));
        }
        expected = end;
        header.tensors.push(tensor);
        header
            .ranges
            .push((data_start + begin) as usize..(data_start + end) as usize);
    }
    match file_len - data_start - expected {
        0 => Ok(header),
        n_bytes => Err(Error::TrailingBytes {
            path: path.to_path_buf(),
            n_bytes,
        }),
    }
}

fn json_text<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a str, Error> {
    let truncated = |what: &str, offset, needed| Error::Truncated {
        path: path.to_path_buf(),
        what: what.to_owned(),
        offset,
        needed,
        available: bytes.len() as u64 - offset,
    };
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(truncated("the header length", 0, LENGTH_BYTES));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(Error::Limit {
            path: path.to_path_buf(),
            what: "the header length".into(),
            value: length,
            limit: MAX_HEADER_BYTES,
        });
    }
    let Some(header) = rest.get(..length as usize) else {
        return Err(truncated("the header", LENGTH_BYTES, length));
    };
    match header.first() {
        None => return Err(truncated("the header", LENGTH_BYTES, 2)),
        Some(b'{') => {}
        Some(&found) => {
            return Err(Error::HeaderStart {
                path: path.to_path_buf(),
                found,
            });
        }
    }
    std::str::from_utf8(header).map_err(|error| Error::NotUtf8 {
        path: path.to_path_buf(),
        what: "the header".into(),
        offset: LENGTH_BYTES + error.valid_up_to() as u64,
    })
}

fn check_names(spans: &[(String, Span<'_>)], path: &Path) -> Result<(), Error> {
    let mut seen = HashSet::with_capacity(spans.len());
    match spans.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        None => Ok(()),
        Some((name, _)) => Err(Error::DuplicateTensor {
            path: path.to_path_buf(),
            tensor: name.clone(),
        }),
    }
}

fn duplicate_key(path: &Path, key: String) -> Error {
    Error::DuplicateKey {
        path: path.to_path_buf(),
        key,
    }
}

/// Everything about one tensor that does not concern its neighbors.
fn checked_tensor(
    name: String,
    span: Span<'_>,
    data_start: u64,
    file_len: u64,
    path: &Path,
) -> Result<TensorInfo, Error> {
    let (begin, end) = span.data_offsets;
    let path_buf = || path.to_path_buf();
    let Some(dtype) = Dtype::from_safetensors(&span.dtype) else {
        return Err(Error::UnknownDtype {
            path: path_buf(),
            tensor: name,
            dtype: span.dtype.into_owned(),
        });
    };
    if span.shape.len() > MAX_RANK {
        return Err(Error::Rank {
            path: path_buf(),
            tensor: name,
            rank: span.shape.len() as u64,
            max: MAX_RANK as u64,
        });
    }
    if begin > end {
        return Err(Error::OffsetOrder {
            path: path_buf(),
            tensor: name,
            begin,
            end,
        });
    }
    let tensor = TensorInfo::sized(name, dtype, span.shape, path)?;
    if end > file_len - data_start {
        return Err(Error::Outside {
            path: path_buf(),
            tensor: tensor.name,
            offset: begin,
            n_bytes: end - begin,
            data_start,
            file_len,
        });
    }
    if tensor.n_bytes != end - begin {
        return Err(Error::SpanMismatch {
            path: path_buf(),
            tensor: tensor.name,
            dtype,
            shape: tensor.shape,
            needed: tensor.n_bytes,
            span: end - begin,
        });
    }
    Ok(tensor)
}

fn misplaced(header: &Header, tensor: TensorInfo, begin: u64, expected: u64, path: &Path) -> Error {
    let path = path.to_path_buf();
    match header.tensors.last() {
        Some(previous) if begin < expected => Error::Overlap {
            path,
            first: previous.name.clone(),
            second: tensor.name,
            end: expected,
            begin,
        },
        Some(_) | None => Error::Gap {
            path,
            tensor: tensor.name,
            begin,
            expected,
        },
    }
}

/// What the JSON says of one tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Span<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The whole header, with duplicates still in it.
struct HeaderJson<'a> {
    metadata: Option<Vec<(String, String)>>,
    tensors: Vec<(String, Span<'a>)>,
}

impl<'de> Deserialize<'de> for HeaderJson<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = HeaderJson<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut metadata = None;
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA_KEY {
                        if metadata.is_some() {
                            return Err(de::Error::duplicate_field(METADATA_KEY));
                        }
                        let value: Option<Pairs<String>> = map
                            .next_value()
                            .map_err(|e| de::Error::custom(format_args!("{METADATA_KEY}: {e}")))?;
                        metadata = Some(value.map_or_else(Vec::new, |pairs| pairs.0));
                    } else {
                        let span = map
                            .next_value()
                            .map_err(|e| de::Error::custom(format_args!("tensor `{name}`: {e}")))?;
                        tensors.push((name, span));
                    }
                }
                Ok(HeaderJson { metadata, tensors })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A JSON object as the list it is written as, duplicates included.
pub(super) struct Pairs<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}
