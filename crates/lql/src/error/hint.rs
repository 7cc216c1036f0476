//! What the user may have meant.

use crate::error::{Got, ParseError, ParseErrorKind};
use crate::keyword::{KEYWORDS, find};

/// The keywords that begin a statement.
const STATEMENT_STARTS: &[&str] = &[
    "CREATE", "DESCRIBE", "DROP", "EXPLAIN", "INFER", "SELECT", "SHOW", "STATS", "USE", "WALK",
];

/// Words longer than this are not compared: no keyword comes near.
const MAX_COMPARED_CHARS: usize = 24;

impl ParseError {
    /// A suggestion, where there is a likely one.
    ///
    /// ```
    /// let error = larql_lql::parse("DESCIRBE \"France\"").unwrap_err();
    /// assert_eq!(error.hint().as_deref(), Some("did you mean `DESCRIBE`?"));
    /// ```
    pub fn hint(&self) -> Option<String> {
        match &self.kind {
            ParseErrorKind::Unexpected {
                got: Got::Token(text),
                expected,
            } => hint_for_token(text, expected),
            ParseErrorKind::Unexpected {
                got: Got::EndOfInput,
                ..
            } => None,
            ParseErrorKind::UnterminatedString { quote } => {
                Some(format!("close the string with {quote}"))
            }
            ParseErrorKind::UnknownEscape { .. } => Some(
                r#"the escapes are \\ \" \' \n \t \r \0; a backslash itself is written \\"#
                    .to_owned(),
            ),
            ParseErrorKind::NonAscii { ch } => Some(hint_for_non_ascii(*ch).to_owned()),
            ParseErrorKind::UnexpectedCharacter { ch: '.' } => {
                Some("a number has digits before the point: 0.5".to_owned())
            }
            ParseErrorKind::UnexpectedCharacter { ch: '`' } => {
                Some("text stands in \" or '".to_owned())
            }
            ParseErrorKind::ForeignOperator { instead, .. } => Some(format!("write `{instead}`")),
            ParseErrorKind::ReversedRange { first, last } => Some(format!("write {last}-{first}")),
            ParseErrorKind::UnexpectedCharacter { .. }
            | ParseErrorKind::InvalidNumber { .. }
            | ParseErrorKind::IntegerOutOfRange { .. }
            | ParseErrorKind::NotAnInteger { .. }
            | ParseErrorKind::FloatOutOfRange { .. }
            | ParseErrorKind::RepeatedClause { .. }
            | ParseErrorKind::MisplacedClause { .. }
            | ParseErrorKind::NotYet { .. }
            | ParseErrorKind::TooDeep
            | ParseErrorKind::TooManyItems
            | ParseErrorKind::TooLong { .. } => None,
        }
    }
}

fn hint_for_token(text: &str, expected: &[&'static str]) -> Option<String> {
    let is_word = text.starts_with(|ch: char| ch.is_ascii_alphabetic() || ch == '_');
    if !is_word {
        return None;
    }
    if let Some(keyword) = nearest(text, expected) {
        return Some(format!("did you mean `{keyword}`?"));
    }
    if expected.contains(&";") && find(STATEMENT_STARTS, text).is_some() {
        return Some("statements are separated by `;`".to_owned());
    }
    if expected.contains(&"column name") && find(KEYWORDS, text).is_some() {
        return Some(format!("`{text}` is a keyword and cannot name a column"));
    }
    if expected.contains(&"string") || expected.contains(&"relation name") {
        return Some(format!("text stands in quotes: \"{text}\""));
    }
    None
}

/// The keyword among `expected` that `word` most likely misspells; the first of equally near ones.
fn nearest(word: &str, expected: &[&'static str]) -> Option<&'static str> {
    if word.len() > MAX_COMPARED_CHARS {
        return None;
    }
    let word = word.to_ascii_uppercase();
    let allowed = match word.len() {
        0 | 1 => return None,
        2..=4 => 1,
        5.. => 2,
    };
    expected
        .iter()
        .filter(|item| KEYWORDS.contains(item))
        .map(|&item| (edit_distance(word.as_bytes(), item.as_bytes()), item))
        .filter(|&(distance, item)| distance <= allowed && distance < item.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, item)| item)
}

/// The least number of insertions, deletions, substitutions and swaps of neighbors that turns
/// `a` into `b`, no part being edited twice (optimal string alignment).
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substituted = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substituted.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = last;
        last = row;
    }
    last[b.len()]
}

fn hint_for_non_ascii(ch: char) -> &'static str {
    match ch {
        '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}' => "use straight quotes: \" or '",
        '\u{2010}'..='\u{2015}' | '\u{2212}' => "use the plain hyphen: -",
        '\u{2264}' => "write `<=`",
        '\u{2265}' => "write `>=`",
        '\u{2260}' => "write `!=`",
        '\u{a0}' | '\u{2000}'..='\u{200b}' | '\u{202f}' | '\u{3000}' | '\u{feff}' => {
            "an invisible character stands here; use a plain space"
        }
        _ => "text stands in \" or '",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_each_kind_of_edit() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("FORM", "FROM", 1),
            ("LAYR", "LAYER", 1),
            ("WALKS", "WALK", 1),
            ("TIP", "TOP", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(
                edit_distance(a.as_bytes(), b.as_bytes()),
                expected,
                "{a} {b}"
            );
        }
    }

    #[test]
    fn nearest_wants_a_close_word() {
        assert_eq!(nearest("lims", &["LIMIT", "WHERE"]), None);
        assert_eq!(nearest("limti", &["WHERE", "LIMIT"]), Some("LIMIT"));
        assert_eq!(nearest("x", &["IN", "IS"]), None);
        assert_eq!(nearest("at", &["AT", "LAST"]), Some("AT"));
        assert_eq!(nearest("strin", &["string"]), None);
    }
}
