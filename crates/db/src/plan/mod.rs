//! Bound plans: a statement with every name looked up, every number checked and every default filled in.
//!
//! Nothing here runs. A plan that exists can be executed; what cannot be executed is refused while binding, with the place
//! in the text. `EXPLAIN` prints a plan through its `Display`.

mod address_check;
mod asked;
pub(crate) mod bind;
mod explain;
pub mod filter;
pub mod schema;
mod select;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use larql_lql::Span;

use crate::error::DbError;
use crate::relations::Relation;

pub use asked::{DESCRIBE_TOP, DescribePlan, Detail, INFER_TOP, InferPlan, WALK_TOP, WalkPlan};
pub use explain::Step;
#[cfg(test)]
pub(crate) use filter::bind_filter;
pub use select::{
    EDGES_RANK_MAX, EDGES_TOP, EdgesPlan, FeaturesPlan, LIMIT_DEFAULT, NearestPlan, OrderKey,
    Tokens,
};

/// A statement that can be executed.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// Opens another model and then forgets the one before. Cost: headers of its files.
    Use {
        /// Where it is.
        path: PathBuf,
    },
    /// Facts about the open model. Cost: no weights are read.
    Stats,
    /// Facts about layers. Cost: no weights are read.
    ShowLayers {
        /// Which layers.
        layers: RangeInclusive<usize>,
    },
    /// The models of a folder. Cost: headers of each.
    ShowModels {
        /// The folder.
        folder: PathBuf,
    },
    /// The relations that can be asked. Cost: none.
    ShowRelations {
        /// Whether examples are shown.
        with_examples: bool,
    },
    /// One relation. Cost: none.
    ShowRelation {
        /// The relation.
        relation: Relation,
    },
    /// Keeps a relation with the model. Cost: one small write.
    CreateRelation {
        /// The relation.
        relation: Relation,
    },
    /// Forgets a relation that a user made. Cost: one small write.
    DropRelation {
        /// Its name.
        name: String,
    },
    /// Asks the model about an entity. Cost: a forward pass per template.
    Describe(DescribePlan),
    /// Runs a prompt and shows the next tokens. Cost: a forward pass, and one per generated token.
    Infer {
        /// What is asked.
        plan: InferPlan,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// Runs a prompt and shows the features that fired. Cost: a forward pass.
    Walk {
        /// What is asked.
        plan: WalkPlan,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// Lists features. Cost: one read of each matrix that a wanted column needs; for tokens, the unembedding once per
    /// batch of features.
    Features(FeaturesPlan),
    /// Lists what the model answers. Cost: a forward pass per entity, relation and template.
    Edges(EdgesPlan),
    /// Shows a plan. Cost: none.
    Explain(Box<Plan>),
}

/// A refusal that points at the text.
pub(crate) fn refuse(span: Span, message: impl Into<String>) -> DbError {
    DbError::Query {
        span,
        message: message.into(),
        hint: None,
    }
}

impl DbError {
    /// Adds what would work to a refusal; other errors have their own way of saying it.
    #[must_use]
    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Query { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }
}
