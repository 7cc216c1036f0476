//! What files say twice, and otherwise the second time: refused by name, with both values.

use std::fs;

use larql_formats::gguf::Value as GgufValue;
use larql_models::Checkpoint;
use larql_models::quant_mix::Mix;
use larql_models::spec::{AttentionSpec, Mixer, ModelSpec};
use larql_models::to_gguf::Quantization;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::gguf::plan;
use super::{edited, fixture, refusal, spec_of};

/// What a case does to a configuration.
type Edit = fn(&mut Map<String, Value>);

#[test]
fn of_configurations() {
    let cases: [(&str, Edit, &str); 16] = [
        (
            "llama",
            |cfg| drop(cfg.insert("rope_theta".into(), json!(1e6))),
            "key `rope_parameters.rope_theta` is 500000.0, expected 1000000, as it says elsewhere",
        ),
        (
            "llama-yarn",
            |cfg| {
                cfg.insert("rope_scaling".into(), json!({ "type": "linear" }));
            },
            "key `rope_scaling` is {\"type\":\"linear\"}, expected what rope_parameters says, or no key",
        ),
        (
            "llama-yarn",
            |cfg| cfg["rope_parameters"]["type"] = json!("linear"),
            "key `rope_parameters.type` is \"linear\", expected yarn, as rope_type says",
        ),
        (
            "gpt-oss",
            |cfg| cfg["rope_parameters"]["original_max_position_embeddings"] = json!(0),
            "key `rope_parameters.original_max_position_embeddings` is 0, expected a number above 0",
        ),
        (
            "phi3",
            |cfg| cfg["original_max_position_embeddings"] = json!(0),
            "key `original_max_position_embeddings` is 0, expected a number above 0",
        ),
        (
            "qwen3",
            |cfg| cfg["rope_parameters"]["rope_theta"] = json!(1.0),
            "key `rope_parameters.rope_theta` is 1.0, expected a number above 1",
        ),
        (
            "gemma3",
            |cfg| drop(cfg.insert("rope_local_base_freq".into(), json!(5000.0))),
            "key `rope_parameters.sliding_attention.rope_theta` is 10000.0, expected 5000, as it says elsewhere",
        ),
        (
            "gemma3",
            |cfg| cfg["sliding_window"] = Value::Null,
            "key `sliding_window` is null, expected a number above 0, or no key",
        ),
        (
            "qwen3",
            |cfg| cfg["head_dim"] = Value::Null,
            "key `head_dim` is null, expected a number, or no key",
        ),
        (
            "llama",
            |cfg| cfg["rms_norm_eps"] = Value::Null,
            "key `rms_norm_eps` is null, expected a value, or no key",
        ),
        (
            "gemma4-dense",
            |cfg| cfg["num_experts"] = json!(4),
            "key `num_experts` is 4, expected 0 or null where enable_moe_block is not true",
        ),
        (
            "gemma4-dense",
            |cfg| cfg["rope_parameters"]["full_attention"] = json!({}),
            "missing key `rope_parameters.full_attention.rope_theta`",
        ),
        (
            "gemma4-e",
            |cfg| cfg["rope_parameters"]["sliding_attention"] = json!({ "rope_type": "default" }),
            "missing key `rope_parameters.sliding_attention.rope_theta`",
        ),
        (
            "gemma4-dense",
            |cfg| cfg["num_kv_shared_layers"] = json!(1),
            "key `num_kv_shared_layers` is 1, expected 0 where hidden_size_per_layer_input is 0",
        ),
        (
            "kimi-linear",
            |cfg| drop(cfg.insert("first_k_dense_replace".into(), json!(3))),
            "key `first_k_dense_replace` is 3, expected the dense layers of mlp_layer_types, or no key",
        ),
        (
            "kimi-linear",
            |cfg| drop(cfg.insert("norm_topk_prob".into(), json!(false))),
            "key `norm_topk_prob` is false, expected true, as moe_renormalize says",
        ),
    ];
    for (name, edit, expected) in cases {
        assert_eq!(refusal(name, edit), expected, "{name}");
    }
}

#[test]
fn of_wrappers() {
    let nested = |inner: &'static str, key: &'static str, outer: Value| {
        refusal("gemma3", |cfg| {
            let mut text = std::mem::take(cfg);
            text["model_type"] = json!(inner);
            cfg.insert("text_config".to_owned(), Value::Object(text));
            cfg.insert("model_type".to_owned(), json!("gemma3"));
            cfg.insert(key.to_owned(), outer);
        })
    };
    assert_eq!(
        nested("gemma2", "mm_tokens_per_image", json!(256)),
        "key `text_config.model_type` is \"gemma2\", expected gemma3_text or gemma3"
    );
    assert_eq!(
        nested("gemma3_text", "num_attention_heads", json!(8)),
        "key `num_attention_heads` is 8, expected 4, as text_config says, or no key"
    );
    // Inside it would change the model, outside it is passed over in favor of a default.
    assert_eq!(
        nested("gemma3_text", "final_logit_softcapping", json!(9.5)),
        "key `final_logit_softcapping` is 9.5, expected this key in text_config, or nowhere"
    );
}

/// Weights that other programs would not run as they lie there.
#[test]
fn of_an_adapter_beside_the_model() {
    let dir = edited("llama", |_| {});
    assert!(Checkpoint::open(dir.path()).is_ok());
    fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: the folder holds an adapter (adapter_config.json) beside the model",
            dir.path().display()
        )
    );
    assert!(error.hint().unwrap().contains("merge_and_unload"));
}

/// A file of another kind, a shard out of place, and a tensor that other programs do not have here.
#[test]
fn of_kinds_of_files() {
    let general = |key: &str, value: GgufValue| {
        let source = fixture("llama");
        let mut plan = plan(&source);
        plan.metadata_mut().set(key, value);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        plan.write(&source, fs::File::create(&path).unwrap())
            .unwrap();
        Checkpoint::open(&path).unwrap_err()
    };
    let text = |error: larql_models::ModelError| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error} {}", cause.unwrap_or_default())
    };
    let found = text(general("general.type", GgufValue::String("adapter".into())));
    assert!(
        found.contains("key `general.type` is adapter, expected model"),
        "{found}"
    );
    let found = text(general("split.no", GgufValue::U16(1)));
    assert!(found.contains("key `split.no` is 1, expected 0"), "{found}");
    let dir = edited("qwen3", |cfg| {
        let rope = &mut cfg["rope_parameters"];
        rope["rope_type"] = json!("llama3");
        rope["factor"] = json!(8.0);
        rope["low_freq_factor"] = json!(1.0);
        rope["high_freq_factor"] = json!(4.0);
        rope["original_max_position_embeddings"] = json!(32);
    });
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let plan = plan(&checkpoint);
    assert!(
        plan.differences()[0].contains("cannot be read without the manifest"),
        "{:?}",
        plan.differences()
    );
    let path = dir.path().join("alone.gguf");
    plan.write(&checkpoint, fs::File::create(&path).unwrap())
        .unwrap();
    let found = text(Checkpoint::open(&path).unwrap_err());
    assert!(found.contains("rope_freqs.weight"), "{found}");
}

/// A fixture's file with another value under a key below its architecture.
fn changed(name: &str, key: &str, value: Option<GgufValue>) -> String {
    let source = fixture(name);
    let mut plan = plan(&source);
    let arch = plan.metadata().str("general.architecture").unwrap();
    let key = format!("{}.{key}", arch.unwrap());
    match value {
        Some(value) => plan.metadata_mut().set(key, value),
        None => drop(plan.metadata_mut().remove(&key)),
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    plan.write(&source, fs::File::create(&path).unwrap())
        .unwrap();
    let message = Checkpoint::open(&path).unwrap_err().to_string();
    message.replace(&format!("{}: ", path.display()), "")
}

#[test]
fn of_files() {
    use GgufValue::{F32, U32};
    let cases: [(&str, &str, GgufValue, &str); 18] = [
        (
            "deepseek-v3",
            "attention.head_count_kv",
            U32(2),
            "is 2, expected 4 in layer 0",
        ),
        (
            "kimi-linear",
            "attention.key_length",
            U32(41),
            "is 41, expected 40 in layer 1",
        ),
        (
            "kimi-linear",
            "leading_dense_block_count",
            U32(2),
            "is 2, expected 1, the first layers without a router",
        ),
        (
            "kimi-linear",
            "expert_gating_func",
            U32(1),
            "is 1, expected 2 for sigmoid",
        ),
        (
            "deepseek-v2",
            "expert_weights_scale",
            F32(-1.5),
            "is -1.5, expected a finite number above 0",
        ),
        (
            "deepseek-v2",
            "rope.scaling.yarn_log_multiplier",
            F32(0.1),
            "is 0.1, expected 0 or no key where the scaling is not yarn",
        ),
        (
            "gemma4-e",
            "attention.value_length",
            U32(24),
            "is 24, expected 32 in layer 1",
        ),
        (
            "gemma4-e",
            "attention.value_length_swa",
            U32(32),
            "is 32, expected 24 in layer 0",
        ),
        (
            "gemma4-e",
            "rope.dimension_count_swa",
            U32(1),
            "is 1, expected an even number up to 24",
        ),
        (
            "gemma4-e",
            "expert_used_count",
            U32(2),
            "is 2, expected 0 or no key without experts",
        ),
        (
            "gemma3n",
            "attention.value_length",
            U32(48),
            "is 48, expected 24 in layer 0",
        ),
        (
            "mixtral",
            "feed_forward_length",
            U32(105),
            "is 105, expected 104, as expert_feed_forward_length says",
        ),
        (
            "gpt-oss",
            "feed_forward_length",
            U32(105),
            "is 105, expected 104, as expert_feed_forward_length says",
        ),
        (
            "qwen3-next",
            "full_attention_interval",
            U32(3),
            "is 3, expected the period of attention.recurrent_layers",
        ),
        (
            "qwen3-next",
            "full_attention_interval",
            U32(0),
            "is 0, expected a number above 0",
        ),
        (
            "llama",
            "rope.freq_base",
            F32(1.0),
            "is 1, expected a number above 1",
        ),
        (
            "llama-yarn",
            "rope.scaling.type",
            GgufValue::String("bogus".to_owned()),
            "is bogus, expected none, linear, yarn or longrope, the last three without rope_freqs",
        ),
        (
            "granite",
            "rope.scaling.finetuned",
            GgufValue::Bool(false),
            "is false, expected true or no key",
        ),
    ];
    for (name, key, value, expected) in cases {
        let message = changed(name, key, Some(value));
        let expected = format!(".{key}` {expected}");
        assert!(message.ends_with(&expected), "{name}: {message}");
    }
}

#[test]
fn of_files_by_a_key_too_many_or_too_few() {
    let unread = changed(
        "gemma3",
        "attn_logit_softcapping",
        Some(GgufValue::F32(5.0)),
    );
    assert_eq!(unread, "key not understood: gemma3.attn_logit_softcapping");
    let silent = changed("deepseek-v3", "expert_gating_func", None);
    assert_eq!(silent, "missing key `deepseek2.expert_gating_func`");
}

fn attention(spec: &ModelSpec) -> &AttentionSpec {
    match &spec.layers[0].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

/// What a class takes for granted is not what other classes do.
#[test]
fn silence_is_the_default_of_the_class() {
    let without = |key: &'static str| move |cfg: &mut Map<String, Value>| drop(cfg.remove(key));
    let window = spec_of("mistral-sliding", without("sliding_window"));
    assert_eq!(attention(&window).window, Some(4096));
    let none = spec_of("mistral-sliding", |cfg| cfg["sliding_window"] = Value::Null);
    assert_eq!(attention(&none).window, None);
    let cap = spec_of("gemma2", without("attn_logit_softcapping"));
    assert_eq!(attention(&cap).softcap, Some(50.0));
    let none = spec_of("gemma2", |cfg| cfg["final_logit_softcapping"] = Value::Null);
    assert_eq!(none.head.softcap, None);
    // Gemma 3 computes nothing with the one, and has no cap of its own for the other.
    let capped = spec_of("gemma3", |cfg| {
        cfg["attn_logit_softcapping"] = json!(5.0);
        cfg["final_logit_softcapping"] = json!(6.0);
    });
    assert_eq!(attention(&capped).softcap, None);
    assert_eq!(capped.head.softcap, Some(6.0));
    assert_eq!(
        refusal("qwen2", without("num_key_value_heads")),
        "key `num_key_value_heads` is 32, expected a divisor of 4"
    );
}

/// Gemma 3 with another value, in the bits of BF16, at one place of a tensor.
fn with_value(tensor: &str, row: usize, column: usize, value: u16) -> TempDir {
    let dir = super::edited("gemma3", |_| {});
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let infos: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let info = &infos[tensor];
    assert_eq!(info["dtype"], "BF16");
    let start = info["data_offsets"][0].as_u64().unwrap() as usize;
    let cols = info["shape"].as_array().unwrap().last().unwrap();
    let at = 8 + header + start + 2 * (row * cols.as_u64().unwrap() as usize + column);
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    dir
}

/// Why a folder cannot be written in a mix.
fn refused_mix(dir: &TempDir, mix: Mix) -> String {
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut plan = plan(&checkpoint);
    let quantization = Quantization {
        mix,
        requantize: false,
    };
    plan.quantize(&checkpoint, quantization).unwrap();
    plan.write(&checkpoint, Vec::new()).unwrap_err().to_string()
}

/// Whether a tensor is encoded or copied, a value in it is named by the same words.
#[test]
fn a_value_that_no_type_holds_is_named_by_tensor_row_and_column() {
    // Of rows of 96, the only ones that blocks of 32 divide.
    const OUT: &str = "model.layers.1.self_attn.o_proj.weight";
    let place = format!("tensor `blk.1.attn_output.weight` (of `{OUT}`), row 7");
    let nan = with_value(OUT, 7, 3, 0x7fc0);
    for mix in [Mix::Q8_0, Mix::Q5_0, Mix::F16, Mix::Bf16, Mix::F32] {
        let expected = format!("{place}, column 3: NaN is not finite");
        assert_eq!(refused_mix(&nan, mix), expected, "{}", mix.name());
    }
    // 2^127 * 1.765625
    let outlier = with_value(OUT, 7, 35, 0x7f62);
    assert_eq!(
        refused_mix(&outlier, Mix::F16),
        format!("{place}, column 35: 3.0040553e38 is too large for F16")
    );
    assert_eq!(
        refused_mix(&outlier, Mix::Q8_0),
        format!(
            "{place}, column 32: the weights of the Q8_0 block that begins here, up to 3.0040553e38, need a scale beyond half precision"
        )
    );
}

/// A quantized file has no number that is none, be it in a tensor that is copied.
#[test]
fn a_norm_without_a_number_is_refused_by_column() {
    const NORM: &str = "model.layers.1.input_layernorm.weight";
    let dir = with_value(NORM, 0, 5, 0x7fc0);
    let expected = |of: &str| {
        format!("tensor `blk.1.attn_norm.weight`{of}, row 0, column 5: NaN is not finite")
    };
    let from_folder = Checkpoint::open(dir.path()).unwrap();
    let file = dir.path().join("model.gguf");
    let mut whole = plan(&from_folder);
    whole
        .write(&from_folder, fs::File::create(&file).unwrap())
        .unwrap();
    let quantization = Quantization {
        mix: Mix::Q8_0,
        requantize: false,
    };
    whole.quantize(&from_folder, quantization).unwrap();
    let error = whole.write(&from_folder, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), expected(&format!(" (of `{NORM}`)")));
    let from_file = Checkpoint::open(&file).unwrap();
    let mut copy = plan(&from_file);
    copy.quantize(&from_file, quantization).unwrap();
    let error = copy.write(&from_file, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), expected(""));
}
