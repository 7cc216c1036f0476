//! `larql verify`: whether a vindex is what its manifest says.

use larql_db::{DbError, Rows};
use larql_kernels::Team;
use larql_vindex::{VerifyReport, verify as verify_vindex};
use serde::Serialize;

use crate::Outcome;
use crate::args::VerifyArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::printer::flow;

#[derive(Debug, Serialize)]
pub(crate) struct Wire<'a> {
    ok: bool,
    checks: Vec<CheckWire<'a>>,
}

#[derive(Debug, Serialize)]
struct CheckWire<'a> {
    name: &'a str,
    ok: bool,
    detail: &'a str,
    hint: Option<&'a str>,
}

/// Prints every check; negative if one fails.
///
/// # Errors
/// If there is no vindex, or it cannot be read.
pub(crate) fn verify(context: &Context, args: &VerifyArgs) -> Result<Outcome, CliError> {
    if !args.vindex.exists() {
        let path = args.vindex.clone();
        return Err(CliError::from(DbError::NotFound { path }).with_hint(Some(
            "VINDEX is a folder that `larql extract` made".to_owned(),
        )));
    }
    let work = context.interrupts.work();
    let report = check(context, &args.vindex)?;
    drop(work);
    if context.printer.is_table() {
        context.printer.table(&rows(&report))?;
        context.printer.verdict(&verdict(&report))?;
        for check in &report.checks {
            if let Some(hint) = &check.hint {
                context.printer.hint(&format!("{}: {hint}", check.name))?;
            }
        }
    } else {
        context.printer.json(&wire(&report))?;
    }
    Ok(if report.ok() {
        Outcome::Done
    } else {
        Outcome::Negative
    })
}

/// Verifies under a progress bar.
///
/// # Errors
/// As [`verify`].
pub(crate) fn check(context: &Context, path: &std::path::Path) -> Result<VerifyReport, CliError> {
    let mut team = Team::new(context.threads);
    let flag = context.interrupts.flag();
    let bar = context.printer.bar();
    Ok(verify_vindex(path, &mut team, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
        flow(flag.is_raised())
    })?)
}

/// The report for programs.
pub(crate) fn wire(report: &VerifyReport) -> Wire<'_> {
    let checks = report.checks.iter();
    Wire {
        ok: report.ok(),
        checks: checks
            .map(|check| CheckWire {
                name: &check.name,
                ok: check.ok,
                detail: &check.detail,
                hint: check.hint.as_deref(),
            })
            .collect(),
    }
}

/// The report as rows.
pub(crate) fn rows(report: &VerifyReport) -> Rows {
    let mut rows = Rows::new(&["check", "result", "detail"]);
    for check in &report.checks {
        let result = if check.ok { "ok" } else { "FAILED" };
        rows.push(vec![
            check.name.as_str().into(),
            result.into(),
            check.detail.as_str().into(),
        ]);
    }
    rows
}

/// What the checks come to, in one line.
pub(crate) fn verdict(report: &VerifyReport) -> String {
    match report.failures().count() {
        0 => "the vindex is intact".to_owned(),
        n => format!("{n} of {} checks failed", report.checks.len()),
    }
}
