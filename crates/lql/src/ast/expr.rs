//! Boolean expressions of `WHERE`.

use crate::Span;
use crate::ast::{Ident, Literal, Text};

/// A boolean expression.
///
/// `AND` and `OR` hold all their terms side by side, so the depth of a tree is bounded by the
/// parentheses and `NOT`s in the text ([`MAX_DEPTH`](crate::MAX_DEPTH)) however long a chain is.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `a AND b AND ...`: true if every term is.
    And {
        /// Two or more terms, in source order.
        terms: Vec<Expr>,
        /// Where it stands.
        span: Span,
    },
    /// `a OR b OR ...`: true if any term is.
    Or {
        /// Two or more terms, in source order.
        terms: Vec<Expr>,
        /// Where it stands.
        span: Span,
    },
    /// `NOT a`.
    Not {
        /// The negated expression.
        inner: Box<Expr>,
        /// Where it stands.
        span: Span,
    },
    /// `left op right`.
    Compare {
        /// Left side.
        left: Operand,
        /// The operator.
        op: CompareOp,
        /// Right side.
        right: Operand,
        /// Where it stands.
        span: Span,
    },
    /// `column [NOT] LIKE "pattern"`.
    Like {
        /// The column that is matched.
        column: Ident,
        /// Whether `NOT` was written.
        negated: bool,
        /// The pattern; what `%` and `_` mean is for the consumer to say.
        pattern: Text,
        /// Where it stands.
        span: Span,
    },
    /// `column [NOT] IN (a, b, ...)`.
    In {
        /// The column that is looked up.
        column: Ident,
        /// Whether `NOT` was written.
        negated: bool,
        /// One or more values.
        items: Vec<Literal>,
        /// Where it stands.
        span: Span,
    },
    /// `column [NOT] BETWEEN low AND high`, both ends included.
    Between {
        /// The column that is compared.
        column: Ident,
        /// Whether `NOT` was written.
        negated: bool,
        /// Lower end.
        low: Literal,
        /// Upper end.
        high: Literal,
        /// Where it stands.
        span: Span,
    },
    /// `column IS [NOT] NULL`.
    IsNull {
        /// The column that is tested.
        column: Ident,
        /// Whether `NOT` was written.
        negated: bool,
        /// Where it stands.
        span: Span,
    },
}

impl Expr {
    /// Where the expression stands; enclosing parentheses are not part of it.
    pub fn span(&self) -> Span {
        match self {
            Self::And { span, .. }
            | Self::Or { span, .. }
            | Self::Not { span, .. }
            | Self::Compare { span, .. }
            | Self::Like { span, .. }
            | Self::In { span, .. }
            | Self::Between { span, .. }
            | Self::IsNull { span, .. } => *span,
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The value of a column.
    Column(Ident),
    /// A constant.
    Literal(Literal),
}

impl Operand {
    /// Where the operand stands.
    pub fn span(&self) -> Span {
        match self {
            Self::Column(ident) => ident.span,
            Self::Literal(literal) => literal.span,
        }
    }
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `=`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}
