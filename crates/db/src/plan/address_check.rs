//! Constants of an address that no feature has: in a filter they are a mistake, not an empty answer.
//!
//! A layer, an expert, a neuron or a feature is looked for among those that the other conditions on the address keep, so
//! `layer = 0 AND expert = 3` is refused where layer 0 is dense.

use std::ops::RangeInclusive;

use larql_lql::ast::{Expr, Ident, Literal, LiteralValue};
use larql_models::spec::FfnPart;
use rusqlite::types::Value as SqlValue;

use super::bind::Binder;
use super::explain::list_words;
use super::filter::Filter;
use super::schema::{Table, feature_column as column};
use super::select::compared_with;
use super::{bind::no_layer, refuse};
use crate::address::{expert_number, part_word};
use crate::database::Database;
use crate::error::DbError;
use crate::exec::query_table::QueryTable;
use crate::rows::Cell;

/// Names of the FFNs that a layer can have.
const PARTS: [FfnPart; 3] = [FfnPart::Dense, FfnPart::Expert(0), FfnPart::Shared];

/// One FFN of a layer.
#[derive(Debug, Clone, Copy)]
struct Place {
    layer: usize,
    part: FfnPart,
    n_neurons: u32,
}

impl Binder<'_> {
    /// Refuses a constant of an address that no feature of these layers has.
    pub(super) fn address_literals(
        &self,
        db: &Database,
        table: &'static Table,
        expr: &Expr,
        filter: &Filter,
        layers: RangeInclusive<usize>,
    ) -> Result<(), DbError> {
        let literals = |of: usize| {
            let is_column = move |ident: &Ident| table.find(&ident.name) == Some(of);
            compared_with(expr, &is_column)
        };
        for literal in literals(column::LAYER) {
            if let Some(given) = not_below(literal, db.spec().n_layers() as u64) {
                return Err(no_layer(db, literal.span, &given));
            }
        }
        let all = places(db, layers);
        let kept = |columns: &[usize]| -> Result<Vec<Place>, DbError> {
            let kept = keep(table, &all, filter, columns)?;
            // Conditions that exclude each other leave nothing to compare with.
            Ok(if kept.is_empty() { all.clone() } else { kept })
        };
        for literal in literals(column::FFN) {
            known_part(literal)?;
        }
        for literal in literals(column::EXPERT) {
            of_expert(db, literal, &kept(&[column::LAYER])?)?;
        }
        for literal in literals(column::NEURON) {
            let kept = kept(&[column::LAYER, column::FFN, column::EXPERT])?;
            let n = kept.iter().map(|place| u64::from(place.n_neurons)).max();
            if let (Some(n @ 1..), Some(given)) = (n, not_below(literal, n.unwrap_or(0))) {
                let whose = match kept.as_slice() {
                    [_] => "this FFN has",
                    [] | [_, _, ..] => "the widest FFN here has",
                };
                let what = format!("neuron {given}: {whose} neurons 0-{}", n - 1);
                return Err(refuse(literal.span, what));
            }
        }
        for literal in literals(column::FEATURE) {
            let kept = kept(&[column::LAYER])?;
            let n = distinct_layers(&kept)
                .into_iter()
                .filter_map(|layer| db.spec().n_features(layer))
                .max();
            if let (Some(n @ 1..), Some(given)) = (n, not_below(literal, n.unwrap_or(0))) {
                let whose = owner(db, &kept, "the widest layer here");
                let what = format!("feature {given}: {whose} features 0-{}", n - 1);
                return Err(refuse(literal.span, what));
            }
        }
        Ok(())
    }
}

/// Refuses an expert that none of the places is.
fn of_expert(db: &Database, literal: &Literal, kept: &[Place]) -> Result<(), DbError> {
    let n_experts = |places: &[Place]| {
        let experts = places.iter().filter_map(|place| expert_number(place.part));
        experts.max().map_or(0, |last| u64::from(last) + 1)
    };
    let n = n_experts(kept);
    let Some(given) = not_below(literal, n) else {
        return Ok(());
    };
    if n > 0 {
        let mixtures: Vec<Place> = kept
            .iter()
            .copied()
            .filter(|place| expert_number(place.part).is_some())
            .collect();
        let whose = owner(db, kept, &list_words(&distinct_layers(&mixtures)));
        let what = format!("expert {given}: {whose} experts 0-{}", n - 1);
        return Err(refuse(literal.span, what));
    }
    let whose = owner(db, kept, &list_words(&distinct_layers(kept)));
    let error = refuse(
        literal.span,
        format!("expert {given}: {whose} no routed experts"),
    );
    let mixtures: Vec<Place> = places(db, 0..=db.spec().n_layers().saturating_sub(1))
        .into_iter()
        .filter(|place| expert_number(place.part).is_some())
        .collect();
    if mixtures.is_empty() {
        return Err(error);
    }
    Err(error.with_hint(format!(
        "experts are in {}",
        list_words(&distinct_layers(&mixtures))
    )))
}

/// Refuses a text that no FFN is called by.
fn known_part(literal: &Literal) -> Result<(), DbError> {
    match &literal.value {
        LiteralValue::Text(text) if !PARTS.iter().any(|part| part_word(*part) == text) => {
            let names = PARTS.map(part_word).join(", ");
            Err(refuse(literal.span, format!("no FFN is called \"{text}\""))
                .with_hint(format!("known: {names}")))
        }
        LiteralValue::Text(_)
        | LiteralValue::Integer(_)
        | LiteralValue::Float(_)
        | LiteralValue::Boolean(_)
        | LiteralValue::Null => Ok(()),
    }
}

/// Whose numbers these are, with its verb.
fn owner(db: &Database, kept: &[Place], several: &str) -> String {
    let layers = distinct_layers(kept);
    match layers.as_slice() {
        _ if layers.len() == db.spec().n_layers() => "this model has".to_owned(),
        [layer] => format!("layer {layer} has"),
        [] | [_, _, ..] if several.starts_with("layers") => format!("{several} have"),
        [] | [_, _, ..] => format!("{several} has"),
    }
}

fn distinct_layers(places: &[Place]) -> Vec<usize> {
    let mut layers: Vec<usize> = places.iter().map(|place| place.layer).collect();
    layers.dedup();
    layers
}

/// The FFNs of layers, in order.
fn places(db: &Database, layers: RangeInclusive<usize>) -> Vec<Place> {
    let of_layer = |layer: usize| {
        let ffn = db.spec().layers.get(layer).map(|layer| &layer.ffn);
        ffn.into_iter()
            .flat_map(|ffn| ffn.parts())
            .map(move |(part, spec)| Place {
                layer,
                part,
                n_neurons: spec.d_mlp,
            })
    };
    layers.flat_map(of_layer).collect()
}

/// Those places that the terms over these columns alone accept.
fn keep(
    table: &'static Table,
    places: &[Place],
    filter: &Filter,
    columns: &[usize],
) -> Result<Vec<Place>, DbError> {
    let terms: Vec<&Filter> = filter
        .conjuncts()
        .into_iter()
        .filter(|term| term.columns().iter().all(|idx| columns.contains(idx)))
        .collect();
    if terms.is_empty() {
        return Ok(places.to_vec());
    }
    let rows = QueryTable::new(table, columns.to_vec())?;
    rows.fill(places.len(), |row, values| {
        let Place { layer, part, .. } = places[row];
        values.extend(columns.iter().map(|idx| {
            SqlValue::from(&match *idx {
                column::LAYER => Cell::from(layer),
                column::FFN => part_word(part).into(),
                _ => expert_number(part).into(),
            })
        }));
    })?;
    Ok(rows
        .select(&terms, &[])?
        .into_iter()
        .map(|row| places[row])
        .collect())
}

/// The constant as it was given, if it is a number that is none of `0..n`; other types are refused by the column.
fn not_below(literal: &Literal, n: u64) -> Option<String> {
    match &literal.value {
        LiteralValue::Integer(given) => {
            let is_one = u64::try_from(*given).is_ok_and(|given| given < n);
            (!is_one).then(|| given.to_string())
        }
        LiteralValue::Float(given) => {
            let is_one = given.fract() == 0.0 && *given >= 0.0 && *given < n as f64;
            (!is_one).then(|| given.to_string())
        }
        LiteralValue::Text(_) | LiteralValue::Boolean(_) | LiteralValue::Null => None,
    }
}
