//! `SHOW LAYERS`, `SHOW FEATURES`, `SHOW RELATIONS`, `SHOW RELATION` and `SHOW MODELS`.

use crate::Span;
use crate::ast::{ShowFeatures, ShowLayers, ShowModels, ShowRelation, ShowRelations, Statement};
use crate::lexer::TokenKind;
use crate::parser::clause::{Clause, Seen};
use crate::parser::{Parser, Result};

const WHERE: Clause = Clause::alone("WHERE");
const LIMIT: Clause = Clause::alone("LIMIT");
const WITH_EXAMPLES: Clause = Clause::alone("WITH EXAMPLES");

impl Parser<'_> {
    /// What follows `SHOW`, which stands at `start`.
    pub(super) fn show(&mut self, start: Span) -> Result<Statement> {
        if self.eat("LAYERS").is_some() {
            return self.show_layers(start).map(Statement::ShowLayers);
        }
        if self.eat("FEATURES").is_some() {
            return self.show_features(start).map(Statement::ShowFeatures);
        }
        if self.eat("RELATIONS").is_some() {
            return self.show_relations(start).map(Statement::ShowRelations);
        }
        if self.eat("RELATION").is_some() {
            let name = self.relation_name()?;
            return Ok(Statement::ShowRelation(ShowRelation {
                name,
                span: self.since(start),
            }));
        }
        if self.eat("MODELS").is_some() {
            return Ok(Statement::ShowModels(ShowModels {
                span: self.since(start),
            }));
        }
        Err(self.unexpected())
    }

    fn show_layers(&mut self, start: Span) -> Result<ShowLayers> {
        let has_word = self.eat("RANGE").is_some();
        // A minus or a float begins a range too: the number is then refused by its value.
        let has_range = has_word
            || matches!(self.kind(), TokenKind::Integer | TokenKind::Float)
            || self.at_punct("-");
        if !has_range {
            self.expect("whole number");
        }
        let range = if has_range {
            Some(self.layer_or_range()?)
        } else {
            None
        };
        Ok(ShowLayers {
            range,
            span: self.since(start),
        })
    }

    fn show_features(&mut self, start: Span) -> Result<ShowFeatures> {
        let layer = self.number()?;
        let mut seen = Seen::default();
        let filter = if self.clause(&mut seen, WHERE)?.is_some() {
            Some(self.expr()?)
        } else {
            None
        };
        let limit = if self.clause(&mut seen, LIMIT)?.is_some() {
            Some(self.number()?)
        } else {
            None
        };
        self.refuse_late_clause(&seen, &[WHERE, LIMIT])?;
        Ok(ShowFeatures {
            layer,
            filter,
            limit,
            span: self.since(start),
        })
    }

    fn show_relations(&mut self, start: Span) -> Result<ShowRelations> {
        let mut seen = Seen::default();
        let with_examples = self.clause(&mut seen, WITH_EXAMPLES)?.is_some();
        self.refuse_late_clause(&seen, &[WITH_EXAMPLES])?;
        Ok(ShowRelations {
            with_examples,
            span: self.since(start),
        })
    }
}
