//! Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k instead).

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, activation, attentions, gguf_bias, gguf_finish, gguf_missing,
    gguf_positive, gguf_window, gguf_windows, layer_windows, rms, sizes_from_gguf, sizes_with_kv,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, ModelSpec, QkNorm, RopeSpec};

pub(super) const QWEN2: Family = Family {
    name: "qwen2",
    hf_model_types: &["qwen2"],
    gguf_arch: "qwen2",
    from_config: |cfg| from_config(cfg, Generation::Two),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Two)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

pub(super) const QWEN3: Family = Family {
    name: "qwen3",
    hf_model_types: &["qwen3"],
    gguf_arch: "qwen3",
    from_config: |cfg| from_config(cfg, Generation::Three),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Three)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

#[derive(Clone, Copy)]
enum Generation {
    Two,
    Three,
}

fn from_config(cfg: &RawConfig<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_with_kv(cfg, Some(32), |d_model, n_heads| match generation {
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
    let mut spec = decoder(generation, sizes, eps, bias, act, tied, rope);
    attentions(&mut spec).for_each(|(i, attention)| attention.window = windows[i]);
    Ok(spec)
}

/// `use_sliding_window` silences `sliding_window`; `layer_types` wins over `max_window_layers`.
fn windows(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<Option<u32>>, ModelError> {
    let switched_on = cfg.bool_or("use_sliding_window", false)?;
    let window = match switched_on {
        true => cfg.opt_window("sliding_window", Some(4096))?,
        false => {
            cfg.ignore("sliding_window");
            None
        }
    };
    let first_windowed = cfg.opt_u32("max_window_layers")?.unwrap_or(28);
    layer_windows(cfg, n_layers, window, |i| i >= first_windowed)
}

fn from_gguf(facts: &GgufFacts<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let arch = match generation {
        Generation::Two => "qwen2",
        Generation::Three => "qwen3",
    };
    let bias = gguf_bias(facts);
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_positive(facts, arch, "attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.layer_norm_rms_epsilon"))?;
    let window = gguf_window(facts, arch)?;
    let windows = gguf_windows(facts, arch, sizes.n_layers, window, 0)?;
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(GGUF_WINDOW_KEYS);
    gguf_finish(facts, arch, &known)?;
    let tied = !facts.has_head();
    let mut spec = decoder(generation, sizes, eps, bias, Activation::Silu, tied, rope);
    attentions(&mut spec).for_each(|(i, attention)| attention.window = windows[i]);
    Ok(spec)
}

fn decoder(
    generation: Generation,
    sizes: Sizes,
    norm_eps: f32,
    attention_bias: AttentionBias,
    activation: Activation,
    tied: bool,
    rope: RopeSpec,
) -> ModelSpec {
    let (family, qk_norm) = match generation {
        Generation::Two => ("qwen2", QkNorm::Absent),
        Generation::Three => ("qwen3", QkNorm::PerHead(rms(norm_eps))),
    };
    let mut spec = Plain {
        family,
        sizes,
        norm: rms(norm_eps),
        attention_bias,
        mlp_bias: false,
        activation,
        rope: Some(rope),
        tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.qk_norm = qk_norm);
    spec
}
