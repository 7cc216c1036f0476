//! `larql bench`: speed beside what this machine can do at most, and where the time goes.

use larql_db::Rows;
use larql_db::bench::{BenchOptions, BenchReport, Ceiling, PhaseLedger, Refusal, bench as measure};
use larql_db::rows::counted;

use crate::Outcome;
use crate::args::BenchArgs;
use crate::commands::pack::tiles_note;
use crate::context::Context;
use crate::error::CliError;

/// Measures prefill and decode of a model.
///
/// # Errors
/// If the model cannot run so many tokens.
pub(crate) fn bench(context: &Context, args: &BenchArgs) -> Result<Outcome, CliError> {
    let profile = args.arithmetic.profile(context)?;
    let db = context.open(&args.model)?;
    let mut runtime = context.runtime(profile);
    let options = BenchOptions {
        prompt_tokens: args.pp,
        decode_tokens: args.tg,
        repeats: args.repeats,
        batch: args.batch,
    };
    let bar = context.printer.bar();
    let work = context.interrupts.work();
    let report = measure(&db, &mut runtime, &options, &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
    })?;
    drop(work);
    bar.clear();
    if context.printer.is_table() {
        context.printer.table(&speeds(&report, args))?;
        context.printer.table(&ledger(&report))?;
        context.printer.verdict(&reading(&report))?;
        context.printer.verdict(&multiplying(&report))?;
        if let Some(verdict) = batching(&report) {
            context.printer.verdict(&verdict)?;
        }
    } else {
        context.printer.json(&report)?;
    }
    Ok(Outcome::Done)
}

fn speeds(report: &BenchReport, args: &BenchArgs) -> Rows {
    let mut rows = Rows::new(&["phase", "tokens", "tokens_per_s", "slowest", "fastest"]);
    let mut push = |phase: String, n_tokens: usize, median: f64, [slowest, fastest]: [f64; 2]| {
        rows.push(vec![
            phase.into(),
            n_tokens.into(),
            median.into(),
            slowest.into(),
            fastest.into(),
        ]);
    };
    let range = report.prefill_tok_s_range;
    push("prefill".to_owned(), args.pp, report.prefill_tok_s, range);
    let range = report.decode_tok_s_range;
    push("decode".to_owned(), args.tg, report.decode_tok_s, range);
    if let Some(batch) = &report.batch {
        let phase = format!("decode x {}", batch.sequences);
        let n_tokens = args.tg * batch.sequences;
        push(
            phase,
            n_tokens,
            batch.decode_tok_s,
            batch.decode_tok_s_range,
        );
    }
    rows.note(format!(
        "profile {}{}, {}, {}, median of {}",
        report.profile,
        tiles_note(report.tiles),
        counted(report.threads, "thread"),
        report.isa,
        report.repeats
    ));
    rows
}

/// What one pass of each phase spends in each class; classes that nothing ran in are left out.
fn ledger(report: &BenchReport) -> Rows {
    let mut rows = Rows::new(&[
        "phase",
        "class",
        "calls",
        "slabs_per_call",
        "stored_mb",
        "transient_mb",
        "ms",
        "share_pct",
        "gb_s",
        "gmac_s",
    ]);
    let phases = [
        ("prefill", &report.ledger.prefill),
        ("decode", &report.ledger.decode),
    ];
    for (
        phase,
        PhaseLedger {
            passes, classes, ..
        },
    ) in phases
    {
        let per_pass = |total: f64| total / (*passes).max(1) as f64;
        for line in classes.iter().filter(|line| line.wall_s > 0.0) {
            rows.push(vec![
                phase.into(),
                line.class.name().into(),
                per_pass(line.calls as f64).into(),
                line.slabs_per_call.into(),
                per_pass(line.stored_bytes as f64 / 1e6).into(),
                per_pass(line.transient_bytes as f64 / 1e6).into(),
                per_pass(line.wall_s * 1e3).into(),
                (line.share * 100.0).into(),
                line.gb_s().into(),
                line.gmac_s().into(),
            ]);
        }
    }
    rows.note("per forward pass; bytes as the kernels read them, from memory or from a cache");
    rows
}

/// Decoding beside the read bandwidth.
fn reading(report: &BenchReport) -> String {
    let Ceiling { before, after } = report.ceilings.read_gb_s;
    let reads = format!(
        "a decoded token reads {} of weights and {} of keys, values and states; this machine",
        megabytes(report.weight_bytes_per_token),
        megabytes(report.kv_bytes_per_token)
    );
    match (report.roofline_refused, report.roofline_fraction) {
        (None, Some(fraction)) => {
            let [least, most] = report.roofline_fraction_range.unwrap_or([fraction; 2]);
            format!(
                "{reads} reads {:.1} GB/s, of which decoding uses {:.1} % ({:.1} to {:.1} %)",
                report.read_gb_s,
                fraction * 100.0,
                least * 100.0,
                most * 100.0
            )
        }
        (Some(Refusal::NotMemory), _) => {
            let cache = report.ceilings.cache_gb_s.mean();
            format!(
                "{reads} reads {:.1} GB/s, and {cache:.1} GB/s of a cache: the probe did not reach memory, so there is no \
                 fraction",
                report.read_gb_s
            )
        }
        (Some(Refusal::Cached), _) => format!(
            "{reads} may keep so much in a cache, where memory is no ceiling, so there is no fraction"
        ),
        (Some(Refusal::Drifted) | None, _) => format!(
            "{reads} drifted: it read {before:.1} GB/s before and {after:.1} GB/s after, so there is no fraction"
        ),
    }
}

/// A number of bytes in the unit of the columns, 10^6 of them; small ones with the digits that say something.
fn megabytes(n_bytes: u64) -> String {
    let value = n_bytes as f64 / 1e6;
    let n_digits = if value < 10.0 { 3 } else { 1 };
    format!("{value:.n_digits$} MB")
}

/// Prefill beside the multiply rates.
fn multiplying(report: &BenchReport) -> String {
    let (integer, float) = (report.ceilings.integer_gmac_s, report.ceilings.float_gmac_s);
    match report.multiply_fraction {
        Some(fraction) => format!(
            "this machine multiplies {:.1} GMAC/s on integers and {:.1} in floats, of which the prompt uses {:.1} %",
            integer.mean(),
            float.mean(),
            fraction * 100.0
        ),
        None => format!(
            "this machine drifted: it multiplied {:.1} GMAC/s on integers and {:.1} in floats before, {:.1} and {:.1} after, so \
             there is no fraction for the prompt",
            integer.before, float.before, integer.after, float.after
        ),
    }
}

/// A batch beside one sequence.
fn batching(report: &BenchReport) -> Option<String> {
    let batch = report.batch.as_ref()?;
    let n = batch.sequences;
    Some(match (batch.speedup, batch.speedup_range) {
        (Some(speedup), Some([least, most])) => format!(
            "{n} sequences decode {speedup:.2} times the tokens of one in the same time ({least:.2} to {most:.2}), each the same \
             tokens as alone"
        ),
        (Some(_) | None, _) => format!(
            "{n} sequences decode the same tokens as alone; this machine drifted, so there is no ratio"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn megabytes_are_a_million_bytes() {
        assert_eq!(
            [0, 12_300, 1 << 20, 253_400_000].map(megabytes),
            ["0.000 MB", "0.012 MB", "1.049 MB", "253.4 MB"]
        );
    }
}
