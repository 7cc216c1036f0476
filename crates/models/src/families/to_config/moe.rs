//! Classes of decoders with experts and ordinary attention.

use super::dense::{granite_common, switched_windows};
use super::keys::{
    self, DERIVED, Keys, USUAL, Unsayable, any_window, common, first_attention, first_router,
    has_bias, router_of, windowed_types,
};
use super::rope::{self, Share};
use crate::spec::{Activation, ModelSpec, MoeSpec};

pub(super) fn mixtral(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    experts(&mut keys, "num_local_experts", first_router(spec)?);
    keys.put("sliding_window", any_window(spec));
    Ok(keys)
}

pub(super) fn qwen2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    experts(&mut keys, "num_experts", first_router(spec)?);
    some_sparse(&mut keys, spec)?;
    shared_width(&mut keys, first_router(spec)?);
    keys.put("qkv_bias", has_bias(first_attention(spec)?));
    switched_windows(&mut keys, spec);
    keys.put("layer_types", windowed_types(spec));
    Ok(keys)
}

pub(super) fn qwen3(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &USUAL)?;
    experts(&mut keys, "num_local_experts", first_router(spec)?);
    some_sparse(&mut keys, spec)?;
    keys.put("attention_bias", has_bias(first_attention(spec)?));
    switched_windows(&mut keys, spec);
    Ok(keys)
}

/// The width of the expert that always runs.
pub(super) fn shared_width(keys: &mut Keys, router: &MoeSpec) {
    if let Some(shared) = &router.shared {
        keys.put("shared_expert_intermediate_size", shared.ffn.d_mlp);
    }
}

/// Experts of a width of their own, in some of the layers.
pub(super) fn some_sparse(keys: &mut Keys, spec: &ModelSpec) -> Result<(), Unsayable> {
    let router = first_router(spec)?;
    keys.put("moe_intermediate_size", router.expert.d_mlp);
    keys.put("norm_topk_prob", router.renormalize.is_some());
    keys.put("decoder_sparse_step", 1);
    let layers = spec.layers.iter().enumerate();
    let dense = layers.filter(|(_, layer)| router_of(layer).is_none());
    let dense: Vec<usize> = dense.map(|(i, _)| i).collect();
    keys.put("mlp_only_layers", dense);
    Ok(())
}

pub(super) fn experts(keys: &mut Keys, count: &str, router: &MoeSpec) {
    keys.put(count, router.n_experts);
    keys.put("num_experts_per_tok", router.n_active);
}

pub(super) fn olmoe(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = common(spec, &DERIVED)?;
    let (attention, router) = (first_attention(spec)?, first_router(spec)?);
    experts(&mut keys, "num_experts", router);
    keys.put("norm_topk_prob", router.renormalize.is_some());
    keys.put("attention_bias", has_bias(attention));
    keys.number_or_null("clip_qkv", attention.clip_qkv);
    Ok(keys)
}

pub(super) fn granite(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = granite_common(spec)?;
    experts(&mut keys, "num_local_experts", first_router(spec)?);
    Ok(keys)
}

/// The class fixes the form of the gate, whatever the activation it names.
pub(super) fn gpt_oss(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let (attention, router) = (first_attention(spec)?, first_router(spec)?);
    let Activation::ClampedGlu { alpha, limit } = router.expert.activation else {
        return Err(Unsayable("a gate that is not clamped".to_owned()));
    };
    let mut keys = keys::sizes(spec);
    keys.number("rms_norm_eps", spec.final_norm.eps);
    keys.put("num_attention_heads", attention.n_heads);
    keys.put("num_key_value_heads", attention.n_kv_heads);
    keys.put("head_dim", attention.d_head);
    keys.put("attention_bias", has_bias(attention));
    keys.put("hidden_act", "silu");
    keys.number("swiglu_alpha", alpha);
    keys.number("swiglu_limit", limit);
    experts(&mut keys, "num_local_experts", router);
    if let Some(window) = any_window(spec) {
        keys.put("sliding_window", window);
    }
    keys.put("layer_types", windowed_types(spec));
    if let Some(found) = keys::any_rope(spec) {
        let params = rope::parameters(found, attention.d_head, spec.n_ctx, Share::Whole)?;
        keys.put("rope_parameters", params.into_map());
    }
    Ok(keys)
}
