//! Keys of configurations that change the shape of a layer: windows, experts, ropes and scales.

use larql_models::spec::{
    AttentionSpec, Ffn, Mixer, ModelSpec, QkNorm, RopeScaling, RopeSpec, RouterScore,
};
use serde_json::{Map, Value, json};

use super::{fixture, refusal, spec_of};

/// What a case does to a configuration.
type Edit = fn(&mut Map<String, Value>);

fn attention(spec: &ModelSpec, layer: usize) -> &AttentionSpec {
    match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn rope(spec: &ModelSpec, layer: usize) -> &RopeSpec {
    attention(spec, layer).rope.as_ref().unwrap()
}

fn windows(spec: &ModelSpec) -> Vec<Option<u32>> {
    let layers = 0..spec.layers.len();
    layers.map(|i| attention(spec, i).window).collect()
}

#[test]
fn windows_follow_their_switches() {
    let qwen2 = |edit: Edit| windows(&spec_of("qwen2-moe", edit));
    assert_eq!(qwen2(|cfg| cfg["sliding_window"] = json!(9)), [None; 4]);
    let switched = qwen2(|cfg| {
        cfg["use_sliding_window"] = json!(true);
        cfg["sliding_window"] = json!(9);
        cfg["max_window_layers"] = json!(3);
        cfg.remove("layer_types");
    });
    assert_eq!(switched, [Some(9), None, Some(9), None]);
    let qwen3 = windows(&spec_of("qwen3-moe", |cfg| {
        cfg["use_sliding_window"] = json!(true);
        cfg["sliding_window"] = json!(9);
    }));
    assert_eq!(qwen3, [Some(9); 4]);
    let cohere2 = windows(&spec_of("cohere2", |cfg| {
        cfg.remove("layer_types");
        cfg.insert("sliding_window_pattern".to_owned(), json!(2));
    }));
    assert_eq!(cohere2, [Some(9), None, Some(9), None]);
    let smollm3 = spec_of("smollm3", |cfg| {
        cfg.remove("layer_types");
        cfg["use_sliding_window"] = json!(true);
        cfg["sliding_window"] = json!(9);
        cfg["no_rope_layers"] = json!([1, 0, 1, 0]);
    });
    assert_eq!(windows(&smollm3), [None, Some(9), None, Some(9)]);
    assert!(attention(&smollm3, 1).rope.is_none() && attention(&smollm3, 2).rope.is_some());
}

#[test]
fn experts_follow_their_switches() {
    let dense = |spec: &ModelSpec| -> Vec<bool> {
        let layers = spec.layers.iter();
        layers
            .map(|layer| matches!(layer.ffn, Ffn::Gated(_)))
            .collect()
    };
    // Refused by the tensors, which have experts in other layers; the message names the first that is missing.
    let message = refusal("qwen2-moe", |cfg| cfg["decoder_sparse_step"] = json!(2));
    assert!(
        message.contains("model.layers.0.mlp.gate_proj.weight"),
        "{message}"
    );
    assert_eq!(
        dense(fixture("qwen3-moe").spec()),
        [false, true, false, false]
    );
    let spec = spec_of("olmoe", |cfg| cfg["norm_topk_prob"] = json!(true));
    let Ffn::Moe(moe) = &spec.layers[2].ffn else {
        panic!("{:?}", spec.layers[2].ffn)
    };
    assert_eq!(
        (moe.renormalize, moe.score),
        (Some(0.0), RouterScore::Softmax)
    );
    let clipped = spec_of("olmoe", |cfg| cfg["clip_qkv"] = json!(0.7));
    assert_eq!(attention(&clipped, 3).clip_qkv, Some(0.7));
}

#[test]
fn long_rope_takes_its_original_context_from_beside_it() {
    let short: Vec<f64> = (0..12).map(|i| 1.0 + 0.125 * f64::from(i)).collect();
    let long: Vec<f64> = (0..12).map(|i| 1.0 + 0.5 * f64::from(i)).collect();
    let params = json!({
        "type": "su", "short_factor": short, "long_factor": long, "original_max_position_embeddings": 99,
    });
    let spec = spec_of("phi3", |cfg| {
        cfg.remove("rope_parameters");
        cfg.insert("rope_scaling".to_owned(), params);
        cfg["original_max_position_embeddings"] = json!(64);
    });
    let expected = RopeScaling::LongRope {
        short,
        long,
        original_context: 64,
        attention_factor: (1.0 + 4f64.ln() / 64f64.ln()).sqrt(),
    };
    assert_eq!(rope(&spec, 3).scaling, expected);
    let partial = spec_of("phi3", |cfg| {
        cfg.remove("rope_parameters");
        cfg["partial_rotary_factor"] = json!(0.75);
    });
    assert_eq!(rope(&partial, 0).dims, 18);
}

#[test]
fn rare_switches_of_scores_and_norms() {
    let by_layer = spec_of("gpt2", |cfg| {
        cfg["scale_attn_by_inverse_layer_idx"] = json!(true);
        cfg["scale_attn_weights"] = json!(false);
    });
    let scales: Vec<f32> = (0..4).map(|i| attention(&by_layer, i).scale).collect();
    assert_eq!(scales, [1.0, 0.5, 1.0 / 3.0, 0.25]);
    let message = refusal("phi", |cfg| cfg["qk_layernorm"] = json!(true));
    assert!(
        message.contains("model.layers.0.self_attn.q_layernorm.weight"),
        "{message}"
    );
    assert!(
        message.contains("model.layers.0.self_attn.k_layernorm.bias"),
        "{message}"
    );
    assert_eq!(attention(fixture("phi").spec(), 0).qk_norm, QkNorm::Absent);
    let default = spec_of("gpt-oss", |cfg| drop(cfg.remove("rope_parameters")));
    let RopeScaling::Yarn {
        original_context,
        truncate,
        ..
    } = rope(&default, 1).scaling
    else {
        panic!("{:?}", rope(&default, 1).scaling)
    };
    assert_eq!((original_context, truncate), (4096, false));
}
