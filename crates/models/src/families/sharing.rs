//! What Gemma 3n and Gemma 4 have in common: layers that share keys and values, and per-layer embeddings.

use serde_json::Value;

use super::decoder::rms;
use super::gguf::{gguf_bad, gguf_u32};
use super::{GgufFacts, Ignored, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{LayerTensor as T, TensorRole};
use crate::spec::{Activation, KvSource, NormSpec, NormWeight, PerLayerEmbedding};

/// Tensors of the other modalities, and projections that the class does not load where layers share.
pub(super) const IGNORED: &[Ignored] = &[
    Ignored::SharedKv,
    Ignored::Containing("audio_tower.", OTHER_MODALITIES),
    Ignored::Containing("embed_vision.", OTHER_MODALITIES),
    Ignored::Containing("embed_audio.", OTHER_MODALITIES),
];

const OTHER_MODALITIES: &str = "sound and images: only text runs here";

/// Prefixes of the decoder, alone or beside the other modalities.
pub(super) const PREFIXES: &[&str] = names::PREFIXES;

/// Names of per-layer embeddings.
pub(super) const PER_LAYER: &[Rule] = &[
    Rule::model(
        TensorRole::PerLayerEmbedding,
        "embed_tokens_per_layer.weight",
    ),
    Rule::model(
        TensorRole::PerLayerProjection,
        "per_layer_model_projection.weight",
    ),
    Rule::model(
        TensorRole::PerLayerProjectionNorm,
        "per_layer_projection_norm.weight",
    ),
    Rule::layer(&[T::PerLayerGate], "per_layer_input_gate.weight"),
    Rule::layer(&[T::PerLayerUp], "per_layer_projection.weight"),
    Rule::layer(&[T::PerLayerPostNorm], "post_per_layer_input_norm.weight"),
];

/// Embeddings of this width, as both classes scale them.
pub(super) fn per_layer(
    width: u32,
    d_vocab: u32,
    d_model: u32,
    activation: Activation,
    eps: f32,
) -> PerLayerEmbedding {
    PerLayerEmbedding {
        width,
        d_vocab,
        activation,
        token_multiplier: (width as f32).sqrt(),
        context_multiplier: f64::from(d_model).powf(-0.5) as f32,
        input_multiplier: std::f32::consts::FRAC_1_SQRT_2,
        projection_norm: rms(eps),
        post_norm: rms(eps),
    }
}

/// GGUF keys, below the architecture, that the readers of both families know.
pub(super) const GGUF_KEYS: &[&str] = &[
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "embedding_length_per_layer_input",
    "final_logit_softcapping",
    "rope.freq_base_swa",
];

/// The norm on values, which has no weight; keys and values of another layer come normalized.
pub(super) fn value_norm(source: KvSource, eps: f32) -> Option<NormSpec> {
    match source {
        KvSource::Own | KvSource::KeyIsValue => Some(NormSpec {
            weight: NormWeight::Absent,
            ..rms(eps)
        }),
        KvSource::SharedFrom(_) => None,
    }
}

/// Reads `num_kv_shared_layers`: the last so many layers take the keys and values of the last one before them that has a
/// window too, or has none too.
pub(super) fn kv_sources(
    cfg: &RawConfig<'_>,
    windowed: &[bool],
    class_shared: u32,
) -> Result<Vec<KvSource>, ModelError> {
    let key = "num_kv_shared_layers";
    let n_shared = cfg.opt_u32(key)?.unwrap_or(class_shared);
    let own = u32::try_from(windowed.len()).ok();
    let first_shared = own.and_then(|n_layers| n_layers.checked_sub(n_shared));
    shared_from(windowed, first_shared).ok_or_else(|| {
        let expected = "a number that leaves a layer of each kind with keys and values of its own";
        cfg.bad(key, &Value::from(n_shared), expected)
    })
}

/// As [`kv_sources`] for GGUF metadata; files that do not say have `class_own` layers with keys and values of their own.
pub(super) fn gguf_kv_sources(
    facts: &GgufFacts<'_>,
    arch: &str,
    windowed: &[bool],
    class_own: usize,
) -> Result<Vec<KvSource>, ModelError> {
    let key = "attention.shared_kv_layers";
    let n_layers = u32::try_from(windowed.len()).unwrap_or(u32::MAX);
    let class_own = u32::try_from(class_own).unwrap_or(u32::MAX);
    let first_shared = match gguf_u32(facts, arch, key)? {
        Some(n_shared) => n_layers.checked_sub(n_shared),
        None => Some(n_layers.min(class_own)),
    };
    shared_from(windowed, first_shared).ok_or_else(|| {
        let expected = "a number that leaves a layer of each kind with keys and values of its own";
        gguf_bad(facts, arch, key, "another number", expected)
    })
}

/// The sources, if every layer has one; all layers from `first_shared` on share.
pub(super) fn shared_from(windowed: &[bool], first_shared: Option<u32>) -> Option<Vec<KvSource>> {
    let first_shared = first_shared? as usize;
    let own = windowed.get(..first_shared)?;
    let source = |(i, is_windowed): (usize, &bool)| {
        if i < first_shared {
            return Some(KvSource::Own);
        }
        let donor = own.iter().rposition(|other| other == is_windowed)?;
        u32::try_from(donor).ok().map(KvSource::SharedFrom)
    };
    windowed.iter().enumerate().map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_layer_of_a_kind_lends() {
        let windowed = [true, false, true, true, false, true, false];
        let sources = shared_from(&windowed, Some(5)).expect("both kinds have a lender");
        assert_eq!(sources[..5], [KvSource::Own; 5]);
        assert_eq!(
            sources[5..],
            [KvSource::SharedFrom(3), KvSource::SharedFrom(4)]
        );
        assert_eq!(shared_from(&windowed, Some(1)), None, "no full layer lends");
        assert_eq!(shared_from(&windowed, Some(8)), None, "more than there are");
        assert_eq!(shared_from(&windowed, None), None);
    }
}
