//! Boolean expressions: `OR` binds least, then `AND`, then `NOT`, then the predicates.

use crate::Span;
use crate::ast::{CompareOp, Expr, Ident, Literal, LiteralValue, Operand};
use crate::error::{ParseError, ParseErrorKind};
use crate::lexer::TokenKind;
use crate::parser::{Parser, Result};

/// The comparison operators with their spellings.
const COMPARE_OPS: [(&str, CompareOp); 6] = [
    ("=", CompareOp::Eq),
    ("!=", CompareOp::Ne),
    ("<", CompareOp::Lt),
    ("<=", CompareOp::Le),
    (">", CompareOp::Gt),
    (">=", CompareOp::Ge),
];

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Result<Expr> {
        let (mut terms, span) = self.chain("OR", Self::and_chain)?;
        match terms.len() {
            1 => Ok(terms.remove(0)),
            _ => Ok(Expr::Or { terms, span }),
        }
    }

    fn and_chain(&mut self) -> Result<Expr> {
        let (mut terms, span) = self.chain("AND", Self::factor)?;
        match terms.len() {
            1 => Ok(terms.remove(0)),
            _ => Ok(Expr::And { terms, span }),
        }
    }

    /// `term {joint term}`.
    fn chain(
        &mut self,
        joint: &'static str,
        term: fn(&mut Self) -> Result<Expr>,
    ) -> Result<(Vec<Expr>, Span)> {
        let start = self.span();
        let mut terms = vec![term(self)?];
        while self.eat(joint).is_some() {
            self.check_room(terms.len())?;
            terms.push(term(self)?);
        }
        Ok((terms, self.since(start)))
    }

    fn factor(&mut self) -> Result<Expr> {
        if let Some(start) = self.eat("NOT") {
            let inner = self.nested(start, Self::factor)?;
            return Ok(Expr::Not {
                inner: Box::new(inner),
                span: self.since(start),
            });
        }
        if let Some(start) = self.eat_punct("(") {
            let inner = self.nested(start, Self::expr)?;
            self.need_punct(")")?;
            return Ok(inner);
        }
        self.predicate()
    }

    fn predicate(&mut self) -> Result<Expr> {
        let Some(column) = self.eat_column() else {
            let Some(literal) = self.eat_literal()? else {
                return Err(self.unexpected());
            };
            return self.comparison(Operand::Literal(literal));
        };
        if self.eat("IS").is_some() {
            let negated = self.eat("NOT").is_some();
            self.need("NULL")?;
            let span = self.since(column.span);
            return Ok(Expr::IsNull {
                column,
                negated,
                span,
            });
        }
        let negated = self.eat("NOT").is_some();
        if self.eat("LIKE").is_some() {
            let pattern = self.string()?;
            let span = self.since(column.span);
            return Ok(Expr::Like {
                column,
                negated,
                pattern,
                span,
            });
        }
        if self.eat("IN").is_some() {
            let (items, _) = self.parenthesized(Self::literal)?;
            let span = self.since(column.span);
            return Ok(Expr::In {
                column,
                negated,
                items,
                span,
            });
        }
        if self.eat("BETWEEN").is_some() {
            return self.between(column, negated);
        }
        if negated {
            return Err(self.unexpected());
        }
        self.comparison(Operand::Column(column))
    }

    /// What follows `column [NOT] BETWEEN`.
    fn between(&mut self, column: Ident, negated: bool) -> Result<Expr> {
        let low = self.literal()?;
        self.need("AND")?;
        let high = self.literal()?;
        let span = self.since(column.span);
        Ok(Expr::Between {
            column,
            negated,
            low,
            high,
            span,
        })
    }

    fn comparison(&mut self, left: Operand) -> Result<Expr> {
        for (text, op) in COMPARE_OPS {
            if self.eat_punct(text).is_some() {
                let right = match self.eat_column() {
                    Some(column) => Operand::Column(column),
                    None => Operand::Literal(self.literal()?),
                };
                let span = self.since(left.span());
                return Ok(Expr::Compare {
                    left,
                    op,
                    right,
                    span,
                });
            }
        }
        Err(self.unexpected())
    }

    fn literal(&mut self) -> Result<Literal> {
        match self.eat_literal()? {
            Some(literal) => Ok(literal),
            None => Err(self.unexpected()),
        }
    }

    /// A literal, or `None` if none begins here.
    fn eat_literal(&mut self) -> Result<Option<Literal>> {
        if let Some(text) = self.eat_string("string") {
            return Ok(Some(Literal {
                value: LiteralValue::Text(text.value),
                span: text.span,
            }));
        }
        let words = [
            ("TRUE", LiteralValue::Boolean(true)),
            ("FALSE", LiteralValue::Boolean(false)),
            ("NULL", LiteralValue::Null),
        ];
        for (word, value) in words {
            if let Some(span) = self.eat(word) {
                return Ok(Some(Literal { value, span }));
            }
        }
        self.expect("number");
        let start = self.span();
        let signed = self.at_punct("-");
        if signed {
            self.advance();
            self.expect("number");
        }
        let span = start.to(self.span());
        let sign = if signed { "-" } else { "" };
        let text = format!("{sign}{}", self.text(self.span()));
        let value = match self.kind() {
            TokenKind::Integer => integer(text, span)?,
            TokenKind::Float => float(text, span)?,
            TokenKind::Word
            | TokenKind::Text
            | TokenKind::Punct(_)
            | TokenKind::Bad
            | TokenKind::End => {
                return if signed {
                    Err(self.unexpected())
                } else {
                    Ok(None)
                };
            }
        };
        self.advance();
        Ok(Some(Literal { value, span }))
    }
}

fn integer(text: String, span: Span) -> Result<LiteralValue> {
    match text.parse() {
        Ok(value) => Ok(LiteralValue::Integer(value)),
        Err(_) => {
            let kind = ParseErrorKind::IntegerOutOfRange {
                text,
                min: i64::MIN,
                max: i64::MAX,
            };
            Err(ParseError { span, kind })
        }
    }
}

fn float(text: String, span: Span) -> Result<LiteralValue> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(LiteralValue::Float(value)),
        Ok(_) | Err(_) => Err(ParseError {
            span,
            kind: ParseErrorKind::FloatOutOfRange { text },
        }),
    }
}
