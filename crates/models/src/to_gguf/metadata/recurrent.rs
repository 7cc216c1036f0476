//! Keys of mixers with a recurrent state.

use larql_formats::gguf::{Array, Value};

use super::Keys;
use crate::spec::{GatedDeltaSpec, KdaSpec, LayerSpec, Mixer, ModelSpec};

/// Widths of the state and of the convolution, and which layers have them.
pub(super) fn keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    if let Some(kda) = spec.layers.iter().find_map(kda) {
        // The number of heads is that of the rows of a tensor.
        keys.u32("kda.head_dim", kda.d_head);
        keys.u32("ssm.conv_kernel", kda.conv_width);
    }
    if let Some(delta) = spec.layers.iter().find_map(gated_delta) {
        keys.u32("ssm.conv_kernel", delta.conv_width);
        keys.u32("ssm.state_size", delta.d_key);
        keys.u32("ssm.group_count", delta.n_key_heads);
        keys.u32("ssm.time_step_rank", delta.n_value_heads);
        keys.u32("ssm.inner_size", delta.n_value_heads * delta.d_value);
        let flags: Vec<bool> = spec
            .layers
            .iter()
            .map(|layer| gated_delta(layer).is_some())
            .collect();
        if let Some(interval) = interval(&flags) {
            keys.u32("full_attention_interval", interval);
        }
        keys.put(
            "attention.recurrent_layers",
            Value::Array(Array::Bool(flags)),
        );
    }
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

/// The `n` such that exactly every `n`-th layer is not recurrent.
fn interval(recurrent: &[bool]) -> Option<u32> {
    let first = recurrent.iter().position(|recurrent| !recurrent)? + 1;
    let fits = recurrent
        .iter()
        .enumerate()
        .all(|(i, recurrent)| *recurrent == ((i + 1) % first != 0));
    fits.then(|| u32::try_from(first).unwrap_or(u32::MAX))
}
