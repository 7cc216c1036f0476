//! Running LQL text: parse all of it, execute one statement after another, print each answer in its form.
//!
//! Used by `lql`, `repl` and `demo`, so that a statement looks the same everywhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larql_db::plan::schema::{EDGES, FEATURES_NEAREST};
use larql_db::{Rows, Session, SessionOptions};
use larql_lql::Statement;
use serde::Serialize;

use crate::args::{Format, ProfileArg};
use crate::context::{Context, engine_profile};
use crate::error::CliError;
use crate::model_ref;

/// One statement's answer for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    statement: String,
    #[serde(flatten)]
    rows: Rows,
}

/// How several answers are written as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonLayout {
    /// One array.
    Document,
    /// One object per line and statement, for a session that goes on.
    Lines,
}

/// A session for the user's options; nothing is open yet.
pub(crate) fn session(context: &Context, profile: ProfileArg) -> Session {
    Session::new(SessionOptions {
        n_threads: context.threads,
        profile: engine_profile(profile),
        interrupt: context.interrupts.flag(),
        models_dir: Some(
            context
                .env
                .models_dir
                .clone()
                .unwrap_or_else(|| PathBuf::from(".")),
        ),
    })
}

/// Opens a model in a session, fetched first if it is one of the hub, and tells what there is to know about its files.
///
/// # Errors
/// If it cannot be used.
pub(crate) fn open(context: &Context, session: &mut Session, model: &Path) -> Result<(), CliError> {
    session.open(&model_ref::resolve(context, model)?)?;
    if let Some(db) = session.database() {
        for note in db.notes() {
            context.printer.note(note)?;
        }
    }
    Ok(())
}

/// Executes every statement of a text and prints the answers; those before an error are printed, too.
///
/// # Errors
/// The first statement that cannot be parsed or executed, shown with its place.
pub(crate) fn run(
    context: &Context,
    session: &mut Session,
    source: &str,
    layout: JsonLayout,
) -> Result<(), CliError> {
    let statements = larql_lql::parse(source).map_err(|error| CliError::parse(&error, source))?;
    let mut answers = Vec::new();
    let mut outcome = Ok(());
    for (idx, statement) in statements.iter().enumerate() {
        match execute(context, session, statement, source) {
            Err(error) => {
                outcome = Err(error);
                break;
            }
            Ok((rows, _)) => match context.printer.format() {
                Format::Json => answers.push(answer(statement, source, rows)),
                Format::Table | Format::Csv => {
                    if idx > 0 {
                        context.printer.line("")?;
                    }
                    print(context, &rows)?;
                }
            },
        }
    }
    match context.printer.format() {
        Format::Json => match layout {
            JsonLayout::Document => context.printer.json(&answers)?,
            JsonLayout::Lines => answers
                .iter()
                .try_for_each(|one| context.printer.json_line(one))?,
        },
        Format::Table | Format::Csv => {}
    }
    outcome
}

/// Prints rows in the form of reading or of tables for programs.
///
/// # Errors
/// If a stream refuses them.
pub(crate) fn print(context: &Context, rows: &Rows) -> Result<(), CliError> {
    match context.printer.format() {
        Format::Csv => context.printer.csv(rows),
        Format::Table | Format::Json => context.printer.table(rows),
    }
}

/// One statement's answer for programs.
pub(crate) fn answer(statement: &Statement, source: &str, rows: Rows) -> Answer {
    let span = statement.span();
    Answer {
        statement: source[span.start..span.end].to_owned(),
        rows,
    }
}

/// Executes one statement under a progress bar; Ctrl-C ends it.
///
/// # Errors
/// Why it cannot be executed, shown with its place.
pub(crate) fn execute(
    context: &Context,
    session: &mut Session,
    statement: &Statement,
    source: &str,
) -> Result<(Rows, Duration), CliError> {
    let begin = Instant::now();
    let fetched = fetched(context, statement)?;
    let statement = fetched.as_ref().unwrap_or(statement);
    let bar = context.printer.bar();
    let work = context.interrupts.work();
    let result = session.execute(statement, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total)
    });
    drop(work);
    bar.clear();
    let rows = result.map_err(|error| CliError::query(error, source))?;
    Ok((rows, begin.elapsed()))
}

/// `USE` of a model of the hub, as `USE` of the path that it was fetched to.
fn fetched(context: &Context, statement: &Statement) -> Result<Option<Statement>, CliError> {
    let Statement::Use(node) = statement else {
        return Ok(None);
    };
    let Some(path) = model_ref::fetch(context, Path::new(&node.path.value))? else {
        return Ok(None);
    };
    let mut node = node.clone();
    node.path.value = path.display().to_string();
    Ok(Some(Statement::Use(node)))
}

/// Names of the relations that can be asked.
pub(crate) fn relation_names(session: &Session) -> Vec<String> {
    session.relations().names().map(str::to_owned).collect()
}

/// Names of the columns that `SELECT` can read.
pub(crate) fn column_names() -> Vec<String> {
    let mut names: Vec<&str> = [&EDGES, &FEATURES_NEAREST]
        .iter()
        .flat_map(|table| table.names())
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(str::to_owned).collect()
}
