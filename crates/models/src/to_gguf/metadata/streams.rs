//! Keys of parallel streams, of per-layer embeddings, and of layers that share keys and values or have heads of two widths.

use larql_formats::gguf::{Array, Value};

use super::{Keys, attention};
use crate::spec::{AttentionSpec, Ffn, KvSource, LayerSpec, ModelSpec};

/// What stock tools want wherever values are normalized: which layers have a window, and the widths of their heads.
pub(super) fn keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    let attentions = || spec.layers.iter().filter_map(attention);
    if attentions().any(|attn| attn.v_norm.is_some()) {
        let flags = attentions().map(|attn| attn.window.is_some()).collect();
        let pattern = Value::Array(Array::Bool(flags));
        keys.put("attention.sliding_window_pattern", pattern);
        let is_shared = |attn: &&AttentionSpec| matches!(attn.kv, KvSource::SharedFrom(_));
        let n_shared = attentions().filter(is_shared).count();
        keys.u32("attention.shared_kv_layers", n_shared as u32);
        let per_layer = spec.embedding.per_layer.as_ref();
        let width = per_layer.map_or(0, |per_layer| per_layer.width);
        keys.u32("embedding_length_per_layer_input", width);
    }
    let (local, global) = (
        attentions().find(|attn| attn.window.is_some()),
        attentions().find(|attn| attn.window.is_none()),
    );
    if let (Some(local), Some(global)) = (local, global) {
        keys.u32("attention.key_length", global.d_head);
        keys.u32("attention.value_length", global.d_head);
        if spec.layers.iter().any(|layer| layer.layer_scalar) {
            keys.u32("attention.key_length_swa", local.d_head);
            keys.u32("attention.value_length_swa", local.d_head);
            if let Some(rope) = &local.rope {
                keys.u32("rope.dimension_count_swa", rope.dims);
            }
        }
    }
    if let Some(altup) = spec.altup {
        keys.u32("altup.num_inputs", altup.n_streams);
        keys.u32("altup.active_idx", altup.active);
        let cutoffs = spec.layers.iter().map(cutoff).collect();
        let cutoffs = Value::Array(Array::F32(cutoffs));
        keys.put("activation_sparsity_scale", cutoffs);
    }
}

/// The cutoff of a layer's gates; below all of them where there is none.
fn cutoff(layer: &LayerSpec) -> f32 {
    let cutoff = match &layer.ffn {
        Ffn::Gated(ffn) => ffn.gate_cutoff,
        Ffn::Plain(_) | Ffn::Moe(_) => None,
    };
    cutoff.unwrap_or(f32::NEG_INFINITY)
}
