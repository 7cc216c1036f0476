//! Asking a model for the answers of a relation, through every template.
//!
//! A relation with an answer list is scored exactly on that list: the candidates' tokens form a trie under each template,
//! and an answer that is the beginning of a longer one counts only the probability of stopping there. A relation without
//! a list is answered by the likeliest beginnings, continued greedily to the end of the phrase.
//! Cost: one pass over all templates, then one per few continuations; weights are traversed once per pass.

mod listed;
mod open;

use larql_engine::{
    RowPlace, Runtime, SequenceInput, SequenceState, Tap, TapPoint, WantedLogits, forward,
    log_softmax,
};
use larql_models::tokenizer::{Bos, EncodeSpecial, Tokenizer};

use self::listed::listed_answers;
use self::open::open_answers;

use crate::attribution::Capture;
use crate::database::Database;
use crate::error::DbError;
use crate::relations::Relation;

/// Continuations evaluated in one pass.
const CONTINUATIONS_PER_PASS: usize = 24;
/// Continuations less likely than this share of the best answer so far are not followed.
const FOLLOW_SHARE: f64 = 1e-2;
/// What stands for the entity when the answers are asked for without one.
pub(crate) const NO_ENTITY: &str = "something";

/// What a model answered.
#[derive(Debug)]
pub struct Asked {
    /// Answers, best first.
    pub answers: Vec<Scored>,
    /// The prompts, one per template.
    pub prompts: Vec<AskedPrompt>,
    /// Whether answers come from the relation's list.
    pub is_listed: bool,
    /// Mean probability that the templates give to all listed answers together.
    pub listed_mass: Option<f64>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Its text.
    pub text: String,
    /// Mean probability over the templates.
    pub prob: f64,
    /// Mean over the templates of its share among the listed answers.
    pub share: Option<f64>,
    /// Probability per template.
    pub per_template: Vec<f64>,
    /// Its first token under each template, where that template reached it.
    pub first_token: Vec<Option<u32>>,
}

/// One template's prompt as it ran.
#[derive(Debug)]
pub struct AskedPrompt {
    /// The template.
    pub template: String,
    /// The prompt.
    pub text: String,
    /// What its last position computed.
    pub capture: Capture,
    ids: Vec<u32>,
    state: SequenceState,
    log_probs: Vec<f64>,
}

impl Scored {
    /// The template that gives it the highest probability.
    pub fn best_template(&self) -> usize {
        let mut best = 0;
        for (i, p) in self.per_template.iter().enumerate() {
            if *p > self.per_template[best] {
                best = i;
            }
        }
        best
    }
}

/// Asks `relation` about `entity`.
///
/// # Errors
/// If the vindex holds too little to run, the entity cannot be encoded, or the run fails or is interrupted.
pub fn ask(
    db: &Database,
    runtime: &mut Runtime,
    relation: &Relation,
    entity: &str,
) -> Result<Asked, DbError> {
    let prompts = run_prompts(db, runtime, relation, entity)?;
    let is_listed = !relation.answers.is_empty();
    let mut answers = if is_listed {
        listed_answers(db, runtime, &prompts, &relation.answers)?
    } else {
        open_answers(db, runtime, &prompts)?
    };
    let listed_mass = is_listed.then(|| {
        let total: f64 = answers.iter().flat_map(|answer| &answer.per_template).sum();
        total / prompts.len() as f64
    });
    let key = |answer: &Scored| answer.share.unwrap_or(answer.prob);
    answers.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.text.cmp(&b.text)));
    Ok(Asked {
        answers,
        prompts,
        is_listed,
        listed_mass,
    })
}

/// Mean probability over the templates of each answer where the prompt names no entity.
///
/// An answer that is as likely then says nothing about an entity. As in [`ask`], but the listed answers are not
/// searched: exactly the given ones are scored, token by token.
///
/// # Errors
/// As [`ask`].
pub fn without_entity(
    db: &Database,
    runtime: &mut Runtime,
    relation: &Relation,
    answers: &[&str],
) -> Result<Vec<f64>, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let prompts = run_prompts(db, runtime, relation, NO_ENTITY)?;
    let mut probs = vec![0.0; answers.len()];
    let mut longer = Vec::new();
    for prompt in &prompts {
        for (answer, text) in answers.iter().enumerate() {
            let Some(tokens) = continuation(tokenizer, prompt, text)? else {
                continue;
            };
            let log_prob = prompt.log_probs[tokens[0] as usize];
            if tokens.len() == 1 {
                probs[answer] += log_prob.exp();
            } else {
                longer.push((answer, prompt, tokens, log_prob));
            }
        }
    }
    for chunk in longer.chunks(CONTINUATIONS_PER_PASS) {
        let batch: Vec<SequenceInput<'_>> = chunk
            .iter()
            .map(|(_, _, tokens, _)| SequenceInput {
                tokens: &tokens[..tokens.len() - 1],
                logits: WantedLogits::All,
            })
            .collect();
        let mut states: Vec<SequenceState> = chunk
            .iter()
            .map(|(_, prompt, ..)| prompt.state.clone())
            .collect();
        let logits = forward(model, runtime, &batch, &mut states, None)?;
        let mut rows = logits.rows();
        for (answer, _, tokens, first) in chunk {
            let rest = tokens[1..]
                .iter()
                .zip(&mut rows)
                .map(|(token, (_, row))| log_softmax(row)[*token as usize]);
            probs[*answer] += (first + rest.sum::<f64>()).exp();
        }
    }
    Ok(probs
        .iter()
        .map(|p| p / prompts.len().max(1) as f64)
        .collect())
}

/// Hands each row to the capture of its sequence.
struct Captures<'a>(&'a mut [Capture]);

impl Tap for Captures<'_> {
    fn wants(&self, point: TapPoint, layer: usize) -> bool {
        self.0.iter().any(|capture| capture.wants(point, layer))
    }

    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String> {
        self.0[place.sequence].visit(point, layer, place, row)
    }
}

fn run_prompts(
    db: &Database,
    runtime: &mut Runtime,
    relation: &Relation,
    entity: &str,
) -> Result<Vec<AskedPrompt>, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let texts: Vec<String> = relation
        .templates
        .iter()
        .map(|template| capitalized(&Relation::prompt(template, entity)))
        .collect();
    let ids = texts
        .iter()
        .map(|text| tokenizer.encode(text, EncodeSpecial::Plain, Bos::Model))
        .collect::<Result<Vec<_>, _>>()?;
    let batch: Vec<SequenceInput<'_>> = ids
        .iter()
        .map(|tokens| SequenceInput {
            tokens,
            logits: WantedLogits::Last,
        })
        .collect();
    let mut states: Vec<SequenceState> = ids
        .iter()
        .map(|_| SequenceState::new(model.spec()))
        .collect();
    let mut captures: Vec<Capture> = ids
        .iter()
        .enumerate()
        .map(|(sequence, ids)| {
            Capture::new(
                model,
                RowPlace {
                    sequence,
                    position: ids.len().saturating_sub(1),
                },
            )
        })
        .collect();
    let logits = forward(
        model,
        runtime,
        &batch,
        &mut states,
        Some(&mut Captures(&mut captures)),
    )?;
    let parts = relation
        .templates
        .iter()
        .zip(texts)
        .zip(ids)
        .zip(states)
        .zip(captures)
        .enumerate();
    Ok(parts
        .map(
            |(i, ((((template, text), ids), state), capture))| AskedPrompt {
                template: template.clone(),
                text,
                capture,
                ids,
                state,
                log_probs: log_softmax(logits.last(i).expect("the last logits were asked for")),
            },
        )
        .collect())
}

/// The text with its first letter in upper case, as sentences begin.
fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// The tokens by which `answer` continues a prompt; `None` where the seam is not between tokens.
fn continuation(
    tokenizer: &Tokenizer,
    prompt: &AskedPrompt,
    answer: &str,
) -> Result<Option<Vec<u32>>, DbError> {
    let whole = tokenizer.encode(
        &format!("{} {answer}", prompt.text),
        EncodeSpecial::Plain,
        Bos::Model,
    )?;
    Ok(whole
        .strip_prefix(prompt.ids.as_slice())
        .filter(|rest| !rest.is_empty())
        .map(<[u32]>::to_vec))
}
