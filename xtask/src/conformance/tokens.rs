//! A model's tokenizer against texts whose ids another program computed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use larql_models::Checkpoint;
use larql_models::tokenizer::{Bos, EncodeSpecial, SpecialText};
use serde_json::Value;

/// Encodes every case without markers and without a beginning; decodes the ids back.
pub(super) fn compare(model: &Path, cases: &Path) -> Result<()> {
    let tokenizer = Checkpoint::open(model)?.tokenizer()?;
    let json: Value = serde_json::from_slice(&fs::read(cases)?)?;
    let cases = json["cases"].as_array().context("no list `cases`")?;
    let (mut equal, mut decoded) = (0, 0);
    for case in cases {
        let text = case["text"].as_str().context("a case lacks `text`")?;
        let ids: Vec<u64> = case["ids"]
            .as_array()
            .context("a case lacks `ids`")?
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        let ours = tokenizer.encode(text, EncodeSpecial::Plain, Bos::Never)?;
        if ours.iter().copied().map(u64::from).eq(ids.iter().copied()) {
            equal += 1;
        } else {
            println!("  {text:?}: {ours:?} for {ids:?}");
        }
        let back = tokenizer.decode(&ours, SpecialText::Keep);
        if back == text {
            decoded += 1;
        } else {
            println!("  {text:?} comes back as {back:?}");
        }
    }
    println!(
        "{}: ids equal {equal}/{n}, decoded back {decoded}/{n}",
        model.display(),
        n = cases.len()
    );
    if equal == cases.len() {
        Ok(())
    } else {
        bail!("not met: ids")
    }
}
