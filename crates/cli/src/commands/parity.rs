//! `larql parity`: comparison with a reference run.

use larql_db::parity::{Golden, ParityReport, TOLERANCE_REL, parity as compare};
use larql_db::{Cell, Rows};
use serde::Serialize;

use crate::Outcome;
use crate::args::ParityArgs;
use crate::context::Context;
use crate::error::CliError;

#[derive(Debug, Serialize)]
struct Wire<'a> {
    profile: &'static str,
    tolerance_rel: f64,
    #[serde(flatten)]
    report: &'a ParityReport,
}

/// Prints the differences per stage; negative if one is over the tolerance or the continuation differs.
///
/// # Errors
/// If the reference does not belong to the model, or the run fails.
pub(crate) fn parity(context: &Context, args: &ParityArgs) -> Result<Outcome, CliError> {
    let profile = args.arithmetic.profile(context)?;
    let db = context.open(&args.checkpoint)?;
    let golden = Golden::open(&args.golden)?;
    let mut runtime = context.runtime(profile);
    let work = context.interrupts.work();
    let report = compare(db.model()?, &mut runtime, &golden)?;
    drop(work);
    let profile = runtime.profile().name();
    if context.printer.is_table() {
        let mut rows = Rows::new(&["stage", "max_abs_err", "rel_err"]);
        for stage in &report.stages {
            rows.push(vec![
                stage.stage.clone().into(),
                error_cell(stage.max_abs_err),
                error_cell(stage.rel_err),
            ]);
        }
        rows.note(format!(
            "family {}, profile {profile}, tolerance {TOLERANCE_REL:e} of the largest magnitude",
            report.family
        ));
        context.printer.table(&rows)?;
        context.printer.verdict(&verdict(&report))?;
    } else {
        context.printer.json(&Wire {
            profile,
            tolerance_rel: TOLERANCE_REL,
            report: &report,
        })?;
    }
    let agrees = report.first_divergence.is_none() && report.greedy_match;
    Ok(if agrees {
        Outcome::Done
    } else {
        Outcome::Negative
    })
}

/// A difference; one that is infinite or no number is written out, because an absent one would look like none.
fn error_cell(error: f64) -> Cell {
    if error.is_finite() {
        error.into()
    } else {
        error.to_string().into()
    }
}

/// What the comparison found, in one line.
fn verdict(report: &ParityReport) -> String {
    let stages = match (&report.first_not_finite, &report.first_divergence) {
        (Some(stage), _) => {
            format!("not finite: {stage} has a value that is infinite or no number")
        }
        (None, Some(stage)) => format!("first divergence: {stage}"),
        (None, None) => "no stage diverges".to_owned(),
    };
    let continuation = if report.greedy_match {
        "the same"
    } else {
        "another"
    };
    format!("{stages}; the greedy continuation is {continuation}")
}
