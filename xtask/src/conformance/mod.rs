//! Checks against other programs' numbers that need files the repository does not carry.
//!
//! Each check prints what it compared and ends with one line per failed bar.

mod golden;
mod knowledge;
mod peers;
mod python;
mod roundtrip;
mod text;
mod tokens;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::process;

/// Largest logit error against a float32 reference.
const LOGIT_ERROR_MAX: f64 = 2e-3;
/// Largest mean divergence of the `fast` profile from `exact`, in nats.
const FAST_KL_MEAN_MAX: f64 = 0.01;

/// Compares a model with a golden file of prompts, and with the scored text beside it if there is one.
pub(crate) fn golden(model: &Path, golden_file: &Path) -> Result<()> {
    let report = golden::compare(model, golden_file)?;
    let n = report.n_prompts;
    println!(
        "{}: {n} prompts of {}",
        model.display(),
        golden_file.display()
    );
    println!(
        "  ids equal {}/{n}, decode(encode(x)) = x {}/{n}",
        report.ids_equal, report.decoded_equal
    );
    println!(
        "  exact: top ids equal {}/{n}, largest logit error {:.2e}",
        report.top_ids_equal, report.max_logit_error
    );
    println!(
        "  exact: greedy continuation equal {}/{n}",
        report.greedy_equal
    );
    println!(
        "  fast against exact: KL mean {:.5}, max {:.5} nats over {} positions",
        report.kl_mean, report.kl_max, report.n_positions
    );
    let bars = [
        ("ids", report.ids_equal == n),
        ("round trip", report.decoded_equal == n),
        ("top ids", report.top_ids_equal == n),
        ("greedy continuation", report.greedy_equal == n),
        ("logit error", report.max_logit_error <= LOGIT_ERROR_MAX),
        ("fast KL", report.kl_mean < FAST_KL_MEAN_MAX),
    ];
    let text_bars = match text::beside(golden_file) {
        Some((reference, text)) => text::compare(model, &reference, &text)?,
        None => {
            println!("text: not checked; no ppl.json and ppl.txt lie beside the golden file");
            Vec::new()
        }
    };
    let failed: Vec<&str> = bars
        .iter()
        .chain(&text_bars)
        .filter(|(_, met)| !met)
        .map(|(name, _)| *name)
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("not met: {}", failed.join(", "))
    }
}

/// A model's tokenizer with texts whose ids another program computed.
pub(crate) fn tokens(model: &Path, cases: &Path) -> Result<()> {
    tokens::compare(model, cases)
}

/// The facts a model was trained on, and phrasings it never saw.
pub(crate) fn facts(model: &Path, reference: &Path) -> Result<()> {
    knowledge::facts(model, reference)
}

/// Hit rates of one relation over a table of true answers.
pub(crate) fn hits(model: &Path, table: &Path, relation: &str, limit: usize) -> Result<()> {
    knowledge::hits(model, table, relation, limit)
}

/// Exports against llama.cpp, transformers and the recorded vocabularies.
pub(crate) fn peers(
    python: &Path,
    larql: Option<PathBuf>,
    families: &[String],
    vocabularies: Option<&Path>,
    gguf: Option<&Path>,
) -> Result<()> {
    let peers = peers::Peers::find(python, larql)?;
    let checked = peers::run(&peers, families);
    let whole = gguf.map_or(Ok(()), |file| roundtrip::gguf(&peers, file));
    if let Err(error) = &whole {
        println!("{error:#}");
    }
    let checked = checked.and(whole);
    let Some(folder) = vocabularies else {
        println!("tokenizers: not checked; name a folder with --vocabularies");
        return checked;
    };
    let root = process::root();
    let suite = process::run(
        process::cargo(&root)
            .args([
                "run",
                "--quiet",
                "--release",
                "-p",
                "larql-models",
                "--example",
                "tokenizer_conformance",
                "--",
            ])
            .arg(std::path::absolute(folder)?),
    );
    checked.and(suite)
}
