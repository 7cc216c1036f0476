//! What identifies a file of the source, without hashing what has a digest elsewhere.
//!
//! The bytes of a file of safetensors are a header, which tells where each tensor lies, and the tensors, without a gap. A
//! tensor that a listed file of the vindex holds as it was is under that file's digest already.

use std::ops::Range;
use std::path::{Path, PathBuf};

use larql_formats::Bytes;
use larql_formats::safetensors::SafetensorsFile;
use sha2::{Digest, Sha256};

use crate::digest::{Reporter, hash_mapped, hex};
use crate::error::VindexError;
use crate::manifest::{SourceDigest, SourceFile};

/// A mapped file, and what of it is to be hashed.
pub(crate) struct Undigested {
    path: PathBuf,
    bytes: Bytes,
    parts: Parts,
}

enum Parts {
    Whole,
    /// The header, and tensors in their order.
    OfSafetensors {
        header: Range<usize>,
        changed: Vec<Range<usize>>,
    },
}

impl Undigested {
    /// All of a file.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub(crate) fn whole(path: &Path) -> Result<Self, VindexError> {
        Ok(Self {
            path: path.to_owned(),
            bytes: Bytes::map_file(path)?,
            parts: Parts::Whole,
        })
    }

    /// A file of safetensors without the tensors whose bytes are under another digest.
    ///
    /// # Errors
    /// If it cannot be mapped, or what is wrong with its header.
    pub(crate) fn of_safetensors(
        path: &Path,
        is_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Result<Self, VindexError> {
        let bytes = Bytes::map_file(path)?;
        let file = SafetensorsFile::from_bytes(bytes.clone(), path)?;
        let sizes = file.tensors().iter().map(|info| info.n_bytes);
        let n_data = usize::try_from(sizes.sum::<u64>()).expect("tensors lie in a mapped file");
        let header = 0..bytes.len() - n_data;
        let (mut at, mut changed) = (header.end, Vec::new());
        for info in file.tensors() {
            let end = at + usize::try_from(info.n_bytes).expect("a tensor lies in a mapped file");
            if !is_elsewhere(&info.name) {
                changed.push(at..end);
            }
            at = end;
        }
        Ok(Self {
            path: path.to_owned(),
            bytes,
            parts: Parts::OfSafetensors { header, changed },
        })
    }

    /// Bytes that will be hashed.
    pub(crate) fn n_bytes(&self) -> u64 {
        let n = match &self.parts {
            Parts::Whole => self.bytes.len(),
            Parts::OfSafetensors { header, changed } => {
                header.len() + changed.iter().map(ExactSizeIterator::len).sum::<usize>()
            }
        };
        n as u64
    }

    /// Hashes; the reporter is told of `before` bytes more, out of `total`.
    ///
    /// # Errors
    /// [`VindexError::Interrupted`].
    pub(crate) fn digest(
        &self,
        stage: &'static str,
        before: u64,
        total: u64,
        reporter: &mut Reporter<'_>,
    ) -> Result<SourceDigest, VindexError> {
        let mut done = before;
        let mut sha256 = |ranges: &[Range<usize>]| -> Result<String, VindexError> {
            let mut hasher = Sha256::new();
            for range in ranges {
                hash_mapped(&self.bytes.slice(range.clone()), &mut hasher, |n| {
                    done += n;
                    reporter.tell(stage, done, total)
                })?;
            }
            Ok(hex(&hasher.finalize()))
        };
        Ok(match &self.parts {
            Parts::Whole => SourceDigest::Whole {
                sha256: sha256(std::slice::from_ref(&(0..self.bytes.len())))?,
            },
            Parts::OfSafetensors { header, changed } => SourceDigest::Parts {
                header_sha256: sha256(std::slice::from_ref(header))?,
                changed_sha256: match changed.is_empty() {
                    true => None,
                    false => Some(sha256(changed)?),
                },
            },
        })
    }

    /// The entry of a manifest.
    pub(crate) fn entry(&self, digest: SourceDigest) -> SourceFile {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        SourceFile {
            name: name.to_string_lossy().into_owned(),
            size: self.bytes.len() as u64,
            digest,
        }
    }
}

/// Hashes one file at once.
///
/// # Errors
/// [`VindexError::Interrupted`].
pub(crate) fn digest_now(
    file: &Undigested,
    stage: &'static str,
    reporter: &mut Reporter<'_>,
) -> Result<SourceDigest, VindexError> {
    let total = file.n_bytes();
    reporter.tell(stage, 0, total)?;
    file.digest(stage, 0, total, reporter)
}
