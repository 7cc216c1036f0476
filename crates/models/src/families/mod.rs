//! The family table: one row of data and one small reader per family.
//!
//! A family states how a configuration becomes a [`ModelSpec`] and how roles are called in containers. It contains no
//! arithmetic. Adding one that shares existing axes is one file and one line in [`FAMILIES`].

mod arcee;
mod cohere2;
mod decoder;
mod deepseek;
mod difference;
#[cfg(test)]
mod every_key;
mod gemma;
mod gemma3n;
mod gemma4;
mod gguf;
mod glm4;
mod gpt2;
mod gpt_oss;
mod granite;
mod kimi_linear;
mod layer_kinds;
mod llama;
mod llama_cpp;
mod mixtral;
mod mla;
mod moe;
mod names;
mod olmo;
mod phi;
mod phi3;
mod qwen;
mod qwen3_next;
mod qwen_moe;
mod rope;
mod sharing;
mod smollm3;
mod stablelm;
mod starcoder2;
mod stated;
mod to_config;
mod transformers;

use larql_formats::gguf::Metadata;

use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::{Names, Rule};
use crate::spec::{KvSource, Mixer, ModelSpec};

pub(crate) use difference::{differences, first_difference};
pub(crate) use llama_cpp::{reads_otherwise, wants_head};
pub(crate) use mla::HALVES as LATENT_HALVES;
pub(crate) use to_config::{is_class_of, to_config};
pub(crate) use transformers::taken_otherwise;

/// Values of a tensor, if there is one of that name.
pub(crate) type Floats<'a> = dyn Fn(&str) -> Result<Option<Vec<f32>>, ModelError> + 'a;

/// What a GGUF file says besides its metadata.
pub(crate) struct GgufFacts<'a> {
    /// The file, for errors.
    pub(crate) origin: &'a str,
    /// Its metadata.
    pub(crate) metadata: &'a Metadata,
    /// Rows of `token_embd.weight`.
    pub(crate) d_vocab: u32,
    /// Shape of a tensor, outermost first, if the file has it.
    pub(crate) shape: &'a dyn Fn(&str) -> Option<Vec<u64>>,
    /// Values of an F32 tensor, if the file has it.
    pub(crate) floats: &'a Floats<'a>,
}

impl GgufFacts<'_> {
    /// Whether the file has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        (self.shape)(name).is_some()
    }

    /// Whether the file has a head of its own.
    pub(crate) fn has_head(&self) -> bool {
        self.has("output.weight")
    }
}

/// Order of the query and key rows in a family's GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GgufRopeRows {
    /// As in Hugging Face checkpoints.
    Canonical,
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
    /// Reads GGUF metadata; `None` where llama.cpp files it under another family, or does not know it.
    pub(crate) from_gguf: Option<FromGguf>,
    /// Order of query and key rows in its GGUF files.
    pub(crate) gguf_rope_rows: GgufRopeRows,
    /// Names in its Hugging Face checkpoints.
    pub(crate) hf: HfNames,
    /// Rules for its GGUF files that come before the common ones.
    pub(crate) gguf_rules: &'static [Rule],
}

/// Names in a family's Hugging Face checkpoints.
pub(crate) struct HfNames {
    /// What may stand before all names of the decoder; wrappers for several modalities nest it.
    pub(crate) prefixes: &'static [&'static str],
    /// Stands before the number of a layer.
    pub(crate) layers: &'static str,
    /// The rules; the first that can be followed wins.
    pub(crate) rules: &'static [&'static [Rule]],
    /// Tensors that may be there and are not needed.
    pub(crate) ignored: &'static [Ignored],
}

/// Names of tensors that a family's checkpoints may have and the forward pass does not need.
pub(crate) enum Ignored {
    /// Names that end so, and why.
    Ending(&'static str, &'static str),
    /// Names that begin so, and why.
    Beginning(&'static str, &'static str),
    /// Names with such a part, and why.
    Containing(&'static str, &'static str),
    /// Layers after the last, which predict further tokens.
    LayersBeyond,
    /// Projections of keys and values in layers that take those of another layer.
    SharedKv,
}

/// Every family, in the order the documentation lists them.
pub(crate) static FAMILIES: &[Family] = &[
    llama::LLAMA,
    llama::MISTRAL,
    mixtral::MIXTRAL,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen_moe::QWEN2_MOE,
    qwen_moe::QWEN3_MOE,
    qwen3_next::QWEN3_NEXT,
    olmo::OLMO2,
    olmo::OLMOE,
    phi::PHI,
    phi3::PHI3,
    granite::GRANITE,
    granite::GRANITE_MOE,
    starcoder2::STARCODER2,
    gpt2::GPT2,
    gpt_oss::GPT_OSS,
    cohere2::COHERE2,
    smollm3::SMOLLM3,
    glm4::GLM4,
    arcee::ARCEE,
    stablelm::STABLELM,
    deepseek::DEEPSEEK_V2,
    deepseek::DEEPSEEK_V3,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma3n::GEMMA3N,
    gemma4::GEMMA4,
    kimi_linear::KIMI_LINEAR,
];

/// The row of a name that a spec carries.
pub(crate) fn by_name(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The row that a spec names, or an error that lists those there are.
pub(crate) fn of_spec(origin: &str, spec: &ModelSpec) -> Result<&'static Family, ModelError> {
    by_name(&spec.family).ok_or_else(|| {
        unknown(
            origin,
            &spec.family,
            FAMILIES.iter().map(|family| family.name).collect(),
        )
    })
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

impl Family {
    /// Reads the metadata of a GGUF file, and refuses keys that say otherwise than the rest of them and the tensors.
    pub(crate) fn read_gguf(&self, facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
        let from_gguf = self
            .from_gguf
            .expect("the lookup returns only rows that read GGUF");
        let spec = from_gguf(facts)?;
        stated::agree(facts, self.gguf_arch, &spec)?;
        Ok(spec)
    }

    /// Names in a GGUF file of the family.
    pub(crate) fn gguf_names(&self) -> [&'static [Rule]; 2] {
        [self.gguf_rules, names::GGUF]
    }
}

impl HfNames {
    /// The first prefix under which the container has the embedding.
    pub(crate) fn prefix(&self, exists: &dyn Fn(&str) -> bool) -> &'static str {
        let embedding = self.embedding();
        self.prefixes
            .iter()
            .copied()
            .find(|prefix| exists(&format!("{prefix}{embedding}")))
            .unwrap_or(self.prefixes[0])
    }

    /// The embedding's name after the prefix.
    fn embedding(&self) -> &'static str {
        self.rules
            .iter()
            .copied()
            .flatten()
            .find_map(Rule::embedding)
            .expect("every family names its embedding")
    }

    /// The names below a prefix.
    pub(crate) fn below<'a>(&'a self, prefix: &'a str) -> Names<'a> {
        Names {
            prefix,
            layers: self.layers,
            rules: self.rules,
        }
    }

    /// Why a tensor that no role claims may be there.
    pub(crate) fn ignored_because(&self, name: &str, spec: &ModelSpec) -> Option<&'static str> {
        self.ignored.iter().find_map(|ignored| match ignored {
            Ignored::Ending(end, reason) => name.ends_with(end).then_some(*reason),
            Ignored::Beginning(start, reason) => name.starts_with(start).then_some(*reason),
            Ignored::Containing(part, reason) => name.contains(part).then_some(*reason),
            Ignored::LayersBeyond => {
                let (layer, _) = layer_of(name, self.layers).or_else(|| layer_of(name, "blk."))?;
                (layer >= spec.n_layers())
                    .then_some("a layer after the last, which predicts further tokens")
            }
            Ignored::SharedKv => {
                let (layer, rest) =
                    layer_of(name, self.layers).or_else(|| layer_of(name, "blk."))?;
                let shares = match &spec.layers.get(layer)?.mixer {
                    Mixer::Attention(attention) => {
                        matches!(attention.kv, KvSource::SharedFrom(_))
                    }
                    Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => false,
                };
                (shares && KV_NAMES.contains(&rest))
                    .then_some("the layer takes the keys and values of another one")
            }
        })
    }
}

/// What keys and values are made with, below a layer's name.
const KV_NAMES: &[&str] = &[
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.k_norm.weight",
    "self_attn.v_norm.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_k_norm.weight",
];

/// The number of a layer in a tensor's name, and what follows it.
fn layer_of<'a>(name: &'a str, layers: &str) -> Option<(usize, &'a str)> {
    let (_, rest) = name.split_once(layers)?;
    let (layer, rest) = rest.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}
