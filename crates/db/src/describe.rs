//! `DESCRIBE`: what a model answers about an entity, and which features and heads wrote the answer.
//!
//! Everything said here was executed: answers are read from the model's behavior under each template, and the parts that
//! carried an answer come from the pass that gave it. Features whose gate merely matches the entity's embedding seldom
//! fire, so they are listed apart and unlabelled.

use std::ops::RangeInclusive;

use larql_engine::{OperatorClass, Runtime};
use larql_models::ModelSpec;
use larql_models::spec::Ffn;
use larql_models::tokenizer::{Bos, EncodeSpecial};

use crate::address::{address_cells, feature_label, has_experts};
use crate::ask::{Asked, NO_ENTITY, Scored, ask, without_entity};
use crate::attribution::{Contribution, Part, attribute};
use crate::database::Database;
use crate::error::DbError;
use crate::features::feature_tokens;
use crate::plan::{DescribePlan, Detail};
use crate::progress::{OnProgress, Progress};
use crate::relations::Relation;
use crate::rows::{Cell, Rows};
use crate::token::token_word;

/// Parts named beside an answer.
const CARRIERS_BESIDE: usize = 3;
/// Parts listed in rows of their own.
const CARRIERS_LISTED: usize = 10;
/// Embedding matches listed.
const MATCHES_LISTED: usize = 5;
/// Output tokens shown of a feature.
const TOKENS_SHOWN: usize = 5;
/// Answers that gain less than this over the prompt without an entity do not depend on it, in nats.
const LIFT_MIN: f64 = std::f64::consts::LN_2;
/// Columns of every row; which are filled depends on `kind`.
const COLUMNS: [&str; 16] = [
    "kind",
    "relation",
    "rank",
    "target",
    "prob",
    "share",
    "lift",
    "template",
    "carried_by",
    "layer",
    "part",
    "ffn",
    "expert",
    "neuron",
    "logit_contribution",
    "gate_dot",
];

/// One answer of one relation.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The relation.
    pub relation: String,
    /// 1 is the best.
    pub rank: u32,
    /// The answer.
    pub target: String,
    /// Mean probability over the templates.
    pub prob: f64,
    /// Mean share among the listed answers; absent where the relation has no list.
    pub share: Option<f64>,
    /// How many nats likelier it is than where the prompts name no entity.
    pub lift: f64,
    /// The template that gives it the highest probability.
    pub template: String,
    /// Templates asked.
    pub n_templates: u32,
}

/// The `top` best answers of each relation.
///
/// # Errors
/// If the vindex holds too little to run, or the run fails or is interrupted.
pub fn answers(
    db: &Database,
    runtime: &mut Runtime,
    entity: &str,
    relations: &[&Relation],
    top: usize,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Answer>, DbError> {
    let mut all = Vec::new();
    for (i, relation) in relations.iter().enumerate() {
        report(on_progress, i, relations.len());
        let asked = ask(db, runtime, relation, entity)?;
        let lifts = lifts(db, runtime, relation, entity, &asked, top)?;
        for (i, (scored, lift)) in asked.answers.iter().zip(lifts).enumerate() {
            all.push(Answer {
                relation: relation.name.clone(),
                rank: u32::try_from(i + 1).expect("ranks are few"),
                target: scored.text.clone(),
                prob: scored.prob,
                share: scored.share,
                lift,
                template: asked.prompts[scored.best_template()].template.clone(),
                n_templates: u32::try_from(asked.prompts.len()).expect("templates are few"),
            });
        }
    }
    report(on_progress, relations.len(), relations.len());
    Ok(all)
}

/// Answers a `DESCRIBE`.
///
/// # Errors
/// As [`answers`].
pub fn describe(
    db: &Database,
    runtime: &mut Runtime,
    plan: &DescribePlan,
    on_progress: OnProgress<'_>,
) -> Result<Rows, DbError> {
    let mut blocks = Vec::new();
    for (i, relation) in plan.relations.iter().enumerate() {
        report(on_progress, i, plan.relations.len());
        let asked = ask(db, runtime, relation, &plan.entity)?;
        let carriers = match plan.detail {
            Detail::Brief => Vec::new(),
            Detail::Normal | Detail::Verbose => carriers(db, runtime, plan, &asked)?,
        };
        let lifts = lifts(db, runtime, relation, &plan.entity, &asked, plan.top)?;
        blocks.push(Block {
            relation,
            asked,
            lifts,
            carriers,
        });
    }
    report(on_progress, plan.relations.len(), plan.relations.len());
    blocks.sort_by(|a, b| b.information().total_cmp(&a.information()));
    let mut rows = Rows::new(&COLUMNS);
    for block in &blocks {
        answer_rows(&mut rows, db.spec(), plan, block);
    }
    rows.note(probed(runtime));
    if let Some(note) = idle_note(&blocks) {
        rows.note(note);
    }
    match plan.detail {
        Detail::Brief => keep_answer_columns(&mut rows),
        Detail::Normal | Detail::Verbose => {
            match_rows(db, runtime, plan, &mut rows, on_progress)?;
            if !has_experts(db.spec()) {
                drop_address_columns(&mut rows);
            }
            rows.note(
                "carried_by: direct contributions to the logit of the answer's first token; embedding_match: gates near \
                 the entity's embedding, not executed and not labelled",
            );
        }
    }
    Ok(rows)
}

/// Drops the columns that only evidence fills.
fn keep_answer_columns(rows: &mut Rows) {
    let evidence = COLUMNS
        .iter()
        .position(|&name| name == "carried_by")
        .expect("it is one of the columns");
    rows.columns.truncate(evidence);
    rows.rows.iter_mut().for_each(|row| row.truncate(evidence));
}

/// Drops the columns that say no more than the feature's number where no layer has experts.
fn drop_address_columns(rows: &mut Rows) {
    let first = COLUMNS
        .iter()
        .position(|&name| name == "ffn")
        .expect("it is one of the columns");
    rows.columns.drain(first..first + 3);
    rows.rows.iter_mut().for_each(|row| {
        row.drain(first..first + 3);
    });
}

/// What was found for one relation.
struct Block<'a> {
    relation: &'a Relation,
    asked: Asked,
    lifts: Vec<f64>,
    carriers: Vec<Contribution>,
}

impl Block<'_> {
    /// `p ln(p / q)` of the best answer, its term of the divergence from the prompt without an entity: what the model is
    /// sure of because of the entity comes first.
    fn information(&self) -> f64 {
        match (self.asked.answers.first(), self.lifts.first()) {
            (Some(best), Some(lift)) => best.prob * lift,
            _ => 0.0,
        }
    }
}

/// How answers were found and what their numbers mean.
pub(crate) fn probed(runtime: &Runtime) -> String {
    format!(
        "probed with the {} profile: prob is the mean probability over a relation's templates, share its part of the \
         listed answers, lift how many nats likelier it is than with the word \"something\" in the entity's place",
        runtime.profile().name()
    )
}

/// Names the relations whose answer does not come from the entity.
fn idle_note(blocks: &[Block<'_>]) -> Option<String> {
    let idle: Vec<&str> = blocks
        .iter()
        .filter(|block| block.lifts.first().is_none_or(|lift| *lift < LIFT_MIN))
        .map(|block| block.relation.name.as_str())
        .collect();
    (!idle.is_empty()).then(|| {
        format!(
            "the first answer is hardly likelier than without the entity (lift below {LIFT_MIN:.2}): {}",
            idle.join(", ")
        )
    })
}

/// `ln(p / q)` of the best answers, `q` being their probability where the prompts name no entity.
fn lifts(
    db: &Database,
    runtime: &mut Runtime,
    relation: &Relation,
    entity: &str,
    asked: &Asked,
    top: usize,
) -> Result<Vec<f64>, DbError> {
    // An answer that repeats the entity is held against repeating what stands in its place.
    let echo = |text: &'_ str| text.eq_ignore_ascii_case(entity);
    let best: Vec<&str> = asked
        .answers
        .iter()
        .take(top)
        .map(|scored| {
            if echo(&scored.text) {
                NO_ENTITY
            } else {
                scored.text.as_str()
            }
        })
        .collect();
    let without = without_entity(db, runtime, relation, &best)?;
    let lift = |(scored, q): (&Scored, f64)| (scored.prob / q.max(f64::MIN_POSITIVE)).ln();
    Ok(asked.answers.iter().zip(without).map(lift).collect())
}

fn report(on_progress: OnProgress<'_>, done: usize, total: usize) {
    on_progress(Progress {
        stage: "asking relations",
        done: done as u64,
        total: total as u64,
    });
}

/// Parts that wrote the best answer, largest first, within the layers asked for.
fn carriers(
    db: &Database,
    runtime: &Runtime,
    plan: &DescribePlan,
    asked: &Asked,
) -> Result<Vec<Contribution>, DbError> {
    let Some((best, token)) = asked.answers.first().and_then(|best| {
        let token = best.first_token[best.best_template()]?;
        Some((best, token))
    }) else {
        return Ok(Vec::new());
    };
    let capture = &asked.prompts[best.best_template()].capture;
    let mut parts = attribute(db.model()?, runtime, capture, token)?;
    parts.retain(|part| {
        plan.layers
            .as_ref()
            .is_none_or(|layers| layers.contains(&part.layer))
    });
    parts.truncate(CARRIERS_LISTED);
    Ok(parts)
}

fn answer_rows(rows: &mut Rows, spec: &ModelSpec, plan: &DescribePlan, block: &Block<'_>) {
    let Block {
        relation,
        asked,
        lifts,
        carriers,
    } = block;
    for (rank, (scored, lift)) in asked.answers.iter().zip(lifts).enumerate() {
        let beside = (rank == 0 && !carriers.is_empty()).then(|| beside(spec, carriers));
        rows.push(row("answer", relation, |column| match column {
            "rank" => (rank + 1).into(),
            "target" => scored.text.as_str().into(),
            "prob" => rounded(scored.prob),
            "share" => scored.share.map(rounded).unwrap_or(Cell::Null),
            "lift" => rounded(*lift),
            "template" => asked.prompts[scored.best_template()]
                .template
                .as_str()
                .into(),
            "carried_by" => beside.clone().into(),
            _ => Cell::Null,
        }));
    }
    match plan.detail {
        Detail::Brief | Detail::Normal => {}
        Detail::Verbose => {
            for (i, prompt) in asked.prompts.iter().enumerate() {
                template_row(rows, relation, asked, i, &prompt.template);
            }
            for part in carriers {
                let ffn = &spec.layers[part.layer].ffn;
                let [of, expert, neuron] = part_cells(ffn, part.part);
                rows.push(row("carrier", relation, |column| match column {
                    "target" => asked.answers[0].text.as_str().into(),
                    "layer" => part.layer.into(),
                    "part" => part_name(ffn, part.part).into(),
                    "ffn" => of.clone(),
                    "expert" => expert.clone(),
                    "neuron" => neuron.clone(),
                    "logit_contribution" => rounded(part.logit),
                    _ => Cell::Null,
                }));
            }
        }
    }
}

/// One template's own best answer.
fn template_row(rows: &mut Rows, relation: &Relation, asked: &Asked, i: usize, template: &str) {
    let total: f64 = asked
        .answers
        .iter()
        .map(|scored| scored.per_template[i])
        .sum();
    let best = asked
        .answers
        .iter()
        .max_by(|a: &&Scored, b| a.per_template[i].total_cmp(&b.per_template[i]));
    rows.push(row("template", relation, |column| match (column, best) {
        ("template", _) => template.into(),
        ("target", Some(best)) => best.text.as_str().into(),
        ("prob", Some(best)) => rounded(best.per_template[i]),
        ("share", Some(best)) if asked.is_listed && total > 0.0 => {
            rounded(best.per_template[i] / total)
        }
        _ => Cell::Null,
    }));
}

/// Features whose gate is nearest to the entity's embedding.
fn match_rows(
    db: &Database,
    runtime: &mut Runtime,
    plan: &DescribePlan,
    rows: &mut Rows,
    on_progress: OnProgress<'_>,
) -> Result<(), DbError> {
    let n_layers = db.spec().n_layers();
    let layers = plan.layers.clone().unwrap_or(0..=n_layers - 1);
    for (layer, feature, gate_dot) in embedding_matches(db, runtime, &plan.entity, layers)? {
        let tokens = feature_tokens(db, runtime, layer, &[feature], TOKENS_SHOWN, on_progress)?;
        let tokenizer = db.tokenizer()?;
        let words: Vec<String> = tokens
            .iter()
            .flatten()
            .map(|(id, _)| token_word(tokenizer, *id))
            .collect();
        let ffn = &db.spec().layers[layer].ffn;
        let [of, expert, neuron] = address_cells(ffn, feature);
        rows.push(filled(|column| match column {
            "kind" => "embedding_match".into(),
            "target" => words.join(" | ").into(),
            "layer" => layer.into(),
            "part" => feature_label(ffn, feature).into(),
            "ffn" => of.clone(),
            "expert" => expert.clone(),
            "neuron" => neuron.clone(),
            "gate_dot" => rounded(f64::from(gate_dot)),
            _ => Cell::Null,
        }));
    }
    Ok(())
}

/// Gates with the largest product with the normed embedding of the entity's last token.
fn embedding_matches(
    db: &Database,
    runtime: &mut Runtime,
    entity: &str,
    layers: RangeInclusive<usize>,
) -> Result<Vec<(usize, u32, f32)>, DbError> {
    let model = db.model()?;
    let ids = db
        .tokenizer()?
        .encode(&format!(" {entity}"), EncodeSpecial::Plain, Bos::Never)?;
    let Some(last) = ids.last() else {
        return Ok(Vec::new());
    };
    let mut embedding = vec![0.0; model.spec().d_model as usize];
    model.embedding().decode_row(*last as usize, &mut embedding);
    let mut best: Vec<(usize, u32, f32)> = Vec::new();
    for layer in layers {
        let mut normed = vec![0.0; embedding.len()];
        runtime.kernels().rms_norm(
            &embedding,
            model.ffn_norm_weight(layer),
            f32::MIN_POSITIVE,
            &mut normed,
        );
        let mut dots = Vec::new();
        for ffn in model.ffns(layer) {
            runtime.project(OperatorClass::Ffn, &normed, 1, &mut [(ffn.gate, &mut dots)]);
            let first = u32::try_from(ffn.first_feature).expect("features are u32");
            best.extend(
                (first..)
                    .zip(&dots)
                    .map(|(feature, dot)| (layer, feature, *dot)),
            );
        }
        best.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        best.truncate(MATCHES_LISTED);
    }
    Ok(best)
}

/// A row of the relation's block, filled by column name.
fn row(kind: &str, relation: &Relation, fill: impl Fn(&str) -> Cell) -> Vec<Cell> {
    filled(|column| match column {
        "kind" => kind.into(),
        "relation" => relation.name.as_str().into(),
        other => fill(other),
    })
}

/// A row filled by column name.
fn filled(fill: impl Fn(&str) -> Cell) -> Vec<Cell> {
    COLUMNS.iter().map(|&column| fill(column)).collect()
}

/// The largest parts, in one line.
fn beside(spec: &ModelSpec, parts: &[Contribution]) -> String {
    let shown: Vec<String> = parts
        .iter()
        .take(CARRIERS_BESIDE)
        .map(|part| {
            let name = part_name(&spec.layers[part.layer].ffn, part.part);
            format!("L{} {name} {:+.2}", part.layer, part.logit)
        })
        .collect();
    shown.join(", ")
}

/// How a part is written: `F12` is a feature, `E3/N12` one of an expert, `H3` a head.
fn part_name(ffn: &Ffn, part: Part) -> String {
    match part {
        Part::Feature(feature) => feature_label(ffn, feature),
        Part::Head(head) => format!("H{head}"),
    }
}

/// `ffn`, `expert` and `neuron` of a part.
fn part_cells(ffn: &Ffn, part: Part) -> [Cell; 3] {
    match part {
        Part::Feature(feature) => address_cells(ffn, feature),
        Part::Head(_) => [Cell::Null, Cell::Null, Cell::Null],
    }
}

/// Six significant digits: more would be noise.
pub(crate) fn rounded(x: f64) -> Cell {
    format!("{x:.5e}")
        .parse::<f64>()
        .map_or(Cell::Null, Cell::from)
}
