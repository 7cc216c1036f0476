//! `SELECT ... FROM EDGES`: asks the model, then filters and orders its answers.

use larql_engine::Runtime;
use rusqlite::types::Value as SqlValue;

use super::query_table::QueryTable;
use crate::database::Database;
use crate::describe::{answers, probed};
use crate::error::DbError;
use crate::plan::filter::Filter;
use crate::plan::schema::EDGES;
use crate::plan::{EDGES_RANK_MAX, EdgesPlan};
use crate::progress::{OnProgress, Progress};
use crate::relations::Relation;
use crate::rows::{Cell, Rows};

pub(super) fn rows(
    db: &Database,
    runtime: &mut Runtime,
    plan: &EdgesPlan,
    on_progress: OnProgress<'_>,
) -> Result<Rows, DbError> {
    let relations: Vec<&Relation> = plan.relations.iter().collect();
    let mut edges: Vec<Vec<Cell>> = Vec::new();
    let n_entities = plan.entities.len() as u64;
    if plan.top > 0 && !relations.is_empty() {
        for (idx, entity) in plan.entities.iter().enumerate() {
            if n_entities > 1 {
                on_progress(Progress {
                    stage: "entities",
                    done: idx as u64,
                    total: n_entities,
                });
            }
            for answer in answers(db, runtime, entity, &relations, plan.top, on_progress)? {
                edges.push(vec![
                    entity.as_str().into(),
                    answer.relation.into(),
                    answer.target.into(),
                    answer.rank.into(),
                    answer.prob.into(),
                    answer.share.into(),
                    answer.lift.into(),
                    answer.n_templates.into(),
                    answer.template.into(),
                ]);
            }
        }
    }
    let table = QueryTable::new(&EDGES, (0..EDGES.columns.len()).collect())?;
    table.fill(edges.len(), |row, values| {
        values.extend(edges[row].iter().map(SqlValue::from))
    })?;
    let terms: Vec<&Filter> = plan
        .filter
        .as_ref()
        .map(Filter::conjuncts)
        .unwrap_or_default();
    let mut kept = table.select(&terms, &plan.order)?;
    let n_kept = kept.len();
    kept.truncate(plan.limit);
    let names: Vec<&str> = plan
        .columns
        .iter()
        .map(|idx| EDGES.columns[*idx].name)
        .collect();
    let mut rows = Rows::new(&names);
    for row in kept {
        rows.push(
            plan.columns
                .iter()
                .map(|column| edges[row][*column].clone())
                .collect(),
        );
    }
    rows.note(probed(runtime));
    if relations.is_empty() {
        rows.note("no relation has such a name: nothing was asked");
    } else if !plan.top_given {
        rows.note(format!(
            "the {} best answers of each relation; WHERE rank <= n asks for more",
            plan.top
        ));
    } else if plan.top == 0 {
        rows.note(format!("ranks are 1 to {EDGES_RANK_MAX}"));
    }
    note_cut(&mut rows, n_kept, plan.limit_given);
    Ok(rows)
}

/// Says that the default limit cut rows.
pub(super) fn note_cut(rows: &mut Rows, n_kept: usize, limit_given: bool) {
    let n_shown = rows.rows.len();
    if n_kept > n_shown && !limit_given {
        rows.note(format!("{n_shown} of {n_kept} rows; LIMIT n for more"));
    }
}

impl From<&Cell> for SqlValue {
    fn from(cell: &Cell) -> Self {
        match cell {
            Cell::Null => Self::Null,
            Cell::Integer(n) => Self::Integer(*n),
            Cell::Real(x) => Self::Real(*x),
            Cell::Text(text) => Self::Text(text.clone()),
        }
    }
}
