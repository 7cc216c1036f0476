//! `larql export` and `larql quantize`: a model becomes standard files again.

use std::collections::BTreeMap;
use std::path::Path;

use larql_db::{Database, Rows};
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::Quantization;
use larql_models::to_hf::FloatType;
use larql_models::{ModelError, fold_layers};
use larql_vindex::{
    ExportReport, ExportSource, Level, SourceKind, VindexError, export_gguf, export_safetensors,
};
use serde::Serialize;

use crate::Outcome;
use crate::args::{ExportArgs, ExportFormat, FloatArg, QuantArgs, QuantizeArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::model_ref;
use crate::notes::{self, Decoded};
use crate::printer::flow;
use crate::table::size;

/// What an export wrote.
#[derive(Debug, Serialize)]
struct Exported {
    out: String,
    tensors: usize,
    bytes: u64,
    /// Of what was quantized: bits that a value takes on average, and tensors by type.
    bits_per_weight: Option<f64>,
    types: BTreeMap<String, usize>,
    files: Vec<ExportedFile>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ExportedFile {
    name: String,
    bytes: u64,
}

/// Writes a model as standard files.
///
/// # Errors
/// If the model cannot be written so; nothing is left behind then.
pub(crate) fn export(context: &Context, args: &ExportArgs) -> Result<Outcome, CliError> {
    let db = open(context, &args.model)?;
    let report = match (args.to, args.dtype) {
        (ExportFormat::Gguf, Some(_)) => {
            return Err(CliError::request(
                "usage",
                "--dtype is for --to safetensors: a GGUF keeps the stored types",
            )
            .with_hint(Some("`larql quantize` writes other types".to_owned())));
        }
        (ExportFormat::Gguf, None) => to_gguf(context, &db, &args.out, None)?,
        (ExportFormat::Safetensors, dtype) => {
            let float = dtype.map(|dtype| match dtype {
                FloatArg::Float32 => FloatType::F32,
                FloatArg::Float16 => FloatType::F16,
                FloatArg::Bfloat16 => FloatType::Bf16,
            });
            let work = context.interrupts.work();
            let (flag, bar) = (context.interrupts.flag(), context.printer.bar());
            let report = export_safetensors(source(&db)?, &args.out, float, &mut |progress| {
                bar.show(progress.stage, progress.done, progress.total);
                flow(flag.is_raised())
            })?;
            bar.clear();
            let notes = folder_notes(context, &db, float, &report)?;
            drop(work);
            ExportReport { notes, ..report }
        }
    };
    print(context, &args.out, report)
}

/// The notes on a folder, with what its tensors and its user lose.
fn folder_notes(
    context: &Context,
    db: &Database,
    float: Option<FloatType>,
    report: &ExportReport,
) -> Result<Vec<String>, CliError> {
    let mut all = report.notes.clone();
    let is_from_folder = db
        .vindex()
        .is_some_and(|vindex| vindex.manifest().source.kind == SourceKind::HuggingFace);
    let decoded = if is_from_folder {
        Decoded::Quantized
    } else {
        Decoded::All
    };
    if let Some(float) = float {
        all.extend(notes::rounding(context, db.checkpoint()?, float, decoded)?);
    }
    if is_from_folder && notes::has_no_tokenizer(db) {
        all.push("the folder has no tokenizer files, as its source had none".to_owned());
    }
    Ok(all)
}

/// Writes a model as a GGUF file in the types of a mix.
///
/// # Errors
/// If the mix cannot be used; nothing is left behind then.
pub(crate) fn quantize(context: &Context, args: &QuantizeArgs) -> Result<Outcome, CliError> {
    let quantization = quantization(&args.mix, args.requantize)?;
    let db = open(context, &args.model)?;
    let report = to_gguf(context, &db, &args.out, Some(quantization))?;
    print(context, &args.out, report)
}

/// The quantization that options ask for.
///
/// # Errors
/// If there is no such mix.
pub(crate) fn quantization(mix: &str, requantize: bool) -> Result<Quantization, CliError> {
    let known = || {
        Mix::ALL
            .iter()
            .map(|mix| mix.name())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mix = Mix::parse(mix).ok_or_else(|| {
        CliError::request(
            "unknown_quantization",
            format!("no quantization is called `{mix}`"),
        )
        .with_hint(Some(format!("known: {}", known())))
    })?;
    // Every type's values are float32 values, so that nothing is added by writing them out.
    let requantize = requantize || mix == Mix::F32;
    Ok(Quantization { mix, requantize })
}

/// Why the weights could not be written so, and what would work with this quantization.
pub(crate) fn refused(error: VindexError, quantization: Option<Quantization>) -> CliError {
    let is_quantized = matches!(error, VindexError::Model(ModelError::Quantized { .. }));
    let hint = match quantization.map(|quantization| quantization.mix) {
        Some(mix @ (Mix::F16 | Mix::Bf16)) if is_quantized => Some(format!(
            "f32 holds the decoded values exactly; pass --requantize to have them rounded to {}",
            mix.name()
        )),
        Some(_) | None => None,
    };
    CliError::from(error).with_hint(hint)
}

/// The quantization of `extract`, if it is asked for.
///
/// # Errors
/// As [`quantization`].
pub(crate) fn asked(args: &QuantArgs) -> Result<Option<Quantization>, CliError> {
    args.quant
        .as_deref()
        .map(|mix| quantization(mix, args.requantize))
        .transpose()
}

fn open(context: &Context, model: &Path) -> Result<Database, CliError> {
    let path = model_ref::resolve(context, model)?;
    let db = Database::open(&path)?;
    db.require(Level::Inference)?;
    Ok(db)
}

fn source(db: &Database) -> Result<ExportSource<'_>, CliError> {
    Ok(ExportSource {
        checkpoint: db.checkpoint()?,
        vindex: db.vindex(),
    })
}

fn to_gguf(
    context: &Context,
    db: &Database,
    out: &Path,
    quantization: Option<Quantization>,
) -> Result<ExportReport, CliError> {
    let work = context.interrupts.work();
    let (flag, bar) = (context.interrupts.flag(), context.printer.bar());
    let n_threads = context.n_threads();
    let report = export_gguf(source(db)?, out, quantization, n_threads, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
        flow(flag.is_raised())
    });
    bar.clear();
    drop(work);
    let mut report = report.map_err(|error| refused(error, quantization))?;
    if notes::has_no_tokenizer(db) {
        report.notes.push(
            "the model has no tokenizer, so the file has no vocabulary: llama.cpp cannot take text with it or chat"
                .to_owned(),
        );
    }
    Ok(report)
}

fn print(context: &Context, out: &Path, report: ExportReport) -> Result<Outcome, CliError> {
    let exported = Exported {
        out: out.display().to_string(),
        tensors: report.n_tensors,
        bytes: report.files.iter().map(|(_, bytes)| bytes).sum(),
        bits_per_weight: report.bits_per_weight,
        types: report.types.into_iter().collect(),
        files: report
            .files
            .into_iter()
            .map(|(name, bytes)| ExportedFile { name, bytes })
            .collect(),
        notes: fold_layers(report.notes),
    };
    if context.printer.is_table() {
        let mut rows = Rows::new(&["file", "size"]);
        for file in &exported.files {
            rows.push(vec![file.name.clone().into(), size(file.bytes).into()]);
        }
        for note in &exported.notes {
            rows.note(note.clone());
        }
        context.printer.table(&rows)?;
    } else {
        context.printer.json(&exported)?;
    }
    Ok(Outcome::Done)
}
