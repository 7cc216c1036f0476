//! StableLM 2: layer norms with a bias, a gated FFN, and a quarter of a head that turns.

use super::decoder::{
    Plain, Sizes, activation_or, flagged_bias, gguf_bias, gguf_finish, gguf_needed, head_share,
    mean_norm, sizes_from_gguf, sizes_with_kv,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, BlockShape, ModelSpec, RopeSpec};

pub(super) const STABLELM: Family = Family {
    name: "stablelm",
    hf_model_types: &["stablelm"],
    gguf_arch: "stablelm",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    rope: RopeSpec,
    is_parallel: bool,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Each head then has a norm with a weight of its own.
    cfg.must_be_off("qk_layernorm")?;
    let sizes = sizes_with_kv(cfg, Some(32), head_share)?;
    // The class derives the width of a head and reads no key.
    let derived = head_share(sizes.d_model, sizes.n_heads);
    cfg.must_be("head_dim", &derived.into())?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let found = Found {
        sizes,
        eps: cfg.opt_positive("layer_norm_eps")?.unwrap_or(1e-5) as f32,
        bias: flagged_bias(cfg, "use_qkv_bias", false, AttentionBias::Qkv)?,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::partial_from_config(cfg, class, 0.25)?,
        is_parallel: cfg.bool_or("use_parallel_residual", false)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "stablelm";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_epsilon")?,
        bias: gguf_bias(facts),
        activation: Activation::Silu,
        rope: rope::partial_from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        // The tensors decide, as in llama.cpp, and not the key.
        is_parallel: !facts.has("blk.0.ffn_norm.weight"),
        tied: !facts.has_head(),
    };
    facts
        .metadata
        .bool(&format!("{arch}.use_parallel_residual"))?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(["attention.layer_norm_epsilon", "use_parallel_residual"]);
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let norm = mean_norm(found.eps);
    let mut spec = Plain {
        family: "stablelm",
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    if found.is_parallel {
        spec.layers
            .iter_mut()
            .for_each(|layer| layer.block = BlockShape::Parallel { norm });
    }
    spec
}
