//! StarCoder 2: layer norms, a plain FFN, grouped K/V heads, and biases everywhere.

use super::decoder::{
    Plain, Sizes, activation_or, attentions, gguf_bias, gguf_finish, gguf_needed, gguf_window,
    head_share, mean_norm, sizes_from_gguf, sizes_with_kv, without_gate,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{Activation, AttentionBias, ModelSpec, RopeSpec};

pub(super) const STARCODER2: Family = Family {
    name: "starcoder2",
    hf_model_types: &["starcoder2"],
    gguf_arch: "starcoder2",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, names::PRE_NORMS, names::ATTENTION, MLP],
        ignored: &[],
    },
    gguf_rules: &[],
};

const MLP: &[Rule] = &[
    Rule::layer(&[T::Up], "mlp.c_fc.weight"),
    Rule::layer(&[T::UpBias], "mlp.c_fc.bias"),
    Rule::layer(&[T::Down], "mlp.c_proj.weight"),
    Rule::layer(&[T::DownBias], "mlp.c_proj.bias"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    activation: Activation,
    attention_bias: AttentionBias,
    mlp_bias: bool,
    rope: RopeSpec,
    window: Option<u32>,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Published files carry keys of the code they were trained with; the class reads none of these.
    for key in [
        "activation_function",
        "attention_softmax_in_fp32",
        "layer_norm_epsilon",
        "scale_attention_softmax_in_fp32",
    ] {
        cfg.ignore(key);
    }
    cfg.must_be("mlp_type", &"default".into())?;
    cfg.must_be("norm_type", &"layer_norm".into())?;
    cfg.must_be("scale_attn_weights", &true.into())?;
    let sizes = sizes_with_kv(cfg, Some(2), head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let has_bias = cfg.bool_or("use_bias", true)?;
    let found = Found {
        sizes,
        eps: cfg.opt_positive("norm_epsilon")?.unwrap_or(1e-5) as f32,
        activation: activation_or(cfg, "hidden_act", Activation::GeluTanh)?,
        attention_bias: if has_bias {
            AttentionBias::Qkvo
        } else {
            AttentionBias::Absent
        },
        mlp_bias: has_bias,
        rope: rope::from_config(cfg, class)?,
        window: cfg.opt_window("sliding_window", None)?,
        tied: cfg.bool_or("tie_word_embeddings", true)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "starcoder2";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_epsilon")?,
        activation: Activation::GeluTanh,
        attention_bias: gguf_bias(facts),
        mlp_bias: facts.has("blk.0.ffn_up.bias"),
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        window: gguf_window(facts, arch)?,
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(["attention.layer_norm_epsilon", "attention.sliding_window"]);
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "starcoder2",
        sizes: found.sizes,
        norm: mean_norm(found.eps),
        attention_bias: found.attention_bias,
        mlp_bias: found.mlp_bias,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.window = found.window);
    without_gate(&mut spec);
    spec
}
