//! The form of a pack: a header, the tiles, the table, and an end that says where the table is.
//!
//! ```text
//! 0     "larqlpak", version (u32), zeros
//! 4096  tiles of the first matrix, zeros up to a multiple of 4096, tiles of the second, ...
//! ...   the table, JSON
//! ...   offset of the table (u64), its length (u64), its SHA-256 (64 hexadecimal digits), "larqlend"
//! ```
//!
//! Numbers are little-endian. The table stands behind the tiles because it holds their digests, so that one pass writes the
//! file. There is one way to lay a list of matrices out, and anything else is refused: nothing can overlap or hide.

use larql_formats::Bytes;
use larql_kernels::{Format, tile_bytes};
use larql_models::StoredRows;
use serde::{Deserialize, Serialize};

use super::{PackedTiles, Wanted};
use crate::digest::{HEX_CHARS, hash_bytes};

/// First bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"larqlpak";

/// Last bytes of the file: it is whole.
pub(super) const END: [u8; 8] = *b"larqlend";

/// Version of the form of the file.
pub(super) const VERSION: u32 = 1;

/// Version of the order of bytes in a tile; rises when `larql_kernels::pack_tiles` gives other bytes for any format.
pub(super) const LAYOUT: u32 = 2;

/// Every part of the file begins at a page, so that one matrix can be dropped from memory without a part of another.
pub(super) const ALIGNMENT: u64 = 4096;

/// Bytes before the first matrix.
pub(super) const HEADER_BYTES: u64 = ALIGNMENT;

/// Bytes behind the table.
pub(super) const TRAILER_BYTES: usize = 8 + 8 + HEX_CHARS + END.len();

/// A model of 100 layers with 512 experts has some 150 000 matrices of 300 bytes in the table.
pub(super) const TABLE_BYTES_MAX: u64 = 128 << 20;

/// What is in a pack.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// The model's digest, as the manifest states it.
    pub(super) digest: String,
    /// Digest of the weights that the tiles are made of.
    pub(super) weights_sha256: String,
    /// [`LAYOUT`].
    pub(super) layout: u32,
    pub(super) matrices: Vec<Entry>,
}

/// One matrix.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The role in words.
    pub(super) matrix: String,
    pub(super) format: String,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) row_order: Order,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// The order of the rows in the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// As the engine wants them.
    Canonical,
    /// Within each head of this width, the halves of RoPE's pairs alternate.
    Interleaved(u32),
}

impl From<StoredRows> for Order {
    fn from(rows: StoredRows) -> Self {
        match rows {
            StoredRows::Canonical => Self::Canonical,
            StoredRows::Interleaved { d_head } => Self::Interleaved(d_head),
        }
    }
}

impl From<Order> for StoredRows {
    fn from(order: Order) -> Self {
        match order {
            Order::Canonical => Self::Canonical,
            Order::Interleaved(d_head) => Self::Interleaved { d_head },
        }
    }
}

/// What can be wrong with a pack.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
#[non_exhaustive]
pub enum PackError {
    /// A folder in the place of the file, which nothing here replaces.
    #[error("a folder, expected a file")]
    Folder,
    /// A symbolic link to nothing.
    #[error("a symbolic link to a file that is not there")]
    BrokenLink,
    /// A pipe, a device, or a link to a folder.
    #[error("not a regular file")]
    NotAFile,
    /// Too short for any pack.
    #[error("{size} bytes, a pack has at least {least}")]
    Short { size: u64, least: u64 },
    /// Another kind of file.
    #[error("not a pack of tiles: it begins with other bytes")]
    Magic,
    /// Bytes of the header that mean nothing are not zero.
    #[error("its header has a byte that is not zero at offset {offset}")]
    Header { offset: usize },
    /// Another version of the file.
    #[error("pack version {got}, this program reads version {expected}")]
    Version { expected: u32, got: u32 },
    /// Tiles in another order of bytes.
    #[error("tiles of layout {got}, this program computes with layout {expected}")]
    Layout { expected: u32, got: u32 },
    /// The end is not there.
    #[error("the file is cut off: it does not end as a pack does")]
    CutOff,
    /// A table beyond the limit.
    #[error("a table of {size} bytes, the limit is {limit}")]
    TableSize { size: u64, limit: u64 },
    /// A table that is not where the matrices end and the end begins.
    #[error("the table is at {offset} with {len} bytes, expected {expected}")]
    TablePlace {
        offset: u64,
        len: u64,
        expected: String,
    },
    /// The table has changed.
    #[error("the table has digest {got}, expected {expected}")]
    TableDigest { expected: String, got: String },
    /// The table is no JSON, or not of the shape that the version has.
    #[error("the table cannot be read: {0}")]
    Table(String),
    /// Tiles of another model.
    #[error("tiles of the model with digest {got}, this vindex has {expected}")]
    Model { expected: String, got: String },
    /// Tiles of other weights.
    #[error("tiles of weights with digest {got}, this vindex has {expected}")]
    Weights { expected: String, got: String },
    /// A matrix where the model has another.
    #[error("matrix {index} is `{got}`, expected `{expected}`")]
    Matrix {
        index: usize,
        expected: String,
        got: String,
    },
    /// Too few matrices or too many.
    #[error("{got} matrices, expected {expected}")]
    Count { expected: usize, got: usize },
    /// A number of a matrix that cannot be.
    #[error("`{matrix}`: {field} is {got}, expected {expected}")]
    Field {
        matrix: String,
        field: &'static str,
        expected: String,
        got: String,
    },
}

impl PackError {
    /// Whether writing a pack would put it in the place of what is there.
    pub fn is_replaceable(&self) -> bool {
        !matches!(self, Self::Folder)
    }
}

/// The table of a file whose own parts agree with each other.
pub(super) fn read(file: &[u8]) -> Result<Table, PackError> {
    let size = file.len() as u64;
    let least = HEADER_BYTES + TRAILER_BYTES as u64;
    // What it is comes before whether it is whole.
    if !file.starts_with(&MAGIC) && file.len() >= MAGIC.len() {
        return Err(PackError::Magic);
    }
    if size < least {
        return Err(PackError::Short { size, least });
    }
    let (header, _) = file.split_at(HEADER_BYTES as usize);
    let (version, rest) = header[MAGIC.len()..].split_first_chunk().expect("a page");
    let got = u32::from_le_bytes(*version);
    if got != VERSION {
        let expected = VERSION;
        return Err(PackError::Version { expected, got });
    }
    if let Some(at) = rest.iter().position(|byte| *byte != 0) {
        let offset = header.len() - rest.len() + at;
        return Err(PackError::Header { offset });
    }
    let table = read_table(file)?;
    if table.layout != LAYOUT {
        return Err(PackError::Layout {
            expected: LAYOUT,
            got: table.layout,
        });
    }
    Ok(table)
}

/// The table, if the end says where it is.
fn read_table(file: &[u8]) -> Result<Table, PackError> {
    let (body, trailer) = file.split_at(file.len() - TRAILER_BYTES);
    let (offset, rest) = trailer.split_first_chunk().expect("a trailer");
    let (len, rest) = rest.split_first_chunk().expect("a trailer");
    let (digest, end) = rest.split_at(HEX_CHARS);
    if end != END {
        return Err(PackError::CutOff);
    }
    let (offset, len) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*len));
    if len > TABLE_BYTES_MAX {
        return Err(PackError::TableSize {
            size: len,
            limit: TABLE_BYTES_MAX,
        });
    }
    let place = |expected: String| PackError::TablePlace {
        offset,
        len,
        expected,
    };
    let body_len = body.len() as u64;
    if offset < HEADER_BYTES || offset.checked_add(len) != Some(body_len) {
        return Err(place(format!(
            "a place behind the header that ends at {body_len}"
        )));
    }
    let text = &body[offset as usize..];
    let (expected, got) = (String::from_utf8_lossy(digest), hash_bytes(text));
    if got != expected {
        let expected = expected.escape_default().to_string();
        return Err(PackError::TableDigest { expected, got });
    }
    let table: Table =
        serde_json::from_slice(text).map_err(|error| PackError::Table(error.to_string()))?;
    let mut next = HEADER_BYTES;
    for entry in &table.matrices {
        next = entry.check(next, offset)?;
    }
    if next != offset {
        return Err(place(format!("the end of the matrices at {next}")));
    }
    Ok(table)
}

impl Entry {
    fn wrong(&self, field: &'static str, expected: impl ToString, got: impl ToString) -> PackError {
        PackError::Field {
            matrix: self.matrix.clone(),
            field,
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    /// The place of what follows, if this is a matrix at `start` that ends before `limit`.
    fn check(&self, start: u64, limit: u64) -> Result<u64, PackError> {
        let Some(format) = self.known_format() else {
            let got = format!("`{}`", self.format);
            return Err(self.wrong("format", "the name of a block format", got));
        };
        let expected = match (usize::try_from(self.rows), usize::try_from(self.cols)) {
            (Ok(rows), Ok(cols)) => tile_bytes(format, rows, cols),
            (Err(_), _) | (_, Err(_)) => None,
        };
        let Some(expected) = expected else {
            let got = format!("{} x {}", self.rows, self.cols);
            return Err(self.wrong("shape", "rows of whole blocks that fit memory", got));
        };
        if self.bytes != expected as u64 {
            return Err(self.wrong("bytes", expected, self.bytes));
        }
        if let Order::Interleaved(head) = self.row_order {
            let rows = self.rows;
            if head == 0 || head % 2 != 0 || !rows.is_multiple_of(u64::from(head)) {
                let expected = format!("an even divisor of {rows} rows");
                return Err(self.wrong("row_order", expected, head));
            }
        }
        if self.offset != start {
            return Err(self.wrong("offset", start, self.offset));
        }
        let next = start
            .checked_add(self.bytes)
            .and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        match next {
            Some(next) if next <= limit => Ok(next),
            Some(_) | None => Err(self.wrong(
                "bytes",
                format!(
                    "at most the {} before the table",
                    limit.saturating_sub(start)
                ),
                self.bytes,
            )),
        }
    }

    /// The matrix that the model has at this place of the list.
    pub(super) fn matched(
        &self,
        index: usize,
        wanted: &Wanted,
        file: &Bytes,
    ) -> Result<PackedTiles, PackError> {
        let name = wanted.role.to_string();
        if self.matrix != name {
            return Err(PackError::Matrix {
                index,
                expected: name,
                got: self.matrix.clone(),
            });
        }
        if self.known_format() != Some(wanted.format) {
            return Err(self.wrong("format", wanted.format, &self.format));
        }
        for (field, expected, got) in [
            ("rows", wanted.rows, self.rows),
            ("cols", wanted.cols, self.cols),
        ] {
            if got != expected {
                return Err(self.wrong(field, expected, got));
            }
        }
        let index = |n: u64| usize::try_from(n).expect("inside a mapped file");
        let start = index(self.offset);
        Ok(PackedTiles {
            role: wanted.role,
            format: wanted.format,
            rows: index(self.rows),
            cols: index(self.cols),
            row_order: self.row_order.into(),
            tiles: file.slice(start..start + index(self.bytes)),
            sha256: self.sha256.clone(),
            offset: start,
        })
    }

    fn known_format(&self) -> Option<Format> {
        let mut all = Format::ALL.iter().copied();
        all.find(|format| format.name() == self.format)
    }
}
