//! `larql run`: continue a prompt, text as it comes.

use std::time::{Duration, Instant};

use larql_db::Database;
use larql_db::generate::{FinishReason, GenerateOptions, generate};
use larql_db::rows::counted;
use larql_db::speculate::{DraftLength, SpeculateError, SpeculationReport, Speculator};
use larql_engine::{Sampler, SamplingOptions, SequenceState, TilePlace};
use serde::Serialize;

use crate::Outcome;
use crate::args::{GuessArg, RunArgs, SamplingArgs, SpeculationArgs};
use crate::commands::pack::tiles_note;
use crate::context::{Context, encode_prompt, unescape};
use crate::error::CliError;
use crate::printer::Printer;

#[derive(Debug, Serialize)]
struct Wire {
    text: String,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    profile: &'static str,
    /// Where the weights are.
    tiles: TilePlace,
    prompt_tokens: usize,
    tokens_per_s: Option<f64>,
    speculation: Option<SpeculationReport>,
}

/// Continues a prompt; in table form the text is streamed.
///
/// # Errors
/// If an option is out of range, or the prompt cannot be encoded or run.
pub(crate) fn run(context: &Context, args: &RunArgs) -> Result<Outcome, CliError> {
    let sampling = sampling(&args.sampling)?;
    let stop = args.sampling.stop.iter();
    let stop: Result<Vec<String>, CliError> = stop
        .map(|text| {
            if args.prompt.escape {
                unescape(text)
            } else {
                Ok(text.clone())
            }
        })
        .collect();
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampling,
        stop: checked_stops(stop?)?,
    };
    let profile = args.arithmetic.profile(context)?;
    let db = context.open(&args.model)?;
    let tokenizer = context.tokenizer(&db)?;
    let prompt = encode_prompt(tokenizer, &args.prompt)?;
    let tiles = db.model()?.tile_place();
    let draft = draft_model(context, &args.speculation)?;
    let mut speculator = speculator(&db, draft.as_ref(), &args.speculation)?;
    let mut runtime = context.runtime(profile);
    let mut state = SequenceState::with_length(db.spec(), prompt.len() + options.max_tokens);
    let mut streamed = Streamed::new(&context.printer);
    let work = context.interrupts.work();
    let flag = context.interrupts.flag();
    let made = generate(
        &db,
        &mut runtime,
        &mut state,
        &prompt,
        &options,
        &mut speculator,
        &mut |text| {
            if !streamed.push(text) {
                flag.raise();
            }
        },
    );
    drop(work);
    let speed = streamed.finish()?;
    let made = made?;
    let profile = runtime.profile().name();
    let tokens_per_s = speed.rate(made.tokens.len());
    if context.printer.is_table() {
        let rate = tokens_per_s.map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
        let (n, reason) = (made.tokens.len(), reason(made.finish_reason));
        context.printer.note(&format!(
            "profile {profile}{}, {}, {}{rate}, ended by {reason}",
            tiles_note(tiles),
            counted(prompt.len(), "prompt token"),
            counted(n, "token")
        ))?;
        if let Some(report) = &made.speculation {
            context.printer.note(&speculation_note(report))?;
        }
    } else {
        context.printer.json(&Wire {
            text: made.text,
            tokens: made.tokens,
            finish_reason: made.finish_reason,
            profile,
            tiles,
            prompt_tokens: prompt.len(),
            tokens_per_s,
            speculation: made.speculation,
        })?;
    }
    Ok(Outcome::Done)
}

/// The options of the sampler.
///
/// # Errors
/// Names one that is out of range, before a model is loaded.
pub(crate) fn sampling(args: &SamplingArgs) -> Result<SamplingOptions, CliError> {
    let options = SamplingOptions {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
    };
    Sampler::new(options)?;
    Ok(options)
}

/// The model that drafts, if one is named.
///
/// # Errors
/// If it cannot be fetched or used.
pub(crate) fn draft_model(
    context: &Context,
    args: &SpeculationArgs,
) -> Result<Option<Database>, CliError> {
    let draft = args.draft.as_deref();
    draft.map(|path| context.open(path)).transpose()
}

/// What makes drafts for `target`.
///
/// # Errors
/// If the model that drafts has another vocabulary or cannot be run.
pub(crate) fn speculator<'a>(
    target: &Database,
    draft: Option<&'a Database>,
    args: &SpeculationArgs,
) -> Result<Speculator<'a>, CliError> {
    match (draft, args.speculate) {
        (Some(draft), _) => {
            Speculator::draft_model(target, draft, DraftLength::Adaptive).map_err(speculate_error)
        }
        (None, Some(GuessArg::Lookup)) => Ok(Speculator::lookup(DraftLength::Adaptive)),
        (None, None) => Ok(Speculator::none()),
    }
}

fn speculate_error(error: SpeculateError) -> CliError {
    let kind = match error {
        SpeculateError::Model(error) => return (*error).into(),
        SpeculateError::VocabularySize { .. } => "vocabulary_size",
        SpeculateError::UnequalTokenizers { .. } => "unequal_tokenizers",
        _ => "draft",
    };
    CliError::request(kind, error.to_string()).with_hint(Some(
        "name a smaller model of the same family, or use `--speculate lookup`, which needs none"
            .to_owned(),
    ))
}

/// What became of drafts, in words.
pub(crate) fn speculation_note(report: &SpeculationReport) -> String {
    let SpeculationReport {
        source,
        drafted,
        accepted,
        acceptance,
        passes,
        turned_off,
        times_turned_off,
    } = report;
    let share = acceptance.map_or_else(String::new, |share| format!(" ({:.0} %)", share * 100.0));
    let off = match (turned_off, times_turned_off) {
        (true, _) => ", turned off because it did not pay".to_owned(),
        (false, 0) => String::new(),
        (false, n) => format!(", turned off for a while ({n} times)"),
    };
    format!(
        "{source}: {accepted} of {drafted} drafted tokens accepted{share}, {passes} passes{off}"
    )
}

/// Refuses stop texts that would end everything before it begins.
///
/// # Errors
/// If one is empty.
pub(crate) fn checked_stops(stops: Vec<String>) -> Result<Vec<String>, CliError> {
    if stops.iter().any(String::is_empty) {
        return Err(CliError::request("usage", "a stop text is empty"));
    }
    Ok(stops)
}

/// Why a text ended, in words.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "the model",
        FinishReason::StopText => "a stop text",
        FinishReason::Length => "the token limit",
        FinishReason::Context => "the end of the context",
    }
}

/// Text on its way to stdout, and when it came.
#[derive(Debug)]
pub(crate) struct Streamed<'a> {
    printer: &'a Printer,
    first: Option<Instant>,
    failed: Option<CliError>,
    /// Everything so far.
    pub(crate) text: String,
}

/// How long the text after its first piece took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    elapsed: Option<Duration>,
}

impl<'a> Streamed<'a> {
    /// Nothing yet.
    pub(crate) fn new(printer: &'a Printer) -> Self {
        Self {
            printer,
            first: None,
            failed: None,
            text: String::new(),
        }
    }

    /// Prints more text in table form; false once nobody reads it.
    pub(crate) fn push(&mut self, text: &str) -> bool {
        self.first.get_or_insert_with(Instant::now);
        self.text.push_str(text);
        if self.printer.is_table() && self.failed.is_none() {
            self.failed = self.printer.write(text).err();
        }
        self.failed.is_none()
    }

    /// Ends the line, if there is one.
    ///
    /// # Errors
    /// What stdout refused on the way.
    pub(crate) fn finish(self) -> Result<Speed, CliError> {
        let speed = Speed {
            elapsed: self.first.map(|first| first.elapsed()),
        };
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.printer.is_table() && !self.text.is_empty() {
            self.printer.write("\n")?;
        }
        Ok(speed)
    }
}

impl Speed {
    /// Tokens per second after the first text; absent if too few came to tell.
    pub(crate) fn rate(self, n_tokens: usize) -> Option<f64> {
        let elapsed = self.elapsed?.as_secs_f64();
        (n_tokens > 1 && elapsed > 0.0).then(|| (n_tokens - 1) as f64 / elapsed)
    }
}
