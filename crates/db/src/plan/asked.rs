//! What `DESCRIBE`, `INFER` and `WALK` ask, with every name looked up and every default filled in.
//!
//! Plain data: binding makes them, the modules of the same names answer them.

use std::ops::RangeInclusive;

use crate::relations::Relation;

/// Answers of each relation that `DESCRIBE` gives without `TOP`.
pub const DESCRIBE_TOP: usize = 3;
/// Candidates that `INFER` gives without `TOP`.
pub const INFER_TOP: usize = 5;
/// Features that `WALK` gives without `TOP`.
pub const WALK_TOP: usize = 10;

/// How much `DESCRIBE` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Only the answers.
    Brief,
    /// The answers and what speaks for them.
    Normal,
    /// Also a row per template.
    Verbose,
}

impl Detail {
    /// The word in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Normal => "normal",
            Self::Verbose => "verbose",
        }
    }
}

/// What the model answers about an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribePlan {
    /// The entity, as text; never empty.
    pub entity: String,
    /// The relations asked, in order; never empty.
    pub relations: Vec<Relation>,
    /// Layers whose evidence is listed; `None` is all of them.
    pub layers: Option<RangeInclusive<usize>>,
    /// Answers per relation, at least one.
    pub top: usize,
    /// How much is told.
    pub detail: Detail,
}

/// The next tokens of a prompt, by running the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferPlan {
    /// The prompt.
    pub prompt: String,
    /// Candidates for the next token, at least one.
    pub top: usize,
    /// Tokens to continue with.
    pub generate: Option<usize>,
}

/// The features that a prompt makes fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkPlan {
    /// The prompt.
    pub prompt: String,
    /// Features, at least one.
    pub top: usize,
    /// Layers that are looked at.
    pub layers: RangeInclusive<usize>,
    /// Index of the token that is looked at; `None` is the last.
    pub position: Option<usize>,
}
