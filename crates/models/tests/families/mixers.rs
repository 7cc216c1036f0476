//! Families with latent attention, recurrent mixers, parallel streams, and layers that share keys and values.

mod configs;
mod files;
mod tensors;

use larql_models::Checkpoint;
use larql_models::roles::{LayerTensor, TensorRole};
use larql_models::spec::{
    Activation, AltUpSpec, AttentionSpec, BlockShape, Ffn, FfnSpec, GatedDeltaSpec, KdaSpec,
    KvSource, LaurelSpec, Mixer, MlaSpec, ModelSpec, MoeSpec, NormKind, NormSpec, NormWeight,
    ParallelDense, PerLayerEmbedding, QkNorm, RopeLayout, RopeScaling, RopeSpec, RouterInput,
    RouterScore, RouterSelect, SharedExpert,
};
use serde_json::{Map, Value};

use super::{edited, fixture, refusal, spec_of};

/// Fixtures of the families that this module knows.
const NAMES: &[&str] = &[
    "qwen3-next",
    "deepseek-v2",
    "deepseek-v3",
    "gemma3n",
    "gemma4-dense",
    "gemma4-e",
    "gemma4-moe",
    "kimi-linear",
];

/// What a case does to a configuration.
type Edit = fn(&mut Map<String, Value>);

fn set(cfg: &mut Map<String, Value>, key: &str, value: Value) {
    cfg.insert(key.to_owned(), value);
}

fn rms(eps: f32, weight: NormWeight) -> NormSpec {
    NormSpec {
        kind: NormKind::Rms,
        eps,
        weight,
    }
}

fn plain(eps: f32) -> NormSpec {
    rms(eps, NormWeight::Plain)
}

fn ffn(d_mlp: u32, activation: Activation) -> FfnSpec {
    FfnSpec {
        d_mlp,
        activation,
        bias: false,
        gate_cutoff: None,
    }
}

fn attention(spec: &ModelSpec, layer: usize) -> &AttentionSpec {
    match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn moe(spec: &ModelSpec, layer: usize) -> &MoeSpec {
    match &spec.layers[layer].ffn {
        Ffn::Moe(moe) => moe,
        other => panic!("{other:?}"),
    }
}

fn mla(spec: &ModelSpec, layer: usize) -> &MlaSpec {
    match &spec.layers[layer].mixer {
        Mixer::Mla(mla) => mla,
        other => panic!("{other:?}"),
    }
}

/// The latent attention of the DeepSeek fixtures.
fn latent(q_rank: Option<u32>, rope: Option<RopeSpec>) -> MlaSpec {
    MlaSpec {
        n_heads: 4,
        q_rank,
        kv_rank: 32,
        d_nope: 16,
        d_rope: 8,
        d_value: 20,
        scale: 0.204_124_15,
        latent_norm: plain(1e-6),
        rope,
    }
}

fn rope(theta: f64, dims: u32, layout: RopeLayout, scaling: RopeScaling) -> RopeSpec {
    RopeSpec {
        theta,
        dims,
        layout,
        scaling,
    }
}

/// A router over experts of width 48 with one that always runs.
fn router(n_experts: u32, score: RouterScore, scaling: f32) -> MoeSpec {
    MoeSpec {
        n_experts,
        n_active: 2,
        expert: ffn(48, Activation::Silu),
        score,
        select: RouterSelect::TopK,
        renormalize: None,
        router_bias: false,
        selection_bias: false,
        scaling,
        shared: Some(SharedExpert {
            ffn: ffn(48, Activation::Silu),
            gated: false,
        }),
        parallel_dense: None,
        router_input: RouterInput::FfnInput,
        expert_scale: false,
    }
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
fn deepseek_has_latents_and_dense_layers_first() {
    let turned = rope(10_000.0, 8, RopeLayout::Interleaved, RopeScaling::Unscaled);
    let (v2, v3) = (fixture("deepseek-v2"), fixture("deepseek-v3"));
    for layer in 0..4 {
        assert_eq!(mla(v2.spec(), layer), &latent(None, Some(turned.clone())));
        assert_eq!(
            mla(v3.spec(), layer),
            &latent(Some(40), Some(turned.clone()))
        );
    }
    for spec in [v2.spec(), v3.spec()] {
        assert_eq!(spec.layers[0].ffn, Ffn::Gated(ffn(104, Activation::Silu)));
    }
    assert_eq!(moe(v2.spec(), 1), &router(8, RouterScore::Softmax, 1.3));
    let expected = MoeSpec {
        select: RouterSelect::Grouped {
            n_groups: 4,
            n_kept: 2,
            group_top: 2,
        },
        renormalize: Some(1e-20),
        selection_bias: true,
        ..router(8, RouterScore::Sigmoid, 2.5)
    };
    assert_eq!(moe(v3.spec(), 3), &expected);
}

#[test]
fn kimi_mixes_delta_attention_with_latents_without_positions() {
    let checkpoint = fixture("kimi-linear");
    let spec = checkpoint.spec();
    let kda = KdaSpec {
        n_heads: 5,
        d_head: 12,
        conv_width: 4,
        out_norm: plain(1e-5),
        qk_eps: 1e-6,
    };
    assert_eq!(spec.layers[0].mixer, Mixer::Kda(kda.clone()));
    assert_eq!(spec.layers[2].mixer, Mixer::Kda(kda));
    assert_eq!(mla(spec, 1), &latent(None, None));
    assert_eq!(mla(spec, 3), &latent(None, None));
    assert_eq!(spec.layers[0].ffn, Ffn::Gated(ffn(104, Activation::Silu)));
    let expected = MoeSpec {
        renormalize: Some(1e-20),
        selection_bias: true,
        ..router(6, RouterScore::Sigmoid, 2.446)
    };
    assert_eq!(moe(spec, 1), &expected);
    assert_eq!(spec.n_ctx, 256);
    // The stored logarithm acts as a negative rate.
    let rate = TensorRole::Layer(0, LayerTensor::DecayRate);
    let rates = checkpoint.tensor(rate).unwrap().to_f32();
    assert!(rates.len() == 5 && rates.iter().all(|rate| *rate < 0.0));
}

#[test]
fn qwen3_next_mixes_delta_nets_with_gated_attention() {
    let checkpoint = fixture("qwen3-next");
    let spec = checkpoint.spec();
    let delta = GatedDeltaSpec {
        n_key_heads: 2,
        n_value_heads: 4,
        d_key: 12,
        d_value: 20,
        conv_width: 4,
        out_norm: plain(1e-6),
        qk_eps: 1e-6,
    };
    assert_eq!(spec.layers[0].mixer, Mixer::GatedDelta(delta.clone()));
    assert_eq!(spec.layers[2].mixer, Mixer::GatedDelta(delta));
    let norm = rms(1e-6, NormWeight::PlusOne);
    let gated = attention(spec, 1);
    assert!(gated.gated);
    assert_eq!(gated.qk_norm, QkNorm::PerHead(norm));
    let turned = rope(10_000.0, 6, RopeLayout::Split, RopeScaling::Unscaled);
    assert_eq!(gated.rope, Some(turned));
    assert_eq!(spec.final_norm, norm);
    let expected = MoeSpec {
        renormalize: Some(0.0),
        shared: Some(SharedExpert {
            ffn: ffn(40, Activation::Silu),
            gated: true,
        }),
        ..router(6, RouterScore::Softmax, 1.0)
    };
    for layer in 0..4 {
        assert_eq!(moe(spec, layer), &expected);
        let block = BlockShape::PreNorm {
            mixer: norm,
            ffn: norm,
        };
        assert_eq!(spec.layers[layer].block, block);
    }
}

#[test]
fn gemma3n_has_streams_and_a_low_rank_branch() {
    let checkpoint = fixture("gemma3n");
    let spec = checkpoint.spec();
    let norm = plain(1e-6);
    let altup = AltUpSpec {
        n_streams: 3,
        active: 0,
        router_norm: norm,
        router_multiplier: 1.0 / 96.0,
        magnitude_floor: 1e-5,
        correct_scale: true,
    };
    assert_eq!(spec.altup, Some(altup));
    let per_layer = PerLayerEmbedding {
        width: 16,
        d_vocab: 300,
        activation: Activation::GeluTanh,
        token_multiplier: 4.0,
        context_multiplier: 96f64.powf(-0.5) as f32,
        input_multiplier: 0.707_106_77,
        projection_norm: norm,
        post_norm: norm,
    };
    assert_eq!(spec.embedding.per_layer, Some(per_layer));
    assert_eq!(spec.embedding.multiplier, 96f32.sqrt());
    let cutoffs = [Some(1.281_551_5), None, None, None];
    let kv = [
        KvSource::Own,
        KvSource::Own,
        KvSource::SharedFrom(0),
        KvSource::SharedFrom(1),
    ];
    for layer in 0..4 {
        let expected = LaurelSpec { rank: 8, norm };
        assert_eq!(spec.layers[layer].laurel, Some(expected));
        let gate_cutoff = cutoffs[layer];
        let expected = FfnSpec {
            gate_cutoff,
            ..ffn(104, Activation::GeluTanh)
        };
        assert_eq!(spec.layers[layer].ffn, Ffn::Gated(expected));
        let attention = attention(spec, layer);
        assert_eq!(attention.kv, kv[layer]);
        assert_eq!(attention.scale, 1.0);
        let own = matches!(attention.kv, KvSource::Own);
        let value_norm = own.then(|| rms(1e-6, NormWeight::Absent));
        assert_eq!(attention.v_norm, value_norm);
        let (window, theta) = match layer % 2 {
            0 => (Some(9), 1e4),
            _ => (None, 1e6),
        };
        assert_eq!(attention.window, window);
        let turned = rope(theta, 24, RopeLayout::Split, RopeScaling::Unscaled);
        assert_eq!(attention.rope, Some(turned));
    }
    assert_eq!(spec.head.softcap, Some(30.0));
}

#[test]
fn gemma4_has_heads_of_two_widths() {
    let dense = fixture("gemma4-dense");
    let spec = dense.spec();
    let turned = rope(
        1e6,
        32,
        RopeLayout::Split,
        RopeScaling::Proportional { live_pairs: 4 },
    );
    for (layer, kv_heads, d_head, kv) in
        [(1, 2, 24, KvSource::Own), (2, 1, 32, KvSource::KeyIsValue)]
    {
        let attention = attention(spec, layer);
        assert_eq!((attention.n_kv_heads, attention.d_head), (kv_heads, d_head));
        assert_eq!(attention.kv, kv);
        assert_eq!(attention.v_norm, Some(rms(1e-6, NormWeight::Absent)));
        assert_eq!(attention.scale, 1.0);
    }
    assert_eq!(attention(spec, 3).rope, Some(turned));
    assert_eq!(attention(spec, 0).window, Some(9));
    assert!(spec.layers.iter().all(|layer| layer.layer_scalar));
    assert_eq!(spec.embedding.per_layer, None);
    let shared = fixture("gemma4-e");
    let kv: Vec<KvSource> = (0..4)
        .map(|layer| attention(shared.spec(), layer).kv)
        .collect();
    let expected = [
        KvSource::Own,
        KvSource::Own,
        KvSource::SharedFrom(0),
        KvSource::SharedFrom(1),
    ];
    assert_eq!(kv, expected);
    let experts = fixture("gemma4-moe");
    let expected = MoeSpec {
        expert: ffn(48, Activation::GeluTanh),
        renormalize: Some(0.0),
        shared: None,
        parallel_dense: Some(ParallelDense {
            ffn: ffn(104, Activation::GeluTanh),
            dense_post: plain(1e-6),
            experts_pre: plain(1e-6),
            experts_post: plain(1e-6),
        }),
        router_input: RouterInput::Scaled {
            norm: plain(1e-6),
            multiplier: 0.133_630_62,
        },
        expert_scale: true,
        ..router(6, RouterScore::Softmax, 1.0)
    };
    assert_eq!(moe(experts.spec(), 2), &expected);
}

fn same_values(source: &Checkpoint, back: &Checkpoint, name: &str) {
    assert_eq!(back.roles(), source.roles(), "{name}");
    for role in source.roles() {
        let bits = |checkpoint: &Checkpoint| {
            let values = checkpoint.tensor(role).unwrap().to_f32();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(bits(back), bits(source), "{name}: {role}");
    }
}
