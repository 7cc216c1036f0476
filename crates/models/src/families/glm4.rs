//! GLM 4 (0414): norms on both sides of each branch, neighbours in the first half of a head turn, gate and up are fused.

use super::decoder::{
    Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bias, gguf_finish, gguf_needed,
    rms, sizes_from_gguf, sizes_with_kv,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{Activation, AttentionBias, BlockShape, ModelSpec, RopeLayout, RopeSpec};

pub(super) const GLM4: Family = Family {
    name: "glm4",
    hf_model_types: &["glm4"],
    gguf_arch: "glm4",
    from_config,
    from_gguf: Some(from_gguf),
    // Pairs are neighbours in Hugging Face checkpoints too.
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, RULES, names::ATTENTION, names::MLP],
        ignored: &[],
    },
    gguf_rules: &[Rule::layer(&[T::Gate, T::Up], "ffn_up.weight")],
};

const RULES: &[Rule] = &[
    Rule::layer(&[T::MixerNorm], "input_layernorm.weight"),
    Rule::layer(&[T::MixerPostNorm], "post_self_attn_layernorm.weight"),
    Rule::layer(&[T::FfnNorm], "post_attention_layernorm.weight"),
    Rule::layer(&[T::FfnPostNorm], "post_mlp_layernorm.weight"),
    Rule::layer(&[T::Gate, T::Up], "mlp.gate_up_proj.weight"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    rope: RopeSpec,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_with_kv(cfg, Some(2), |_, _| 128)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let found = Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1.5625e-7) as f32,
        bias: flagged_bias(cfg, "attention_bias", true, AttentionBias::Qkv)?,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::partial_from_config(cfg, class, 0.5)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "glm4";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        activation: Activation::Silu,
        rope: rope::partial_from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        tied: !facts.has_head(),
    };
    gguf_finish(facts, arch, rope::GGUF_KEYS)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let norm = rms(found.eps);
    let mut spec = Plain {
        family: "glm4",
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    let rope = RopeSpec {
        layout: RopeLayout::Interleaved,
        ..found.rope
    };
    attentions(&mut spec).for_each(|(_, attention)| attention.rope = Some(rope.clone()));
    spec.layers.iter_mut().for_each(|layer| {
        layer.block = BlockShape::Sandwich {
            mixer: norm,
            mixer_post: norm,
            ffn: norm,
            ffn_post: norm,
        };
    });
    spec
}
