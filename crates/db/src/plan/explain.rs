//! A plan in words: what is done step by step and what each step costs.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::schema::{EDGES, Table, feature_column};
use super::{DescribePlan, EdgesPlan, FeaturesPlan, OrderKey, Plan, Tokens};
use crate::plan::filter::{Filter, Value};
use crate::rows::counted;
use larql_lql::ast::CompareOp;

/// Items of a list that a plan repeats.
const ITEMS_SHOWN: usize = 8;

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub what: String,
    /// What it costs, in units that do not depend on the machine.
    pub cost: String,
}

fn step(what: impl Into<String>, cost: impl Into<String>) -> Step {
    Step {
        what: what.into(),
        cost: cost.into(),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, Step { what, cost }) in self.steps().into_iter().enumerate() {
            if idx > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}. {what} [{cost}]", idx + 1)?;
        }
        Ok(())
    }
}

impl Plan {
    /// The steps, in the order they are done.
    pub fn steps(&self) -> Vec<Step> {
        match self {
            Self::Use { path } => {
                vec![
                    step(format!("open {}", path.display()), "headers"),
                    step("forget the model before", "none"),
                ]
            }
            Self::Stats => vec![step("list facts about the model", "headers")],
            Self::ShowLayers { layers } => {
                vec![step(format!("list {}", layer_words(layers)), "headers")]
            }
            Self::ShowModels { folder } => {
                vec![step(
                    format!("list the models in {}", folder.display()),
                    "headers of each",
                )]
            }
            Self::ShowRelations { with_examples } => {
                let what = if *with_examples {
                    "list relations with examples"
                } else {
                    "list relations"
                };
                vec![step(what, "none")]
            }
            Self::ShowRelation { relation } => {
                vec![step(format!("show relation {}", relation.name), "none")]
            }
            Self::CreateRelation { relation } => vec![step(
                format!("keep relation {}", relation.name),
                "a small write",
            )],
            Self::DropRelation { name } => {
                vec![step(format!("forget relation {name}"), "a small write")]
            }
            Self::Describe(plan) => describe_steps(plan),
            Self::Infer { plan, n_tokens } => {
                let mut steps = vec![
                    step("run the prompt", passes(1, *n_tokens)),
                    step(
                        format!("take the {} likeliest next tokens", plan.top),
                        "none",
                    ),
                ];
                if let Some(n) = plan.generate {
                    steps.push(step(
                        format!("continue with at most {n} tokens"),
                        passes(n - 1, plan.top),
                    ));
                }
                steps
            }
            Self::Walk { plan, n_tokens } => {
                let position = plan.position.unwrap_or(n_tokens.saturating_sub(1));
                vec![
                    step(
                        format!(
                            "run the prompt and observe position {position} of {}",
                            layer_words(&plan.layers)
                        ),
                        passes(1, *n_tokens),
                    ),
                    step(
                        format!(
                            "take the {} features of each layer that contribute most",
                            plan.top
                        ),
                        "one read of down per layer",
                    ),
                ]
            }
            Self::Features(plan) => features_steps(plan),
            Self::Edges(plan) => edges_steps(plan),
            Self::Explain(plan) => plan.steps(),
        }
    }
}

fn describe_steps(plan: &DescribePlan) -> Vec<Step> {
    let names: Vec<&str> = plan
        .relations
        .iter()
        .map(|relation| relation.name.as_str())
        .collect();
    let n_templates: usize = plan
        .relations
        .iter()
        .map(|relation| relation.templates.len())
        .sum();
    let mut steps = vec![
        step(
            format!("ask about \"{}\": {}", plan.entity, short_list(names)),
            counted(n_templates, "prompt"),
        ),
        step(best_words(plan.top), "none"),
    ];
    let layers = plan
        .layers
        .as_ref()
        .map_or("all layers".to_owned(), layer_words);
    match plan.detail {
        super::Detail::Brief => {}
        super::Detail::Normal | super::Detail::Verbose => {
            steps.push(step(
                format!("attribute them to features and heads of {layers}"),
                "one pass over down and o",
            ));
        }
    }
    steps.push(step(format!("show {}", plan.detail.name()), "none"));
    steps
}

fn features_steps(plan: &FeaturesPlan) -> Vec<Step> {
    let mut steps = vec![step(
        format!("take the features of {}", list_words(&plan.layers)),
        format!("{} rows", plan.n_candidates),
    )];
    if let Some(nearest) = &plan.nearest {
        steps.push(step(
            format!(
                "compare gate rows with token {} of \"{}\"",
                nearest.token, nearest.text
            ),
            "one read of gate",
        ));
    }
    let tokens = |rows: &str| {
        step(
            format!("compute tokens of {rows}"),
            "the unembedding once per batch",
        )
    };
    let filter = plan
        .filter
        .as_ref()
        .map(Filter::conjuncts)
        .unwrap_or_default();
    let is_late = |term: &&Filter| {
        term.columns()
            .iter()
            .any(|idx| plan.table.columns[*idx].name.starts_with("token"))
    };
    let (late, early): (Vec<&Filter>, Vec<&Filter>) = filter.into_iter().partition(is_late);
    if !early.is_empty() {
        steps.push(step(
            format!("keep {}", words(plan.table, &early)),
            norm_reads(plan, &early),
        ));
    }
    if plan.tokens == Tokens::Candidates {
        steps.push(tokens("every row left"));
    }
    if !late.is_empty() {
        steps.push(step(format!("keep {}", words(plan.table, &late)), "none"));
    }
    steps.push(step(
        order_words(plan.table, &plan.order, "layer, feature"),
        "none",
    ));
    steps.push(step(format!("cut to {} rows", plan.limit), "none"));
    if plan.tokens == Tokens::Answer {
        steps.push(tokens("the rows left"));
    }
    steps.push(step(
        format!("show {}", column_words(plan.table, &plan.columns)),
        "none",
    ));
    steps
}

fn edges_steps(plan: &EdgesPlan) -> Vec<Step> {
    let names: Vec<&str> = plan
        .relations
        .iter()
        .map(|relation| relation.name.as_str())
        .collect();
    let n_templates: usize = plan
        .relations
        .iter()
        .map(|relation| relation.templates.len())
        .sum();
    let relations = if names.is_empty() {
        "no relation".to_owned()
    } else {
        short_list(names)
    };
    let mut steps = vec![step(
        format!("ask about {}: {relations}", quoted(&plan.entities)),
        counted(n_templates * plan.entities.len(), "prompt"),
    )];
    steps.push(step(best_words(plan.top), "none"));
    if let Some(filter) = &plan.filter {
        steps.push(step(
            format!("keep {}", words(&EDGES, &filter.conjuncts())),
            "none",
        ));
    }
    steps.push(step(
        order_words(&EDGES, &plan.order, "entity, relation, rank as asked"),
        "none",
    ));
    steps.push(step(format!("cut to {} rows", plan.limit), "none"));
    steps.push(step(
        format!("show {}", column_words(&EDGES, &plan.columns)),
        "none",
    ));
    steps
}

fn passes(n: usize, n_tokens: usize) -> String {
    let plural = if n == 1 { "" } else { "es" };
    format!("{n} forward pass{plural} of {}", counted(n_tokens, "token"))
}

/// The matrices that must be read before rows can be filtered.
fn norm_reads(plan: &FeaturesPlan, terms: &[&Filter]) -> String {
    let names: Vec<&str> = terms
        .iter()
        .flat_map(|term| term.columns())
        .collect::<BTreeSet<usize>>()
        .into_iter()
        .filter(|idx| {
            [
                feature_column::GATE_NORM,
                feature_column::UP_NORM,
                feature_column::DOWN_NORM,
            ]
            .contains(idx)
        })
        .map(|idx| plan.table.columns[idx].name)
        .collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    format!("one read for {}", names.join(", "))
}

fn layer_words(layers: &RangeInclusive<usize>) -> String {
    if layers.start() == layers.end() {
        format!("layer {}", layers.start())
    } else {
        format!("layers {}-{}", layers.start(), layers.end())
    }
}

/// Consecutive layers as ranges.
pub(super) fn list_words(layers: &[usize]) -> String {
    let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
    for layer in layers {
        match ranges.last_mut() {
            Some(last) if last.end() + 1 == *layer => *last = *last.start()..=*layer,
            Some(_) | None => ranges.push(*layer..=*layer),
        }
    }
    if ranges.is_empty() {
        return "no layer".to_owned();
    }
    ranges
        .iter()
        .map(layer_words)
        .collect::<Vec<_>>()
        .join(", ")
}

fn column_words(table: &Table, columns: &[usize]) -> String {
    columns
        .iter()
        .map(|idx| table.columns[*idx].name)
        .collect::<Vec<_>>()
        .join(", ")
}

fn order_words(table: &Table, order: &[OrderKey], ties: &str) -> String {
    let keys: Vec<String> = order
        .iter()
        .map(|key| {
            format!(
                "{}{}",
                table.columns[key.column].name,
                if key.descending { " DESC" } else { "" }
            )
        })
        .chain([ties.to_owned()])
        .collect();
    format!("order by {}", keys.join(", "))
}

fn quoted(texts: &[String]) -> String {
    short_list(texts.iter().map(|text| format!("\"{text}\"")))
}

/// The first few items, and how many more there are.
fn short_list(items: impl IntoIterator<Item = impl Into<String>>) -> String {
    let mut list: Vec<String> = items.into_iter().map(Into::into).collect();
    if list.len() > ITEMS_SHOWN {
        let n_more = list.len() - ITEMS_SHOWN;
        list.truncate(ITEMS_SHOWN);
        list.push(format!("and {n_more} more"));
    }
    list.join(", ")
}

fn best_words(top: usize) -> String {
    match top {
        1 => "take the best answer of each".to_owned(),
        n => format!("take the {n} best answers of each"),
    }
}

fn words(table: &Table, terms: &[&Filter]) -> String {
    terms
        .iter()
        .map(|term| filter_words(table, term, true))
        .collect::<Vec<_>>()
        .join(" AND ")
}

/// A filter as it could be written.
fn filter_words(table: &Table, filter: &Filter, in_and: bool) -> String {
    let name = |idx: &usize| table.columns[*idx].name;
    let not = |negated: &bool| if *negated { " NOT" } else { "" };
    match filter {
        Filter::And(terms) => {
            let text = words(table, &terms.iter().collect::<Vec<_>>());
            if in_and { text } else { format!("({text})") }
        }
        Filter::Or(terms) => {
            let terms: Vec<String> = terms
                .iter()
                .map(|term| filter_words(table, term, false))
                .collect();
            format!("({})", terms.join(" OR "))
        }
        Filter::Not(inner) => format!("NOT ({})", filter_words(table, inner, true)),
        Filter::Compare { column, op, value } => {
            let op = match op {
                CompareOp::Eq => "=",
                CompareOp::Ne => "!=",
                CompareOp::Lt => "<",
                CompareOp::Le => "<=",
                CompareOp::Gt => ">",
                CompareOp::Ge => ">=",
            };
            format!("{} {op} {}", name(column), value_words(value))
        }
        Filter::Like {
            column,
            negated,
            pattern,
        } => format!("{}{} LIKE \"{pattern}\"", name(column), not(negated)),
        Filter::In {
            column,
            negated,
            items,
        } => {
            let list = short_list(items.iter().map(value_words));
            format!("{}{} IN ({list})", name(column), not(negated))
        }
        Filter::Between {
            column,
            negated,
            low,
            high,
        } => {
            format!(
                "{}{} BETWEEN {} AND {}",
                name(column),
                not(negated),
                value_words(low),
                value_words(high)
            )
        }
        Filter::IsNull { column, negated } => format!("{} IS{} NULL", name(column), not(negated)),
    }
}

fn value_words(value: &Value) -> String {
    match value {
        Value::Integer(n) => n.to_string(),
        Value::Real(x) => x.to_string(),
        Value::Text(text) => format!("\"{text}\""),
    }
}
