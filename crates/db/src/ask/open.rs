//! Answers of any text: the likeliest beginnings, continued greedily to the end of the phrase.

use std::collections::BTreeMap;

use larql_engine::{Runtime, argmax, log_sum_exp, top_k};
use larql_models::tokenizer::{SpecialText, Tokenizer};

use super::{AskedPrompt, FOLLOW_SHARE, Scored};
use crate::database::Database;
use crate::error::DbError;
use crate::generate::{Growing, step_each};

/// Beginnings followed per template where any answer is possible.
const OPEN_BEGINNINGS: usize = 4;
/// Longest answer where any answer is possible, in tokens.
const OPEN_TOKENS_MAX: usize = 8;
/// Words that end a phrase when they follow it.
const PHRASE_ENDS: &[&str] = &[
    "and", "or", "which", "who", "that", "in", "on", "at", "by", "is", "was", "with", "for",
    "from", "as", "but",
];

/// A continuation that is still growing.
struct Beam {
    prompt: usize,
    log_prob: f64,
    growing: Growing,
}

pub(super) fn open_answers(
    db: &Database,
    runtime: &mut Runtime,
    prompts: &[AskedPrompt],
) -> Result<Vec<Scored>, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let mut beams = Vec::new();
    for (prompt, asked) in prompts.iter().enumerate() {
        let as_logits: Vec<f32> = asked.log_probs.iter().map(|p| *p as f32).collect();
        let likely = top_k(&as_logits, 4 * OPEN_BEGINNINGS);
        let beginnings = likely
            .into_iter()
            .filter(|(id, _)| !ends_phrase(tokenizer, *id));
        beams.extend(beginnings.take(OPEN_BEGINNINGS).map(|(id, _)| Beam {
            prompt,
            log_prob: asked.log_probs[id as usize],
            growing: Growing {
                tokens: vec![id],
                state: asked.state.clone(),
                is_done: false,
            },
        }));
    }
    loop {
        let best = beams
            .iter()
            .map(|beam| beam.log_prob)
            .fold(f64::NEG_INFINITY, f64::max);
        beams.retain(|beam| beam.log_prob >= best + FOLLOW_SHARE.ln());
        if beams.iter().all(|beam| beam.growing.is_done) {
            break;
        }
        let mut live: Vec<&mut Beam> = beams
            .iter_mut()
            .filter(|beam| !beam.growing.is_done)
            .collect();
        let mut growing: Vec<&mut Growing> =
            live.iter_mut().map(|beam| &mut beam.growing).collect();
        let logits = step_each(model, runtime, &mut growing)?;
        for (row, beam) in live.iter_mut().enumerate() {
            let row = logits.last(row).expect("the last logits were asked for");
            let next = argmax(row);
            if ends_phrase(tokenizer, next) || beam.growing.tokens.len() >= OPEN_TOKENS_MAX {
                beam.growing.is_done = true;
            } else {
                beam.log_prob += f64::from(row[next as usize]) - log_sum_exp(row);
                beam.growing.tokens.push(next);
            }
        }
    }
    Ok(collect_open(tokenizer, prompts.len(), &beams))
}

fn collect_open(tokenizer: &Tokenizer, n_prompts: usize, beams: &[Beam]) -> Vec<Scored> {
    let mut by_text: BTreeMap<String, Scored> = BTreeMap::new();
    for beam in beams {
        let text = tokenizer
            .decode(&beam.growing.tokens, SpecialText::Skip)
            .trim()
            .to_owned();
        if text.is_empty() {
            continue;
        }
        let scored = by_text.entry(text.clone()).or_insert_with(|| Scored {
            text,
            prob: 0.0,
            share: None,
            per_template: vec![0.0; n_prompts],
            first_token: vec![None; n_prompts],
        });
        scored.per_template[beam.prompt] += beam.log_prob.exp();
        scored.prob += beam.log_prob.exp() / n_prompts as f64;
        scored.first_token[beam.prompt].get_or_insert(beam.growing.tokens[0]);
    }
    by_text.into_values().collect()
}

/// Whether a token can only follow a finished phrase.
fn ends_phrase(tokenizer: &Tokenizer, id: u32) -> bool {
    if tokenizer.is_stop(id) || tokenizer.is_control(id) {
        return true;
    }
    let Some(text) = tokenizer.token_text(id) else {
        return true;
    };
    let word = text.trim_start_matches(' ');
    let begins_word = text.starts_with(' ');
    match word.chars().next() {
        None => true,
        Some(first) => {
            !first.is_alphanumeric() && first != '-' && first != '\''
                || begins_word && PHRASE_ENDS.contains(&word)
        }
    }
}
