//! Numbers of GGUF metadata that say once more what tensors or other keys say.
//!
//! Readers take each fact from one place. Where a file states it in another place too, the two must agree: which of them
//! the file's author meant cannot be known. Keys that no reader knows are refused elsewhere
//! ([`super::gguf::gguf_finish`]).

use super::gguf::{gguf_bad, gguf_per_layer, gguf_u32};
use super::{GgufFacts, rope};
use crate::error::ModelError;
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec, NormKind};

/// How a file states the heads of its layers.
#[derive(Clone, Copy)]
struct Form {
    /// Layers with a window have widths under keys of their own.
    has_windowed_widths: bool,
    /// Latents are what a cache holds, so that all heads share one of keys.
    caches_latents: bool,
    /// Some layers are recurrent.
    has_recurrent: bool,
}

/// A key, and what it has to say of a layer; `None` where it does not speak of that layer.
type Row = (&'static str, fn(&LayerSpec, Form) -> Option<u32>);

const ROWS: &[Row] = &[
    ("attention.head_count_kv", kv_heads),
    ("attention.key_length", |layer, form| {
        width(layer, form, false)
    }),
    ("attention.key_length_swa", windowed_width),
    ("attention.value_length", |layer, form| {
        width(layer, form, true)
    }),
    ("attention.value_length_swa", windowed_width),
];

/// Refuses what contradicts the spec that was read.
pub(super) fn agree(facts: &GgufFacts<'_>, arch: &str, spec: &ModelSpec) -> Result<(), ModelError> {
    let has = |key: &str| facts.metadata.get(&format!("{arch}.{key}")).is_some();
    let form = Form {
        has_windowed_widths: has("attention.key_length_swa"),
        caches_latents: has("attention.key_length_mla"),
        has_recurrent: spec
            .layers
            .iter()
            .any(|layer| matches!(layer.mixer, Mixer::Kda(_))),
    };
    let n_layers = u32::try_from(spec.layers.len()).unwrap_or(u32::MAX);
    for (key, of_layer) in ROWS {
        let Some(stated) = gguf_per_layer(facts, arch, key, n_layers)? else {
            continue;
        };
        for (i, (stated, layer)) in stated.iter().zip(&spec.layers).enumerate() {
            if let Some(expected) = of_layer(layer, form)
                && *stated != expected
            {
                let expected = format!("{expected} in layer {i}");
                return Err(gguf_bad(facts, arch, key, &stated.to_string(), &expected));
            }
        }
    }
    if let Some(stated) = gguf_u32(facts, arch, "leading_dense_block_count")? {
        dense_first(facts, arch, spec, stated)?;
    }
    let key = "embedding_length_per_layer_input";
    let width = spec.embedding.per_layer.as_ref().map_or(0, |e| e.width);
    if let Some(stated) = gguf_u32(facts, arch, key)?
        && stated != width
    {
        let (got, expected) = (stated.to_string(), width.to_string());
        return Err(gguf_bad(facts, arch, key, &got, &expected));
    }
    // Where nothing turns no reader asks for them.
    for key in ["rope.freq_base", "rope.freq_base_swa"] {
        rope::theta_from_gguf(facts, arch, key)?;
    }
    let key = "attention.layer_norm_rms_epsilon";
    if spec.final_norm.kind != NormKind::Rms && has(key) {
        return Err(ModelError::UnknownKeys {
            origin: facts.origin.to_owned(),
            keys: vec![format!("{arch}.{key}")],
        });
    }
    Ok(())
}

/// Heads of keys and values. Recurrent layers beside latents are known by having none; a delta net shares the number of
/// the attention layers.
fn kv_heads(layer: &LayerSpec, form: Form) -> Option<u32> {
    match &layer.mixer {
        Mixer::Attention(attention) => Some(attention.n_kv_heads),
        Mixer::Mla(_) if form.caches_latents => Some(1),
        Mixer::Mla(mla) => Some(mla.n_heads),
        Mixer::Kda(_) => Some(0),
        Mixer::GatedDelta(_) => None,
    }
}

/// Width of a head's keys, or of its values.
fn width(layer: &LayerSpec, form: Form, is_value: bool) -> Option<u32> {
    match &layer.mixer {
        Mixer::Attention(attention) if attention.window.is_some() && form.has_windowed_widths => {
            None
        }
        Mixer::Attention(attention) => Some(attention.d_head),
        // Beside recurrent layers the stock converter states a width of values that nothing has, and nobody reads.
        Mixer::Mla(_) if is_value && form.caches_latents && form.has_recurrent => None,
        Mixer::Mla(mla) => Some(match (form.caches_latents, is_value) {
            (true, true) => mla.kv_rank,
            (true, false) => mla.kv_rank.saturating_add(mla.d_rope),
            (false, true) => mla.d_value,
            (false, false) => mla.d_nope.saturating_add(mla.d_rope),
        }),
        Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    }
}

fn windowed_width(layer: &LayerSpec, _: Form) -> Option<u32> {
    match &layer.mixer {
        Mixer::Attention(attention) => attention.window.map(|_| attention.d_head),
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    }
}

/// Layers before the first with experts.
fn dense_first(
    facts: &GgufFacts<'_>,
    arch: &str,
    spec: &ModelSpec,
    stated: u32,
) -> Result<(), ModelError> {
    let is_dense = |layer: &LayerSpec| match layer.ffn {
        Ffn::Gated(_) | Ffn::Plain(_) => true,
        Ffn::Moe(_) => false,
    };
    let found = spec.layers.iter().take_while(|layer| is_dense(layer));
    let found = found.count();
    if stated as usize == found {
        return Ok(());
    }
    let expected = format!("{found}, the first layers without a router");
    let key = "leading_dense_block_count";
    Err(gguf_bad(facts, arch, key, &stated.to_string(), &expected))
}
