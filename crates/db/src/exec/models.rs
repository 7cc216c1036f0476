//! `SHOW MODELS`: what lies in a folder and can be opened, by its headers.

use std::fs;
use std::path::{Path, PathBuf};

use larql_vindex::Vindex;

use crate::database::Database;
use crate::error::DbError;
use crate::facts::count;
use crate::rows::{Cell, Rows};

/// Most entries of a folder that are looked at; more is not a folder of models.
const ENTRIES_MAX: usize = 10_000;

pub(super) fn rows(folder: &Path) -> Result<Rows, DbError> {
    let mut rows = Rows::new(&["name", "kind", "family", "bytes", "error"]);
    let entries = fs::read_dir(folder).map_err(|source| DbError::Folder {
        path: folder.to_owned(),
        source,
    })?;
    let mut paths: Vec<PathBuf> = entries
        .take(ENTRIES_MAX)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| is_candidate(path)) {
        let name = path
            .file_name()
            .map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let (kind, family, error) = match Database::open(&path) {
            Ok(db) => (
                db.kind().into(),
                db.spec().family.as_str().into(),
                Cell::Null,
            ),
            Err(error) => (Cell::Null, Cell::Null, error.to_string().into()),
        };
        rows.push(vec![
            name.into(),
            kind,
            family,
            count(n_bytes(&path)),
            error,
        ]);
    }
    Ok(rows)
}

/// Whether a name promises a model; what is inside decides whether it keeps it.
fn is_candidate(path: &Path) -> bool {
    if path.is_dir() {
        return Vindex::is_vindex(path) || path.join("config.json").is_file();
    }
    let is_gguf = path
        .extension()
        .is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
    is_gguf && !is_later_part(path)
}

/// Whether a file is a part of a split GGUF other than the first, which stands for all.
fn is_later_part(path: &Path) -> bool {
    let stem = path
        .file_stem()
        .map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    let mut parts = stem.rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some("of"), Some(rest)) => {
            let number = rest.rsplit('-').next().unwrap_or_default();
            number.len() == 5 && number.parse::<u32>().is_ok_and(|n| n > 1)
        }
        _ => false,
    }
}

/// Bytes of a file, or of the files directly in a folder.
fn n_bytes(path: &Path) -> u64 {
    let size = |path: &Path| {
        fs::metadata(path).map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 })
    };
    if !path.is_dir() {
        return size(path);
    }
    fs::read_dir(path).map_or(0, |entries| {
        entries
            .filter_map(|entry| Some(size(&entry.ok()?.path())))
            .sum()
    })
}
