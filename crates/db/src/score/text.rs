//! The text to score: a file, or a range of its bytes, identified by the digest of the whole file.
//!
//! Bytes are taken as they are: no line ending is converted and no byte order mark removed, because either would make a
//! figure per byte one of another text.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::ScoreError;

/// Largest file; it is read whole for its digest. The tokenizer limits the part that is scored further.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The text to score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreText {
    pub(super) file_sha256: String,
    pub(super) file_bytes: u64,
    pub(super) range: Range<u64>,
    pub(super) text: String,
}

impl ScoreText {
    /// Reads a file, or the part of it that lies in `range`.
    ///
    /// # Errors
    /// If it cannot be read, is too long, or as [`Self::from_bytes`].
    pub fn open(path: &Path, range: Option<Range<u64>>) -> Result<Self, ScoreError> {
        let name = path.display().to_string();
        let failed = |source| ScoreError::Read {
            name: name.clone(),
            source,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
        Self::from_bytes(&name, &bytes, range)
    }

    /// The text of a file's bytes, or of those in `range`.
    ///
    /// # Errors
    /// If there are too many or none, the range is not in them or cuts a character, or they are no UTF-8.
    pub fn from_bytes(
        name: &str,
        bytes: &[u8],
        range: Option<Range<u64>>,
    ) -> Result<Self, ScoreError> {
        let name = name.to_owned();
        let n_bytes = bytes.len() as u64;
        if n_bytes > FILE_BYTES_MAX {
            return Err(ScoreError::FileTooLong {
                name,
                limit: FILE_BYTES_MAX,
            });
        }
        if bytes.is_empty() {
            return Err(ScoreError::EmptyText { name });
        }
        let range = range.unwrap_or(0..n_bytes);
        if range.start >= range.end || range.end > n_bytes {
            return Err(ScoreError::ByteRange {
                name,
                start: range.start,
                end: range.end,
                n_bytes,
            });
        }
        // Both are at most the length of a slice.
        let (start, end) = (range.start as usize, range.end as usize);
        let continues = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        // At the very beginning of a file nothing could have begun: such a byte is no text at all.
        if let Some(offset) = [start, end]
            .into_iter()
            .find(|at| *at > 0 && continues(*at))
        {
            let offset = offset as u64;
            return Err(ScoreError::InsideCharacter { name, offset });
        }
        match std::str::from_utf8(&bytes[start..end]) {
            Ok(text) => Ok(Self {
                file_sha256: hex_sha256(bytes),
                file_bytes: n_bytes,
                range,
                text: text.to_owned(),
            }),
            Err(error) => Err(ScoreError::NotUtf8 {
                name,
                offset: range.start + error.valid_up_to() as u64,
            }),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// SHA-256 in hexadecimal.
pub(super) fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 `a`, 1 a character of two bytes, 3 one of three, 6 one of four, 10 `b`.
    const TEXT: &str = "a\u{e9}\u{20ac}\u{1f600}b";

    fn part(bytes: &[u8], range: Option<Range<u64>>) -> Result<String, String> {
        ScoreText::from_bytes("f", bytes, range)
            .map(|text| text.text)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_range_takes_whole_characters_or_is_refused() {
        let boundaries = [0, 1, 3, 6, 10, 11];
        for start in 0..11u64 {
            for end in start + 1..=11 {
                let got = part(TEXT.as_bytes(), Some(start..end));
                let bad = [start, end].into_iter().find(|at| !boundaries.contains(at));
                match bad {
                    None => assert_eq!(got.unwrap(), TEXT[start as usize..end as usize]),
                    Some(at) => assert_eq!(
                        got.unwrap_err(),
                        format!(
                            "f: byte {at} is inside a character, a range must begin and end between two"
                        )
                    ),
                }
            }
        }
        assert_eq!(part(TEXT.as_bytes(), None).unwrap(), TEXT);
    }

    #[test]
    fn what_is_no_range_or_no_text_is_refused_by_name() {
        let backwards = Range { start: 7, end: 3 };
        for range in [backwards, 3..3, 3..12, 11..11, 0..u64::MAX] {
            let want = format!(
                "f: bytes {}..{} are not in it, expected a start before the end and an end of at most 11",
                range.start, range.end
            );
            assert_eq!(part(TEXT.as_bytes(), Some(range)), Err(want));
        }
        assert_eq!(
            part(b"", None),
            Err("f: is empty, there is nothing to score".to_owned())
        );
        let not_text = b"ab\xffcd\xe2\x82";
        assert_eq!(
            part(not_text, None),
            Err("f: not UTF-8 at byte 2".to_owned())
        );
        assert_eq!(
            part(not_text, Some(3..7)),
            Err("f: not UTF-8 at byte 5".to_owned())
        );
        assert_eq!(part(not_text, Some(3..5)), Ok("cd".to_owned()));
        assert_eq!(
            part(b"\x82a", None),
            Err("f: not UTF-8 at byte 0".to_owned())
        );
    }

    #[test]
    fn the_digest_is_that_of_the_whole_file() {
        let whole = ScoreText::from_bytes("f", b"abc", None).unwrap();
        let part = ScoreText::from_bytes("f", b"abc", Some(1..2)).unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            whole.file_sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            (part.file_sha256, part.file_bytes, part.range, &*part.text),
            (whole.file_sha256, 3, 1..2, "b")
        );
    }
}
