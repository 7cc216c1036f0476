//! `larql show`: what is inside a model, from its headers alone.

use std::collections::BTreeMap;
use std::fs::Metadata;

use larql_db::facts::facts;
use larql_db::{Cell, Database, DbError, Rows};
use larql_models::ModelSpec;
use larql_vindex::{PACK, SourceFile, VindexError};
use serde::{Serialize, Serializer};

use crate::Outcome;
use crate::args::ShowArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::model_ref;
use crate::table::{self, size};

/// What is inside a model.
#[derive(Debug, Serialize)]
struct Wire<'a> {
    model: String,
    kind: &'static str,
    family: &'a str,
    level: &'static str,
    #[serde(flatten)]
    facts: Facts,
    tensors: usize,
    parameters: u64,
    weight_bytes: u64,
    stored_types: BTreeMap<&'static str, Stored>,
    ignored: Vec<Ignored<'a>>,
    notes: &'a [String],
    vindex: Option<VindexWire<'a>>,
    spec: &'a ModelSpec,
}

/// What `STATS` says too, under the same names.
#[derive(Debug)]
struct Facts(Vec<(&'static str, Cell)>);

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[derive(Debug, Serialize)]
struct Stored {
    parameters: u64,
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
    /// As the manifest has them.
    source_files: &'a [SourceFile],
    files: Vec<FileWire<'a>>,
    pack: Option<PackWire>,
}

/// Tiles beside the weights.
#[derive(Debug, Serialize)]
struct PackWire {
    name: &'static str,
    /// Absent where it is no file.
    bytes: Option<u64>,
    /// Absent where there is a problem.
    matrices: Option<usize>,
    /// Why the model cannot be run from it.
    problem: Option<String>,
    /// What would work then.
    hint: Option<String>,
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
        wire.model = model.to_string();
    }
    if context.printer.is_table() {
        context.printer.table(&rows(&wire))?;
        if let Some(pack) = wire.vindex.as_ref().and_then(|vindex| vindex.pack.as_ref())
            && let Some(hint) = &pack.hint
        {
            context.printer.hint(&format!("{}: {hint}", pack.name))?;
        }
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
    let pack = pack(db)?;
    Ok(Wire {
        model: db.path().display().to_string(),
        kind: db.kind(),
        family: &spec.family,
        level: db.level().name(),
        facts: Facts(facts(spec)),
        tensors: db.n_tensors()?,
        parameters: stored.values().map(|(parameters, _)| parameters).sum(),
        weight_bytes: stored.values().map(|(_, bytes)| bytes).sum(),
        stored_types: stored
            .into_iter()
            .map(|(name, (parameters, bytes))| (name, Stored { parameters, bytes }))
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
            source_files: &manifest.source.files,
            files: manifest
                .files
                .iter()
                .map(|file| FileWire {
                    name: &file.name,
                    bytes: file.size,
                    sha256: &file.sha256,
                })
                .collect(),
            pack,
        }),
        spec,
    })
}

/// The pack of a vindex. One that cannot be used is something to show, not a reason to show nothing.
fn pack(db: &Database) -> Result<Option<PackWire>, CliError> {
    match db.pack() {
        Ok(pack) => Ok(pack.map(|pack| PackWire {
            name: PACK,
            bytes: Some(pack.n_bytes()),
            matrices: Some(pack.matrices().len()),
            problem: None,
            hint: None,
        })),
        Err(DbError::Vindex(
            ref error @ VindexError::Pack {
                ref path,
                ref source,
            },
        )) => {
            let stat = path.metadata().ok().filter(Metadata::is_file);
            Ok(Some(PackWire {
                name: PACK,
                bytes: stat.map(|stat| stat.len()),
                matrices: None,
                problem: Some(source.to_string()),
                hint: error.hint(),
            }))
        }
        Err(error) => Err(error.into()),
    }
}

fn rows(wire: &Wire<'_>) -> Rows {
    let Wire {
        model,
        kind,
        family,
        level,
        facts,
        tensors,
        parameters,
        weight_bytes,
        stored_types,
        ignored,
        notes,
        vindex,
        spec: _,
    } = wire;
    let mut rows = Rows::new(&["property", "value"]);
    let mut row = |property: &str, value: String| rows.push(vec![property.into(), value.into()]);
    row("model", model.clone());
    row("kind", (*kind).to_owned());
    row("family", (*family).to_owned());
    row("level", (*level).to_owned());
    for (name, value) in &facts.0 {
        row(name, table::text(value));
    }
    row("tensors", tensors.to_string());
    row("parameters", parameters.to_string());
    let bytes = |n: u64| format!("{n} ({})", size(n));
    row("weight_bytes", bytes(*weight_bytes));
    for (name, stored) in stored_types {
        row(
            &format!("weight_bytes {name}"),
            format!("{}, {} parameters", bytes(stored.bytes), stored.parameters),
        );
    }
    if let Some(vindex) = vindex {
        row("extracted from", vindex.source.to_owned());
        for file in vindex.source_files {
            row("source file", format!("{}, {}", file.name, file.digest));
        }
        row("digest", vindex.digest.to_owned());
        for file in &vindex.files {
            row("file", format!("{}, {}", file.name, size(file.bytes)));
        }
        if let Some(pack) = &vindex.pack {
            let mut parts = vec![pack.name.to_owned()];
            parts.extend(pack.bytes.map(size));
            parts
                .extend((pack.matrices).map(|n| format!("{n} matrices as they are computed with")));
            parts.extend((pack.problem.as_ref()).map(|what| format!("cannot be used: {what}")));
            row("pack", parts.join(", "));
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
