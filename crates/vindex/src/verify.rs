//! [`verify()`]: is a vindex what its manifest says?
//!
//! Reads every byte: digests of all files, the names in the directory, the tensors that the spec needs, every value of
//! them, whether the source's folder can be written again, the tokenizer, the pack of tiles and the two tables. A finding is a row of the report, not an error, so that one damaged file
//! does not hide another.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larql_formats::PARTIAL_PREFIX;
use larql_kernels::{Team, decode};
use larql_models::{ModelError, StoredTensor, ValuePlace};

use crate::Progress;
use crate::digest::{Reporter, hash_file};
use crate::error::{VindexError, io_error};
use crate::export::check_source;
use crate::features::{self, FEATURES};
use crate::knowledge::{self, KNOWLEDGE};
use crate::manifest::{FileEntry, Level, MANIFEST, Manifest, SourceKind};
use crate::pack::{self, PACK};
use crate::vindex::Vindex;

/// Values that one thread decodes at a time; fits the second-level cache.
const DECODED_VALUES: usize = 1 << 16;

/// Pieces of [`DECODED_VALUES`] between two reports of progress.
const PIECES_PER_REPORT: usize = 256;

/// Directory of optional patches.
const PATCHES: &str = "patches";

/// Names that SQLite gives to files beside a database while it is in use.
const SQLITE_SUFFIXES: [&str; 4] = ["", "-journal", "-wal", "-shm"];

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The file, or what about the whole.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What the user can do about it, where that is known.
    pub hint: Option<String>,
}

/// Everything that was looked at, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    /// The findings.
    pub checks: Vec<Check>,
}

impl VerifyReport {
    /// Whether everything is as it should be.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    /// What is not as it should be.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.ok)
    }

    fn add(&mut self, name: &str, found: Result<String, String>) {
        let (ok, detail) = match found {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        self.checks.push(Check {
            name: name.to_owned(),
            ok,
            detail,
            hint: None,
        });
    }
}

/// Checks the vindex at `path` completely; `team` decodes the values.
///
/// # Errors
/// [`VindexError::NotAVindex`], [`VindexError::Interrupted`], or a directory that cannot be listed. Damage is no error
/// but a finding.
pub fn verify(
    path: &Path,
    team: &mut Team,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<VerifyReport, VindexError> {
    let mut reporter = Reporter { call: progress };
    let mut report = VerifyReport { checks: vec![] };
    let vindex = match Vindex::open_manifest(path) {
        Ok(vindex) => vindex,
        Err(error @ VindexError::NotAVindex { .. }) => return Err(error),
        Err(error) => {
            report.add(MANIFEST, Err(error.to_string()));
            return Ok(report);
        }
    };
    let manifest = vindex.manifest();
    report.add(
        MANIFEST,
        Ok(format!(
            "format version {}, level {}",
            manifest.format_version, manifest.level
        )),
    );
    for entry in &manifest.files {
        let found = check_file(&path.join(&entry.name), entry, &mut reporter)?;
        report.add(&entry.name, found);
    }
    unknown_names(path, manifest, &mut report)?;
    match vindex.tensors() {
        Err(error) => report.add("tensors", Err(error.to_string())),
        Ok(tensors) => {
            report.add(
                "tensors",
                Ok(format!("{} tensors, as the spec needs them", tensors.len())),
            );
            let found = check_values(&tensors, team, &mut reporter)?;
            report.add("values", found);
        }
    }
    if manifest.level == Level::All && manifest.source.kind == SourceKind::HuggingFace {
        report.add("source", check_source(&vindex));
    }
    if manifest.tokenizer.is_some() {
        report.add("tokenizer", check_tokenizer(&vindex));
    }
    report
        .checks
        .extend(pack::check_file(&vindex, team, &mut reporter)?);
    if let Some(found) = features::check_file(&path.join(FEATURES), &manifest.digest) {
        report.add(FEATURES, found);
    }
    if let Some(found) = knowledge::check_file(&path.join(KNOWLEDGE)) {
        report.add(KNOWLEDGE, found);
    }
    Ok(report)
}

fn check_file(
    path: &Path,
    entry: &FileEntry,
    reporter: &mut Reporter<'_>,
) -> Result<Result<String, String>, VindexError> {
    let FileEntry {
        name: _,
        size,
        sha256,
    } = entry;
    let hashed = match hash_file(path, "digest", reporter) {
        Ok(hashed) => hashed,
        Err(error @ VindexError::Interrupted { .. }) => return Err(error),
        Err(_) if !path.exists() => return Ok(Err("missing".to_owned())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    Ok(if hashed.size != *size {
        Err(format!("{} bytes, the manifest says {size}", hashed.size))
    } else if hashed.sha256 != *sha256 {
        Err(format!(
            "digest {}, the manifest says {sha256}",
            hashed.sha256
        ))
    } else {
        Ok(format!("{size} bytes, digest as in the manifest"))
    })
}

/// Reports every name that a vindex does not have.
fn unknown_names(
    path: &Path,
    manifest: &Manifest,
    report: &mut VerifyReport,
) -> Result<(), VindexError> {
    let is_known = |name: &str| {
        let table = [FEATURES, KNOWLEDGE].iter().any(|table| {
            name.strip_prefix(table)
                .is_some_and(|rest| SQLITE_SUFFIXES.contains(&rest))
        });
        table || [MANIFEST, PATCHES, PACK].contains(&name) || manifest.file(name).is_some()
    };
    let mut unknown = Vec::new();
    for entry in fs::read_dir(path).map_err(io_error(path, "list"))? {
        let name = entry.map_err(io_error(path, "list"))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if !is_known(&name) {
            unknown.push(name);
        }
    }
    unknown.sort();
    for name in unknown {
        let what = match name.starts_with(PARTIAL_PREFIX) {
            true => {
                "a file that a command is writing, or has left when it was killed; if none is at work it can be deleted"
            }
            false => "not part of a vindex",
        };
        report.add(&name, Err(what.to_owned()));
    }
    Ok(())
}

fn check_tokenizer(vindex: &Vindex) -> Result<String, String> {
    let tokenizer = vindex.tokenizer().map_err(|error| error.to_string())?;
    let stated = vindex.manifest().tokenizer.as_ref();
    let stated = stated.expect("the caller has seen that there is one");
    let (n_vocab, d_vocab) = (
        tokenizer.n_vocab() as u64,
        u64::from(vindex.manifest().spec.d_vocab),
    );
    if n_vocab > d_vocab {
        return Err(format!(
            "{n_vocab} tokens, but the embedding has {d_vocab} rows"
        ));
    }
    if *tokenizer.special() != stated.special {
        return Err("its special tokens are not those of the manifest".to_owned());
    }
    Ok(format!("{n_vocab} tokens"))
}

/// Looks for values that are no numbers, tensor by tensor.
fn check_values(
    tensors: &[StoredTensor],
    team: &mut Team,
    reporter: &mut Reporter<'_>,
) -> Result<Result<String, String>, VindexError> {
    let total = tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum();
    let mut done = 0;
    for tensor in tensors {
        if let Some(problem) = first_bad_value(tensor, team, reporter, done, total)? {
            return Ok(Err(problem));
        }
        done += tensor.bytes.len() as u64;
    }
    reporter.tell("values", total, total)?;
    let n: u64 = tensors
        .iter()
        .map(|tensor| tensor.shape.iter().product::<u64>())
        .sum();
    Ok(Ok(format!("{n} values, all finite")))
}

fn first_bad_value(
    tensor: &StoredTensor,
    team: &mut Team,
    reporter: &mut Reporter<'_>,
    done: u64,
    total: u64,
) -> Result<Option<String>, VindexError> {
    let width = tensor
        .shape
        .last()
        .map_or(1, |width| *width as usize)
        .max(1);
    let n_values = tensor.shape.iter().product::<u64>() as usize;
    let n_rows = n_values / width;
    if n_rows == 0 {
        return Ok(None);
    }
    let row_bytes = tensor.bytes.len() / n_rows;
    let rows_per_piece = (DECODED_VALUES / width).max(1);
    let n_pieces = n_rows.div_ceil(rows_per_piece);
    let first_bad = AtomicU64::new(u64::MAX);
    for first in (0..n_pieces).step_by(PIECES_PER_REPORT) {
        let done = done + (first * rows_per_piece * row_bytes) as u64;
        reporter.tell("values", done, total)?;
        let next = AtomicUsize::new(first);
        let end = n_pieces.min(first + PIECES_PER_REPORT);
        team.run(|_| {
            let mut values = Vec::new();
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= end {
                    break;
                }
                let from = piece * rows_per_piece;
                let to = n_rows.min(from + rows_per_piece);
                values.resize((to - from) * width, 0.0);
                decode(
                    tensor.format,
                    &tensor.bytes[from * row_bytes..to * row_bytes],
                    &mut values,
                );
                if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                    first_bad.fetch_min((from * width + at) as u64, Ordering::Relaxed);
                }
            }
        });
        let at = first_bad.load(Ordering::Relaxed);
        if at != u64::MAX {
            let (row, column) = (at as usize / width, at as usize % width);
            let mut values = vec![0.0; width];
            let bytes = &tensor.bytes[row * row_bytes..][..row_bytes];
            decode(tensor.format, bytes, &mut values);
            let at = ValuePlace {
                tensor: tensor.name.clone(),
                source_tensor: None,
                row: row as u64,
                column: column as u64,
            };
            let value = values[column];
            return Ok(Some(ModelError::NotFinite { at, value }.to_string()));
        }
    }
    Ok(None)
}
