//! Split models: `NAME-00001-of-00003.gguf` and the keys `split.*`.
//!
//! The name and the keys must agree. A shard that is opened alone would look like a model with
//! most of its layers absent, so a missing or foreign shard is an error, never a smaller model.

use std::path::{Path, PathBuf};

use super::file::GgufFile;
use super::metadata::Metadata;
use crate::bytes::Bytes;
use crate::error::Error;

/// Zero-based number of the shard, and how many there are.
const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
/// Tensors of all shards together.
const TENSORS_KEY: &str = "split.tensors.count";

/// The paths of all shards if `path` is one of several.
pub(super) fn shard_paths(path: &Path, metadata: &Metadata) -> Result<Option<Vec<PathBuf>>, Error> {
    let by_key = metadata.u64(COUNT_KEY)?;
    let by_name = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(shard_name);
    match (by_key, by_name) {
        (None | Some(0 | 1), None | Some((_, 1))) => {
            // One file, which must not call itself a later shard of something.
            match metadata.u64(NO_KEY)? {
                Some(found) if found > 0 => Err(mismatch(path, NO_KEY, 0, Some(found))),
                Some(_) | None => Ok(None),
            }
        }
        (Some(n_shards), None) => Err(Error::ShardFileName {
            path: path.to_path_buf(),
            n_shards,
        }),
        (found, Some((stem, n_shards))) if found == Some(n_shards) => Ok(Some(
            (1..=n_shards)
                .map(|shard| {
                    path.with_file_name(format!("{stem}-{shard:05}-of-{n_shards:05}.gguf"))
                })
                .collect(),
        )),
        (found, Some((_, expected))) => Err(mismatch(path, COUNT_KEY, expected, found)),
    }
}

/// Opens all shards and checks that each is the one its name says.
pub(super) fn open_all(paths: &[PathBuf]) -> Result<GgufFile, Error> {
    let n_shards = paths.len() as u64;
    if let Some(idx) = paths.iter().position(|path| !path.exists()) {
        return Err(Error::MissingShard {
            path: paths[idx].clone(),
            shard: idx as u64 + 1,
            n_shards,
        });
    }
    let mut whole: Option<GgufFile> = None;
    for (path, idx) in paths.iter().zip(0..) {
        let shard = GgufFile::from_bytes(Bytes::map_file(path)?, path)?;
        check_key(path, shard.metadata(), NO_KEY, idx)?;
        check_key(path, shard.metadata(), COUNT_KEY, n_shards)?;
        match &mut whole {
            None => whole = Some(shard),
            Some(whole) => whole.append(shard)?,
        }
    }
    let whole = whole.expect("a split model has at least two shards");
    let n_tensors = whole.tensors().len() as u64;
    match whole.metadata().u64(TENSORS_KEY)? {
        Some(found) if found != n_tensors => {
            Err(mismatch(&paths[0], TENSORS_KEY, n_tensors, Some(found)))
        }
        Some(_) | None => Ok(whole),
    }
}

/// `NAME-00002-of-00003.gguf` to `(NAME, 3)`.
fn shard_name(name: &str) -> Option<(&str, u64)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, n_shards) = rest.rsplit_once("-of-")?;
    let (stem, shard) = rest.rsplit_once('-')?;
    let number = |digits: &str| -> Option<u64> {
        let plain = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse().ok() } else { None }
    };
    number(shard)?;
    Some((stem, number(n_shards)?))
}

fn check_key(
    path: &Path,
    metadata: &Metadata,
    key: &'static str,
    expected: u64,
) -> Result<(), Error> {
    let found = metadata.u64(key)?;
    if found == Some(expected) {
        Ok(())
    } else {
        Err(mismatch(path, key, expected, found))
    }
}

fn mismatch(path: &Path, key: &'static str, expected: u64, found: Option<u64>) -> Error {
    Error::SplitMismatch {
        path: path.to_path_buf(),
        key,
        expected,
        found,
    }
}
