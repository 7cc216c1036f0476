//! `larql bench`: speed beside what this machine can do at most.

use larql_db::Rows;
use larql_db::bench::{BenchOptions, BenchReport, bench as measure};

use crate::Outcome;
use crate::args::BenchArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::table::size;

/// Measures prefill and decode of a model.
///
/// # Errors
/// If the model cannot run so many tokens.
pub(crate) fn bench(context: &Context, args: &BenchArgs) -> Result<Outcome, CliError> {
    let db = context.open(&args.model)?;
    let mut runtime = context.runtime(args.arithmetic.profile);
    let options = BenchOptions {
        prompt_tokens: args.pp,
        decode_tokens: args.tg,
        repeats: args.repeats,
    };
    let bar = context.printer.bar();
    let work = context.interrupts.work();
    let report = measure(&db, &mut runtime, &options, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
    })?;
    drop(work);
    bar.clear();
    if context.printer.is_table() {
        context.printer.table(&rows(&report, args))?;
        context.printer.verdict(&format!(
            "a decoded token reads {}; this machine reads {:.1} GB/s, of which decoding uses {:.1} %",
            size(report.weight_bytes_per_token),
            report.read_gb_s,
            report.roofline_fraction * 100.0
        ))?;
    } else {
        context.printer.json(&report)?;
    }
    Ok(Outcome::Done)
}

fn rows(report: &BenchReport, args: &BenchArgs) -> Rows {
    let BenchReport {
        prefill_tok_s,
        prefill_tok_s_range,
        decode_tok_s,
        decode_tok_s_range,
        threads,
        profile,
        isa,
        weight_bytes_per_token: _,
        read_gb_s: _,
        roofline_fraction: _,
        repeats,
    } = report;
    let mut rows = Rows::new(&["phase", "tokens", "tokens_per_s", "slowest", "fastest"]);
    let phases = [
        ("prefill", args.pp, prefill_tok_s, prefill_tok_s_range),
        ("decode", args.tg, decode_tok_s, decode_tok_s_range),
    ];
    for (phase, n_tokens, median, [slowest, fastest]) in phases {
        rows.push(vec![
            phase.into(),
            n_tokens.into(),
            (*median).into(),
            (*slowest).into(),
            (*fastest).into(),
        ]);
    }
    rows.note(format!(
        "profile {profile}, {threads} threads, {isa}, median of {repeats}"
    ));
    rows
}
