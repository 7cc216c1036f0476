//! `STATS` and the answer of `USE`.

use std::collections::BTreeMap;

use larql_engine::Runtime;
use larql_models::StoredTensor;

use crate::database::Database;
use crate::error::DbError;
use crate::facts::{count, facts};
use crate::features::tensors;
use crate::rows::{Cell, Rows};

/// What `USE` answers: one row about the model now open.
pub(super) fn opened(db: &Database) -> Result<Rows, DbError> {
    let mut rows = Rows::new(&["model", "kind", "family", "level", "layers", "parameters"]);
    rows.push(vec![
        db.path().display().to_string().into(),
        db.kind().into(),
        db.spec().family.as_str().into(),
        db.level().to_string().into(),
        db.spec().n_layers().into(),
        count(tensors(db)?.iter().map(n_values).sum()),
    ]);
    db.notes().iter().for_each(|note| rows.note(note));
    Ok(rows)
}

fn n_values(tensor: &StoredTensor) -> u64 {
    tensor.shape.iter().product()
}

pub(super) fn rows(db: &Database, runtime: &Runtime) -> Result<Rows, DbError> {
    let (spec, tensors) = (db.spec(), tensors(db)?);
    let mut bytes_by_type: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in &tensors {
        *bytes_by_type.entry(tensor.format.name()).or_default() += tensor.bytes.len() as u64;
    }
    let mut rows = Rows::new(&["name", "value"]);
    let mut push = |name: &str, value: Cell| rows.push(vec![name.into(), value]);
    push("model", db.path().display().to_string().into());
    push("kind", db.kind().into());
    push("family", spec.family.as_str().into());
    push("level", db.level().to_string().into());
    for (name, value) in facts(spec) {
        push(name, value);
    }
    push("tensors", db.n_tensors()?.into());
    push("parameters", count(tensors.iter().map(n_values).sum()));
    push("weight_bytes", count(bytes_by_type.values().sum()));
    for (format, n_bytes) in &bytes_by_type {
        push(&format!("weight_bytes {format}"), count(*n_bytes));
    }
    push(
        "tokenizer",
        match db.tokenizer() {
            Ok(tokenizer) => format!("{} tokens", tokenizer.n_vocab()).into(),
            Err(_) => Cell::Null,
        },
    );
    push(
        "digest",
        db.vindex()
            .map(|vindex| vindex.manifest().digest.as_str())
            .into(),
    );
    push("source_digest", source_digest(db));
    push("profile", runtime.profile().name().into());
    push("threads", runtime.n_threads().into());
    if let Err(error) = db.tokenizer() {
        rows.note(error.to_string());
    }
    db.notes().iter().for_each(|note| rows.note(note));
    Ok(rows)
}

/// What identifies the files that a vindex was made from, by the names that the manifest has for it.
fn source_digest(db: &Database) -> Cell {
    let Some(vindex) = db.vindex() else {
        return Cell::Null;
    };
    let files: Vec<String> = vindex
        .manifest()
        .source
        .files
        .iter()
        .map(|file| format!("{} {}", file.name, file.digest))
        .collect();
    if files.is_empty() {
        Cell::Null
    } else {
        files.join(", ").into()
    }
}
