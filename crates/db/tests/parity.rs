//! Every family against the reference run of its fixture, from config.json in both spellings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use larql_db::parity::{Golden, ParityReport, TOLERANCE_REL, parity};
use larql_engine::{Interrupt, Model, Profile, Runtime};
use larql_models::Checkpoint;

const FAMILIES: [&str; 9] = [
    "llama",
    "llama-rope3",
    "llama-yarn",
    "mistral-sliding",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testkit/data/parity")
        .join(name)
}

fn report(name: &str) -> ParityReport {
    let dir = fixture(name);
    let model = Model::load(&Checkpoint::open(&dir).unwrap()).unwrap();
    let golden = Golden::open(&dir.join("golden.safetensors")).unwrap();
    let mut runtime = Runtime::new(
        NonZeroUsize::new(2).unwrap(),
        Profile::Exact,
        Interrupt::default(),
    );
    parity(&model, &mut runtime, &golden).unwrap()
}

#[test]
fn every_family_agrees_with_its_reference() {
    for name in FAMILIES {
        let report = report(name);
        println!(
            "{name}: max_rel_err {:.2e}, max_abs_err {:.2e}",
            report.max_rel_err, report.max_abs_err
        );
        assert_eq!(report.first_divergence, None, "{name}: {:?}", report.stages);
        assert!(
            report.max_rel_err <= TOLERANCE_REL,
            "{name}: {}",
            report.max_rel_err
        );
        assert!(report.greedy_match, "{name}: greedy tokens differ");
    }
}
