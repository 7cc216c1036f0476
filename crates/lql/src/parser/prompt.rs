//! The statements that ask the model about a text: `DESCRIBE`, `WALK` and `INFER`.
//!
//! Their clauses come in any order.

use crate::Span;
use crate::ast::{
    Describe, Detail, DetailLevel, Infer, LayerChoice, Position, RelationList, Statement, Walk,
};
use crate::parser::clause::{Clause, Seen};
use crate::parser::{Parser, Result};

const TOP: Clause = Clause::alone("TOP");
const GENERATE: Clause = Clause::alone("GENERATE");
const AT_LAYER: Clause = Clause::one_of("layers", "AT LAYER");
const LAYERS: Clause = Clause::one_of("layers", "LAYERS");
const RELATION: Clause = Clause::one_of("relations", "RELATION");
const RELATIONS: Clause = Clause::one_of("relations", "RELATIONS");
const BRIEF: Clause = Clause::one_of("detail", "BRIEF");
const VERBOSE: Clause = Clause::one_of("detail", "VERBOSE");
const POSITION: Clause = Clause::one_of("position", "POSITION");
const LAST: Clause = Clause::one_of("position", "LAST");

impl Parser<'_> {
    /// What follows `DESCRIBE`, which stands at `start`.
    pub(super) fn describe(&mut self, start: Span) -> Result<Statement> {
        let entity = self.string()?;
        let mut seen = Seen::default();
        let (mut relations, mut layers, mut top, mut detail) = (None, None, None, None);
        loop {
            if let Some(list) = self.relations_clause(&mut seen)? {
                relations = Some(list);
            } else if let Some(choice) = self.layers_clause(&mut seen)? {
                layers = Some(choice);
            } else if self.clause(&mut seen, TOP)?.is_some() {
                top = Some(self.number()?);
            } else if let Some(span) = self.clause(&mut seen, BRIEF)? {
                detail = Some(Detail {
                    level: DetailLevel::Brief,
                    span,
                });
            } else if let Some(span) = self.clause(&mut seen, VERBOSE)? {
                detail = Some(Detail {
                    level: DetailLevel::Verbose,
                    span,
                });
            } else {
                break;
            }
        }
        let span = self.since(start);
        Ok(Statement::Describe(Describe {
            entity,
            relations,
            layers,
            top,
            detail,
            span,
        }))
    }

    /// What follows `WALK`, which stands at `start`.
    pub(super) fn walk(&mut self, start: Span) -> Result<Statement> {
        let prompt = self.string()?;
        let mut seen = Seen::default();
        let (mut top, mut layers, mut position) = (None, None, None);
        loop {
            if self.clause(&mut seen, TOP)?.is_some() {
                top = Some(self.number()?);
            } else if let Some(choice) = self.layers_clause(&mut seen)? {
                layers = Some(choice);
            } else if let Some(choice) = self.position_clause(&mut seen)? {
                position = Some(choice);
            } else {
                break;
            }
        }
        Ok(Statement::Walk(Walk {
            prompt,
            top,
            layers,
            position,
            span: self.since(start),
        }))
    }

    /// What follows `INFER`, which stands at `start`.
    pub(super) fn infer(&mut self, start: Span) -> Result<Statement> {
        let prompt = self.string()?;
        let mut seen = Seen::default();
        let (mut top, mut generate) = (None, None);
        loop {
            if self.clause(&mut seen, TOP)?.is_some() {
                top = Some(self.number()?);
            } else if self.clause(&mut seen, GENERATE)?.is_some() {
                generate = Some(self.number()?);
            } else {
                break;
            }
        }
        Ok(Statement::Infer(Infer {
            prompt,
            top,
            generate,
            span: self.since(start),
        }))
    }

    /// `RELATION name` or `RELATIONS (name, ...)`.
    fn relations_clause(&mut self, seen: &mut Seen) -> Result<Option<RelationList>> {
        if let Some(start) = self.clause(seen, RELATION)? {
            let names = vec![self.relation_name()?];
            return Ok(Some(RelationList {
                names,
                span: self.since(start),
            }));
        }
        if let Some(start) = self.clause(seen, RELATIONS)? {
            let (names, _) = self.parenthesized(Self::relation_name)?;
            return Ok(Some(RelationList {
                names,
                span: self.since(start),
            }));
        }
        Ok(None)
    }

    /// `AT LAYER n`, `LAYERS a-b` or `LAYERS ALL`.
    fn layers_clause(&mut self, seen: &mut Seen) -> Result<Option<LayerChoice>> {
        if let Some(start) = self.clause(seen, AT_LAYER)? {
            let layer = self.number()?;
            return Ok(Some(LayerChoice::One {
                layer,
                span: self.since(start),
            }));
        }
        let Some(start) = self.clause(seen, LAYERS)? else {
            return Ok(None);
        };
        if self.eat("ALL").is_some() {
            return Ok(Some(LayerChoice::All {
                span: self.since(start),
            }));
        }
        let range = self.layer_range()?;
        Ok(Some(LayerChoice::Range {
            range,
            span: self.since(start),
        }))
    }

    /// `POSITION n`, `POSITION LAST` or `LAST`.
    fn position_clause(&mut self, seen: &mut Seen) -> Result<Option<Position>> {
        let Some(start) = self.clause(seen, POSITION)? else {
            let last = self.clause(seen, LAST)?;
            return Ok(last.map(|span| Position::Last { span }));
        };
        if self.eat("LAST").is_some() {
            return Ok(Some(Position::Last {
                span: self.since(start),
            }));
        }
        let index = self.number()?;
        Ok(Some(Position::At {
            index,
            span: self.since(start),
        }))
    }
}
