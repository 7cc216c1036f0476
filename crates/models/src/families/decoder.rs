//! The facts of an ordinary attention decoder, and the spec they make.
//!
//! Families with the same shape fill this instead of a whole [`ModelSpec`]. It is not a default: every field is stated.

use serde_json::Value;

pub(super) use super::gguf::{
    GGUF_WINDOW_KEYS, gguf_bad, gguf_bias, gguf_finish, gguf_missing, gguf_needed,
    gguf_needed_window, gguf_positive, gguf_u32, gguf_window, gguf_windows, sizes_from_gguf,
};
use crate::checkpoint::LAYERS_MAX;
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, BlockShape, EmbeddingSpec, Ffn, FfnSpec, HeadSpec,
    KvSource, LayerSpec, Mixer, ModelSpec, NormKind, NormSpec, NormWeight, QkNorm, RopeSpec,
};

/// Sizes every decoder states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) n_layers: u32,
    pub(super) d_model: u32,
    pub(super) d_mlp: u32,
    pub(super) d_vocab: u32,
    pub(super) n_ctx: u32,
    pub(super) n_heads: u32,
    pub(super) n_kv_heads: u32,
    pub(super) d_head: u32,
}

/// A pre-norm decoder with grouped K/V heads and a gated FFN, all layers alike: what most families are but for a few
/// facts, which they change in the spec it makes.
pub(super) struct Plain {
    pub(super) family: &'static str,
    pub(super) sizes: Sizes,
    pub(super) norm: NormSpec,
    pub(super) attention_bias: AttentionBias,
    pub(super) mlp_bias: bool,
    pub(super) activation: Activation,
    pub(super) rope: Option<RopeSpec>,
    pub(super) tied: bool,
}

impl Plain {
    pub(super) fn into_spec(self) -> ModelSpec {
        let (sizes, norm) = (self.sizes, self.norm);
        let layer = LayerSpec {
            block: BlockShape::PreNorm {
                mixer: norm,
                ffn: norm,
            },
            mixer: Mixer::Attention(AttentionSpec {
                n_heads: sizes.n_heads,
                n_kv_heads: sizes.n_kv_heads,
                d_head: sizes.d_head,
                scale: f64::from(sizes.d_head).powf(-0.5) as f32,
                bias: self.attention_bias,
                qk_norm: QkNorm::Absent,
                v_norm: None,
                rope: self.rope,
                window: None,
                softcap: None,
                sinks: false,
                clip_qkv: None,
                kv: KvSource::Own,
                gated: false,
            }),
            ffn: Ffn::Gated(FfnSpec {
                d_mlp: sizes.d_mlp,
                activation: self.activation,
                bias: self.mlp_bias,
                gate_cutoff: None,
            }),
            residual_multiplier: 1.0,
            layer_scalar: false,
            laurel: None,
        };
        ModelSpec {
            family: self.family.to_owned(),
            d_model: sizes.d_model,
            d_vocab: sizes.d_vocab,
            n_ctx: sizes.n_ctx,
            embedding: EmbeddingSpec {
                multiplier: 1.0,
                learned_positions: None,
                per_layer: None,
            },
            layers: vec![layer; sizes.n_layers as usize],
            final_norm: norm,
            head: HeadSpec {
                tied: self.tied,
                bias: false,
                scale: 1.0,
                softcap: None,
            },
            altup: None,
        }
    }
}

/// An RMS norm that multiplies by its stored weight.
pub(super) fn rms(eps: f32) -> NormSpec {
    NormSpec {
        kind: NormKind::Rms,
        eps,
        weight: NormWeight::Plain,
    }
}

/// A layer norm with a bias.
pub(super) fn mean_norm(eps: f32) -> NormSpec {
    NormSpec {
        kind: NormKind::LayerWithBias,
        eps,
        weight: NormWeight::Plain,
    }
}

/// The softmax attention of each layer that has one, in order.
pub(super) fn attentions(
    spec: &mut ModelSpec,
) -> impl Iterator<Item = (usize, &mut AttentionSpec)> {
    let layers = spec.layers.iter_mut().enumerate();
    layers.filter_map(|(i, layer)| match &mut layer.mixer {
        Mixer::Attention(attention) => Some((i, attention)),
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    })
}

/// Takes the gate out of dense FFNs.
pub(super) fn without_gate(spec: &mut ModelSpec) {
    for layer in &mut spec.layers {
        if let Ffn::Gated(ffn) = layer.ffn {
            layer.ffn = Ffn::Plain(ffn);
        }
    }
}

/// The width of a head in classes that derive it from the model's.
pub(super) fn head_share(d_model: u32, n_heads: u32) -> u32 {
    d_model / n_heads
}

/// Reads the sizes of `config.json`; `head_dim` is what the class uses where the key is absent.
pub(super) fn sizes_from_config(
    cfg: &RawConfig<'_>,
    head_dim: impl Fn(u32, u32) -> u32,
) -> Result<Sizes, ModelError> {
    sizes_with_kv(cfg, None, head_dim)
}

/// As [`sizes_from_config`] for classes whose number of K/V heads is, without a key, a number of its own; `null` still
/// means as many as there are heads.
pub(super) fn sizes_with_kv(
    cfg: &RawConfig<'_>,
    class_kv_heads: Option<u32>,
    head_dim: impl Fn(u32, u32) -> u32,
) -> Result<Sizes, ModelError> {
    let (d_mlp, n_ctx) = (
        cfg.u32("intermediate_size")?,
        cfg.u32("max_position_embeddings")?,
    );
    sizes_beside(cfg, d_mlp, n_ctx, class_kv_heads, head_dim)
}

/// As [`sizes_with_kv`], with the two sizes that some classes spell otherwise.
pub(super) fn sizes_beside(
    cfg: &RawConfig<'_>,
    d_mlp: u32,
    n_ctx: u32,
    class_kv_heads: Option<u32>,
    head_dim: impl Fn(u32, u32) -> u32,
) -> Result<Sizes, ModelError> {
    let stated = Stated {
        d_mlp,
        n_ctx,
        d_vocab: cfg.u32("vocab_size")?,
        n_heads: cfg.u32("num_attention_heads")?,
    };
    sizes_of(cfg, stated, class_kv_heads, head_dim)
}

/// Sizes that some classes take for granted or spell otherwise.
pub(super) struct Stated {
    pub(super) d_mlp: u32,
    pub(super) n_ctx: u32,
    pub(super) d_vocab: u32,
    pub(super) n_heads: u32,
}

/// As [`sizes_with_kv`], beside sizes that have been read.
pub(super) fn sizes_of(
    cfg: &RawConfig<'_>,
    stated: Stated,
    class_kv_heads: Option<u32>,
    head_dim: impl Fn(u32, u32) -> u32,
) -> Result<Sizes, ModelError> {
    let Stated {
        d_mlp,
        n_ctx,
        d_vocab,
        n_heads,
    } = stated;
    let d_model = cfg.u32("hidden_size")?;
    let sizes = Sizes {
        n_layers: cfg.u32("num_hidden_layers")?,
        d_model,
        d_mlp,
        d_vocab,
        n_ctx,
        n_heads,
        n_kv_heads: match cfg.opt_u32("num_key_value_heads")? {
            Some(stated) => stated,
            None if cfg.is_null("num_key_value_heads") => n_heads,
            None => class_kv_heads.unwrap_or(n_heads),
        },
        d_head: match cfg.opt_u32("head_dim")? {
            Some(stated) => stated,
            None => {
                let class = head_dim(d_model, n_heads);
                // Classes with a width of their own have no word for this.
                if cfg.is_null("head_dim") && class != head_share(d_model, n_heads) {
                    return Err(cfg.bad("head_dim", &Value::Null, "a number, or no key"));
                }
                class
            }
        },
    };
    check_sizes(sizes, |key, got, expected| {
        cfg.bad(config_key(key), &Value::from(got), expected)
    })?;
    Ok(sizes)
}

/// A size that may be refused.
#[derive(Clone, Copy)]
pub(super) enum SizeKey {
    Layers,
    Heads,
    KvHeads,
    HeadDim,
}

fn config_key(key: SizeKey) -> &'static str {
    match key {
        SizeKey::Layers => "num_hidden_layers",
        SizeKey::Heads => "num_attention_heads",
        SizeKey::KvHeads => "num_key_value_heads",
        SizeKey::HeadDim => "head_dim",
    }
}

/// Refuses sizes that no decoder has.
pub(super) fn check_sizes(
    sizes: Sizes,
    bad: impl Fn(SizeKey, u32, &str) -> ModelError,
) -> Result<(), ModelError> {
    if sizes.n_layers == 0 || sizes.n_layers > LAYERS_MAX {
        return Err(bad(
            SizeKey::Layers,
            sizes.n_layers,
            &format!("1 to {LAYERS_MAX}"),
        ));
    }
    if sizes.n_heads == 0 {
        return Err(bad(SizeKey::Heads, sizes.n_heads, "a number above 0"));
    }
    if sizes.n_kv_heads == 0 || !sizes.n_heads.is_multiple_of(sizes.n_kv_heads) {
        return Err(bad(
            SizeKey::KvHeads,
            sizes.n_kv_heads,
            &format!("a divisor of {}", sizes.n_heads),
        ));
    }
    if sizes.d_head == 0 || !sizes.d_head.is_multiple_of(2) {
        return Err(bad(
            SizeKey::HeadDim,
            sizes.d_head,
            "an even number above 0",
        ));
    }
    Ok(())
}

/// Reads an activation name of `config.json`.
pub(super) fn activation(cfg: &RawConfig<'_>, key: &str) -> Result<Activation, ModelError> {
    let name = cfg.opt_str(key)?.ok_or_else(|| cfg.missing(key))?;
    activation_named(name).ok_or_else(|| {
        cfg.bad(
            key,
            &Value::from(name),
            "one of silu, swish, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu, relu2",
        )
    })
}

/// As [`activation`], with the name the class uses where the key is absent.
pub(super) fn activation_or(
    cfg: &RawConfig<'_>,
    key: &str,
    class_default: Activation,
) -> Result<Activation, ModelError> {
    match cfg.opt_str(key)? {
        None => Ok(class_default),
        Some(_) => activation(cfg, key),
    }
}

/// Biases on all attention projections, where a flag says so.
pub(super) fn flagged_bias(
    cfg: &RawConfig<'_>,
    key: &str,
    class_default: bool,
    which: AttentionBias,
) -> Result<AttentionBias, ModelError> {
    Ok(match cfg.bool_or(key, class_default)? {
        true => which,
        false => AttentionBias::Absent,
    })
}

/// A number under several names, which must agree where more than one is there.
pub(super) fn same_u32(cfg: &RawConfig<'_>, keys: &[&str]) -> Result<Option<u32>, ModelError> {
    let mut found: Option<u32> = None;
    for key in keys {
        match (cfg.opt_u32(key)?, found) {
            (Some(value), Some(other)) if value != other => {
                let expected = format!("{other}, as {} says", keys[0]);
                return Err(cfg.bad(key, &Value::from(value), &expected));
            }
            (value, _) => found = found.or(value),
        }
    }
    Ok(found)
}

/// Windows by `layer_types`, one entry per layer; where the key is absent, `class_windowed` says which layers have one.
pub(super) fn layer_windows(
    cfg: &RawConfig<'_>,
    n_layers: u32,
    window: Option<u32>,
    class_windowed: impl Fn(u32) -> bool,
) -> Result<Vec<Option<u32>>, ModelError> {
    let Some(types) = cfg.opt_strings("layer_types")? else {
        let windows = (0..n_layers).map(|i| window.filter(|_| class_windowed(i)));
        return Ok(windows.collect());
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

/// The activation that transformers calls so.
pub(super) fn activation_named(name: &str) -> Option<Activation> {
    Some(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::Gelu,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        _ => return None,
    })
}

/// A softcap: absent, or a number above zero.
pub(super) fn softcap(cfg: &RawConfig<'_>, key: &str) -> Result<Option<f32>, ModelError> {
    Ok(cfg.opt_positive(key)?.map(|cap| cap as f32))
}
