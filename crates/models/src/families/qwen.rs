//! Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k instead).

use serde_json::Value;

use super::decoder::{
    Decoder, LayerFacts, Norms, Sizes, activation, gguf_finish, gguf_missing, gguf_positive,
    sizes_from_config, sizes_from_gguf,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, ModelSpec, NormWeight};

pub(super) const QWEN2: Family = Family {
    name: "qwen2",
    hf_model_types: &["qwen2"],
    gguf_arch: "qwen2",
    from_config: |cfg| from_config(cfg, Generation::Two),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Two)),
    gguf_rope_rows: GgufRopeRows::Split,
    hf_layer_names: names::PRE_NORM,
};

pub(super) const QWEN3: Family = Family {
    name: "qwen3",
    hf_model_types: &["qwen3"],
    gguf_arch: "qwen3",
    from_config: |cfg| from_config(cfg, Generation::Three),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Three)),
    gguf_rope_rows: GgufRopeRows::Split,
    hf_layer_names: names::PRE_NORM,
};

#[derive(Clone, Copy)]
enum Generation {
    Two,
    Three,
}

fn from_config(cfg: &RawConfig<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_from_config(cfg, |d_model, n_heads| match generation {
        Generation::Two => d_model / n_heads,
        Generation::Three => 128,
    })?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let rope = rope::from_config(cfg, class)?;
    let bias = match generation {
        Generation::Two => AttentionBias::Qkv,
        Generation::Three if cfg.bool_or("attention_bias", false)? => AttentionBias::Qkvo,
        Generation::Three => AttentionBias::Absent,
    };
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let act = activation(cfg, "hidden_act")?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    let windows = windows(cfg, sizes.n_layers)?;
    cfg.finish()?;
    let layers = windows
        .into_iter()
        .map(|window| LayerFacts {
            window,
            rope: rope.clone(),
        })
        .collect();
    Ok(decoder(generation, sizes, eps, bias, act, tied, layers))
}

/// `use_sliding_window` silences `sliding_window`; `layer_types` wins over `max_window_layers`.
fn windows(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<Option<u32>>, ModelError> {
    let switched_on = cfg.bool_or("use_sliding_window", false)?;
    let window = match switched_on {
        true => cfg.opt_window("sliding_window")?,
        false => {
            cfg.ignore("sliding_window");
            None
        }
    };
    let first_windowed = cfg.opt_u32("max_window_layers")?.unwrap_or(28);
    let Some(types) = cfg.opt_strings("layer_types")? else {
        return Ok((0..n_layers)
            .map(|i| window.filter(|_| i >= first_windowed))
            .collect());
    };
    if types.len() != n_layers as usize {
        return Err(cfg.bad(
            "layer_types",
            &Value::from(format!("{} entries", types.len())),
            &format!("{n_layers} entries"),
        ));
    }
    types
        .into_iter()
        .map(|kind| match kind {
            "full_attention" => Ok(None),
            "sliding_attention" => window
                .map(Some)
                .ok_or_else(|| cfg.missing("sliding_window")),
            other => Err(cfg.bad(
                "layer_types",
                &Value::from(other),
                "full_attention or sliding_attention",
            )),
        })
        .collect()
}

fn from_gguf(facts: &GgufFacts<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let (arch, bias) = match generation {
        Generation::Two => ("qwen2", AttentionBias::Qkv),
        Generation::Three => ("qwen3", AttentionBias::Absent),
    };
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_positive(facts, arch, "attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.layer_norm_rms_epsilon"))?;
    gguf_finish(facts, arch, rope::GGUF_KEYS)?;
    let layers = (0..sizes.n_layers)
        .map(|_| LayerFacts {
            window: None,
            rope: rope.clone(),
        })
        .collect();
    Ok(decoder(
        generation,
        sizes,
        eps,
        bias,
        Activation::Silu,
        !facts.has_head,
        layers,
    ))
}

fn decoder(
    generation: Generation,
    sizes: Sizes,
    norm_eps: f32,
    attention_bias: AttentionBias,
    activation: Activation,
    tied: bool,
    layers: Vec<LayerFacts>,
) -> ModelSpec {
    let (family, qk_norm) = match generation {
        Generation::Two => ("qwen2", false),
        Generation::Three => ("qwen3", true),
    };
    Decoder {
        family,
        sizes,
        norms: Norms::Pre,
        norm_eps,
        norm_weight: NormWeight::Plain,
        embedding_multiplier: 1.0,
        attention_bias,
        mlp_bias: false,
        qk_norm,
        scale: (f64::from(sizes.d_head)).powf(-0.5) as f32,
        attention_softcap: None,
        final_softcap: None,
        activation,
        tied,
        layers,
    }
    .into_spec()
}
