//! Qwen3-Next: three layers of a gated delta net to one of gated attention, each with experts beside one that always runs.

use serde_json::Value;

use super::decoder::{
    Plain, Sizes, attentions, gguf_bad, gguf_finish, gguf_u32, rms, sizes_from_gguf, sizes_with_kv,
};
use super::gguf::{gguf_flags, gguf_needed, gguf_size};
use super::layer_kinds::kinds;
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, Ignored, mla, names, qwen_moe};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{
    Activation, AttentionBias, Ffn, GatedDeltaSpec, LayerSpec, Mixer, ModelSpec, MoeSpec, NormSpec,
    NormWeight, QkNorm, RopeSpec, RouterScore,
};

/// One layer in so many is of attention where no key says otherwise.
const INTERVAL: u32 = 4;

/// Added to the sum of squares of queries and keys.
const QK_EPS: f32 = 1e-6;

pub(super) const QWEN3_NEXT: Family = Family {
    name: "qwen3-next",
    hf_model_types: &["qwen3_next"],
    gguf_arch: "qwen3next",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::PRE_NORMS,
            MIXERS,
            names::ATTENTION,
            names::MLP,
            names::EXPERTS,
            qwen_moe::SHARED,
        ],
        ignored: &[Ignored::Beginning(
            "mtp.",
            "predicts further tokens, which only speculation runs",
        )],
    },
    gguf_rules: GGUF,
};

const MIXERS: &[Rule] = &[
    Rule::layer(&[T::Q, T::OutGate], "self_attn.q_proj.weight")
        .grouped(heads)
        .only(is_attention),
    Rule::layer(
        &[T::Q, T::K, T::V, T::OutGate],
        "linear_attn.in_proj_qkvz.weight",
    )
    .grouped(heads)
    .only(is_delta),
    Rule::layer(&[T::Beta, T::Decay], "linear_attn.in_proj_ba.weight").grouped(heads),
    Rule::layer(&[T::ConvQ, T::ConvK, T::ConvV], "linear_attn.conv1d.weight").conv(),
    Rule::layer(&[T::DecayRate], "linear_attn.A_log"),
    Rule::layer(&[T::DecayBias], "linear_attn.dt_bias"),
    Rule::layer(&[T::OutNorm], "linear_attn.norm.weight"),
    Rule::layer(&[T::O], "linear_attn.out_proj.weight").only(is_delta),
];

const GGUF: &[Rule] = &[
    Rule::layer(&[T::FfnNorm], "post_attention_norm.weight"),
    Rule::layer(&[T::Q, T::OutGate], "attn_q.weight")
        .grouped(heads)
        .only(is_attention),
    Rule::layer(&[T::Q, T::K, T::V], "attn_qkv.weight").only(is_delta),
    Rule::layer(&[T::OutGate], "attn_gate.weight").only(is_delta),
    // Files of the first converter.
    Rule::layer(&[T::Q, T::K, T::V, T::OutGate], "ssm_in.weight")
        .grouped(heads)
        .only(is_delta),
    Rule::layer(&[T::Beta, T::Decay], "ssm_ba.weight").grouped(heads),
    Rule::layer(&[T::O], "ssm_out.weight").only(is_delta),
];

fn is_attention(layer: &LayerSpec) -> bool {
    matches!(layer.mixer, Mixer::Attention(_))
}

fn is_delta(layer: &LayerSpec) -> bool {
    matches!(layer.mixer, Mixer::GatedDelta(_))
}

/// Heads that a fused projection is cut into.
fn heads(layer: &LayerSpec) -> u32 {
    match &layer.mixer {
        Mixer::Attention(attention) => attention.n_heads,
        Mixer::GatedDelta(delta) => delta.n_key_heads,
        Mixer::Mla(_) | Mixer::Kda(_) => 1,
    }
}

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    tied: bool,
    rope: RopeSpec,
    delta: GatedDeltaSpec,
    router: MoeSpec,
    /// Whether each layer is a delta net.
    linear: Vec<bool>,
    /// Whether each layer has experts.
    sparse: Vec<bool>,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_with_kv(cfg, Some(2), |_, _| 256)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let rope = rope::partial_from_config(cfg, class, 0.25)?;
    mla::must_say(cfg, "hidden_act", "silu")?;
    cfg.must_be_off("attention_bias")?;
    cfg.must_be_off("use_sliding_window")?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let delta = delta(cfg, eps)?;
    let linear = linear_layers(cfg, sizes.n_layers)?;
    let sparse = qwen_moe::sparse_layers(cfg, sizes.n_layers)?;
    let d_expert = cfg.opt_u32("moe_intermediate_size")?.unwrap_or(512);
    let experts = MoeSizes::from_config(cfg, 512, 10, d_expert)?;
    let d_shared = match cfg.opt_u32("shared_expert_intermediate_size")? {
        Some(0) => {
            let key = "shared_expert_intermediate_size";
            return Err(cfg.bad(key, &Value::from(0), "a number above 0"));
        }
        stated => stated.unwrap_or(512),
    };
    let renormalize = cfg.bool_or("norm_topk_prob", true)?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    cfg.finish()?;
    Ok(decoder(Found {
        sizes,
        eps,
        tied,
        rope,
        delta,
        router: router(experts, renormalize, d_shared),
        linear,
        sparse,
    }))
}

fn delta(cfg: &RawConfig<'_>, eps: f32) -> Result<GatedDeltaSpec, ModelError> {
    let size = |key: &str, class_size: u32| match cfg.opt_u32(key)? {
        Some(0) => Err(cfg.bad(key, &Value::from(0), "a number above 0")),
        stated => Ok(stated.unwrap_or(class_size)),
    };
    let delta = GatedDeltaSpec {
        n_key_heads: size("linear_num_key_heads", 16)?,
        n_value_heads: size("linear_num_value_heads", 32)?,
        d_key: size("linear_key_head_dim", 128)?,
        d_value: size("linear_value_head_dim", 128)?,
        conv_width: size("linear_conv_kernel_dim", 4)?,
        out_norm: rms(eps),
        qk_eps: QK_EPS,
    };
    if !delta.n_value_heads.is_multiple_of(delta.n_key_heads) {
        return Err(cfg.bad(
            "linear_num_value_heads",
            &Value::from(delta.n_value_heads),
            &format!("a multiple of {}", delta.n_key_heads),
        ));
    }
    Ok(delta)
}

/// Layers that are delta nets: as `layer_types` says, else all but each `full_attention_interval`-th.
fn linear_layers(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<bool>, ModelError> {
    let interval = match cfg.opt_u32("full_attention_interval")? {
        Some(0) => {
            let key = "full_attention_interval";
            return Err(cfg.bad(key, &Value::from(0), "a number above 0"));
        }
        interval => interval.unwrap_or(INTERVAL),
    };
    match cfg.opt_strings("layer_types")? {
        Some(words) => kinds(
            cfg,
            "layer_types",
            &words,
            n_layers,
            ("linear_attention", "full_attention"),
        ),
        None => Ok((0..n_layers).map(|i| (i + 1) % interval != 0).collect()),
    }
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "qwen3next";
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::partial_from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    let n_value_heads = gguf_size(facts, arch, "ssm.time_step_rank")?;
    let inner = gguf_size(facts, arch, "ssm.inner_size")?;
    let delta = GatedDeltaSpec {
        n_key_heads: gguf_size(facts, arch, "ssm.group_count")?,
        n_value_heads,
        d_key: gguf_size(facts, arch, "ssm.state_size")?,
        d_value: inner / n_value_heads,
        conv_width: gguf_size(facts, arch, "ssm.conv_kernel")?,
        out_norm: rms(eps),
        qk_eps: QK_EPS,
    };
    if !inner.is_multiple_of(n_value_heads) || !n_value_heads.is_multiple_of(delta.n_key_heads) {
        let got = format!(
            "{inner} for {n_value_heads} heads in {} groups",
            delta.n_key_heads
        );
        let expected = "a multiple of the heads, and those of the groups";
        return Err(gguf_bad(facts, arch, "ssm.inner_size", &got, expected));
    }
    let linear = gguf_linear_layers(facts, arch, sizes.n_layers)?;
    let experts = MoeSizes::needed_from_gguf(facts, arch, |n| sizes.d_mlp / n)?;
    let d_shared = gguf_size(facts, arch, moe::GGUF_SHARED_WIDTH)?;
    let sparse = (0..sizes.n_layers)
        .map(|layer| moe::gguf_has_router(facts, layer))
        .collect();
    let renormalize = facts.metadata.bool("qwen3next.expert_weights_norm")?;
    let known = [
        rope::GGUF_KEYS,
        moe::GGUF_KEYS,
        &[
            moe::GGUF_RENORMALIZE,
            moe::GGUF_SHARED_WIDTH,
            "attention.recurrent_layers",
            "full_attention_interval",
            "ssm.conv_kernel",
            "ssm.group_count",
            "ssm.inner_size",
            "ssm.state_size",
            "ssm.time_step_rank",
        ],
    ];
    gguf_finish(facts, arch, &known.concat())?;
    Ok(decoder(Found {
        sizes,
        eps,
        tied: !facts.has_head(),
        rope,
        delta,
        // Which llama.cpp does for all files of the architecture.
        router: router(experts, renormalize.unwrap_or(true), d_shared),
        linear,
        sparse,
    }))
}

/// Layers that are delta nets: those that the file lists, or all but each so many-th. The converter states the usual period
/// beside any list.
fn gguf_linear_layers(
    facts: &GgufFacts<'_>,
    arch: &str,
    n_layers: u32,
) -> Result<Vec<bool>, ModelError> {
    let key = "full_attention_interval";
    let stated = match gguf_u32(facts, arch, key)? {
        Some(0) => return Err(gguf_bad(facts, arch, key, "0", "a number above 0")),
        stated => stated.unwrap_or(INTERVAL),
    };
    let periodic = (0..n_layers).map(|i| (i + 1) % stated != 0).collect();
    match gguf_flags(facts, arch, "attention.recurrent_layers", n_layers)? {
        None => Ok(periodic),
        Some(linear) if stated == INTERVAL || linear == periodic => Ok(linear),
        Some(_) => {
            let expected = "the period of attention.recurrent_layers";
            Err(gguf_bad(facts, arch, key, &stated.to_string(), expected))
        }
    }
}

fn router(experts: MoeSizes, renormalize: bool, d_shared: u32) -> MoeSpec {
    MoeSpec {
        renormalize: renormalize.then_some(0.0),
        shared: Some(moe::shared(d_shared, Activation::Silu, true)),
        ..experts.router(RouterScore::Softmax, Activation::Silu)
    }
}

fn decoder(found: Found) -> ModelSpec {
    let norm = NormSpec {
        weight: NormWeight::PlusOne,
        ..rms(found.eps)
    };
    let mut spec = Plain {
        family: "qwen3-next",
        sizes: found.sizes,
        norm,
        attention_bias: AttentionBias::Absent,
        mlp_bias: false,
        activation: Activation::Silu,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    for (_, attention) in attentions(&mut spec) {
        attention.qk_norm = QkNorm::PerHead(norm);
        attention.gated = true;
    }
    let kinds = found.linear.into_iter().zip(found.sparse);
    for (layer, (linear, sparse)) in spec.layers.iter_mut().zip(kinds) {
        if linear {
            layer.mixer = Mixer::GatedDelta(found.delta.clone());
        }
        if sparse {
            layer.ffn = Ffn::Moe(found.router.clone());
        }
    }
    spec
}
