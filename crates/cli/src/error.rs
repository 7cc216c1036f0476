//! What a command can end with, and how it is told: kind, message, place in a query, hint, exit code.
//!
//! The libraries' errors are typed; here they become what a person or a script reads. The kind is the variant's own name,
//! so a new variant has one from the day it exists.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;

use larql_db::DbError;
use larql_engine::EngineError;
use larql_hub::HubError;
use larql_lql::{ParseError, Span};
use larql_models::ModelError;
use larql_models::chat::ChatError;
use larql_models::tokenizer::TokenizerError;
use larql_vindex::VindexError;
use serde::Serialize;

use crate::interrupt::EXIT_INTERRUPTED;

/// Kind of every end by Ctrl-C.
const INTERRUPTED: &str = "interrupted";

/// Why a command ends without its result.
#[derive(Debug)]
pub(crate) struct CliError {
    /// Stable name for scripts.
    pub(crate) kind: String,
    /// What is wrong, and where.
    pub(crate) message: String,
    /// What would work.
    pub(crate) hint: Option<String>,
    /// The reader of our output has gone, which is no error.
    pub(crate) is_broken_pipe: bool,
    class: Class,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The user can do something about it.
    Request,
    /// The machine or the program failed.
    Failure,
}

/// The form of errors for programs.
#[derive(Debug, Serialize)]
struct Wire<'a> {
    error: WireBody<'a>,
}

#[derive(Debug, Serialize)]
struct WireBody<'a> {
    kind: &'a str,
    message: &'a str,
    hint: Option<&'a str>,
}

impl CliError {
    /// A request that cannot be met.
    pub(crate) fn request(kind: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            message: message.into(),
            hint: None,
            is_broken_pipe: false,
            class: Class::Request,
        }
    }

    /// Something that nobody asked for.
    pub(crate) fn failure(kind: &str, message: impl Into<String>) -> Self {
        Self {
            class: Class::Failure,
            ..Self::request(kind, message)
        }
    }

    /// The end by Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self::request(INTERRUPTED, "interrupted")
    }

    /// What writing to stdout or stderr ended with.
    pub(crate) fn output(source: &io::Error) -> Self {
        let is_broken_pipe = source.kind() == io::ErrorKind::BrokenPipe;
        Self {
            is_broken_pipe,
            ..Self::failure("output", format!("cannot write the output: {source}"))
        }
    }

    /// What reading a named input ended with.
    pub(crate) fn input(name: &str, source: &io::Error) -> Self {
        let error = Self::request("input", format!("{name}: cannot be read: {source}"));
        if is_request(source.kind()) {
            error
        } else {
            Self {
                class: Class::Failure,
                ..error
            }
        }
    }

    /// A text that is no list of statements, shown with its place.
    pub(crate) fn parse(error: &ParseError, source: &str) -> Self {
        Self::request("parse", error.render(source)).with_hint(error.hint())
    }

    /// A statement that cannot be executed, shown with its place.
    pub(crate) fn query(error: DbError, source: &str) -> Self {
        let place = match &error {
            DbError::Query { span, .. } => Some(*span),
            DbError::Parse(parse) => return Self::parse(parse, source),
            _ => None,
        };
        let mut shown = Self::from(error);
        if let Some(span) = place {
            shown.message = at(&shown.message, span, source);
        }
        shown
    }

    /// Adds what would work.
    pub(crate) fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// Whether Ctrl-C ended it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.kind == INTERRUPTED
    }

    /// 1 if the user can do something about it, 2 if not; that of the signal if Ctrl-C ended it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.class {
            _ if self.is_interrupted() => EXIT_INTERRUPTED,
            Class::Request => 1,
            Class::Failure => 2,
        }
    }

    /// One line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let body = WireBody {
            kind: &self.kind,
            message: &self.message,
            hint: self.hint.as_deref(),
        };
        serde_json::to_string(&Wire { error: body }).expect("strings serialize")
    }

    fn from_chain(kind: String, error: &(dyn Error + 'static)) -> Self {
        let failed = causes(error)
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|source| !is_request(source.kind()));
        let class = if failed {
            Class::Failure
        } else {
            Class::Request
        };
        Self {
            kind,
            message: message(error),
            hint: None,
            is_broken_pipe: false,
            class,
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Adds line, column and caret to a message.
fn at(message: &str, span: Span, source: &str) -> String {
    // The renderer belongs to parse errors; any of them serves, because only its place is taken.
    let placed = ParseError {
        span,
        kind: larql_lql::ParseErrorKind::TooDeep,
    };
    let rendered = placed.render(source);
    let (place, snippet) = rendered.split_once('\n').unwrap_or((&rendered, ""));
    let place = place.split(": ").next().unwrap_or(place);
    format!("{place}: {message}\n{snippet}")
}

/// The error and what caused it, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The whole chain on one line; a cause whose text the message has already is not repeated.
fn message(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let part = cause.to_string();
        if text.is_empty() {
            text = part;
        } else if !text.contains(&part) {
            let _ = write!(text, ": {part}");
        }
    }
    text
}

/// Whether the user can do something about an I/O error.
fn is_request(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
    )
}

/// The name of an enum's variant in snake case, from its `Debug` form.
fn variant(error: &dyn fmt::Debug) -> String {
    struct Name(String);
    impl fmt::Write for Name {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for ch in text.chars() {
                if !ch.is_ascii_alphanumeric() {
                    // Nothing after the name is wanted, however long the fields are.
                    return Err(fmt::Error);
                }
                if ch.is_ascii_uppercase() && !self.0.is_empty() {
                    self.0.push('_');
                }
                self.0.push(ch.to_ascii_lowercase());
            }
            Ok(())
        }
    }
    let mut name = Name(String::new());
    let _ = write!(name, "{error:?}");
    name.0
}

impl From<larql_formats::Error> for CliError {
    fn from(error: larql_formats::Error) -> Self {
        let shown = Self::from_chain(variant(&error), &error);
        shown.with_hint(container_hint(&error))
    }
}

impl From<TokenizerError> for CliError {
    fn from(error: TokenizerError) -> Self {
        Self::from_chain(variant(&error), &error)
    }
}

impl From<ModelError> for CliError {
    fn from(error: ModelError) -> Self {
        let shown = Self::from_chain(model_kind(&error), &error);
        let shown = shown.with_hint(model_hint(&error));
        match error {
            // The list is what would work, so it is the hint.
            ModelError::UnknownModelType {
                origin, model_type, ..
            } => Self {
                message: format!("{origin}: unknown model type `{model_type}`"),
                ..shown
            },
            _ => shown,
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        let shown = Self::from_chain(engine_kind(&error), &error);
        shown.with_hint(engine_hint(&error))
    }
}

impl From<ChatError> for CliError {
    fn from(error: ChatError) -> Self {
        let hint = match &error {
            ChatError::NoTemplate => Some(
                "continue a text with `larql run`, or name a model that was tuned for chat"
                    .to_owned(),
            ),
            _ => None,
        };
        let kind = match &error {
            ChatError::NoTemplate => "no_chat_template".to_owned(),
            other => format!("chat_{}", variant(other)),
        };
        let shown = Self::from_chain(kind, &error).with_hint(hint);
        match error {
            // The template's own words do not say who speaks.
            ChatError::Raised { message } => Self {
                message: format!("the model's chat template refuses this conversation: {message}"),
                ..shown
            },
            _ => shown,
        }
    }
}

impl From<VindexError> for CliError {
    fn from(error: VindexError) -> Self {
        match error {
            VindexError::Model(error) => error.into(),
            VindexError::Container(error) => error.into(),
            VindexError::Interrupted { .. } => Self {
                message: error.to_string(),
                ..Self::interrupted()
            },
            VindexError::Tokenizer { ref source, .. } => Self::from_chain(variant(source), &error),
            VindexError::Pack { ref source, .. } => {
                let kind = format!("pack_{}", variant(source));
                Self::from_chain(kind, &error).with_hint(vindex_hint(&error))
            }
            error => {
                let hint = vindex_hint(&error);
                Self::from_chain(variant(&error), &error).with_hint(hint)
            }
        }
    }
}

impl From<HubError> for CliError {
    fn from(error: HubError) -> Self {
        if let HubError::Interrupted = error {
            return Self {
                message: error.to_string(),
                ..Self::interrupted()
            };
        }
        let class = if error.is_request() {
            Class::Request
        } else {
            Class::Failure
        };
        let hint = error.hint();
        Self {
            class,
            ..Self::from_chain(variant(&error), &error).with_hint(hint)
        }
    }
}

impl From<DbError> for CliError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Model(error) => error.into(),
            DbError::Container(error) => error.into(),
            DbError::Engine(error) => error.into(),
            DbError::Tokenizer(error) => error.into(),
            DbError::Vindex(error) => error.into(),
            DbError::Score(error) => {
                let hint = error.hint();
                Self::from_chain(variant(&error), &error).with_hint(hint)
            }
            error => {
                let hint = db_hint(&error);
                Self::from_chain(variant(&error), &error).with_hint(hint)
            }
        }
    }
}

fn model_kind(error: &ModelError) -> String {
    match error {
        ModelError::Container(inner) => variant(inner),
        ModelError::Tokenizer { source, .. } => variant(source),
        other => variant(other),
    }
}

fn engine_kind(error: &EngineError) -> String {
    match error {
        EngineError::Model(inner) => model_kind(inner),
        EngineError::Interrupted => INTERRUPTED.to_owned(),
        other => variant(other),
    }
}

fn vindex_hint(error: &VindexError) -> Option<String> {
    match error {
        // No level is higher.
        VindexError::NotAVindex { .. } => Some(
            "`larql extract SRC -o OUT` makes one of a model; `larql show MODEL` looks into any model"
                .to_owned(),
        ),
        VindexError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
            Some("raise the limit on the size of files, see `ulimit -f`".to_owned())
        }
        error => error.hint(),
    }
}

fn container_hint(error: &larql_formats::Error) -> Option<String> {
    use larql_formats::Error;
    match error {
        Error::Truncated { .. } | Error::Count { .. } | Error::Outside { .. } => Some(
            "the file is cut off, as by a download that did not end, or damaged: get it again"
                .to_owned(),
        ),
        _ => None,
    }
}

fn model_hint(error: &ModelError) -> Option<String> {
    match error {
        ModelError::Container(inner) => container_hint(inner),
        ModelError::NotAModel { .. } => Some(
            "name the folder that config.json itself lies in, the .gguf file, or a vindex that `larql extract` made"
                .to_owned(),
        ),
        ModelError::UnknownModelType { known, .. } => Some(format!("known: {known}")),
        ModelError::QuantizedFolder { .. } => Some(
            "take the checkpoint it was made from, or a GGUF of the model".to_owned(),
        ),
        ModelError::Quantized { .. } => Some(
            "quantize from the original weights, or pass --requantize to add the second error to the first"
                .to_owned(),
        ),
        other => other.hint(),
    }
}

fn engine_hint(error: &EngineError) -> Option<String> {
    match error {
        EngineError::ContextFull { .. } => {
            Some("give a shorter prompt, or fewer tokens to make".to_owned())
        }
        EngineError::NotFinite { .. }
        | EngineError::LogitNotFinite { .. }
        | EngineError::NotANumber { .. } => {
            Some("`larql verify VINDEX` names the first weight that is not finite".to_owned())
        }
        EngineError::EmptyInput { .. } => Some("give a prompt of at least one token".to_owned()),
        _ => None,
    }
}

fn db_hint(error: &DbError) -> Option<String> {
    match error {
        DbError::NotFound { path } => {
            let text = path.to_string_lossy();
            let scheme = text
                .split_once("://")
                .or_else(|| text.split_once(":/"))
                .map(|(scheme, _)| scheme)?;
            (scheme.len() > 1).then(|| format!("`{scheme}:` addresses are not opened here; give the path of a local file or folder"))
        }
        DbError::Query { hint, .. } => hint.clone(),
        DbError::Golden { .. } => Some(
            "a reference run belongs to one checkpoint: make the file from this one".to_owned(),
        ),
        DbError::NoModel => Some("open one with `USE \"PATH\"`, or with --vindex".to_owned()),
        DbError::Parse(parse) => parse.hint(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_the_variant_in_snake_case() {
        assert_eq!(
            variant(&EngineError::ContextFull {
                wanted: 3,
                n_ctx: 2
            }),
            "context_full"
        );
        assert_eq!(variant(&EngineError::Interrupted), "interrupted");
        let path = std::path::PathBuf::from("x");
        let inner = ModelError::NotAModel { path };
        assert_eq!(CliError::from(DbError::Model(inner)).kind, "not_a_model");
    }

    #[test]
    fn causes_are_told_once() {
        let source = TokenizerError::MissingPre;
        let error = ModelError::Tokenizer {
            origin: "m.gguf".to_owned(),
            source,
        };
        let shown = CliError::from(error);
        assert_eq!(
            shown
                .message
                .matches("tokenizer.ggml.pre is missing")
                .count(),
            1,
            "{}",
            shown.message
        );
        assert_eq!(shown.kind, "missing_pre");
    }

    #[test]
    fn the_class_decides_the_exit_code() {
        let io = |kind| ModelError::Io {
            path: "x".into(),
            source: io::Error::from(kind),
        };
        assert_eq!(CliError::from(io(io::ErrorKind::NotFound)).exit_code(), 1);
        assert_eq!(
            CliError::from(io(io::ErrorKind::StorageFull)).exit_code(),
            2
        );
    }

    #[test]
    fn every_end_by_ctrl_c_has_the_code_of_the_signal() {
        for error in [
            CliError::from(EngineError::Interrupted),
            CliError::from(DbError::Engine(EngineError::Interrupted)),
            CliError::from(VindexError::Interrupted { stage: "weights" }),
            CliError::from(HubError::Interrupted),
        ] {
            assert_eq!((error.exit_code(), error.is_interrupted()), (130, true));
        }
    }

    #[test]
    fn a_place_is_shown_as_in_parse_errors() {
        let text = at("unknown relation `x`", Span::new(7, 8), "STATS;\nDESCRIBE");
        assert_eq!(
            text,
            "line 2, column 1: unknown relation `x`\n  DESCRIBE\n  ^"
        );
    }
}
