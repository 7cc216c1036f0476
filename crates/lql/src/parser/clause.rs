//! Optional clauses: each at most once, none together with one that it excludes.

use crate::Span;
use crate::error::{ParseError, ParseErrorKind};
use crate::parser::{Parser, Result};

/// A clause as a statement knows it.
///
/// Clauses of one statement that share a slot exclude each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Clause {
    /// Its words, such as `ORDER BY`.
    pub(super) words: &'static str,
    /// What it decides.
    pub(super) slot: &'static str,
}

impl Clause {
    /// A clause that excludes no other.
    pub(super) const fn alone(words: &'static str) -> Self {
        Self { words, slot: words }
    }

    /// A clause that excludes the others with the same slot.
    pub(super) const fn one_of(slot: &'static str, words: &'static str) -> Self {
        Self { words, slot }
    }
}

/// The clauses that a statement has had, with their places.
#[derive(Default)]
pub(super) struct Seen(Vec<(Clause, Span)>);

impl Seen {
    fn in_slot(&self, slot: &str) -> Option<(Clause, Span)> {
        self.0
            .iter()
            .copied()
            .find(|(clause, _)| clause.slot == slot)
    }
}

impl Parser<'_> {
    /// Passes the words of `clause` if its first word stands here, and returns their span.
    ///
    /// # Errors
    ///
    /// A clause whose slot is taken; a first word without the ones that must follow it.
    pub(super) fn clause(&mut self, seen: &mut Seen, clause: Clause) -> Result<Option<Span>> {
        let mut words = clause.words.split(' ');
        let first = words.next().expect("split yields at least one part");
        let earlier = seen.in_slot(clause.slot);
        if let Some((earlier, earlier_span)) = earlier {
            if self.at_word(first) {
                let kind = ParseErrorKind::RepeatedClause {
                    clause: clause.words,
                    earlier: earlier.words,
                    earlier_span,
                };
                return Err(ParseError {
                    span: self.span(),
                    kind,
                });
            }
            return Ok(None);
        }
        let Some(start) = self.eat(first) else {
            return Ok(None);
        };
        for word in words {
            self.need(word)?;
        }
        let span = self.since(start);
        seen.0.push((clause, span));
        Ok(Some(span))
    }

    /// Refuses one of `order` standing here, after a statement that takes its clauses in that
    /// order has read all it could.
    pub(super) fn refuse_late_clause(&self, seen: &Seen, order: &[Clause]) -> Result<()> {
        for clause in order {
            let first = clause.words.split(' ').next().unwrap_or(clause.words);
            if !self.at_word(first) {
                continue;
            }
            let span = self.span();
            let clause_words = clause.words;
            if let Some((earlier, earlier_span)) = seen.in_slot(clause.slot) {
                let kind = ParseErrorKind::RepeatedClause {
                    clause: clause_words,
                    earlier: earlier.words,
                    earlier_span,
                };
                return Err(ParseError { span, kind });
            }
            let follower = order
                .iter()
                .skip_while(|other| *other != clause)
                .find(|other| seen.in_slot(other.slot).is_some());
            if let Some(follower) = follower {
                let kind = ParseErrorKind::MisplacedClause {
                    clause: clause_words,
                    before: follower.words,
                };
                return Err(ParseError { span, kind });
            }
        }
        Ok(())
    }
}
