//! SmolLM 3: Llama's shape, with layers that have no positions in between.

use serde_json::Value;

use super::decoder::{
    Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bias, gguf_finish, gguf_needed,
    gguf_window, head_share, layer_windows, rms, sizes_from_gguf, sizes_with_kv,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{Activation, AttentionBias, ModelSpec, RopeSpec};

/// One layer in four without positions where no key says otherwise, and in all GGUF files.
const PERIOD: u32 = 4;

pub(super) const SMOLLM3: Family = Family {
    name: "smollm3",
    hf_model_types: &["smollm3"],
    gguf_arch: "smollm3",
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
    /// Whether each layer has positions.
    turned: Vec<bool>,
    windows: Vec<Option<u32>>,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Keys of the code it was trained with, which the class does not read.
    cfg.ignore("pretraining_tp");
    cfg.ignore("max_window_layers");
    let sizes = sizes_with_kv(cfg, Some(4), head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 2_000_000.0,
        n_ctx: sizes.n_ctx,
    };
    let turned = turned(cfg, sizes.n_layers)?;
    let window = match cfg.bool_or("use_sliding_window", false)? {
        true => cfg.opt_window("sliding_window", None)?,
        false => {
            cfg.ignore("sliding_window");
            None
        }
    };
    let windows = layer_windows(cfg, sizes.n_layers, window, |i| !turned[i as usize])?;
    let found = Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        mlp_bias: cfg.bool_or("mlp_bias", false)?,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::from_config(cfg, class)?,
        turned,
        windows,
        tied: cfg.bool_or("tie_word_embeddings", true)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

/// `no_rope_layers` says 1 for a layer that has positions.
fn turned(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<bool>, ModelError> {
    let period = cfg.opt_u32("no_rope_layer_interval")?.unwrap_or(PERIOD);
    let Some(value) = cfg.get("no_rope_layers") else {
        if period == 0 {
            return Err(cfg.bad("no_rope_layer_interval", &0.into(), "a number above 0"));
        }
        return Ok((0..n_layers).map(|i| (i + 1) % period != 0).collect());
    };
    let flag = |flag: &Value| match flag.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    let flags: Option<Vec<bool>> = value
        .as_array()
        .and_then(|list| list.iter().map(flag).collect());
    flags
        .filter(|flags| flags.len() == n_layers as usize)
        .ok_or_else(|| {
            let expected = format!("{n_layers} entries of 0 or 1");
            cfg.bad("no_rope_layers", value, &expected)
        })
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "smollm3";
    let sizes = sizes_from_gguf(facts, arch)?;
    let window = gguf_window(facts, arch)?;
    let turned: Vec<bool> = (0..sizes.n_layers).map(|i| (i + 1) % PERIOD != 0).collect();
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        mlp_bias: facts.has("blk.0.ffn_up.bias"),
        activation: Activation::Silu,
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        windows: turned
            .iter()
            .map(|turned| window.filter(|_| !turned))
            .collect(),
        turned,
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.push("attention.sliding_window");
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "smollm3",
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: found.bias,
        mlp_bias: found.mlp_bias,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    for (i, attention) in attentions(&mut spec) {
        attention.rope = found.turned[i].then(|| found.rope.clone());
        attention.window = found.windows[i];
    }
    spec
}
