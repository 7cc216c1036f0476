//! `STATS` and the answer of `USE`.

use larql_engine::Runtime;
use larql_models::spec::Mixer;

use crate::database::Database;
use crate::error::DbError;
use crate::rows::{Cell, Rows};

/// What `USE` answers: one row about the model now open.
pub(super) fn opened(db: &Database) -> Rows {
    let mut rows = Rows::new(&["model", "kind", "family", "level", "layers", "parameters"]);
    rows.push(vec![
        db.path().display().to_string().into(),
        db.kind().into(),
        db.spec().family.as_str().into(),
        db.level().to_string().into(),
        db.spec().n_layers().into(),
        count(db.checkpoint().n_params()),
    ]);
    db.checkpoint().notes().iter().for_each(|note| rows.note(note));
    rows
}

pub(super) fn rows(db: &Database, runtime: &Runtime) -> Result<Rows, DbError> {
    let (spec, checkpoint) = (db.spec(), db.checkpoint());
    let mut rows = Rows::new(&["name", "value"]);
    let mut push = |name: &str, value: Cell| rows.push(vec![name.into(), value]);
    push("model", db.path().display().to_string().into());
    push("kind", db.kind().into());
    push("family", spec.family.as_str().into());
    push("level", db.level().to_string().into());
    push("layers", spec.n_layers().into());
    push("d_model", spec.d_model.into());
    let layers = || 0..spec.n_layers();
    push("d_mlp", distinct(layers().map(|layer| spec.n_features(layer))));
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
    push("parameters", count(checkpoint.n_params()));
    push("features", count(layers().filter_map(|layer| spec.n_features(layer)).sum()));
    push("weight_bytes", count(checkpoint.weight_bytes()));
    for (dtype, (_, n_bytes)) in checkpoint.dtypes() {
        push(&format!("weight_bytes {dtype}"), count(n_bytes));
    }
    push("tokenizer", match db.tokenizer() {
        Ok(tokenizer) => format!("{} tokens", tokenizer.n_vocab()).into(),
        Err(_) => Cell::Null,
    });
    push("source_digest", source_digest(db));
    push("profile", runtime.profile().name().into());
    push("threads", runtime.n_threads().into());
    if let Err(error) = db.tokenizer() {
        rows.note(format!("no tokenizer: {error}"));
    }
    checkpoint.notes().iter().for_each(|note| rows.note(note));
    Ok(rows)
}

fn source_digest(db: &Database) -> Cell {
    let _ = db;
    Cell::Null
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
        [_, _, ..] => kinds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ").into(),
    }
}
