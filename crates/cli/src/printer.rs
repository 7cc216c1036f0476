//! Where output goes: data to stdout; progress, notes, hints and errors to stderr.
//!
//! Commands never print on their own. What they hand over here decides its stream, and the user's options its form.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larql_db::Rows;
use serde::Serialize;

use crate::args::Format;
use crate::error::CliError;
use crate::table;

/// How often a bar is drawn at most.
const BAR_HZ: u8 = 10;
/// How often the spinner of work without a known length turns.
const SPINNER_PERIOD: Duration = Duration::from_millis(120);

/// Decides stream and form of everything that is printed.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    quiet: bool,
    /// Notes that were printed: one that holds for several results is told once.
    told: RefCell<HashSet<String>>,
}

impl Printer {
    /// A printer for the user's options.
    pub(crate) fn new(format: Format, quiet: bool) -> Self {
        Self {
            format,
            quiet,
            told: RefCell::default(),
        }
    }

    /// The form of the data.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Another form from now on.
    pub(crate) fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// Whether data is for reading.
    pub(crate) fn is_table(&self) -> bool {
        match self.format {
            Format::Table => true,
            Format::Json | Format::Csv => false,
        }
    }

    /// A line of data.
    ///
    /// # Errors
    /// If stdout refuses it.
    pub(crate) fn line(&self, text: &str) -> Result<(), CliError> {
        self.write(&format!("{text}\n"))
    }

    /// Data as it is, visible at once.
    ///
    /// # Errors
    /// If stdout refuses it.
    pub(crate) fn write(&self, text: &str) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|source| CliError::output(&source))
    }

    /// One JSON value on stdout.
    ///
    /// # Errors
    /// If stdout refuses it.
    pub(crate) fn json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value).map_err(|source| {
            CliError::failure(
                "output",
                format!("the result cannot be written as JSON: {source}"),
            )
        })?;
        self.line(&text)
    }

    /// One JSON value on one line of stdout.
    ///
    /// # Errors
    /// If stdout refuses it.
    pub(crate) fn json_line<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|source| {
            CliError::failure(
                "output",
                format!("the result cannot be written as JSON: {source}"),
            )
        })?;
        self.line(&text)
    }

    /// Rows as a table on stdout, their notes on stderr.
    ///
    /// # Errors
    /// If a stream refuses them.
    pub(crate) fn table(&self, rows: &Rows) -> Result<(), CliError> {
        if !rows.columns.is_empty() {
            self.line(&table::render(rows))?;
        }
        self.notes(rows)
    }

    /// Rows as CSV on stdout, their notes on stderr.
    ///
    /// # Errors
    /// If a stream refuses them.
    pub(crate) fn csv(&self, rows: &Rows) -> Result<(), CliError> {
        let mut out = Vec::new();
        table::write_csv(rows, &mut out).map_err(|source| CliError::output(&source))?;
        let text = String::from_utf8(out).expect("csv of strings is text");
        self.write(&text)?;
        self.notes(rows)
    }

    /// What a table comes to, as its last lines on stdout.
    ///
    /// # Errors
    /// If stdout refuses it.
    pub(crate) fn verdict(&self, text: &str) -> Result<(), CliError> {
        self.line(&table::printable(text))
    }

    fn notes(&self, rows: &Rows) -> Result<(), CliError> {
        rows.notes.iter().try_for_each(|note| self.note(note))
    }

    /// Something to know about the result, on stderr unless quiet or told before.
    ///
    /// # Errors
    /// If stderr refuses it.
    pub(crate) fn note(&self, text: &str) -> Result<(), CliError> {
        if !self.told.borrow_mut().insert(text.to_owned()) {
            return Ok(());
        }
        self.remark(text)
    }

    /// The same about one of several results, however often it is said.
    ///
    /// # Errors
    /// If stderr refuses it.
    pub(crate) fn remark(&self, text: &str) -> Result<(), CliError> {
        if self.quiet {
            Ok(())
        } else {
            to_stderr(&format!("note: {}", table::printable(text)))
        }
    }

    /// What would work, on stderr unless quiet.
    ///
    /// # Errors
    /// If stderr refuses it.
    pub(crate) fn hint(&self, text: &str) -> Result<(), CliError> {
        self.status(&format!("hint: {}", table::printable(text)))
    }

    /// Lets notes be told again: what comes answers another request.
    pub(crate) fn forget_notes(&self) {
        self.told.borrow_mut().clear();
    }

    /// What is going on, on stderr unless quiet.
    ///
    /// # Errors
    /// If stderr refuses it.
    pub(crate) fn status(&self, text: &str) -> Result<(), CliError> {
        if self.quiet { Ok(()) } else { to_stderr(text) }
    }

    /// An error, on stderr whatever the options.
    pub(crate) fn error(&self, error: &CliError) {
        let text = match self.format {
            Format::Json => error.to_json(),
            Format::Table | Format::Csv if self.quiet => format!("error: {}", error.message),
            Format::Table | Format::Csv => error.to_string(),
        };
        // There is no stream left to tell about a failure of this one.
        let _ = to_stderr(&text);
    }

    /// A bar for long work; hidden if stderr is no terminal or the user wants quiet.
    pub(crate) fn bar(&self) -> Bar {
        let target = if self.quiet || !io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(BAR_HZ)
        };
        Bar {
            bar: ProgressBar::with_draw_target(None, target),
            stage: RefCell::new(String::new()),
        }
    }
}

/// Progress of one piece of work.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    stage: RefCell<String>,
}

impl Bar {
    /// Shows how far a stage is.
    pub(crate) fn show(&self, stage: &str, done: u64, total: u64) {
        if *self.stage.borrow() != stage {
            stage.clone_into(&mut self.stage.borrow_mut());
            let style = if total > 0 {
                "{msg} [{bar:30}] {percent}% {eta}"
            } else {
                "{spinner} {msg}"
            };
            self.bar.set_style(
                ProgressStyle::with_template(style)
                    .expect("the template is a constant")
                    .progress_chars("=> "),
            );
            self.bar.set_message(stage.to_owned());
            self.bar.reset_eta();
            if total == 0 {
                self.bar.enable_steady_tick(SPINNER_PERIOD);
            }
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Goes on unless Ctrl-C was pressed.
pub(crate) fn flow(interrupted: bool) -> ControlFlow<()> {
    if interrupted {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn to_stderr(text: &str) -> Result<(), CliError> {
    let mut err = io::stderr().lock();
    err.write_all(format!("{text}\n").as_bytes())
        .map_err(|source| CliError::output(&source))
}
