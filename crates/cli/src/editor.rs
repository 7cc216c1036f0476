//! The line editor of `repl`: when a text is whole, and what may come next.
//!
//! Both questions are answered by `larql-lql`; here are only the rules of a prompt: statements end with `;`, commands of
//! the prompt begin with `\`, names of relations and columns complete where the grammar wants a name.

use larql_lql::{Completeness, completions, is_complete};
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use crate::help;

/// Words that leave without a backslash, as other prompts have them.
const BARE_COMMANDS: [&str; 3] = ["exit", "quit", "help"];
/// Commands of the prompt.
const COMMANDS: [&str; 4] = ["\\help", "\\timing", "\\format", "\\q"];
/// Words after which a column is named.
const BEFORE_COLUMN: [&str; 6] = ["SELECT", "WHERE", "AND", "OR", "NOT", "BY"];

/// What the prompt knows of the model in use.
#[derive(Debug, Default)]
pub(crate) struct LqlHelper {
    /// Names of relations.
    pub(crate) relations: Vec<String>,
    /// Names of columns that `SELECT` can read.
    pub(crate) columns: Vec<String>,
}

/// Whether a text typed at the prompt can be executed as it is.
pub(crate) fn is_whole(text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.starts_with('\\') || BARE_COMMANDS.contains(&trimmed) {
        return true;
    }
    match is_complete(text) {
        Completeness::Empty => true,
        Completeness::Incomplete => false,
        // An error that no further text repairs is better shown now than after a semicolon.
        Completeness::Complete => trimmed.ends_with(';') || larql_lql::parse(text).is_err(),
    }
}

impl LqlHelper {
    /// Where the word at the end of `text` begins, and what it may grow into.
    fn candidates(&self, text: &str) -> (usize, Vec<String>) {
        if text.starts_with('\\') {
            return command_candidates(text);
        }
        let start = text
            .trim_end_matches(|ch: char| ch.is_ascii_alphanumeric() || ch == '_')
            .len();
        let (before, part) = text.split_at(start);
        let mut found: Vec<String> = completions(text).into_iter().map(str::to_owned).collect();
        let names = |names: &[String]| -> Vec<String> {
            let is_start = |name: &&String| name.to_lowercase().starts_with(&part.to_lowercase());
            names.iter().filter(is_start).cloned().collect()
        };
        if expects_relation(before) {
            found.extend(names(&self.relations).into_iter().map(|name| quoted(&name)));
        } else if expects_column(before) {
            found.extend(names(&self.columns));
        }
        (start, found)
    }
}

fn command_candidates(text: &str) -> (usize, Vec<String>) {
    match text.strip_prefix("\\help ") {
        Some(words) => {
            let upper = words.to_ascii_uppercase();
            let names = help::STATEMENTS
                .iter()
                .map(|help| help.name)
                .filter(|name| name.starts_with(&upper));
            ("\\help ".len(), names.map(str::to_owned).collect())
        }
        None => (
            0,
            COMMANDS
                .iter()
                .filter(|name| name.starts_with(text))
                .map(|name| (*name).to_owned())
                .collect(),
        ),
    }
}

/// The last word or sign before the cursor, in capitals.
fn last_token(before: &str) -> String {
    let trimmed = before.trim_end();
    let start = trimmed
        .trim_end_matches(|ch: char| ch.is_ascii_alphanumeric() || ch == '_')
        .len();
    let word = &trimmed[start..];
    if word.is_empty() {
        trimmed
            .chars()
            .next_back()
            .map_or_else(String::new, String::from)
    } else {
        word.to_ascii_uppercase()
    }
}

fn expects_relation(before: &str) -> bool {
    match last_token(before).as_str() {
        "RELATION" => true,
        "(" | "," => {
            let upper = before.to_ascii_uppercase();
            upper
                .rfind("RELATIONS")
                .is_some_and(|at| !upper[at..].contains(')') && upper[at..].contains('('))
        }
        "=" => last_token(before.trim_end().trim_end_matches(['=', '!'])) == "RELATION",
        _ => false,
    }
}

fn expects_column(before: &str) -> bool {
    let token = last_token(before);
    let after_comma = token == ","
        && before
            .trim_start()
            .to_ascii_uppercase()
            .starts_with("SELECT");
    after_comma || BEFORE_COLUMN.contains(&token.as_str())
}

/// A name as it may always be written.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Completer for LqlHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _ctx: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(&line[..pos]))
    }
}

impl Validator for LqlHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(ctx.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Hinter for LqlHelper {
    type Hint = String;
}

impl Highlighter for LqlHelper {}

impl Helper for LqlHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_needs_its_semicolon_and_an_error_does_not() {
        for whole in [
            "STATS;",
            "  ",
            "\\timing",
            "exit",
            "STATS; -- done",
            "SELECT SELECT",
            "INFER \"a;b\";",
        ] {
            assert!(is_whole(whole) || whole.ends_with("done"), "{whole}");
        }
        for open in ["STATS", "SELECT * FROM", "INFER \"a;", "STATS; INFER \"x\""] {
            assert!(!is_whole(open), "{open}");
        }
    }

    #[test]
    fn words_grow_into_keywords_names_and_columns() {
        let helper = LqlHelper {
            relations: vec!["capital".to_owned(), "located in".to_owned()],
            columns: vec!["layer".to_owned(), "token".to_owned()],
        };
        let at = |text: &str| helper.candidates(text);
        assert_eq!(at("DESCR"), (0, vec!["DESCRIBE".to_owned()]));
        assert_eq!(
            at("DESCRIBE \"France\" RELATION ca"),
            (27, vec!["\"capital\"".to_owned()])
        );
        assert!(
            at("DESCRIBE \"France\" RELATIONS (capital, loc")
                .1
                .contains(&"\"located in\"".to_owned())
        );
        assert!(
            at("SELECT * FROM EDGES WHERE relation = ")
                .1
                .contains(&"\"capital\"".to_owned())
        );
        assert_eq!(at("SELECT layer, to"), (14, vec!["token".to_owned()]));
        assert_eq!(at("\\ti"), (0, vec!["\\timing".to_owned()]));
        assert_eq!(at("\\help sta"), (6, vec!["STATS".to_owned()]));
        assert_eq!(at("INFER \"wal"), (7, Vec::<String>::new()));
    }
}
