//! A Rust file as the rules see it: its text, and the same text with comments and literals blanked out.
//!
//! Not a parser: a rule that needs syntax looks for words and braces in the blanked text, where a brace is
//! a brace and a word is a word. Formatting is rustfmt's, which keeps such searches reliable.

/// One `.rs` file of the repository.
pub(crate) struct SourceFile {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// `text` with comments and the contents of literals replaced by spaces; same length, same lines.
    pub(crate) code: String,
    /// For every line, whether it belongs to tests.
    test_lines: Vec<bool>,
}

impl SourceFile {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> SourceFile {
        let (path, text) = (path.into(), text.into());
        let code = blank(&text);
        let mut test_lines = vec![is_test_path(&path); text.lines().count()];
        mark_test_items(&code, &mut test_lines);
        SourceFile {
            path,
            text,
            code,
            test_lines,
        }
    }

    /// Declares the whole file to be test code, as one that is only reached through `#[cfg(test)] mod`.
    pub(crate) fn set_test(&mut self) {
        self.test_lines.fill(true);
    }

    /// Lines as (number from 1, text, code, whether test code).
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str, &str, bool)> {
        self.text
            .lines()
            .zip(self.code.lines())
            .zip(&self.test_lines)
            .enumerate()
            .map(|(i, ((text, code), test))| (i + 1, text, code, *test))
    }

    pub(crate) fn n_lines(&self) -> usize {
        self.test_lines.len()
    }

    /// Whether the line at a byte offset is test code.
    pub(crate) fn is_test_at(&self, offset: usize) -> bool {
        let line = line_at(&self.code, offset);
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }
}

/// Number (from 1) of the line that holds byte `offset`.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
}

pub(crate) fn is_ident_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Byte offsets at which `word` stands in `code` as a whole identifier (or path that starts with one).
/// The end is only checked when `word` itself ends in an identifier character.
pub(crate) fn find_words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let end = at + word.len();
            let open = *at == 0 || !is_ident_byte(bytes[at - 1]) || !is_ident_byte(bytes[*at]);
            let closed =
                end == bytes.len() || !is_ident_byte(bytes[end]) || !is_ident_byte(bytes[end - 1]);
            open && closed
        })
}

/// Offset of the brace that closes the one at `open`; the end of the text when it is missing.
pub(crate) fn matching_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Tests, benches and examples, and the crate that exists for them.
fn is_test_path(path: &str) -> bool {
    path.starts_with("crates/testkit/")
        || path
            .split('/')
            .any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// Marks the item after every `#[cfg(test)]`.
fn mark_test_items(code: &str, test_lines: &mut [bool]) {
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let after = at + attribute.len();
        let Some(body) = code[after..].find(['{', ';']).map(|i| after + i) else {
            continue;
        };
        let end = match code.as_bytes()[body] {
            b'{' => matching_brace(code, body),
            _ => body,
        };
        let (first, last) = (line_at(code, at), line_at(code, end.min(code.len())));
        for line in first..=last.min(test_lines.len()) {
            test_lines[line - 1] = true;
        }
    }
}

/// Replaces comments and the contents of string and character literals by spaces.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = literal_end(bytes, i);
        match end {
            Some(end) => {
                for byte in &mut out[i..end] {
                    if *byte != b'\n' {
                        *byte = b' ';
                    }
                }
                i = end;
            }
            None => i += 1,
        }
    }
    String::from_utf8(out).expect("whole literals are replaced, so no character is cut")
}

/// Where the comment or literal that begins at `i` ends, if one begins there.
fn literal_end(bytes: &[u8], i: usize) -> Option<usize> {
    let rest = &bytes[i..];
    let starts_word = i == 0 || !is_ident_byte(bytes[i - 1]);
    let end = match rest[0] {
        b'/' if rest.starts_with(b"//") => {
            rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        }
        b'/' if rest.starts_with(b"/*") => block_comment_len(rest),
        b'"' => string_len(rest),
        b'\'' => char_len(rest)?,
        b'b' | b'c' | b'r' if starts_word => raw_string_len(rest)?,
        _ => return None,
    };
    Some(i + end)
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut i) = (0_usize, 0);
    while i < rest.len() {
        if rest[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if rest[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                break;
            }
        } else {
            i += 1;
        }
    }
    i.min(rest.len())
}

fn string_len(rest: &[u8]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != b'"' {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// The length of a character literal; a lifetime or label has none.
fn char_len(rest: &[u8]) -> Option<usize> {
    if *rest.get(1)? == b'\\' {
        return rest.iter().skip(3).position(|b| *b == b'\'').map(|i| i + 4);
    }
    // The first byte of a UTF-8 sequence says how many there are.
    let width = match rest[1] {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    };
    (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let start = match rest {
        [b'r', ..] => 1,
        [b'b' | b'c', b'r', ..] => 2,
        _ => return None,
    };
    let hashes = rest[start..].iter().take_while(|b| **b == b'#').count();
    let open = start + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &rest[open + 1..];
    let len = body
        .windows(close.len())
        .position(|window| window == close)
        .map_or(body.len(), |at| at + close.len());
    Some(open + 1 + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_kept() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("f(\"}\\\"{\") {", "f(      ) {"),
            ("let c = '{'; x", "let c =    ; x"),
            ("let c = '\\''; x", "let c =     ; x"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("r#\"a \" }\"# }", "           }"),
            ("br\"}\" }", "      }"),
            ("r#type }", "r#type }"),
            ("'\u{e9}' }", "     }"),
        ];
        for (text, code) in cases {
            assert_eq!(blank(text), code, "{text}");
        }
    }

    #[test]
    fn test_items_are_marked_to_their_last_line() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let file = SourceFile::new("crates/x/src/lib.rs", text);
        let marks: Vec<bool> = file.lines().map(|(_, _, _, test)| test).collect();
        assert_eq!(marks, [false, true, true, true, true, false]);
        let file = SourceFile::new("crates/x/tests/it.rs", "fn a() {}\n");
        assert!(file.is_test_at(3));
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<usize> = find_words("unsafe_code unsafe { my_unsafe }", "unsafe").collect();
        assert_eq!(found, [12]);
        assert_eq!(find_words("eprintln!(1)", "println!(").count(), 0);
        assert_eq!(find_words("println!(1)", "println!(").count(), 1);
    }
}
