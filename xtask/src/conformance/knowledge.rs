//! What a model answers about entities, against lists of true answers.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, bail};
use larql_db::Database;
use larql_db::describe::answers;
use larql_db::infer::infer;
use larql_db::plan::InferPlan;
use larql_db::relations::{Relation, Relations};
use larql_engine::{Interrupt, Profile, Runtime};
use larql_models::tokenizer::{Bos, EncodeSpecial};
use serde_json::Value;

/// Share of known facts that `DESCRIBE` must put first.
const FACTS_FIRST_MIN: f64 = 0.98;
/// What the reference itself gets right of the phrasings it never saw.
const HELD_OUT_REFERENCE: f64 = 0.972;
/// How far from that ours may be.
const HELD_OUT_TOLERANCE: f64 = 0.005;

/// Counts of right answers.
#[derive(Default, Clone, Copy)]
struct Tally {
    first: usize,
    in_five: usize,
    by_chance: usize,
    n: usize,
}

fn runtime() -> Result<Runtime> {
    let n_threads = NonZeroUsize::new(2).context("two is not zero")?;
    Ok(Runtime::new(
        n_threads,
        Profile::Exact,
        Interrupt::default(),
    ))
}

fn relation(name: &str) -> Result<Relation> {
    Relations::shipped()
        .find(name)
        .cloned()
        .with_context(|| format!("no relation `{name}`"))
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Every fact the model was trained on through `DESCRIBE`, and the held-out phrasings through `INFER`.
pub(super) fn facts(model: &Path, reference: &Path) -> Result<()> {
    let (db, mut runtime) = (Database::open(model)?, runtime()?);
    let json = read(&reference.join("facts.json"))?;
    let mut per_relation: BTreeMap<String, Tally> = BTreeMap::new();
    for fact in json["facts"].as_array().context("no list `facts`")? {
        let [entity, name, target] =
            [&fact[0], &fact[1], &fact[2]].map(|text| text.as_str().unwrap_or_default());
        let found = answers(
            &db,
            &mut runtime,
            entity,
            &[&relation(name)?],
            5,
            &mut |_| {},
        )?;
        let tally = per_relation.entry(name.to_owned()).or_default();
        tally.n += 1;
        tally.first += usize::from(found.first().is_some_and(|answer| answer.target == target));
        tally.in_five += usize::from(found.iter().any(|answer| answer.target == target));
        if found.first().is_none_or(|answer| answer.target != target) {
            let got = found
                .first()
                .map_or("nothing", |answer| answer.target.as_str());
            println!("  {entity} / {name}: {got} before {target}");
        }
    }
    let (mut first, mut n) = (0, 0);
    for (name, tally) in &per_relation {
        println!(
            "  {name}: first {}/{}, in five {}/{}",
            tally.first, tally.n, tally.in_five, tally.n
        );
        first += tally.first;
        n += tally.n;
    }
    let rate = first as f64 / n.max(1) as f64;
    println!("DESCRIBE puts the right target first for {first}/{n} facts ({rate:.4})");
    let (right, held) = held_out(&db, &mut runtime, &reference.join("heldout.jsonl"))?;
    let held_rate = right as f64 / held.max(1) as f64;
    println!(
        "INFER completes {right}/{held} held-out phrasings ({held_rate:.4}; the reference {HELD_OUT_REFERENCE})"
    );
    if rate < FACTS_FIRST_MIN {
        bail!("not met: facts first");
    }
    if (held_rate - HELD_OUT_REFERENCE).abs() > HELD_OUT_TOLERANCE {
        bail!("not met: held-out phrasings");
    }
    Ok(())
}

fn held_out(db: &Database, runtime: &mut Runtime, path: &Path) -> Result<(usize, usize)> {
    let tokenizer = db.tokenizer()?;
    let (mut right, mut n) = (0, 0);
    for line in fs::read_to_string(path)?.lines() {
        let case: Value = serde_json::from_str(line)?;
        let (Some(text), Some(target)) = (case["text"].as_str(), case["target"].as_str()) else {
            bail!("a held-out line lacks `text` or `target`");
        };
        let at = text
            .rfind(target)
            .context("a held-out text lacks its target")?;
        let prompt = text[..at].trim_end_matches(' ').to_owned();
        let encode = |text: &str| tokenizer.encode(text, EncodeSpecial::Plain, Bos::Model);
        let (whole, before) = (encode(&format!("{prompt} {target}"))?, encode(&prompt)?);
        let plan = InferPlan {
            prompt,
            top: 1,
            generate: Some(whole.len() - before.len()),
        };
        let rows = infer(db, runtime, &plan)?;
        let text = rows.rows.first().and_then(|row| row.last());
        n += 1;
        right += usize::from(text == Some(&larql_db::Cell::Text(format!(" {target}"))));
    }
    Ok((right, n))
}

/// Hit rates of `DESCRIBE` for a relation over the first `limit` rows of a table of true answers.
pub(super) fn hits(model: &Path, table: &Path, name: &str, limit: usize) -> Result<()> {
    let (db, mut runtime) = (Database::open(model)?, runtime()?);
    let json = read(table)?;
    let mut rows: Vec<&Value> = json["rows"]
        .as_array()
        .context("no list `rows`")?
        .iter()
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row["population"].as_u64()));
    rows.truncate(limit);
    let relation = relation(name)?;
    let mut tally = Tally::default();
    for (i, row) in rows.iter().enumerate() {
        let truth = |i: usize| rows[i % rows.len()][name].as_str().unwrap_or_default();
        let entity = row["entity"].as_str().context("a row lacks `entity`")?;
        let found = answers(&db, &mut runtime, entity, &[&relation], 5, &mut |_| {})?;
        let first = found
            .first()
            .map_or("nothing", |answer| answer.target.as_str());
        tally.n += 1;
        tally.first += usize::from(first == truth(i));
        tally.in_five += usize::from(found.iter().any(|answer| answer.target == truth(i)));
        // The same answers against the truth of another row: what the model says whatever it is asked.
        tally.by_chance += usize::from(first == truth(i + 1));
        println!("  {entity}: {first} (true: {})", truth(i));
    }
    println!(
        "{name} of {} entities, templates: {}",
        tally.n,
        relation.templates.join(" / ")
    );
    println!(
        "  hit@1 {}/{n}, hit@5 {}/{n}; chance 1/{}; against another entity's truth {}/{n}",
        tally.first,
        tally.in_five,
        relation.answers.len(),
        tally.by_chance,
        n = tally.n,
    );
    Ok(())
}
