//! The leaves of the tree: names, strings, numbers and literals.

use crate::Span;

/// A column name, in the case in which it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ident {
    /// `[A-Za-z_][A-Za-z0-9_]*`, and none of [`RESERVED`](crate::RESERVED) in any case.
    pub name: String,
    /// Where it stands.
    pub span: Span,
}

/// A string with its escapes resolved, or a bare identifier where a name may be written either way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text {
    /// The value, without quotes.
    pub value: String,
    /// Where it stands, quotes included.
    pub span: Span,
}

/// A whole number of a clause such as `LIMIT` or `AT LAYER`, checked to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number {
    /// The value.
    pub value: u32,
    /// Where it stands.
    pub span: Span,
}

/// A range of layers with both ends included; `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerRange {
    /// The lowest layer.
    pub first: Number,
    /// The highest layer.
    pub last: Number,
    /// Where it stands.
    pub span: Span,
}

/// A constant in a `WHERE` expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Literal {
    /// The value.
    pub value: LiteralValue,
    /// Where it stands, a leading minus included.
    pub span: Span,
}

/// The value of a [`Literal`].
#[derive(Clone, Debug, PartialEq)]
pub enum LiteralValue {
    /// A string, escapes resolved.
    Text(String),
    /// A number without point or exponent.
    Integer(i64),
    /// A number with a point or an exponent; always finite.
    Float(f64),
    /// `TRUE` or `FALSE`.
    Boolean(bool),
    /// `NULL`.
    Null,
}
