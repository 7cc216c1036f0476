//! Chat templates: a conversation to the text, and the ids, that the model was trained on.
//!
//! Useful for: running the Jinja template that a model carries, and encoding the result so that
//! only the template's own markers become control ids.
//! Not useful for: guessing a template for a model without one, or tool calls.
//!
//! The one idea: [`ChatTemplate::encode`] renders twice, once with placeholders for the contents. The
//! second rendering tells which bytes of the first were typed by someone; in those, `<|im_end|>` is
//! ten ordinary characters. A template that rewrites contents is refused only if one of them has a marker.

use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::tokenizer::{Bos, EncodeSpecial, Tokenizer, TokenizerError};

mod clock;
mod json;
mod python;
mod stack;

/// The longest template in use has 20 kB; [`stack`] has to have room for one that is a single chain of operators.
const MAX_TEMPLATE_BYTES: usize = 1 << 17;

/// Template instructions per rendering; a conversation of 10,000 messages needs about a million.
const MAX_INSTRUCTIONS: u64 = 4_000_000;

/// A role is a word; it is written into the scaffold, so it must not be able to hold a marker.
const MAX_ROLE_BYTES: usize = 64;

const TEMPLATE: &str = "chat_template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Whether the rendering ends with the opening of the model's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: the model is to answer.
    Add,
    /// It does not: the conversation is complete.
    Omit,
}

/// Why a conversation cannot be rendered or encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// There is nothing to render with, and any choice would be a guess.
    #[error("this model has no chat template")]
    NoTemplate,
    /// The template is too large to be one.
    #[error("the chat template has {got} bytes, the limit is {MAX_TEMPLATE_BYTES}")]
    TooLong {
        /// Its length.
        got: usize,
    },
    /// The template is not valid Jinja, or uses what we do not know.
    #[error("the chat template cannot be compiled")]
    Syntax(#[source] TemplateError),
    /// The template refused the conversation; the message is its own.
    #[error("{message}")]
    Raised {
        /// What the template says.
        message: String,
    },
    /// The template failed.
    #[error("the chat template failed")]
    Render(#[source] TemplateError),
    /// There is no memory for the stack on which templates run.
    #[error("the chat template cannot be given a stack")]
    Stack(#[source] std::io::Error),
    /// A role that is not a word.
    #[error(
        "message {index}: role `{role}` must be 1 to {MAX_ROLE_BYTES} letters, digits, `_` or `-`"
    )]
    Role {
        /// Which message.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template leaves a message out.
    #[error("message {index}: the chat template ignores messages with role `{role}` here")]
    ContentDropped {
        /// Which message.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template rewrites contents, and they have or become markers, which cannot be told from its own.
    #[error(
        "the chat template rewrites the contents of its messages, so the markers in them cannot be kept apart from its own"
    )]
    ContentChanged,
    /// The contents use the private characters that mark them.
    #[error("the messages use all private characters that could mark them")]
    NoPlaceholder,
    /// The rendering cannot be encoded.
    #[error("the conversation cannot be encoded")]
    Tokenizer(#[from] TokenizerError),
}

/// What the template engine says of a template. Its text may quote the template, so control characters are escaped.
#[derive(Debug, Error)]
#[error("{}", printable(&chain(.0)))]
pub struct TemplateError(minijinja::Error);

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// What a template passed to `raise_exception`.
#[derive(Debug, Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of the model's markers.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] and [`ChatError::TooLong`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatError::TooLong { got: source.len() });
        }
        let environment = stack::with_large_stack(|| environment(source))
            .map_err(ChatError::Stack)?
            .map_err(|error| ChatError::Syntax(TemplateError(error)))?;
        Ok(Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Compiles the template that a tokenizer carries.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`], or as [`Self::new`].
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let source = tokenizer.chat_template().ok_or(ChatError::NoTemplate)?;
        let special = tokenizer.special();
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_piece(id)).unwrap_or("");
        Self::new(
            source,
            text(special.bos),
            text(special.eos.first().copied()),
        )
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// [`ChatError::Raised`] if the template refuses it, [`ChatError::Render`] if the template fails.
    pub fn render(
        &self,
        messages: &[Message],
        generation_prompt: GenerationPrompt,
    ) -> Result<String, ChatError> {
        check_roles(messages)?;
        let work = || -> Result<String, minijinja::Error> {
            let template = self.environment.get_template(TEMPLATE)?;
            template.render(context! {
                messages => Value::from(Serde(messages)),
                add_generation_prompt => generation_prompt == GenerationPrompt::Add,
                bos_token => &self.bos,
                eos_token => &self.eos,
                tools => (),
                documents => (),
            })
        };
        stack::with_large_stack(work)
            .map_err(ChatError::Stack)?
            .map_err(render_error)
    }

    /// The ids of the conversation. Markers in contents stay text; a BOS is added
    /// if the model wants one and the template did not write it.
    ///
    /// # Errors
    /// As [`Self::render`], and if the template drops a content, or rewrites contents that have markers.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        generation_prompt: GenerationPrompt,
    ) -> Result<Vec<u32>, ChatError> {
        let text = self.render(messages, generation_prompt)?;
        let placeholders = Placeholders::for_messages(messages)?;
        let marked = self.render(&placeholders.messages(messages), generation_prompt)?;
        match scaffold_ranges(&text, &marked, messages, &placeholders) {
            Ok(scaffold) => Ok(tokenizer.encode_scaffold(&text, &scaffold, Bos::Model)?),
            Err(error @ ChatError::ContentChanged) => {
                let scaffold = placeholders.blanked(&marked);
                encode_rewritten(tokenizer, &text, &scaffold, messages)?.ok_or(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// An environment that holds the compiled template.
fn environment(source: &str) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_unknown_method_callback(python::method);
    environment.add_test("iterable", |value: &Value| python::is_iterable(value));
    environment.add_test("sequence", |value: &Value| python::is_sequence(value));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(TEMPLATE, without_generation_tags(source))?;
    Ok(environment)
}

/// The ids of a rendering whose contents the template rewrote: only if nobody typed a marker, and the rewriting
/// made none, so that all markers are those of `scaffold`, the rendering with blanks for contents.
fn encode_rewritten(
    tokenizer: &Tokenizer,
    text: &str,
    scaffold: &str,
    messages: &[Message],
) -> Result<Option<Vec<u32>>, TokenizerError> {
    let markers = |text: &str| -> Result<Vec<u32>, TokenizerError> {
        let mut ids = tokenizer.encode(text, EncodeSpecial::Markers, Bos::Never)?;
        ids.retain(|id| tokenizer.is_control(*id));
        Ok(ids)
    };
    for message in messages {
        if !markers(&message.content)?.is_empty() {
            return Ok(None);
        }
    }
    if markers(scaffold)? != markers(text)? {
        return Ok(None);
    }
    let ids = tokenizer.encode(text, EncodeSpecial::Markers, Bos::Model)?;
    Ok(Some(ids))
}

fn check_roles(messages: &[Message]) -> Result<(), ChatError> {
    let is_word = |role: &str| {
        (1..=MAX_ROLE_BYTES).contains(&role.len())
            && role
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    match messages.iter().position(|m| !is_word(&m.role)) {
        None => Ok(()),
        Some(index) => Err(ChatError::Role {
            index,
            role: messages[index].role.clone(),
        }),
    }
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    clock::strftime(std::time::SystemTime::now(), format).map_err(|directive| {
        minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: unknown directive `{directive}`"),
        )
    })
}

/// Python's `json.dumps` without ASCII escapes; the crate's own filter escapes for HTML.
fn tojson(value: Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, minijinja::Error> {
    if value.is_undefined() {
        return Err(minijinja::Error::new(
            ErrorKind::UndefinedError,
            "tojson: the value is undefined",
        ));
    }
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get("indent")?,
    };
    let mut layout = json::Layout::of_indent(indent);
    layout.ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    layout.sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| {
            minijinja::Error::new(ErrorKind::InvalidOperation, "tojson: separators are two")
        })?;
        layout.separators = (item, key);
    }
    kwargs.assert_all_used()?;
    let text = json::dumps(&value, &layout).map_err(|source| {
        minijinja::Error::new(ErrorKind::BadSerialization, "tojson").with_source(source)
    })?;
    Ok(Value::from_safe_string(text))
}

fn render_error(error: minijinja::Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return ChatError::Raised {
                message: printable(message),
            };
        }
        cause = current.source();
    }
    ChatError::Render(TemplateError(error))
}

/// An error with its causes.
fn chain(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        text.push_str(": ");
        text.push_str(&current.to_string());
        cause = current.source();
    }
    text
}

/// `text` with escapes for characters that a terminal would obey, but for line breaks.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let redirects = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if redirects || (c.is_control() && c != '\n') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Training code marks the model's own text with `generation` blocks, which change nothing in
/// the output; they become blocks that are always taken.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(len) = rest[at..].find("%}") else {
            break;
        };
        let tag = &rest[at..at + len + 2];
        let name = tag.trim_matches(|c: char| "{}%-+".contains(c) || c.is_whitespace());
        out.push_str(&rest[..at]);
        match name {
            "generation" => out.push_str(&tag.replace(name, "if true")),
            "endgeneration" => out.push_str(&tag.replace(name, "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[at + len + 2..];
    }
    out.push_str(rest);
    out
}

/// Texts that stand for the contents: private characters that no content has.
struct Placeholders {
    base: u32,
}

/// The first characters of blocks of the two private planes.
const PLACEHOLDER_BASES: [u32; 3] = [0xF_0000, 0xF_1000, 0x10_0000];
/// Two delimiters and sixteen digits.
const PLACEHOLDER_CHARS: u32 = 18;

impl Placeholders {
    fn for_messages(messages: &[Message]) -> Result<Self, ChatError> {
        let is_free = |base: u32| {
            let block = base..base + PLACEHOLDER_CHARS;
            !messages
                .iter()
                .flat_map(|m| m.content.chars())
                .any(|c| block.contains(&u32::from(c)))
        };
        PLACEHOLDER_BASES
            .into_iter()
            .find(|base| is_free(*base))
            .map(|base| Self { base })
            .ok_or(ChatError::NoPlaceholder)
    }

    fn char(&self, nth: u32) -> char {
        char::from_u32(self.base + nth).expect("the private planes have no surrogates")
    }

    fn text(&self, index: usize) -> String {
        let digits = format!("{index:x}");
        let mut text = String::from(self.char(16));
        text.extend(
            digits
                .chars()
                .filter_map(|d| d.to_digit(16))
                .map(|d| self.char(d)),
        );
        text.push(self.char(17));
        text
    }

    /// The conversation with placeholders; an empty content needs none, and templates ask for it.
    fn messages(&self, messages: &[Message]) -> Vec<Message> {
        let content = |(index, message): (usize, &Message)| Message {
            role: message.role.clone(),
            content: if message.content.is_empty() {
                String::new()
            } else {
                self.text(index)
            },
        };
        messages.iter().enumerate().map(content).collect()
    }

    /// `text` with a space for each character of a placeholder.
    fn blanked(&self, text: &str) -> String {
        let block = self.base..self.base + PLACEHOLDER_CHARS;
        let is_ours = |c: char| block.contains(&u32::from(c));
        text.chars()
            .map(|c| if is_ours(c) { ' ' } else { c })
            .collect()
    }

    /// The index and the byte range of the first placeholder in `text`.
    fn find(&self, text: &str) -> Option<(usize, Range<usize>)> {
        let start = text.find(self.char(16))?;
        let len = text[start..].find(self.char(17))?;
        let end = start + len + self.char(17).len_utf8();
        let digits = text[start..start + len].chars().skip(1);
        let index = digits.fold(0, |n, c| n * 16 + (u32::from(c) - self.base) as usize);
        Some((index, start..end))
    }
}

/// The byte ranges of `text` that the template wrote itself.
fn scaffold_ranges(
    text: &str,
    marked: &str,
    messages: &[Message],
    placeholders: &Placeholders,
) -> Result<Vec<Range<usize>>, ChatError> {
    let mut ranges = Vec::new();
    let mut seen = vec![false; messages.len()];
    let mut rest = marked;
    let mut at = 0;
    while let Some((index, span)) = placeholders.find(rest) {
        let message = messages.get(index).ok_or(ChatError::ContentChanged)?;
        let end = at + span.start;
        if text.get(at..end) != Some(&rest[..span.start]) {
            return Err(ChatError::ContentChanged);
        }
        ranges.push(at..end);
        rest = &rest[span.end..];
        let next = placeholders.find(rest).map_or(rest.len(), |(_, s)| s.start);
        let written = written_form(&text[end..], &message.content, &rest[..next])
            .ok_or(ChatError::ContentChanged)?;
        at = end + written.len();
        seen[index] = true;
    }
    if text.get(at..) != Some(rest) {
        return Err(ChatError::ContentChanged);
    }
    ranges.push(at..text.len());
    let dropped = (0..messages.len()).find(|i| !seen[*i] && !messages[*i].content.is_empty());
    match dropped {
        None => Ok(ranges),
        Some(index) => Err(ChatError::ContentDropped {
            index,
            role: messages[index].role.clone(),
        }),
    }
}

/// The form in which a template wrote `content` at the start of `text`, before its own `next`:
/// whole, trimmed, or without the reasoning of an earlier turn.
fn written_form<'a>(text: &str, content: &'a str, next: &str) -> Option<&'a str> {
    let answer = content.rsplit("</think>").next().unwrap_or(content);
    [
        content,
        content.trim(),
        content.trim_start(),
        content.trim_end(),
        answer,
        answer.trim_start_matches('\n'),
        answer.trim(),
    ]
    .into_iter()
    .find(|form| {
        text.strip_prefix(form)
            .is_some_and(|after| after.starts_with(next))
    })
}
