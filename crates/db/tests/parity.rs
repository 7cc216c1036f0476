//! Every family against the reference run of its fixture: directly, and after extraction with the very same bits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use larql_db::parity::{Golden, TOLERANCE_REL, parity};
use larql_engine::{
    Interrupt, Model, Profile, Recorder, Runtime, SequenceInput, SequenceState, TapPoint,
    WantedLogits, forward,
};
use larql_models::Checkpoint;
use larql_testkit::{FAMILIES, parity_fixture};
use larql_vindex::{ExportSource, ExtractOptions, Level, Vindex, export_gguf, extract};

fn runtime() -> Runtime {
    Runtime::new(
        NonZeroUsize::new(2).unwrap(),
        Profile::Exact,
        Interrupt::default(),
    )
}

#[test]
fn every_family_agrees_with_its_reference() {
    for name in FAMILIES {
        let dir = parity_fixture(name);
        let model = Model::load(&Checkpoint::open(&dir).unwrap()).unwrap();
        let golden = Golden::open(&dir.join("golden.safetensors")).unwrap();
        let report = parity(&model, &mut runtime(), &golden).unwrap();
        assert_eq!(report.first_divergence, None, "{name}: {:?}", report.stages);
        assert!(
            report.max_rel_err <= TOLERANCE_REL,
            "{name}: {}",
            report.max_rel_err
        );
        assert!(report.greedy_match, "{name}: greedy tokens differ");
    }
}

/// Bit patterns of every layer's input, of the final norm and of the logits, at every position.
fn all_bits(model: &Model, tokens: &[u32]) -> Vec<u32> {
    let mut recorder = Recorder::new(&[TapPoint::ResidPre, TapPoint::FinalNorm, TapPoint::Logits]);
    let mut states = [SequenceState::new(model.spec())];
    let input = [SequenceInput {
        tokens,
        logits: WantedLogits::All,
    }];
    forward(
        model,
        &mut runtime(),
        &input,
        &mut states,
        Some(&mut recorder),
    )
    .unwrap();
    recorder
        .rows()
        .iter()
        .flat_map(|row| row.values.iter().map(|x| x.to_bits()))
        .collect()
}

#[test]
fn a_vindex_gives_the_bits_of_its_source() {
    for name in FAMILIES {
        let source = Checkpoint::open(&parity_fixture(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model.vindex");
        let options = ExtractOptions::at(Level::All);
        extract(&source, None, &out, &options, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        let extracted = Vindex::open(&out).unwrap().checkpoint().unwrap();
        assert_eq!(extracted.spec(), source.spec(), "{name}");
        let tokens: Vec<u32> = (0..27).map(|i| 3 + i * 41 % 290).collect();
        let direct = all_bits(&Model::load(&source).unwrap(), &tokens);
        assert!(
            all_bits(&Model::load(&extracted).unwrap(), &tokens) == direct,
            "{name}: other bits"
        );
    }
}

/// A GGUF file that has left its vindex: its own metadata are all that its reader has.
#[test]
fn the_exported_gguf_alone_agrees_too() {
    for name in FAMILIES {
        let dir = parity_fixture(name);
        let source = Checkpoint::open(&dir).unwrap();
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("model.gguf");
        let exported = ExportSource {
            checkpoint: &source,
            vindex: None,
        };
        let report = export_gguf(exported, &file, None, NonZeroUsize::MIN, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        let model = Model::load(&Checkpoint::open(&file).unwrap()).unwrap();
        let golden = Golden::open(&dir.join("golden.safetensors")).unwrap();
        let report_of_run = parity(&model, &mut runtime(), &golden).unwrap();
        let agrees = report_of_run.max_rel_err <= TOLERANCE_REL && report_of_run.greedy_match;
        // A fact for which the format has no word is named when the file is written.
        assert!(
            agrees || !report.notes.is_empty(),
            "{name}: {:?} {:?}",
            report_of_run.first_divergence,
            report.notes
        );
    }
}

/// The comparison itself: an error in one layer is named where it begins.
#[test]
fn the_first_diverging_stage_is_named() {
    let dir = parity_fixture("gemma2");
    let model = Model::load(&Checkpoint::open(&dir).unwrap()).unwrap();
    let mut golden = Golden::open(&dir.join("golden.safetensors")).unwrap();
    let (n, d_model) = (golden.input_ids.len(), model.spec().d_model as usize);
    golden.hidden_states[3 * n * d_model + 17] += 0.5;
    golden.greedy[11] ^= 1;
    let report = parity(&model, &mut runtime(), &golden).unwrap();
    assert_eq!(
        report.first_divergence.as_deref(),
        Some("layer 2 resid_post")
    );
    assert!(!report.greedy_match);
    golden.logits[5] = f32::NAN;
    let report = parity(&model, &mut runtime(), &golden).unwrap();
    assert!(
        report.max_rel_err.is_nan(),
        "a difference to NaN must not look small"
    );
    golden.logits.pop();
    let error = parity(&model, &mut runtime(), &golden).unwrap_err();
    assert_eq!(
        error.to_string(),
        "reference run: `logits` has 8099 values, this model makes 8100"
    );
}
