//! The keys of `config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use larql_testkit::{FAMILIES, parity_fixture};
use serde_json::{Map, Value, json};

use super::{Harmless, Silent};
use crate::checkpoint::spec_from_config;
use crate::error::ModelError;
use crate::spec::ModelSpec;

/// Keys without effect, and why nobody is misled.
const HARMLESS: &[Harmless] = &[
    (
        "*",
        &[
            "architectures",
            "bos_token_id",
            "dtype",
            "eos_token_id",
            "model_max_length",
            "pad_token_id",
            "torch_dtype",
            "transformers_version",
            "use_cache",
        ],
        "about files, tokens and callers, not about what a forward pass computes",
    ),
    (
        "*",
        &[
            "attention_dropout",
            "attn_pdrop",
            "embd_pdrop",
            "embedding_dropout",
            "hidden_dropout",
            "initializer_range",
            "output_router_logits",
            "resid_pdrop",
            "residual_dropout",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "summary_first_dropout",
        ],
        "only while training",
    ),
    (
        "gpt2",
        &[
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ],
        "an order of operations that only half precision feels, and heads for classification",
    ),
    (
        "*",
        &["pretraining_tp", "num_nextn_predict_layers"],
        "how devices share a product, and layers that only speculation runs",
    ),
    (
        "*",
        &["max_window_layers"],
        "where windows begin, in classes and models that have none",
    ),
    (
        "qwen",
        &["sliding_window", "use_sliding_window"],
        "a window that its switch turns off, and a switch without a window",
    ),
    (
        "smollm3",
        &["sliding_window", "use_sliding_window"],
        "the same",
    ),
    (
        "qwen",
        &["intermediate_size"],
        "the width of dense layers, in models that have none",
    ),
    (
        "phi3",
        &["original_max_position_embeddings"],
        "where a scaling begins, where there is none; published files state it always",
    ),
    (
        "starcoder2",
        &["activation_function", "layer_norm_epsilon"],
        "names that the training code had; the class reads hidden_act and norm_epsilon",
    ),
    (
        "gpt-oss",
        &["quantization_config"],
        "the tensors show which of them are packed",
    ),
    (
        "deepseek-v2",
        &["n_group", "topk_group"],
        "groups, which the greedy method passes over",
    ),
    (
        "smollm3",
        &["no_rope_layer_interval"],
        "the period that no_rope_layers, which wins, may not have; the class saves both",
    ),
    (
        "gemma3",
        &["_sliding_window_pattern"],
        "the period that layer_types, which wins, may not have; the class saves both",
    ),
    (
        "gemma3",
        &["attn_logit_softcapping"],
        "a cap that the class keeps from the one before it and never applies",
    ),
    (
        "gemma3n",
        &["altup_coef_clip", "query_pre_attn_scalar"],
        "a clamp while training, and a scale that the class does not read",
    ),
    (
        "gemma",
        &["hidden_activation"],
        "the same in another name: the class reads hidden_act",
    ),
    (
        "gemma4",
        &["layer_types"],
        "the kind of the last layer, which the class makes full",
    ),
    (
        "gemma4",
        &["use_double_wide_mlp", "vocab_size_per_layer_input"],
        "about layers that share, and embeddings per layer, in models without them",
    ),
    (
        "kimi-linear",
        &["head_dim", "rope_theta"],
        "a rotation that no layer makes",
    ),
];

type Config = Map<String, Value>;

/// Objects that hold keys of the model.
const NESTED: &[&str] = &[
    "full_attention",
    "linear_attn_config",
    "rope_parameters",
    "rope_scaling",
    "sliding_attention",
];

fn read(config: &Config) -> Result<ModelSpec, ModelError> {
    spec_from_config("config.json", config)
}

/// A fixture's configurations, in one or two spellings.
fn configs(name: &str) -> Vec<Config> {
    let at = |file: &str| fs::read(parity_fixture(name).join(file)).ok();
    let files = ["config.json", "config.legacy.json"].into_iter();
    let texts = files.filter_map(at);
    texts
        .map(|text| serde_json::from_slice(&text).unwrap())
        .collect()
}

/// Every key with its value, those of nested objects after a dot.
fn keys(config: &Config, prefix: &str, found: &mut Vec<(String, Value)>) {
    for (key, value) in config {
        match value {
            Value::Object(inner) if NESTED.contains(&key.as_str()) => {
                keys(inner, &format!("{prefix}{key}."), found);
            }
            value => found.push((format!("{prefix}{key}"), value.clone())),
        }
    }
}

/// The configuration with another value under a key; `None` where an object on the way is missing.
fn with(config: &Config, key: &str, value: Value) -> Option<Config> {
    let mut config = config.clone();
    let mut inner = &mut config;
    let mut rest = key;
    while let Some((object, after)) = rest.split_once('.') {
        inner = inner.get_mut(object)?.as_object_mut()?;
        rest = after;
    }
    inner.insert(rest.to_owned(), value);
    Some(config)
}

/// Other values of the same type.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![json!(3), json!(0.37)],
        Value::Bool(x) => vec![json!(!x)],
        Value::Number(x) if x.is_u64() => {
            let x = x.as_u64().unwrap();
            let others = [x + 1, x * 2, 0].into_iter().filter(|y| *y != x);
            others.map(Value::from).chain([json!(0.5)]).collect()
        }
        Value::Number(x) => {
            let x = x.as_f64().unwrap();
            vec![json!(x + 1.0), json!(x * 2.0)]
        }
        Value::String(_) => vec![],
        Value::Array(list) => (0..list.len())
            .flat_map(|i| {
                let change = |value: Value| {
                    let mut list = list.clone();
                    list[i] = value;
                    Value::Array(list)
                };
                match &list[i] {
                    // The kinds of layers: that of another one.
                    Value::String(kind) => {
                        let mut kinds = list.iter().filter(|other| other.as_str() != Some(kind));
                        kinds.next().cloned().map(change).into_iter().collect()
                    }
                    element => others(element)
                        .into_iter()
                        .take(1)
                        .map(change)
                        .collect::<Vec<_>>(),
                }
            })
            .collect(),
        Value::Object(_) => vec![],
    }
}

/// Values that no model has.
fn nonsense(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(x) if x.is_u64() => vec![json!(-1), json!("3")],
        Value::Number(x) => vec![json!(-x.as_f64().unwrap()), json!(1e-300), json!(1e300)],
        Value::Null | Value::Bool(_) | Value::String(_) => vec![json!("marmalade")],
        Value::Array(_) | Value::Object(_) => vec![json!(["marmalade"]), json!("marmalade")],
    }
}

#[test]
fn another_value_is_refused_or_another_model() {
    let mut silent = Silent::new(HARMLESS);
    let mut universe: BTreeMap<String, Value> = BTreeMap::new();
    for config in FAMILIES.iter().flat_map(|name| configs(name)) {
        let mut found = Vec::new();
        keys(&config, "", &mut found);
        universe.extend(found.into_iter().filter(|(_, value)| !value.is_null()));
    }
    for name in FAMILIES {
        for (spelling, config) in configs(name).into_iter().enumerate() {
            let spec = read(&config).unwrap();
            let mut stated = Vec::new();
            keys(&config, "", &mut stated);
            let known: BTreeSet<String> = stated.iter().map(|(key, _)| key.clone()).collect();
            let added = universe
                .iter()
                .filter(|(key, _)| spelling == 0 && !known.contains(*key));
            let added: Vec<_> = added
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let n_stated = stated.len();
            for (i, (key, value)) in stated.into_iter().chain(added).enumerate() {
                let same: Vec<(String, bool)> = others(&value)
                    .into_iter()
                    .chain([value.clone()].into_iter().filter(|_| i >= n_stated))
                    .filter_map(|other| {
                        let shown = other.to_string();
                        let changed = with(&config, &key, other)?;
                        Some((shown, read(&changed).is_ok_and(|read| read == spec)))
                    })
                    .collect();
                // One of the values of a key that is not stated may be what its absence says.
                if i < n_stated || same.iter().all(|(_, is_same)| *is_same) {
                    for (shown, _) in same.iter().filter(|(_, is_same)| *is_same) {
                        silent.note(name, &key, shown);
                    }
                }
                for other in nonsense(&value) {
                    let shown = other.to_string();
                    let Some(changed) = with(&config, &key, other) else {
                        continue;
                    };
                    if read(&changed).is_ok() {
                        silent.note(name, &key, &shown);
                    }
                }
            }
        }
    }
    silent.assert_listed();
}
