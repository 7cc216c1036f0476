//! The only place where a file becomes memory, and the only `unsafe` of this crate.
//!
//! The hazard: a map is a view of a file that other processes can change. If the file is
//! truncated while it is mapped, touching the lost pages kills the process (`SIGBUS`); if it is
//! rewritten in place, bytes that Rust believes to be constant change. Neither can be excluded
//! from here, so the rules are: maps are read-only, and every writer of this project creates a
//! temporary file and renames it ([`crate::publish()`]), which leaves the mapped file untouched
//! under its old inode. Do not copy another file over one that is in use; rename it.
#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe: other processes can change it"
)]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// Maps `len` bytes of `file`, read-only. `len` is the size the caller has just seen, and is not 0.
pub(crate) fn map_read_only(file: &File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and private to this handle. That nobody truncates or
    // rewrites the file in place meanwhile is the documented duty of writers (module doc).
    unsafe { MmapOptions::new().len(len).map(file) }
}
