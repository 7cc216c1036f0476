//! What every command works with, resolved once: printer, threads, Ctrl-C, environment.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::Path;

use clap::ValueEnum;
use larql_db::Database;
use larql_engine::{Profile, Runtime};
use larql_kernels::Team;
use larql_models::tokenizer::{Bos, EncodeSpecial, Tokenizer};

use crate::args::{Format, GlobalArgs, ProfileArg, PromptArgs};
use crate::env::Environment;
use crate::error::CliError;
use crate::interrupt::Interrupts;
use crate::model_ref;
use crate::printer::Printer;

/// No machine that runs this has more; a slip of the keyboard must not start a million threads.
const THREADS_MAX: usize = 1024;
/// Largest text read from stdin; the tokenizer takes no more either.
const STDIN_BYTES_MAX: u64 = 64 << 20;
/// The argument that stands for stdin.
pub(crate) const STDIN: &str = "-";

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Context {
    /// Output.
    pub(crate) printer: Printer,
    /// The environment.
    pub(crate) env: Environment,
    /// Ctrl-C.
    pub(crate) interrupts: Interrupts,
    /// Threads that compute.
    pub(crate) threads: NonZeroUsize,
}

impl Context {
    /// Resolves the options that every command takes.
    ///
    /// # Errors
    /// If a number of threads makes no sense, or Ctrl-C cannot be taken over.
    pub(crate) fn new(global: &GlobalArgs, env: Environment) -> Result<Self, CliError> {
        Ok(Self {
            printer: Printer::new(global.format, global.quiet),
            threads: threads(global.threads, env.threads.as_deref())?,
            interrupts: Interrupts::install(Printer::new(global.format, global.quiet))?,
            env,
        })
    }

    /// Opens a model, fetched first if it is one of the hub, and tells what there is to know about its files.
    ///
    /// # Errors
    /// If it cannot be fetched or used.
    pub(crate) fn open(&self, model: &Path) -> Result<Database, CliError> {
        let db = Database::open(&model_ref::resolve(self, model)?)?;
        for note in db.notes() {
            self.printer.note(note)?;
        }
        Ok(db)
    }

    /// The tokenizer of a model, and what there is to know about it.
    ///
    /// # Errors
    /// If it has none, or one that cannot be built exactly.
    pub(crate) fn tokenizer<'a>(&self, db: &'a Database) -> Result<&'a Tokenizer, CliError> {
        let tokenizer = db.tokenizer()?;
        for warning in tokenizer.warnings() {
            self.printer.note(&warning.to_string())?;
        }
        Ok(tokenizer)
    }

    /// Threads that compute.
    pub(crate) fn n_threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Arithmetic of a run: the option, what the environment asks for, or the default of the command.
    ///
    /// The variable is looked at here and nowhere else, so it is no matter of commands that run nothing.
    ///
    /// # Errors
    /// If there is no option, and the variable names no arithmetic.
    pub(crate) fn profile(
        &self,
        option: Option<ProfileArg>,
        default: ProfileArg,
    ) -> Result<ProfileArg, CliError> {
        profile(option, self.env.arithmetic.as_deref(), default)
    }

    /// Threads and arithmetic for runs.
    pub(crate) fn runtime(&self, profile: ProfileArg) -> Runtime {
        Runtime::new(
            self.threads,
            engine_profile(profile),
            self.interrupts.flag(),
        )
    }

    /// The form of data of commands that have no CSV.
    ///
    /// # Errors
    /// If CSV was asked for.
    pub(crate) fn refuse_csv(&self) -> Result<(), CliError> {
        match self.printer.format() {
            Format::Table | Format::Json => Ok(()),
            Format::Csv => Err(CliError::request(
                "usage",
                "`--format csv` is for `lql` and `repl`",
            )
            .with_hint(Some("use `--format json`".to_owned()))),
        }
    }
}

/// The engine's name for an arithmetic.
pub(crate) fn engine_profile(profile: ProfileArg) -> Profile {
    match profile {
        ProfileArg::Exact => Profile::Exact,
        ProfileArg::Fast => Profile::Fast,
        ProfileArg::Asym16 => Profile::Asym16,
    }
}

fn profile(
    option: Option<ProfileArg>,
    variable: Option<&OsStr>,
    default: ProfileArg,
) -> Result<ProfileArg, CliError> {
    let got = match (option, variable) {
        (Some(profile), _) => return Ok(profile),
        (None, None) => return Ok(default),
        (None, Some(text)) => text.to_string_lossy(),
    };
    ProfileArg::from_str(got.trim(), false).map_err(|_| {
        CliError::request(
            "profile",
            format!("LARQL_CPU_ARITHMETIC is `{got}`, expected exact, fast or asym16"),
        )
    })
}

fn threads(option: Option<usize>, variable: Option<&OsStr>) -> Result<NonZeroUsize, CliError> {
    let n = match (option, variable) {
        (Some(n), _) => n,
        (None, None) => 0,
        (None, Some(text)) => text
            .to_str()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| {
                let got = text.to_string_lossy();
                CliError::request(
                    "threads",
                    format!("LARQL_THREADS is `{got}`, expected a whole number from 0"),
                )
            })?,
    };
    if n > THREADS_MAX {
        return Err(CliError::request(
            "threads",
            format!("{n} threads were asked for, the limit is {THREADS_MAX}"),
        ));
    }
    Ok(NonZeroUsize::new(n).unwrap_or_else(Team::default_threads))
}

/// The ids of a prompt as the user wants it read.
///
/// # Errors
/// If an escape is unknown, stdin cannot be read, or the vocabulary cannot represent the text.
pub(crate) fn encode_prompt(
    tokenizer: &Tokenizer,
    args: &PromptArgs,
) -> Result<Vec<u32>, CliError> {
    let text = text_or_stdin(&args.prompt)?;
    let text = if args.escape { unescape(&text)? } else { text };
    let special = if args.special {
        EncodeSpecial::Markers
    } else {
        EncodeSpecial::Plain
    };
    Ok(tokenizer.encode(&text, special, Bos::Model)?)
}

/// The argument itself, or all of stdin in its place.
///
/// # Errors
/// If stdin cannot be read, is no text or is too long.
pub(crate) fn text_or_stdin(argument: &str) -> Result<String, CliError> {
    if argument == STDIN {
        read_stdin()
    } else {
        Ok(argument.to_owned())
    }
}

/// All of stdin as text.
///
/// # Errors
/// If it cannot be read, is no text or is too long.
pub(crate) fn read_stdin() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(STDIN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| CliError::input("stdin", &source))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(CliError::request(
            "input",
            format!("stdin has more than {STDIN_BYTES_MAX} bytes"),
        ));
    }
    utf8("stdin", bytes)
}

/// Bytes as text.
///
/// # Errors
/// Names the first byte that is none.
pub(crate) fn utf8(name: &str, bytes: Vec<u8>) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        CliError::request("input", format!("{name}: not UTF-8 at byte {offset}"))
    })
}

/// The text with its escapes replaced.
///
/// # Errors
/// Names an escape that is not known.
pub(crate) fn unescape(text: &str) -> Result<String, CliError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(ch) = chars.next() {
        if ch != '\\' {
            out.push(ch);
            continue;
        }
        out.push(match chars.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('0') => '\0',
            Some(same @ ('\\' | '"' | '\'')) => same,
            other => {
                let escape = other.map_or_else(String::new, String::from);
                return Err(CliError::request("escape", format!("unknown escape `\\{escape}`")).with_hint(Some(
                    "the escapes are \\n \\t \\r \\0 \\\\ \\\" \\'; a backslash itself is written \\\\".to_owned(),
                )));
            }
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_replaced_or_refused() {
        assert_eq!(unescape(r#"a\n\t\\n\"\'\0"#).unwrap(), "a\n\t\\n\"'\0");
        assert_eq!(
            unescape(r"a\q").unwrap_err().message,
            "unknown escape `\\q`"
        );
        assert_eq!(unescape(r"a\").unwrap_err().message, "unknown escape `\\`");
    }

    #[test]
    fn threads_come_from_the_option_then_the_variable() {
        let n = |option, variable: Option<&str>| {
            threads(option, variable.map(OsStr::new))
                .map(NonZeroUsize::get)
                .map_err(|error| error.message)
        };
        assert_eq!(n(Some(3), Some("5")), Ok(3));
        assert_eq!(n(None, Some(" 5 ")), Ok(5));
        assert_eq!(n(Some(0), None), Ok(Team::default_threads().get()));
        assert_eq!(
            n(None, Some("many")),
            Err("LARQL_THREADS is `many`, expected a whole number from 0".to_owned())
        );
        assert_eq!(
            n(Some(1025), None),
            Err("1025 threads were asked for, the limit is 1024".to_owned())
        );
    }
}
