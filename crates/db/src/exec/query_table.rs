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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::bind_filter;
    use crate::plan::schema::FEATURES;
    use crate::plan::schema::feature_column::{TOKEN, UP_NORM};
    use larql_lql::Statement;

    /// Rows `0..`: up_norm and token.
    const ROWS: &[(Option<f64>, Option<&str>)] = &[
        (Some(2.0), Some("Paris")),
        (None, Some("paris")),
        (Some(1.0), None),
        (Some(2.0), Some("50% \u{e9}")),
        (Some(-1.5), Some("")),
    ];

    fn filter(text: &str) -> Filter {
        let statement = format!("SELECT * FROM FEATURES WHERE {text}");
        let Statement::Select(select) = larql_lql::parse(&statement).unwrap().remove(0) else {
            unreachable!()
        };
        bind_filter(&FEATURES, &select.filter.unwrap()).unwrap()
    }

    fn rows(filter: Option<&Filter>, order: &[OrderKey]) -> Vec<usize> {
        let table = QueryTable::new(&FEATURES, vec![UP_NORM, TOKEN]).unwrap();
        table
            .fill(ROWS.len(), |row, values| {
                values.push(ROWS[row].0.map_or(SqlValue::Null, SqlValue::Real));
                values.push(
                    ROWS[row]
                        .1
                        .map_or(SqlValue::Null, |text| SqlValue::Text(text.to_owned())),
                );
            })
            .unwrap();
        table
            .select(&filter.map(Filter::conjuncts).unwrap_or_default(), order)
            .unwrap()
    }

    #[test]
    fn conditions_mean_what_they_mean_in_sql() {
        for (text, expected) in [
            ("up_norm = 2", vec![0, 3]),
            ("2.0 > up_norm", vec![2, 4]),
            ("up_norm != 2", vec![2, 4]),
            ("NOT up_norm = 2", vec![2, 4]),
            ("up_norm IS NULL OR up_norm = -1.5", vec![1, 4]),
            ("up_norm IS NOT NULL AND token IS NOT NULL", vec![0, 3, 4]),
            ("up_norm BETWEEN 1 AND 2", vec![0, 2, 3]),
            ("up_norm NOT BETWEEN 1 AND 1.5", vec![0, 3, 4]),
            ("token = \"Paris\"", vec![0]),
            ("token LIKE \"PAR%\"", vec![0, 1]),
            ("token NOT LIKE \"par__\"", vec![3, 4]),
            ("token LIKE \"50_ \u{e9}\"", vec![3]),
            ("token LIKE \"50_ \u{c9}\"", vec![]),
            ("token IN (\"\", \"paris\")", vec![1, 4]),
            ("token NOT IN (\"\", \"paris\")", vec![0, 3]),
            (
                "token = \"x\" OR NOT (up_norm < 2 OR token LIKE \"p%\")",
                vec![3],
            ),
            ("token > \"Q\"", vec![1]),
            ("token = \"'; DROP TABLE rows; --\"", vec![]),
        ] {
            assert_eq!(rows(Some(&filter(text)), &[]), expected, "{text}");
        }
    }

    #[test]
    fn absent_values_come_last_and_equal_rows_keep_their_order() {
        let key = |column, descending| OrderKey { column, descending };
        assert_eq!(rows(None, &[key(UP_NORM, false)]), [4, 2, 0, 3, 1]);
        assert_eq!(rows(None, &[key(UP_NORM, true)]), [0, 3, 2, 4, 1]);
        assert_eq!(
            rows(None, &[key(UP_NORM, true), key(TOKEN, false)]),
            [3, 0, 2, 4, 1]
        );
        assert_eq!(rows(None, &[]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_empty_table_has_no_rows() {
        let table = QueryTable::new(&FEATURES, vec![]).unwrap();
        assert_eq!(table.select(&[], &[]).unwrap(), [0usize; 0]);
    }
}
