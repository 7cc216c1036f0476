//! A model on a text whose bits per token another program computed in float32.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use larql_db::Database;
use larql_db::score::{
    Arm, ROWS_PER_PASS, ScoreOptions, ScoreReport, ScoreText, WINDOW_TOKENS, score,
};
use larql_engine::{Interrupt, Profile, Runtime};
use serde_json::Value;

/// Largest relative error of the exact profile's bits per token.
const BITS_ERROR_MAX: f64 = 1e-3;
/// The reference, and the text it is of, beside the golden file of prompts.
const REFERENCE: &str = "ppl.json";
const TEXT: &str = "ppl.txt";

/// What a reference says about a text.
struct Reference {
    sha256: String,
    bytes: u64,
    tokens: usize,
    bits_per_token: f64,
    peer_kl_mean: f64,
}

/// The files beside a golden file, if both are there.
pub(super) fn beside(golden: &Path) -> Option<(PathBuf, PathBuf)> {
    let [reference, text] = [REFERENCE, TEXT].map(|name| golden.with_file_name(name));
    (reference.is_file() && text.is_file()).then_some((reference, text))
}

/// Scores the text by `exact`, and by `fast` against `exact`; each bar with whether it is met.
pub(super) fn compare(
    model: &Path,
    reference: &Path,
    text: &Path,
) -> Result<Vec<(&'static str, bool)>> {
    let want = self::reference(reference)?;
    let (db, text) = (Database::open(model)?, ScoreText::open(text, None)?);
    let n_threads = NonZeroUsize::new(2).context("two is not zero")?;
    let runtime = |profile| Runtime::new(n_threads, profile, Interrupt::default());
    let (mut fast, mut exact) = (runtime(Profile::Fast), runtime(Profile::Exact));
    let options = ScoreOptions {
        window: WINDOW_TOKENS,
        windows: NonZeroUsize::new(want.tokens.div_ceil(WINDOW_TOKENS)),
        rows_per_pass: ROWS_PER_PASS,
    };
    let run = Arm {
        db: &db,
        runtime: &mut fast,
    };
    // The reference of the comparison is the exact profile, so one pass gives the bits of both.
    let against = Arm {
        db: &db,
        runtime: &mut exact,
    };
    let report = score(run, Some(against), &text, &options, &mut |_| {})?;
    bars(&report, &want)
}

fn bars(report: &ScoreReport, want: &Reference) -> Result<Vec<(&'static str, bool)>> {
    let exact = report.against.as_ref().context("two profiles were run")?;
    let error = (exact.bits_per_token / want.bits_per_token - 1.0).abs();
    println!(
        "{}: {} tokens, {} bytes",
        TEXT,
        report.tokens,
        report
            .bytes
            .map_or_else(|| "unknown".to_owned(), |n| n.to_string())
    );
    println!(
        "  exact: {:.6} bits per token, reference {:.6}, relative error {error:.1e}",
        exact.bits_per_token, want.bits_per_token
    );
    println!(
        "  fast: {:.6} bits per token; KL(exact || fast) mean {:.6}, median {:.6}, 99 % {:.6}, max {:.6} nats; \
         the peer's mean {:.6}",
        report.bits_per_token,
        exact.kl_mean,
        exact.kl_p50,
        exact.kl_p99,
        exact.kl_max,
        want.peer_kl_mean
    );
    println!(
        "  fast: the same most likely token at {:.5} of the positions, {} flips",
        exact.top1_agreement, exact.flips
    );
    let same_text = report.file_sha256 == want.sha256
        && report.tokens == want.tokens
        && report.bytes == Some(want.bytes);
    Ok(vec![
        ("the text and its tokens", same_text),
        ("bits per token", error <= BITS_ERROR_MAX),
        ("fast KL on the text", exact.kl_mean <= want.peer_kl_mean),
    ])
}

fn reference(path: &Path) -> Result<Reference> {
    let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let json: Value = serde_json::from_slice(&bytes)?;
    parse(&json).with_context(|| format!("{} lacks a field", path.display()))
}

fn parse(json: &Value) -> Option<Reference> {
    Some(Reference {
        sha256: json["sha256"].as_str()?.to_owned(),
        bytes: json["bytes_of_the_scored_tokens"].as_u64()?,
        tokens: usize::try_from(json["tokens"].as_u64()?).ok()?,
        bits_per_token: json["float32"]["bits_per_token"].as_f64()?,
        peer_kl_mean: json["llama_cpp"]["kl_to_float32_mean_nats"].as_f64()?,
    })
}
