//! Classes of dense decoders.

use super::keys::{
    self, DERIVED, Keys, Spelling, USUAL, Unsayable, any_window, common, first_attention, has_bias,
    is_near, mlp_bias, simplest, softmax_layers, windowed_types,
};
use super::rope::Share;
use crate::spec::{BlockShape, Ffn, ModelSpec, QkNorm, RopeScaling};

/// Layer norms, and layers that turn part of a head.
const PARTIAL_LAYER_NORM: Spelling = Spelling {
    eps: "layer_norm_eps",
    share: Share::Stated,
    ..DERIVED
};

pub(super) fn llama(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    keys.put("mlp_bias", mlp_bias(spec));
    Ok(keys)
}

pub(super) fn mistral(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    keys.put("sliding_window", any_window(spec));
    Ok(keys)
}

pub(super) fn qwen2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    switched_windows(&mut keys, spec);
    keys.put("layer_types", windowed_types(spec));
    Ok(keys)
}

pub(super) fn qwen3(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    switched_windows(&mut keys, spec);
    keys.put("layer_types", windowed_types(spec));
    Ok(keys)
}

/// A window that a switch silences.
pub(super) fn switched_windows(keys: &mut Keys, spec: &ModelSpec) {
    let window = any_window(spec);
    keys.put("use_sliding_window", window.is_some());
    if let Some(window) = window {
        keys.put("sliding_window", window);
    }
}

pub(super) fn olmo2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    Ok(keys)
}

pub(super) fn phi(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        tanh: "gelu_new",
        ..PARTIAL_LAYER_NORM
    };
    let mut keys = common(spec, &spelling)?;
    let has_norm = match first_attention(spec)?.qk_norm {
        QkNorm::Absent => false,
        QkNorm::PerHead(_) | QkNorm::FullWidth(_) => true,
    };
    keys.put("qk_layernorm", has_norm);
    Ok(keys)
}

pub(super) fn phi3(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        share: Share::Stated,
        ..DERIVED
    };
    let mut keys = common(spec, &spelling)?;
    keys.put("sliding_window", any_window(spec));
    // The class reads it beside the parameters of the rope.
    if let Some(RopeScaling::LongRope {
        original_context, ..
    }) = keys::any_rope(spec).map(|rope| &rope.scaling)
    {
        keys.put("original_max_position_embeddings", *original_context);
    }
    Ok(keys)
}

pub(super) fn granite(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = granite_common(spec)?;
    keys.put("mlp_bias", mlp_bias(spec));
    Ok(keys)
}

/// Both granite classes: factors on embeddings, scores, branches and logits.
pub(super) fn granite_common(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    let attention = first_attention(spec)?;
    keys.put("attention_bias", has_bias(attention));
    keys.number("embedding_multiplier", spec.embedding.multiplier);
    keys.number("attention_multiplier", attention.scale);
    if let Some(layer) = spec.layers.first() {
        keys.number("residual_multiplier", layer.residual_multiplier);
    }
    let scale = spec.head.scale;
    let divisor = simplest(1.0 / f64::from(scale), |d| (1.0 / d) as f32 == scale);
    keys.put("logits_scaling", divisor);
    Ok(keys)
}

pub(super) fn starcoder2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        eps: "norm_epsilon",
        ..DERIVED
    };
    let mut keys = common(spec, &spelling)?;
    keys.put("use_bias", mlp_bias(spec));
    keys.put("sliding_window", any_window(spec));
    Ok(keys)
}

/// GPT-2 has names of its own for everything.
pub(super) fn gpt2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let attention = first_attention(spec)?;
    let mut keys = Keys::default();
    keys.put("vocab_size", spec.d_vocab);
    keys.put("n_positions", spec.n_ctx);
    keys.put("n_embd", spec.d_model);
    keys.put("n_layer", spec.layers.len());
    keys.put("n_head", attention.n_heads);
    if let Some(Ffn::Plain(ffn)) = spec.layers.first().map(|layer| &layer.ffn) {
        let name = keys::activation(ffn.activation, "gelu_new")?;
        keys.put("activation_function", name);
        if spec.d_model.checked_mul(4) != Some(ffn.d_mlp) {
            keys.put("n_inner", ffn.d_mlp);
        }
    }
    keys.number("layer_norm_epsilon", spec.final_norm.eps);
    keys.put("tie_word_embeddings", spec.head.tied);
    let first = f64::from(attention.scale);
    keys.put("scale_attn_weights", attention.scale != 1.0);
    let second = softmax_layers(spec).nth(1);
    let by_layer = second.is_some_and(|second| is_near(first, 2.0 * f64::from(second.scale)));
    keys.put("scale_attn_by_inverse_layer_idx", by_layer);
    Ok(keys)
}

pub(super) fn cohere2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        eps: "layer_norm_eps",
        ..DERIVED
    };
    let mut keys = common(spec, &spelling)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    keys.number("logit_scale", spec.head.scale);
    if let Some(window) = any_window(spec) {
        keys.put("sliding_window", window);
    }
    keys.put("layer_types", windowed_types(spec));
    Ok(keys)
}

pub(super) fn smollm3(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    keys.put("mlp_bias", mlp_bias(spec));
    switched_windows(&mut keys, spec);
    keys.put("layer_types", windowed_types(spec));
    let turned = softmax_layers(spec).map(|attention| u32::from(attention.rope.is_some()));
    keys.put("no_rope_layers", turned.collect::<Vec<_>>());
    Ok(keys)
}

pub(super) fn glm4(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        share: Share::Stated,
        ..USUAL
    };
    let mut keys = common(spec, &spelling)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    Ok(keys)
}

pub(super) fn arcee(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    llama(spec)
}

pub(super) fn stablelm(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &PARTIAL_LAYER_NORM)?;
    keys.put("use_qkv_bias", has_bias(first_attention(spec)?));
    let is_parallel = match spec.layers.first().map(|layer| &layer.block) {
        Some(BlockShape::Parallel { .. }) => true,
        Some(
            BlockShape::PreNorm { .. } | BlockShape::Sandwich { .. } | BlockShape::PostNorm { .. },
        )
        | None => false,
    };
    keys.put("use_parallel_residual", is_parallel);
    Ok(keys)
}
