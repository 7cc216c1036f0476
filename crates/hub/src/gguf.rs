//! Where the header of a GGUF ends, from its first bytes.
//!
//! Not a reader: values are skipped, nothing is checked that opening checks anyway. Header and layout are those of the
//! GGUF specification, versions 2 and 3, little-endian.

/// `general.alignment` when it is absent.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The tensor whose values opening reads.
const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// Type code of float32, in metadata and as a tensor type.
const METADATA_U32: u32 = 4;
const METADATA_STRING: u32 = 8;
const METADATA_ARRAY: u32 = 9;
const TENSOR_F32: u32 = 0;
/// Arrays inside arrays; none are in use.
const DEPTH_MAX: u32 = 4;

/// What the first bytes of a file tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// The header goes on after them.
    More,
    /// The header ends within them.
    Whole {
        /// Where it ends.
        end: u64,
        /// Place and length of the RoPE divisors, if there are any.
        divisors: Option<(u64, u64)>,
    },
    /// This is no header that can be followed; opening the file will say why.
    Foreign,
}

/// Why the walk stops early.
enum Stop {
    More,
    Foreign,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Follows a header from its first byte.
pub(crate) fn walk(bytes: &[u8]) -> Walk {
    match follow(&mut Cursor { bytes, at: 0 }) {
        Ok(whole) => whole,
        Err(Stop::More) => Walk::More,
        Err(Stop::Foreign) => Walk::Foreign,
    }
}

fn follow(cursor: &mut Cursor<'_>) -> Result<Walk, Stop> {
    if cursor.take(4)? != b"GGUF" || !matches!(cursor.u32()?, 2 | 3) {
        return Err(Stop::Foreign);
    }
    let (n_tensors, n_keys) = (cursor.u64()?, cursor.u64()?);
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..n_keys {
        let is_alignment = cursor.string()? == b"general.alignment";
        let kind = cursor.u32()?;
        if is_alignment && kind == METADATA_U32 {
            alignment = u64::from(cursor.u32()?);
        } else {
            cursor.skip_value(kind, 0)?;
        }
    }
    let mut divisors = None;
    for _ in 0..n_tensors {
        let is_divisors = cursor.string()? == ROPE_DIVISORS.as_bytes();
        let n_dims = cursor.u32()?;
        let mut n_values = 1_u64;
        for _ in 0..n_dims {
            n_values = n_values.saturating_mul(cursor.u64()?);
        }
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        if is_divisors && kind == TENSOR_F32 {
            divisors = Some((offset, n_values.saturating_mul(4)));
        }
    }
    let end = cursor.at as u64;
    if alignment == 0 {
        return Err(Stop::Foreign);
    }
    let data = end.div_ceil(alignment).saturating_mul(alignment);
    Ok(Walk::Whole {
        end,
        divisors: divisors.map(|(offset, len)| (data.saturating_add(offset), len)),
    })
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: u64) -> Result<&'a [u8], Stop> {
        let n = usize::try_from(n).map_err(|_| Stop::Foreign)?;
        let end = self.at.checked_add(n).ok_or(Stop::Foreign)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::More)?;
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(
            bytes.try_into().expect("four were taken"),
        ))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(
            bytes.try_into().expect("eight were taken"),
        ))
    }

    fn string(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.u64()?;
        self.take(len)
    }

    fn skip_value(&mut self, kind: u32, depth: u32) -> Result<(), Stop> {
        match kind {
            METADATA_STRING => {
                self.string()?;
            }
            METADATA_ARRAY if depth < DEPTH_MAX => {
                let (kind, n) = (self.u32()?, self.u64()?);
                match width(kind) {
                    Some(width) => {
                        self.take(n.checked_mul(width).ok_or(Stop::Foreign)?)?;
                    }
                    None => {
                        for _ in 0..n {
                            self.skip_value(kind, depth + 1)?;
                        }
                    }
                }
            }
            kind => {
                let width = width(kind).ok_or(Stop::Foreign)?;
                self.take(width)?;
            }
        }
        Ok(())
    }
}

/// Bytes of a metadata value of a fixed width.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use larql_formats::{Dtype, TensorInfo, gguf};

    use super::*;

    /// A file with every shape of value, and the length of its header.
    fn file(alignment: u32) -> Vec<u8> {
        let mut metadata = gguf::Metadata::new();
        let words = gguf::Array::Strings(["a", "bc"].into_iter().collect());
        metadata
            .insert("general.architecture", gguf::Value::String("toy".into()))
            .unwrap();
        metadata
            .insert("x.words", gguf::Value::Array(words))
            .unwrap();
        metadata.insert("x.flag", gguf::Value::Bool(true)).unwrap();
        metadata.insert("x.scale", gguf::Value::F32(0.5)).unwrap();
        let mut writer = gguf::GgufWriter::new(metadata, alignment).unwrap();
        writer
            .declare(TensorInfo::new("w", Dtype::F32, vec![3, 5]).unwrap())
            .unwrap();
        writer
            .declare(TensorInfo::new(ROPE_DIVISORS, Dtype::F32, vec![3]).unwrap())
            .unwrap();
        let mut stream = writer.begin(Vec::new()).unwrap();
        stream.write_tensor_bytes("w", &[7; 60]).unwrap();
        stream.write_tensor_bytes(ROPE_DIVISORS, &[9; 12]).unwrap();
        stream.finish().unwrap()
    }

    #[test]
    fn the_header_ends_where_the_writer_ended_it() {
        for alignment in [32, 64] {
            let bytes = file(alignment);
            let Walk::Whole { end, divisors } = walk(&bytes) else {
                panic!("the file is whole");
            };
            let (at, len) = divisors.unwrap();
            let (at, len) = (at as usize, len as usize);
            assert_eq!(bytes[at..at + len], [9; 12]);
            assert_eq!(bytes[at - 1], 0, "padding before the divisors");
            let end = end as usize;
            let data = end.next_multiple_of(alignment as usize);
            assert_eq!(bytes[data..data + 60], [7; 60]);
            for cut in 0..end {
                assert_eq!(walk(&bytes[..cut]), Walk::More, "{cut} of {end}");
            }
        }
    }

    #[test]
    fn other_files_are_foreign() {
        assert_eq!(walk(b"PK\x03\x04aaaaaaaa"), Walk::Foreign);
        assert_eq!(walk(b"GGUF\x01\0\0\0"), Walk::Foreign);
        let mut bytes = file(32);
        // The length of the first key.
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(walk(&bytes), Walk::Foreign);
    }
}
