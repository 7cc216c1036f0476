//! SHA-256 of files and streams, in one pass and in pieces, so that a caller can watch and stop.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use larql_formats::Bytes;
use sha2::{Digest, Sha256};

use crate::Progress;
use crate::error::{VindexError, io_error};

/// Bytes that are read and hashed at a time: within the second-level cache, far above the cost of a call.
const CHUNK_BYTES: usize = 1 << 20;

/// Characters of a digest in hexadecimal.
pub(crate) const HEX_CHARS: usize = 64;

/// A caller's view of progress, through which it also stops the work.
pub(crate) struct Reporter<'a> {
    /// What the caller gave.
    pub(crate) call: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

impl Reporter<'_> {
    /// Tells the caller, and turns its wish to stop into an error.
    pub(crate) fn tell(
        &mut self,
        stage: &'static str,
        done: u64,
        total: u64,
    ) -> Result<(), VindexError> {
        match (self.call)(Progress { stage, done, total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(VindexError::Interrupted { stage }),
        }
    }
}

/// Size and digest of what was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hashed {
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// Hashes a file.
pub(crate) fn hash_file(
    path: &Path,
    stage: &'static str,
    reporter: &mut Reporter<'_>,
) -> Result<Hashed, VindexError> {
    let mut file = File::open(path).map_err(io_error(path, "open"))?;
    let total = file
        .metadata()
        .map_err(io_error(path, "read the size of"))?
        .len();
    let mut hasher = Sha256::new();
    let mut size = 0u64;
    let mut chunk = vec![0; CHUNK_BYTES];
    reporter.tell(stage, 0, total)?;
    loop {
        let n = match file.read(&mut chunk) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io_error(path, "read")(error)),
        };
        if n == 0 {
            break;
        }
        hasher.update(&chunk[..n]);
        size += n as u64;
        reporter.tell(stage, size, total.max(size))?;
    }
    Ok(Hashed {
        size,
        sha256: hex(&hasher.finalize()),
    })
}

/// Hashes a file through a map: for a file that is mapped anyway, without the copy that reading costs. Nothing of it stays
/// in memory.
pub(crate) fn hash_mapped(
    path: &Path,
    stage: &'static str,
    reporter: &mut Reporter<'_>,
) -> Result<Hashed, VindexError> {
    let bytes = Bytes::map_file(path)?;
    let total = bytes.len() as u64;
    let mut hasher = Sha256::new();
    let mut size = 0u64;
    reporter.tell(stage, 0, total)?;
    for start in (0..bytes.len()).step_by(CHUNK_BYTES) {
        let chunk = bytes.slice(start..bytes.len().min(start + CHUNK_BYTES));
        hasher.update(&chunk);
        chunk.release();
        size += chunk.len() as u64;
        reporter.tell(stage, size, total)?;
    }
    Ok(Hashed {
        size,
        sha256: hex(&hasher.finalize()),
    })
}

/// Digest of bytes in memory.
pub(crate) fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    digest
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// An output that hashes what passes through: each piece on a thread of its own while the piece is written, for both cost
/// about the same.
pub(crate) struct HashingWriter<W> {
    out: W,
    hasher: Sha256,
    size: u64,
}

impl<W: Write> HashingWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            hasher: Sha256::new(),
            size: 0,
        }
    }

    pub(crate) fn finish(self) -> Hashed {
        Hashed {
            size: self.size,
            sha256: hex(&self.hasher.finalize()),
        }
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { out, hasher, .. } = self;
        thread::scope(|scope| {
            scope.spawn(|| hasher.update(bytes));
            out.write_all(bytes)
        })?;
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_bytes(b"abc"), abc);
        let mut out = HashingWriter::new(Vec::new());
        out.write_all(b"a").unwrap();
        out.write_all(b"bc").unwrap();
        assert_eq!(out.out, b"abc");
        let hashed = out.finish();
        assert_eq!((hashed.size, hashed.sha256.as_str()), (3, abc));
    }

    #[test]
    fn a_file_is_hashed_in_pieces_and_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 2 + 5).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut seen = Vec::new();
        let mut call = |progress: Progress| {
            seen.push(progress.done);
            ControlFlow::Continue(())
        };
        let hashed = hash_file(&path, "hash", &mut Reporter { call: &mut call }).unwrap();
        assert_eq!(hashed.sha256, hash_bytes(&bytes));
        assert_eq!(hashed.size, bytes.len() as u64);
        assert_eq!(seen, [0, 1 << 20, 2 << 20, (2 << 20) + 5]);
        let mut all = |_: Progress| ControlFlow::Continue(());
        let mapped = hash_mapped(&path, "hash", &mut Reporter { call: &mut all }).unwrap();
        assert_eq!(mapped, hashed);
        let mut stop = |progress: Progress| match progress.done {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let stopped = hash_file(&path, "hash", &mut Reporter { call: &mut stop }).unwrap_err();
        assert_eq!(stopped.to_string(), "interrupted during hash");
    }
}
