//! Text to tokens.
//!
//! A token is a kind and a span; its value is read from the source again when the parser needs
//! it, so a token costs no allocation.
//! Lexing stops at the first error and leaves a [`TokenKind::Bad`] there: the parser reports it
//! only if nothing earlier in the text is wrong, so errors come in reading order.
//! Time is linear in the length of the text.

use crate::Span;
use crate::error::{ParseError, ParseErrorKind};

/// The byte order mark that some editors put at the start of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A keyword or an identifier.
    Word,
    /// A string, quotes included; its escapes are known to be valid.
    Text,
    /// Digits.
    Integer,
    /// Digits with a point or an exponent.
    Float,
    /// One of `* , ; ( ) - = != < <= > >=`, spelled as it is.
    Punct(&'static str),
    /// The place where lexing failed.
    Bad,
    /// The end of the text.
    End,
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
}

/// The tokens of a text; the last one is `End`, or `Bad` exactly if there is an error.
pub(crate) struct Lexed {
    pub(crate) tokens: Vec<Token>,
    pub(crate) error: Option<ParseError>,
}

/// Splits a text into tokens.
pub(crate) fn lex(source: &str) -> Lexed {
    let mut lexer = Lexer { source, pos: 0 };
    if source.starts_with(BYTE_ORDER_MARK) {
        lexer.pos = BYTE_ORDER_MARK.len_utf8();
    }
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let start = lexer.pos;
        match lexer.token() {
            Ok(kind) => {
                tokens.push(Token {
                    kind,
                    span: Span::new(start, lexer.pos),
                });
                if kind == TokenKind::End {
                    return Lexed {
                        tokens,
                        error: None,
                    };
                }
            }
            Err(error) => {
                tokens.push(Token {
                    kind: TokenKind::Bad,
                    span: error.span,
                });
                return Lexed {
                    tokens,
                    error: Some(error),
                };
            }
        }
    }
}

/// The value of a string token, given with its quotes.
pub(crate) fn unescape(quoted: &str) -> String {
    let inner = &quoted[1..quoted.len() - 1];
    let mut value = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(ch) = chars.next() {
        if ch == '\\' {
            let escaped = chars.next().and_then(escape_value);
            value.push(escaped.expect("the lexer checked every escape"));
        } else {
            value.push(ch);
        }
    }
    value
}

/// The character that a backslash and `ch` stand for.
fn escape_value(ch: char) -> Option<char> {
    match ch {
        '\\' | '"' | '\'' => Some(ch),
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        '0' => Some('\0'),
        _ => None,
    }
}

struct Lexer<'a> {
    source: &'a str,
    pos: usize,
}

impl Lexer<'_> {
    fn peek(&self) -> Option<char> {
        self.source[self.pos..].chars().next()
    }

    fn rest_starts_with(&self, text: &str) -> bool {
        self.source[self.pos..].starts_with(text)
    }

    fn skip_while(&mut self, accept: impl Fn(char) -> bool) {
        while let Some(ch) = self.peek().filter(|&ch| accept(ch)) {
            self.pos += ch.len_utf8();
        }
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) {
        loop {
            self.skip_while(|ch| ch.is_ascii_whitespace());
            if !self.rest_starts_with("--") {
                return;
            }
            self.skip_while(|ch| ch != '\n');
        }
    }

    fn token(&mut self) -> Result<TokenKind, ParseError> {
        let Some(ch) = self.peek() else {
            return Ok(TokenKind::End);
        };
        match ch {
            'a'..='z' | 'A'..='Z' | '_' => {
                self.skip_while(is_word_char);
                Ok(TokenKind::Word)
            }
            '0'..='9' => self.number(),
            '"' | '\'' => self.text(ch),
            _ => self.punct(ch),
        }
    }

    fn number(&mut self) -> Result<TokenKind, ParseError> {
        let start = self.pos;
        let mut kind = TokenKind::Integer;
        self.skip_while(|ch| ch.is_ascii_digit());
        if self.rest_starts_with(".") {
            kind = TokenKind::Float;
            self.pos += 1;
            self.digits(start)?;
        }
        if self.rest_starts_with("e") || self.rest_starts_with("E") {
            kind = TokenKind::Float;
            self.pos += 1;
            if self.rest_starts_with("+") || self.rest_starts_with("-") {
                self.pos += 1;
            }
            self.digits(start)?;
        }
        if self.peek().is_some_and(|ch| is_word_char(ch) || ch == '.') {
            return Err(self.invalid_number(start));
        }
        Ok(kind)
    }

    /// One or more digits of the number that began at `start`.
    fn digits(&mut self, start: usize) -> Result<(), ParseError> {
        let first = self.pos;
        self.skip_while(|ch| ch.is_ascii_digit());
        if self.pos == first {
            Err(self.invalid_number(start))
        } else {
            Ok(())
        }
    }

    fn invalid_number(&mut self, start: usize) -> ParseError {
        self.skip_while(|ch| is_word_char(ch) || ch == '.');
        let text = self.source[start..self.pos].to_owned();
        ParseError {
            span: Span::new(start, self.pos),
            kind: ParseErrorKind::InvalidNumber { text },
        }
    }

    fn text(&mut self, quote: char) -> Result<TokenKind, ParseError> {
        let start = self.pos;
        self.pos += 1;
        loop {
            self.skip_while(|ch| ch != quote && ch != '\\');
            if self.rest_starts_with("\\") {
                self.escape(start, quote)?;
            } else if self.peek().is_some() {
                self.pos += 1;
                return Ok(TokenKind::Text);
            } else {
                return Err(self.unterminated(start, quote));
            }
        }
    }

    /// A backslash and what follows it, in the string that began at `start`.
    fn escape(&mut self, start: usize, quote: char) -> Result<(), ParseError> {
        let backslash = self.pos;
        self.pos += 1;
        let Some(ch) = self.peek() else {
            return Err(self.unterminated(start, quote));
        };
        self.pos += ch.len_utf8();
        match escape_value(ch) {
            Some(_) => Ok(()),
            None => {
                let span = Span::new(backslash, self.pos);
                Err(ParseError {
                    span,
                    kind: ParseErrorKind::UnknownEscape { ch },
                })
            }
        }
    }

    fn unterminated(&self, start: usize, quote: char) -> ParseError {
        let span = Span::new(start, self.source.len());
        ParseError {
            span,
            kind: ParseErrorKind::UnterminatedString { quote },
        }
    }

    fn punct(&mut self, ch: char) -> Result<TokenKind, ParseError> {
        const FOREIGN: [(&str, &str); 2] = [("<>", "!="), ("==", "=")];
        const PUNCTS: [&str; 12] = [
            "!=", "<=", ">=", "*", ",", ";", "(", ")", "-", "=", "<", ">",
        ];
        for (text, instead) in FOREIGN {
            if self.rest_starts_with(text) {
                let span = Span::new(self.pos, self.pos + text.len());
                return Err(ParseError {
                    span,
                    kind: ParseErrorKind::ForeignOperator { text, instead },
                });
            }
        }
        if let Some(text) = PUNCTS.into_iter().find(|text| self.rest_starts_with(text)) {
            self.pos += text.len();
            return Ok(TokenKind::Punct(text));
        }
        let span = Span::new(self.pos, self.pos + ch.len_utf8());
        let kind = if ch.is_ascii() {
            ParseErrorKind::UnexpectedCharacter { ch }
        } else {
            ParseErrorKind::NonAscii { ch }
        };
        Err(ParseError { span, kind })
    }
}

/// Whether a character may continue a word.
pub(crate) fn is_word_char(ch: char) -> bool {
    ch.is_ascii_alphanumeric() || ch == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<(TokenKind, &str)> {
        let lexed = lex(source);
        lexed
            .tokens
            .iter()
            .map(|token| (token.kind, &source[token.span.start..token.span.end]))
            .collect()
    }

    #[test]
    fn numbers_words_and_operators_are_cut_at_the_right_places() {
        use TokenKind::{End, Float, Integer, Punct, Word};
        let expected = [
            (Integer, "0"),
            (Punct("-"), "-"),
            (Integer, "12"),
            (Word, "a_1"),
            (Punct("<="), "<="),
            (Float, "1.5"),
            (Punct("<"), "<"),
            (Float, "2e-3"),
            (Punct("!="), "!="),
            (Float, "2.5E+7"),
            (End, ""),
        ];
        assert_eq!(kinds("0-12 a_1<=1.5<2e-3 !=2.5E+7 -- 0-1"), expected);
    }

    #[test]
    fn unescape_resolves_every_escape() {
        assert_eq!(unescape(r#""\\\"\'\n\t\r\0x""#), "\\\"'\n\t\r\0x");
    }

    #[test]
    fn byte_order_mark_is_skipped_only_at_the_start() {
        assert_eq!(
            kinds("\u{feff}a"),
            [(TokenKind::Word, "a"), (TokenKind::End, "")]
        );
        let error = lex("a \u{feff}").error.expect("a mark inside is refused");
        assert_eq!((error.span.start, error.span.end), (2, 5));
    }
}
