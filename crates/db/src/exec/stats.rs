//! `STATS` and the answer of `USE`.

use std::collections::BTreeMap;

use larql_engine::Runtime;
use larql_models::StoredTensor;
use larql_models::spec::Mixer;

use crate::database::Database;
use crate::error::DbError;
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
    push("layers", spec.n_layers().into());
    push("d_model", spec.d_model.into());
    let layers = || 0..spec.n_layers();
    push(
        "d_mlp",
        distinct(layers().map(|layer| spec.n_features(layer))),
    );
    let attention = |of: fn(&larql_models::spec::AttentionSpec) -> u32| {
        distinct(spec.layers.iter().map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(u64::from(of(attention))),
            Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
        }))
    };
    push("heads", attention(|spec| spec.n_heads));
    push("kv_heads", attention(|spec| spec.n_kv_heads));
    push("d_head", attention(|spec| spec.d_head));
    push("vocabulary", spec.d_vocab.into());
    push("context_tokens", spec.n_ctx.into());
    push("parameters", count(tensors.iter().map(n_values).sum()));
    push(
        "features",
        count(layers().filter_map(|layer| spec.n_features(layer)).sum()),
    );
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
        rows.note(format!("no tokenizer: {error}"));
    }
    db.notes().iter().for_each(|note| rows.note(note));
    Ok(rows)
}

/// The digest of the one file that a vindex was made from, or of each.
fn source_digest(db: &Database) -> Cell {
    let Some(vindex) = db.vindex() else {
        return Cell::Null;
    };
    let files: Vec<String> = vindex
        .manifest()
        .source
        .files
        .iter()
        .map(|file| format!("{} {}", file.name, file.sha256))
        .collect();
    if files.is_empty() {
        Cell::Null
    } else {
        files.join(", ").into()
    }
}

pub(super) fn count(n: u64) -> Cell {
    Cell::Integer(i64::try_from(n).expect("sizes of files that exist fit i64"))
}

/// One number, or the different ones that the layers have, ascending.
fn distinct(values: impl Iterator<Item = Option<u64>>) -> Cell {
    let mut kinds: Vec<u64> = values.flatten().collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds.as_slice() {
        [] => Cell::Null,
        [one] => count(*one),
        [_, _, ..] => kinds
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(", ")
            .into(),
    }
}
