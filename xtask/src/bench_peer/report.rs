//! What was measured, as tables for reading or as JSON for programs.

use serde_json::{Value, json};

use super::measure::{BusyRow, Kept, ModelOutcome, Outcome, Row, StartRow};
use super::stats::{Series, Verdict};

const BYTES_PER_MB: f64 = 1e6;

/// Prints every table that has rows.
pub(super) fn table(outcome: &Outcome) {
    let Outcome {
        versions: [theirs, ours],
        n_prompt,
        n_decode,
        n_pairs,
        n_cores,
        models,
    } = outcome;
    println!("{theirs}, {ours}, {n_cores} cores");
    println!(
        "tokens per second: prompt of {n_prompt}, then {n_decode} steps; medians of {n_pairs} runs (smallest-largest)"
    );
    print_rows(speeds(models));
    for model in models {
        println!("{}: {}", model.name, model.answers);
    }
    if models.iter().any(|model| !model.starts.is_empty()) {
        println!(
            "\nseconds to the first token (a ratio below one: ours is earlier): `larql run -n 1` as a whole, llama.cpp from before it opens the file, without the start of Python; \
             the file is in the page cache. Memory: largest resident set, mapped pages included"
        );
        print_rows(starts(models));
    }
    if models.iter().any(|model| !model.busy.is_empty()) {
        println!(
            "\ndecoding beside busy threads, tokens per second. Fair share: min(1, cores / (busy + threads)) / min(1, cores / threads)"
        );
        print_rows(busy(models));
    }
}

/// Why the command fails after it has printed what it measured.
pub(super) fn complaints(outcome: &Outcome) -> Vec<String> {
    let mut complaints = Vec::new();
    for model in &outcome.models {
        let ModelOutcome {
            name,
            file_bytes: _,
            answers,
            rows,
            starts,
            busy,
        } = model;
        if !answers.agree() {
            complaints.push(format!("{name}: {answers}"));
        }
        let rows = rows
            .iter()
            .map(|row| (row.n_threads, row.phase.name(), row.verdict));
        let starts = starts
            .iter()
            .map(|row| (row.n_threads, "start", row.verdict));
        let busy = busy.iter().map(|row| (row.n_threads, "busy", row.verdict));
        for (n_threads, what, verdict) in rows.chain(starts).chain(busy) {
            if let Verdict::Drifted(by) = verdict {
                complaints.push(format!(
                    "{name}, {n_threads} threads, {what}: no ratio, because llama.cpp's first and last run differ by {}",
                    percent(by)
                ));
            }
        }
    }
    complaints
}

fn speeds(models: &[ModelOutcome]) -> Vec<Vec<String>> {
    let mut table = vec![header(&[
        "model",
        "threads",
        "phase",
        "llama.cpp",
        "ours",
        "ratio",
        "per pair",
        "of bandwidth",
    ])];
    for model in models {
        for row in &model.rows {
            let Row {
                n_threads,
                phase,
                theirs,
                ours,
                verdict,
                bandwidth,
            } = row;
            let [ratio, per_pair] = ratio(*verdict);
            let bandwidth = bandwidth.map_or_else(
                || "-".to_owned(),
                |b| {
                    format!(
                        "{} of {:.1} GB/s",
                        percent(b.roofline_fraction),
                        b.read_gb_s
                    )
                },
            );
            table.push(vec![
                model.name.clone(),
                n_threads.to_string(),
                phase.name().to_owned(),
                spread(theirs),
                spread(ours),
                ratio,
                per_pair,
                bandwidth,
            ]);
        }
    }
    table
}

fn starts(models: &[ModelOutcome]) -> Vec<Vec<String>> {
    let mut table = vec![header(&[
        "model",
        "threads",
        "llama.cpp s",
        "ours s",
        "ratio",
        "per pair",
        "file MB",
        "llama.cpp MB",
        "ours MB",
    ])];
    for model in models {
        for row in &model.starts {
            let StartRow {
                n_threads,
                theirs_s,
                ours_s,
                verdict,
                theirs_peak_bytes,
                ours_peak_bytes,
            } = row;
            let [ratio, per_pair] = ratio(*verdict);
            let mb = |bytes: f64| format!("{:.0}", bytes / BYTES_PER_MB);
            table.push(vec![
                model.name.clone(),
                n_threads.to_string(),
                spread(theirs_s),
                spread(ours_s),
                ratio,
                per_pair,
                mb(model.file_bytes as f64),
                mb(*theirs_peak_bytes),
                mb(*ours_peak_bytes),
            ]);
        }
    }
    table
}

fn busy(models: &[ModelOutcome]) -> Vec<Vec<String>> {
    let mut table = vec![header(&[
        "model",
        "threads",
        "busy",
        "program",
        "idle",
        "busy speed",
        "kept",
        "fair",
        "of fair",
        "ratio",
        "per pair",
    ])];
    for model in models {
        for row in &model.busy {
            let BusyRow {
                n_threads,
                n_busy,
                fair_share,
                theirs,
                ours,
                verdict,
            } = row;
            let [ratio, per_pair] = ratio(*verdict);
            let dash = || "-".to_owned();
            for (program, kept, ratio, per_pair) in [
                ("llama.cpp", theirs, dash(), dash()),
                ("ours", ours, ratio, per_pair),
            ] {
                let (share, of_fair) = match verdict {
                    Verdict::Drifted(_) => (dash(), dash()),
                    Verdict::Ratio { .. } => {
                        let share = kept.share();
                        (percent(share), percent(share / fair_share))
                    }
                };
                table.push(vec![
                    model.name.clone(),
                    n_threads.to_string(),
                    n_busy.to_string(),
                    program.to_owned(),
                    spread(&kept.idle),
                    spread(&kept.busy),
                    share,
                    percent(*fair_share),
                    of_fair,
                    ratio,
                    per_pair,
                ]);
            }
        }
    }
    table
}

/// The same as JSON; a figure that was refused is null.
pub(super) fn json(outcome: &Outcome) -> Value {
    let Outcome {
        versions: [theirs, ours],
        n_prompt,
        n_decode,
        n_pairs,
        n_cores,
        models,
    } = outcome;
    json!({
        "llama_cpp": theirs,
        "larql": ours,
        "prompt_tokens": n_prompt,
        "decode_tokens": n_decode,
        "pairs": n_pairs,
        "cores": n_cores,
        "models": models.iter().map(model_json).collect::<Vec<_>>(),
    })
}

fn model_json(model: &ModelOutcome) -> Value {
    let ModelOutcome {
        name,
        file_bytes,
        answers,
        rows,
        starts,
        busy,
    } = model;
    json!({
        "model": name,
        "file_bytes": file_bytes,
        "same_next_token": answers.agree(),
        "speeds": rows.iter().map(row_json).collect::<Vec<_>>(),
        "starts": starts.iter().map(start_json).collect::<Vec<_>>(),
        "busy": busy.iter().map(busy_json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Row) -> Value {
    json!({
        "threads": row.n_threads,
        "phase": row.phase.name(),
        "llama_cpp_tok_s": row.theirs.values(),
        "larql_tok_s": row.ours.values(),
        "comparison": verdict_json(row.verdict),
        "read_gb_s": row.bandwidth.map(|b| b.read_gb_s),
        "roofline_fraction": row.bandwidth.map(|b| b.roofline_fraction),
    })
}

fn start_json(row: &StartRow) -> Value {
    json!({
        "threads": row.n_threads,
        "llama_cpp_s": row.theirs_s.values(),
        "larql_s": row.ours_s.values(),
        "comparison": verdict_json(row.verdict),
        "llama_cpp_peak_bytes": row.theirs_peak_bytes,
        "larql_peak_bytes": row.ours_peak_bytes,
    })
}

fn busy_json(row: &BusyRow) -> Value {
    let kept = |kept: &Kept| {
        let share = match row.verdict {
            Verdict::Drifted(_) => None,
            Verdict::Ratio { .. } => Some(kept.share()),
        };
        json!({
            "idle_tok_s": kept.idle.values(),
            "busy_tok_s": kept.busy.values(),
            "share": share,
            "of_fair_share": share.map(|share| share / row.fair_share),
        })
    };
    json!({
        "threads": row.n_threads,
        "busy_threads": row.n_busy,
        "fair_share": row.fair_share,
        "llama_cpp": kept(&row.theirs),
        "larql": kept(&row.ours),
        "comparison": verdict_json(row.verdict),
    })
}

fn verdict_json(verdict: Verdict) -> Value {
    match verdict {
        Verdict::Ratio {
            of_medians,
            of_pairs,
        } => json!({"drifted": false, "ratio": of_medians, "pair_ratios": of_pairs}),
        Verdict::Drifted(by) => json!({"drifted": true, "drift": by, "ratio": null}),
    }
}

fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The two cells of a verdict.
fn ratio(verdict: Verdict) -> [String; 2] {
    match verdict {
        Verdict::Ratio {
            of_medians,
            of_pairs: [min, max],
        } => [format!("{of_medians:.2}"), format!("{min:.2}-{max:.2}")],
        Verdict::Drifted(by) => ["drifted".to_owned(), format!("by {}", percent(by))],
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn spread(series: &Series) -> String {
    let [min, max] = series.spread();
    format!("{} ({}-{})", three(series.median()), three(min), three(max))
}

/// About three digits.
fn three(value: f64) -> String {
    match value.abs() {
        x if x >= 99.95 => format!("{value:.0}"),
        x if x >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn print_rows(rows: Vec<Vec<String>>) {
    for line in lines(&rows) {
        println!("{line}");
    }
}

/// Columns as wide as their widest cell.
fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_peer::measure::Phase;
    use crate::bench_peer::programs::{Answers, Bandwidth};

    fn series(values: &[f64]) -> Series {
        Series::new(values.to_vec()).unwrap()
    }

    fn outcome(control: [f64; 3], our_token: u64) -> Outcome {
        let (theirs, ours) = (series(&control), series(&[30.0, 20.0, 24.0]));
        let row = Row {
            n_threads: 2,
            phase: Phase::Decode,
            verdict: Verdict::of(&theirs, &ours),
            theirs,
            ours,
            bandwidth: Some(Bandwidth {
                read_gb_s: 9.25,
                roofline_fraction: 0.714,
            }),
        };
        Outcome {
            versions: ["llama 1".to_owned(), "larql 2".to_owned()],
            n_prompt: 512,
            n_decode: 64,
            n_pairs: 3,
            n_cores: 2,
            models: vec![ModelOutcome {
                name: "m.gguf".to_owned(),
                file_bytes: 77,
                answers: Answers {
                    n_tokens: 17,
                    ids_equal: true,
                    theirs: 5,
                    ours: our_token,
                    margin: 0.5,
                    max_logit_difference: 0.01,
                },
                rows: vec![row],
                starts: Vec::new(),
                busy: Vec::new(),
            }],
        }
    }

    #[test]
    fn a_steady_control_gives_a_ratio_and_no_complaint() {
        let outcome = outcome([12.0, 12.5, 11.9], 5);
        let lines = lines(&speeds(&outcome.models));
        assert_eq!(
            lines[1],
            "m.gguf  2        decode  12.0 (11.9-12.5)  24.0 (20.0-30.0)  2.00   1.60-2.50  71 % of 9.2 GB/s"
        );
        assert_eq!(complaints(&outcome), Vec::<String>::new());
        let row = &json(&outcome)["models"][0]["speeds"][0];
        assert_eq!(row["comparison"]["ratio"], 2.0);
        assert_eq!(row["roofline_fraction"], 0.714);
    }

    #[test]
    fn a_drifted_control_gives_no_ratio_in_any_form() {
        let outcome = outcome([12.0, 12.0, 16.0], 5);
        let lines = lines(&speeds(&outcome.models));
        assert!(lines[1].contains("drifted  by 33 %"), "{}", lines[1]);
        let row = &json(&outcome)["models"][0]["speeds"][0];
        assert_eq!(row["comparison"]["ratio"], Value::Null);
        assert_eq!(row["comparison"]["drifted"], true);
        assert_eq!(
            complaints(&outcome),
            [
                "m.gguf, 2 threads, decode: no ratio, because llama.cpp's first and last run differ by 33 %"
            ]
        );
    }

    #[test]
    fn another_answer_than_the_control_is_a_complaint() {
        let complaints = complaints(&outcome([12.0, 12.0, 12.0], 6));
        assert_eq!(
            complaints,
            [
                "m.gguf: next token 6 here, 5 in llama.cpp after 17 tokens (its margin 0.500, logits differ by 0.010 at most)"
            ]
        );
    }

    #[test]
    fn digits_follow_the_size() {
        assert_eq!(
            ["1.23", "12.3", "123"],
            [1.234, 12.34, 123.4]
                .map(three)
                .each_ref()
                .map(String::as_str)
        );
    }
}
