//! The cache folder of one repository, as every client of the hub lays it out.
//!
//! `blobs/ETAG` are the files, `snapshots/COMMIT/NAME` are links to them, `refs/REVISION` is the commit a name stood for.
//! A blob appears by a rename, so it is complete or absent; `blobs/ETAG.incomplete` is what a transfer has so far, and
//! the lock of the same name decides which process may write it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use crate::error::HubError;
use crate::names::is_commit;

/// Largest reference file; a commit has 40 bytes.
const REF_BYTES_MAX: u64 = 256;

/// The cache folder of one repository.
#[derive(Debug)]
pub(crate) struct RepoCache {
    root: PathBuf,
    locks: PathBuf,
    cached: CacheRepo,
}

/// Ways to give a file a second name, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// As the Python client does.
    Symbolic,
    /// Where symbolic links need rights that the user does not have.
    Hard,
    /// Where there are no links: the snapshot has the file, and no blob is left.
    Move,
}

impl RepoCache {
    pub(crate) fn new(cache_dir: &Path, repo: &str) -> Self {
        let repo = Repo::new(repo.to_owned(), RepoType::Model);
        let folder = repo.folder_name();
        Self {
            root: cache_dir.join(&folder),
            locks: cache_dir.join(".locks").join(&folder),
            cached: Cache::new(cache_dir.to_owned()).repo(repo),
        }
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.cached.pointer_path(commit)
    }

    /// Whether a commit has this file.
    pub(crate) fn has(&self, commit: &str, file: &str) -> bool {
        self.snapshot(commit).join(file).is_file()
    }

    /// The file with this tag.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.cached.blob_path(etag)
    }

    /// What a transfer of this file has so far.
    pub(crate) fn partial(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}.incomplete"))
    }

    /// The commit that a revision stood for when it was last fetched.
    pub(crate) fn commit_of(&self, revision: &str) -> Result<Option<String>, HubError> {
        if is_commit(revision) {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.root.join("refs").join(revision);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() && metadata.len() <= REF_BYTES_MAX => {}
            Ok(_) | Err(_) => return Ok(None),
        }
        let text = fs::read_to_string(&path).map_err(io_error(&path, "read it"))?;
        let commit = text.trim().to_owned();
        Ok(is_commit(&commit).then_some(commit))
    }

    /// Notes which commit a revision stands for.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit_of(revision)?.as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        let folder = path.parent().expect("a reference lies below `refs`");
        make_folder(folder)?;
        let mut file =
            tempfile::NamedTempFile::new_in(folder).map_err(io_error(folder, "write into it"))?;
        file.write_all(commit.as_bytes())
            .map_err(io_error(&path, "write it"))?;
        file.persist(&path)
            .map_err(|error| io_error(&path, "write it")(error.error))?;
        Ok(())
    }

    /// Waits until no other process transfers this file; `wait` is called in between and can end it.
    ///
    /// The lock is that of the Python client, and goes with the process that holds it.
    pub(crate) fn lock(
        &self,
        etag: &str,
        wait: &mut dyn FnMut() -> Result<(), HubError>,
    ) -> Result<File, HubError> {
        make_folder(&self.locks)?;
        let path = self.locks.join(format!("{etag}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(&path, "open it"))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => wait()?,
                // A file system without locks is used by one process at a time, or not at all.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    return Ok(file);
                }
                Err(TryLockError::Error(error)) => return Err(io_error(&path, "lock it")(error)),
            }
        }
    }

    /// Gives a complete blob its name in a commit's folder.
    pub(crate) fn link(&self, etag: &str, commit: &str, file: &str) -> Result<(), HubError> {
        let blob = self.blob(etag);
        let pointer = self.snapshot(commit).join(file);
        let folder = pointer.parent().expect("a file lies in its snapshot");
        make_folder(folder)?;
        if pointer.is_symlink() && !pointer.exists() {
            // Its blob was removed; the link may lead elsewhere.
            fs::remove_file(&pointer).map_err(io_error(&pointer, "replace it"))?;
        }
        link_with(
            &[Link::Symbolic, Link::Hard, Link::Move],
            &blob,
            &pointer,
            file,
        )
    }
}

/// Gives a file a second name in the first way that works.
fn link_with(ways: &[Link], blob: &Path, pointer: &Path, file: &str) -> Result<(), HubError> {
    let depth = file.matches('/').count();
    let name = blob.file_name().expect("a blob is named by its tag");
    let target = PathBuf::from("../".repeat(depth + 2))
        .join("blobs")
        .join(name);
    let mut outcome = Ok(());
    for way in ways {
        outcome = match way {
            Link::Symbolic => symbolic(&target, pointer),
            Link::Hard => fs::hard_link(blob, pointer),
            Link::Move => fs::rename(blob, pointer),
        };
        match &outcome {
            Ok(()) => return Ok(()),
            // Another process was as fast; its file was verified as ours was.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(_) => {}
        }
    }
    outcome.map_err(io_error(pointer, "create it"))
}

#[cfg(unix)]
fn symbolic(target: &Path, pointer: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, pointer)
}

#[cfg(windows)]
fn symbolic(target: &Path, pointer: &Path) -> io::Result<()> {
    // Windows does not follow slashes in the target of a link.
    let target: PathBuf = target.components().collect();
    std::os::windows::fs::symlink_file(target, pointer)
}

/// Creates a folder and those above it.
pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(io_error(path, "create it"))
}

/// An I/O error with its place.
pub(crate) fn io_error<'a>(
    path: &'a Path,
    action: &'static str,
) -> impl Fn(io::Error) -> HubError + 'a {
    move |source| HubError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn every_way_of_linking_leaves_a_readable_file() {
        for (way, is_blob_left) in [
            (Link::Symbolic, true),
            (Link::Hard, true),
            (Link::Move, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let cache = RepoCache::new(dir.path(), "org/name");
            let (blob, pointer) = (cache.blob("e7a6"), cache.snapshot(COMMIT).join("d/x.json"));
            make_folder(blob.parent().unwrap()).unwrap();
            make_folder(pointer.parent().unwrap()).unwrap();
            fs::write(&blob, b"seven").unwrap();
            link_with(&[way], &blob, &pointer, "d/x.json").unwrap();
            assert_eq!(fs::read(&pointer).unwrap(), b"seven", "{way:?}");
            assert_eq!(blob.exists(), is_blob_left, "{way:?}");
            if is_blob_left {
                link_with(&[way], &blob, &pointer, "d/x.json").unwrap();
            }
        }
    }

    #[test]
    fn a_dangling_link_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(dir.path(), "org/name");
        make_folder(cache.blob("a").parent().unwrap()).unwrap();
        fs::write(cache.blob("a"), b"old").unwrap();
        cache.link("a", COMMIT, "x.json").unwrap();
        fs::remove_file(cache.blob("a")).unwrap();
        assert!(!cache.has(COMMIT, "x.json"));
        fs::write(cache.blob("b"), b"new").unwrap();
        cache.link("b", COMMIT, "x.json").unwrap();
        assert_eq!(
            fs::read(cache.snapshot(COMMIT).join("x.json")).unwrap(),
            b"new"
        );
    }

    #[test]
    fn a_reference_is_a_commit_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(dir.path(), "org/name");
        assert_eq!(cache.commit_of("main").unwrap(), None);
        assert_eq!(cache.commit_of(COMMIT).unwrap().as_deref(), Some(COMMIT));
        cache.write_ref("refs/pr/3", COMMIT).unwrap();
        let path = dir.path().join("models--org--name/refs/refs/pr/3");
        assert_eq!(fs::read_to_string(&path).unwrap(), COMMIT);
        assert_eq!(
            cache.commit_of("refs/pr/3").unwrap().as_deref(),
            Some(COMMIT)
        );
        fs::write(&path, "../../elsewhere").unwrap();
        assert_eq!(cache.commit_of("refs/pr/3").unwrap(), None);
    }

    #[test]
    fn a_lock_waits_for_the_other_holder() {
        let dir = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(dir.path(), "org/name");
        let held = cache.lock("e", &mut || panic!("nobody holds it")).unwrap();
        let mut held = Some(held);
        let mut n_waits = 0;
        let second = cache.lock("e", &mut || {
            n_waits += 1;
            if n_waits == 3 {
                held = None;
            }
            Ok(())
        });
        assert!(second.is_ok());
        assert_eq!(n_waits, 3);
        let third = cache.lock("e", &mut || Err(HubError::Interrupted));
        assert!(matches!(third, Err(HubError::Interrupted)));
    }
}
