//! Gemma's classes.

use serde_json::{Map, Value};

use super::keys::{
    Keys, Spelling, USUAL, Unsayable, activation, any_window, common, first_attention,
    first_router, has_bias, router_of, simplest, sizes, softmax_layers, windowed_types,
};
use super::rope::{self, Share};
use crate::families::gemma3n::{normal_share, standard_deviations};
use crate::spec::{AttentionSpec, Ffn, FfnSpec, KvSource, LayerSpec, ModelSpec};

/// What the later generations call the activation.
const HIDDEN_ACTIVATION: Spelling = Spelling {
    activation: "hidden_activation",
    ..USUAL
};

pub(super) fn one(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    Ok(keys)
}

pub(super) fn two(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &HIDDEN_ACTIVATION)?;
    let attention = first_attention(spec)?;
    keys.put("attention_bias", has_bias(attention));
    let scale = attention.scale;
    let query = simplest(f64::from(scale).powi(-2), |x| x.powf(-0.5) as f32 == scale);
    // The class wants a whole number where it is one.
    if query.fract() == 0.0 && query < f64::from(u32::MAX) {
        keys.put("query_pre_attn_scalar", query as u32);
    } else {
        keys.put("query_pre_attn_scalar", query);
    }
    // Some classes have caps where no key says so.
    keys.number_or_null("attn_logit_softcapping", attention.softcap);
    keys.number_or_null("final_logit_softcapping", spec.head.softcap);
    windows(&mut keys, spec);
    Ok(keys)
}

pub(super) fn three(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = two(spec)?;
    ropes(&mut keys, spec)?;
    Ok(keys)
}

fn windows(keys: &mut Keys, spec: &ModelSpec) {
    if let Some(window) = any_window(spec) {
        keys.put("sliding_window", window);
    }
    keys.put("layer_types", windowed_types(spec));
}

/// A rope for layers with a window and one for those without; a kind that no layer is of takes that of the other.
fn ropes(keys: &mut Keys, spec: &ModelSpec) -> Result<(), Unsayable> {
    let (local, global) = kinds(spec)?;
    let mut both = Map::new();
    for (key, attention) in [("sliding_attention", local), ("full_attention", global)] {
        if let Some(rope) = &attention.rope {
            let params = rope::parameters(rope, attention.d_head, spec.n_ctx, Share::Whole)?;
            both.insert(key.to_owned(), params.into_map().into());
        }
    }
    keys.put("rope_parameters", both);
    Ok(())
}

/// The first layer with a window and the first without; the other kind's where there is none.
fn kinds(spec: &ModelSpec) -> Result<(&AttentionSpec, &AttentionSpec), Unsayable> {
    let first = first_attention(spec)?;
    let of_kind = |windowed: bool| {
        softmax_layers(spec).find(|attention| attention.window.is_some() == windowed)
    };
    Ok((
        of_kind(true).unwrap_or(first),
        of_kind(false).unwrap_or(first),
    ))
}

/// What Gemma 3n and Gemma 4 state alike.
fn shared(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let (local, _) = kinds(spec)?;
    let mut keys = sizes(spec);
    keys.number("rms_norm_eps", spec.final_norm.eps);
    keys.put("num_attention_heads", local.n_heads);
    keys.put("num_key_value_heads", local.n_kv_heads);
    keys.put("head_dim", local.d_head);
    keys.put("attention_bias", has_bias(local));
    if let Some(ffn) = spec.layers.first().and_then(dense) {
        let name = activation(ffn.activation, USUAL.tanh)?;
        keys.put("hidden_activation", name);
    }
    keys.number_or_null("final_logit_softcapping", spec.head.softcap);
    windows(&mut keys, spec);
    ropes(&mut keys, spec)?;
    let n_shared = softmax_layers(spec).filter(|attention| is_shared(attention));
    keys.put("num_kv_shared_layers", n_shared.count());
    match &spec.embedding.per_layer {
        Some(per_layer) => {
            keys.put("hidden_size_per_layer_input", per_layer.width);
            keys.put("vocab_size_per_layer_input", per_layer.d_vocab);
        }
        None => keys.put("hidden_size_per_layer_input", 0),
    }
    Ok(keys)
}

fn is_shared(attention: &AttentionSpec) -> bool {
    match attention.kv {
        KvSource::SharedFrom(_) => true,
        KvSource::Own | KvSource::KeyIsValue => false,
    }
}

/// The FFN of a layer that is not an expert.
fn dense(layer: &LayerSpec) -> Option<&FfnSpec> {
    match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => Some(ffn),
        Ffn::Moe(moe) => moe.parallel_dense.as_ref().map(|dense| &dense.ffn),
    }
}

pub(super) fn three_n(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = shared(spec)?;
    let ffns: Vec<&FfnSpec> = spec.layers.iter().filter_map(dense).collect();
    let widths: Vec<u32> = ffns.iter().map(|ffn| ffn.d_mlp).collect();
    keys.put("intermediate_size", widths);
    let shares: Vec<f64> = ffns.iter().map(|ffn| cut_off(ffn.gate_cutoff)).collect();
    keys.put("activation_sparsity_pattern", shares);
    if let Some(altup) = &spec.altup {
        keys.put("altup_num_inputs", altup.n_streams);
        keys.put("altup_active_idx", altup.active);
        keys.put("altup_correct_scale", altup.correct_scale);
    }
    let laurel = spec.layers.first().and_then(|layer| layer.laurel);
    if let Some(laurel) = laurel {
        keys.put("laurel_rank", laurel.rank);
    }
    Ok(keys)
}

/// The share of gates that a cutoff leaves at zero.
fn cut_off(cutoff: Option<f32>) -> f64 {
    let Some(cutoff) = cutoff else {
        return 0.0;
    };
    // Converters find the cutoff in f32.
    let tolerance = f32::EPSILON * cutoff.abs();
    simplest(normal_share(f64::from(cutoff)), |share| {
        (0.0..1.0).contains(&share) && (standard_deviations(share) - cutoff).abs() <= tolerance
    })
}

pub(super) fn four(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = shared(spec)?;
    let (local, _) = kinds(spec)?;
    keys.put("per_layer_config", heads(spec, local));
    let key_is_value =
        softmax_layers(spec).any(|attention| matches!(attention.kv, KvSource::KeyIsValue));
    keys.put("attention_k_eq_v", key_is_value);
    let wide = spec.layers.iter().zip(softmax_layers(spec));
    let mut wide = wide.filter(|(_, attention)| is_shared(attention));
    let own = spec.layers.first().and_then(dense).map(|ffn| ffn.d_mlp);
    let is_wide = wide.any(|(layer, _)| dense(layer).map(|ffn| ffn.d_mlp) != own);
    keys.put("use_double_wide_mlp", is_wide);
    let has_experts = spec.layers.iter().any(|layer| router_of(layer).is_some());
    keys.put("enable_moe_block", has_experts);
    if has_experts {
        let router = first_router(spec)?;
        keys.put("num_experts", router.n_experts);
        keys.put("top_k_experts", router.n_active);
        keys.put("moe_intermediate_size", router.expert.d_mlp);
    }
    Ok(keys)
}

/// Heads of the layers that differ from those the keys for all layers describe.
fn heads(spec: &ModelSpec, common: &AttentionSpec) -> Map<String, Value> {
    let mut layers = Map::new();
    for (i, attention) in softmax_layers(spec).enumerate() {
        let mut changes = Keys::default();
        if attention.d_head != common.d_head {
            changes.put("head_dim", attention.d_head);
        }
        if attention.n_kv_heads != common.n_kv_heads {
            changes.put("num_key_value_heads", attention.n_kv_heads);
        }
        let changes = changes.into_map();
        if !changes.is_empty() {
            layers.insert(i.to_string(), changes.into());
        }
    }
    layers
}
