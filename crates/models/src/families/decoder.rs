//! The facts of an ordinary attention decoder, and the spec they make.
//!
//! Families with the same shape fill this instead of a whole [`ModelSpec`]. It is not a default: every field is stated.

use serde_json::Value;

use super::GgufFacts;
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, BlockShape, EmbeddingSpec, Ffn, FfnSpec, HeadSpec,
    KvSource, LayerSpec, Mixer, ModelSpec, NormKind, NormSpec, NormWeight, QkNorm, RopeSpec,
};

/// Layers a file may claim; far above any model, far below what exhausts memory.
const LAYERS_MAX: u32 = 4096;

/// Norms of a block.
pub(super) enum Norms {
    /// Before each branch.
    Pre,
    /// Before and after each branch.
    Sandwich,
}

/// What differs between layers.
pub(super) struct LayerFacts {
    pub(super) window: Option<u32>,
    pub(super) rope: RopeSpec,
}

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

/// The facts of an ordinary attention decoder.
pub(super) struct Decoder {
    pub(super) family: &'static str,
    pub(super) sizes: Sizes,
    pub(super) norms: Norms,
    pub(super) norm_eps: f32,
    pub(super) norm_weight: NormWeight,
    pub(super) embedding_multiplier: f32,
    pub(super) attention_bias: AttentionBias,
    pub(super) mlp_bias: bool,
    pub(super) qk_norm: bool,
    pub(super) scale: f32,
    pub(super) attention_softcap: Option<f32>,
    pub(super) final_softcap: Option<f32>,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    pub(super) layers: Vec<LayerFacts>,
}

impl Decoder {
    pub(super) fn into_spec(self) -> ModelSpec {
        let norm = NormSpec {
            kind: NormKind::Rms,
            eps: self.norm_eps,
            weight: self.norm_weight,
        };
        let sizes = self.sizes;
        let block = || match self.norms {
            Norms::Pre => BlockShape::PreNorm {
                mixer: norm,
                ffn: norm,
            },
            Norms::Sandwich => BlockShape::Sandwich {
                mixer: norm,
                mixer_post: norm,
                ffn: norm,
                ffn_post: norm,
            },
        };
        let layers = self
            .layers
            .into_iter()
            .map(|layer| LayerSpec {
                block: block(),
                mixer: Mixer::Attention(AttentionSpec {
                    n_heads: sizes.n_heads,
                    n_kv_heads: sizes.n_kv_heads,
                    d_head: sizes.d_head,
                    scale: self.scale,
                    bias: self.attention_bias,
                    qk_norm: if self.qk_norm {
                        QkNorm::PerHead(norm)
                    } else {
                        QkNorm::Absent
                    },
                    v_norm: None,
                    rope: Some(layer.rope),
                    window: layer.window,
                    softcap: self.attention_softcap,
                    sinks: false,
                    clip_qkv: None,
                    kv: KvSource::Own,
                }),
                ffn: Ffn::Gated(FfnSpec {
                    d_mlp: sizes.d_mlp,
                    activation: self.activation,
                    bias: self.mlp_bias,
                }),
                residual_multiplier: 1.0,
                layer_scalar: false,
            })
            .collect();
        ModelSpec {
            family: self.family.to_owned(),
            d_model: sizes.d_model,
            d_vocab: sizes.d_vocab,
            n_ctx: sizes.n_ctx,
            embedding: EmbeddingSpec {
                multiplier: self.embedding_multiplier,
                learned_positions: None,
                per_layer: None,
            },
            layers,
            final_norm: norm,
            head: HeadSpec {
                tied: self.tied,
                bias: false,
                scale: 1.0,
                softcap: self.final_softcap,
            },
        }
    }
}

/// Reads the sizes of `config.json`; `head_dim` is what the class uses where the key is absent.
pub(super) fn sizes_from_config(
    cfg: &RawConfig<'_>,
    head_dim: impl Fn(u32, u32) -> u32,
) -> Result<Sizes, ModelError> {
    let (d_model, n_heads) = (cfg.u32("hidden_size")?, cfg.u32("num_attention_heads")?);
    let sizes = Sizes {
        n_layers: cfg.u32("num_hidden_layers")?,
        d_model,
        d_mlp: cfg.u32("intermediate_size")?,
        d_vocab: cfg.u32("vocab_size")?,
        n_ctx: cfg.u32("max_position_embeddings")?,
        n_heads,
        n_kv_heads: cfg.opt_u32("num_key_value_heads")?.unwrap_or(n_heads),
        d_head: cfg
            .opt_u32("head_dim")?
            .unwrap_or_else(|| head_dim(d_model, n_heads)),
    };
    check_sizes(sizes, |key, got, expected| {
        cfg.bad(config_key(key), &Value::from(got), expected)
    })?;
    Ok(sizes)
}

/// Reads the sizes of GGUF metadata.
pub(super) fn sizes_from_gguf(facts: &GgufFacts<'_>, arch: &str) -> Result<Sizes, ModelError> {
    let need = |key: &str| match gguf_u32(facts, arch, key)? {
        Some(0) => Err(gguf_bad(facts, arch, key, "0", "a number above 0")),
        Some(size) => Ok(size),
        None => Err(gguf_missing(facts, arch, key)),
    };
    if let Some(stated) = gguf_u32(facts, arch, "vocab_size")?
        && stated != facts.d_vocab
    {
        let expected = format!("{}, the rows of token_embd.weight", facts.d_vocab);
        return Err(gguf_bad(
            facts,
            arch,
            "vocab_size",
            &stated.to_string(),
            &expected,
        ));
    }
    let (d_model, n_heads) = (need("embedding_length")?, need("attention.head_count")?);
    let d_head = match gguf_u32(facts, arch, "attention.key_length")? {
        Some(width) => width,
        None if n_heads > 0 && d_model % n_heads == 0 => d_model / n_heads,
        None => return Err(gguf_missing(facts, arch, "attention.key_length")),
    };
    if let Some(d_value) = gguf_u32(facts, arch, "attention.value_length")?
        && d_value != d_head
    {
        return Err(gguf_bad(
            facts,
            arch,
            "attention.value_length",
            &d_value.to_string(),
            &format!("{d_head}"),
        ));
    }
    let sizes = Sizes {
        n_layers: need("block_count")?,
        d_model,
        d_mlp: need("feed_forward_length")?,
        d_vocab: facts.d_vocab,
        n_ctx: need("context_length")?,
        n_heads,
        n_kv_heads: gguf_u32(facts, arch, "attention.head_count_kv")?.unwrap_or(n_heads),
        d_head,
    };
    check_sizes(sizes, |key, got, expected| {
        gguf_bad(facts, arch, gguf_key(key), &got.to_string(), expected)
    })?;
    Ok(sizes)
}

#[derive(Clone, Copy)]
enum SizeKey {
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

fn gguf_key(key: SizeKey) -> &'static str {
    match key {
        SizeKey::Layers => "block_count",
        SizeKey::Heads => "attention.head_count",
        SizeKey::KvHeads => "attention.head_count_kv",
        SizeKey::HeadDim => "attention.key_length",
    }
}

fn check_sizes(
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

/// An optional number of GGUF metadata.
pub(super) fn gguf_u32(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<u32>, ModelError> {
    Ok(facts.metadata.u32(&format!("{arch}.{key}"))?)
}

/// The window of attention in GGUF metadata; one of no position is no window anybody means.
pub(super) fn gguf_window(facts: &GgufFacts<'_>, arch: &str) -> Result<Option<u32>, ModelError> {
    match gguf_u32(facts, arch, "attention.sliding_window")? {
        Some(0) => Err(gguf_bad(
            facts,
            arch,
            "attention.sliding_window",
            "0",
            "a number above 0 or no key",
        )),
        other => Ok(other),
    }
}

/// An optional finite number above zero of GGUF metadata.
pub(super) fn gguf_positive(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<f32>, ModelError> {
    match facts.metadata.f32(&format!("{arch}.{key}"))? {
        Some(x) if !x.is_finite() || x <= 0.0 => Err(gguf_bad(
            facts,
            arch,
            key,
            &x.to_string(),
            "a finite number above 0",
        )),
        other => Ok(other),
    }
}

/// The error for an absent key of GGUF metadata.
pub(super) fn gguf_missing(facts: &GgufFacts<'_>, arch: &str, key: &str) -> ModelError {
    ModelError::MissingKey {
        origin: facts.origin.to_owned(),
        key: format!("{arch}.{key}"),
    }
}

/// The error for a value of GGUF metadata that cannot be used.
pub(super) fn gguf_bad(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
    got: &str,
    expected: &str,
) -> ModelError {
    ModelError::BadKey {
        origin: facts.origin.to_owned(),
        key: format!("{arch}.{key}"),
        got: got.to_owned(),
        expected: expected.to_owned(),
    }
}

/// Refuses keys under `arch.` that none of the readers knows: they may change the forward pass.
pub(super) fn gguf_finish(
    facts: &GgufFacts<'_>,
    arch: &str,
    known: &[&str],
) -> Result<(), ModelError> {
    const COMMON: &[&str] = &[
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
    ];
    let prefix = format!("{arch}.");
    let keys: Vec<String> = facts
        .metadata
        .iter()
        .filter_map(|(key, _)| key.strip_prefix(&prefix).map(|rest| (key, rest)))
        .filter(|(_, rest)| !COMMON.contains(rest) && !known.contains(rest))
        .map(|(key, _)| key.to_string())
        .collect();
    if keys.is_empty() {
        Ok(())
    } else {
        Err(ModelError::UnknownKeys {
            origin: facts.origin.to_owned(),
            keys,
        })
    }
}
