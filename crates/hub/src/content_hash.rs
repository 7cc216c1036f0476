//! [`ContentHash`]: whether the bytes that came are those that the hub's tag names.
//!
//! The tag of a large file is its SHA-256. The tag of a small one, which lies in the repository itself, is the name that
//! git gives to such content: SHA-1 over `blob`, the size and the bytes. SHA-1 is no proof against somebody who makes
//! both files; against a transfer that went wrong, and a storage that sends something else, it is.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::names::is_lower_hex;

/// Digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// Digits of a SHA-1.
const SHA1_DIGITS: usize = 40;

/// The hash of content in the making, as the tag has it.
#[derive(Debug, Clone)]
pub(crate) enum ContentHash {
    /// Of the bytes.
    Sha256(Sha256),
    /// Of the bytes and their number, as git has it.
    GitBlob(Sha1),
    /// The tag is no hash of the content alone.
    Unknown,
}

impl ContentHash {
    /// What a tag asks for, of a file of `size` bytes.
    pub(crate) fn of(etag: &str, size: u64) -> Self {
        match etag.len() {
            SHA256_DIGITS if is_lower_hex(etag) => Self::Sha256(Sha256::new()),
            SHA1_DIGITS if is_lower_hex(etag) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {size}\0"));
                Self::GitBlob(hash)
            }
            _ => Self::Unknown,
        }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::Unknown => {}
        }
    }

    /// The digits, if the tag has any to compare with.
    pub(crate) fn digits(&self) -> Option<String> {
        match self {
            Self::Sha256(hash) => Some(hex(&hash.clone().finalize())),
            Self::GitBlob(hash) => Some(hex(&hash.clone().finalize())),
            Self::Unknown => None,
        }
    }

    /// What messages call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "SHA-1 as a git blob",
            Self::Unknown => "no hash",
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_of_known_content() {
        let of = |etag: &str, bytes: &[u8]| {
            let mut hash = ContentHash::of(etag, bytes.len() as u64);
            bytes.chunks(2).for_each(|part| hash.update(part));
            hash.digits()
        };
        // `printf abc | sha256sum`, and `printf 'hello\n' | git hash-object --stdin`.
        let sha256 = of(&"0".repeat(64), b"abc").unwrap();
        assert_eq!(&sha256[..16], "ba7816bf8f01cfea");
        assert_eq!(
            of(&"f".repeat(40), b"hello\n").unwrap(),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
        for other in ["", "W", &"F".repeat(40), &"g".repeat(64), &"0".repeat(39)] {
            assert_eq!(of(other, b"abc"), None, "{other}");
        }
    }
}
