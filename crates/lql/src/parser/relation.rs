//! `CREATE RELATION` and `DROP RELATION`.

use crate::Span;
use crate::ast::{CreateRelation, DropRelation, Statement, TextList};
use crate::parser::clause::{Clause, Seen};
use crate::parser::{Parser, Result};

const TEMPLATES: Clause = Clause::alone("TEMPLATES");
const ANSWERS: Clause = Clause::alone("ANSWERS");
const TYPE: Clause = Clause::alone("TYPE");

impl Parser<'_> {
    /// What follows `CREATE`, which stands at `start`; clauses come in any order.
    pub(super) fn create_relation(&mut self, start: Span) -> Result<Statement> {
        self.need("RELATION")?;
        let name = self.relation_name()?;
        let mut seen = Seen::default();
        let (mut templates, mut answers, mut answer_type) = (None, None, None);
        loop {
            if self.clause(&mut seen, TEMPLATES)?.is_some() {
                templates = Some(self.text_list()?);
            } else if self.clause(&mut seen, ANSWERS)?.is_some() {
                answers = Some(self.text_list()?);
            } else if self.clause(&mut seen, TYPE)?.is_some() {
                answer_type = Some(self.string()?);
            } else {
                break;
            }
        }
        let Some(templates) = templates else {
            return Err(self.unexpected());
        };
        let span = self.since(start);
        Ok(Statement::CreateRelation(CreateRelation {
            name,
            templates,
            answers,
            answer_type,
            span,
        }))
    }

    /// What follows `DROP`, which stands at `start`.
    pub(super) fn drop_relation(&mut self, start: Span) -> Result<Statement> {
        self.need("RELATION")?;
        let name = self.relation_name()?;
        Ok(Statement::DropRelation(DropRelation {
            name,
            span: self.since(start),
        }))
    }

    fn text_list(&mut self) -> Result<TextList> {
        let (items, span) = self.parenthesized(Self::string)?;
        Ok(TextList { items, span })
    }
}
