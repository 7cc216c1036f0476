//! Granite 3, dense and with experts: Llama's shape with stated factors on embeddings, scores, branches and logits.

use super::decoder::{
    Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bad, gguf_bias, gguf_finish,
    gguf_missing, gguf_needed, gguf_u32, head_share, rms, sizes_from_config, sizes_from_gguf,
};
use super::gguf::gguf_factor;
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T};
use crate::spec::{Activation, AttentionBias, Ffn, ModelSpec, MoeSpec, RopeSpec, RouterScore};

pub(super) const GRANITE: Family = Family {
    name: "granite",
    hf_model_types: &["granite"],
    gguf_arch: "granite",
    from_config: dense_config,
    from_gguf: Some(dense_gguf),
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

pub(super) const GRANITE_MOE: Family = Family {
    name: "granitemoe",
    hf_model_types: &["granitemoe"],
    gguf_arch: "granitemoe",
    from_config: moe_config,
    from_gguf: Some(moe_gguf),
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, names::PRE_NORMS, names::ATTENTION, EXPERTS],
        ignored: &[],
    },
    gguf_rules: &[],
};

const EXPERTS: &[Rule] = &[
    Rule::layer(&[T::Router], "block_sparse_moe.router.layer.weight"),
    Rule::experts(&[E::Gate, E::Up], "block_sparse_moe.input_linear.weight"),
    Rule::experts(&[E::Down], "block_sparse_moe.output_linear.weight"),
];

/// What both architectures have.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    mlp_bias: bool,
    activation: Activation,
    rope: RopeSpec,
    tied: bool,
    embedding: f32,
    scores: f32,
    branches: f32,
    logits: f32,
}

fn config(cfg: &RawConfig<'_>) -> Result<Found, ModelError> {
    let sizes = sizes_from_config(cfg, head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let factor =
        |key: &str| -> Result<f64, ModelError> { Ok(cfg.opt_positive(key)?.unwrap_or(1.0)) };
    Ok(Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        mlp_bias: false,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::from_config(cfg, class)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
        embedding: factor("embedding_multiplier")? as f32,
        scores: factor("attention_multiplier")? as f32,
        branches: factor("residual_multiplier")? as f32,
        logits: (1.0 / factor("logits_scaling")?) as f32,
    })
}

fn gguf(facts: &GgufFacts<'_>, arch: &str, known: &[&str]) -> Result<Found, ModelError> {
    let sizes = sizes_from_gguf(facts, arch)?;
    let factor = |key: &str| gguf_factor(facts, arch, key);
    // Whether positions turn anything at all.
    let key = "rope.scaling.finetuned";
    if facts.metadata.bool(&format!("{arch}.{key}"))? == Some(false) {
        return Err(gguf_bad(facts, arch, key, "false", "true or no key"));
    }
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        mlp_bias: facts.has("blk.0.ffn_up.bias"),
        activation: Activation::Silu,
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        tied: !facts.has_head(),
        embedding: factor("embedding_scale")?.unwrap_or(1.0),
        scores: factor("attention.scale")?
            .unwrap_or_else(|| f64::from(sizes.d_head).powf(-0.5) as f32),
        branches: factor("residual_scale")?.unwrap_or(1.0),
        logits: (1.0 / f64::from(gguf_needed(facts, arch, "logit_scale")?)) as f32,
    };
    let mut all = rope::GGUF_KEYS.to_vec();
    all.extend([
        "attention.scale",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
    ]);
    all.extend(known);
    gguf_finish(facts, arch, &all)?;
    Ok(found)
}

fn dense_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let found = Found {
        mlp_bias: cfg.bool_or("mlp_bias", false)?,
        ..config(cfg)?
    };
    cfg.finish()?;
    Ok(decoder(found, "granite"))
}

fn dense_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    Ok(decoder(gguf(facts, "granite", &[])?, "granite"))
}

fn moe_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let found = config(cfg)?;
    let experts = MoeSizes::from_config(cfg, 8, 2, found.sizes.d_mlp)?;
    cfg.finish()?;
    Ok(with_experts(found, experts, None))
}

fn moe_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "granitemoe";
    let known = [moe::GGUF_KEYS, &[moe::GGUF_SHARED_WIDTH]].concat();
    let found = gguf(facts, arch, &known)?;
    let experts = MoeSizes::ffns_from_gguf(facts, arch, found.sizes.d_mlp)?
        .ok_or_else(|| gguf_missing(facts, arch, "expert_count"))?;
    let d_shared = gguf_u32(facts, arch, moe::GGUF_SHARED_WIDTH)?;
    Ok(with_experts(found, experts, d_shared.filter(|d| *d > 0)))
}

fn with_experts(found: Found, experts: MoeSizes, d_shared: Option<u32>) -> ModelSpec {
    let activation = found.activation;
    let router = MoeSpec {
        shared: d_shared.map(|d_mlp| moe::shared(d_mlp, activation, false)),
        ..experts.router(RouterScore::SoftmaxOfChosen, activation)
    };
    let mut spec = decoder(found, "granitemoe");
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.ffn = Ffn::Moe(router.clone()));
    spec
}

fn decoder(found: Found, family: &'static str) -> ModelSpec {
    let mut spec = Plain {
        family,
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: found.bias,
        mlp_bias: found.mlp_bias,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    spec.embedding.multiplier = found.embedding;
    spec.head.scale = found.logits;
    attentions(&mut spec).for_each(|(_, attention)| attention.scale = found.scores);
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.residual_multiplier = found.branches);
    spec
}
