//! Statements and their clauses.
//!
//! An absent clause is `None`; which default applies is for the planner to say.

use crate::Span;
use crate::ast::{Expr, Ident, LayerRange, Number, Text};

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `USE`
    Use(Use),
    /// `STATS`
    Stats(Stats),
    /// `SHOW LAYERS`
    ShowLayers(ShowLayers),
    /// `SHOW FEATURES`
    ShowFeatures(ShowFeatures),
    /// `SHOW RELATIONS`
    ShowRelations(ShowRelations),
    /// `SHOW RELATION`
    ShowRelation(ShowRelation),
    /// `SHOW MODELS`
    ShowModels(ShowModels),
    /// `DESCRIBE`
    Describe(Describe),
    /// `WALK`
    Walk(Walk),
    /// `INFER`
    Infer(Infer),
    /// `SELECT`
    Select(Select),
    /// `EXPLAIN`
    Explain(Explain),
    /// `CREATE RELATION`
    CreateRelation(CreateRelation),
    /// `DROP RELATION`
    DropRelation(DropRelation),
}

impl Statement {
    /// Where the statement stands, without the `;` that follows it.
    pub fn span(&self) -> Span {
        match self {
            Self::Use(node) => node.span,
            Self::Stats(node) => node.span,
            Self::ShowLayers(node) => node.span,
            Self::ShowFeatures(node) => node.span,
            Self::ShowRelations(node) => node.span,
            Self::ShowRelation(node) => node.span,
            Self::ShowModels(node) => node.span,
            Self::Describe(node) => node.span,
            Self::Walk(node) => node.span,
            Self::Infer(node) => node.span,
            Self::Select(node) => node.span,
            Self::Explain(node) => node.span,
            Self::CreateRelation(node) => node.span,
            Self::DropRelation(node) => node.span,
        }
    }

    /// The words that name the statement, such as `SHOW LAYERS`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Use(_) => "USE",
            Self::Stats(_) => "STATS",
            Self::ShowLayers(_) => "SHOW LAYERS",
            Self::ShowFeatures(_) => "SHOW FEATURES",
            Self::ShowRelations(_) => "SHOW RELATIONS",
            Self::ShowRelation(_) => "SHOW RELATION",
            Self::ShowModels(_) => "SHOW MODELS",
            Self::Describe(_) => "DESCRIBE",
            Self::Walk(_) => "WALK",
            Self::Infer(_) => "INFER",
            Self::Select(_) => "SELECT",
            Self::Explain(_) => "EXPLAIN",
            Self::CreateRelation(_) => "CREATE RELATION",
            Self::DropRelation(_) => "DROP RELATION",
        }
    }
}

/// `USE "path"`: makes a model the one that later statements ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// Path of the model.
    pub path: Text,
    /// Where it stands.
    pub span: Span,
}

/// `STATS`: what the model in use consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Where it stands.
    pub span: Span,
}

/// `SHOW LAYERS [[RANGE] a-b]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowLayers {
    /// Only these layers.
    pub range: Option<LayerRange>,
    /// Where it stands.
    pub span: Span,
}

/// `SHOW FEATURES layer [WHERE expr] [LIMIT n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShowFeatures {
    /// The layer whose features are listed.
    pub layer: Number,
    /// `WHERE`
    pub filter: Option<Expr>,
    /// `LIMIT`
    pub limit: Option<Number>,
    /// Where it stands.
    pub span: Span,
}

/// `SHOW RELATIONS [WITH EXAMPLES]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowRelations {
    /// Whether `WITH EXAMPLES` was written.
    pub with_examples: bool,
    /// Where it stands.
    pub span: Span,
}

/// `SHOW RELATION name`: one relation with its templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowRelation {
    /// Name of the relation.
    pub name: Text,
    /// Where it stands.
    pub span: Span,
}

/// `SHOW MODELS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowModels {
    /// Where it stands.
    pub span: Span,
}

/// `DESCRIBE "entity" ...`: what the model answers about an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    /// The entity, as text.
    pub entity: Text,
    /// `RELATION name` or `RELATIONS (name, ...)`: only these relations.
    pub relations: Option<RelationList>,
    /// Layers whose features are listed.
    pub layers: Option<LayerChoice>,
    /// `TOP`: answers per relation.
    pub top: Option<Number>,
    /// `BRIEF` or `VERBOSE`.
    pub detail: Option<Detail>,
    /// Where it stands.
    pub span: Span,
}

/// `WALK "prompt" ...`: the features that a prompt makes fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The prompt.
    pub prompt: Text,
    /// `TOP`: how many features.
    pub top: Option<Number>,
    /// Layers that are looked at.
    pub layers: Option<LayerChoice>,
    /// The position of the prompt that is looked at.
    pub position: Option<Position>,
    /// Where it stands.
    pub span: Span,
}

/// `INFER "prompt" ...`: the next tokens, by running the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infer {
    /// The prompt.
    pub prompt: Text,
    /// `TOP`: how many candidates for the next token.
    pub top: Option<Number>,
    /// `GENERATE`: how many tokens to continue with.
    pub generate: Option<Number>,
    /// Where it stands.
    pub span: Span,
}

/// `SELECT columns FROM source ...`.
#[derive(Clone, Debug, PartialEq)]
pub struct Select {
    /// What is returned of each row.
    pub columns: Columns,
    /// `FROM`
    pub source: Source,
    /// `NEAREST TO`
    pub nearest: Option<Nearest>,
    /// `WHERE`
    pub filter: Option<Expr>,
    /// `ORDER BY`, most significant key first; empty if the clause is absent.
    pub order_by: Vec<OrderKey>,
    /// `LIMIT`
    pub limit: Option<Number>,
    /// Where it stands.
    pub span: Span,
}

/// `EXPLAIN statement`: the plan of a statement instead of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Explain {
    /// The explained statement, never itself an `EXPLAIN`.
    pub statement: Box<Statement>,
    /// Where it stands.
    pub span: Span,
}

/// `CREATE RELATION name TEMPLATES (...) [ANSWERS (...)] [TYPE "..."]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRelation {
    /// Name of the relation.
    pub name: Text,
    /// Prompts with a placeholder for the entity; their form is for the planner to check.
    pub templates: TextList,
    /// The answers that can occur.
    pub answers: Option<TextList>,
    /// What kind of thing an answer is.
    pub answer_type: Option<Text>,
    /// Where it stands.
    pub span: Span,
}

/// `DROP RELATION name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRelation {
    /// Name of the relation.
    pub name: Text,
    /// Where it stands.
    pub span: Span,
}

/// A list of relation names; `RELATION x` is a list of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationList {
    /// One or more names.
    pub names: Vec<Text>,
    /// Where the clause stands.
    pub span: Span,
}

/// A parenthesized list of strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextList {
    /// One or more strings.
    pub items: Vec<Text>,
    /// Where the list stands, parentheses included.
    pub span: Span,
}

/// Which layers a statement looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerChoice {
    /// `AT LAYER n`
    One {
        /// The layer.
        layer: Number,
        /// Where the clause stands.
        span: Span,
    },
    /// `LAYERS a-b`
    Range {
        /// The layers.
        range: LayerRange,
        /// Where the clause stands.
        span: Span,
    },
    /// `LAYERS ALL`
    All {
        /// Where the clause stands.
        span: Span,
    },
}

impl LayerChoice {
    /// Where the clause stands.
    pub fn span(&self) -> Span {
        match self {
            Self::One { span, .. } | Self::Range { span, .. } | Self::All { span } => *span,
        }
    }
}

/// How much `DESCRIBE` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The level asked for.
    pub level: DetailLevel,
    /// Where it stands.
    pub span: Span,
}

/// The levels of [`Detail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetailLevel {
    /// `BRIEF`: only the answer rows.
    Brief,
    /// `VERBOSE`: also a row per template.
    Verbose,
}

/// The position of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// `POSITION n`
    At {
        /// The index of the token.
        index: Number,
        /// Where the clause stands.
        span: Span,
    },
    /// `POSITION LAST`, or `LAST` alone.
    Last {
        /// Where the clause stands.
        span: Span,
    },
}

impl Position {
    /// Where the clause stands.
    pub fn span(&self) -> Span {
        match self {
            Self::At { span, .. } | Self::Last { span } => *span,
        }
    }
}

/// The select list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Columns {
    /// `*`
    All {
        /// Where it stands.
        span: Span,
    },
    /// `a, b, ...`
    Named {
        /// One or more column names.
        names: Vec<Ident>,
        /// Where the list stands.
        span: Span,
    },
}

impl Columns {
    /// Where the select list stands.
    pub fn span(&self) -> Span {
        match self {
            Self::All { span } | Self::Named { span, .. } => *span,
        }
    }
}

/// What `SELECT` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The table.
    pub kind: SourceKind,
    /// Where it stands.
    pub span: Span,
}

/// The tables that `SELECT` can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// `EDGES`
    Edges,
    /// `FEATURES`
    Features,
}

/// `NEAREST TO "text" [AT LAYER n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The text whose vector is compared.
    pub text: Text,
    /// The layer that is searched.
    pub layer: Option<Number>,
    /// Where the clause stands.
    pub span: Span,
}

/// One key of `ORDER BY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKey {
    /// The column.
    pub column: Ident,
    /// The direction; ascending unless `DESC` is written.
    pub direction: Direction,
    /// Where it stands.
    pub span: Span,
}

/// A sort direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `ASC`
    Ascending,
    /// `DESC`
    Descending,
}
