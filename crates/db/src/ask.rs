//! Asking a model for the answers of a relation, through every template.
//!
//! A relation with an answer list is scored exactly on that list: the candidates' tokens form a trie under each template,
//! and an answer that is the beginning of a longer one counts only the probability of stopping there. A relation without
//! a list is answered by the likeliest beginnings, continued greedily to the end of the phrase.
//! Cost: one pass over all templates, then one per few continuations; weights are traversed once per pass.

use std::collections::BTreeMap;

use larql_engine::{
    RowPlace, Runtime, SequenceInput, SequenceState, Tap, TapPoint, WantedLogits, argmax, forward,
    log_softmax, top_k,
};
use larql_models::tokenizer::{Bos, EncodeSpecial, SpecialText, Tokenizer};

use crate::attribution::Capture;
use crate::database::Database;
use crate::error::DbError;
use crate::relations::Relation;

/// Continuations evaluated in one pass.
const CONTINUATIONS_PER_PASS: usize = 24;
/// Continuations less likely than this share of the best answer so far are not followed.
const FOLLOW_SHARE: f64 = 1e-3;
/// Beginnings followed per template where any answer is possible.
const OPEN_BEGINNINGS: usize = 4;
/// Longest answer where any answer is possible, in tokens.
const OPEN_TOKENS_MAX: usize = 8;
/// Words that end a phrase when they follow it.
const PHRASE_ENDS: &[&str] = &[
    "and", "or", "which", "who", "that", "in", "on", "at", "by", "is", "was", "with", "for",
    "from", "as", "but",
];

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

/// Candidates' tokens under one prompt; node 0 is the prompt's end.
struct Trie {
    nodes: Vec<Node>,
}

struct Node {
    token: u32,
    parent: usize,
    children: Vec<usize>,
    candidate: Option<usize>,
    log_prob: f64,
    /// Probability of going on to a longer candidate, once known.
    goes_on: Option<f64>,
}

impl Trie {
    fn new(prompt: &AskedPrompt, candidates: &[Option<Vec<u32>>]) -> Self {
        let node = |token, parent| Node {
            token,
            parent,
            children: Vec::new(),
            candidate: None,
            log_prob: f64::NEG_INFINITY,
            goes_on: None,
        };
        let mut trie = Self {
            nodes: vec![node(0, 0)],
        };
        trie.nodes[0].log_prob = 0.0;
        for (candidate, tokens) in candidates.iter().enumerate() {
            let Some(tokens) = tokens else { continue };
            let mut at = 0;
            for token in tokens {
                let known = trie.nodes[at]
                    .children
                    .iter()
                    .copied()
                    .find(|child| trie.nodes[*child].token == *token);
                at = known.unwrap_or_else(|| {
                    trie.nodes.push(node(*token, at));
                    let child = trie.nodes.len() - 1;
                    trie.nodes[at].children.push(child);
                    child
                });
            }
            trie.nodes[at].candidate.get_or_insert(candidate);
        }
        trie.expand(0, &prompt.log_probs);
        trie
    }

    /// Gives the children of a node their probabilities.
    fn expand(&mut self, at: usize, log_probs: &[f64]) {
        let mut goes_on = 0.0;
        for child in self.nodes[at].children.clone() {
            let step = log_probs[self.nodes[child].token as usize];
            goes_on += step.exp();
            self.nodes[child].log_prob = self.nodes[at].log_prob + step;
        }
        self.nodes[at].goes_on = Some(goes_on);
    }

    /// Tokens from the prompt's end to a node.
    fn path(&self, mut at: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while at != 0 {
            tokens.push(self.nodes[at].token);
            at = self.nodes[at].parent;
        }
        tokens.reverse();
        tokens
    }

    /// Nodes with unknown children, and how likely they are.
    fn unexpanded(&self) -> impl Iterator<Item = (usize, f64)> {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.goes_on.is_none() && !node.children.is_empty())
            .map(|(at, node)| (at, node.log_prob.exp()))
    }

    /// Probability that the answer of a node ends there; zero where it was not worth following.
    fn answer_prob(&self, node: &Node) -> f64 {
        match (node.children.is_empty(), node.goes_on) {
            (true, _) => node.log_prob.exp(),
            (false, Some(goes_on)) => node.log_prob.exp() * (1.0 - goes_on).max(0.0),
            (false, None) => 0.0,
        }
    }

    fn best_answer(&self) -> f64 {
        let answers = self.nodes.iter().filter(|node| node.candidate.is_some());
        answers
            .map(|node| self.answer_prob(node))
            .fold(0.0, f64::max)
    }
}

fn listed_answers(
    db: &Database,
    runtime: &mut Runtime,
    prompts: &[AskedPrompt],
    candidates: &[String],
) -> Result<Vec<Scored>, DbError> {
    let (model, tokenizer) = (db.model()?, db.tokenizer()?);
    let mut tries = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let tokens = candidates
            .iter()
            .map(|answer| continuation(tokenizer, prompt, answer))
            .collect::<Result<Vec<_>, _>>()?;
        tries.push(Trie::new(prompt, &tokens));
    }
    loop {
        let mut frontier: Vec<(usize, usize, f64)> = Vec::new();
        for (i, trie) in tries.iter().enumerate() {
            let floor = trie.best_answer() * FOLLOW_SHARE;
            frontier.extend(
                trie.unexpanded()
                    .filter(|(_, p)| *p > floor && *p > 0.0)
                    .map(|(at, p)| (i, at, p)),
            );
        }
        frontier.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        frontier.truncate(CONTINUATIONS_PER_PASS);
        if frontier.is_empty() {
            break;
        }
        let paths: Vec<Vec<u32>> = frontier
            .iter()
            .map(|(i, at, _)| tries[*i].path(*at))
            .collect();
        let batch: Vec<SequenceInput<'_>> = paths
            .iter()
            .map(|tokens| SequenceInput {
                tokens,
                logits: WantedLogits::Last,
            })
            .collect();
        let mut states: Vec<SequenceState> = frontier
            .iter()
            .map(|(i, ..)| prompts[*i].state.clone())
            .collect();
        let logits = forward(model, runtime, &batch, &mut states, None)?;
        for (row, (i, at, _)) in frontier.iter().enumerate() {
            tries[*i].expand(
                *at,
                &log_softmax(logits.last(row).expect("the last logits were asked for")),
            );
        }
    }
    Ok(collect_listed(&tries, candidates))
}

fn collect_listed(tries: &[Trie], candidates: &[String]) -> Vec<Scored> {
    let mut per_candidate: Vec<(Vec<f64>, Vec<Option<u32>>)> = candidates
        .iter()
        .map(|_| (vec![0.0; tries.len()], vec![None; tries.len()]))
        .collect();
    for (i, trie) in tries.iter().enumerate() {
        for (at, node) in trie.nodes.iter().enumerate() {
            if let Some(candidate) = node.candidate {
                per_candidate[candidate].0[i] = trie.answer_prob(node);
                per_candidate[candidate].1[i] = trie.path(at).first().copied();
            }
        }
    }
    let totals: Vec<f64> = (0..tries.len())
        .map(|i| per_candidate.iter().map(|(probs, _)| probs[i]).sum())
        .collect();
    let mean =
        |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / tries.len().max(1) as f64;
    candidates
        .iter()
        .zip(per_candidate)
        .filter(|(_, (probs, _))| probs.iter().any(|p| *p > 0.0))
        .map(|(text, (per_template, first_token))| Scored {
            text: text.clone(),
            prob: mean(&mut per_template.iter().copied()),
            share: Some(mean(
                &mut per_template
                    .iter()
                    .zip(&totals)
                    .map(|(p, total)| if *total > 0.0 { p / total } else { 0.0 }),
            )),
            per_template,
            first_token,
        })
        .collect()
}

/// A continuation that is still growing.
struct Beam {
    prompt: usize,
    tokens: Vec<u32>,
    log_prob: f64,
    state: SequenceState,
    is_done: bool,
}

fn open_answers(
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
            tokens: vec![id],
            log_prob: asked.log_probs[id as usize],
            state: asked.state.clone(),
            is_done: false,
        }));
    }
    while beams.iter().any(|beam| !beam.is_done) {
        let mut live: Vec<&mut Beam> = beams.iter_mut().filter(|beam| !beam.is_done).collect();
        let lasts: Vec<[u32; 1]> = live
            .iter()
            .map(|beam| [*beam.tokens.last().expect("a beam begins with a token")])
            .collect();
        let batch: Vec<SequenceInput<'_>> = lasts
            .iter()
            .map(|tokens| SequenceInput {
                tokens,
                logits: WantedLogits::Last,
            })
            .collect();
        let mut states: Vec<SequenceState> = live
            .iter_mut()
            .map(|beam| std::mem::replace(&mut beam.state, SequenceState::new(model.spec())))
            .collect();
        let logits = forward(model, runtime, &batch, &mut states, None)?;
        for (row, (beam, state)) in live.iter_mut().zip(states).enumerate() {
            let row = logits.last(row).expect("the last logits were asked for");
            let next = argmax(row);
            beam.state = state;
            if ends_phrase(tokenizer, next) || beam.tokens.len() >= OPEN_TOKENS_MAX {
                beam.is_done = true;
            } else {
                beam.log_prob += log_softmax(row)[next as usize];
                beam.tokens.push(next);
            }
        }
    }
    Ok(collect_open(tokenizer, prompts.len(), &beams))
}

fn collect_open(tokenizer: &Tokenizer, n_prompts: usize, beams: &[Beam]) -> Vec<Scored> {
    let mut by_text: BTreeMap<String, Scored> = BTreeMap::new();
    for beam in beams {
        let text = tokenizer
            .decode(&beam.tokens, SpecialText::Skip)
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
        scored.first_token[beam.prompt].get_or_insert(beam.tokens[0]);
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
