//! What an interactive prompt needs: is the text whole, and what may come next.

use crate::keyword::KEYWORDS;
use crate::lexer::is_word_char;
use crate::parser::parse_all;

/// Whether a text can be handed over as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completeness {
    /// One or more statements, or an error that no further text can repair.
    Complete,
    /// The text ends inside a statement or a string.
    Incomplete,
    /// Nothing but white space, comments and semicolons.
    Empty,
}

/// Tells whether a text ends inside a statement or a string.
///
/// The final `;` is not needed, so a statement that could still take more clauses is complete.
///
/// ```
/// use larql_lql::{Completeness, is_complete};
/// assert_eq!(is_complete("SELECT * FROM"), Completeness::Incomplete);
/// assert_eq!(is_complete("SELECT * FROM edges"), Completeness::Complete);
/// assert_eq!(is_complete("SELECT SELECT"), Completeness::Complete);
/// assert_eq!(is_complete(" ; -- nothing"), Completeness::Empty);
/// ```
pub fn is_complete(text: &str) -> Completeness {
    match parse_all(text).statements {
        Ok(statements) if statements.is_empty() => Completeness::Empty,
        Ok(_) => Completeness::Complete,
        Err(error) if error.is_incomplete() => Completeness::Incomplete,
        Err(_) => Completeness::Complete,
    }
}

/// The keywords that may come next at the end of a text, in grammar order.
///
/// If the text ends with part of a word, those are given that the part may grow into, each in
/// full: a caller replaces the part.
/// Nothing is given after an error, or inside a string, a comment or a number.
///
/// ```
/// use larql_lql::completions;
/// assert_eq!(completions("SELECT * FROM edges wh"), ["WHERE"]);
/// assert_eq!(completions("SHOW "), ["LAYERS", "FEATURES", "RELATIONS", "RELATION", "MODELS"]);
/// ```
pub fn completions(prefix_text: &str) -> Vec<&'static str> {
    let stem = prefix_text.trim_end_matches(is_word_char);
    let part = &prefix_text[stem.len()..];
    // A blank in place of the part, so that it cannot join what stands before it.
    let probe = format!("{stem} ");
    if part.starts_with(|ch: char| ch.is_ascii_digit()) || ends_in_comment_or_string(&probe) {
        return Vec::new();
    }
    let outcome = parse_all(&probe);
    if outcome
        .statements
        .as_ref()
        .is_err_and(|error| !error.is_incomplete())
    {
        return Vec::new();
    }
    let part = part.to_ascii_uppercase();
    outcome
        .expected
        .into_iter()
        .filter(|item| KEYWORDS.contains(item) && item.starts_with(&part))
        .collect()
}

/// Whether a text ends in a comment or in a string that is not closed.
fn ends_in_comment_or_string(text: &str) -> bool {
    // Either swallows the star, so the number of tokens tells.
    let n_tokens = |text: &str| crate::lexer::lex(text).tokens.len();
    n_tokens(text) == n_tokens(&format!("{text}*"))
}
