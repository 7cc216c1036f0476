//! The whole spec of each fixture, written down by hand from its configuration and the class's forward pass.

use larql_models::spec::ModelSpec;
use serde_json::{Value, json};

use super::fixture;

/// Values at paths, with `.` between the steps.
type Set<'a> = &'a [(&'a str, Value)];

/// `24^-0.5`.
const SCALE_24: f64 = 0.204_124_145_231_931_54;

/// A norm.
fn norm(kind: &str, eps: f64) -> Value {
    json!({ "kind": kind, "eps": eps, "weight": "plain" })
}

fn rope(theta: f64, dims: u32, layout: &str, scaling: Value) -> Value {
    json!({ "theta": theta, "dims": dims, "layout": layout, "scaling": scaling })
}

fn ffn(kind: &str, d_mlp: u32, activation: &str, bias: bool) -> Value {
    let activation = json!({ "kind": activation });
    json!({ "kind": kind, "d_mlp": d_mlp, "activation": activation, "bias": bias, "gate_cutoff": null })
}

/// An FFN without the word that says which of the three it is.
fn inner(d_mlp: u32) -> Value {
    let mut ffn = ffn("", d_mlp, "silu", false);
    ffn.as_object_mut().unwrap().remove("kind");
    ffn
}

fn moe(n_experts: u32, n_active: u32, d_expert: u32, score: &str, renormalize: Value) -> Value {
    json!({
        "kind": "moe", "n_experts": n_experts, "n_active": n_active, "expert": inner(d_expert), "score": score,
        "select": { "kind": "top_k" }, "renormalize": renormalize, "router_bias": false, "selection_bias": false,
        "scaling": 1.0, "shared": null, "parallel_dense": null, "router_input": { "kind": "ffn_input" },
        "expert_scale": false,
    })
}

/// A pre-norm layer as Llama has it.
fn layer(norm: &Value, d_head: u32, theta: f64) -> Value {
    json!({
        "block": { "kind": "pre_norm", "mixer": norm, "ffn": norm },
        "mixer": {
            "kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": d_head,
            "scale": f64::from(d_head).powf(-0.5), "bias": "absent", "qk_norm": { "kind": "absent" }, "v_norm": null,
            "rope": rope(theta, d_head, "split", json!({ "kind": "unscaled" })), "window": null, "softcap": null,
            "sinks": false, "clip_qkv": null, "kv": { "kind": "own" }, "gated": false,
        },
        "ffn": ffn("gated", 104, "silu", false),
        "residual_multiplier": 1.0, "layer_scalar": false, "laurel": null,
    })
}

/// A model of four such layers.
fn model(family: &str, d_model: u32, norm: &Value, d_head: u32, theta: f64) -> Value {
    json!({
        "family": family, "d_model": d_model, "d_vocab": 300, "n_ctx": 256,
        "embedding": { "multiplier": 1.0, "learned_positions": null, "per_layer": null },
        "layers": vec![layer(norm, d_head, theta); 4], "final_norm": norm,
        "head": { "tied": false, "bias": false, "scale": 1.0, "softcap": null }, "altup": null,
    })
}

fn put(target: &mut Value, path: &str, value: &Value) {
    let mut at = target;
    for step in path.split('.') {
        at = match step.parse::<usize>() {
            Ok(i) => &mut at[i],
            Err(_) => {
                assert!(at.get(step).is_some(), "{path} names nothing");
                &mut at[step]
            }
        };
    }
    *at = value.clone();
}

/// Compares a fixture's spec with a model in which some values of all layers, and then some others, are set.
fn check(name: &str, mut expected: Value, layers: Set<'_>, others: Set<'_>) {
    for layer in expected["layers"].as_array_mut().unwrap() {
        layers
            .iter()
            .for_each(|(path, value)| put(layer, path, value));
    }
    others
        .iter()
        .for_each(|(path, value)| put(&mut expected, path, value));
    let expected: ModelSpec = serde_json::from_value(expected).unwrap();
    let checkpoint = fixture(name);
    assert_eq!(checkpoint.spec(), &expected, "{name}");
}

#[test]
fn experts_of_mixtral_and_qwen() {
    let (fine, coarse) = (norm("rms", 1e-6), norm("rms", 1e-5));
    let experts = moe(6, 2, 104, "softmax", json!(0.0));
    check(
        "mixtral",
        model("mixtral", 56, &coarse, 24, 1e6),
        &[("ffn", experts)],
        &[],
    );
    let mut experts = moe(6, 2, 48, "softmax", Value::Null);
    experts["shared"] = json!({ "ffn": inner(64), "gated": true });
    check(
        "qwen2-moe",
        model("qwen2-moe", 96, &fine, 24, 1e6),
        &[("ffn", experts), ("mixer.bias", json!("qkv"))],
        &[],
    );
    let qk_norm = json!({ "kind": "per_head", "norm": fine });
    let dense = ffn("gated", 104, "silu", false);
    check(
        "qwen3-moe",
        model("qwen3-moe", 56, &fine, 24, 1e6),
        &[
            ("ffn", moe(8, 3, 48, "softmax", json!(0.0))),
            ("mixer.qk_norm", qk_norm),
        ],
        &[("layers.1.ffn", dense)],
    );
}

#[test]
fn full_width_norms_of_olmo() {
    let norm = norm("rms", 1e-5);
    let qk_norm = json!({ "kind": "full_width", "norm": norm });
    let block = json!({ "kind": "post_norm", "mixer_post": norm, "ffn_post": norm });
    check(
        "olmo2",
        model("olmo2", 96, &norm, 24, 500_000.0),
        &[("mixer.qk_norm", qk_norm.clone()), ("block", block)],
        &[],
    );
    let experts = moe(8, 3, 48, "softmax", Value::Null);
    check(
        "olmoe",
        model("olmoe", 96, &norm, 24, 10_000.0),
        &[("mixer.qk_norm", qk_norm), ("ffn", experts)],
        &[],
    );
}

#[test]
fn phi_is_parallel_and_phi3_is_not() {
    let layer_norm = norm("layer_with_bias", 1e-5);
    let half = rope(10_000.0, 12, "split", json!({ "kind": "unscaled" }));
    check(
        "phi",
        model("phi", 96, &layer_norm, 24, 10_000.0),
        &[
            ("block", json!({ "kind": "parallel", "norm": layer_norm })),
            ("mixer.n_kv_heads", json!(4)),
            ("mixer.bias", json!("qkvo")),
            ("mixer.rope", half),
            ("ffn", ffn("plain", 104, "gelu_tanh", true)),
        ],
        &[("head.bias", json!(true))],
    );
    let rms = norm("rms", 1e-5);
    check("phi3", model("phi3", 96, &rms, 24, 10_000.0), &[], &[]);
}

#[test]
fn factors_of_granite() {
    let norm = norm("rms", 1e-6);
    let factors = [
        ("mixer.scale", json!(0.11)),
        ("residual_multiplier", json!(0.22)),
    ];
    let others = [
        ("embedding.multiplier", json!(6.0)),
        ("head.scale", json!(1.0 / 3.0)),
    ];
    check(
        "granite",
        model("granite", 96, &norm, 24, 10_000.0),
        &factors,
        &others,
    );
    let experts = moe(6, 2, 104, "softmax_of_chosen", Value::Null);
    let [scale, branches] = factors;
    check(
        "granitemoe",
        model("granitemoe", 96, &norm, 24, 10_000.0),
        &[scale, branches, ("ffn", experts)],
        &others,
    );
}

#[test]
fn layer_norms_with_biases_everywhere() {
    let norm = norm("layer_with_bias", 1e-5);
    let biases = ("mixer.bias", json!("qkvo"));
    check(
        "starcoder2",
        model("starcoder2", 96, &norm, 24, 10_000.0),
        &[
            biases.clone(),
            ("mixer.window", json!(9)),
            ("ffn", ffn("plain", 104, "gelu_tanh", true)),
        ],
        &[("head.tied", json!(true))],
    );
    check(
        "gpt2",
        model("gpt2", 96, &norm, 24, 0.0),
        &[
            biases,
            ("mixer.n_kv_heads", json!(4)),
            ("mixer.rope", Value::Null),
            ("ffn", ffn("plain", 384, "gelu_tanh", true)),
        ],
        &[
            ("n_ctx", json!(128)),
            ("embedding.learned_positions", json!(128)),
            ("head.tied", json!(true)),
        ],
    );
    let quarter = rope(10_000.0, 4, "split", json!({ "kind": "unscaled" }));
    check(
        "stablelm",
        model("stablelm", 72, &norm, 18, 10_000.0),
        &[("mixer.bias", json!("qkv")), ("mixer.rope", quarter)],
        &[],
    );
}

/// Sinks, a clamped gate, router and expert biases, and a ramp whose ends are not rounded.
fn gpt_oss(d_head: u32, n_experts: u32, d_expert: u32) -> [(&'static str, Value); 5] {
    let yarn = json!({
        "kind": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_context": 64,
        "attention_factor": 0.1 * 32f64.ln() + 1.0, "truncate": false,
    });
    let mut experts = moe(n_experts, 2, d_expert, "softmax_of_chosen", Value::Null);
    experts["router_bias"] = json!(true);
    experts["expert"]["bias"] = json!(true);
    experts["expert"]["activation"] =
        json!({ "kind": "clamped_glu", "alpha": 1.702, "limit": 7.0 });
    [
        ("mixer.bias", json!("qkvo")),
        ("mixer.rope", rope(150_000.0, d_head, "split", yarn)),
        ("mixer.window", json!(9)),
        ("mixer.sinks", json!(true)),
        ("ffn", experts),
    ]
}

#[test]
fn sinks_and_clamped_gates_of_gpt_oss() {
    let norm = norm("rms", 1e-5);
    check(
        "gpt-oss",
        model("gpt-oss", 56, &norm, 32, 0.0),
        &gpt_oss(32, 6, 104),
        &[
            ("layers.1.mixer.window", Value::Null),
            ("layers.3.mixer.window", Value::Null),
        ],
    );
    let mut three = model("gpt-oss", 64, &norm, 16, 0.0);
    three["layers"].as_array_mut().unwrap().pop();
    check(
        "gpt-oss-mxfp4",
        three,
        &gpt_oss(16, 5, 96),
        &[("layers.1.mixer.window", Value::Null)],
    );
}

#[test]
fn layers_without_positions() {
    let layer_norm = norm("layer", 1e-5);
    let turned = rope(50_000.0, 14, "interleaved", json!({ "kind": "unscaled" }));
    check(
        "cohere2",
        model("cohere2", 56, &layer_norm, 14, 0.0),
        &[
            ("block", json!({ "kind": "parallel", "norm": layer_norm })),
            ("mixer.rope", turned),
            ("mixer.window", json!(9)),
        ],
        &[
            ("layers.3.mixer.rope", Value::Null),
            ("layers.3.mixer.window", Value::Null),
            ("head.tied", json!(true)),
            ("head.scale", json!(0.25)),
        ],
    );
    let rms = norm("rms", 1e-6);
    check(
        "smollm3",
        model("smollm3", 96, &rms, 24, 1e6),
        &[],
        &[
            ("layers.3.mixer.rope", Value::Null),
            ("head.tied", json!(true)),
        ],
    );
}

#[test]
fn sandwich_of_glm_and_square_of_arcee() {
    let fine = norm("rms", 1.5625e-7);
    let block = json!({
        "kind": "sandwich", "mixer": fine, "mixer_post": fine, "ffn": fine, "ffn_post": fine,
    });
    let half = rope(10_000.0, 12, "interleaved", json!({ "kind": "unscaled" }));
    check(
        "glm4",
        model("glm4", 56, &fine, 24, 0.0),
        &[
            ("block", block),
            ("mixer.bias", json!("qkv")),
            ("mixer.rope", half),
        ],
        &[],
    );
    let coarse = norm("rms", 1e-5);
    check(
        "arcee",
        model("arcee", 56, &coarse, 24, 10_000.0),
        &[("ffn", ffn("plain", 104, "relu_squared", false))],
        &[],
    );
}

/// The scale that most of the above derive is this one.
#[test]
fn scores_are_scaled_by_the_width_of_a_head() {
    let spec = serde_json::to_value(fixture("mixtral").spec()).unwrap();
    assert_eq!(spec["layers"][2]["mixer"]["scale"], json!(SCALE_24 as f32));
}
