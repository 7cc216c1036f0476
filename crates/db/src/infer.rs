//! `INFER`: the next tokens of a prompt by running the model, and how each would go on.

use larql_engine::{Runtime, SequenceState, argmax, log_softmax, top_k};
use larql_models::tokenizer::{Bos, EncodeSpecial, SpecialText};

use crate::database::Database;
use crate::describe::rounded;
use crate::error::DbError;
use crate::generate::{Growing, prefill, step_each};
use crate::plan::InferPlan;
use crate::rows::{Cell, Rows, counted};
use crate::token::lone_token;

/// Answers an `INFER`.
///
/// # Errors
/// If the vindex holds too little to run, the prompt is too long, or the run fails or is interrupted.
pub fn infer(db: &Database, runtime: &mut Runtime, plan: &InferPlan) -> Result<Rows, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let prompt = tokenizer.encode(&plan.prompt, EncodeSpecial::Plain, Bos::Model)?;
    let mut state =
        SequenceState::with_length(model.spec(), prompt.len() + plan.generate.unwrap_or(0));
    let logits = prefill(db, runtime, &mut state, &prompt)?;
    let log_probs = log_softmax(&logits);
    let best = top_k(&logits, plan.top);
    let continuations = match plan.generate {
        None => vec![Cell::Null; best.len()],
        Some(n) => {
            let first: Vec<u32> = best.iter().map(|(id, _)| *id).collect();
            continue_each(db, runtime, &state, &first, n)?
        }
    };
    let mut rows = Rows::new(&["rank", "id", "token", "logit", "prob", "text"]);
    for ((rank, (id, logit)), text) in best.iter().enumerate().zip(continuations) {
        rows.push(vec![
            (rank + 1).into(),
            (*id).into(),
            lone_token(tokenizer, *id).into(),
            rounded(f64::from(*logit)),
            rounded(log_probs[*id as usize].exp()),
            text,
        ]);
    }
    if plan.generate.is_none() {
        let text = rows.columns.len() - 1;
        rows.columns.truncate(text);
        rows.rows.iter_mut().for_each(|row| row.truncate(text));
    }
    rows.note(format!(
        "profile {}; {}",
        runtime.profile().name(),
        counted(prompt.len(), "prompt token")
    ));
    Ok(rows)
}

/// Continues each first token greedily until `n` tokens or the end, all in one batch.
fn continue_each(
    db: &Database,
    runtime: &mut Runtime,
    state: &SequenceState,
    first: &[u32],
    n: usize,
) -> Result<Vec<Cell>, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let mut all: Vec<Growing> = first
        .iter()
        .map(|id| Growing {
            tokens: vec![*id],
            state: state.clone(),
            is_done: tokenizer.is_stop(*id),
        })
        .collect();
    for _ in 1..n {
        let mut live: Vec<&mut Growing> = all.iter_mut().filter(|one| !one.is_done).collect();
        if live.is_empty() {
            break;
        }
        let logits = step_each(model, runtime, &mut live)?;
        for (row, one) in live.iter_mut().enumerate() {
            let next = argmax(logits.last(row).expect("the last logits were asked for"));
            one.is_done = tokenizer.is_stop(next);
            if !one.is_done {
                one.tokens.push(next);
            }
        }
    }
    Ok(all
        .iter()
        .map(|one| tokenizer.decode(&one.tokens, SpecialText::Skip).into())
        .collect())
}
