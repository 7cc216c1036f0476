//! Which statement it is; `USE`, `STATS` and `EXPLAIN`.

use crate::ast::{Explain, Statement, Stats, Use};
use crate::error::{ParseError, ParseErrorKind};
use crate::keyword::{UNAVAILABLE_STATEMENTS, find};
use crate::lexer::TokenKind;
use crate::parser::{Parser, Result};

impl Parser<'_> {
    /// A statement, or `None` if the current token begins none.
    pub(super) fn statement(&mut self) -> Result<Option<Statement>> {
        if let Some(statement) = self.plain_statement()? {
            return Ok(Some(statement));
        }
        let Some(start) = self.eat("EXPLAIN") else {
            return Ok(None);
        };
        let Some(statement) = self.plain_statement()? else {
            return Err(self.unexpected());
        };
        let span = self.since(start);
        Ok(Some(Statement::Explain(Explain {
            statement: Box::new(statement),
            span,
        })))
    }

    /// A statement other than `EXPLAIN`.
    fn plain_statement(&mut self) -> Result<Option<Statement>> {
        self.refuse_unavailable()?;
        if let Some(start) = self.eat("USE") {
            let path = self.string()?;
            return Ok(Some(Statement::Use(Use {
                path,
                span: self.since(start),
            })));
        }
        if let Some(span) = self.eat("STATS") {
            return Ok(Some(Statement::Stats(Stats { span })));
        }
        if let Some(start) = self.eat("SHOW") {
            return self.show(start).map(Some);
        }
        if let Some(start) = self.eat("DESCRIBE") {
            return self.describe(start).map(Some);
        }
        if let Some(start) = self.eat("WALK") {
            return self.walk(start).map(Some);
        }
        if let Some(start) = self.eat("INFER") {
            return self.infer(start).map(Some);
        }
        if let Some(start) = self.eat("SELECT") {
            return self.select(start).map(Some);
        }
        if let Some(start) = self.eat("CREATE") {
            return self.create_relation(start).map(Some);
        }
        if let Some(start) = self.eat("DROP") {
            return self.drop_relation(start).map(Some);
        }
        Ok(None)
    }

    fn refuse_unavailable(&self) -> Result<()> {
        if self.kind() != TokenKind::Word {
            return Ok(());
        }
        let span = self.span();
        match find(UNAVAILABLE_STATEMENTS, self.text(span)) {
            Some(statement) => Err(ParseError {
                span,
                kind: ParseErrorKind::NotYet { statement },
            }),
            None => Ok(()),
        }
    }
}
