//! Each family's configuration becomes the spec its class computes, and its checkpoints survive a GGUF file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configs;
mod contradictions;
mod gguf;
mod mixers;
mod published;
mod specs;
mod switches;

use std::fs;

use larql_models::Checkpoint;
use larql_models::spec::ModelSpec;
use larql_testkit::parity_fixture;
use serde_json::{Map, Value};
use tempfile::TempDir;

/// Fixtures of the families that this test knows: those whose layers are softmax attention and an FFN.
const NAMES: &[&str] = &[
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmo2",
    "olmoe",
    "phi",
    "phi3",
    "granite",
    "granitemoe",
    "starcoder2",
    "gpt2",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "cohere2",
    "smollm3",
    "glm4",
    "arcee",
    "stablelm",
];

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&parity_fixture(name)).unwrap()
}

/// A fixture's weights beside an edited configuration.
fn edited(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> TempDir {
    let (from, dir) = (parity_fixture(name), tempfile::tempdir().unwrap());
    let weights = "model.safetensors";
    fs::copy(from.join(weights), dir.path().join(weights)).unwrap();
    let text = fs::read(from.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_slice(&text).unwrap();
    edit(&mut config);
    let text = serde_json::to_vec(&config).unwrap();
    fs::write(dir.path().join("config.json"), text).unwrap();
    dir
}

fn spec_of(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> ModelSpec {
    let dir = edited(name, edit);
    Checkpoint::open(dir.path()).unwrap().spec().clone()
}

fn refusal(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> String {
    let dir = edited(name, edit);
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    message.replace(&format!("{}/config.json: ", dir.path().display()), "")
}

#[test]
fn every_fixture_accounts_for_its_tensors() {
    for name in NAMES {
        let checkpoint = fixture(name);
        assert_eq!(checkpoint.ignored(), [], "{name}");
        assert_eq!(checkpoint.notes(), [""; 0], "{name}");
        assert!(checkpoint.roles().len() > 30, "{name}");
    }
}

#[test]
fn both_spellings_of_a_configuration_give_the_same_spec() {
    for name in NAMES {
        let legacy = parity_fixture(name).join("config.legacy.json");
        if !legacy.is_file() {
            assert_eq!(*name, "gpt2", "the only one whose spelling never changed");
            continue;
        }
        let legacy: Map<String, Value> =
            serde_json::from_slice(&fs::read(legacy).unwrap()).unwrap();
        let spec = spec_of(name, |config| *config = legacy);
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
}
