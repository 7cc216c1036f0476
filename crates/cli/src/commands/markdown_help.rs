//! `larql markdown-help`: the reference page of the command line.

use std::fmt::Write as _;

use clap_markdown::{MarkdownOptions, help_markdown_custom};

use crate::Outcome;
use crate::args::Cli;
use crate::context::Context;
use crate::env::VARIABLES;
use crate::error::CliError;

/// Prints `docs/cli.md`.
///
/// # Errors
/// If stdout refuses it.
pub(crate) fn markdown_help(context: &Context) -> Result<Outcome, CliError> {
    context.printer.write(&page())?;
    Ok(Outcome::Done)
}

fn page() -> String {
    let options = MarkdownOptions::new()
        .title("The command line".to_owned())
        .show_footer(false);
    let mut page = help_markdown_custom::<Cli>(&options).trim_end().to_owned();
    page.push_str("\n\n## Environment variables\n\n| variable | meaning |\n|---|---|\n");
    for (name, meaning) in VARIABLES {
        let _ = writeln!(page, "| `{name}` | {meaning} |");
    }
    page
}
