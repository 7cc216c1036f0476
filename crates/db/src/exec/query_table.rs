//! An in-memory SQLite table that filters and orders rows.
//!
//! Comparison, `LIKE`, `NULL` and order are SQLite's own, so they are what its documentation says. Every constant is a bound
//! parameter; the text of a statement never becomes SQL.

use std::fmt::Write;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};

use crate::error::DbError;
use crate::plan::OrderKey;
use crate::plan::filter::{Filter, Value};
use crate::plan::schema::Table;
use larql_lql::ast::CompareOp;

/// A table with some columns of a [`Table`].
#[derive(Debug)]
pub(crate) struct QueryTable {
    connection: Connection,
    table: &'static Table,
    columns: Vec<usize>,
}

impl QueryTable {
    /// An empty table with the columns given.
    pub(crate) fn new(table: &'static Table, columns: Vec<usize>) -> Result<Self, DbError> {
        let connection = Connection::open_in_memory()?;
        let list: Vec<String> = columns
            .iter()
            .map(|idx| {
                let column = &table.columns[*idx];
                format!("\"{}\" {}", column.name, column.kind.sql())
            })
            .collect();
        let separator = if list.is_empty() { "" } else { ", " };
        connection.execute_batch(&format!(
            "CREATE TABLE rows (row INTEGER PRIMARY KEY{separator}{})",
            list.join(", ")
        ))?;
        Ok(Self {
            connection,
            table,
            columns,
        })
    }

    /// Inserts rows `0..n`; `values` pushes one value per column.
    pub(crate) fn fill(
        &self,
        n: usize,
        mut values: impl FnMut(usize, &mut Vec<SqlValue>),
    ) -> Result<(), DbError> {
        let places = vec!["?"; self.columns.len() + 1].join(", ");
        self.connection.execute_batch("BEGIN")?;
        let mut insert = self
            .connection
            .prepare(&format!("INSERT INTO rows VALUES ({places})"))?;
        let mut row_values = Vec::with_capacity(self.columns.len() + 1);
        for row in 0..n {
            row_values.clear();
            row_values.push(SqlValue::Integer(
                i64::try_from(row).expect("row counts fit i64"),
            ));
            values(row, &mut row_values);
            insert.execute(params_from_iter(&row_values))?;
        }
        drop(insert);
        self.connection.execute_batch("COMMIT")?;
        Ok(())
    }

    /// Indices of the rows for which every term is true, in the order asked for, then as they were inserted.
    pub(crate) fn select(
        &self,
        terms: &[&Filter],
        order: &[OrderKey],
    ) -> Result<Vec<usize>, DbError> {
        let mut sql = SqlText {
            text: "SELECT row FROM rows".to_owned(),
            values: Vec::new(),
            table: self.table,
        };
        if !terms.is_empty() {
            sql.text.push_str(" WHERE ");
            sql.balanced(terms, " AND ");
        }
        sql.text.push_str(" ORDER BY ");
        for key in order {
            let direction = if key.descending { "DESC" } else { "ASC" };
            sql.column(key.column);
            let _ = write!(sql.text, " {direction} NULLS LAST, ");
        }
        sql.text.push_str("row");
        let mut statement = self.connection.prepare(&sql.text)?;
        let rows =
            statement.query_map(params_from_iter(&sql.values), |row| row.get::<_, i64>(0))?;
        let rows = rows.collect::<Result<Vec<i64>, _>>()?;
        Ok(rows
            .into_iter()
            .map(|row| usize::try_from(row).expect("rows are numbered from 0"))
            .collect())
    }
}

struct SqlText {
    text: String,
    values: Vec<SqlValue>,
    table: &'static Table,
}

impl SqlText {
    fn column(&mut self, idx: usize) {
        self.text.push('"');
        self.text.push_str(self.table.columns[idx].name);
        self.text.push('"');
    }

    fn value(&mut self, value: &Value) {
        self.text.push('?');
        self.values.push(SqlValue::from(value));
    }

    /// Terms joined as a balanced tree: SQLite bounds the depth of an expression, not its width.
    fn balanced(&mut self, terms: &[&Filter], joint: &str) {
        match terms {
            [] => {}
            [term] => self.filter(term),
            [_, _, ..] => {
                let (left, right) = terms.split_at(terms.len() / 2);
                self.text.push('(');
                self.balanced(left, joint);
                self.text.push_str(joint);
                self.balanced(right, joint);
                self.text.push(')');
            }
        }
    }

    fn filter(&mut self, filter: &Filter) {
        match filter {
            Filter::And(terms) => self.balanced(&terms.iter().collect::<Vec<_>>(), " AND "),
            Filter::Or(terms) => self.balanced(&terms.iter().collect::<Vec<_>>(), " OR "),
            Filter::Not(inner) => {
                self.text.push_str("NOT (");
                self.filter(inner);
                self.text.push(')');
            }
            Filter::Compare { column, op, value } => {
                self.column(*column);
                self.text.push_str(match op {
                    CompareOp::Eq => " = ",
                    CompareOp::Ne => " <> ",
                    CompareOp::Lt => " < ",
                    CompareOp::Le => " <= ",
                    CompareOp::Gt => " > ",
                    CompareOp::Ge => " >= ",
                });
                self.value(value);
            }
            Filter::Like {
                column,
                negated,
                pattern,
            } => {
                self.column(*column);
                self.text
                    .push_str(if *negated { " NOT LIKE " } else { " LIKE " });
                self.value(&Value::Text(pattern.clone()));
            }
            Filter::In {
                column,
                negated,
                items,
            } => {
                self.column(*column);
                self.text
                    .push_str(if *negated { " NOT IN (" } else { " IN (" });
                for (idx, item) in items.iter().enumerate() {
                    if idx > 0 {
                        self.text.push_str(", ");
                    }
                    self.value(item);
                }
                self.text.push(')');
            }
            Filter::Between {
                column,
                negated,
                low,
                high,
            } => {
                self.column(*column);
                self.text.push_str(if *negated {
                    " NOT BETWEEN "
                } else {
                    " BETWEEN "
                });
                self.value(low);
                self.text.push_str(" AND ");
                self.value(high);
            }
            Filter::IsNull { column, negated } => {
                self.column(*column);
                self.text
                    .push_str(if *negated { " IS NOT NULL" } else { " IS NULL" });
            }
        }
    }
}
