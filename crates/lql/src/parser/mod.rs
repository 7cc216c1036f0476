//! Tokens to statements by recursive descent.
//!
//! This module holds the cursor and the small pieces; each other module parses one group of
//! statements.
//! Whatever is looked for at the current token and not found is noted, so an error lists exactly
//! what could have stood there, and completion needs no second grammar.
//! Time is linear in the number of tokens; recursion is bounded by [`MAX_DEPTH`] and by one level
//! of `EXPLAIN`.

mod clause;
mod expr;
mod prompt;
mod relation;
mod select;
mod show;
mod statement;

use crate::Span;
use crate::ast::{Ident, LayerRange, Number, Statement, Text};
use crate::error::{Got, ParseError, ParseErrorKind};
use crate::keyword::{KEYWORDS, MAX_DEPTH, MAX_INPUT_BYTES, MAX_LIST_ITEMS, RESERVED, find};
use crate::lexer::{Lexed, Token, TokenKind, lex, unescape};

type Result<T> = std::result::Result<T, ParseError>;

/// The result of parsing a whole text.
pub(crate) struct Outcome {
    /// The statements, or the first error.
    pub(crate) statements: Result<Vec<Statement>>,
    /// What could stand where parsing ended.
    pub(crate) expected: Vec<&'static str>,
}

/// Parses a whole text.
pub(crate) fn parse_all(source: &str) -> Outcome {
    if source.len() > MAX_INPUT_BYTES {
        let span = Span::new(MAX_INPUT_BYTES, source.len());
        let kind = ParseErrorKind::TooLong {
            n_bytes: source.len(),
        };
        return Outcome {
            statements: Err(ParseError { span, kind }),
            expected: Vec::new(),
        };
    }
    let Lexed { tokens, error } = lex(source);
    let mut parser = Parser {
        source,
        tokens,
        lex_error: error,
        idx: 0,
        expected: Vec::new(),
        depth: 0,
    };
    let statements = parser.statements();
    Outcome {
        statements,
        expected: parser.expected,
    }
}

struct Parser<'a> {
    source: &'a str,
    tokens: Vec<Token>,
    /// The error behind a `Bad` token.
    lex_error: Option<ParseError>,
    idx: usize,
    /// What has been looked for at the current token, in order, each once.
    expected: Vec<&'static str>,
    /// Nesting of the expression being parsed.
    depth: usize,
}

impl Parser<'_> {
    /// `{";"} [statement {";" {";"} statement}] {";"}`, then the end.
    fn statements(&mut self) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        loop {
            while self.at_punct(";") {
                self.advance();
            }
            match self.statement()? {
                Some(statement) => statements.push(statement),
                None if self.kind() == TokenKind::End => return Ok(statements),
                None => return Err(self.unexpected()),
            }
            if self.eat_punct(";").is_none() {
                return match self.kind() {
                    TokenKind::End => Ok(statements),
                    TokenKind::Word
                    | TokenKind::Text
                    | TokenKind::Integer
                    | TokenKind::Float
                    | TokenKind::Punct(_)
                    | TokenKind::Bad => Err(self.unexpected()),
                };
            }
        }
    }

    fn token(&self) -> Token {
        self.tokens[self.idx]
    }

    fn kind(&self) -> TokenKind {
        self.token().kind
    }

    fn span(&self) -> Span {
        self.token().span
    }

    fn text(&self, span: Span) -> &str {
        &self.source[span.start..span.end]
    }

    /// Passes the current token, which is neither `End` nor `Bad`, and returns its span.
    fn advance(&mut self) -> Span {
        let span = self.span();
        self.idx += 1;
        self.expected.clear();
        span
    }

    /// The span from `start` to the last token passed.
    fn since(&self, start: Span) -> Span {
        let last = self
            .idx
            .checked_sub(1)
            .map_or(start, |last| self.tokens[last].span);
        start.to(last)
    }

    /// Notes that `item` could stand at the current token.
    fn expect(&mut self, item: &'static str) {
        if !self.expected.contains(&item) {
            self.expected.push(item);
        }
    }

    /// The error for a current token that is none of what was looked for.
    fn unexpected(&mut self) -> ParseError {
        let span = self.span();
        let got = match self.kind() {
            TokenKind::Bad => {
                self.expected.clear();
                return self
                    .lex_error
                    .clone()
                    .expect("a bad token comes with its error");
            }
            TokenKind::End => Got::EndOfInput,
            TokenKind::Word
            | TokenKind::Text
            | TokenKind::Integer
            | TokenKind::Float
            | TokenKind::Punct(_) => Got::token(self.text(span)),
        };
        let expected = self.expected.clone();
        ParseError {
            span,
            kind: ParseErrorKind::Unexpected { got, expected },
        }
    }

    fn at_punct(&self, punct: &str) -> bool {
        matches!(self.kind(), TokenKind::Punct(text) if text == punct)
    }

    fn at_word(&self, keyword: &str) -> bool {
        self.kind() == TokenKind::Word && self.text(self.span()).eq_ignore_ascii_case(keyword)
    }

    fn eat_punct(&mut self, punct: &'static str) -> Option<Span> {
        if self.at_punct(punct) {
            return Some(self.advance());
        }
        self.expect(punct);
        None
    }

    fn need_punct(&mut self, punct: &'static str) -> Result<Span> {
        self.eat_punct(punct).ok_or_else(|| self.unexpected())
    }

    /// Passes `keyword` if it stands here.
    fn eat(&mut self, keyword: &'static str) -> Option<Span> {
        debug_assert!(
            KEYWORDS.contains(&keyword),
            "{keyword} is missing from KEYWORDS"
        );
        if self.at_word(keyword) {
            return Some(self.advance());
        }
        self.expect(keyword);
        None
    }

    fn need(&mut self, keyword: &'static str) -> Result<Span> {
        self.eat(keyword).ok_or_else(|| self.unexpected())
    }

    /// A string.
    fn string(&mut self) -> Result<Text> {
        self.eat_string("string").ok_or_else(|| self.unexpected())
    }

    /// A string, noted as `what` if there is none.
    fn eat_string(&mut self, what: &'static str) -> Option<Text> {
        if self.kind() == TokenKind::Text {
            let span = self.span();
            let value = unescape(self.text(span));
            self.advance();
            return Some(Text { value, span });
        }
        self.expect(what);
        None
    }

    /// The name of a relation: a string, or an identifier that is no keyword.
    fn relation_name(&mut self) -> Result<Text> {
        if let Some(text) = self.eat_string("relation name") {
            return Ok(text);
        }
        let span = self.span();
        if self.kind() == TokenKind::Word && find(KEYWORDS, self.text(span)).is_none() {
            let value = self.text(span).to_owned();
            self.advance();
            return Ok(Text { value, span });
        }
        Err(self.unexpected())
    }

    /// A column name, if one stands here.
    fn eat_column(&mut self) -> Option<Ident> {
        let span = self.span();
        if self.kind() == TokenKind::Word && find(RESERVED, self.text(span)).is_none() {
            let name = self.text(span).to_owned();
            self.advance();
            return Some(Ident { name, span });
        }
        self.expect("column name");
        None
    }

    fn column(&mut self) -> Result<Ident> {
        self.eat_column().ok_or_else(|| self.unexpected())
    }

    /// A whole number that fits in 32 bits without sign.
    ///
    /// A minus or a float is read as well, to be refused by its value and not as a stray token.
    fn number(&mut self) -> Result<Number> {
        self.expect("whole number");
        let start = self.span();
        let signed = self.at_punct("-");
        let number = self
            .tokens
            .get(self.idx + usize::from(signed))
            .copied()
            .unwrap_or(self.token());
        let span = start.to(number.span);
        let text = self.text(span).to_owned();
        match number.kind {
            TokenKind::Integer => {
                let out_of_range = ParseErrorKind::IntegerOutOfRange {
                    text,
                    min: 0,
                    max: i64::from(u32::MAX),
                };
                let error = ParseError {
                    span,
                    kind: out_of_range,
                };
                if signed {
                    return Err(error);
                }
                let value = self.text(span).parse().map_err(|_| error)?;
                self.advance();
                Ok(Number { value, span })
            }
            TokenKind::Float => Err(ParseError {
                span,
                kind: ParseErrorKind::NotAnInteger { text },
            }),
            TokenKind::Word
            | TokenKind::Text
            | TokenKind::Punct(_)
            | TokenKind::Bad
            | TokenKind::End => Err(self.unexpected()),
        }
    }

    /// `a-b`, both included.
    fn layer_range(&mut self) -> Result<LayerRange> {
        let first = self.number()?;
        self.need_punct("-")?;
        let last = self.number()?;
        ascending(first, last)
    }

    /// `a-b`, or one layer as the range from itself to itself.
    fn layer_or_range(&mut self) -> Result<LayerRange> {
        let first = self.number()?;
        if self.eat_punct("-").is_none() {
            let span = first.span;
            return Ok(LayerRange {
                first,
                last: first,
                span,
            });
        }
        let last = self.number()?;
        ascending(first, last)
    }

    /// `(item, item, ...)`, at least one item; the span includes the parentheses.
    fn parenthesized<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<(Vec<T>, Span)> {
        let start = self.need_punct("(")?;
        let items = self.comma_separated(item)?;
        let end = self.need_punct(")")?;
        Ok((items, start.to(end)))
    }

    /// `item, item, ...`, at least one item.
    fn comma_separated<T>(&mut self, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat_punct(",").is_some() {
            self.check_room(items.len())?;
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Whether a list of `n_items` may grow.
    fn check_room(&self, n_items: usize) -> Result<()> {
        if n_items < MAX_LIST_ITEMS {
            return Ok(());
        }
        Err(ParseError {
            span: self.span(),
            kind: ParseErrorKind::TooManyItems,
        })
    }

    /// Goes one level deeper into an expression; `inner` is told where the opening token stands.
    fn nested<T>(
        &mut self,
        opening: Span,
        inner: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(ParseError {
                span: opening,
                kind: ParseErrorKind::TooDeep,
            });
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

/// The range of two numbers.
fn ascending(first: Number, last: Number) -> Result<LayerRange> {
    let span = first.span.to(last.span);
    if first.value > last.value {
        let kind = ParseErrorKind::ReversedRange {
            first: first.value,
            last: last.value,
        };
        return Err(ParseError { span, kind });
    }
    Ok(LayerRange { first, last, span })
}
