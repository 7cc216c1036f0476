//! The syntax tree: what a statement says, before any name in it has been looked up.
//!
//! Every node carries the [`Span`](crate::Span) it was read from, which `==` ignores.
//! Fields are public and no node has behavior, so a consumer destructures without `..` and a new
//! clause becomes a compile error until it has been handled.
//! Lists documented as non-empty are so in every tree that [`parse`](crate::parse) returns.

mod atom;
mod expr;
mod statement;

pub use atom::{Ident, LayerRange, Literal, LiteralValue, Number, Text};
pub use expr::{CompareOp, Expr, Operand};
pub use statement::{
    Columns, CreateRelation, Describe, Detail, DetailLevel, Direction, DropRelation, Explain,
    Infer, LayerChoice, Nearest, OrderKey, Position, RelationList, Select, ShowFeatures,
    ShowLayers, ShowModels, ShowRelation, ShowRelations, Source, SourceKind, Statement, Stats,
    TextList, Use, Walk,
};
