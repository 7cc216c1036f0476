//! GPT-2: learned positions, layer norms, a plain FFN, biases everywhere, and matrices stored `[in, out]`.

use serde_json::Value;

use super::decoder::{
    Plain, Sizes, activation_or, attentions, check_sizes, gguf_finish, gguf_needed, gguf_u32,
    mean_norm, same_u32, sizes_from_gguf, without_gate,
};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, Ignored};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{LayerTensor as T, TensorRole};
use crate::spec::{Activation, AttentionBias, ModelSpec};

pub(super) const GPT2: Family = Family {
    name: "gpt2",
    hf_model_types: &["gpt2"],
    gguf_arch: "gpt2",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: &["transformer.", ""],
        layers: "h.",
        rules: &[RULES],
        ignored: &[
            Ignored::Ending(".attn.bias", "the causal mask, which positions imply"),
            Ignored::Ending(".attn.masked_bias", "the value of masked scores"),
        ],
    },
    gguf_rules: &[
        Rule::layer(&[T::Q, T::K, T::V], "attn_qkv.weight"),
        Rule::layer(&[T::QBias, T::KBias, T::VBias], "attn_qkv.bias"),
    ],
};

const RULES: &[Rule] = &[
    Rule::model(TensorRole::TokenEmbedding, "wte.weight"),
    Rule::model(TensorRole::PositionEmbedding, "wpe.weight"),
    Rule::model(TensorRole::FinalNorm, "ln_f.weight"),
    Rule::model(TensorRole::FinalNormBias, "ln_f.bias"),
    Rule::model(TensorRole::Head, "^lm_head.weight"),
    Rule::layer(&[T::MixerNorm], "ln_1.weight"),
    Rule::layer(&[T::MixerNormBias], "ln_1.bias"),
    Rule::layer(&[T::FfnNorm], "ln_2.weight"),
    Rule::layer(&[T::FfnNormBias], "ln_2.bias"),
    Rule::layer(&[T::Q, T::K, T::V], "attn.c_attn.weight").columns(),
    Rule::layer(&[T::QBias, T::KBias, T::VBias], "attn.c_attn.bias"),
    Rule::layer(&[T::O], "attn.c_proj.weight").columns(),
    Rule::layer(&[T::OBias], "attn.c_proj.bias"),
    Rule::layer(&[T::Up], "mlp.c_fc.weight").columns(),
    Rule::layer(&[T::UpBias], "mlp.c_fc.bias"),
    Rule::layer(&[T::Down], "mlp.c_proj.weight").columns(),
    Rule::layer(&[T::DownBias], "mlp.c_proj.bias"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    activation: Activation,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Heads for classification, tokens of the first release, and an order of operations that only differs in half precision.
    for key in [
        "n_ctx",
        "n_special",
        "predict_special_tokens",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ] {
        cfg.ignore(key);
    }
    cfg.must_be_off("add_cross_attention")?;
    let found = Found {
        sizes: sizes(cfg)?,
        eps: cfg.opt_positive("layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
        activation: activation_or(cfg, "activation_function", Activation::GeluTanh)?,
        tied: cfg.bool_or("tie_word_embeddings", true)?,
    };
    let is_scaled = cfg.bool_or("scale_attn_weights", true)?;
    let by_layer = cfg.bool_or("scale_attn_by_inverse_layer_idx", false)?;
    cfg.finish()?;
    let mut spec = decoder(found);
    for (i, attention) in attentions(&mut spec) {
        let scale = match is_scaled {
            true => f64::from(attention.d_head).powf(-0.5),
            false => 1.0,
        };
        let divisor = if by_layer { i as f64 + 1.0 } else { 1.0 };
        attention.scale = (scale / divisor) as f32;
    }
    Ok(spec)
}

/// GPT-2's own names, or those that other families use for the same sizes.
fn sizes(cfg: &RawConfig<'_>) -> Result<Sizes, ModelError> {
    let size = |keys: &[&str]| match same_u32(cfg, keys)? {
        None => Err(cfg.missing(keys[0])),
        Some(0) => Err(cfg.bad(keys[0], &Value::from(0), "a number above 0")),
        Some(size) => Ok(size),
    };
    let d_model = size(&["n_embd", "hidden_size"])?;
    let n_heads = size(&["n_head", "num_attention_heads"])?;
    if !d_model.is_multiple_of(n_heads) {
        let expected = format!("a divisor of {d_model}");
        return Err(cfg.bad("n_head", &Value::from(n_heads), &expected));
    }
    let sizes = Sizes {
        n_layers: size(&["n_layer", "num_hidden_layers"])?,
        d_model,
        d_mlp: match cfg.opt_u32("n_inner")? {
            Some(width) => width,
            None => d_model.saturating_mul(4),
        },
        d_vocab: cfg.u32("vocab_size")?,
        n_ctx: size(&["n_positions", "max_position_embeddings"])?,
        n_heads,
        n_kv_heads: n_heads,
        d_head: d_model / n_heads,
    };
    check_sizes(sizes, |_, got, expected| {
        cfg.bad("n_layer or n_head", &Value::from(got), expected)
    })?;
    Ok(sizes)
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "gpt2";
    let found = Found {
        sizes: sizes_from_gguf(facts, arch)?,
        eps: gguf_needed(facts, arch, "attention.layer_norm_epsilon")?,
        activation: Activation::GeluTanh,
        tied: !facts.has_head(),
    };
    // Some writers state a rope although nothing turns.
    gguf_u32(facts, arch, "rope.dimension_count")?;
    gguf_finish(
        facts,
        arch,
        &["attention.layer_norm_epsilon", "rope.dimension_count"],
    )?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "gpt2",
        sizes: found.sizes,
        norm: mean_norm(found.eps),
        attention_bias: AttentionBias::Qkvo,
        mlp_bias: true,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    spec.embedding.learned_positions = Some(found.sizes.n_ctx);
    without_gate(&mut spec);
    spec
}
