//! `WALK`: the features that a prompt makes fire at one position, layer by layer, from the pass that ran.

use larql_engine::{RowPlace, Runtime, SequenceInput, SequenceState, WantedLogits, forward};
use larql_models::tokenizer::{Bos, EncodeSpecial};

use crate::attribution::Capture;
use crate::database::Database;
use crate::describe::rounded;
use crate::error::DbError;
use crate::features::{down_norms, feature_tokens};
use crate::plan::WalkPlan;
use crate::progress::{OnProgress, Progress};
use crate::rows::Rows;

/// Output tokens shown of a feature.
const TOKENS_SHOWN: usize = 5;

/// Answers a `WALK`.
///
/// # Errors
/// If the vindex holds too little to run, the position is not in the prompt, or the run fails or is interrupted.
pub fn walk(
    db: &Database,
    runtime: &mut Runtime,
    plan: &WalkPlan,
    on_progress: OnProgress<'_>,
) -> Result<Rows, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let prompt = tokenizer.encode(&plan.prompt, EncodeSpecial::Plain, Bos::Model)?;
    let last = prompt.len().saturating_sub(1);
    let position = plan.position.unwrap_or(last);
    if position > last {
        return Err(DbError::Position {
            position,
            n_tokens: prompt.len(),
        });
    }
    let mut capture = Capture::new(
        model,
        RowPlace {
            sequence: 0,
            position,
        },
    );
    let input = SequenceInput {
        tokens: &prompt,
        logits: WantedLogits::Absent,
    };
    forward(
        model,
        runtime,
        &[input],
        &mut [SequenceState::with_length(model.spec(), prompt.len())],
        Some(&mut capture),
    )?;
    let mut rows = Rows::new(&[
        "layer",
        "rank",
        "feature",
        "gate",
        "activation",
        "contribution_norm",
        "share",
        "effect",
        "tokens",
    ]);
    let layers = plan.layers.clone();
    let n_layers = layers.clone().count();
    for (done, layer) in layers.enumerate() {
        on_progress(Progress {
            stage: "reading layers",
            done: done as u64,
            total: n_layers as u64,
        });
        let (gate, activation) = (capture.mlp_pre(layer), capture.mlp_post(layer));
        let norms = down_norms(db, runtime, layer)?;
        let mut fired: Vec<(u32, f64)> = (0u32..)
            .zip(activation.iter().zip(&norms))
            .map(|(feature, (a, norm))| (feature, f64::from(a.abs()) * f64::from(*norm)))
            .collect();
        let total: f64 = fired.iter().map(|(_, norm)| norm).sum();
        fired.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        fired.truncate(plan.top);
        let features: Vec<u32> = fired.iter().map(|(feature, _)| *feature).collect();
        let tokens = feature_tokens(db, runtime, layer, &features, TOKENS_SHOWN, on_progress)?;
        for ((rank, (feature, norm)), tokens) in fired.iter().enumerate().zip(tokens) {
            let at = *feature as usize;
            let texts: Vec<String> = tokens
                .iter()
                .map(|(id, _)| {
                    tokenizer
                        .token_text(*id)
                        .unwrap_or_default()
                        .trim()
                        .to_owned()
                })
                .collect();
            rows.push(vec![
                layer.into(),
                (rank + 1).into(),
                (*feature).into(),
                rounded(f64::from(gate[at])),
                rounded(f64::from(activation[at])),
                rounded(*norm),
                rounded(norm / total),
                // A negative activation writes the opposite of the feature's tokens.
                if activation[at] < 0.0 {
                    "suppresses"
                } else {
                    "promotes"
                }
                .into(),
                texts.join(" | ").into(),
            ]);
        }
    }
    let token = tokenizer.token_text(prompt[position]).unwrap_or_default();
    rows.note(format!(
        "profile {}; position {position} of {}: token {token:?}; share is of the layer's summed contribution norms",
        runtime.profile().name(),
        prompt.len(),
    ));
    Ok(rows)
}
