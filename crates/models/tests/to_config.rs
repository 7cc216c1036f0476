//! A spec becomes `config.json` again, for every family: the reader makes the same spec of it, and it holds the keys and
//! values of the original.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use larql_formats::gguf::{GgufFile, Value as GgufValue};
use larql_formats::Bytes;
use larql_models::spec::{Mixer, ModelSpec, RopeScaling};
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::to_hf::FloatType;
use larql_models::{Checkpoint, ModelError, hf_config};
use larql_testkit::{FAMILIES, parity_fixture};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Fixtures beside those that all crates test with.
const MORE: [&str; 2] = ["arcee", "stablelm"];

/// Keys that the specs state and the fixtures leave to the class.
const EXTRA: &[(&str, &[&str])] = &[];

/// Widths of dense layers in models without one, which the spec does not know.
const WITHOUT_DENSE: [&str; 2] = ["qwen2-moe", "qwen3-next"];

fn fixtures() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().chain(MORE)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&parity_fixture(name)).unwrap()
}

fn original(name: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(parity_fixture(name).join("config.json")).unwrap()).unwrap()
}

/// The fixture's tensors beside another configuration.
fn beside_tensors(name: &str, config: &Map<String, Value>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tensors = "model.safetensors";
    fs::copy(parity_fixture(name).join(tensors), dir.path().join(tensors)).unwrap();
    let text = serde_json::to_vec(config).unwrap();
    fs::write(dir.path().join("config.json"), text).unwrap();
    dir
}

fn as_gguf(checkpoint: &Checkpoint, edit: impl FnOnce(&mut GgufPlan)) -> Checkpoint {
    let mut plan = GgufPlan::new(checkpoint, GgufContent::Whole).unwrap();
    edit(&mut plan);
    let bytes = plan.write(checkpoint, Vec::new()).unwrap();
    let path = Path::new("weights.gguf");
    let file = GgufFile::from_bytes(Bytes::from_vec(bytes), path).unwrap();
    Checkpoint::from_gguf(file, path).unwrap()
}

fn written(checkpoint: &Checkpoint) -> Map<String, Value> {
    hf_config::config(checkpoint, FloatType::Bf16).unwrap()
}

/// What is written and not in the original, or there with another value.
fn strays(at: &str, ours: &Map<String, Value>, original: &Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in ours {
        let path = format!("{at}{key}");
        match (value, original.get(key)) {
            (_, None) => found.push(path),
            (Value::Object(ours), Some(Value::Object(original))) => {
                found.extend(strays(&format!("{path}."), ours, original));
            }
            (Value::Number(ours), Some(Value::Number(original)))
                if ours.as_f64() == original.as_f64() => {}
            (ours, Some(original)) if ours == original => {}
            (ours, Some(original)) => found.push(format!("{path}: {ours}, not {original}")),
        }
    }
    found
}

fn extra(name: &str) -> Vec<String> {
    let row = EXTRA.iter().find(|(family, _)| *family == name);
    let keys = row.map_or(&[] as &[&str], |(_, keys)| keys);
    keys.iter().map(|key| (*key).to_owned()).collect()
}

fn assert_like_original(name: &str, mut config: Map<String, Value>) {
    let mut original = original(name);
    if WITHOUT_DENSE.contains(&name) {
        assert!(config.remove("intermediate_size").is_some());
        original.remove("intermediate_size");
    }
    assert_eq!(strays("", &config, &original), extra(name), "{name}");
    for key in ["transformers_version", "initializer_range", "bos_token_id", "use_cache"] {
        assert!(!config.contains_key(key), "{name}: {key} is invented");
    }
}

#[test]
fn a_spec_is_written_as_the_configuration_it_came_from() {
    for name in fixtures() {
        let source = open(name);
        let config = written(&source);
        let again = beside_tensors(name, &config);
        let again = Checkpoint::open(again.path()).unwrap();
        assert_eq!(again.spec(), source.spec(), "{name}");
        assert_like_original(name, config);
    }
}

/// The spec without what a GGUF file has another word for: its family, and the rounding of numbers to f32.
fn essence(spec: &ModelSpec) -> Value {
    let mut spec = spec.clone();
    spec.family = String::new();
    rounded(&serde_json::to_value(spec).unwrap())
}

fn rounded(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), rounded(value))).collect(),
        Value::Array(list) => list.iter().map(rounded).collect(),
        Value::Number(number) => json!(number.as_f64().unwrap() as f32),
        other => other.clone(),
    }
}

#[test]
fn a_gguf_file_gets_the_configuration_that_its_source_had() {
    for name in fixtures() {
        let source = open(name);
        let mut differences = Vec::new();
        let gguf = as_gguf(&source, |plan| differences = plan.differences().to_vec());
        assert_eq!(differences, Vec::<String>::new(), "{name}");
        let config = written(&gguf);
        let again = beside_tensors(name, &config);
        let again = Checkpoint::open(again.path()).unwrap();
        assert_eq!(essence(again.spec()), essence(source.spec()), "{name}");
        assert_like_original(name, config);
    }
}

#[test]
fn divisors_of_no_rule_are_refused_by_name() {
    let source = open("llama-rope3");
    let mut spec = source.spec().clone();
    for layer in &mut spec.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            let rope = attention.rope.as_mut().unwrap();
            let divisors = (1..=rope.dims / 2).map(|i| 1.0 + i as f32 * 0.4).collect();
            rope.scaling = RopeScaling::Divisors { divisors };
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights.gguf");
    let bytes = GgufPlan::new(&source, GgufContent::Whole)
        .unwrap()
        .write(&source, Vec::new())
        .unwrap();
    let file = GgufFile::from_bytes(Bytes::from_vec(bytes), &path).unwrap();
    let odd = Checkpoint::from_gguf_with_spec(file, &path, spec).unwrap();
    let refusal = hf_config::config(&odd, FloatType::F32).unwrap_err();
    assert!(matches!(refusal, ModelError::NoConfig { .. }), "{refusal}");
    let message = refusal.to_string();
    assert!(message.contains("llama has no config.json that says"), "{message}");
    assert!(message.contains("rope_freqs.weight"), "{message}");
}

#[test]
fn what_a_class_cannot_say_is_refused_by_name() {
    // The layers of one Qwen2 file that has two windows.
    let source = open("qwen2");
    let mut spec = source.spec().clone();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.window = [Some(7), None, Some(9), None][i];
        }
    }
    let path = Path::new("weights.gguf");
    let plan = GgufPlan::new(&source, GgufContent::Whole).unwrap();
    let bytes = plan.write(&source, Vec::new()).unwrap();
    let file = GgufFile::from_bytes(Bytes::from_vec(bytes), path).unwrap();
    let odd = Checkpoint::from_gguf_with_spec(file, path, spec).unwrap();
    let refusal = hf_config::config(&odd, FloatType::F32).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "weights.gguf: qwen2 has no config.json that says: layers[2].mixer.window is 9 and would be 7"
    );
}

#[test]
fn windows_of_a_file_under_llama_s_architecture_are_mistral_s() {
    let gguf = as_gguf(&open("mistral-sliding"), |_| {});
    assert_eq!(gguf.spec().family, "llama");
    let config = written(&gguf);
    assert_eq!(config["model_type"], json!("mistral"));
    assert_eq!(config["sliding_window"], json!(9));
    let full = as_gguf(&open("mistral-sliding"), |plan| {
        let key = "llama.attention.sliding_window";
        assert!(plan.metadata().get(key).is_some());
        plan.metadata_mut().set(key, GgufValue::U32(0));
    });
    assert_eq!(written(&full)["model_type"], json!("llama"));
}
