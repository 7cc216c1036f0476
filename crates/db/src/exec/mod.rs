//! Executes bound plans; one module per kind of plan.
//!
//! A plan was checked against the open model, so what is left to fail here is reading and running.

mod edges;
mod features;
mod layers;
mod models;
pub(crate) mod query_table;
pub(crate) mod relations;
mod stats;

use crate::describe;
use crate::error::DbError;
use crate::infer;
use crate::plan::Plan;
use crate::progress::OnProgress;
use crate::rows::Rows;
use crate::session::Session;
use crate::walk;

/// Executes a plan.
pub(crate) fn run(
    session: &mut Session,
    plan: &Plan,
    on_progress: OnProgress<'_>,
) -> Result<Rows, DbError> {
    match plan {
        Plan::Use { path } => {
            session.open(path)?;
            let (db, _) = session.database_and_runtime()?;
            stats::opened(db)
        }
        Plan::Stats => {
            let (db, runtime) = session.database_and_runtime()?;
            stats::rows(db, runtime)
        }
        Plan::ShowLayers { layers } => {
            let (db, _) = session.database_and_runtime()?;
            layers::rows(db, layers.clone())
        }
        Plan::ShowModels { folder } => models::rows(folder),
        Plan::ShowRelations { with_examples } => {
            Ok(relations::list(session.relations(), *with_examples))
        }
        Plan::ShowRelation { relation } => Ok(relations::one(relation)),
        Plan::CreateRelation { relation } => relations::create(session, relation),
        Plan::DropRelation { name } => relations::remove(session, name),
        Plan::Describe(plan) => {
            let (db, runtime) = session.database_and_runtime()?;
            describe::describe(db, runtime, plan, on_progress)
        }
        Plan::Infer { plan, n_tokens: _ } => {
            let (db, runtime) = session.database_and_runtime()?;
            infer::infer(db, runtime, plan)
        }
        Plan::Walk { plan, n_tokens: _ } => {
            let (db, runtime) = session.database_and_runtime()?;
            walk::walk(db, runtime, plan, on_progress)
        }
        Plan::Features(plan) => {
            let (db, runtime) = session.database_and_runtime()?;
            features::rows(db, runtime, plan, on_progress)
        }
        Plan::Edges(plan) => {
            let (db, runtime) = session.database_and_runtime()?;
            edges::rows(db, runtime, plan, on_progress)
        }
        Plan::Explain(plan) => Ok(explained(plan)),
    }
}

fn explained(plan: &Plan) -> Rows {
    let mut rows = Rows::new(&["step", "what", "cost"]);
    for (idx, step) in plan.steps().into_iter().enumerate() {
        rows.push(vec![(idx + 1).into(), step.what.into(), step.cost.into()]);
    }
    rows
}
