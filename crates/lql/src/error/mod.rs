//! What is wrong with a text: errors as data, with the place, the message, a rendering that
//! points at the place, and a hint.

mod hint;
mod render;

use std::fmt;

use crate::Span;
use crate::keyword::{MAX_DEPTH, MAX_INPUT_BYTES, MAX_LIST_ITEMS};

/// Why a text is not a list of statements.
///
/// `Display` gives the message on one line, without the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The text at fault.
    pub span: Span,
    /// What is wrong with it.
    pub kind: ParseErrorKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// Something else should stand here.
    Unexpected {
        /// What stands here.
        got: Got,
        /// What could stand here, each once: keywords in capitals, punctuation as it is, and
        /// descriptions such as `string` in small letters.
        expected: Vec<&'static str>,
    },
    /// A string is not closed before the end of the text.
    UnterminatedString {
        /// The quote that opened it.
        quote: char,
    },
    /// A backslash before a character that it does not go with.
    UnknownEscape {
        /// The character after the backslash.
        ch: char,
    },
    /// A character beyond ASCII outside a string.
    NonAscii {
        /// The character.
        ch: char,
    },
    /// An ASCII character that the language does not use outside strings.
    UnexpectedCharacter {
        /// The character.
        ch: char,
    },
    /// An operator of other languages.
    ForeignOperator {
        /// The operator.
        text: &'static str,
        /// Its spelling here.
        instead: &'static str,
    },
    /// Digits followed by something that does not make a number.
    InvalidNumber {
        /// The text up to the end of the word.
        text: String,
    },
    /// A whole number outside the range of the place where it stands.
    IntegerOutOfRange {
        /// The number as written.
        text: String,
        /// The least value allowed.
        min: i64,
        /// The greatest value allowed.
        max: i64,
    },
    /// A number with a point or an exponent where a whole one must stand.
    NotAnInteger {
        /// The number as written.
        text: String,
    },
    /// A number too large for a 64-bit float.
    FloatOutOfRange {
        /// The number as written.
        text: String,
    },
    /// A range of layers whose end is before its start.
    ReversedRange {
        /// The first layer as written.
        first: u32,
        /// The last layer as written.
        last: u32,
    },
    /// A clause given twice, or one that excludes an earlier one.
    RepeatedClause {
        /// The clause at fault.
        clause: &'static str,
        /// The clause before it: the same, or the one that excludes it.
        earlier: &'static str,
        /// Where the earlier clause stands.
        earlier_span: Span,
    },
    /// A clause after one that it must precede.
    MisplacedClause {
        /// The clause at fault.
        clause: &'static str,
        /// The clause that it must precede.
        before: &'static str,
    },
    /// A statement that is known but not available in this version.
    NotYet {
        /// Its first word.
        statement: &'static str,
    },
    /// Parentheses and `NOT`s nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// A list with more items than [`MAX_LIST_ITEMS`].
    TooManyItems,
    /// A text of more bytes than [`MAX_INPUT_BYTES`].
    TooLong {
        /// Its length.
        n_bytes: usize,
    },
}

/// What was found in place of something expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// The text ends.
    EndOfInput,
    /// A token, as written; the middle of a long one is cut out.
    Token(String),
}

/// Longest token that a message repeats, in characters.
const MAX_TOKEN_CHARS: usize = 40;

impl Got {
    /// A token, cut to a length that a message can hold.
    pub(crate) fn token(text: &str) -> Self {
        if text.chars().count() <= MAX_TOKEN_CHARS {
            return Self::Token(text.to_owned());
        }
        let head: String = text.chars().take(MAX_TOKEN_CHARS - 4).collect();
        let last = text.chars().next_back().map_or(String::new(), String::from);
        Self::Token(format!("{head}...{last}"))
    }
}

impl ParseError {
    /// Whether more text could still make the input valid.
    pub(crate) fn is_incomplete(&self) -> bool {
        match &self.kind {
            ParseErrorKind::Unexpected { got, .. } => *got == Got::EndOfInput,
            ParseErrorKind::UnterminatedString { .. } => true,
            ParseErrorKind::UnknownEscape { .. }
            | ParseErrorKind::NonAscii { .. }
            | ParseErrorKind::UnexpectedCharacter { .. }
            | ParseErrorKind::ForeignOperator { .. }
            | ParseErrorKind::InvalidNumber { .. }
            | ParseErrorKind::IntegerOutOfRange { .. }
            | ParseErrorKind::NotAnInteger { .. }
            | ParseErrorKind::FloatOutOfRange { .. }
            | ParseErrorKind::ReversedRange { .. }
            | ParseErrorKind::RepeatedClause { .. }
            | ParseErrorKind::MisplacedClause { .. }
            | ParseErrorKind::NotYet { .. }
            | ParseErrorKind::TooDeep
            | ParseErrorKind::TooManyItems
            | ParseErrorKind::TooLong { .. } => false,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ParseErrorKind::Unexpected { got, expected } => {
                f.write_str("expected ")?;
                write_alternatives(f, expected)?;
                match got {
                    Got::EndOfInput => f.write_str(", got the end of the input"),
                    Got::Token(text) => write!(f, ", got `{}`", render::printable(text)),
                }
            }
            ParseErrorKind::UnterminatedString { quote } => {
                write!(f, "string opened with {quote} is not closed")
            }
            ParseErrorKind::UnknownEscape { ch } => {
                write!(
                    f,
                    "unknown escape `\\{}` in a string",
                    render::printable(&ch.to_string())
                )
            }
            ParseErrorKind::NonAscii { ch } => {
                write!(
                    f,
                    "character U+{:04X} is not allowed outside a string",
                    u32::from(*ch)
                )
            }
            ParseErrorKind::UnexpectedCharacter { ch } => {
                if ch.is_ascii_control() {
                    write!(f, "unexpected character U+{:04X}", u32::from(*ch))
                } else {
                    write!(f, "unexpected character `{ch}`")
                }
            }
            ParseErrorKind::ForeignOperator { text, .. } => write!(f, "unknown operator `{text}`"),
            ParseErrorKind::InvalidNumber { text } => {
                write!(f, "`{}` is not a number", clipped(text))
            }
            ParseErrorKind::IntegerOutOfRange { text, min, max } => {
                write!(
                    f,
                    "`{}` is out of range, allowed are {min} to {max}",
                    clipped(text)
                )
            }
            ParseErrorKind::NotAnInteger { text } => {
                write!(f, "`{}` is not a whole number", clipped(text))
            }
            ParseErrorKind::FloatOutOfRange { text } => {
                write!(f, "`{}` is too large for a 64-bit float", clipped(text))
            }
            ParseErrorKind::ReversedRange { first, last } => {
                write!(f, "range {first}-{last} ends before it starts")
            }
            ParseErrorKind::RepeatedClause {
                clause, earlier, ..
            } if clause == earlier => {
                write!(f, "`{clause}` is given twice")
            }
            ParseErrorKind::RepeatedClause {
                clause, earlier, ..
            } => {
                write!(
                    f,
                    "`{clause}` cannot be combined with the earlier `{earlier}`"
                )
            }
            ParseErrorKind::MisplacedClause { clause, before } => {
                write!(f, "`{clause}` must come before `{before}`")
            }
            ParseErrorKind::NotYet { statement } => {
                write!(f, "{statement} is not available in this version")
            }
            ParseErrorKind::TooDeep => {
                write!(f, "expression is nested more than {MAX_DEPTH} levels deep")
            }
            ParseErrorKind::TooManyItems => write!(f, "list has more than {MAX_LIST_ITEMS} items"),
            ParseErrorKind::TooLong { n_bytes } => {
                write!(
                    f,
                    "input has {n_bytes} bytes, at most {MAX_INPUT_BYTES} are allowed"
                )
            }
        }
    }
}

impl std::error::Error for ParseError {}

/// A number as written, cut to a length that a message can hold.
fn clipped(text: &str) -> String {
    match Got::token(text) {
        Got::Token(text) => text,
        Got::EndOfInput => unreachable!("Got::token makes a token"),
    }
}

/// Writes `a`, `a or b`, `a, b or c`; what is to be typed literally stands in backticks.
fn write_alternatives(f: &mut fmt::Formatter<'_>, alternatives: &[&str]) -> fmt::Result {
    for (idx, alternative) in alternatives.iter().enumerate() {
        if idx > 0 {
            f.write_str(if idx + 1 == alternatives.len() {
                " or "
            } else {
                ", "
            })?;
        }
        if alternative.starts_with(|ch: char| ch.is_ascii_lowercase()) {
            f.write_str(alternative)?;
        } else {
            write!(f, "`{alternative}`")?;
        }
    }
    Ok(())
}
