//! `larql score`: how well a model predicts a text, and how far another run's predictions are from its own.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use larql_db::rows::counted;
use larql_db::score::{
    Arm, Comparison, KL_DIRECTION, ROWS_PER_PASS, ScoreOptions, ScoreReport, ScoreText,
    score as measure,
};
use larql_db::{Cell, Database, DbError, Rows};

use crate::Outcome;
use crate::args::{ProfileArg, ScoreArgs};
use crate::commands::pack::tiles_note;
use crate::context::{Context, STDIN, engine_profile, read_stdin};
use crate::error::CliError;

/// What a run is compared with.
#[derive(Debug, PartialEq, Eq)]
enum Against {
    /// The same weights with this arithmetic.
    Profile(ProfileArg),
    /// Another model with the same arithmetic.
    Model(PathBuf),
}

impl Against {
    /// The name of a profile is one; a path of that name is written `./exact`.
    fn parse(text: &str) -> Self {
        match ProfileArg::from_str(text, false) {
            Ok(profile) => Self::Profile(profile),
            Err(_) => Self::Model(PathBuf::from(text)),
        }
    }
}

/// Scores a text, beside another profile or model if one is named.
///
/// # Errors
/// If the text cannot be read or encoded, the two sides cannot be compared, or the run fails.
pub(crate) fn score(context: &Context, args: &ScoreArgs) -> Result<Outcome, CliError> {
    let profile = args.arithmetic.profile(context)?;
    let text = text(args)?;
    let db = context.open(&args.model)?;
    context.tokenizer(&db)?;
    let (other, reference_profile) = match args.against.as_deref().map(Against::parse) {
        None => (None, None),
        Some(Against::Profile(profile)) => (None, Some(profile)),
        Some(Against::Model(path)) => {
            let db = context.open(&path);
            let db = db.map_err(|error| error.with_hint(misspelled(&path)))?;
            (Some(db), Some(profile))
        }
    };
    let reference: Option<&Database> = reference_profile.map(|_| other.as_ref().unwrap_or(&db));
    let mut runtime = context.runtime(profile);
    let mut reference_runtime = reference_profile.map(|profile| context.runtime(profile));
    let options = ScoreOptions {
        window: args.window,
        windows: args.windows.and_then(NonZeroUsize::new),
        rows_per_pass: ROWS_PER_PASS,
    };
    let run = Arm {
        db: &db,
        runtime: &mut runtime,
    };
    let reference = reference
        .zip(reference_runtime.as_mut())
        .map(|(db, runtime)| Arm { db, runtime });
    let bar = context.printer.bar();
    let work = context.interrupts.work();
    let report = measure(run, reference, &text, &options, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
    })?;
    drop(work);
    bar.clear();
    if context.printer.is_table() {
        context.printer.table(&rows(&report))?;
    } else {
        context.printer.json(&report)?;
    }
    Ok(Outcome::Done)
}

/// What was meant by a path that is not there and is the name of a profile in another case.
fn misspelled(path: &Path) -> Option<String> {
    if path.exists() {
        return None;
    }
    let meant = ProfileArg::from_str(path.to_str()?, true).ok()?;
    let name = engine_profile(meant).name();
    Some(format!("the profile is written `--against {name}`"))
}

fn text(args: &ScoreArgs) -> Result<ScoreText, CliError> {
    let range = args.bytes.clone();
    let text = if args.file == Path::new(STDIN) {
        ScoreText::from_bytes("stdin", read_stdin()?.as_bytes(), range)
    } else {
        ScoreText::open(&args.file, range)
    };
    Ok(text.map_err(DbError::from)?)
}

fn rows(report: &ScoreReport) -> Rows {
    let ScoreReport {
        file_sha256,
        file_bytes: _,
        byte_range: [start, end],
        bytes,
        characters,
        differs_at_byte,
        tokens,
        context_tokens,
        windows,
        window,
        prefix_ids,
        ids_sha256: _,
        model: _,
        profile,
        tiles,
        bits,
        bits_per_token,
        bits_per_byte,
        bits_per_char,
        against,
    } = report;
    let mut rows = Rows::new(&["measure", "value"]);
    let mut row = |measure: &str, value: Cell| rows.push(vec![measure.into(), value]);
    row("bits_per_token", (*bits_per_token).into());
    row("bits_per_byte", (*bits_per_byte).into());
    row("bits_per_char", (*bits_per_char).into());
    row("tokens", (*tokens).into());
    row("bytes", whole(*bytes));
    row("characters", whole(*characters));
    if let Some(against) = against {
        compared(against, &mut row);
    }
    rows.note(format!(
        "profile {profile}{}, bytes {start}..{end} of the text with sha256 {file_sha256}",
        tiles_note(*tiles)
    ));
    let prefix = counted(prefix_ids.len(), "token");
    rows.note(format!(
        "{} of at most {}, {prefix} before each, {bits:.2} bits in all",
        counted(*windows, "window"),
        counted(*window, "token"),
    ));
    if *context_tokens > 0 {
        rows.note(format!(
            "the model has no beginning of sequence: {} at the start of a window served as context only",
            counted(*context_tokens, "token")
        ));
    }
    if let Some(at) = differs_at_byte {
        rows.note(format!(
            "the tokens spell another text from byte {at} on, so there is nothing per byte or per character"
        ));
    }
    if let Some(Comparison {
        model,
        profile,
        tiles,
        ..
    }) = against
    {
        rows.note(format!(
            "kl is {KL_DIRECTION} in nats; against is {model} with profile {profile}{}",
            tiles_note(*tiles)
        ));
    }
    rows
}

fn compared(against: &Comparison, row: &mut impl FnMut(&str, Cell)) {
    let Comparison {
        model: _,
        profile: _,
        tiles: _,
        kl_direction: _,
        bits_per_token,
        kl_mean,
        kl_p50,
        kl_p99,
        kl_max,
        top1_agreement,
        flips,
    } = against;
    row("against_bits_per_token", (*bits_per_token).into());
    row("kl_mean", (*kl_mean).into());
    row("kl_p50", (*kl_p50).into());
    row("kl_p99", (*kl_p99).into());
    row("kl_max", (*kl_max).into());
    row("top1_agreement", (*top1_agreement).into());
    row("flips", (*flips).into());
}

/// A count of bytes or characters, which a file limits far below what a cell holds.
fn whole(n: Option<u64>) -> Cell {
    n.and_then(|n| usize::try_from(n).ok()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_one_by_its_name_only() {
        assert_eq!(Against::parse("exact"), Against::Profile(ProfileArg::Exact));
        assert_eq!(Against::parse("fast"), Against::Profile(ProfileArg::Fast));
        for path in ["./exact", "Fast", "exact.gguf", "hf://org/fast"] {
            assert_eq!(Against::parse(path), Against::Model(path.into()));
        }
    }
}
