//! Keys of latent attention and of the routers that come with it.

use super::moe::router;
use super::{Keys, rope_keys};
use crate::rope::yarn_attention_factor;
use crate::spec::{LayerSpec, Mixer, MlaSpec, ModelSpec, MoeSpec, RopeScaling, RouterSelect};

/// Digits of `mscale_all_dim` that a factor on scores in f32 keeps.
const ALL_DIM_DIGITS: f64 = 1e4;

/// Widths of the latents, what YaRN does to scores, groups of experts, and the dense layers that come first.
pub(super) fn keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    let Some(mla) = spec.layers.iter().find_map(mla) else {
        return;
    };
    keys.u32("attention.head_count", mla.n_heads);
    if kv_heads(spec, 1).contains(&0) {
        // Beside recurrent layers stock tools run latents only as what they cache.
        cached_keys(keys, spec);
    } else {
        keys.per_layer("attention.head_count_kv", kv_heads(spec, mla.n_heads));
        keys.u32("attention.key_length", mla.d_nope + mla.d_rope);
        keys.u32("attention.value_length", mla.d_value);
    }
    // Stock tools want the key even where queries have no latent.
    keys.u32("attention.q_lora_rank", mla.q_rank.unwrap_or(0));
    keys.u32("attention.kv_lora_rank", mla.kv_rank);
    match &mla.rope {
        Some(rope) => rope_keys(keys, rope),
        None => keys.u32("rope.dimension_count", mla.d_rope),
    }
    stretch_keys(keys, mla);
    let n_dense = spec
        .layers
        .iter()
        .take_while(|layer| router(layer).is_none());
    keys.u32("leading_dense_block_count", n_dense.count() as u32);
    if let Some(moe) = spec.layers.iter().find_map(router) {
        expert_keys(keys, moe);
    }
}

/// Widths of what a cache of latents holds, one head for all, and those of heads under keys of their own.
pub(super) fn cached_keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    let Some(mla) = spec.layers.iter().find_map(mla) else {
        return;
    };
    keys.per_layer("attention.head_count_kv", kv_heads(spec, 1));
    keys.u32("attention.key_length", mla.kv_rank + mla.d_rope);
    keys.u32("attention.value_length", mla.kv_rank);
    keys.u32("attention.key_length_mla", mla.d_nope + mla.d_rope);
    keys.u32("attention.value_length_mla", mla.d_value);
}

/// Heads of keys and values of each layer, those of latents being so many.
fn kv_heads(spec: &ModelSpec, latent: u32) -> Vec<u32> {
    let heads = |layer: &LayerSpec| match &layer.mixer {
        Mixer::Mla(_) => latent,
        Mixer::Attention(attention) => attention.n_kv_heads,
        // Which is how stock tools know recurrent layers.
        Mixer::Kda(_) | Mixer::GatedDelta(_) => 0,
    };
    spec.layers.iter().map(heads).collect()
}

fn mla(layer: &LayerSpec) -> Option<&MlaSpec> {
    match &layer.mixer {
        Mixer::Mla(mla) => Some(mla),
        Mixer::Attention(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    }
}

/// By how much YaRN stretches scores; readers of the key then leave cos and sin as they are.
fn stretch_keys(keys: &mut Keys<'_>, mla: &MlaSpec) {
    let Some(RopeScaling::Yarn {
        factor,
        attention_factor,
        ..
    }) = mla.rope.as_ref().map(|rope| &rope.scaling)
    else {
        return;
    };
    let plain = f64::from(mla.d_nope + mla.d_rope).powf(-0.5);
    let stretch = (f64::from(mla.scale) / plain).sqrt();
    let per_all_dim = yarn_attention_factor(*factor) - 1.0;
    let all_dim = ((stretch - 1.0) / per_all_dim * ALL_DIM_DIGITS).round() / ALL_DIM_DIGITS;
    if all_dim == 0.0 || !all_dim.is_finite() {
        return;
    }
    keys.f32("rope.scaling.yarn_log_multiplier", all_dim / 10.0);
    keys.restore("rope.scaling.attn_factor", None);
    if *attention_factor as f32 != 1.0 {
        keys.f32("rope.scaling.attn_factor", *attention_factor);
    }
}

fn expert_keys(keys: &mut Keys<'_>, moe: &MoeSpec) {
    if let RouterSelect::Grouped {
        n_groups, n_kept, ..
    } = moe.select
    {
        keys.u32("expert_group_count", n_groups);
        keys.u32("expert_group_used_count", n_kept);
    }
    let d_shared = moe.shared.map_or(0, |shared| shared.ffn.d_mlp);
    if d_shared.is_multiple_of(moe.expert.d_mlp) {
        keys.restore("expert_shared_feed_forward_length", None);
        keys.u32("expert_shared_count", d_shared / moe.expert.d_mlp);
    }
}
