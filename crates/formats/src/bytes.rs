//! [`Bytes`]: a shared, sliceable view of a mapped file or of a vector.
//!
//! All readers hand out `Bytes`, so a tensor stays valid as long as someone holds it, whatever
//! happens to the file object. Cloning and slicing cost one reference count. The start of a view
//! has no alignment: read numbers with `from_le_bytes`, or check before casting.

use std::fmt;
use std::fs::{self, File};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::mmap;

enum Owner {
    Map(memmap2::Mmap),
    Vec(Vec<u8>),
}

impl Owner {
    fn as_slice(&self) -> &[u8] {
        match self {
            Owner::Map(map) => map,
            Owner::Vec(vec) => vec,
        }
    }
}

/// A cheap-to-clone range of read-only bytes; see the hazard of maps in [`Bytes::map_file`].
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    /// Within the owner; checked by [`Bytes::slice`].
    range: Range<usize>,
}

impl Bytes {
    /// Maps a whole file read-only.
    ///
    /// The file must not be truncated or rewritten in place while the view lives: replace it by
    /// renaming another one over it, as [`crate::publish()`] does.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a directory, [`Error::Io`] when it cannot be opened or mapped.
    pub fn map_file(path: &Path) -> Result<Bytes, Error> {
        let io = |action| {
            move |source| Error::Io {
                path: path.to_path_buf(),
                action,
                source,
            }
        };
        // Asked before opening: a pipe would wait for a writer.
        if !fs::metadata(path).map_err(io("open"))?.is_file() {
            return Err(Error::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(io("open"))?;
        let stat = file.metadata().map_err(io("read the size of"))?;
        if !stat.is_file() {
            return Err(Error::NotAFile {
                path: path.to_path_buf(),
            });
        }
        if stat.len() == 0 {
            return Ok(Bytes::from_vec(Vec::new()));
        }
        let len = usize::try_from(stat.len()).map_err(|_| Error::Limit {
            path: path.to_path_buf(),
            what: "file size".into(),
            value: stat.len(),
            limit: usize::MAX as u64,
        })?;
        let map = mmap::map_read_only(&file, len).map_err(io("map"))?;
        Ok(Bytes {
            range: 0..map.len(),
            owner: Arc::new(Owner::Map(map)),
        })
    }

    /// Takes ownership of bytes in memory.
    pub fn from_vec(vec: Vec<u8>) -> Bytes {
        Bytes {
            range: 0..vec.len(),
            owner: Arc::new(Owner::Vec(vec)),
        }
    }

    /// The part `range` of this view, sharing the same memory.
    ///
    /// # Panics
    /// If the range is reversed or ends past this view, as slicing does.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "range {}..{} of {} bytes",
            range.start,
            range.end,
            self.len()
        );
        Bytes {
            owner: Arc::clone(&self.owner),
            range: self.range.start + range.start..self.range.start + range.end,
        }
    }

    /// Gives the memory of a mapped view back to the system, which reads the file again when it is looked at: for
    /// bytes that have been copied and will hardly be asked for again. Does nothing to bytes in memory.
    pub fn release(&self) {
        match &*self.owner {
            Owner::Map(map) => mmap::release(map, self.range.start, self.range.len()),
            Owner::Vec(_) => {}
        }
    }

    /// Where the view begins in the file that is mapped; `None` for bytes in memory. Whoever has the file open can read the
    /// bytes from there, which costs no page of the map.
    pub fn file_offset(&self) -> Option<u64> {
        match &*self.owner {
            Owner::Map(_) => Some(self.range.start as u64),
            Owner::Vec(_) => None,
        }
    }

    /// Number of bytes in view.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there is nothing in view.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.as_slice()[self.range.clone()]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_slices_share_the_owner_and_stay_in_bounds() {
        let bytes = Bytes::from_vec((0..100).collect());
        let tail = bytes.slice(40..100);
        drop(bytes);
        assert_eq!(&*tail.slice(3..6), &[43, 44, 45]);
        assert!(tail.slice(60..60).is_empty());
        assert!(std::panic::catch_unwind(|| tail.slice(59..61)).is_err());
    }

    #[test]
    fn a_mapped_view_knows_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, [7; 100]).unwrap();
        let bytes = Bytes::map_file(&path).unwrap();
        let tail = bytes.slice(40..100).slice(3..9);
        assert_eq!(
            (bytes.file_offset(), tail.file_offset()),
            (Some(0), Some(43))
        );
        assert_eq!(Bytes::from_vec(vec![1]).file_offset(), None);
    }

    #[test]
    fn mapping_a_directory_an_absent_file_and_an_empty_file() {
        let dir = tempfile::tempdir().unwrap();
        let found = Bytes::map_file(dir.path()).unwrap_err().to_string();
        assert_eq!(
            found,
            format!("{}: not a regular file", dir.path().display())
        );
        let absent = dir.path().join("a b\n");
        let found = Bytes::map_file(&absent).unwrap_err();
        assert_eq!(
            found.to_string(),
            format!("{}: cannot open", absent.display())
        );
        let empty = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
        assert_eq!(Bytes::map_file(empty.path()).unwrap().len(), 0);
    }
}
