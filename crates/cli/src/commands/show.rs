//! `larql show`: what is inside a model, from its headers alone.

use std::collections::BTreeMap;

use larql_db::{Database, Rows};
use larql_models::ModelSpec;
use serde::Serialize;

use crate::Outcome;
use crate::args::ShowArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::model_ref;
use crate::table::size;

/// What is inside a model.
#[derive(Debug, Serialize)]
struct Wire<'a> {
    path: String,
    kind: &'static str,
    family: &'a str,
    level: &'static str,
    n_layers: usize,
    d_model: u32,
    d_vocab: u32,
    n_ctx: u32,
    n_features: Option<u64>,
    n_params: u64,
    weight_bytes: u64,
    stored_types: BTreeMap<&'static str, Stored>,
    ignored: Vec<Ignored<'a>>,
    notes: &'a [String],
    vindex: Option<VindexWire<'a>>,
    spec: &'a ModelSpec,
}

#[derive(Debug, Serialize)]
struct Stored {
    n_params: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Ignored<'a> {
    name: &'a str,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
struct VindexWire<'a> {
    digest: &'a str,
    source: &'a str,
    files: Vec<FileWire<'a>>,
}

#[derive(Debug, Serialize)]
struct FileWire<'a> {
    name: &'a str,
    bytes: u64,
    sha256: &'a str,
}

/// Prints what a model consists of.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn show(context: &Context, args: &ShowArgs) -> Result<Outcome, CliError> {
    // Holds the headers of a model of the hub until they are printed.
    let scratch = tempfile::tempdir().map_err(|source| {
        CliError::failure(
            "temporary_folder",
            format!("cannot make a temporary folder: {source}"),
        )
    })?;
    let headers = model_ref::headers(context, &args.model, scratch.path())?;
    let db = Database::open(&headers.path)?;
    let mut wire = describe(&db)?;
    if let Some(model) = headers.model {
        wire.path = model.to_string();
    }
    if context.printer.is_table() {
        context.printer.table(&rows(&wire))?;
    } else {
        context.printer.json(&wire)?;
    }
    Ok(Outcome::Done)
}

/// The same as rows, for other commands.
///
/// # Errors
/// If the weights cannot be read.
pub(crate) fn summary(db: &Database) -> Result<Rows, CliError> {
    Ok(rows(&describe(db)?))
}

fn describe(db: &Database) -> Result<Wire<'_>, CliError> {
    let (stored, spec) = (db.stored()?, db.spec());
    let manifest = db.vindex().map(|vindex| vindex.manifest());
    Ok(Wire {
        path: db.path().display().to_string(),
        kind: db.kind(),
        family: &spec.family,
        level: db.level().name(),
        n_layers: spec.n_layers(),
        d_model: spec.d_model,
        d_vocab: spec.d_vocab,
        n_ctx: spec.n_ctx,
        n_features: (0..spec.n_layers())
            .map(|layer| spec.n_features(layer))
            .sum(),
        n_params: stored.values().map(|(n_params, _)| n_params).sum(),
        weight_bytes: stored.values().map(|(_, bytes)| bytes).sum(),
        stored_types: stored
            .into_iter()
            .map(|(name, (n_params, bytes))| (name, Stored { n_params, bytes }))
            .collect(),
        ignored: db
            .ignored()
            .iter()
            .map(|tensor| Ignored {
                name: &tensor.name,
                reason: tensor.reason,
            })
            .collect(),
        notes: manifest.map_or(db.notes(), |manifest| &manifest.notes),
        vindex: manifest.map(|manifest| VindexWire {
            digest: &manifest.digest,
            source: &manifest.source.name,
            files: manifest
                .files
                .iter()
                .map(|file| FileWire {
                    name: &file.name,
                    bytes: file.size,
                    sha256: &file.sha256,
                })
                .collect(),
        }),
        spec,
    })
}

fn rows(wire: &Wire<'_>) -> Rows {
    let Wire {
        path,
        kind,
        family,
        level,
        n_layers,
        d_model,
        d_vocab,
        n_ctx,
        n_features,
        n_params,
        weight_bytes,
        stored_types,
        ignored,
        notes,
        vindex,
        spec: _,
    } = wire;
    let mut rows = Rows::new(&["property", "value"]);
    let mut row = |property: &str, value: String| rows.push(vec![property.into(), value.into()]);
    row("path", path.clone());
    row("kind", (*kind).to_owned());
    row("family", (*family).to_owned());
    row("level", (*level).to_owned());
    row("layers", n_layers.to_string());
    row("d_model", d_model.to_string());
    row("d_vocab", d_vocab.to_string());
    row("context", n_ctx.to_string());
    if let Some(n) = n_features {
        row("features", n.to_string());
    }
    row("parameters", n_params.to_string());
    row("weights", size(*weight_bytes));
    for (name, stored) in stored_types {
        row(
            &format!("stored as {name}"),
            format!("{} parameters, {}", stored.n_params, size(stored.bytes)),
        );
    }
    if let Some(vindex) = vindex {
        row("extracted from", vindex.source.to_owned());
        row("digest", vindex.digest.to_owned());
        for file in &vindex.files {
            row("file", format!("{}, {}", file.name, size(file.bytes)));
        }
    }
    for tensor in ignored {
        row("ignored", format!("{}: {}", tensor.name, tensor.reason));
    }
    for note in *notes {
        rows.note(note.clone());
    }
    rows
}
