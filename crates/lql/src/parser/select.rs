//! `SELECT`, whose clauses come in one order.

use crate::Span;
use crate::ast::{Columns, Direction, Nearest, OrderKey, Select, Source, SourceKind, Statement};
use crate::parser::clause::{Clause, Seen};
use crate::parser::{Parser, Result};

const NEAREST_TO: Clause = Clause::alone("NEAREST TO");
const WHERE: Clause = Clause::alone("WHERE");
const ORDER_BY: Clause = Clause::alone("ORDER BY");
const LIMIT: Clause = Clause::alone("LIMIT");
const CLAUSES: [Clause; 4] = [NEAREST_TO, WHERE, ORDER_BY, LIMIT];

impl Parser<'_> {
    /// What follows `SELECT`, which stands at `start`.
    pub(super) fn select(&mut self, start: Span) -> Result<Statement> {
        let columns = self.columns()?;
        self.need("FROM")?;
        let source = self.source()?;
        let mut seen = Seen::default();
        let nearest = match self.clause(&mut seen, NEAREST_TO)? {
            Some(start) => Some(self.nearest(start)?),
            None => None,
        };
        let filter = if self.clause(&mut seen, WHERE)?.is_some() {
            Some(self.expr()?)
        } else {
            None
        };
        let order_by = if self.clause(&mut seen, ORDER_BY)?.is_some() {
            self.comma_separated(Self::order_key)?
        } else {
            Vec::new()
        };
        let limit = if self.clause(&mut seen, LIMIT)?.is_some() {
            Some(self.number()?)
        } else {
            None
        };
        self.refuse_late_clause(&seen, &CLAUSES)?;
        let span = self.since(start);
        Ok(Statement::Select(Select {
            columns,
            source,
            nearest,
            filter,
            order_by,
            limit,
            span,
        }))
    }

    fn columns(&mut self) -> Result<Columns> {
        if let Some(span) = self.eat_punct("*") {
            return Ok(Columns::All { span });
        }
        let start = self.span();
        let names = self.comma_separated(Self::column)?;
        Ok(Columns::Named {
            names,
            span: self.since(start),
        })
    }

    fn source(&mut self) -> Result<Source> {
        if let Some(span) = self.eat("EDGES") {
            return Ok(Source {
                kind: SourceKind::Edges,
                span,
            });
        }
        if let Some(span) = self.eat("FEATURES") {
            return Ok(Source {
                kind: SourceKind::Features,
                span,
            });
        }
        Err(self.unexpected())
    }

    /// What follows `NEAREST TO`, which stands at `start`.
    fn nearest(&mut self, start: Span) -> Result<Nearest> {
        let text = self.string()?;
        let layer = if self.eat("AT").is_some() {
            self.need("LAYER")?;
            Some(self.number()?)
        } else {
            None
        };
        Ok(Nearest {
            text,
            layer,
            span: self.since(start),
        })
    }

    fn order_key(&mut self) -> Result<OrderKey> {
        let column = self.column()?;
        let start = column.span;
        let direction = if self.eat("DESC").is_some() {
            Direction::Descending
        } else {
            // Ascending is the default, so the word changes nothing.
            self.eat("ASC");
            Direction::Ascending
        };
        Ok(OrderKey {
            column,
            direction,
            span: self.since(start),
        })
    }
}
