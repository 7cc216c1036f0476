//! `WHERE` with its columns found and its types checked.
//!
//! The meaning is SQL's, with `NULL` as a third truth value: only rows for which the whole is true are kept. Evaluation is
//! SQLite's work; this is the part that refuses what cannot mean anything.

use std::collections::BTreeSet;

use larql_lql::Span;
use larql_lql::ast::{CompareOp, Expr, Ident, Literal, LiteralValue, Operand};

use super::refuse;
use super::schema::{ColumnType, Table, did_you_mean};
use crate::error::DbError;

/// Most constants in one filter; SQLite binds no more than 32,766 parameters.
pub const VALUES_MAX: usize = 30_000;

/// A filter over the columns of a table, by index.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// Every term holds.
    And(Vec<Filter>),
    /// Some term holds.
    Or(Vec<Filter>),
    /// The term does not hold.
    Not(Box<Filter>),
    /// A column beside a constant.
    Compare {
        /// The column.
        column: usize,
        /// The operator, with the column on its left.
        op: CompareOp,
        /// The constant.
        value: Value,
    },
    /// Text beside a pattern: `%` is any text, `_` any character, ASCII letters match in any case.
    Like {
        /// The column.
        column: usize,
        /// Whether it must not match.
        negated: bool,
        /// The pattern.
        pattern: String,
    },
    /// One of several constants.
    In {
        /// The column.
        column: usize,
        /// Whether it must be none of them.
        negated: bool,
        /// The constants, at least one.
        items: Vec<Value>,
    },
    /// Between two constants, both included.
    Between {
        /// The column.
        column: usize,
        /// Whether it must be outside.
        negated: bool,
        /// The lower.
        low: Value,
        /// The upper.
        high: Value,
    },
    /// Absent.
    IsNull {
        /// The column.
        column: usize,
        /// Whether it must be present.
        negated: bool,
    },
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Text.
    Text(String),
}

impl Filter {
    /// The terms that must all hold; a filter that is no `AND` is one term.
    pub fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::And(terms) => terms.iter().flat_map(Self::conjuncts).collect(),
            Self::Or(_)
            | Self::Not(_)
            | Self::Compare { .. }
            | Self::Like { .. }
            | Self::In { .. }
            | Self::Between { .. }
            | Self::IsNull { .. } => vec![self],
        }
    }

    /// The columns it reads.
    pub fn columns(&self) -> BTreeSet<usize> {
        match self {
            Self::And(terms) | Self::Or(terms) => terms.iter().flat_map(Self::columns).collect(),
            Self::Not(inner) => inner.columns(),
            Self::Compare { column, .. }
            | Self::Like { column, .. }
            | Self::In { column, .. }
            | Self::Between { column, .. }
            | Self::IsNull { column, .. } => BTreeSet::from([*column]),
        }
    }

    fn n_values(&self) -> usize {
        match self {
            Self::And(terms) | Self::Or(terms) => terms.iter().map(Self::n_values).sum(),
            Self::Not(inner) => inner.n_values(),
            Self::Compare { .. } | Self::Like { .. } => 1,
            Self::In { items, .. } => items.len(),
            Self::Between { .. } => 2,
            Self::IsNull { .. } => 0,
        }
    }
}

/// Finds the columns of an expression and checks its types.
///
/// # Errors
/// Points at the first name or constant that does not fit.
pub(crate) fn bind_filter(table: &Table, expr: &Expr) -> Result<Filter, DbError> {
    let filter = bind(table, expr)?;
    let n_values = filter.n_values();
    if n_values > VALUES_MAX {
        return Err(refuse(
            expr.span(),
            format!("WHERE has {n_values} constants, at most {VALUES_MAX} are allowed"),
        ));
    }
    Ok(filter)
}

fn bind(table: &Table, expr: &Expr) -> Result<Filter, DbError> {
    let all = |terms: &[Expr]| {
        terms
            .iter()
            .map(|term| bind(table, term))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(match expr {
        Expr::And { terms, span: _ } => Filter::And(all(terms)?),
        Expr::Or { terms, span: _ } => Filter::Or(all(terms)?),
        Expr::Not { inner, span: _ } => Filter::Not(Box::new(bind(table, inner)?)),
        Expr::Compare {
            left,
            op,
            right,
            span,
        } => bind_compare(table, left, *op, right, *span)?,
        Expr::Like {
            column,
            negated,
            pattern,
            span: _,
        } => {
            let idx = find_column(table, column)?;
            if table.columns[idx].kind != ColumnType::Text {
                return Err(refuse(
                    column.span,
                    format!(
                        "LIKE compares text, `{}` is a number",
                        table.columns[idx].name
                    ),
                ));
            }
            Filter::Like {
                column: idx,
                negated: *negated,
                pattern: pattern.value.clone(),
            }
        }
        Expr::In {
            column,
            negated,
            items,
            span: _,
        } => {
            let idx = find_column(table, column)?;
            let items = items
                .iter()
                .map(|item| constant(table, idx, item))
                .collect::<Result<_, _>>()?;
            Filter::In {
                column: idx,
                negated: *negated,
                items,
            }
        }
        Expr::Between {
            column,
            negated,
            low,
            high,
            span: _,
        } => {
            let idx = find_column(table, column)?;
            let (low, high) = (constant(table, idx, low)?, constant(table, idx, high)?);
            Filter::Between {
                column: idx,
                negated: *negated,
                low,
                high,
            }
        }
        Expr::IsNull {
            column,
            negated,
            span: _,
        } => Filter::IsNull {
            column: find_column(table, column)?,
            negated: *negated,
        },
    })
}

fn bind_compare(
    table: &Table,
    left: &Operand,
    op: CompareOp,
    right: &Operand,
    span: Span,
) -> Result<Filter, DbError> {
    match (left, right) {
        (Operand::Column(column), Operand::Literal(literal)) => {
            let column = find_column(table, column)?;
            Ok(Filter::Compare {
                column,
                op,
                value: constant(table, column, literal)?,
            })
        }
        (Operand::Literal(literal), Operand::Column(column)) => {
            let column = find_column(table, column)?;
            Ok(Filter::Compare {
                column,
                op: flipped(op),
                value: constant(table, column, literal)?,
            })
        }
        (Operand::Column(column), Operand::Column(other)) => {
            find_column(table, column)?;
            let hint = format!("to compare with text, quote it: \"{}\"", other.name);
            Err(refuse(
                other.span,
                format!(
                    "`{}` is compared with a name, not with a constant",
                    column.name
                ),
            )
            .with_hint(hint))
        }
        (Operand::Literal(_), Operand::Literal(_)) => Err(refuse(
            span,
            "a comparison of two constants selects nothing: one side must be a column".to_owned(),
        )),
    }
}

/// The operator that says the same with its sides exchanged.
fn flipped(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Eq,
        CompareOp::Ne => CompareOp::Ne,
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
    }
}

/// Index of a column, or an error that lists those there are.
pub(crate) fn find_column(table: &Table, ident: &Ident) -> Result<usize, DbError> {
    if let Some(idx) = table.find(&ident.name) {
        return Ok(idx);
    }
    let name = &ident.name;
    if ["gate_dot", "cosine"]
        .iter()
        .any(|nearest| name.eq_ignore_ascii_case(nearest))
        && table.name == "FEATURES"
    {
        return Err(refuse(
            ident.span,
            format!("column `{name}` exists only with NEAREST TO"),
        )
        .with_hint("SELECT * FROM FEATURES NEAREST TO \"text\"".to_owned()));
    }
    let suggestion = did_you_mean(name, table.names())
        .map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    let known = table.names().join(", ");
    Err(refuse(
        ident.span,
        format!("unknown column `{name}` of {}{suggestion}", table.name),
    )
    .with_hint(format!("known: {known}")))
}

/// A constant that a column can be compared with.
fn constant(table: &Table, column: usize, literal: &Literal) -> Result<Value, DbError> {
    let column = &table.columns[column];
    let (value, kind) = match &literal.value {
        LiteralValue::Text(text) => (Value::Text(text.clone()), ColumnType::Text),
        LiteralValue::Integer(n) => (Value::Integer(*n), ColumnType::Integer),
        LiteralValue::Float(x) => (Value::Real(*x), ColumnType::Real),
        LiteralValue::Boolean(_) => {
            return Err(refuse(
                literal.span,
                format!(
                    "`{}` is {}, not TRUE or FALSE",
                    column.name,
                    column.kind.name()
                ),
            ));
        }
        LiteralValue::Null => {
            let hint = format!("{0} IS NULL, {0} IS NOT NULL", column.name);
            return Err(
                refuse(literal.span, "nothing compares with NULL".to_owned()).with_hint(hint),
            );
        }
    };
    if kind.name() == column.kind.name() {
        return Ok(value);
    }
    Err(refuse(
        literal.span,
        format!(
            "`{}` is {}, it cannot be compared with {}",
            column.name,
            column.kind.name(),
            kind.name()
        ),
    ))
}
