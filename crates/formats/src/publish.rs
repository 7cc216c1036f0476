//! [`publish()`]: a file appears complete or not at all.
//!
//! The bytes go to a temporary file in the target's folder, reach the disk, and take the target's
//! name by a rename. A reader that has mapped the old file keeps the old bytes.
//!
//! Who is killed leaves a temporary file. Its owner held a lock on it, which went with the process, so the next
//! [`publish()`] into that folder tells it from those of others at work, and removes it, however new it is: an owner that
//! was taken for gone between making its file and locking it sees that, and makes another.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::Error;

/// Large enough that a tensor row never costs a system call of its own.
const BUFFER_BYTES: usize = 1 << 20;

/// What the names of temporary files begin with.
pub const PARTIAL_PREFIX: &str = ".larql-partial-";

/// Writes `path` through `write`, replacing a file of that name. If `write` fails or panics,
/// nothing is left behind and an existing file is untouched.
///
/// # Errors
/// What `write` returns, or [`Error::Io`] when the file cannot be created, flushed or renamed.
pub fn publish<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let io = |action| {
        move |source| Error::Io {
            path: path.to_path_buf(),
            action,
            source,
        }
    };
    let folder = folder_of(path);
    remove_abandoned(&folder);
    let temp = partial_file(&folder).map_err(io("create"))?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, temp);
    write(&mut out)?;
    let temp = out.into_inner().map_err(|e| io("write")(e.into_error()))?;
    temp.as_file().sync_all().map_err(io("flush"))?;
    temp.persist(path)
        .map_err(|e| io("rename a finished file to")(e.error))?;
    sync_folder(&folder);
    Ok(())
}

/// A temporary file that others know to be at work on.
fn partial_file(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PARTIAL_PREFIX);
    readable_by_all(&mut builder);
    loop {
        if let Some(temp) = claimed(builder.tempfile_in(folder)?) {
            return Ok(temp);
        }
    }
}

/// The temporary file with its lock; nothing if another process has taken it for abandoned before.
fn claimed(temp: NamedTempFile) -> Option<NamedTempFile> {
    match temp.as_file().try_lock() {
        // Who removed it held the lock until its name was gone.
        Ok(()) => temp.path().exists().then_some(temp),
        Err(TryLockError::WouldBlock) => None,
        // Where files cannot be locked, nothing that is abandoned is removed.
        Err(TryLockError::Error(_)) => Some(temp),
    }
}

/// Removes the temporary files of processes that are gone. What cannot be listed, opened or removed stays.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !(entry.file_name().to_str()).is_some_and(|name| name.starts_with(PARTIAL_PREFIX)) {
            continue;
        }
        let path = entry.path();
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            // The lock is held until the name is gone, so that whoever gets it then sees that.
            let _ = fs::remove_file(path);
        }
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) | None => PathBuf::from("."),
    }
}

/// Temporary files are private by default; a published one obeys the umask like any other.
#[cfg(unix)]
fn readable_by_all(builder: &mut tempfile::Builder<'_, '_>) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(std::fs::Permissions::from_mode(0o666));
}

#[cfg(not(unix))]
fn readable_by_all(_: &mut tempfile::Builder<'_, '_>) {}

/// Makes the rename durable where folders can be flushed. The file itself is complete already,
/// so a file system that refuses this loses nothing but the order of two crashes.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out file");
        publish::<Error>(&path, |out| {
            out.write_all(b"first").unwrap();
            Ok(())
        })
        .unwrap();
        let failed = publish(&path, |out| {
            out.write_all(&[9; 3 << 20]).unwrap();
            Err(Error::NotAFile { path: "x".into() })
        });
        assert_eq!(failed.unwrap_err().to_string(), "x: not a regular file");
        let panicked = std::panic::catch_unwind(|| {
            publish::<Error>(&path, |_| panic!("writer died")).unwrap();
        });
        assert!(panicked.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(names(dir.path()), ["out file"]);
    }

    #[test]
    fn what_the_killed_have_left_goes_and_what_others_write_stays() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| File::create(dir.path().join(name)).unwrap();
        drop(make(".larql-partial-abandoned"));
        drop(make(".partial-of-something-else"));
        let at_work = make(".larql-partial-at-work");
        at_work.try_lock().unwrap();
        publish::<Error>(&dir.path().join("out"), |_| Ok(())).unwrap();
        assert_eq!(
            names(dir.path()),
            [
                ".larql-partial-at-work",
                ".partial-of-something-else",
                "out"
            ]
        );
    }

    /// Another process that looks between the making of a file and its lock, at each moment at which it can be.
    #[test]
    fn a_file_that_was_taken_for_abandoned_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let make = || NamedTempFile::new_in(dir.path()).unwrap();
        assert!(claimed(make()).is_some());
        let locked = make();
        let other = File::open(locked.path()).unwrap();
        other.try_lock().unwrap();
        assert!(claimed(locked).is_none());
        let removed = make();
        fs::remove_file(removed.path()).unwrap();
        assert!(claimed(removed).is_none());
    }

    #[test]
    fn many_may_publish_into_one_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = dir.path().join(writer.to_string());
                scope.spawn(move || {
                    for _ in 0..50 {
                        publish::<Error>(&path, |out| {
                            out.write_all(b"whole").unwrap();
                            Ok(())
                        })
                        .unwrap();
                        assert_eq!(fs::read(&path).unwrap(), b"whole");
                    }
                });
            }
        });
        assert_eq!(names(dir.path()).len(), 8);
    }

    #[test]
    fn a_reader_of_the_replaced_file_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w");
        let write = |text: &'static [u8]| {
            publish::<Error>(&path, |out| {
                out.write_all(text).unwrap();
                Ok(())
            })
            .unwrap();
        };
        write(b"old bytes");
        let old = crate::Bytes::map_file(&path).unwrap();
        write(b"new");
        assert_eq!(&*old, b"old bytes");
        assert_eq!(&*crate::Bytes::map_file(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn a_published_file_has_the_permissions_of_an_ordinary_one() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("a");
        publish::<Error>(&ours, |_| Ok(())).unwrap();
        let plain = dir.path().join("b");
        std::fs::write(&plain, b"").unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("no/such/file");
        let found = publish::<Error>(&path, |_| Ok(())).unwrap_err();
        assert_eq!(
            found.to_string(),
            format!("{}: cannot create", path.display())
        );
    }
}
