//! The only place where a file becomes memory or memory is mapped, and the only `unsafe` of this crate.
//!
//! The hazard: a map is a view of a file that other processes can change. If the file is
//! truncated while it is mapped, touching the lost pages kills the process (`SIGBUS`); if it is
//! rewritten in place, bytes that Rust believes to be constant change. Neither can be excluded
//! from here, so the rules are: maps are read-only, and every writer of this project creates a
//! temporary file and renames it ([`crate::publish()`]), which leaves the mapped file untouched
//! under its old inode. Do not copy another file over one that is in use; rename it.
#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe: other processes can change it; disjoint parts of one map have different owners"
)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

#[cfg(unix)]
use memmap2::UncheckedAdvice;
use memmap2::{Mmap, MmapMut, MmapOptions};

/// Maps `len` bytes of `file`, read-only. `len` is the size the caller has just seen, and is not 0.
pub(crate) fn map_read_only(file: &File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and private to this handle. That nobody truncates or
    // rewrites the file in place meanwhile is the documented duty of writers (module doc).
    unsafe { MmapOptions::new().len(len).map(file) }
}

/// What Linux maps around a page that is touched, where the file is in memory.
#[cfg(unix)]
const AROUND: usize = 64 << 10;

/// Gives the pages of a range of a map back to the system, which reads them from the file when they are touched again; and
/// those that lie a little before and behind it, because touching its ends has mapped them as well.
pub(crate) fn release(map: &Mmap, offset: usize, len: usize) {
    #[cfg(unix)]
    {
        let (start, end) = (
            offset.saturating_sub(AROUND),
            map.len().min(offset + len + AROUND),
        );
        let (offset, len) = (start, end - start);
        // SAFETY: the map is of a file and read-only, so there are no changes to lose: a page that is touched again has the
        // bytes of the file, as before. A system that refuses keeps the pages.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) };
    }
    #[cfg(not(unix))]
    {
        let _ = (map, offset, len);
    }
}

/// Bytes mapped at a time, unless one part needs more.
const PIECE_BYTES: usize = 64 << 20;

/// Parts begin at cache lines.
const ALIGNMENT: usize = 64;

/// Hands out memory that is zero, cut from anonymous maps so large that the system can back them with huge pages: a core
/// reads about a third more per second from 2 MiB pages than from 4 KiB ones, which a mapped file cannot have. A map goes
/// when its last part does.
#[derive(Debug, Default)]
pub struct Arena {
    piece: Option<Arc<Piece>>,
    used: usize,
}

/// A map, and where it begins.
#[derive(Debug)]
struct Piece {
    base: *mut u8,
    map: MmapMut,
}

// SAFETY: the pointer is only ever used through parts, which are disjoint and follow Rust's rules each for itself.
unsafe impl Send for Piece {}
// SAFETY: as above; the map itself is not looked at before it is dropped.
unsafe impl Sync for Piece {}

/// A part of a piece, which nobody else has.
#[derive(Debug)]
pub struct ArenaBytes {
    piece: Arc<Piece>,
    start: usize,
    len: usize,
}

impl Arena {
    /// Nothing mapped yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `len` bytes, all zero.
    ///
    /// # Errors
    ///
    /// When the system has no memory to map.
    pub fn alloc(&mut self, len: usize) -> io::Result<ArenaBytes> {
        let room = |piece: &Piece| piece.map.len() - self.used;
        let piece = match &self.piece {
            Some(piece) if len <= room(piece) => Arc::clone(piece),
            Some(_) | None => {
                let piece = Arc::new(Piece::new(len.max(PIECE_BYTES))?);
                self.piece = Some(Arc::clone(&piece));
                self.used = 0;
                piece
            }
        };
        let start = self.used;
        self.used = (start + len)
            .next_multiple_of(ALIGNMENT)
            .min(piece.map.len());
        Ok(ArenaBytes { piece, start, len })
    }
}

impl Piece {
    fn new(len: usize) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(len)?;
        #[cfg(target_os = "linux")]
        {
            // A system without huge pages refuses; the memory serves all the same.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self {
            base: map.as_mut_ptr(),
            map,
        })
    }
}

impl Deref for ArenaBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `alloc` gave this range, which lies inside the living map, to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.piece.base.add(self.start), self.len) }
    }
}

impl DerefMut for ArenaBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.piece.base.add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_outlive_the_arena() {
        let mut arena = Arena::new();
        let sizes = [5, 0, 64, 1000, PIECE_BYTES - 100, 7, PIECE_BYTES + 1];
        let mut parts: Vec<ArenaBytes> = sizes
            .iter()
            .map(|len| arena.alloc(*len).expect("memory"))
            .collect();
        drop(arena);
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|b| *b == 0));
            part.fill(i as u8 + 1);
        }
        for (i, (part, len)) in parts.iter().zip(sizes).enumerate() {
            assert_eq!(part.len(), len);
            assert!(part.iter().all(|b| *b == i as u8 + 1));
        }
    }
}
