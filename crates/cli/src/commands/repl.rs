//! `larql repl`: type statements, see answers.
//!
//! At a terminal there are editing, history and completion, and errors leave the prompt standing. From a pipe the same
//! texts are read line by line; the exit code then tells whether one of them failed.

use std::io::{self, BufRead, IsTerminal};
use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use larql_db::Session;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{ColorMode, Config, Editor};

use crate::Outcome;
use crate::args::{Format, ReplArgs};
use crate::context::Context;
use crate::editor::{LqlHelper, is_whole};
use crate::error::CliError;
use crate::help;
use crate::query::{self, JsonLayout};

/// Statements that the history file keeps.
const HISTORY_MAX: usize = 1000;
/// The prompt.
const PROMPT: &str = "lql> ";

/// State of the prompt.
struct Repl {
    session: Session,
    timing: bool,
}

/// What a typed text leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Leave,
}

/// Reads statements until `\q` or the end of the input.
///
/// # Errors
/// If the model cannot be opened or the terminal fails; statements that fail are shown and do not end it.
pub(crate) fn repl(context: &mut Context, args: &ReplArgs) -> Result<Outcome, CliError> {
    let mut repl = Repl {
        session: query::session(context, args.arithmetic.profile(context)?),
        timing: false,
    };
    if let Some(model) = &args.model {
        query::open(context, &mut repl.session, model)?;
    }
    if io::stdin().is_terminal() {
        interactive(context, &mut repl)
    } else {
        piped(context, &mut repl)
    }
}

fn interactive(context: &mut Context, repl: &mut Repl) -> Result<Outcome, CliError> {
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)
        .and_then(|builder| builder.history_ignore_dups(true))
        .map_err(|error| terminal(&error))?
        .auto_add_history(true)
        .color_mode(ColorMode::Disabled)
        .build();
    let mut editor = Editor::<LqlHelper, DefaultHistory>::with_config(config)
        .map_err(|error| terminal(&error))?;
    let history = context.env.history.clone();
    if let Some(path) = &history {
        // The first session has none.
        let _ = editor.load_history(path);
    }
    context
        .printer
        .status("LQL statements end with `;`; \\help lists them, \\q leaves")?;
    loop {
        editor.set_helper(Some(helper(repl)));
        match editor.readline(PROMPT) {
            Ok(text) => match enter(context, repl, &text) {
                Ok(Next::Continue) => {}
                Ok(Next::Leave) => break,
                Err(error) if error.is_broken_pipe => return Err(error),
                Err(error) => context.printer.error(&error),
            },
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(&error)),
        }
    }
    if let Some(path) = &history
        && let Err(error) = save_history(&mut editor, path)
    {
        context.printer.note(&format!(
            "{}: the history cannot be kept: {error}",
            path.display()
        ))?;
    }
    Ok(Outcome::Done)
}

fn save_history(
    editor: &mut Editor<LqlHelper, DefaultHistory>,
    path: &Path,
) -> Result<(), ReadlineError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    editor.save_history(path)
}

fn helper(repl: &Repl) -> LqlHelper {
    LqlHelper {
        relations: query::relation_names(&repl.session),
        columns: query::column_names(),
    }
}

fn piped(context: &mut Context, repl: &mut Repl) -> Result<Outcome, CliError> {
    let mut outcome = Outcome::Done;
    let mut text = String::new();
    let mut lines = io::stdin().lock().lines();
    loop {
        let line = lines
            .next()
            .transpose()
            .map_err(|source| CliError::input("stdin", &source))?;
        let at_end = line.is_none();
        text.push_str(&line.unwrap_or_default());
        text.push('\n');
        if !at_end && !is_whole(&text) {
            continue;
        }
        match enter(context, repl, &text) {
            Ok(Next::Continue) => {}
            Ok(Next::Leave) => return Ok(outcome),
            Err(error) if error.is_broken_pipe || error.is_interrupted() => return Err(error),
            Err(error) => {
                context.printer.error(&error);
                outcome = Outcome::Negative;
            }
        }
        text.clear();
        if at_end {
            return Ok(outcome);
        }
    }
}

/// Executes a text: a command of the prompt, or statements.
fn enter(context: &mut Context, repl: &mut Repl, text: &str) -> Result<Next, CliError> {
    let trimmed = text.trim_start_matches('\u{feff}').trim();
    let (word, rest) = trimmed
        .split_once(char::is_whitespace)
        .unwrap_or((trimmed, ""));
    match word {
        "" => Ok(Next::Continue),
        "\\q" | "\\quit" | "exit" | "quit" | "exit;" | "quit;" => Ok(Next::Leave),
        "\\help" | "help" | "help;" => {
            let text = if rest.trim().is_empty() {
                Some(help::overview())
            } else {
                help::on(rest)
            };
            let text = text.ok_or_else(|| {
                CliError::request(
                    "usage",
                    format!("no statement begins with `{}`", rest.trim()),
                )
                .with_hint(Some("\\help lists the statements".to_owned()))
            })?;
            context.printer.status(&text)?;
            Ok(Next::Continue)
        }
        "\\timing" => {
            repl.timing = !repl.timing;
            context.printer.status(if repl.timing {
                "timing is on"
            } else {
                "timing is off"
            })?;
            Ok(Next::Continue)
        }
        "\\format" => {
            let format = Format::from_str(rest.trim(), true).map_err(|_| {
                CliError::request("usage", format!("unknown format `{}`", rest.trim()))
                    .with_hint(Some("the formats are table, json and csv".to_owned()))
            })?;
            context.printer.set_format(format);
            Ok(Next::Continue)
        }
        command if command.starts_with('\\') => {
            Err(
                CliError::request("usage", format!("unknown command `{command}`")).with_hint(Some(
                    "the commands are \\help, \\timing, \\format and \\q".to_owned(),
                )),
            )
        }
        _ => {
            let begin = Instant::now();
            context.printer.forget_notes();
            query::run(context, &mut repl.session, text, JsonLayout::Lines)?;
            if repl.timing {
                context
                    .printer
                    .status(&format!("time: {:.3} s", begin.elapsed().as_secs_f64()))?;
            }
            Ok(Next::Continue)
        }
    }
}

fn terminal(error: &ReadlineError) -> CliError {
    CliError::failure("terminal", format!("the terminal failed: {error}"))
}
