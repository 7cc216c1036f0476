//! GGUF metadata of a spec, and what a reader of them alone would get wrong.
//!
//! Keys whose absence means something else in each family (a period of windows, a second RoPE base, a scale of scores)
//! are written only where the family's own reader, given the other keys, would believe another value: so files of the
//! published models get the keys that stock tools write, and no rule here needs a family's name.

mod differences;
mod facts;
mod mla;
mod moe;
mod recurrent;
mod streams;

use larql_formats::gguf::{Array, Metadata, Value};
use larql_formats::{Dtype, TensorInfo};

pub(super) use self::differences::differences;
use super::{RopeTable, global_rope, ropes};
use crate::error::ModelError;
use crate::families::{self, Family, GgufFacts};
use crate::rope::yarn_attention_factor;
use crate::spec::{
    AttentionSpec, BlockShape, LayerSpec, Mixer, ModelSpec, NormKind, RopeScaling, RopeSpec,
};

/// Version of the block formats, which stock tools want beside quantized tensors.
pub(super) const QUANTIZATION_VERSION: u32 = 2;

/// Gathers keys below the architecture.
struct Keys<'a> {
    arch: &'a str,
    metadata: Metadata,
}

impl Keys<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.metadata.set(format!("{}.{key}", self.arch), value);
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{key}", self.arch))
    }

    /// Whether a whole key is this one.
    fn is(&self, key: &str, whole: &str) -> bool {
        whole.strip_prefix(self.arch) == Some(&format!(".{key}"))
    }

    fn restore(&mut self, key: &str, before: Option<Value>) {
        match before {
            Some(value) => self.put(key, value),
            None => {
                self.metadata.remove(&format!("{}.{key}", self.arch));
            }
        }
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.put(key, Value::U32(value));
    }

    fn f32(&mut self, key: &str, value: f64) {
        self.put(key, Value::F32(value as f32));
    }

    /// One number where all layers agree, else one per layer.
    fn per_layer(&mut self, key: &str, values: Vec<u32>) {
        match values.as_slice() {
            [] => {}
            [first, rest @ ..] if rest.iter().all(|value| value == first) => self.u32(key, *first),
            _ => self.put(key, Value::Array(Array::U32(values))),
        }
    }
}

/// The metadata of a file with these tensors.
pub(super) fn derive<'a, I: Iterator<Item = &'a TensorInfo>>(
    spec: &ModelSpec,
    family: &Family,
    name: &str,
    tables: &[RopeTable],
    tensors: impl Fn() -> I,
) -> Result<Metadata, ModelError> {
    let arch = family.gguf_arch;
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", Value::String(arch.to_owned()))?;
    metadata.insert("general.type", Value::String("model".to_owned()))?;
    metadata.insert("general.name", Value::String(name.to_owned()))?;
    if let Some(file_type) = file_type(tensors()) {
        metadata.insert("general.file_type", Value::U32(file_type))?;
    }
    if tensors().any(|info| info.dtype.block_len() > 1) {
        metadata.insert(
            "general.quantization_version",
            Value::U32(QUANTIZATION_VERSION),
        )?;
    }
    let mut keys = Keys { arch, metadata };
    keys.u32("vocab_size", spec.d_vocab);
    keys.u32("context_length", spec.n_ctx);
    keys.u32("embedding_length", spec.d_model);
    keys.u32("block_count", spec.layers.len() as u32);
    moe::keys(&mut keys, spec);
    norm_keys(&mut keys, spec);
    attention_keys(&mut keys, spec);
    if let Some(rope) = global_rope(spec) {
        rope_keys(&mut keys, rope);
    }
    mla::keys(&mut keys, spec);
    recurrent::keys(&mut keys, spec);
    streams::keys(&mut keys, spec);
    if let Some(cap) = spec.head.softcap {
        keys.f32("final_logit_softcapping", f64::from(cap));
    }
    facts::settle(&mut keys, spec, &|metadata| {
        read_back(spec, family, metadata, tables, &tensors)
    });
    // Without a vocabulary stock tools still run the file on token ids, if it says so.
    keys.metadata
        .insert("tokenizer.ggml.model", Value::String("none".to_owned()))?;
    Ok(keys.metadata)
}

/// Metadata of a model with latents that state the widths of what stock tools cache: one head for all.
pub(super) fn with_cached_latents(metadata: Metadata, arch: &str, spec: &ModelSpec) -> Metadata {
    let mut keys = Keys { arch, metadata };
    mla::cached_keys(&mut keys, spec);
    keys.metadata
}

/// The number by which stock tools name the type of most weights, for the types that are not a mixture.
fn file_type<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> Option<u32> {
    let matrices: Vec<_> = tensors.filter(|info| info.shape.len() > 1).collect();
    if matrices.iter().any(|info| info.dtype == Dtype::Mxfp4) {
        // Experts in this type, whatever the rest.
        return Some(38);
    }
    let largest = matrices.into_iter().max_by_key(|info| info.n_bytes)?;
    match largest.dtype {
        Dtype::F32 => Some(0),
        Dtype::F16 => Some(1),
        Dtype::Bf16 => Some(32),
        _ => None,
    }
}

fn attention(layer: &LayerSpec) -> Option<&AttentionSpec> {
    match &layer.mixer {
        Mixer::Attention(attn) => Some(attn),
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    }
}

fn norm_keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    let norm = match spec.layers.first().map(|layer| &layer.block) {
        Some(
            BlockShape::PreNorm { mixer: norm, .. }
            | BlockShape::Sandwich { mixer: norm, .. }
            | BlockShape::PostNorm {
                mixer_post: norm, ..
            }
            | BlockShape::Parallel { norm },
        ) => norm,
        None => &spec.final_norm,
    };
    let key = match norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer | NormKind::LayerWithBias => "attention.layer_norm_epsilon",
    };
    keys.f32(key, f64::from(norm.eps));
}

fn attention_keys(keys: &mut Keys<'_>, spec: &ModelSpec) {
    let layers: Vec<&AttentionSpec> = spec.layers.iter().filter_map(attention).collect();
    let all = |value: fn(&AttentionSpec) -> u32| layers.iter().map(|attn| value(attn)).collect();
    keys.per_layer("attention.head_count", all(|attn| attn.n_heads));
    keys.per_layer("attention.head_count_kv", all(|attn| attn.n_kv_heads));
    if let Some(attn) = layers.first() {
        keys.u32("attention.key_length", attn.d_head);
        keys.u32("attention.value_length", attn.d_head);
    }
    if let Some(window) = layers.iter().find_map(|attn| attn.window) {
        keys.u32("attention.sliding_window", window);
    }
    if let Some(cap) = layers.iter().find_map(|attn| attn.softcap) {
        keys.f32("attn_logit_softcapping", f64::from(cap));
    }
}

fn rope_keys(keys: &mut Keys<'_>, rope: &RopeSpec) {
    keys.f32("rope.freq_base", rope.theta);
    keys.u32("rope.dimension_count", rope.dims);
    match &rope.scaling {
        // The divisors of the last two are a tensor; of the proportional form GGUF has no key.
        RopeScaling::Unscaled
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Divisors { .. }
        | RopeScaling::Proportional { .. } => {}
        RopeScaling::Linear { factor } => {
            keys.put("rope.scaling.type", Value::String("linear".to_owned()));
            keys.f32("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            attention_factor,
            truncate: _,
        } => {
            keys.put("rope.scaling.type", Value::String("yarn".to_owned()));
            keys.f32("rope.scaling.factor", *factor);
            keys.u32("rope.scaling.original_context_length", *original_context);
            // Readers multiply by the default themselves.
            let stated = attention_factor / yarn_attention_factor(*factor);
            if stated as f32 != 1.0 {
                keys.f32("rope.scaling.attn_factor", stated);
            }
            if *beta_fast != 32.0 {
                keys.f32("rope.scaling.yarn_beta_fast", *beta_fast);
            }
            if *beta_slow != 1.0 {
                keys.f32("rope.scaling.yarn_beta_slow", *beta_slow);
            }
        }
        RopeScaling::LongRope {
            short: _,
            long: _,
            original_context,
            attention_factor,
        } => {
            keys.put("rope.scaling.type", Value::String("longrope".to_owned()));
            keys.u32("rope.scaling.original_context_length", *original_context);
            keys.f32("rope.scaling.attn_factor", *attention_factor);
        }
    }
}

/// What the reader of the architecture makes of the metadata.
fn read_back<'a, I: Iterator<Item = &'a TensorInfo>>(
    spec: &ModelSpec,
    family: &Family,
    metadata: &Metadata,
    tables: &[RopeTable],
    tensors: &dyn Fn() -> I,
) -> Result<ModelSpec, ModelError> {
    let origin = "weights.gguf";
    let reader = families::by_gguf_arch(origin, family.gguf_arch)?;
    let shape = |name: &str| {
        let mut all = tensors();
        all.find(|info| info.name == name)
            .map(|info| info.shape.clone())
    };
    reader.read_gguf(&GgufFacts {
        origin,
        metadata,
        d_vocab: spec.d_vocab,
        shape: &shape,
        floats: &|name| {
            let table = tables.iter().find(|(table, _)| *table == name);
            Ok(table.map(|(_, values)| values.clone()))
        },
    })
}

/// A number below the architecture, the first layer's where there is one per layer; 0 where there is none.
pub(super) fn first_u32(metadata: &Metadata, arch: &str, key: &str) -> u32 {
    let key = format!("{arch}.{key}");
    match metadata.get(&key) {
        Some(Value::Array(Array::U32(values))) => values.first().copied().unwrap_or(0),
        Some(Value::Array(Array::I32(values))) => values
            .first()
            .and_then(|value| u32::try_from(*value).ok())
            .unwrap_or(0),
        Some(_) | None => metadata.u32(&key).ok().flatten().unwrap_or(0),
    }
}
