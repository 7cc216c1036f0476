//! LQL, the query language of LARQL: text to a syntax tree with spans, and back.
//!
//! The pipeline is lexer, parser, tree; [`Display`](std::fmt::Display) of a [`Statement`] prints
//! canonical text, and parsing that text gives an equal tree.
//! This crate does not know models, relations, columns or defaults, and has no dependencies:
//! whether a name means anything is decided by whoever executes the statement.
//! `GRAMMAR.md` beside the sources lists exactly what is accepted.
//!
//! Reading takes time and memory linear in the text, whose length, nesting and lists are bounded
//! ([`MAX_INPUT_BYTES`], [`MAX_DEPTH`], [`MAX_LIST_ITEMS`]).
//!
//! ```
//! use larql_lql::{Statement, parse};
//!
//! let source = "describe 'France' top 3 relation capital; stats";
//! let statements = parse(source).unwrap();
//! assert_eq!(statements[0].to_string(), r#"DESCRIBE "France" RELATION "capital" TOP 3"#);
//! assert_eq!(parse(&statements[0].to_string()).unwrap(), statements[..1]);
//!
//! let Statement::Describe(describe) = &statements[0] else { panic!("it is a DESCRIBE") };
//! let span = describe.entity.span;
//! assert_eq!(&source[span.start..span.end], "'France'");
//!
//! let source = "WALK \"The capital of France is\" LAYER 3-5";
//! let error = parse(source).unwrap_err();
//! assert_eq!(
//!     error.render(source),
//!     concat!(
//!         "line 1, column 33: expected `TOP`, `AT`, `LAYERS`, `POSITION`, `LAST` or `;`, got `LAYER`\n",
//!         "  WALK \"The capital of France is\" LAYER 3-5\n",
//!         "                                  ^~~~~",
//!     )
//! );
//! assert_eq!(error.hint().unwrap(), "did you mean `LAYERS`?");
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod keyword;
mod span;

pub mod ast;
mod error;
mod lexer;
mod parser;
mod print;

mod complete;

pub use crate::ast::Statement;
pub use crate::complete::{Completeness, completions, is_complete};
pub use crate::error::{Got, ParseError, ParseErrorKind};
pub use crate::keyword::{
    KEYWORDS, MAX_DEPTH, MAX_INPUT_BYTES, MAX_LIST_ITEMS, RESERVED, UNAVAILABLE_STATEMENTS,
};
pub use crate::span::Span;

/// Reads statements separated by `;`.
///
/// Empty statements are skipped, so the list may be empty; the final `;` may be missing.
///
/// # Errors
///
/// The first thing in reading order that makes the text invalid; no statement is returned then,
/// so that nothing of a faulty script is executed.
pub fn parse(source: &str) -> Result<Vec<Statement>, ParseError> {
    parser::parse_all(source).statements
}
