//! `larql chat`: a conversation in the model's own template.
//!
//! Every turn renders the whole conversation; what the sequence remembers is kept as far as the new ids repeat it. Contents
//! that look like the template's markers stay text.

use std::io::{self, BufRead, IsTerminal};

use larql_db::Database;
use larql_db::generate::{FinishReason, GenerateOptions, Generated, generate};
use larql_db::rows::counted;
use larql_db::speculate::{SpeculationReport, Speculator};
use larql_engine::{Runtime, SequenceState, TilePlace};
use larql_models::chat::{ChatError, ChatTemplate, GenerationPrompt, Message};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde::Serialize;

use crate::Outcome;
use crate::args::ChatArgs;
use crate::commands::pack::tiles_note;
use crate::commands::run::{
    Streamed, checked_stops, draft_model, reason, sampling, speculation_note, speculator,
};
use crate::context::Context;
use crate::error::CliError;

/// The prompt.
const PROMPT: &str = "> ";
/// The role of the message that `--system` gives.
const SYSTEM: &str = "system";

#[derive(Debug, Serialize)]
struct Wire {
    text: String,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    profile: &'static str,
    /// Where the weights are.
    tiles: TilePlace,
    /// Tokens of the whole conversation as the template writes it.
    prompt_tokens: usize,
    tokens_per_s: Option<f64>,
    speculation: Option<SpeculationReport>,
}

/// A conversation and what the model remembers of it.
struct Conversation<'a> {
    db: &'a Database,
    tiles: TilePlace,
    template: ChatTemplate,
    runtime: Runtime,
    speculator: Speculator<'a>,
    options: GenerateOptions,
    messages: Vec<Message>,
    state: SequenceState,
    /// The ids that `state` has run.
    remembered: Vec<u32>,
}

/// What a line leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Leave,
}

/// Answers one line after another.
///
/// # Errors
/// If the model has no chat template, or an option is out of range.
pub(crate) fn chat(context: &Context, args: &ChatArgs) -> Result<Outcome, CliError> {
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampling: sampling(&args.sampling)?,
        stop: checked_stops(args.sampling.stop.clone())?,
    };
    let profile = args.arithmetic.profile(context)?;
    let db = context.open(&args.model)?;
    let template = ChatTemplate::of(context.tokenizer(&db)?)?;
    let tiles = db.model()?.tile_place();
    let draft = draft_model(context, &args.speculation)?;
    let mut conversation = Conversation {
        db: &db,
        tiles,
        template,
        runtime: context.runtime(profile),
        speculator: speculator(&db, draft.as_ref(), &args.speculation)?,
        options,
        messages: Vec::new(),
        state: SequenceState::new(db.spec()),
        remembered: Vec::new(),
    };
    let system = args.system.as_deref();
    conversation.clear(system);
    context.printer.note(&format!(
        "profile {}{}",
        conversation.runtime.profile().name(),
        tiles_note(tiles)
    ))?;
    if io::stdin().is_terminal() {
        interactive(context, &mut conversation, system)
    } else {
        piped(context, &mut conversation, system)
    }
}

fn interactive(
    context: &Context,
    conversation: &mut Conversation<'_>,
    system: Option<&str>,
) -> Result<Outcome, CliError> {
    let config = Config::builder().auto_add_history(true).build();
    let terminal = |error: &ReadlineError| {
        CliError::failure("terminal", format!("the terminal failed: {error}"))
    };
    let mut editor = DefaultEditor::with_config(config).map_err(|error| terminal(&error))?;
    context
        .printer
        .status("/clear begins anew, /exit leaves, Ctrl-C stops an answer")?;
    loop {
        match editor.readline(PROMPT) {
            Ok(line) => match enter(context, conversation, system, &line) {
                Ok(Next::Continue) => {}
                Ok(Next::Leave) => return Ok(Outcome::Done),
                Err(error) if error.is_broken_pipe => return Err(error),
                Err(error) if error.is_interrupted() => context.printer.remark("interrupted")?,
                Err(error) => context.printer.error(&error),
            },
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(Outcome::Done),
            Err(error) => return Err(terminal(&error)),
        }
    }
}

fn piped(
    context: &Context,
    conversation: &mut Conversation<'_>,
    system: Option<&str>,
) -> Result<Outcome, CliError> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|source| CliError::input("stdin", &source))?;
        if enter(context, conversation, system, &line)? == Next::Leave {
            break;
        }
    }
    Ok(Outcome::Done)
}

fn enter(
    context: &Context,
    conversation: &mut Conversation<'_>,
    system: Option<&str>,
    line: &str,
) -> Result<Next, CliError> {
    match line.trim() {
        "" => Ok(Next::Continue),
        "/exit" | "/quit" => Ok(Next::Leave),
        "/clear" => {
            conversation.clear(system);
            context.printer.status("the conversation is empty")?;
            Ok(Next::Continue)
        }
        command
            if command.starts_with('/')
                && !command.contains(char::is_whitespace)
                && command.len() > 1 =>
        {
            Err(
                CliError::request("usage", format!("unknown command `{command}`"))
                    .with_hint(Some("the commands are /clear and /exit".to_owned())),
            )
        }
        _ => {
            conversation.answer(context, line)?;
            Ok(Next::Continue)
        }
    }
}

impl Conversation<'_> {
    /// Forgets everything but the system message.
    fn clear(&mut self, system: Option<&str>) {
        self.messages.clear();
        self.messages
            .extend(system.map(|content| message(SYSTEM, content)));
    }

    /// Answers a message, text as it comes. After an error the conversation is as it was before, but for an answer that
    /// Ctrl-C cut off: it stays as far as it came.
    fn answer(&mut self, context: &Context, content: &str) -> Result<(), CliError> {
        self.messages.push(message("user", content));
        let mut streamed = Streamed::new(&context.printer);
        let made = self.encode().and_then(|ids| {
            let n_prompt = ids.len();
            Ok((n_prompt, self.generate(context, ids, &mut streamed)?))
        });
        let partial = streamed.text.clone();
        let speed = match streamed.finish() {
            Ok(speed) => speed,
            Err(error) => {
                self.messages.pop();
                return Err(error);
            }
        };
        match made {
            Ok((prompt_tokens, made)) => {
                self.messages.push(message("assistant", &made.text));
                let (n, reason) = (made.tokens.len(), reason(made.finish_reason));
                let tokens_per_s = speed.rate(n);
                if context.printer.is_table() {
                    let rate = tokens_per_s
                        .map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
                    let n = counted(n, "token");
                    context
                        .printer
                        .remark(&format!("{n}{rate}, ended by {reason}"))?;
                    match &made.speculation {
                        Some(report) => context.printer.remark(&speculation_note(report)),
                        None => Ok(()),
                    }
                } else {
                    let Generated {
                        text,
                        tokens,
                        finish_reason,
                        speculation,
                    } = made;
                    context.printer.json_line(&Wire {
                        text,
                        tokens,
                        finish_reason,
                        profile: self.runtime.profile().name(),
                        tiles: self.tiles,
                        prompt_tokens,
                        tokens_per_s,
                        speculation,
                    })
                }
            }
            Err(error) if error.is_interrupted() && !partial.is_empty() => {
                self.messages.push(message("assistant", &partial));
                Err(error)
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// The ids of the conversation so far, up to where the answer begins.
    fn encode(&self) -> Result<Vec<u32>, CliError> {
        let tokenizer = self.db.tokenizer()?;
        self.template
            .encode(tokenizer, &self.messages, GenerationPrompt::Add)
            .map_err(|error| {
                let is_refusal = matches!(
                    error,
                    ChatError::Raised { .. } | ChatError::ContentDropped { .. }
                );
                let has_system = self.messages.iter().any(|message| message.role == SYSTEM);
                let hint = (is_refusal && has_system)
                    .then(|| "leave out --system: not every template takes one".to_owned());
                CliError::from(error).with_hint(hint)
            })
    }

    fn generate(
        &mut self,
        context: &Context,
        ids: Vec<u32>,
        streamed: &mut Streamed<'_>,
    ) -> Result<Generated, CliError> {
        let repeated = ids
            .iter()
            .zip(&self.remembered)
            .take_while(|(new, old)| new == old)
            .count();
        // At least one id has to run, or there would be no logits.
        let mut kept = repeated.min(ids.len().saturating_sub(1));
        let n_positions = ids.len() + self.options.max_tokens;
        // A running state cannot go back, and a long conversation turns its keys otherwise: both begin anew.
        if !self.state.may_reach(n_positions) || self.state.truncate(kept).is_err() {
            self.state = SequenceState::with_length(self.db.spec(), n_positions);
            kept = 0;
        }
        self.remembered.clone_from(&ids);
        let flag = context.interrupts.flag();
        let work = context.interrupts.work();
        let made = generate(
            self.db,
            &mut self.runtime,
            &mut self.state,
            &ids[kept..],
            &self.options,
            &mut self.speculator,
            &mut |text| {
                if !streamed.push(text) {
                    flag.raise();
                }
            },
        );
        drop(work);
        if let Ok(made) = &made {
            self.remembered.extend(&made.tokens);
        }
        // What ran after the last known id cannot be told, so it is forgotten.
        if self.state.truncate(self.remembered.len()).is_err() {
            self.state = SequenceState::new(self.db.spec());
        }
        self.remembered.truncate(self.state.n_positions());
        Ok(made?)
    }
}

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
    }
}
