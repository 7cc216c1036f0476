//! Keys of configurations: which are refused, and what each class takes for granted.

use serde_json::{Map, Value, json};

use super::{NAMES, fixture, refusal, spec_of};

/// What a case does to a configuration.
type Edit = fn(&mut Map<String, Value>);

#[test]
fn an_unknown_key_is_refused_by_every_family() {
    for name in NAMES {
        let message = refusal(name, |cfg| {
            cfg.insert("attention_sauce".to_owned(), json!(1));
        });
        assert_eq!(message, "key not understood: attention_sauce", "{name}");
    }
}

#[test]
fn null_is_absence() {
    for name in NAMES {
        let spec = spec_of(name, |cfg| {
            cfg.insert("attention_sauce".to_owned(), Value::Null);
        });
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
}

/// Without the keys that state what the class takes for granted, the spec is the same.
#[test]
fn classes_fill_in_what_is_not_said() {
    let cases: [(&str, &[&str]); 16] = [
        (
            "mixtral",
            &[
                "rms_norm_eps",
                "num_experts_per_tok",
                "hidden_act",
                "tie_word_embeddings",
            ],
        ),
        (
            "qwen2-moe",
            &[
                "rms_norm_eps",
                "decoder_sparse_step",
                "mlp_only_layers",
                "norm_topk_prob",
                "qkv_bias",
            ],
        ),
        (
            "qwen3-moe",
            &[
                "rms_norm_eps",
                "decoder_sparse_step",
                "attention_bias",
                "use_sliding_window",
            ],
        ),
        ("olmo2", &["rms_norm_eps", "attention_bias", "hidden_act"]),
        ("olmoe", &["rms_norm_eps", "norm_topk_prob", "clip_qkv"]),
        (
            "phi",
            &[
                "layer_norm_eps",
                "hidden_act",
                "qk_layernorm",
                "num_key_value_heads",
                "rope_parameters",
            ],
        ),
        (
            "phi3",
            &[
                "rms_norm_eps",
                "partial_rotary_factor",
                "original_max_position_embeddings",
                "rope_parameters",
            ],
        ),
        (
            "granite",
            &[
                "rms_norm_eps",
                "attention_bias",
                "mlp_bias",
                "rope_parameters",
            ],
        ),
        ("granitemoe", &["num_experts_per_tok", "attention_bias"]),
        (
            "starcoder2",
            &[
                "norm_epsilon",
                "use_bias",
                "hidden_act",
                "num_key_value_heads",
                "tie_word_embeddings",
            ],
        ),
        (
            "gpt2",
            &[
                "layer_norm_epsilon",
                "activation_function",
                "scale_attn_weights",
                "tie_word_embeddings",
            ],
        ),
        (
            "gpt-oss",
            &[
                "rms_norm_eps",
                "attention_bias",
                "swiglu_alpha",
                "swiglu_limit",
                "layer_types",
            ],
        ),
        (
            "cohere2",
            &[
                "layer_norm_eps",
                "attention_bias",
                "layer_types",
                "head_dim",
                "tie_word_embeddings",
            ],
        ),
        (
            "smollm3",
            &[
                "rms_norm_eps",
                "no_rope_layers",
                "layer_types",
                "mlp_bias",
                "use_sliding_window",
            ],
        ),
        (
            "glm4",
            &[
                "rms_norm_eps",
                "attention_bias",
                "num_key_value_heads",
                "rope_parameters",
            ],
        ),
        (
            "stablelm",
            &[
                "layer_norm_eps",
                "qk_layernorm",
                "use_parallel_residual",
                "rope_parameters",
            ],
        ),
    ];
    for (name, keys) in cases {
        for key in keys {
            let spec = spec_of(name, |cfg| {
                assert!(cfg.remove(*key).is_some(), "{name} has no {key}");
            });
            assert_eq!(&spec, fixture(name).spec(), "{name} without {key}");
        }
    }
}

#[test]
fn keys_are_refused_by_name() {
    let cases: [(&str, Edit, &str); 20] = [
        (
            "mixtral",
            |cfg| cfg["num_experts_per_tok"] = json!(7),
            "key `num_experts_per_tok` is 7, expected 1 to 6",
        ),
        (
            "mixtral",
            |cfg| drop(cfg.insert("num_experts".into(), json!(5))),
            "key `num_experts` is 5, expected 6, as num_local_experts says",
        ),
        (
            "mixtral",
            |cfg| cfg["rope_parameters"]["partial_rotary_factor"] = json!(0.5),
            "key `rope_parameters.partial_rotary_factor` is 0.5, expected 1 or absent in this family",
        ),
        (
            "mixtral",
            |cfg| drop(cfg.remove("hidden_size")),
            "missing key `hidden_size`",
        ),
        (
            "qwen2-moe",
            |cfg| cfg["layer_types"] = json!(vec!["full_attention"; 3]),
            "key `layer_types` is \"3 entries\", expected 4 entries",
        ),
        (
            "qwen3-moe",
            |cfg| cfg["mlp_only_layers"] = json!([-1]),
            "key `mlp_only_layers` is [-1], expected a list of layer numbers",
        ),
        (
            "qwen3-moe",
            |cfg| cfg["decoder_sparse_step"] = json!(0),
            "key `decoder_sparse_step` is 0, expected a number above 0",
        ),
        (
            "olmoe",
            |cfg| cfg["clip_qkv"] = json!(-1.0),
            "key `clip_qkv` is -1.0, expected a number above 0",
        ),
        (
            "phi",
            |cfg| cfg["rope_parameters"]["partial_rotary_factor"] = json!(0.3),
            "key `rope_parameters.partial_rotary_factor` is 0.3, expected a part of a head of 24 that is an even number",
        ),
        (
            "phi3",
            |cfg| drop(cfg.insert("lm_head_bias".into(), json!(true))),
            "key `lm_head_bias` is true, expected false or absent",
        ),
        (
            "phi3",
            |cfg| cfg["rope_parameters"] = json!({ "rope_type": "longrope", "long_factor": [1.0], "short_factor": vec![2.0; 12] }),
            "key `rope_parameters.long_factor` is [1.0], expected 12 numbers above 0",
        ),
        (
            "granite",
            |cfg| cfg["logits_scaling"] = json!(0.0),
            "key `logits_scaling` is 0.0, expected a number above 0",
        ),
        (
            "gpt2",
            |cfg| cfg["add_cross_attention"] = json!(true),
            "key `add_cross_attention` is true, expected false or absent",
        ),
        (
            "gpt2",
            |cfg| cfg["n_head"] = json!(7),
            "key `n_head` is 7, expected a divisor of 96",
        ),
        (
            "gpt-oss-mxfp4",
            |cfg| cfg["quantization_config"]["group_size"] = json!(64),
            "key not understood: quantization_config.group_size",
        ),
        (
            "cohere2",
            |cfg| cfg["head_dim"] = json!(16),
            "key `head_dim` is 16, expected 14 or absent",
        ),
        (
            "smollm3",
            |cfg| cfg["no_rope_layers"] = json!([1, 1, 1]),
            "key `no_rope_layers` is [1,1,1], expected 4 entries of 0 or 1",
        ),
        (
            "glm4",
            |cfg| cfg["rope_parameters"]["rope_type"] = json!("dynamic"),
            "key `rope_parameters.rope_type` is \"dynamic\", expected one of default, linear, llama3, yarn",
        ),
        (
            "phi3",
            |cfg| cfg["rope_parameters"]["rope_type"] = json!("dynamic"),
            "key `rope_parameters.rope_type` is \"dynamic\", expected one of default, linear, llama3, longrope",
        ),
        (
            "stablelm",
            |cfg| cfg["qk_layernorm"] = json!(true),
            "key `qk_layernorm` is true, expected false or absent",
        ),
    ];
    for (name, edit, expected) in cases {
        assert_eq!(refusal(name, edit), expected, "{name}");
    }
}

/// Published files say things twice, or in words of the code they were trained with.
#[test]
fn keys_of_published_files_are_understood() {
    let cases: [(&str, Value); 6] = [
        (
            "phi3",
            json!({ "interpolate_factor": 1, "full_attn_mod": 1, "mlp_bias": false, "attention_bias": false }),
        ),
        (
            "starcoder2",
            json!({ "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": true }),
        ),
        (
            "gpt2",
            json!({ "n_ctx": 128, "hidden_size": 96, "num_hidden_layers": 4, "task_specific_params": {} }),
        ),
        (
            "gpt-oss",
            json!({ "experts_per_token": 2, "initial_context_length": 64, "num_experts": 6 }),
        ),
        (
            "cohere2",
            json!({ "layer_switch": 4, "rotary_pct": 1.0, "use_parallel_block": true, "position_embedding_type": "rope_gptj" }),
        ),
        (
            "smollm3",
            json!({ "pretraining_tp": 2, "max_window_layers": 28, "sliding_window": 5 }),
        ),
    ];
    for (name, more) in cases {
        let more = more.as_object().unwrap().clone();
        let spec = spec_of(name, |cfg| cfg.extend(more));
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
}
