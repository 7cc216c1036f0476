//! Gemma 1, 2 and 3: scaled embeddings, norms that add one to their weight, gated GELU; windows and sandwich norms from 2.

use serde_json::Value;

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, Stated, activation_named, attentions, gguf_bias, gguf_finish,
    gguf_missing, gguf_needed_window, gguf_positive, gguf_windows, layer_windows, rms,
    sizes_from_gguf, sizes_of, sizes_with_kv, softcap,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{
    Activation, AttentionBias, BlockShape, ModelSpec, NormSpec, NormWeight, QkNorm, RopeSpec,
};

/// Gemma 3 has one full layer in six where no key says otherwise.
const GEMMA3_PERIOD: u32 = 6;
/// Base of the windowed layers of Gemma 3.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;

pub(super) const GEMMA: Family = Family {
    name: "gemma",
    hf_model_types: &["gemma"],
    gguf_arch: "gemma",
    from_config: |cfg| from_config(cfg, Generation::One),
    from_gguf: Some(|facts| from_gguf(facts, Generation::One)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::PRE_NORM,
    gguf_rules: &[],
};

pub(super) const GEMMA2: Family = Family {
    name: "gemma2",
    hf_model_types: &["gemma2"],
    gguf_arch: "gemma2",
    from_config: |cfg| from_config(cfg, Generation::Two),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Two)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::SANDWICH,
    gguf_rules: &[],
};

pub(super) const GEMMA3: Family = Family {
    name: "gemma3",
    hf_model_types: &["gemma3_text", "gemma3"],
    gguf_arch: "gemma3",
    from_config: |cfg| from_config(cfg, Generation::Three),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Three)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: names::SANDWICH,
    gguf_rules: &[],
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Generation {
    One,
    Two,
    Three,
}

impl Generation {
    fn arch(self) -> &'static str {
        match self {
            Self::One => "gemma",
            Self::Two => "gemma2",
            Self::Three => "gemma3",
        }
    }
}

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    scale: f32,
    bias: AttentionBias,
    activation: Activation,
    attention_softcap: Option<f32>,
    final_softcap: Option<f32>,
    tied: bool,
    windows: Vec<Option<u32>>,
    local: RopeSpec,
    global: RopeSpec,
}

fn from_config(cfg: &RawConfig<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    cfg.must_be_off("use_bidirectional_attention")?;
    let class_kv_heads = match generation {
        Generation::One => 16,
        Generation::Two | Generation::Three => 4,
    };
    let sizes = match generation {
        Generation::One | Generation::Two => sizes_with_kv(cfg, Some(class_kv_heads), |_, _| 256)?,
        // Files of the models that see leave out what the class takes for granted.
        Generation::Three => {
            let stated = Stated {
                d_mlp: cfg.u32("intermediate_size")?,
                n_ctx: cfg.u32_or("max_position_embeddings", 131_072)?,
                d_vocab: cfg.u32_or("vocab_size", 262_208)?,
                n_heads: cfg.u32_or("num_attention_heads", 8)?,
            };
            sizes_of(cfg, stated, Some(class_kv_heads), |_, _| 256)?
        }
    };
    let class_theta = if generation == Generation::Three {
        1_000_000.0
    } else {
        10_000.0
    };
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: class_theta,
        n_ctx: sizes.n_ctx,
    };
    let (local, global) = match generation {
        Generation::One | Generation::Two => {
            let rope = rope::from_config(cfg, class)?;
            (rope.clone(), rope)
        }
        Generation::Three => rope::local_and_global(cfg, class, GEMMA3_LOCAL_THETA)?,
    };
    let windows = match generation {
        Generation::One => vec![None; sizes.n_layers as usize],
        Generation::Two | Generation::Three => windows(cfg, sizes.n_layers, generation)?,
    };
    let (query_scale, attention_softcap, final_softcap) = match generation {
        Generation::One => (f64::from(sizes.d_head), None, None),
        Generation::Two => (
            cfg.opt_positive("query_pre_attn_scalar")?.unwrap_or(256.0),
            class_softcap(cfg, "attn_logit_softcapping", 50.0)?,
            class_softcap(cfg, "final_logit_softcapping", 30.0)?,
        ),
        Generation::Three => {
            // Its class has the key and computes nothing with it: norms of queries and keys took its place.
            cfg.ignore("attn_logit_softcapping");
            (
                cfg.opt_positive("query_pre_attn_scalar")?.unwrap_or(256.0),
                None,
                softcap(cfg, "final_logit_softcapping")?,
            )
        }
    };
    let bias = if cfg.bool_or("attention_bias", false)? {
        AttentionBias::Qkvo
    } else {
        AttentionBias::Absent
    };
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let activation = activation(cfg, generation)?;
    let tied = cfg.bool_or("tie_word_embeddings", true)?;
    cfg.finish()?;
    let found = Found {
        sizes,
        eps,
        scale: query_scale.powf(-0.5) as f32,
        bias,
        activation,
        attention_softcap,
        final_softcap,
        tied,
        windows,
        local,
        global,
    };
    Ok(decoder(found, generation))
}

/// Gemma 2's class has caps of its own, which only `null` takes away.
fn class_softcap(
    cfg: &RawConfig<'_>,
    key: &str,
    class_cap: f32,
) -> Result<Option<f32>, ModelError> {
    let stated = softcap(cfg, key)?;
    let is_silent = stated.is_none() && !cfg.is_null(key);
    Ok(if is_silent { Some(class_cap) } else { stated })
}

/// Early Gemma 1 files say `hidden_act: gelu` and mean the tanh form, which `hidden_activation` states when it is there.
fn activation(cfg: &RawConfig<'_>, generation: Generation) -> Result<Activation, ModelError> {
    let named = |key: &str| -> Result<Option<Activation>, ModelError> {
        let Some(name) = cfg.opt_str(key)? else {
            return Ok(None);
        };
        let meant = match (name, generation) {
            ("gelu", Generation::One) if key == "hidden_act" => "gelu_pytorch_tanh",
            (name, _) => name,
        };
        let activation = activation_named(meant);
        activation
            .map(Some)
            .ok_or_else(|| cfg.bad(key, &Value::from(name), "gelu_pytorch_tanh"))
    };
    if generation == Generation::One {
        // Which its class does not read.
        cfg.is_null("hidden_activation");
    }
    match (named("hidden_activation")?, named("hidden_act")?) {
        (Some(newer), Some(older)) if newer != older => {
            let got = Value::from(cfg.opt_str("hidden_act")?);
            Err(cfg.bad("hidden_act", &got, "what hidden_activation says, or no key"))
        }
        (newer, older) => Ok(newer.or(older).unwrap_or(Activation::GeluTanh)),
    }
}

fn windows(
    cfg: &RawConfig<'_>,
    n_layers: u32,
    generation: Generation,
) -> Result<Vec<Option<u32>>, ModelError> {
    let window = cfg.window("sliding_window", 4096)?;
    if generation == Generation::Two {
        // The name that the window had before the class was released.
        cfg.must_be("sliding_window_size", &window.into())?;
    }
    let pattern = cfg.opt_u32("sliding_window_pattern")?;
    let private = cfg.opt_u32("_sliding_window_pattern")?;
    let period = match generation {
        Generation::One | Generation::Two => {
            for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
                cfg.must_be(key, &2.into())?;
            }
            2
        }
        Generation::Three => pattern.or(private).unwrap_or(GEMMA3_PERIOD),
    };
    layer_windows(cfg, n_layers, Some(window), |i| {
        period == 0 || (i + 1) % period != 0
    })
}

fn from_gguf(facts: &GgufFacts<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let arch = generation.arch();
    let sizes = sizes_from_gguf(facts, arch)?;
    let global = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let local_theta = || rope::theta_from_gguf(facts, arch, "rope.freq_base_swa");
    let local = match generation {
        Generation::One => global.clone(),
        Generation::Two => RopeSpec {
            theta: local_theta()?.unwrap_or(global.theta),
            ..global.clone()
        },
        Generation::Three => {
            let theta = local_theta()?.unwrap_or(GEMMA3_LOCAL_THETA);
            rope::unscaled(sizes.d_head, theta)
        }
    };
    let eps = gguf_positive(facts, arch, "attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.layer_norm_rms_epsilon"))?;
    let windows = match generation {
        Generation::One => vec![None; sizes.n_layers as usize],
        Generation::Two | Generation::Three => {
            let window = gguf_needed_window(facts, arch)?;
            let class_period = if generation == Generation::Two {
                2
            } else {
                GEMMA3_PERIOD
            };
            gguf_windows(facts, arch, sizes.n_layers, Some(window), class_period)?
        }
    };
    let (attention_softcap, final_softcap) = match generation {
        // llama.cpp takes Gemma 2's published caps where the file has none.
        Generation::Two => (
            Some(gguf_positive(facts, arch, "attn_logit_softcapping")?.unwrap_or(50.0)),
            Some(gguf_positive(facts, arch, "final_logit_softcapping")?.unwrap_or(30.0)),
        ),
        Generation::One => (None, None),
        Generation::Three => (None, gguf_positive(facts, arch, "final_logit_softcapping")?),
    };
    let scale = match gguf_positive(facts, arch, "attention.scale")? {
        Some(scale) => scale,
        None => query_scale(generation, sizes),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.push("attention.scale");
    if generation != Generation::One {
        known.extend(GGUF_WINDOW_KEYS);
        known.extend(["final_logit_softcapping", "rope.freq_base_swa"]);
    }
    if generation == Generation::Two {
        known.push("attn_logit_softcapping");
    }
    gguf_finish(facts, arch, &known)?;
    let found = Found {
        sizes,
        eps,
        scale,
        bias: gguf_bias(facts),
        activation: Activation::GeluTanh,
        attention_softcap,
        final_softcap,
        tied: !facts.has_head(),
        windows,
        local,
        global,
    };
    Ok(decoder(found, generation))
}

/// GGUF files do not carry `query_pre_attn_scalar`: it is the head width but in the 27B models, which use the model
/// width per head and are recognized by their number of layers, as llama.cpp does.
fn query_scale(generation: Generation, sizes: Sizes) -> f32 {
    let per_head = match (generation, sizes.n_layers) {
        (Generation::Two, 46) | (Generation::Three, 62) => sizes.d_model / sizes.n_heads,
        (Generation::One | Generation::Two | Generation::Three, _) => sizes.d_head,
    };
    f64::from(per_head).powf(-0.5) as f32
}

fn decoder(found: Found, generation: Generation) -> ModelSpec {
    let norm = NormSpec {
        weight: NormWeight::PlusOne,
        ..rms(found.eps)
    };
    let mut spec = Plain {
        family: generation.arch(),
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    spec.embedding.multiplier = (found.sizes.d_model as f32).sqrt();
    spec.head.softcap = found.final_softcap;
    if generation != Generation::One {
        spec.layers.iter_mut().for_each(|layer| {
            layer.block = BlockShape::Sandwich {
                mixer: norm,
                mixer_post: norm,
                ffn: norm,
                ffn_post: norm,
            };
        });
    }
    for (i, attention) in attentions(&mut spec) {
        let window = found.windows[i];
        attention.window = window;
        let rope = match window {
            Some(_) => &found.local,
            None => &found.global,
        };
        attention.rope = Some(rope.clone());
        attention.scale = found.scale;
        attention.softcap = found.attention_softcap;
        if generation == Generation::Three {
            attention.qk_norm = QkNorm::PerHead(norm);
        }
    }
    spec
}
