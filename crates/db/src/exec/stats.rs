//! `STATS` and the answer of `USE`.

use std::collections::BTreeMap;

use larql_engine::Runtime;
use larql_models::StoredTensor;
use larql_models::spec::{Ffn, ModelSpec, MoeSpec};

use super::layers::{MixerFacts, mixer_facts};
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
    for (name, value) in ffn_facts(spec).into_iter().chain(mixers(spec)) {
        push(name, value);
    }
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
        rows.note(error.to_string());
    }
    db.notes().iter().for_each(|note| rows.note(note));
    Ok(rows)
}

/// Widths of the FFNs; those of experts only where there are some.
fn ffn_facts(spec: &ModelSpec) -> Vec<(&'static str, Cell)> {
    let dense = spec.layers.iter().map(|layer| match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => Some(ffn.d_mlp),
        Ffn::Moe(moe) => moe.parallel_dense.as_ref().map(|dense| dense.ffn.d_mlp),
    });
    let mut facts = vec![("d_mlp", distinct(dense))];
    let mixtures: Vec<Option<&MoeSpec>> = spec
        .layers
        .iter()
        .map(|layer| match &layer.ffn {
            Ffn::Gated(_) | Ffn::Plain(_) => None,
            Ffn::Moe(moe) => Some(moe),
        })
        .collect();
    let n_dense = mixtures.iter().filter(|moe| moe.is_none()).count();
    if n_dense == mixtures.len() {
        return facts;
    }
    let of =
        |fact: fn(&MoeSpec) -> Option<u32>| distinct(mixtures.iter().map(|moe| moe.and_then(fact)));
    facts.extend([
        ("dense_layers", n_dense.into()),
        ("experts", of(|moe| Some(moe.n_experts))),
        ("experts_per_token", of(|moe| Some(moe.n_active))),
        ("d_expert", of(|moe| Some(moe.expert.d_mlp))),
        (
            "d_shared",
            of(|moe| moe.shared.as_ref().map(|shared| shared.ffn.d_mlp)),
        ),
    ]);
    facts
}

/// Kinds of mixers with their numbers of layers, and their heads.
fn mixers(spec: &ModelSpec) -> [(&'static str, Cell); 4] {
    let facts: Vec<MixerFacts> = spec
        .layers
        .iter()
        .map(|layer| mixer_facts(&layer.mixer))
        .collect();
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for fact in &facts {
        match kinds.iter_mut().find(|(kind, _)| *kind == fact.kind) {
            Some((_, n)) => *n += 1,
            None => kinds.push((&fact.kind, 1)),
        }
    }
    let kinds: Vec<String> = match kinds.as_slice() {
        [(only, _)] => vec![(*only).to_owned()],
        several => several
            .iter()
            .map(|(kind, n)| format!("{kind} in {n}"))
            .collect(),
    };
    let of = |fact: fn(&MixerFacts) -> u32| distinct(facts.iter().map(|facts| Some(fact(facts))));
    [
        ("attention", kinds.join(", ").into()),
        ("heads", of(|facts| facts.heads)),
        ("kv_heads", of(|facts| facts.kv_heads)),
        ("d_head", of(|facts| facts.d_head)),
    ]
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
fn distinct(values: impl Iterator<Item = Option<u32>>) -> Cell {
    let mut kinds: Vec<u32> = values.flatten().collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds.as_slice() {
        [] => Cell::Null,
        [one] => (*one).into(),
        [_, _, ..] => kinds
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
            .into(),
    }
}
