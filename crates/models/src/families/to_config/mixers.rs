//! Classes of decoders with latent attention, delta attention or gated delta nets.

use super::keys::{
    Keys, Spelling, USUAL, Unsayable, common, first_router, is_near, router_of, simplest, sizes,
};
use super::moe::{experts, shared_width, some_sparse};
use super::rope::{self, Share};
use crate::rope::yarn_mscale;
use crate::spec::{
    GatedDeltaSpec, KdaSpec, LayerSpec, Mixer, MlaSpec, ModelSpec, MoeSpec, RopeLayout,
    RopeScaling, RouterSelect,
};

/// The latent attention of the first layer that has it.
fn first_mla(spec: &ModelSpec) -> Result<&MlaSpec, Unsayable> {
    let mut found = spec.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Mla(mla) => Some(mla),
        Mixer::Attention(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    });
    found
        .next()
        .ok_or_else(|| Unsayable("a model without a layer of latent attention".to_owned()))
}

/// Sizes and latent attention.
fn latent(spec: &ModelSpec, mla: &MlaSpec) -> Keys {
    let mut keys = sizes(spec);
    keys.number("rms_norm_eps", spec.final_norm.eps);
    keys.put("hidden_act", "silu");
    keys.put("num_attention_heads", mla.n_heads);
    keys.put("num_key_value_heads", mla.n_heads);
    // Classes have a rank of their own where no key says so.
    keys.put("q_lora_rank", mla.q_rank);
    keys.put("kv_lora_rank", mla.kv_rank);
    keys.put("qk_nope_head_dim", mla.d_nope);
    keys.put("qk_rope_head_dim", mla.d_rope);
    keys.put("v_head_dim", mla.d_value);
    keys
}

pub(super) fn deepseek_v2(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = deepseek(spec)?;
    match first_router(spec)?.select {
        RouterSelect::TopK => keys.put("topk_method", "greedy"),
        RouterSelect::Grouped {
            n_groups,
            n_kept,
            group_top: _,
        } => {
            keys.put("topk_method", "group_limited_greedy");
            keys.put("n_group", n_groups);
            keys.put("topk_group", n_kept);
        }
    }
    Ok(keys)
}

pub(super) fn deepseek_v3(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let mut keys = deepseek(spec)?;
    let (n_groups, n_kept) = groups(first_router(spec)?);
    keys.put("n_group", n_groups);
    keys.put("topk_group", n_kept);
    if let Some(rope) = &first_mla(spec)?.rope {
        let interleaved = match rope.layout {
            RopeLayout::Interleaved => true,
            RopeLayout::Split => false,
        };
        keys.put("rope_interleave", interleaved);
    }
    Ok(keys)
}

/// Groups of experts, of which one is none, and how many are kept.
fn groups(router: &MoeSpec) -> (u32, u32) {
    match router.select {
        RouterSelect::TopK => (1, 1),
        RouterSelect::Grouped {
            n_groups,
            n_kept,
            group_top: _,
        } => (n_groups, n_kept),
    }
}

fn deepseek(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let (mla, router) = (first_mla(spec)?, first_router(spec)?);
    let mut keys = latent(spec, mla);
    if let Some(found) = &mla.rope {
        let mut params = rope::parameters(found, mla.d_rope, spec.n_ctx, Share::Whole)?;
        stretched_scores(&mut params, mla, &found.scaling);
        keys.put("rope_parameters", params.into_map());
    }
    let n_dense = spec
        .layers
        .iter()
        .take_while(|layer| router_of(layer).is_none());
    keys.put("first_k_dense_replace", n_dense.count());
    experts(&mut keys, "n_routed_experts", router);
    keys.put("moe_intermediate_size", router.expert.d_mlp);
    keys.put("n_shared_experts", n_shared(router));
    keys.put("norm_topk_prob", router.renormalize.is_some());
    keys.number("routed_scaling_factor", router.scaling);
    Ok(keys)
}

/// How many experts the one that always runs is as wide as.
fn n_shared(router: &MoeSpec) -> u32 {
    let width = router.shared.as_ref().map_or(0, |shared| shared.ffn.d_mlp);
    width.checked_div(router.expert.d_mlp).unwrap_or(0)
}

/// `mscale_all_dim`, by which YaRN stretches scores, and what it leaves of the factor on cos and sin.
fn stretched_scores(params: &mut Keys, mla: &MlaSpec, scaling: &RopeScaling) {
    let RopeScaling::Yarn {
        factor,
        attention_factor,
        ..
    } = scaling
    else {
        return;
    };
    let plain = f64::from(mla.d_nope + mla.d_rope).powf(-0.5);
    let stretch = (f64::from(mla.scale) / plain).sqrt();
    if is_near(stretch, 1.0) || *factor <= 1.0 {
        return;
    }
    let all_dim = simplest((stretch - 1.0) / (0.1 * factor.ln()), |all_dim| {
        let stretch = yarn_mscale(*factor, all_dim);
        is_near(f64::from(mla.scale), plain * stretch * stretch)
    });
    params.number("mscale_all_dim", all_dim);
    // Two scales that are the same leave nothing.
    if is_near(*attention_factor, 1.0) {
        params.remove("attention_factor");
        params.number("mscale", all_dim);
    }
}

pub(super) fn kimi_linear(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let router = first_router(spec)?;
    let mut keys = latent(spec, first_mla(spec)?);
    keys.remove("max_position_embeddings");
    keys.put("model_max_length", spec.n_ctx);
    let mut types = Vec::with_capacity(spec.layers.len());
    for layer in &spec.layers {
        types.push(match kda(layer) {
            Some(kda) => {
                keys.put("linear_num_heads", kda.n_heads);
                keys.put("linear_head_dim", kda.d_head);
                keys.put("linear_conv_kernel_dim", kda.conv_width);
                "linear_attention"
            }
            None => "full_attention",
        });
    }
    keys.put("layer_types", types);
    let sparse = spec.layers.iter().map(|layer| match router_of(layer) {
        Some(_) => "sparse",
        None => "dense",
    });
    keys.put("mlp_layer_types", sparse.collect::<Vec<_>>());
    let (n_groups, n_kept) = groups(router);
    keys.put("num_expert_group", n_groups);
    keys.put("topk_group", n_kept);
    keys.put("num_experts", router.n_experts);
    keys.put("num_experts_per_token", router.n_active);
    keys.put("num_shared_experts", n_shared(router));
    keys.put("moe_intermediate_size", router.expert.d_mlp);
    keys.put("moe_renormalize", router.renormalize.is_some());
    keys.number("routed_scaling_factor", router.scaling);
    Ok(keys)
}

fn kda(layer: &LayerSpec) -> Option<&KdaSpec> {
    match &layer.mixer {
        Mixer::Kda(kda) => Some(kda),
        Mixer::Attention(_) | Mixer::Mla(_) | Mixer::GatedDelta(_) => None,
    }
}

fn gated_delta(layer: &LayerSpec) -> Option<&GatedDeltaSpec> {
    match &layer.mixer {
        Mixer::GatedDelta(delta) => Some(delta),
        Mixer::Attention(_) | Mixer::Mla(_) | Mixer::Kda(_) => None,
    }
}

pub(super) fn qwen3_next(spec: &ModelSpec) -> Result<Keys, Unsayable> {
    let spelling = Spelling {
        share: Share::Stated,
        ..USUAL
    };
    let mut keys = common(spec, &spelling)?;
    let mut types = Vec::with_capacity(spec.layers.len());
    for layer in &spec.layers {
        types.push(match gated_delta(layer) {
            Some(delta) => {
                keys.put("linear_num_key_heads", delta.n_key_heads);
                keys.put("linear_num_value_heads", delta.n_value_heads);
                keys.put("linear_key_head_dim", delta.d_key);
                keys.put("linear_value_head_dim", delta.d_value);
                keys.put("linear_conv_kernel_dim", delta.conv_width);
                "linear_attention"
            }
            None => "full_attention",
        });
    }
    keys.put("layer_types", types);
    let router = first_router(spec)?;
    experts(&mut keys, "num_experts", router);
    some_sparse(&mut keys, spec)?;
    shared_width(&mut keys, router);
    Ok(keys)
}
