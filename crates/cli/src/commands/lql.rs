//! `larql lql`: statements from the command line, a file or stdin.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use larql_lql::MAX_INPUT_BYTES;

use crate::Outcome;
use crate::args::LqlArgs;
use crate::context::{Context, STDIN, read_stdin, utf8};
use crate::error::CliError;
use crate::query::{self, JsonLayout};

/// Executes statements until the first error.
///
/// # Errors
/// If the text or the model cannot be read, or a statement cannot be executed.
pub(crate) fn lql(context: &Context, args: &LqlArgs) -> Result<Outcome, CliError> {
    let source = source(args)?;
    // A text that cannot be parsed must not wait for a model to be opened.
    larql_lql::parse(&source).map_err(|error| CliError::parse(&error, &source))?;
    let mut session = query::session(context, args.arithmetic.profile(context)?);
    if let Some(model) = &args.vindex {
        query::open(context, &mut session, model)?;
    }
    query::run(context, &mut session, &source, JsonLayout::Document)?;
    Ok(Outcome::Done)
}

fn source(args: &LqlArgs) -> Result<String, CliError> {
    match (&args.statements, &args.file) {
        (Some(text), _) if text != STDIN => Ok(text.clone()),
        (None, Some(path)) if path.as_os_str() != STDIN => read_file(path),
        (None, None) if io::stdin().is_terminal() => {
            Err(
                CliError::request("usage", "no statements were given").with_hint(Some(
                    "write them in quotes, name a file with -f, or use `larql repl`".to_owned(),
                )),
            )
        }
        (Some(_) | None, _) => read_stdin(),
    }
}

fn read_file(path: &Path) -> Result<String, CliError> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| {
            file.take(MAX_INPUT_BYTES as u64 + 1)
                .read_to_end(&mut bytes)
        })
        .map_err(|source| CliError::input(&name, &source))?;
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(CliError::request(
            "input",
            format!("{name}: more than {MAX_INPUT_BYTES} bytes"),
        ));
    }
    utf8(&name, bytes)
}
