//! Keys of FFNs and of the routers over them.

use super::Keys;
use crate::spec::{Ffn, LayerSpec, ModelSpec, MoeSpec};

/// Widths of the FFNs, and the counts and widths of experts.
pub(super) fn keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    keys.per_layer("feed_forward_length", widths(spec));
    let Some(moe) = spec.layers.iter().find_map(router) else {
        return;
    };
    keys.u32("expert_count", moe.n_experts);
    keys.u32("expert_used_count", moe.n_active);
    keys.u32("expert_feed_forward_length", moe.expert.d_mlp);
    if let Some(shared) = &moe.shared {
        keys.u32("expert_shared_feed_forward_length", shared.ffn.d_mlp);
    }
}

/// A layer's router.
pub(super) fn router(layer: &LayerSpec) -> Option<&MoeSpec> {
    match &layer.ffn {
        Ffn::Gated(_) | Ffn::Plain(_) => None,
        Ffn::Moe(moe) => Some(moe),
    }
}

/// The width of each layer's dense FFN; of layers that have none, that of the first layer that has, or of an expert.
fn widths(spec: &ModelSpec) -> Vec<u32> {
    let dense = |layer: &LayerSpec| match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => Some(ffn.d_mlp),
        Ffn::Moe(moe) => moe.parallel_dense.as_ref().map(|dense| dense.ffn.d_mlp),
    };
    let first = spec.layers.iter().find_map(dense);
    let width = |layer| {
        let own = dense(layer).or(first);
        own.or_else(|| router(layer).map(|moe| moe.expert.d_mlp))
    };
    spec.layers.iter().filter_map(width).collect()
}
