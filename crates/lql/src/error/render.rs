//! An error shown to a person: line, column, the line itself and a caret below the fault.

use crate::error::ParseError;

/// Most characters of a line that are shown.
const MAX_SNIPPET_CHARS: usize = 120;

/// How many characters before the fault are shown when the line is cut.
const SNIPPET_LEAD_CHARS: usize = 60;

/// Marks a cut line.
const ELLIPSIS: &str = "...";

/// Columns between tab stops do not matter here: a tab is shown as a tab, also below the text.
const TAB: char = '\t';

impl ParseError {
    /// Shows the error in the text that was parsed.
    ///
    /// Lines and columns count from 1, columns in characters.
    /// The result has three lines and no line end after the last; [`hint`](Self::hint) is separate.
    /// Any source is accepted: a span beyond its end is moved to the end.
    ///
    /// ```
    /// let source = "STATS;\nSELECT * FORM edges";
    /// let error = larql_lql::parse(source).unwrap_err();
    /// assert_eq!(
    ///     error.render(source),
    ///     "line 2, column 10: expected `FROM`, got `FORM`\n  SELECT * FORM edges\n           ^~~~"
    /// );
    /// ```
    pub fn render(&self, source: &str) -> String {
        let start = floor_char_boundary(source, self.span.start);
        let end = floor_char_boundary(source, self.span.end).max(start);
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = source[start..]
            .find('\n')
            .map_or(source.len(), |newline| start + newline);
        let line_no = source[..line_start].matches('\n').count() + 1;

        let mut line = &source[line_start..line_end];
        let mut before = &source[line_start..start];
        if line_start == 0 {
            // A byte order mark is not part of what the user sees.
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
            before = before.strip_prefix('\u{feff}').unwrap_or(before);
        }
        let line = line.strip_suffix('\r').unwrap_or(line);
        let column = before.chars().count() + 1;
        let marked = source[start..end.min(line_end)].chars().count();

        let snippet = Snippet::cut(line, column - 1, marked);
        format!(
            "line {line_no}, column {column}: {self}\n  {}\n  {}",
            snippet.text, snippet.marks
        )
    }
}

/// A line, or its part around the fault, and the marks that belong below it.
struct Snippet {
    text: String,
    marks: String,
}

impl Snippet {
    /// `n_before` characters precede the fault, which has `n_marked`.
    fn cut(line: &str, n_before: usize, n_marked: usize) -> Self {
        let n_chars = line.chars().count();
        let skipped = if n_chars <= MAX_SNIPPET_CHARS {
            0
        } else {
            n_before.saturating_sub(SNIPPET_LEAD_CHARS)
        };
        let shown: Vec<char> = line
            .chars()
            .skip(skipped)
            .take(MAX_SNIPPET_CHARS)
            .map(visible)
            .collect();
        let fault = (n_before - skipped).min(shown.len());
        let fault_end = (fault + n_marked).min(shown.len());

        let mut text = String::new();
        let mut marks = String::new();
        if skipped > 0 {
            text.push_str(ELLIPSIS);
            marks.push_str(&" ".repeat(ELLIPSIS.len()));
        }
        text.extend(&shown);
        if skipped + shown.len() < n_chars {
            text.push_str(ELLIPSIS);
        }
        for &ch in &shown[..fault] {
            if ch == TAB {
                marks.push(TAB);
            } else {
                marks.push_str(&" ".repeat(display_width(ch)));
            }
        }
        let n_tildes: usize = shown[fault..fault_end]
            .iter()
            .map(|&ch| display_width(ch))
            .sum();
        marks.push('^');
        marks.push_str(&"~".repeat(n_tildes.saturating_sub(1)));
        Self { text, marks }
    }
}

/// The text without the characters that would act on a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|ch| if ch == TAB { ' ' } else { visible(ch) })
        .collect()
}

/// A control or direction-changing character becomes `?`, except for the tab.
fn visible(ch: char) -> char {
    let redirects =
        matches!(ch, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if (ch.is_control() && ch != TAB) || redirects {
        '?'
    } else {
        ch
    }
}

/// Terminal cells of a character, by the blocks that are commonly wide or combining; a block left
/// out only shifts the caret.
fn display_width(ch: char) -> usize {
    match u32::from(ch) {
        0x0300..=0x036f | 0x200b..=0x200d | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// The greatest character boundary at or before an offset.
fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

#[cfg(test)]
mod tests {
    use crate::error::{ParseError, ParseErrorKind};
    use crate::{Span, parse};

    fn too_deep(start: usize, end: usize) -> ParseError {
        ParseError {
            span: Span::new(start, end),
            kind: ParseErrorKind::TooDeep,
        }
    }

    fn last_lines(rendered: &str) -> Vec<&str> {
        rendered.lines().skip(1).collect()
    }

    #[test]
    fn caret_follows_tabs_wide_and_combining_characters() {
        let source = "\tWALK \"\u{6771}\u{4eac} e\u{301}\" TIP 3";
        let error = parse(source).unwrap_err();
        let rendered = error.render(source);
        assert!(rendered.starts_with("line 1, column 15: "), "{rendered}");
        assert_eq!(last_lines(&rendered)[1], "  \t              ^~~");
    }

    #[test]
    fn long_line_is_cut_around_the_fault() {
        let source = format!("{}FAULT{}", "a".repeat(500), "b".repeat(500));
        let rendered = too_deep(500, 505).render(&source);
        let lines = last_lines(&rendered);
        assert_eq!(
            lines[0],
            format!("  ...{}FAULT{}...", "a".repeat(60), "b".repeat(55))
        );
        assert_eq!(lines[1], format!("  {}^~~~~", " ".repeat(63)));
    }

    #[test]
    fn span_outside_the_source_or_inside_a_character_does_not_panic() {
        assert!(
            too_deep(9, 99)
                .render("abc")
                .starts_with("line 1, column 4: ")
        );
        assert!(
            too_deep(2, 1)
                .render("\u{e9}\u{e9}")
                .starts_with("line 1, column 2: ")
        );
        assert!(
            too_deep(1, 3)
                .render("\u{e9}\u{e9}")
                .starts_with("line 1, column 1: ")
        );
    }

    #[test]
    fn terminal_controls_are_not_passed_on() {
        let source = "WALK \"a\u{1b}[2J\u{202e}\" x";
        let rendered = parse(source).unwrap_err().render(source);
        assert!(!rendered.contains(['\u{1b}', '\u{202e}']), "{rendered:?}");
    }
}
