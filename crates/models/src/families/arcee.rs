//! Arcee AFM: Llama's shape with a plain FFN whose activation is squared.

use super::decoder::{
    Plain, Sizes, activation_or, flagged_bias, gguf_bias, gguf_finish, gguf_needed, head_share,
    rms, sizes_from_config, sizes_from_gguf, without_gate,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, ModelSpec, RopeSpec};

pub(super) const ARCEE: Family = Family {
    name: "arcee",
    hf_model_types: &["arcee"],
    gguf_arch: "arcee",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    mlp_bias: bool,
    activation: Activation,
    rope: RopeSpec,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_from_config(cfg, head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let found = Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        mlp_bias: cfg.bool_or("mlp_bias", false)?,
        activation: activation_or(cfg, "hidden_act", Activation::ReluSquared)?,
        rope: rope::from_config(cfg, class)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "arcee";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        mlp_bias: facts.has("blk.0.ffn_up.bias"),
        activation: Activation::ReluSquared,
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        tied: !facts.has_head(),
    };
    gguf_finish(facts, arch, rope::GGUF_KEYS)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "arcee",
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: found.bias,
        mlp_bias: found.mlp_bias,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    without_gate(&mut spec);
    spec
}
