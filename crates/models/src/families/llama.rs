//! Llama 2 and 3, and Mistral: pre-norm RMS, gated SiLU, grouped K/V heads.

use super::decoder::{
    Decoder, LayerFacts, Norms, Sizes, activation, gguf_finish, gguf_missing, gguf_positive,
    gguf_window, sizes_from_config, sizes_from_gguf,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, ModelSpec, NormWeight};

pub(super) const LLAMA: Family = Family {
    name: "llama",
    hf_model_types: &["llama"],
    gguf_arch: "llama",
    from_config: llama_config,
    from_gguf: Some(llama_gguf),
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf_layer_names: names::PRE_NORM,
};

pub(super) const MISTRAL: Family = Family {
    name: "mistral",
    hf_model_types: &["mistral"],
    gguf_arch: "llama",
    from_config: mistral_config,
    from_gguf: None,
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf_layer_names: names::PRE_NORM,
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
    from_config(cfg, "llama", bias, mlp_bias, None)
}

fn mistral_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let window = cfg.opt_window("sliding_window")?;
    from_config(cfg, "mistral", AttentionBias::Absent, false, window)
}

fn from_config(
    cfg: &RawConfig<'_>,
    family: &'static str,
    attention_bias: AttentionBias,
    mlp_bias: bool,
    window: Option<u32>,
) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_from_config(cfg, |d_model, n_heads| d_model / n_heads)?;
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
    let layers = (0..sizes.n_layers)
        .map(|_| LayerFacts {
            window,
            rope: rope.clone(),
        })
        .collect();
    Ok(decoder(
        family,
        sizes,
        eps,
        attention_bias,
        mlp_bias,
        act,
        tied,
        layers,
    ))
}

fn llama_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "llama";
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_positive(facts, arch, "attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.layer_norm_rms_epsilon"))?;
    let window = gguf_window(facts, arch)?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.push("attention.sliding_window");
    gguf_finish(facts, arch, &known)?;
    let layers = (0..sizes.n_layers)
        .map(|_| LayerFacts {
            window,
            rope: rope.clone(),
        })
        .collect();
    let bias = AttentionBias::Absent;
    Ok(decoder(
        "llama",
        sizes,
        eps,
        bias,
        false,
        Activation::Silu,
        !facts.has_head,
        layers,
    ))
}

#[expect(
    clippy::too_many_arguments,
    reason = "the facts that differ between the readers, each named at the call"
)]
fn decoder(
    family: &'static str,
    sizes: Sizes,
    norm_eps: f32,
    attention_bias: AttentionBias,
    mlp_bias: bool,
    activation: Activation,
    tied: bool,
    layers: Vec<LayerFacts>,
) -> ModelSpec {
    Decoder {
        family,
        sizes,
        norms: Norms::Pre,
        norm_eps,
        norm_weight: NormWeight::Plain,
        embedding_multiplier: 1.0,
        attention_bias,
        mlp_bias,
        qk_norm: false,
        scale: (f64::from(sizes.d_head)).powf(-0.5) as f32,
        attention_softcap: None,
        final_softcap: None,
        activation,
        tied,
        layers,
    }
    .into_spec()
}
