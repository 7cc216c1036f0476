//! Answers out of a list: a trie of the candidates' tokens under each template, searched best first.

use larql_engine::{Runtime, SequenceInput, SequenceState, WantedLogits, forward, log_sum_exp};

use super::{AskedPrompt, CONTINUATIONS_PER_PASS, FOLLOW_SHARE, Scored, continuation};
use crate::database::Database;
use crate::error::DbError;

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
        trie.expand(0, |token| prompt.log_probs[token as usize]);
        trie
    }

    /// Gives the children of a node their probabilities.
    fn expand(&mut self, at: usize, log_prob: impl Fn(u32) -> f64) {
        let mut goes_on = 0.0;
        for child in self.nodes[at].children.clone() {
            let step = log_prob(self.nodes[child].token);
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

pub(super) fn listed_answers(
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
            let row = logits.last(row).expect("the last logits were asked for");
            let log_sum = log_sum_exp(row);
            tries[*i].expand(*at, |token| f64::from(row[token as usize]) - log_sum);
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
