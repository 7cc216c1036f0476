//! Phi 1, 1.5 and 2: one layer norm feeds attention and a plain FFN, part of a head turns, and everything has a bias.

use super::decoder::{
    Plain, Sizes, activation_or, attentions, gguf_finish, gguf_needed, head_share, mean_norm,
    sizes_from_config, sizes_from_gguf, without_gate,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{LayerTensor as T, TensorRole};
use crate::spec::{Activation, AttentionBias, BlockShape, ModelSpec, QkNorm, RopeSpec};

pub(super) const PHI: Family = Family {
    name: "phi",
    hf_model_types: &["phi"],
    gguf_arch: "phi2",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[RULES, names::MODEL, names::PRE_NORMS, names::ATTENTION],
        ignored: &[],
    },
    gguf_rules: GGUF_RULES,
};

const RULES: &[Rule] = &[
    Rule::model(TensorRole::FinalNorm, "final_layernorm.weight"),
    Rule::model(TensorRole::FinalNormBias, "final_layernorm.bias"),
    Rule::layer(&[T::O], "self_attn.dense.weight"),
    Rule::layer(&[T::OBias], "self_attn.dense.bias"),
    Rule::layer(&[T::QNorm], "self_attn.q_layernorm.weight"),
    Rule::layer(&[T::QNormBias], "self_attn.q_layernorm.bias"),
    Rule::layer(&[T::KNorm], "self_attn.k_layernorm.weight"),
    Rule::layer(&[T::KNormBias], "self_attn.k_layernorm.bias"),
    Rule::layer(&[T::Up], "mlp.fc1.weight"),
    Rule::layer(&[T::UpBias], "mlp.fc1.bias"),
    Rule::layer(&[T::Down], "mlp.fc2.weight"),
    Rule::layer(&[T::DownBias], "mlp.fc2.bias"),
];

/// Separate projections, or the fused ones of older files.
const GGUF_RULES: &[Rule] = &[
    Rule::layer(&[T::Q], "attn_q.weight"),
    Rule::layer(&[T::QBias], "attn_q.bias"),
    Rule::layer(&[T::Q, T::K, T::V], "attn_qkv.weight"),
    Rule::layer(&[T::QBias, T::KBias, T::VBias], "attn_qkv.bias"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    activation: Activation,
    rope: RopeSpec,
    qk_norm: bool,
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
        eps: cfg.opt_positive("layer_norm_eps")?.unwrap_or(1e-5) as f32,
        activation: activation_or(cfg, "hidden_act", Activation::GeluTanh)?,
        rope: rope::partial_from_config(cfg, class, 0.5)?,
        qk_norm: cfg.bool_or("qk_layernorm", false)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "phi2";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_epsilon")?,
        activation: Activation::GeluTanh,
        rope: rope::partial_from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        qk_norm: facts.has("blk.0.attn_q_norm.weight"),
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.push("attention.layer_norm_epsilon");
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let norm = mean_norm(found.eps);
    let mut spec = Plain {
        family: "phi",
        sizes: found.sizes,
        norm,
        attention_bias: AttentionBias::Qkvo,
        mlp_bias: true,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    spec.head.bias = true;
    if found.qk_norm {
        attentions(&mut spec).for_each(|(_, attention)| attention.qk_norm = QkNorm::PerHead(norm));
    }
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.block = BlockShape::Parallel { norm });
    without_gate(&mut spec);
    spec
}
