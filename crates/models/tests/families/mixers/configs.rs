//! Spellings of configurations, what classes take for granted, and what is refused.

use larql_testkit::parity_fixture;
use serde_json::{Map, Value, json};

use super::{Edit, NAMES, fixture, refusal, set, spec_of};

/// Published spellings beside those that the class writes.
#[test]
fn both_spellings_of_a_configuration_give_the_same_spec() {
    for name in ["deepseek-v2", "deepseek-v3", "qwen3-next"] {
        let path = parity_fixture(name).join("config.legacy.json");
        let legacy: Map<String, Value> =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let spec = spec_of(name, |cfg| *cfg = legacy);
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
    let published: [(&str, Edit); 6] = [
        ("deepseek-v2", |cfg| {
            set(cfg, "aux_loss_alpha", json!(0.001));
            set(cfg, "ep_size", json!(1));
            set(cfg, "moe_layer_freq", json!(1));
            set(cfg, "scoring_func", json!("softmax"));
            set(cfg, "seq_aux", json!(true));
            cfg.remove("qk_head_dim");
            cfg.remove("head_dim");
        }),
        ("deepseek-v3", |cfg| {
            set(cfg, "scoring_func", json!("sigmoid"));
            set(cfg, "topk_method", json!("noaux_tc"));
            cfg.remove("rope_parameters");
            set(cfg, "rope_theta", json!(10000));
            set(cfg, "rope_scaling", Value::Null);
        }),
        ("kimi-linear", |cfg| {
            for key in [
                "layer_types",
                "mlp_layer_types",
                "linear_head_dim",
                "linear_num_heads",
            ] {
                cfg.remove(key);
            }
            set(
                cfg,
                "linear_attn_config",
                json!({
                    "full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 12, "num_heads": 5,
                    "short_conv_kernel_size": 4,
                }),
            );
            set(cfg, "first_k_dense_replace", json!(1));
            set(cfg, "head_dim", json!(72));
            set(cfg, "rope_theta", json!(10000.0));
            set(cfg, "mla_use_nope", json!(true));
            set(cfg, "moe_router_activation_func", json!("sigmoid"));
        }),
        ("qwen3-next", |cfg| {
            cfg.remove("layer_types");
            set(cfg, "full_attention_interval", json!(2));
        }),
        ("gemma4-dense", |cfg| {
            cfg.remove("per_layer_config");
            set(cfg, "global_head_dim", json!(32));
            set(cfg, "num_global_key_value_heads", json!(1));
        }),
        ("gemma3n", |cfg| {
            cfg.remove("rope_parameters");
            set(cfg, "intermediate_size", json!(104));
            set(cfg, "altup_lr_multiplier", json!(1.0));
            set(cfg, "query_pre_attn_scalar", json!(256));
            set(cfg, "rope_theta", json!(1e6));
            set(cfg, "rope_local_base_freq", json!(1e4));
        }),
    ];
    for (name, edit) in published {
        assert_eq!(&spec_of(name, edit), fixture(name).spec(), "{name}");
    }
}

#[test]
fn classes_fill_in_what_is_not_said() {
    let cases: [(&str, &[&str]); 8] = [
        (
            "deepseek-v2",
            &[
                "topk_method",
                "rms_norm_eps",
                "rope_parameters",
                "num_key_value_heads",
            ],
        ),
        (
            "deepseek-v3",
            &[
                "rope_interleave",
                "norm_topk_prob",
                "routed_scaling_factor",
                "head_dim",
            ],
        ),
        (
            "kimi-linear",
            &[
                "rms_norm_eps",
                "moe_renormalize",
                "num_shared_experts",
                "routed_scaling_factor",
            ],
        ),
        (
            "qwen3-next",
            &[
                "norm_topk_prob",
                "decoder_sparse_step",
                "rope_parameters",
                "mlp_only_layers",
            ],
        ),
        (
            "gemma3n",
            &[
                "final_logit_softcapping",
                "rope_parameters",
                "altup_active_idx",
                "hidden_activation",
            ],
        ),
        (
            "gemma4-dense",
            &[
                "rope_parameters",
                "use_double_wide_mlp",
                "num_kv_shared_layers",
                "enable_moe_block",
            ],
        ),
        (
            "gemma4-e",
            &[
                "attention_k_eq_v",
                "rms_norm_eps",
                "rope_parameters",
                "hidden_activation",
            ],
        ),
        (
            "gemma4-moe",
            &[
                "tie_word_embeddings",
                "num_kv_shared_layers",
                "rms_norm_eps",
                "attention_bias",
            ],
        ),
    ];
    for (name, keys) in cases {
        let spec = spec_of(name, |cfg| {
            for key in keys {
                assert!(cfg.remove(*key).is_some(), "{name}: {key}");
            }
        });
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
}

#[test]
fn what_no_axis_says_is_refused_by_key() {
    for name in NAMES {
        let message = refusal(name, |cfg| set(cfg, "attention_sauce", json!(1)));
        assert_eq!(message, "key not understood: attention_sauce", "{name}");
    }
    let cases: &[(&str, &str, Value)] = &[
        ("deepseek-v2", "norm_topk_prob", json!(true)),
        ("deepseek-v2", "topk_method", json!("noaux_tc")),
        ("deepseek-v2", "attention_bias", json!(true)),
        ("deepseek-v2", "mlp_bias", json!(true)),
        ("deepseek-v2", "num_key_value_heads", json!(2)),
        ("deepseek-v2", "qk_head_dim", json!(23)),
        ("deepseek-v3", "n_group", json!(3)),
        ("deepseek-v3", "n_group", json!(8)),
        ("deepseek-v3", "topk_group", json!(5)),
        ("deepseek-v3", "scoring_func", json!("softmax")),
        ("deepseek-v3", "moe_layer_freq", json!(2)),
        ("deepseek-v3", "hidden_act", json!("gelu")),
        ("deepseek-v3", "num_experts_per_tok", json!(9)),
        ("deepseek-v3", "qk_rope_head_dim", json!(7)),
        ("kimi-linear", "layer_types", json!(["linear_attention"])),
        (
            "kimi-linear",
            "mlp_layer_types",
            json!(["dense", "sparse", "sparse", "odd"]),
        ),
        ("kimi-linear", "mla_use_nope", json!(false)),
        ("kimi-linear", "num_experts", json!(0)),
        ("kimi-linear", "linear_num_heads", json!(0)),
        (
            "qwen3-next",
            "layer_types",
            json!(["linear_attention", "full_attention"]),
        ),
        ("qwen3-next", "attention_bias", json!(true)),
        ("qwen3-next", "linear_num_value_heads", json!(3)),
        ("qwen3-next", "hidden_act", json!("relu")),
        ("gemma3n", "intermediate_size", json!([104, 104])),
        (
            "gemma3n",
            "activation_sparsity_pattern",
            json!([0.9, 0.0, 0.0, 1.0]),
        ),
        ("gemma3n", "activation_sparsity_pattern", json!(0.9)),
        ("gemma3n", "num_kv_shared_layers", json!(3)),
        ("gemma3n", "num_kv_shared_layers", json!(5)),
        ("gemma3n", "altup_active_idx", json!(3)),
        ("gemma3n", "altup_correct_scale", json!(false)),
        ("gemma4-e", "num_kv_shared_layers", json!(4)),
        ("gemma4-e", "vocab_size_per_layer_input", json!(299)),
        ("gemma4-e", "use_bidirectional_attention", json!("all")),
        ("gemma4-dense", "layer_types", json!(["sliding_attention"])),
        ("gemma4-moe", "top_k_experts", json!(7)),
    ];
    for (name, key, value) in cases {
        let message = refusal(name, |cfg| set(cfg, key, value.clone()));
        let expected = match *key {
            "num_experts_per_tok" | "top_k_experts" => "num_experts_per_tok",
            key => key,
        };
        assert!(
            message.contains(expected),
            "{name} {key} {value}: {message}"
        );
    }
    for (name, key) in [
        ("deepseek-v2", "num_experts_per_tok"),
        ("kimi-linear", "model_max_length"),
        ("gemma3n", "intermediate_size"),
        ("gemma4-moe", "num_experts"),
    ] {
        let message = refusal(name, |cfg| drop(cfg.remove(key)));
        assert!(message.contains(key), "{name} {key}: {message}");
    }
    let lists: Edit = |cfg| {
        cfg.remove("layer_types");
        set(
            cfg,
            "linear_attn_config",
            json!({ "full_attn_layers": [2], "kda_layers": [1, 3] }),
        );
    };
    assert!(refusal("kimi-linear", lists).contains("linear_attn_config.kda_layers"));
    let mixed: Edit = |cfg| set(cfg, "per_layer_config", json!({ "2": { "head_dim": 32 } }));
    assert!(refusal("gemma4-dense", mixed).contains("per_layer_config"));
}

#[test]
fn layers_with_borrowed_keys_may_have_more_width() {
    let message = refusal("gemma4-e", |cfg| {
        set(cfg, "use_double_wide_mlp", json!(true))
    });
    assert!(
        message.contains("model.layers.2.mlp.gate_proj.weight"),
        "{message}"
    );
    assert!(message.contains("208"), "{message}");
}
