//! A spec becomes `config.json` again, for every family: the reader makes the same spec of it, and it holds the keys and
//! values of the original.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use larql_formats::Bytes;
use larql_formats::gguf::{GgufFile, Value as GgufValue};
use larql_models::spec::{Mixer, ModelSpec, RopeScaling};
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::to_hf::{FloatType, HfPlan};
use larql_models::{Checkpoint, ModelError, hf_config};
use larql_testkit::{FAMILIES, parity_fixture};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Fixtures beside those that all crates test with.
const MORE: [&str; 2] = ["arcee", "stablelm"];

/// What the fixtures say otherwise.
const EXTRA: &[(&str, &str)] = &[
    // Their classes take an id for granted that the small vocabulary does not have.
    ("glm4", "pad_token_id: null, not 0"),
    ("kimi-linear", "pad_token_id: null, not 0"),
    ("phi3", "pad_token_id: null, not 0"),
    ("smollm3", "pad_token_id: null, not 0"),
];

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

fn assert_like_original(
    name: &str,
    mut config: Map<String, Value>,
    mut original: Map<String, Value>,
) {
    if WITHOUT_DENSE.contains(&name) {
        assert!(config.remove("intermediate_size").is_some());
        original.remove("intermediate_size");
    }
    let extra = EXTRA.iter().filter(|(fixture, _)| *fixture == name);
    let extra: Vec<&str> = extra.map(|(_, what)| *what).collect();
    assert_eq!(strays("", &config, &original), extra, "{name}");
    for key in [
        "transformers_version",
        "initializer_range",
        "bos_token_id",
        "use_cache",
    ] {
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
        assert_like_original(name, config, original(name));
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
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), rounded(value)))
            .collect(),
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
        assert_like_original(name, config, original(name));
    }
}

/// Changes of configurations that leave the tensors as they are: fixture and new values.
fn variants() -> Vec<(&'static str, Value)> {
    let rope = |rope: Value| json!({"rope_parameters": rope});
    let yarn = |mscale: Value| {
        let mut rope = json!({
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
        });
        let more = mscale.as_object().unwrap().clone();
        rope.as_object_mut().unwrap().extend(more);
        json!({"rope_parameters": rope})
    };
    let list = |from: f64| {
        (0..12)
            .map(|i| from + f64::from(i) * 0.25)
            .collect::<Vec<_>>()
    };
    vec![
        (
            "llama",
            rope(json!({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5})),
        ),
        ("llama", yarn(json!({"attention_factor": 1.1}))),
        (
            "gpt-oss",
            yarn(json!({"truncate": false, "beta_fast": 24.0})),
        ),
        (
            "gpt-oss",
            json!({"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}),
        ),
        (
            "deepseek-v2",
            yarn(json!({"mscale": 0.707, "mscale_all_dim": 0.707})),
        ),
        ("deepseek-v2", yarn(json!({}))),
        (
            "deepseek-v2",
            json!({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}),
        ),
        (
            "deepseek-v3",
            yarn(json!({"mscale": 1.0, "mscale_all_dim": 1.0})),
        ),
        (
            "deepseek-v3",
            json!({"n_group": 1, "topk_group": 1, "norm_topk_prob": false, "routed_scaling_factor": 1.7}),
        ),
        (
            "kimi-linear",
            json!({"num_expert_group": 3, "topk_group": 2, "routed_scaling_factor": 1.3}),
        ),
        (
            "phi3",
            json!({"original_max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
            "short_factor": list(1.0), "long_factor": list(3.0)}}),
        ),
        (
            "phi3",
            json!({"sliding_window": 11, "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
            "partial_rotary_factor": 0.75}),
        ),
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 5,
            "layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]}),
        ),
        (
            "qwen3-moe",
            json!({"use_sliding_window": true, "sliding_window": 5, "norm_topk_prob": false}),
        ),
        ("qwen2-moe", json!({"norm_topk_prob": true})),
        ("qwen3-next", json!({"norm_topk_prob": false})),
        (
            "smollm3",
            json!({"use_sliding_window": true, "sliding_window": 6, "no_rope_layers": [1, 0, 1, 0],
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
        ),
        ("olmoe", json!({"clip_qkv": 0.75, "norm_topk_prob": true})),
        (
            "granite",
            json!({"embedding_multiplier": 12.0, "logits_scaling": 13.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.246}),
        ),
        ("gpt2", json!({"scale_attn_weights": false})),
        ("gpt2", json!({"scale_attn_by_inverse_layer_idx": true})),
        ("cohere2", json!({"logit_scale": 0.1, "sliding_window": 4})),
        (
            "gemma2",
            json!({"query_pre_attn_scalar": 144, "attn_logit_softcapping": null, "final_logit_softcapping": null}),
        ),
        (
            "gemma3",
            json!({"final_logit_softcapping": 7.5, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}}),
        ),
        (
            "gemma3n",
            json!({"activation_sparsity_pattern": [0.95, 0.3, 0.0, 0.5], "altup_active_idx": 1}),
        ),
        (
            "gemma4-e",
            json!({"final_logit_softcapping": null, "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}}),
        ),
    ]
}

#[test]
fn what_the_fixtures_do_not_say_is_written_too() {
    let mut through_gguf = 0;
    for (name, changes) in variants() {
        let mut edited = original(name);
        edited.extend(changes.as_object().unwrap().clone());
        let dir = beside_tensors(name, &edited);
        let source = Checkpoint::open(dir.path()).unwrap();
        assert_ne!(
            source.spec(),
            open(name).spec(),
            "{name}: {changes} changes nothing"
        );
        let config = written(&source);
        let again = beside_tensors(name, &config);
        let again = Checkpoint::open(again.path()).unwrap();
        assert_eq!(again.spec(), source.spec(), "{name}: {changes}");
        assert_like_original(name, config, edited.clone());

        let mut differences = Vec::new();
        let gguf = as_gguf(&source, |plan| differences = plan.differences().to_vec());
        if differences.is_empty() {
            through_gguf += 1;
            assert_like_original(name, written(&gguf), edited);
        }
    }
    // Caps that are off, scores by layer and other layers without positions are nothing that such a file says.
    assert_eq!(through_gguf, variants().len() - 4);
}

#[test]
fn a_folder_says_whether_its_experts_are_packed() {
    for name in ["gpt-oss", "gpt-oss-mxfp4"] {
        let gguf = as_gguf(&open(name), |_| {});
        let plan = HfPlan::of_family(&gguf, FloatType::Bf16).unwrap();
        let is_packed = plan
            .tensors()
            .any(|tensor| tensor.name.ends_with("_blocks"));
        let stated = written(&gguf).contains_key("quantization_config");
        assert_eq!(stated, is_packed, "{name}");
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
    let odd = Checkpoint::from_gguf_with_spec(file, &path, spec, GgufContent::Whole).unwrap();
    let refusal = hf_config::config(&odd, FloatType::F32).unwrap_err();
    assert!(matches!(refusal, ModelError::NoConfig { .. }), "{refusal}");
    let message = refusal.to_string();
    assert!(
        message.contains("llama has no config.json that says"),
        "{message}"
    );
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
    let odd = Checkpoint::from_gguf_with_spec(file, path, spec, GgufContent::Whole).unwrap();
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
