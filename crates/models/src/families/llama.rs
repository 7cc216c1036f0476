//! Llama 2 and 3, Mistral, and Mixtral's GGUF files: pre-norm RMS, gated SiLU, grouped K/V heads.

use super::decoder::{
    Plain, Sizes, activation, attentions, gguf_bias, gguf_finish, gguf_missing, gguf_positive,
    gguf_window, head_share, rms, sizes_from_gguf, sizes_with_kv,
};
use super::mixtral;
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, Ffn, ModelSpec, MoeSpec};

pub(super) const LLAMA: Family = Family {
    name: "llama",
    hf_model_types: &["llama"],
    gguf_arch: "llama",
    from_config: llama_config,
    from_gguf: Some(llama_gguf),
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

pub(super) const MISTRAL: Family = Family {
    name: "mistral",
    hf_model_types: &["mistral"],
    gguf_arch: "llama",
    from_config: mistral_config,
    from_gguf: None,
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

fn llama_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Only changes how transformers splits a matrix product over devices.
    cfg.ignore("pretraining_tp");
    let bias = if cfg.bool_or("attention_bias", false)? {
        AttentionBias::Qkvo
    } else {
        AttentionBias::Absent
    };
    let mlp_bias = cfg.bool_or("mlp_bias", false)?;
    let sizes = sizes_with_kv(cfg, None, head_share)?;
    from_config(cfg, "llama", sizes, (bias, mlp_bias), None)
}

fn mistral_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let window = cfg.opt_window("sliding_window", Some(4096))?;
    let sizes = sizes_with_kv(cfg, Some(8), head_share)?;
    let biases = (AttentionBias::Absent, false);
    from_config(cfg, "mistral", sizes, biases, window)
}

fn from_config(
    cfg: &RawConfig<'_>,
    family: &'static str,
    sizes: Sizes,
    (attention_bias, mlp_bias): (AttentionBias, bool),
    window: Option<u32>,
) -> Result<ModelSpec, ModelError> {
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let rope = rope::from_config(cfg, class)?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let act = activation(cfg, "hidden_act")?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    cfg.finish()?;
    let mut spec = Plain {
        family,
        sizes,
        norm: rms(eps),
        attention_bias,
        mlp_bias,
        activation: act,
        rope: Some(rope),
        tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.window = window);
    Ok(spec)
}

fn llama_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "llama";
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_positive(facts, arch, "attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.layer_norm_rms_epsilon"))?;
    let window = gguf_window(facts, arch)?;
    let experts = MoeSizes::ffns_from_gguf(facts, arch, sizes.d_mlp)?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(moe::GGUF_KEYS);
    known.push("attention.sliding_window");
    if experts.is_some() {
        known.push(moe::GGUF_RENORMALIZE);
    }
    gguf_finish(facts, arch, &known)?;
    let mut spec = Plain {
        family: "llama",
        sizes,
        norm: rms(eps),
        attention_bias: gguf_bias(facts),
        mlp_bias: false,
        activation: Activation::Silu,
        rope: Some(rope),
        tied: !facts.has_head(),
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.window = window);
    if let Some(experts) = experts {
        // The one family with experts under this architecture.
        "mixtral".clone_into(&mut spec.family);
        let router = MoeSpec {
            renormalize: moe::gguf_renormalize(facts, arch, true)?,
            ..mixtral::router(experts, Activation::Silu)
        };
        spec.layers
            .iter_mut()
            .for_each(|layer| layer.ffn = Ffn::Moe(router.clone()));
    }
    Ok(spec)
}
