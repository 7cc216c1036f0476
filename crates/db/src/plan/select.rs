//! `SELECT` and `SHOW FEATURES`, bound.
//!
//! A `WHERE` is cut at its top-level `AND`s. Terms over `layer` alone decide here which layers are read at all, terms over
//! `entity` or `relation` alone decide what the model is asked; nothing is skipped that the whole filter would keep.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use larql_lql::ast::{
    Columns, CompareOp, Direction, Expr, Ident, Literal, LiteralValue, Nearest, Operand,
    OrderKey as AstOrderKey, Select, ShowFeatures,
};
use rusqlite::types::Value as SqlValue;

use super::bind::Binder;
use super::filter::{Filter, Value, bind_filter, find_column};
use super::refuse;
use super::schema::{EDGES, FEATURES, FEATURES_NEAREST, Table, edge_column, feature_column};
use crate::database::Database;
use crate::error::DbError;
use crate::exec::query_table::QueryTable;
use crate::relations::Relation;

/// Rows given without `LIMIT`.
pub const LIMIT_DEFAULT: usize = 20;
/// Answers per question that `EDGES` holds unless `WHERE` accepts higher ranks.
pub const EDGES_TOP: usize = 3;
/// Highest rank of an answer that can be asked for.
pub const EDGES_RANK_MAX: usize = 100;

/// One key of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderKey {
    /// The column.
    pub column: usize,
    /// Whether high values come first; absent ones come last either way.
    pub descending: bool,
}

/// When the tokens that features write are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Never: no column of them is wanted.
    Unused,
    /// For the rows of the answer.
    Answer,
    /// For every row that the cheap terms of the filter keep, because the rest of it or the order needs them.
    Candidates,
}

/// The features to list.
#[derive(Debug, Clone, PartialEq)]
pub struct FeaturesPlan {
    /// `FEATURES`, with or without the columns of `NEAREST TO`.
    pub table: &'static Table,
    /// Columns of the answer.
    pub columns: Vec<usize>,
    /// Layers that are read, ascending.
    pub layers: Vec<usize>,
    /// Features of these layers.
    pub n_candidates: u64,
    /// The text that features are compared with.
    pub nearest: Option<NearestPlan>,
    /// Which rows.
    pub filter: Option<Filter>,
    /// In which order; rows that are equal in it are ordered by layer and feature.
    pub order: Vec<OrderKey>,
    /// How many rows at most.
    pub limit: usize,
    /// Whether a user wrote the limit.
    pub limit_given: bool,
    /// When tokens are computed.
    pub tokens: Tokens,
}

/// The text that features are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearestPlan {
    /// The text.
    pub text: String,
    /// The token whose embedding stands for it: the last.
    pub token: u32,
    /// Tokens of the text.
    pub n_tokens: usize,
}

/// The edges to list.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgesPlan {
    /// Columns of the answer.
    pub columns: Vec<usize>,
    /// The entities asked about, in the order they were written.
    pub entities: Vec<String>,
    /// The relations asked.
    pub relations: Vec<Relation>,
    /// Answers per question.
    pub top: usize,
    /// Whether the filter asked for that many.
    pub top_given: bool,
    /// Which rows.
    pub filter: Option<Filter>,
    /// In which order; rows that are equal in it keep the order of entities, relations and ranks.
    pub order: Vec<OrderKey>,
    /// How many rows at most.
    pub limit: usize,
    /// Whether a user wrote the limit.
    pub limit_given: bool,
}

const TOKEN_COLUMNS: [usize; 3] = [
    feature_column::TOKEN,
    feature_column::TOKEN_SCORE,
    feature_column::TOKENS,
];

impl Binder<'_> {
    pub(super) fn show_features(&self, node: &ShowFeatures) -> Result<FeaturesPlan, DbError> {
        let ShowFeatures {
            layer,
            filter,
            limit,
            span,
        } = node;
        let db = self.database(*span)?;
        self.require_features(db, *span)?;
        let layer = self.layer(db, *layer)?;
        let filter = self.feature_filter(db, &FEATURES, filter.as_ref(), layer..=layer)?;
        let columns = (0..FEATURES.columns.len()).collect();
        let (limit, limit_given) = self.limit(*limit)?;
        let nearest = None;
        let order = Vec::new();
        self.features_plan(
            &FEATURES,
            columns,
            layer..=layer,
            nearest,
            filter,
            order,
            (limit, limit_given),
        )
    }

    pub(super) fn features(&self, node: &Select) -> Result<FeaturesPlan, DbError> {
        let Select {
            columns,
            source: _,
            nearest,
            filter,
            order_by,
            limit,
            span,
        } = node;
        let db = self.database(*span)?;
        self.require_features(db, *span)?;
        let last = db.spec().n_layers().saturating_sub(1);
        let (table, layers) = match nearest.as_ref() {
            None => (&FEATURES, 0..=last),
            Some(Nearest { layer: None, .. }) => (&FEATURES_NEAREST, 0..=last),
            Some(Nearest {
                layer: Some(layer), ..
            }) => {
                let layer = self.layer(db, *layer)?;
                (&FEATURES_NEAREST, layer..=layer)
            }
        };
        let columns = select_list(table, columns)?;
        let filter = self.feature_filter(db, table, filter.as_ref(), layers.clone())?;
        let mut order = order_keys(table, order_by)?;
        if nearest.is_some() && order.is_empty() {
            order.push(OrderKey {
                column: feature_column::GATE_DOT,
                descending: true,
            });
        }
        let limit = self.limit(*limit)?;
        let nearest = nearest
            .as_ref()
            .map(|nearest| self.nearest(nearest))
            .transpose()?;
        self.features_plan(table, columns, layers, nearest, filter, order, limit)
    }

    /// A filter of features of these layers; an address that the model has not is a mistake in it, not an empty answer.
    fn feature_filter(
        &self,
        db: &Database,
        table: &'static Table,
        filter: Option<&Expr>,
        layers: RangeInclusive<usize>,
    ) -> Result<Option<Filter>, DbError> {
        let Some(expr) = filter else {
            return Ok(None);
        };
        let bound = bind_filter(table, expr)?;
        self.address_literals(db, table, expr, &bound, layers)?;
        Ok(Some(bound))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the clauses of one statement, all required"
    )]
    fn features_plan(
        &self,
        table: &'static Table,
        columns: Vec<usize>,
        layers: RangeInclusive<usize>,
        nearest: Option<NearestPlan>,
        filter: Option<Filter>,
        order: Vec<OrderKey>,
        (limit, limit_given): (usize, bool),
    ) -> Result<FeaturesPlan, DbError> {
        let layers = accepted(
            table,
            feature_column::LAYER,
            filter.as_ref(),
            layers.map(Value::from),
        )?;
        let layers: Vec<usize> = layers.iter().filter_map(Value::as_index).collect();
        let spec = self.db.map(crate::database::Database::spec);
        let n_features = |layer: &usize| spec.and_then(|spec| spec.n_features(*layer)).unwrap_or(0);
        let is_token = |column: &usize| TOKEN_COLUMNS.contains(column);
        let filters_tokens = filter
            .as_ref()
            .is_some_and(|filter| filter.columns().iter().any(is_token));
        let tokens = if filters_tokens || order.iter().any(|key| is_token(&key.column)) {
            Tokens::Candidates
        } else if columns.iter().any(is_token) {
            Tokens::Answer
        } else {
            Tokens::Unused
        };
        let n_candidates = layers.iter().map(n_features).sum();
        Ok(FeaturesPlan {
            table,
            columns,
            layers,
            n_candidates,
            nearest,
            filter,
            order,
            limit,
            limit_given,
            tokens,
        })
    }

    pub(super) fn edges(&self, node: &Select) -> Result<EdgesPlan, DbError> {
        let Select {
            columns,
            source,
            nearest,
            filter,
            order_by,
            limit,
            span,
        } = node;
        if let Some(nearest) = nearest {
            return Err(
                refuse(nearest.span, "NEAREST TO compares features, EDGES has none")
                    .with_hint("SELECT * FROM FEATURES NEAREST TO \"text\""),
            );
        }
        let db = self.database(*span)?;
        self.require_run(db, *span)?;
        let columns = select_list(&EDGES, columns)?;
        let order = order_keys(&EDGES, order_by)?;
        let is_relation = |ident: &Ident| EDGES.find(&ident.name) == Some(edge_column::RELATION);
        for literal in filter
            .as_ref()
            .map(|expr| compared_with(expr, &is_relation))
            .unwrap_or_default()
        {
            if let LiteralValue::Text(name) = &literal.value {
                self.relation(name, literal.span)?;
            }
        }
        let filter = filter
            .as_ref()
            .map(|expr| bind_filter(&EDGES, expr))
            .transpose()?;
        let (limit, limit_given) = self.limit(*limit)?;
        let unbound = || {
            refuse(
                source.span,
                "FROM EDGES asks the model: bind the entity, e.g. WHERE entity = \"France\"",
            )
        };
        let entities = bound_entities(filter.as_ref()).ok_or_else(unbound)?;
        if entities.iter().any(|entity| entity.trim().is_empty()) {
            return Err(refuse(source.span, "an empty entity cannot be asked about"));
        }
        let entities = accepted(
            &EDGES,
            edge_column::ENTITY,
            filter.as_ref(),
            entities.into_iter().map(Value::Text),
        )?;
        let names = self
            .relations
            .iter()
            .map(|relation| Value::Text(relation.name.clone()));
        let wanted = accepted(&EDGES, edge_column::RELATION, filter.as_ref(), names)?;
        let relations = self
            .relations
            .iter()
            .filter(|relation| {
                wanted
                    .iter()
                    .any(|name| *name == Value::Text(relation.name.clone()))
            })
            .cloned()
            .collect();
        let is_rank = |term: &&Filter| only_column(term) == Some(edge_column::RANK);
        let top_given = filter
            .as_ref()
            .is_some_and(|filter| filter.conjuncts().iter().any(is_rank));
        let ranks = accepted(
            &EDGES,
            edge_column::RANK,
            filter.as_ref(),
            (1..=EDGES_RANK_MAX).map(Value::from),
        )?;
        let highest = ranks.iter().filter_map(Value::as_index).max().unwrap_or(0);
        Ok(EdgesPlan {
            columns,
            entities: entities.into_iter().filter_map(Value::into_text).collect(),
            relations,
            top: if top_given { highest } else { EDGES_TOP },
            top_given,
            filter,
            order,
            limit,
            limit_given,
        })
    }
}

fn select_list(table: &Table, columns: &Columns) -> Result<Vec<usize>, DbError> {
    match columns {
        Columns::All { span: _ } => Ok((0..table.columns.len()).collect()),
        Columns::Named { names, span: _ } => {
            let mut list = Vec::with_capacity(names.len());
            for name in names {
                let column = find_column(table, name)?;
                if list.contains(&column) {
                    return Err(refuse(
                        name.span,
                        format!("column `{}` is given twice", name.name),
                    ));
                }
                list.push(column);
            }
            Ok(list)
        }
    }
}

fn order_keys(table: &Table, keys: &[AstOrderKey]) -> Result<Vec<OrderKey>, DbError> {
    let mut list: Vec<OrderKey> = Vec::with_capacity(keys.len());
    for AstOrderKey {
        column,
        direction,
        span: _,
    } in keys
    {
        let idx = find_column(table, column)?;
        if list.iter().any(|key| key.column == idx) {
            return Err(refuse(
                column.span,
                format!("ORDER BY names `{}` twice", column.name),
            ));
        }
        let descending = match direction {
            Direction::Ascending => false,
            Direction::Descending => true,
        };
        list.push(OrderKey {
            column: idx,
            descending,
        });
    }
    Ok(list)
}

/// Every constant that a column is said to equal or not, or to lie between: where such a column has few values, one that
/// is none of them is a mistake, not an empty answer.
pub(super) fn compared_with<'a>(
    expr: &'a Expr,
    is_column: &dyn Fn(&Ident) -> bool,
) -> Vec<&'a Literal> {
    match expr {
        Expr::And { terms, span: _ } | Expr::Or { terms, span: _ } => terms
            .iter()
            .flat_map(|term| compared_with(term, is_column))
            .collect(),
        Expr::Not { inner, span: _ } => compared_with(inner, is_column),
        Expr::Compare {
            left,
            op: CompareOp::Eq | CompareOp::Ne,
            right,
            span: _,
        } => match (left, right) {
            (Operand::Column(column), Operand::Literal(literal))
            | (Operand::Literal(literal), Operand::Column(column))
                if is_column(column) =>
            {
                vec![literal]
            }
            (
                Operand::Column(_) | Operand::Literal(_),
                Operand::Column(_) | Operand::Literal(_),
            ) => vec![],
        },
        Expr::In {
            column,
            negated: _,
            items,
            span: _,
        } if is_column(column) => items.iter().collect(),
        Expr::Between {
            column,
            negated: _,
            low,
            high,
            span: _,
        } if is_column(column) => vec![low, high],
        Expr::Compare { .. }
        | Expr::In { .. }
        | Expr::Like { .. }
        | Expr::Between { .. }
        | Expr::IsNull { .. } => vec![],
    }
}

/// The column of a term that reads only one.
fn only_column(term: &Filter) -> Option<usize> {
    let columns: Vec<usize> = term.columns().into_iter().collect();
    match columns.as_slice() {
        [column] => Some(*column),
        [] | [_, _, ..] => None,
    }
}

/// Those values of a column that the terms over this column alone accept, each once, in order.
fn accepted(
    table: &'static Table,
    column: usize,
    filter: Option<&Filter>,
    values: impl Iterator<Item = Value>,
) -> Result<Vec<Value>, DbError> {
    let mut distinct: Vec<Value> = Vec::new();
    let mut seen = BTreeSet::new();
    for value in values {
        if seen.insert(value.key()) {
            distinct.push(value);
        }
    }
    let terms = filter.map(Filter::conjuncts).unwrap_or_default();
    let terms: Vec<&Filter> = terms
        .into_iter()
        .filter(|term| only_column(term) == Some(column))
        .collect();
    if terms.is_empty() {
        return Ok(distinct);
    }
    let rows = QueryTable::new(table, vec![column])?;
    rows.fill(distinct.len(), |row, values| {
        values.push(SqlValue::from(&distinct[row]))
    })?;
    Ok(rows
        .select(&terms, &[])?
        .into_iter()
        .map(|row| distinct[row].clone())
        .collect())
}

/// The entities that a filter names by `=` or `IN` in one of the terms that must hold.
fn bound_entities(filter: Option<&Filter>) -> Option<Vec<String>> {
    let texts = |items: &[Value]| {
        items
            .iter()
            .cloned()
            .filter_map(Value::into_text)
            .collect::<Vec<_>>()
    };
    filter?.conjuncts().into_iter().find_map(|term| match term {
        Filter::Compare {
            column: edge_column::ENTITY,
            op: CompareOp::Eq,
            value,
        } => Some(texts(std::slice::from_ref(value))),
        Filter::In {
            column: edge_column::ENTITY,
            negated: false,
            items,
        } => Some(texts(items)),
        Filter::And(_)
        | Filter::Or(_)
        | Filter::Not(_)
        | Filter::Compare { .. }
        | Filter::Like { .. }
        | Filter::In { .. }
        | Filter::Between { .. }
        | Filter::IsNull { .. } => None,
    })
}

impl Value {
    fn as_index(&self) -> Option<usize> {
        match self {
            Self::Integer(n) => usize::try_from(*n).ok(),
            Self::Real(_) | Self::Text(_) => None,
        }
    }

    fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Integer(_) | Self::Real(_) => None,
        }
    }

    /// Equal for equal constants of one column.
    fn key(&self) -> String {
        match self {
            Self::Integer(n) => n.to_string(),
            Self::Real(x) => x.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self::Integer(i64::try_from(n).expect("indices here fit i64"))
    }
}

impl From<&Value> for SqlValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Integer(n) => Self::Integer(*n),
            Value::Real(x) => Self::Real(*x),
            Value::Text(text) => Self::Text(text.clone()),
        }
    }
}
