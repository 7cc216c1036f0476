//! A model against prompts whose logits and continuation another program computed in float32.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use larql_db::score::kl_divergence;
use larql_engine::{
    Interrupt, Model, Profile, Runtime, SequenceInput, SequenceState, WantedLogits, argmax,
    forward, top_k,
};
use larql_models::Checkpoint;
use larql_models::tokenizer::{Bos, EncodeSpecial, SpecialText, Tokenizer};
use serde_json::Value;

/// One prompt of a golden file.
struct Case {
    prompt: String,
    ids: Vec<u32>,
    top: Vec<(u32, f64)>,
    greedy: Vec<u32>,
}

/// What the comparison found.
pub(super) struct GoldenReport {
    pub(super) n_prompts: usize,
    pub(super) ids_equal: usize,
    pub(super) top_ids_equal: usize,
    pub(super) greedy_equal: usize,
    pub(super) decoded_equal: usize,
    pub(super) max_logit_error: f64,
    pub(super) kl_mean: f64,
    pub(super) kl_max: f64,
    pub(super) n_positions: usize,
}

/// Compares a model's `exact` profile with the golden file, and its `fast` profile with `exact`.
pub(super) fn compare(model_path: &Path, golden: &Path) -> Result<GoldenReport> {
    let checkpoint = Checkpoint::open(model_path)?;
    let (model, tokenizer) = (Model::load(&checkpoint)?, checkpoint.tokenizer()?);
    let n_threads = NonZeroUsize::new(2).context("two is not zero")?;
    let mut exact = Runtime::new(n_threads, Profile::Exact, Interrupt::default());
    let mut fast = Runtime::new(n_threads, Profile::Fast, Interrupt::default());
    let mut report = GoldenReport {
        n_prompts: 0,
        ids_equal: 0,
        top_ids_equal: 0,
        greedy_equal: 0,
        decoded_equal: 0,
        max_logit_error: 0.0,
        kl_mean: 0.0,
        kl_max: 0.0,
        n_positions: 0,
    };
    for case in cases(golden)? {
        one_case(
            &model,
            &tokenizer,
            &mut exact,
            &mut fast,
            &case,
            &mut report,
        )?;
    }
    report.kl_mean /= report.n_positions.max(1) as f64;
    Ok(report)
}

fn one_case(
    model: &Model,
    tokenizer: &Tokenizer,
    exact: &mut Runtime,
    fast: &mut Runtime,
    case: &Case,
    report: &mut GoldenReport,
) -> Result<()> {
    report.n_prompts += 1;
    report.ids_equal +=
        usize::from(tokenizer.encode(&case.prompt, EncodeSpecial::Plain, Bos::Model)? == case.ids);
    report.decoded_equal +=
        usize::from(tokenizer.decode(&case.ids, SpecialText::Skip) == case.prompt);
    let spec = model.spec();
    let (mut exact_states, mut fast_states) =
        ([SequenceState::new(spec)], [SequenceState::new(spec)]);
    let mut tokens = case.ids.clone();
    let mut continuation = Vec::new();
    while continuation.len() < case.greedy.len() {
        let input = [SequenceInput {
            tokens: &tokens,
            logits: WantedLogits::All,
        }];
        let ours = forward(model, exact, &input, &mut exact_states, None)?;
        let approximate = forward(model, fast, &input, &mut fast_states, None)?;
        for ((_, p), (_, q)) in ours.rows().zip(approximate.rows()) {
            let kl = kl_divergence(p, q);
            report.kl_mean += kl;
            report.kl_max = report.kl_max.max(kl);
            report.n_positions += 1;
        }
        let last = ours.last(0).context("logits were asked for")?;
        if continuation.is_empty() {
            let top = top_k(last, case.top.len());
            report.top_ids_equal += usize::from(top.iter().zip(&case.top).all(|(a, b)| a.0 == b.0));
            for (id, want) in &case.top {
                report.max_logit_error = report
                    .max_logit_error
                    .max((f64::from(last[*id as usize]) - want).abs());
            }
        }
        let next = argmax(last);
        continuation.push(next);
        tokens = vec![next];
    }
    report.greedy_equal += usize::from(continuation == case.greedy);
    Ok(())
}

fn cases(golden: &Path) -> Result<Vec<Case>> {
    let text =
        std::fs::read(golden).with_context(|| format!("{} cannot be read", golden.display()))?;
    let json: Value = serde_json::from_slice(&text)?;
    let prompts = json["prompts"].as_array().context("no list `prompts`")?;
    let parsed: Vec<Case> = prompts
        .iter()
        .map(case)
        .collect::<Option<_>>()
        .context("a prompt lacks a field")?;
    ensure!(!parsed.is_empty(), "no prompts");
    Ok(parsed)
}

fn case(json: &Value) -> Option<Case> {
    let reference = json.get("float32").unwrap_or(json);
    let ids = |value: &Value| -> Option<Vec<u32>> {
        value
            .as_array()?
            .iter()
            .map(|id| u32::try_from(id.as_u64()?).ok())
            .collect()
    };
    let greedy = reference
        .get("greedy16")
        .or_else(|| reference.get("greedy8"))?;
    let top = reference["top"].as_array()?;
    Some(Case {
        prompt: json["prompt"].as_str()?.to_owned(),
        ids: ids(&json["ids"])?,
        top: top
            .iter()
            .map(|entry| {
                Some((
                    u32::try_from(entry["id"].as_u64()?).ok()?,
                    entry["logit"].as_f64()?,
                ))
            })
            .collect::<Option<_>>()?,
        greedy: ids(greedy)?,
    })
}
