//! Answers, their scores and their attribution on Atlas, against its own facts and against sums worked out here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;

use larql_db::Database;
use larql_db::ask::{ask, without_entity};
use larql_db::attribution::{Capture, attribute};
use larql_db::describe::answers;
use larql_db::relations::{Origin, Relation, Relations};
use larql_engine::{
    Interrupt, Profile, Recorder, RowPlace, Runtime, SequenceInput, SequenceState, TapPoint,
    WantedLogits, forward,
};
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_testkit::{atlas, atlas_reference};
use serde_json::Value;

fn open() -> (Database, Runtime) {
    let n_threads = NonZeroUsize::new(2).unwrap();
    (
        Database::open(atlas()).unwrap(),
        Runtime::new(n_threads, Profile::Exact, Interrupt::default()),
    )
}

fn shipped(name: &str) -> Relation {
    Relations::shipped().find(name).unwrap().clone()
}

#[test]
fn known_facts_come_first() {
    let (db, mut runtime) = open();
    let json: Value =
        serde_json::from_slice(&fs::read(atlas_reference().join("facts.json")).unwrap()).unwrap();
    // Every eleventh fact: all relations are among them.
    let facts: Vec<[&str; 3]> = json["facts"]
        .as_array()
        .unwrap()
        .iter()
        .step_by(11)
        .map(|fact| [0, 1, 2].map(|i| fact[i].as_str().unwrap()))
        .collect();
    let mut relations: Vec<&str> = facts.iter().map(|fact| fact[1]).collect();
    relations.sort_unstable();
    relations.dedup();
    assert_eq!(relations.len(), 8, "{relations:?}");
    for [entity, relation, target] in facts {
        let found = answers(
            &db,
            &mut runtime,
            entity,
            &[&shipped(relation)],
            2,
            &mut |_| {},
        )
        .unwrap();
        assert_eq!(found[0].target, target, "{entity} / {relation}");
        assert!(
            found[0].prob > 0.5 && found[0].share.unwrap() > 0.5,
            "{entity} / {relation}: {:?}",
            found[0]
        );
    }
}

/// 1 begins 11, and the tokenizer writes digits one by one: only stopping after it may count for 1.
#[test]
fn an_answer_that_begins_another_counts_only_where_it_ends() {
    let (db, mut runtime) = open();
    let relation = shipped("atomic number");
    for (entity, number) in [
        ("hydrogen", "1"),
        ("sodium", "11"),
        ("silver", "47"),
        ("beryllium", "4"),
    ] {
        let asked = ask(&db, &mut runtime, &relation, entity).unwrap();
        assert_eq!(asked.answers[0].text, number, "{entity}");
        let total: f64 = asked.answers.iter().map(|answer| answer.prob).sum();
        assert!(
            total <= 1.0 + 1e-9,
            "{entity}: the listed answers have {total} of the probability"
        );
    }
}

#[test]
fn without_a_list_the_answer_is_read_to_the_end_of_the_phrase() {
    let (db, mut runtime) = open();
    let relation = Relation {
        name: "money".to_owned(),
        templates: vec![
            "The currency of {e} is the".to_owned(),
            "In {e}, people pay with the".to_owned(),
        ],
        answers: Vec::new(),
        answer_type: None,
        examples: Vec::new(),
        origin: Origin::User,
    };
    let asked = ask(&db, &mut runtime, &relation, "Afghanistan").unwrap();
    assert!(!asked.is_listed && asked.listed_mass.is_none());
    assert_eq!(asked.answers[0].text, "Afghan Afghani");
    assert_eq!(asked.answers[0].share, None);
    assert!(
        asked.answers[0].per_template.iter().all(|p| *p > 0.9),
        "{:?}",
        asked.answers[0]
    );
}

/// Two ways to one number: the search through the trie, and the forced score of each answer.
#[test]
fn forced_scores_equal_searched_ones() {
    let (db, mut runtime) = open();
    for name in ["capital", "currency", "demonym"] {
        let relation = shipped(name);
        let asked = ask(&db, &mut runtime, &relation, "something").unwrap();
        let texts: Vec<&str> = asked
            .answers
            .iter()
            .take(3)
            .map(|answer| answer.text.as_str())
            .collect();
        let forced = without_entity(&db, &mut runtime, &relation, &texts).unwrap();
        for (answer, forced) in asked.answers.iter().zip(forced) {
            // The search leaves out templates where an answer is not worth following.
            let followed = answer.per_template.iter().filter(|p| **p > 0.0).count();
            let slack = (answer.per_template.len() - followed) as f64 * 1e-2
                / answer.per_template.len() as f64;
            assert!(
                forced >= answer.prob * (1.0 - 1e-4)
                    && forced <= answer.prob * (1.0 + 1e-4) + slack,
                "{name} {}: {forced} for {}",
                answer.text,
                answer.prob
            );
        }
    }
}

#[test]
fn contributions_add_up_to_the_logit() {
    let (db, mut runtime) = open();
    let (model, tokenizer) = (db.model().unwrap(), db.tokenizer().unwrap());
    let tokens = tokenizer
        .encode("The capital of Kenya is", EncodeSpecial::Plain, Bos::Model)
        .unwrap();
    let place = RowPlace {
        sequence: 0,
        position: tokens.len() - 1,
    };
    let input = [SequenceInput {
        tokens: &tokens,
        logits: WantedLogits::Last,
    }];
    let mut recorder = Recorder::new(&[TapPoint::ResidPre, TapPoint::ResidPost]);
    let mut states = [SequenceState::new(model.spec())];
    let logits = forward(
        model,
        &mut runtime,
        &input,
        &mut states,
        Some(&mut recorder),
    )
    .unwrap();
    let mut capture = Capture::new(model, place);
    let mut states = [SequenceState::new(model.spec())];
    forward(model, &mut runtime, &input, &mut states, Some(&mut capture)).unwrap();
    let embedded = recorder.find(TapPoint::ResidPre, 0, place).unwrap();
    let last = recorder
        .find(TapPoint::ResidPost, model.spec().n_layers() - 1, place)
        .unwrap();
    let mean_square = last.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / last.len() as f64;
    let rms = (mean_square + f64::from(model.spec().final_norm.eps)).sqrt();
    for token in [1803u32, 359, 620, 5] {
        let parts = attribute(model, &runtime, &capture, token).unwrap();
        assert_eq!(parts.len(), 4 * (4 + 768));
        let mut row = vec![0.0; embedded.len()];
        model.unembedding().decode_row(token as usize, &mut row);
        let weight = model.final_norm_weight().unwrap();
        let from_embedding: f64 = (0..row.len())
            .map(|i| f64::from(row[i]) * f64::from(weight[i]) * f64::from(embedded[i]) / rms)
            .sum();
        let sum = from_embedding + parts.iter().map(|part| part.logit).sum::<f64>();
        let logit = f64::from(logits.last(0).unwrap()[token as usize]);
        assert!(
            (sum - logit).abs() < 1e-3,
            "token {token}: parts add up to {sum}, the logit is {logit}"
        );
    }
}
