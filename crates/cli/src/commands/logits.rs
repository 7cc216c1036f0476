//! `larql logits`: the distribution of the next token.

use larql_db::Rows;
use larql_db::generate::prefill;
use larql_db::rows::counted;
use larql_db::token::lone_token;
use larql_engine::{SequenceState, TilePlace, log_softmax, top_k};
use serde::Serialize;

use crate::Outcome;
use crate::args::LogitsArgs;
use crate::commands::pack::tiles_note;
use crate::context::{Context, encode_prompt};
use crate::error::CliError;

#[derive(Debug, Serialize)]
struct Wire {
    profile: &'static str,
    /// Where the weights are.
    tiles: TilePlace,
    prompt_ids: Vec<u32>,
    top: Vec<Candidate>,
}

#[derive(Debug, Serialize)]
struct Candidate {
    id: u32,
    token: Option<String>,
    logit: f32,
    prob: f64,
}

/// Runs the prompt and prints the most likely next tokens.
///
/// # Errors
/// If the prompt cannot be encoded or run.
pub(crate) fn logits(context: &Context, args: &LogitsArgs) -> Result<Outcome, CliError> {
    let profile = args.arithmetic.profile(context)?;
    let db = context.open(&args.model)?;
    let tokenizer = context.tokenizer(&db)?;
    let prompt_ids = encode_prompt(tokenizer, &args.prompt)?;
    let tiles = db.model()?.tile_place();
    let mut runtime = context.runtime(profile);
    let mut state = SequenceState::with_length(db.spec(), prompt_ids.len());
    let work = context.interrupts.work();
    let logits = prefill(&db, &mut runtime, &mut state, &prompt_ids)?;
    drop(work);
    if let Some(id) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(larql_engine::EngineError::NotANumber { id }.into());
    }
    let log_probs = log_softmax(&logits);
    let top: Vec<Candidate> = top_k(&logits, args.top)
        .into_iter()
        .map(|(id, logit)| Candidate {
            id,
            token: lone_token(tokenizer, id),
            logit,
            prob: log_probs[id as usize].exp(),
        })
        .collect();
    let profile = runtime.profile().name();
    if context.printer.is_table() {
        let mut rows = Rows::new(&["id", "token", "logit", "prob"]);
        for candidate in top {
            rows.push(vec![
                candidate.id.into(),
                candidate.token.into(),
                candidate.logit.into(),
                candidate.prob.into(),
            ]);
        }
        rows.note(format!(
            "profile {profile}{}, {}",
            tiles_note(tiles),
            counted(prompt_ids.len(), "prompt token")
        ));
        context.printer.table(&rows)?;
    } else {
        context.printer.json(&Wire {
            profile,
            tiles,
            prompt_ids,
            top,
        })?;
    }
    Ok(Outcome::Done)
}
