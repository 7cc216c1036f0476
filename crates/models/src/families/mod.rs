//! The family table: one row of data and one small reader per family.
//!
//! A family states how a configuration becomes a [`ModelSpec`] and how roles are called in containers. It contains no
//! arithmetic. Adding one that shares existing axes is one file and one line in [`FAMILIES`].

mod decoder;
mod gemma;
mod llama;
mod names;
mod qwen;
mod rope;

use larql_formats::gguf::Metadata;

pub(crate) use names::{gguf_name, hf_name};

use crate::config::RawConfig;
use crate::error::ModelError;
use crate::roles::LayerTensor;
use crate::spec::{AttentionBias, Mixer, ModelSpec};

/// What a GGUF file says besides its metadata.
pub(crate) struct GgufFacts<'a> {
    /// The file, for errors.
    pub(crate) origin: &'a str,
    /// Its metadata.
    pub(crate) metadata: &'a Metadata,
    /// Rows of `token_embd.weight`.
    pub(crate) d_vocab: u32,
    /// Whether the file has a head of its own.
    pub(crate) has_head: bool,
    /// Contents of `rope_freqs.weight`.
    pub(crate) rope_divisors: Option<Vec<f32>>,
}

/// Order of the query and key rows in a family's GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GgufRopeRows {
    /// As in Hugging Face checkpoints.
    Split,
    /// Permuted so that the dimensions of a pair are neighbours.
    Interleaved,
}

/// Reads GGUF metadata into a spec.
pub(crate) type FromGguf = fn(&GgufFacts<'_>) -> Result<ModelSpec, ModelError>;

/// One row of the family table.
pub(crate) struct Family {
    /// Its name in [`ModelSpec::family`].
    pub(crate) name: &'static str,
    /// Values of `model_type` it reads.
    pub(crate) hf_model_types: &'static [&'static str],
    /// Value of `general.architecture`.
    pub(crate) gguf_arch: &'static str,
    /// Reads `config.json`.
    pub(crate) from_config: fn(&RawConfig<'_>) -> Result<ModelSpec, ModelError>,
    /// Reads GGUF metadata; `None` where llama.cpp files it under another family.
    pub(crate) from_gguf: Option<FromGguf>,
    /// Order of query and key rows in its GGUF files.
    pub(crate) gguf_rope_rows: GgufRopeRows,
    /// Names of layer tensors in its Hugging Face checkpoints, without prefix and suffix.
    pub(crate) hf_layer_names: &'static [(LayerTensor, &'static str)],
}

/// Every family, in the order the documentation lists them.
pub(crate) static FAMILIES: &[Family] = &[
    llama::LLAMA,
    llama::MISTRAL,
    qwen::QWEN2,
    qwen::QWEN3,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
];

/// The row of a name that a spec carries.
pub(crate) fn by_name(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The row that reads a `model_type`.
pub(crate) fn by_model_type(origin: &str, model_type: &str) -> Result<&'static Family, ModelError> {
    FAMILIES
        .iter()
        .find(|family| family.hf_model_types.contains(&model_type))
        .ok_or_else(|| {
            unknown(
                origin,
                model_type,
                FAMILIES
                    .iter()
                    .flat_map(|family| family.hf_model_types.iter().copied())
                    .collect(),
            )
        })
}

/// The row that reads a GGUF architecture.
pub(crate) fn by_gguf_arch(origin: &str, arch: &str) -> Result<&'static Family, ModelError> {
    FAMILIES
        .iter()
        .find(|family| family.gguf_arch == arch && family.from_gguf.is_some())
        .ok_or_else(|| {
            let known = FAMILIES
                .iter()
                .filter(|family| family.from_gguf.is_some())
                .map(|family| family.gguf_arch);
            unknown(origin, arch, known.collect())
        })
}

fn unknown(origin: &str, model_type: &str, mut known: Vec<&str>) -> ModelError {
    known.sort_unstable();
    ModelError::UnknownModelType {
        origin: origin.to_owned(),
        model_type: model_type.to_owned(),
        known: known.join(", "),
    }
}

/// States biases that a container shows by its tensors rather than by a key.
pub(crate) fn set_biases(spec: &mut ModelSpec, qkv: bool, output: bool) {
    let bias = match (qkv, output) {
        (false, false) => AttentionBias::Absent,
        (true, false) => AttentionBias::Qkv,
        // A bias on the output alone is refused later: the tensors then do not add up.
        (_, true) => AttentionBias::Qkvo,
    };
    for layer in &mut spec.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.bias = bias;
        }
    }
}
