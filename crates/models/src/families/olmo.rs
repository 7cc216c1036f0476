//! OLMo 2 (norms on what the branches add) and OLMoE (experts); both normalize queries and keys over their full width.

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bias,
    gguf_finish, gguf_missing, gguf_needed, gguf_positive, gguf_window, gguf_windows, head_share,
    rms, sizes_from_config, sizes_from_gguf,
};
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{
    Activation, AttentionBias, BlockShape, Ffn, ModelSpec, MoeSpec, QkNorm, RopeSpec, RouterScore,
};

pub(super) const OLMO2: Family = Family {
    name: "olmo2",
    hf_model_types: &["olmo2"],
    gguf_arch: "olmo2",
    from_config: olmo2_config,
    from_gguf: Some(olmo2_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, POST_NORMS, names::ATTENTION, names::MLP],
        ignored: &[],
    },
    gguf_rules: &[],
};

pub(super) const OLMOE: Family = Family {
    name: "olmoe",
    hf_model_types: &["olmoe"],
    gguf_arch: "olmoe",
    from_config: olmoe_config,
    from_gguf: Some(olmoe_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::PRE_NORMS,
            names::ATTENTION,
            names::EXPERTS,
        ],
        ignored: &[],
    },
    gguf_rules: &[],
};

const POST_NORMS: &[Rule] = &[
    Rule::layer(&[T::MixerPostNorm], "post_attention_layernorm.weight"),
    Rule::layer(&[T::FfnPostNorm], "post_feedforward_layernorm.weight"),
];

/// What both architectures have.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    rope: RopeSpec,
    tied: bool,
}

fn config(cfg: &RawConfig<'_>) -> Result<Found, ModelError> {
    let sizes = sizes_from_config(cfg, head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    Ok(Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::from_config(cfg, class)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    })
}

fn gguf(facts: &GgufFacts<'_>, arch: &str) -> Result<Found, ModelError> {
    let sizes = sizes_from_gguf(facts, arch)?;
    Ok(Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        activation: Activation::Silu,
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        tied: !facts.has_head(),
    })
}

fn olmo2_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let found = config(cfg)?;
    cfg.finish()?;
    Ok(olmo2(found))
}

fn olmo2_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "olmo2";
    let found = gguf(facts, arch)?;
    let window = gguf_window(facts, arch)?;
    let windows = gguf_windows(facts, arch, found.sizes.n_layers, window, 4)?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(GGUF_WINDOW_KEYS);
    if window.is_some() {
        known.push("rope.freq_base_swa");
    }
    // Files of OLMo 3 have this architecture too: their windowed layers have a rope that is not stretched.
    let local_theta = rope::theta_from_gguf(facts, arch, "rope.freq_base_swa")?;
    let local_theta = local_theta.unwrap_or(found.rope.theta);
    let local = rope::unscaled(found.sizes.d_head, local_theta);
    gguf_finish(facts, arch, &known)?;
    let mut spec = olmo2(found);
    for (i, attention) in attentions(&mut spec) {
        attention.window = windows[i];
        if windows[i].is_some() {
            attention.rope = Some(local.clone());
        }
    }
    Ok(spec)
}

fn olmo2(found: Found) -> ModelSpec {
    let norm = rms(found.eps);
    let mut spec = decoder(found, "olmo2");
    spec.layers.iter_mut().for_each(|layer| {
        layer.block = BlockShape::PostNorm {
            mixer_post: norm,
            ffn_post: norm,
        };
    });
    spec
}

fn olmoe_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let found = config(cfg)?;
    let clip = cfg.opt_positive("clip_qkv")?.map(|clip| clip as f32);
    let experts = MoeSizes::from_config(cfg, 64, 8, found.sizes.d_mlp)?;
    let renormalize = cfg.bool_or("norm_topk_prob", false)?.then_some(0.0);
    cfg.finish()?;
    Ok(olmoe(found, experts, renormalize, clip))
}

fn olmoe_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "olmoe";
    let found = gguf(facts, arch)?;
    let clip = gguf_positive(facts, arch, "attention.clamp_kqv")?;
    let experts = MoeSizes::ffns_from_gguf(facts, arch, found.sizes.d_mlp)?
        .ok_or_else(|| gguf_missing(facts, arch, "expert_count"))?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(moe::GGUF_KEYS);
    known.extend(["attention.clamp_kqv", moe::GGUF_RENORMALIZE]);
    gguf_finish(facts, arch, &known)?;
    let renormalize = moe::gguf_renormalize(facts, arch, false)?;
    Ok(olmoe(found, experts, renormalize, clip))
}

fn olmoe(
    found: Found,
    experts: MoeSizes,
    renormalize: Option<f32>,
    clip: Option<f32>,
) -> ModelSpec {
    let router = MoeSpec {
        renormalize,
        ..experts.router(RouterScore::Softmax, found.activation)
    };
    let mut spec = decoder(found, "olmoe");
    attentions(&mut spec).for_each(|(_, attention)| attention.clip_qkv = clip);
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.ffn = Ffn::Moe(router.clone()));
    spec
}

fn decoder(found: Found, family: &'static str) -> ModelSpec {
    let norm = rms(found.eps);
    let mut spec = Plain {
        family,
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.qk_norm = QkNorm::FullWidth(norm));
    spec
}
