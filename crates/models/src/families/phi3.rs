//! Phi 3, 3.5 and 4: fused projections, and two lists of RoPE divisors in the models with a long context.

use super::decoder::{
    Plain, Sizes, activation_or, attentions, gguf_finish, gguf_needed, gguf_window, head_share,
    rms, sizes_from_config, sizes_from_gguf,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{Activation, AttentionBias, ModelSpec, RopeSpec};

pub(super) const PHI3: Family = Family {
    name: "phi3",
    hf_model_types: &["phi3"],
    gguf_arch: "phi3",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::PRE_NORMS,
            FUSED,
            names::ATTENTION,
            names::MLP,
        ],
        ignored: &[],
    },
    gguf_rules: &[
        Rule::layer(&[T::Q, T::K, T::V], "attn_qkv.weight"),
        Rule::layer(&[T::Gate, T::Up], "ffn_up.weight"),
    ],
};

const FUSED: &[Rule] = &[
    Rule::layer(&[T::Q, T::K, T::V], "self_attn.qkv_proj.weight"),
    Rule::layer(&[T::Gate, T::Up], "mlp.gate_up_proj.weight"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    activation: Activation,
    rope: RopeSpec,
    window: Option<u32>,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Published files state these beside what the class reads.
    cfg.must_be_off("attention_bias")?;
    cfg.must_be_off("mlp_bias")?;
    cfg.must_be_off("lm_head_bias")?;
    for key in ["full_attn_mod", "interpolate_factor"] {
        cfg.must_be(key, &1.into())?;
    }
    let sizes = sizes_from_config(cfg, head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let found = Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::long_from_config(cfg, class, 1.0, 4096)?,
        window: cfg.opt_window("sliding_window", None)?,
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "phi3";
    let sizes = sizes_from_gguf(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        activation: Activation::Silu,
        rope: rope::partial_from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        window: gguf_window(facts, arch)?,
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.push("attention.sliding_window");
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "phi3",
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: AttentionBias::Absent,
        mlp_bias: false,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.window = found.window);
    spec
}
