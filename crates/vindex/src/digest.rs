//! SHA-256 of files and streams, in one pass and in pieces, so that a caller can watch and stop.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

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

/// Hashes mapped bytes, of which nothing stays in memory, and tells after each piece how many bytes it had.
pub(crate) fn hash_mapped(
    bytes: &Bytes,
    hasher: &mut Sha256,
    mut each: impl FnMut(u64) -> Result<(), VindexError>,
) -> Result<(), VindexError> {
    for start in (0..bytes.len()).step_by(CHUNK_BYTES) {
        let chunk = bytes.slice(start..bytes.len().min(start + CHUNK_BYTES));
        hasher.update(&chunk);
        chunk.release();
        each(chunk.len() as u64)?;
    }
    Ok(())
}

/// Digest of bytes in memory.
pub(crate) fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    digest
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// Bytes of a piece on its way to the hashing thread: it is still in the second-level cache when it is written.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces under way: enough that neither side waits for the other's single steps, and few enough to stay in a cache.
const PIECES: usize = 16;

/// The mapped bytes that a source has handed out last, and their file. Reading them there costs less than touching the pages
/// of the map, where each has to be entered into a table and taken out again.
#[derive(Default)]
pub(crate) struct Lent(RefCell<Option<(Bytes, Rc<File>)>>);

impl Lent {
    pub(crate) fn set(&self, lent: Option<(Bytes, Rc<File>)>) {
        self.0.replace(lent);
    }

    /// Fills the buffer with these bytes, from the file if they are a part of what was handed out.
    fn copy(&self, bytes: &[u8], buffer: &mut [u8]) -> io::Result<()> {
        match &*self.0.borrow() {
            Some((lent, file)) => match position(bytes, lent) {
                Some(offset) => read_at(file, buffer, offset),
                None => {
                    buffer.copy_from_slice(bytes);
                    Ok(())
                }
            },
            None => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Where bytes lie in the file of a mapped view of which they are a part.
fn position(bytes: &[u8], lent: &Bytes) -> Option<u64> {
    let (all, part) = (lent.as_ptr_range(), bytes.as_ptr_range());
    let is_part = all.start <= part.start && part.end <= all.end;
    let within = (part.start as u64).checked_sub(all.start as u64)?;
    lent.file_offset()
        .filter(|_| is_part)
        .map(|offset| offset + within)
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}

/// A buffer of [`PIECE_BYTES`], and how many of them count.
struct Piece {
    buffer: Vec<u8>,
    len: usize,
}

/// An output that hashes what passes through, on a thread of its own, for writing costs about as much as hashing.
pub(crate) struct HashingWriter<W> {
    out: W,
    lent: Rc<Lent>,
    size: u64,
    /// Buffers that were made.
    made: usize,
    pieces: Option<SyncSender<Piece>>,
    free: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<Sha256>>,
}

impl<W: Write> HashingWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self::of_lent(out, Rc::default())
    }

    /// Expects that many of the bytes are a part of what is lent.
    pub(crate) fn of_lent(out: W, lent: Rc<Lent>) -> Self {
        let (pieces, to_hash) = mpsc::sync_channel::<Piece>(PIECES);
        let (hashed, free) = mpsc::channel();
        let work = move || {
            let mut hasher = Sha256::new();
            for Piece { buffer, len } in to_hash {
                hasher.update(&buffer[..len]);
                // The writer may have all that it wants, and be gone.
                let _ = hashed.send(buffer);
            }
            hasher
        };
        Self {
            out,
            lent,
            size: 0,
            made: 0,
            pieces: Some(pieces),
            free,
            thread: Some(thread::spawn(work)),
        }
    }

    /// Waits for the digest of all that was written.
    pub(crate) fn finish(mut self) -> Hashed {
        drop(self.pieces.take());
        let thread = self.thread.take().expect("only this takes it, once");
        match thread.join() {
            Ok(hasher) => Hashed {
                size: self.size,
                sha256: hex(&hasher.finalize()),
            },
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        match self.free.try_recv() {
            Ok(buffer) => buffer,
            Err(_) if self.made < PIECES => {
                self.made += 1;
                vec![0; PIECE_BYTES]
            }
            Err(_) => self
                .free
                .recv()
                .expect("the thread lives as long as its input, and gives every buffer back"),
        }
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(PIECE_BYTES);
        let mut buffer = self.buffer();
        self.lent.copy(&bytes[..len], &mut buffer[..len])?;
        self.out.write_all(&buffer[..len])?;
        let pieces = self.pieces.as_ref().expect("only the end takes it");
        pieces
            .send(Piece { buffer, len })
            .expect("the thread lives as long as its input");
        self.size += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W> Drop for HashingWriter<W> {
    fn drop(&mut self) {
        drop(self.pieces.take());
        if let Some(thread) = self.thread.take() {
            // Nobody wants the digest any more.
            let _ = thread.join();
        }
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

    /// Whatever a piece is a part of: what is lent, what was lent before, neither, or both by its ends.
    #[test]
    fn lent_bytes_are_read_from_their_file_and_others_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..PIECE_BYTES * 2 + 777)
            .map(|i| (i % 249) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = Rc::new(File::open(&path).unwrap());
        let map = Bytes::map_file(&path).unwrap();
        let lent = Rc::new(Lent::default());
        let mut out = HashingWriter::of_lent(Vec::new(), Rc::clone(&lent));
        let mut expected = Vec::new();
        let mut write = |part: &[u8], expected: &mut Vec<u8>| {
            out.write_all(part).unwrap();
            expected.extend_from_slice(part);
        };
        write(&map[5..90], &mut expected);
        lent.set(Some((map.slice(100..bytes.len() - 10), Rc::clone(&file))));
        write(&map[100..], &mut expected);
        write(&map[100..bytes.len() - 10], &mut expected);
        write(&map[101..104], &mut expected);
        write(&map[50..150], &mut expected);
        write(&[], &mut expected);
        write(b"else", &mut expected);
        lent.set(Some((map.slice(7..9), file)));
        write(&map[100..200], &mut expected);
        write(&map[8..9], &mut expected);
        assert!(out.out == expected);
        let hashed = out.finish();
        assert_eq!(hashed.size, expected.len() as u64);
        assert_eq!(hashed.sha256, hash_bytes(&expected));
        assert_eq!(position(&map[107..110], &map.slice(100..200)), Some(107));
        assert_eq!(position(&map[99..110], &map.slice(100..200)), None);
        assert_eq!(position(&map[199..201], &map.slice(100..200)), None);
        assert_eq!(position(&bytes[107..110], &map.slice(100..200)), None);
    }

    /// What is read is what the file holds: that the map is not touched is seen by a file that says something else.
    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (path, short) = (dir.path().join("f"), dir.path().join("short"));
        std::fs::write(&path, [3; 50]).unwrap();
        std::fs::write(&short, [4; 20]).unwrap();
        let map = Bytes::map_file(&path).unwrap();
        let lent = Rc::new(Lent::default());
        lent.set(Some((map.clone(), Rc::new(File::open(&short).unwrap()))));
        let mut out = HashingWriter::of_lent(Vec::new(), lent);
        out.write_all(&map[..20]).unwrap();
        assert_eq!(out.out, [4; 20]);
        let error = out.write_all(&map[10..21]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(out);
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
        let (mut hasher, mut pieces) = (Sha256::new(), Vec::new());
        let mapped = Bytes::map_file(&path).unwrap();
        hash_mapped(&mapped, &mut hasher, |n| {
            pieces.push(n);
            Ok(())
        })
        .unwrap();
        assert_eq!(hex(&hasher.finalize()), hashed.sha256);
        assert_eq!(pieces, [1 << 20, 1 << 20, 5]);
        let mut stop = |progress: Progress| match progress.done {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let stopped = hash_file(&path, "hash", &mut Reporter { call: &mut stop }).unwrap_err();
        assert_eq!(stopped.to_string(), "interrupted during hash");
    }
}
