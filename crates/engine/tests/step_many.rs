//! Supplied tokens in one traversal, and going back over them, for every family: compared through the token after.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;

use larql_engine::{
    EngineError, Interrupt, Logits, Model, Profile, Runtime, SequenceState, step_many,
};
use larql_models::Checkpoint;
use larql_models::spec::Mixer;
use larql_testkit::{FAMILIES, parity_fixture};

/// Longer than the windows of the fixtures (9), so that a batch reaches over an edge.
const PROMPT: usize = 11;

fn model(name: &str) -> Model {
    Model::load(&Checkpoint::open(&parity_fixture(name)).unwrap()).unwrap()
}

fn runtime(profile: Profile) -> Runtime {
    Runtime::new(NonZeroUsize::new(1).unwrap(), profile, Interrupt::default())
}

/// Ids that repeat nowhere near each other.
fn tokens(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| 3 + (i * 41 + salt * 97) % 290)
        .collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

fn rows(logits: &Logits) -> Vec<Vec<u32>> {
    logits.rows().map(|(_, row)| bits(row)).collect()
}

fn is_recurrent(model: &Model) -> bool {
    let running = |mixer: &Mixer| matches!(mixer, Mixer::Kda(_) | Mixer::GatedDelta(_));
    model
        .spec()
        .layers
        .iter()
        .any(|layer| running(&layer.mixer))
}

/// A state that has run the prompt, and the logits after each of `tokens` run one by one from there.
fn one_by_one(
    model: &Model,
    runtime: &mut Runtime,
    tokens: &[u32],
) -> (SequenceState, Vec<Vec<u32>>) {
    let mut state = SequenceState::new(model.spec());
    step_many(model, runtime, &self::tokens(PROMPT, 1), &mut state).unwrap();
    let begun = state.clone();
    let each = tokens
        .iter()
        .flat_map(|token| rows(&step_many(model, runtime, &[*token], &mut state).unwrap()))
        .collect();
    (begun, each)
}

#[test]
fn a_batch_of_supplied_tokens_equals_steps_through_the_token_after() {
    for name in FAMILIES {
        let model = model(name);
        for profile in [Profile::Exact, Profile::Fast] {
            let mut runtime = runtime(profile);
            let supplied = tokens(5, 2);
            let (begun, each) = one_by_one(&model, &mut runtime, &supplied);
            // [a, b, c, d], then e; [a, b, c], then d and e.
            for n in [4, 3] {
                let mut state = begun.clone();
                let many = step_many(&model, &mut runtime, &supplied[..n], &mut state).unwrap();
                assert!(rows(&many) == each[..n], "{name} {profile:?}: {n} at once");
                for (i, token) in supplied.iter().enumerate().skip(n) {
                    let next = step_many(&model, &mut runtime, &[*token], &mut state).unwrap();
                    assert!(
                        rows(&next) == each[i..=i],
                        "{name} {profile:?}: token {i} after {n} at once"
                    );
                }
                assert_eq!(state.n_positions(), PROMPT + supplied.len());
            }
        }
    }
}

#[test]
fn rejected_tokens_leave_no_trace() {
    for name in FAMILIES {
        let model = model(name);
        let mut runtime = runtime(Profile::Exact);
        let supplied = tokens(4, 3);
        let (begun, each) = one_by_one(&model, &mut runtime, &supplied);
        for n_kept in 0..supplied.len() {
            let mut state = begun.clone();
            let mark = state.mark();
            assert_eq!(mark.n_positions(), PROMPT);
            // The kept tokens, and six others that turn out wrong.
            let mut trial = supplied[..n_kept].to_vec();
            trial.extend(tokens(6, 9));
            step_many(&model, &mut runtime, &trial, &mut state).unwrap();
            let kept = state.rewind(mark, n_kept).unwrap();
            let expected = if is_recurrent(&model) { 0 } else { n_kept };
            assert_eq!(kept, expected, "{name}");
            assert_eq!(state.n_positions(), PROMPT + kept, "{name}");
            let rest = step_many(&model, &mut runtime, &supplied[kept..], &mut state).unwrap();
            assert!(rows(&rest) == each[kept..], "{name}: {n_kept} kept");
        }
    }
}

#[test]
fn a_rewind_that_keeps_everything_changes_nothing() {
    for name in ["llama", "qwen3-next", "kimi-linear"] {
        let model = model(name);
        let mut runtime = runtime(Profile::Exact);
        let supplied = tokens(4, 4);
        let (mut state, each) = one_by_one(&model, &mut runtime, &supplied);
        let mark = state.mark();
        step_many(&model, &mut runtime, &supplied[..3], &mut state).unwrap();
        assert_eq!(state.rewind(mark, 3).unwrap(), 3, "{name}");
        let next = step_many(&model, &mut runtime, &supplied[3..], &mut state).unwrap();
        assert!(rows(&next) == each[3..], "{name}");
    }
}

#[test]
fn an_interrupted_batch_leaves_no_half_state() {
    for name in ["gemma3", "qwen3-next", "kimi-linear", "deepseek-v2"] {
        let model = model(name);
        let mut runtime = runtime(Profile::Exact);
        let supplied = tokens(4, 5);
        let (mut state, each) = one_by_one(&model, &mut runtime, &supplied);
        runtime.interrupt().raise();
        let error = step_many(&model, &mut runtime, &supplied, &mut state).unwrap_err();
        assert!(matches!(error, EngineError::Interrupted), "{name}");
        runtime.interrupt().clear();
        assert_eq!(state.n_positions(), PROMPT, "{name}");
        let again = step_many(&model, &mut runtime, &supplied, &mut state).unwrap();
        assert!(rows(&again) == each, "{name}");
    }
}
