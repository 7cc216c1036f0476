//! The command `larql`: arguments in, one command, exit code out.
//!
//! `args` says what can be asked, `commands` has one file per verb, `printer` decides where output goes, and only `env`
//! looks at the environment. What the commands know about models they ask `larql-db`.
#![forbid(unsafe_code)]

mod args;
mod atlas;
mod commands;
mod context;
mod editor;
mod env;
mod error;
mod help;
mod interrupt;
mod model_ref;
mod notes;
mod numbers;
mod printer;
mod query;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, FromArgMatches, ValueEnum};

use crate::args::{Cli, Command, ExportFormat, Format};
use crate::context::Context;
use crate::env::Environment;
use crate::error::CliError;
use crate::printer::Printer;

/// How a command that did its work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As hoped.
    Done,
    /// The work is done and its result is a no: a divergence, a damaged file.
    Negative,
}

fn main() -> ExitCode {
    interrupt::outlive_file_size_limit();
    let env = Environment::read();
    let color = if env.no_color {
        ColorChoice::Never
    } else {
        ColorChoice::Auto
    };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let parsed = Cli::command().color(color).try_get_matches_from(&arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return usage(error, &arguments),
    };
    let printer = Printer::new(cli.global.format, cli.global.quiet);
    let result =
        Context::new(&cli.global, env).and_then(|mut context| dispatch(&cli.command, &mut context));
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        Err(error) if error.is_broken_pipe => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: &Command, context: &mut Context) -> Result<Outcome, CliError> {
    match command {
        Command::Lql(_) | Command::Repl(_) => {}
        Command::Demo(_)
        | Command::Extract(_)
        | Command::Export(_)
        | Command::Quantize(_)
        | Command::Pack(_)
        | Command::Show(_)
        | Command::Verify(_)
        | Command::Run(_)
        | Command::Chat(_)
        | Command::Tokenize(_)
        | Command::Logits(_)
        | Command::Parity(_)
        | Command::Bench(_)
        | Command::Score(_)
        | Command::MarkdownHelp => context.refuse_csv()?,
    }
    match command {
        Command::Demo(args) => commands::demo::demo(context, args),
        Command::Extract(args) => commands::extract::extract(context, args),
        Command::Export(args) => commands::export::export(context, args),
        Command::Quantize(args) => commands::export::quantize(context, args),
        Command::Pack(args) => commands::pack::pack(context, args),
        Command::Show(args) => commands::show::show(context, args),
        Command::Verify(args) => commands::verify::verify(context, args),
        Command::Run(args) => commands::run::run(context, args),
        Command::Chat(args) => commands::chat::chat(context, args),
        Command::Lql(args) => commands::lql::lql(context, args),
        Command::Repl(args) => commands::repl::repl(context, args),
        Command::Tokenize(args) => commands::tokenize::tokenize(context, args),
        Command::Logits(args) => commands::logits::logits(context, args),
        Command::Parity(args) => commands::parity::parity(context, args),
        Command::Bench(args) => commands::bench::bench(context, args),
        Command::Score(args) => commands::score::score(context, args),
        Command::MarkdownHelp => commands::markdown_help::markdown_help(context),
    }
}

/// Help and version are answers; anything else is a request that cannot be met, in the form that was asked for.
fn usage(mut error: clap::Error, arguments: &[OsString]) -> ExitCode {
    let tip = model_tip(&error).or_else(|| export_tip(&error));
    if let Some(tip) = &tip {
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // The reader may have gone, which is no error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ if asks_for_json(arguments) => {
            let text = error.to_string();
            let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
            let usage = rest
                .lines()
                .find(|line| line.starts_with("Usage: "))
                .map(str::to_owned);
            let hint = tip.or(usage);
            let message = message.trim_end().trim_start_matches("error: ");
            Printer::new(Format::Json, false)
                .error(&CliError::request("usage", message).with_hint(hint));
            ExitCode::from(1)
        }
        _ => {
            let _ = error.print();
            ExitCode::from(1)
        }
    }
}

/// Where the kind of files that `export` writes is said, which is not `--format`.
fn export_tip(error: &clap::Error) -> Option<String> {
    let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) = (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::InvalidValue),
    ) else {
        return None;
    };
    let is_kind = ExportFormat::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value)
        .any(|kind| kind.matches(value, true));
    (option.starts_with("--format") && is_kind).then(|| {
        let value = value.to_lowercase();
        format!("`larql export MODEL --to {value} -o OUT` writes such files; `--format` is the form of what is printed")
    })
}

/// What to do in place of an option for the model, which other programs have and most commands here have not.
fn model_tip(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = given.split(['=', ' ']).next().unwrap_or(given);
    let is_model = ["--vindex", "--model", "-m", "--database"].contains(&option);
    (error.kind() == ErrorKind::UnknownArgument && is_model)
        .then(|| format!("the model is named without `{option}`, as the first argument"))
}

/// Whether arguments that could not be understood contain `--format json`.
fn asks_for_json(arguments: &[OsString]) -> bool {
    let before_literals = arguments.iter().take_while(|argument| *argument != "--");
    let list: Vec<&OsString> = before_literals.collect();
    list.iter().any(|argument| *argument == "--format=json")
        || list
            .windows(2)
            .any(|pair| pair[0] == "--format" && pair[1] == "json")
}
