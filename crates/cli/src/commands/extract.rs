//! `larql extract`: a checkpoint becomes a vindex, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use larql_db::features::{TOKENS_CACHED, feature_tokens};
use larql_db::{Database, Rows};
use larql_models::layout::Layout;
use larql_models::to_gguf::GgufContent;
use larql_models::{Checkpoint, ModelError, fold_layers};
use larql_vindex::{
    ExtractOptions, ExtractReport, Level, TensorPlace, Vindex, WeightsPlacement,
    extract as extract_vindex, staging_prefix,
};
use serde::Serialize;

use crate::Outcome;
use crate::args::{ExtractArgs, LevelArg, ProfileArg};
use crate::commands::export;
use crate::context::Context;
use crate::error::CliError;
use crate::model_ref;
use crate::printer::flow;
use crate::table::size;

/// What became of the source.
#[derive(Debug, Serialize)]
pub(crate) struct Accounting {
    out: String,
    level: &'static str,
    digest: String,
    source_tensors: usize,
    /// Tensors of the source that went in.
    used: usize,
    /// Matrices and vectors that these hold: one tensor may hold those of many experts.
    pieces: usize,
    /// Tensors of the source that the level does not have.
    left_out: usize,
    /// Tensors of the source that the vindex keeps as they were, because nothing else could be made into them again.
    kept_apart: usize,
    ignored: Vec<Ignored>,
    /// What became of each tensor of the source.
    tensors: Vec<Tensor>,
    /// Bytes of what went in, by the source's types.
    stored_types: BTreeMap<&'static str, u64>,
    /// Bytes of the vindex's weights, by the types that it holds them in.
    held_types: BTreeMap<&'static str, u64>,
    /// Of what was quantized: bits that a value takes on average, and tensors by type.
    bits_per_weight: Option<f64>,
    types: BTreeMap<String, usize>,
    weights: &'static str,
    bytes: u64,
    bytes_written: u64,
    features: Option<u64>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Ignored {
    name: String,
    reason: String,
}

/// A tensor of the source.
#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    fate: Fate,
    /// Why it did not go in.
    reason: Option<String>,
    /// Whether its bytes are kept as they were, besides.
    kept_apart: bool,
}

/// What became of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    /// Its values went in.
    Used,
    /// The level does not have it.
    LeftOut,
    /// The forward pass does not need it.
    Ignored,
}

/// Makes a vindex and prints the tensor accounting.
///
/// # Errors
/// If the source cannot be used or the vindex cannot be written; nothing is left behind then.
pub(crate) fn extract(context: &Context, args: &ExtractArgs) -> Result<Outcome, CliError> {
    let source = model_ref::resolve(context, &args.source)?;
    if Vindex::is_vindex(&source) {
        return Err(CliError::request(
            "already_a_vindex",
            format!("{}: is a vindex already", source.display()),
        )
        .with_hint(Some(
            "extract the checkpoint that it was made from".to_owned(),
        )));
    }
    let work = context.interrupts.work();
    let checkpoint = Checkpoint::open(&source)?;
    let level = match args.level {
        LevelArg::Browse => Level::Browse,
        LevelArg::Inference => Level::Inference,
        LevelArg::All => Level::All,
    };
    let options = ExtractOptions {
        level,
        quantization: export::asked(&args.quant)?,
        n_threads: context.n_threads(),
    };
    let mut accounting = make(context, &checkpoint, &args.out, &options)?;
    if args.features {
        accounting.features = Some(fill_features(context, &args.out)?);
    }
    drop(work);
    if context.printer.is_table() {
        context.printer.table(&rows(&accounting))?;
    } else {
        context.printer.json(&accounting)?;
    }
    Ok(Outcome::Done)
}

/// Staging folders beside `out` that no extraction has given their name.
fn abandoned(out: &Path) -> Vec<PathBuf> {
    let (Some(name), Some(parent)) = (out.file_name(), out.parent()) else {
        return Vec::new();
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let prefix = staging_prefix(&name.to_string_lossy());
    let mut found: Vec<PathBuf> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|own| own.to_string_lossy().starts_with(&prefix))
        })
        .collect();
    found.sort();
    found
}

/// Extracts under a progress bar.
///
/// # Errors
/// As [`extract`].
pub(crate) fn make(
    context: &Context,
    checkpoint: &Checkpoint,
    out: &Path,
    options: &ExtractOptions,
) -> Result<Accounting, CliError> {
    let (tokenizer, missing) = match checkpoint.tokenizer() {
        Ok(tokenizer) => (Some(tokenizer), None),
        Err(error @ ModelError::NoTokenizer { .. }) => (None, Some(CliError::from(error).message)),
        Err(error) => return Err(error.into()),
    };
    for left in abandoned(out) {
        let what = "left by an extraction that was killed; remove it when no other one is running";
        context
            .printer
            .note(&format!("{}: {what}", left.display()))?;
    }
    let flag = context.interrupts.flag();
    let bar = context.printer.bar();
    let report = extract_vindex(
        checkpoint,
        tokenizer.as_ref(),
        out,
        options,
        &mut |progress| {
            bar.show(progress.stage, progress.done, progress.total);
            flow(flag.is_raised())
        },
    )
    .map_err(|error| export::refused(error, options.quantization))?;
    bar.clear();
    let ExtractReport {
        level,
        digest,
        n_source_tensors,
        n_used,
        ignored,
        bits_per_weight,
        types,
        mut notes,
        weights,
        bytes_written,
        bytes,
    } = report;
    notes.extend(missing);
    let tensors = fates(checkpoint, out, level, &ignored)?;
    let n = |fate: Fate| tensors.iter().filter(|tensor| tensor.fate == fate).count();
    Ok(Accounting {
        out: out.display().to_string(),
        level: level.name(),
        digest,
        source_tensors: n_source_tensors,
        used: n(Fate::Used),
        pieces: n_used,
        left_out: n(Fate::LeftOut),
        kept_apart: tensors.iter().filter(|tensor| tensor.kept_apart).count(),
        ignored: ignored
            .into_iter()
            .map(|tensor| Ignored {
                name: tensor.name,
                reason: tensor.reason,
            })
            .collect(),
        tensors,
        stored_types: stored_types(checkpoint, level)?,
        held_types: held_types(out)?,
        bits_per_weight,
        types: types.into_iter().collect(),
        weights: match weights {
            WeightsPlacement::Linked => "linked",
            WeightsPlacement::Copied => "copied",
            WeightsPlacement::Written => "written",
        },
        bytes,
        bytes_written,
        features: None,
        notes: fold_layers(notes),
    })
}

/// What a level has of the weights.
fn content(level: Level) -> GgufContent {
    match level {
        Level::Browse => GgufContent::WithoutAttention,
        Level::Inference | Level::All => GgufContent::Whole,
    }
}

/// What became of each tensor of the source, by name.
fn fates(
    checkpoint: &Checkpoint,
    out: &Path,
    level: Level,
    ignored: &[larql_vindex::Ignored],
) -> Result<Vec<Tensor>, CliError> {
    let vindex = Vindex::open(out)?;
    let source = &vindex.manifest().source;
    let kept: BTreeSet<&str> = source
        .tensors
        .iter()
        .filter(|tensor| match tensor.place {
            TensorPlace::Kept => true,
            TensorPlace::Weights | TensorPlace::Changed => false,
        })
        .map(|tensor| tensor.name.as_str())
        .collect();
    let of_layout = |layout: &Layout| {
        let is_used = layout
            .runs
            .iter()
            .any(|run| content(level).includes(run.role));
        let (fate, reason) = if is_used {
            (Fate::Used, None)
        } else {
            let reason = format!("level {} has no attention", level.name());
            (Fate::LeftOut, Some(reason))
        };
        (layout.name.clone(), fate, reason)
    };
    let of_ignored = |tensor: &larql_vindex::Ignored| {
        let reason = Some(tensor.reason.clone());
        (tensor.name.clone(), Fate::Ignored, reason)
    };
    let needed = checkpoint.layouts().iter().map(of_layout);
    let mut tensors: Vec<Tensor> = needed
        .chain(ignored.iter().map(of_ignored))
        .map(|(name, fate, reason)| Tensor {
            kept_apart: kept.contains(name.as_str()),
            name,
            fate,
            reason,
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

/// Bytes of what a level has, by the source's types.
fn stored_types(
    checkpoint: &Checkpoint,
    level: Level,
) -> Result<BTreeMap<&'static str, u64>, CliError> {
    let mut by_type = BTreeMap::new();
    for role in checkpoint.roles() {
        if content(level).includes(role) {
            let tensor = checkpoint.tensor(role)?;
            *by_type.entry(tensor.format.name()).or_default() += tensor.bytes.len() as u64;
        }
    }
    Ok(by_type)
}

/// Bytes of what a vindex holds, by its own types.
fn held_types(out: &Path) -> Result<BTreeMap<&'static str, u64>, CliError> {
    let held = Vindex::open(out)?.contents()?.dtypes();
    let bytes = held.into_iter().map(|(name, (_, bytes))| (name, bytes));
    Ok(bytes.collect())
}

/// Computes what every feature writes, so that no query has to wait for it.
fn fill_features(context: &Context, out: &Path) -> Result<u64, CliError> {
    let db = Database::open(out)?;
    let mut runtime = context.runtime(ProfileArg::Exact);
    let bar = context.printer.bar();
    let layers =
        (0..db.spec().n_layers()).filter_map(|layer| Some((layer, db.spec().n_features(layer)?)));
    let total = layers.clone().map(|(_, n)| n).sum();
    let mut done = 0;
    for (layer, n) in layers {
        let features: Vec<u32> = (0..u32::try_from(n).expect("feature indexes are u32")).collect();
        feature_tokens(
            &db,
            &mut runtime,
            layer,
            &features,
            TOKENS_CACHED,
            &mut |progress| {
                bar.show(progress.stage, done + progress.done, total);
            },
        )?;
        done += n;
    }
    Ok(done)
}

/// The accounting as rows.
pub(crate) fn rows(accounting: &Accounting) -> Rows {
    let Accounting {
        out,
        level,
        digest,
        source_tensors,
        used,
        pieces,
        left_out,
        kept_apart,
        ignored,
        tensors: _,
        stored_types,
        held_types,
        // The notes have them in a sentence.
        bits_per_weight: _,
        types: _,
        weights,
        bytes,
        bytes_written,
        features,
        notes,
    } = accounting;
    let mut rows = Rows::new(&["what", "value"]);
    let mut row = |what: &str, value: String| rows.push(vec![what.into(), value.into()]);
    row("vindex", out.clone());
    row("level", (*level).to_owned());
    row("digest", digest.clone());
    row("tensors of the source", source_tensors.to_string());
    row("used", used.to_string());
    row("pieces", format!("{pieces} matrices and vectors"));
    row("left out", left_out.to_string());
    row("kept apart", kept_apart.to_string());
    row("ignored", ignored.len().to_string());
    for tensor in ignored {
        row(
            "ignored tensor",
            format!("{}: {}", tensor.name, tensor.reason),
        );
    }
    for (name, bytes) in stored_types {
        row(&format!("used of the source, as {name}"), size(*bytes));
    }
    for (name, bytes) in held_types {
        row(&format!("held by the vindex, as {name}"), size(*bytes));
    }
    row("weights", (*weights).to_owned());
    row("written", format!("{} in all files", size(*bytes_written)));
    row("size", size(*bytes));
    if let Some(n) = features {
        row("features filled", n.to_string());
    }
    for note in notes {
        rows.note(note.clone());
    }
    rows
}
