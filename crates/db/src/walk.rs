//! `WALK`: the features that a prompt makes fire at one position, layer by layer, from the pass that ran.

use larql_engine::{RowPlace, Runtime, SequenceInput, SequenceState, WantedLogits, forward};
use larql_models::tokenizer::{Bos, EncodeSpecial};

use crate::address::{address_cells, has_experts};
use crate::attribution::Capture;
use crate::database::Database;
use crate::describe::rounded;
use crate::error::DbError;
use crate::features::{down_norms, feature_tokens};
use crate::plan::WalkPlan;
use crate::progress::{OnProgress, Progress};
use crate::rows::{Cell, Rows};
use crate::token::{lone_token, token_word};

/// Output tokens shown of a feature.
const TOKENS_SHOWN: usize = 5;

/// Columns of a model with experts.
const COLUMNS: [&str; 14] = [
    "layer",
    "rank",
    "feature",
    "ffn",
    "expert",
    "neuron",
    "expert_weight",
    "gate",
    "activation",
    "contribution_norm",
    "share",
    "effect",
    "tokens",
    "routed",
];
/// Those of them that other models do not need.
const EXPERT_COLUMNS: [&str; 5] = ["ffn", "expert", "neuron", "expert_weight", "routed"];

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
    let mut rows = Rows::new(&COLUMNS);
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
                .map(|(id, _)| token_word(tokenizer, *id))
                .collect();
            let [part, expert, neuron] = address_cells(&db.spec().layers[layer].ffn, *feature);
            let weights = capture.expert_weights(layer);
            let weight = match expert {
                Cell::Integer(expert) => usize::try_from(expert)
                    .ok()
                    .and_then(|expert| weights.get(expert)),
                Cell::Null | Cell::Real(_) | Cell::Text(_) => None,
            };
            rows.push(vec![
                layer.into(),
                (rank + 1).into(),
                (*feature).into(),
                part,
                expert,
                neuron,
                weight
                    .map(|weight| rounded(f64::from(*weight)))
                    .unwrap_or(Cell::Null),
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
                (rank == 0).then(|| routed(weights)).flatten().into(),
            ]);
        }
    }
    if !has_experts(db.spec()) {
        drop_expert_columns(&mut rows);
    }
    let token = lone_token(tokenizer, prompt[position]).unwrap_or_default();
    rows.note(format!(
        "profile {}; position {position} of {}: token {token:?}; share is of the layer's summed contribution norms",
        runtime.profile().name(),
        prompt.len(),
    ));
    Ok(rows)
}

/// The experts that ran and what the router gave them, largest first; absent where there is no router.
fn routed(weights: &[f32]) -> Option<String> {
    if weights.is_empty() {
        return None;
    }
    let mut ran: Vec<(usize, f32)> = weights
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, weight)| *weight != 0.0)
        .collect();
    ran.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let words: Vec<String> = ran
        .iter()
        .map(|(expert, weight)| format!("E{expert} {weight:.4}"))
        .collect();
    Some(words.join(", "))
}

fn drop_expert_columns(rows: &mut Rows) {
    let kept = COLUMNS.map(|name| !EXPERT_COLUMNS.contains(&name));
    let mut at = kept.iter();
    rows.columns.retain(|_| at.next().is_none_or(|kept| *kept));
    for row in &mut rows.rows {
        let mut at = kept.iter();
        row.retain(|_| at.next().is_none_or(|kept| *kept));
    }
}
