//! The tables that `SELECT` reads: their columns and the types of these.

use strsim::jaro_winkler;

/// Least similarity at which another name is offered in place of an unknown one.
const SIMILARITY_MIN: f64 = 0.8;

/// A table.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name after `FROM`.
    pub name: &'static str,
    /// Its columns, in the order of `SELECT *`.
    pub columns: &'static [Column],
}

/// A column.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds, besides `NULL`.
    pub kind: ColumnType,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// Whole numbers.
    Integer,
    /// Numbers.
    Real,
    /// Text.
    Text,
}

impl ColumnType {
    /// The words in a message.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer | Self::Real => "a number",
            Self::Text => "text",
        }
    }

    /// The type in the query table.
    pub fn sql(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
        }
    }
}

const fn column(name: &'static str, kind: ColumnType) -> Column {
    Column { name, kind }
}

/// Columns of `FEATURES`, by index.
pub mod feature_column {
    /// The layer.
    pub const LAYER: usize = 0;
    /// Index of the feature in its layer.
    pub const FEATURE: usize = 1;
    /// Which FFN of the layer it belongs to: `dense`, `expert` or `shared`.
    pub const FFN: usize = 2;
    /// The routed expert it belongs to, if it belongs to one.
    pub const EXPERT: usize = 3;
    /// Its number in that FFN.
    pub const NEURON: usize = 4;
    /// Euclidean norm of the gate row.
    pub const GATE_NORM: usize = 5;
    /// Euclidean norm of the up row.
    pub const UP_NORM: usize = 6;
    /// Euclidean norm of the down column.
    pub const DOWN_NORM: usize = 7;
    /// The token that the feature writes most.
    pub const TOKEN: usize = 8;
    /// Its score.
    pub const TOKEN_SCORE: usize = 9;
    /// The ten tokens it writes most.
    pub const TOKENS: usize = 10;
    /// Gate row times the text's vector.
    pub const GATE_DOT: usize = 11;
    /// The same, of unit vectors.
    pub const COSINE: usize = 12;
}

const FEATURE_COLUMNS: &[Column] = &[
    column("layer", ColumnType::Integer),
    column("feature", ColumnType::Integer),
    column("ffn", ColumnType::Text),
    column("expert", ColumnType::Integer),
    column("neuron", ColumnType::Integer),
    column("gate_norm", ColumnType::Real),
    column("up_norm", ColumnType::Real),
    column("down_norm", ColumnType::Real),
    column("token", ColumnType::Text),
    column("token_score", ColumnType::Real),
    column("tokens", ColumnType::Text),
    column("gate_dot", ColumnType::Real),
    column("cosine", ColumnType::Real),
];

/// FFN features, one row each.
pub static FEATURES: Table = Table {
    name: "FEATURES",
    columns: FEATURE_COLUMNS.split_at(11).0,
};

/// FFN features beside a text's vector.
pub static FEATURES_NEAREST: Table = Table {
    name: "FEATURES",
    columns: FEATURE_COLUMNS,
};

/// Columns of `EDGES`, by index.
pub mod edge_column {
    /// The entity asked about.
    pub const ENTITY: usize = 0;
    /// The relation asked.
    pub const RELATION: usize = 1;
    /// The answer.
    pub const TARGET: usize = 2;
    /// Its rank among the answers to this question.
    pub const RANK: usize = 3;
}

/// What the model answers about an entity, one row per answer.
pub static EDGES: Table = Table {
    name: "EDGES",
    columns: &[
        column("entity", ColumnType::Text),
        column("relation", ColumnType::Text),
        column("target", ColumnType::Text),
        column("rank", ColumnType::Integer),
        column("prob", ColumnType::Real),
        column("share", ColumnType::Real),
        column("lift", ColumnType::Real),
        column("templates", ColumnType::Integer),
        column("template", ColumnType::Text),
    ],
};

impl Table {
    /// Index of a column; names are written in any case.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns
            .iter()
            .position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Names of the columns, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.name).collect()
    }
}

/// The closest of the names, if one is close at all.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    known
        .into_iter()
        .map(|name| (jaro_winkler(&wrong, &name.to_lowercase()), name))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
