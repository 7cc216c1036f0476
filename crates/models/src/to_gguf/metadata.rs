//! GGUF metadata of a spec, and what a reader of them alone would get wrong.
//!
//! Keys whose absence means something else in each family (a period of windows, a second RoPE base, a scale of scores)
//! are written only where the family's own reader, given the other keys, would believe another value: so files of the
//! published models get the keys that stock tools write, and no rule here needs a family's name.

use larql_formats::gguf::{Array, Metadata, Value};
use larql_formats::{Dtype, TensorInfo};
use serde_json::Value as Json;

use super::{global_rope, ropes};
use crate::error::ModelError;
use crate::families::{self, Family, GgufFacts, gguf_name};
use crate::roles::{LayerTensor, TensorRole};
use crate::rope::yarn_attention_factor;
use crate::spec::{
    AttentionSpec, BlockShape, Ffn, LayerSpec, Mixer, ModelSpec, NormKind, RopeScaling, RopeSpec,
};

/// Version of the block formats, which stock tools want beside quantized tensors.
const QUANTIZATION_VERSION: u32 = 2;

/// Differences listed before the rest is only counted.
const DIFFERENCES_MAX: usize = 8;

/// Gathers keys below the architecture.
struct Keys<'a> {
    arch: &'a str,
    metadata: Metadata,
}

impl Keys<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.metadata.set(format!("{}.{key}", self.arch), value);
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
    divisors: Option<&[f32]>,
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
    keys.per_layer(
        "feed_forward_length",
        spec.layers.iter().map(d_mlp).collect(),
    );
    norm_keys(&mut keys, spec);
    attention_keys(&mut keys, spec);
    if let Some(rope) = global_rope(spec) {
        rope_keys(&mut keys, rope);
    }
    if let Some(cap) = spec.head.softcap {
        keys.f32("final_logit_softcapping", f64::from(cap));
    }
    optional_keys(&mut keys, spec, family, divisors);
    // Without a vocabulary stock tools still run the file on token ids, if it says so.
    keys.metadata
        .insert("tokenizer.ggml.model", Value::String("none".to_owned()))?;
    Ok(keys.metadata)
}

/// The number by which stock tools name the type of most weights, for the types that are not a mixture.
fn file_type<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> Option<u32> {
    let largest = tensors
        .filter(|info| info.shape.len() > 1)
        .max_by_key(|info| info.n_bytes)?;
    match largest.dtype {
        Dtype::F32 => Some(0),
        Dtype::F16 => Some(1),
        Dtype::Bf16 => Some(32),
        _ => None,
    }
}

fn d_mlp(layer: &LayerSpec) -> u32 {
    match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => ffn.d_mlp,
        Ffn::Moe(moe) => moe.expert.d_mlp,
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

/// Adds the keys without which the family's reader would believe something else.
fn optional_keys(keys: &mut Keys<'_>, spec: &ModelSpec, family: &Family, divisors: Option<&[f32]>) {
    let believed = read_back(spec, family, &keys.metadata, divisors).ok();
    let windowed_theta = |spec: &ModelSpec| {
        ropes(spec)
            .find(|(_, windowed)| *windowed)
            .map(|(rope, _)| rope.theta as f32)
    };
    let scale = |spec: &ModelSpec| {
        spec.layers
            .iter()
            .find_map(attention)
            .map(|attn| attn.scale)
    };
    let windows = |spec: &ModelSpec| -> Vec<Option<u32>> {
        spec.layers
            .iter()
            .map(|layer| attention(layer).and_then(|attn| attn.window))
            .collect()
    };
    let global_theta = global_rope(spec).map(|rope| rope.theta as f32);
    if let Some(theta) = windowed_theta(spec) {
        let known = believed.as_ref().map_or(global_theta, windowed_theta);
        if known != Some(theta) {
            keys.f32("rope.freq_base_swa", f64::from(theta));
        }
    }
    if let (Some(stated), Some(attn)) = (scale(spec), spec.layers.iter().find_map(attention)) {
        let plain = Some(f64::from(attn.d_head).powf(-0.5) as f32);
        if believed.as_ref().map_or(plain, scale) != Some(stated) {
            keys.f32("attention.scale", f64::from(stated));
        }
    }
    if believed
        .as_ref()
        .is_some_and(|believed| windows(believed) == windows(spec))
    {
        return;
    }
    if let Some(period) = period(&windows(spec)) {
        keys.u32("attention.sliding_window_pattern", period);
    }
}

/// The smallest `p` such that exactly every `p`-th layer is without a window, if some are with and some without.
fn period(windows: &[Option<u32>]) -> Option<u32> {
    let first = windows.iter().position(Option::is_none)? + 1;
    let fits = windows
        .iter()
        .enumerate()
        .all(|(i, window)| window.is_none() == ((i + 1) % first == 0));
    (fits && first > 1).then_some(first as u32)
}

/// What the reader of the architecture makes of the metadata.
fn read_back(
    spec: &ModelSpec,
    family: &Family,
    metadata: &Metadata,
    divisors: Option<&[f32]>,
) -> Result<ModelSpec, ModelError> {
    let origin = "weights.gguf";
    let reader = families::by_gguf_arch(origin, family.gguf_arch)?;
    let from_gguf = reader
        .from_gguf
        .expect("the lookup returns only rows that read GGUF");
    let mut believed = from_gguf(&GgufFacts {
        origin,
        metadata,
        d_vocab: spec.d_vocab,
        has_head: !spec.head.tied,
        rope_divisors: divisors.map(<[f32]>::to_vec),
    })?;
    let needs = super::needs(origin, spec)?;
    let has = |tensor| {
        let role = TensorRole::Layer(0, tensor);
        needs
            .iter()
            .any(|need| gguf_name(need.role) == gguf_name(role))
    };
    families::set_biases(
        &mut believed,
        has(LayerTensor::QBias),
        has(LayerTensor::OBias),
    );
    Ok(believed)
}

/// Sentences about facts that the metadata do not carry.
pub(super) fn differences(
    spec: &ModelSpec,
    family: &Family,
    metadata: &Metadata,
    divisors: Option<&[f32]>,
) -> Vec<String> {
    let mut believed = match read_back(spec, family, metadata, divisors) {
        Ok(believed) => believed,
        Err(error) => {
            return vec![format!(
                "the weights file cannot be read without the manifest: {error}"
            )];
        }
    };
    // Which row of the table reads the file is no fact of the forward pass.
    believed.family.clone_from(&spec.family);
    let json = |spec: &ModelSpec| serde_json::to_value(as_divisors(spec)).unwrap_or(Json::Null);
    let mut found = Vec::new();
    compare("", &json(spec), &json(&believed), &mut found);
    let more = found.len().saturating_sub(DIFFERENCES_MAX);
    found.truncate(DIFFERENCES_MAX);
    let mut notes: Vec<String> = found
        .into_iter()
        .map(|what| format!("the weights file alone would be read differently: {what}"))
        .collect();
    if more > 0 {
        notes.push(format!(
            "the weights file alone would be read differently in {more} more places"
        ));
    }
    notes
}

/// The spec with Llama 3's rule written out as the divisors that a file stores.
fn as_divisors(spec: &ModelSpec) -> ModelSpec {
    let mut spec = spec.clone();
    let divisors = super::rope_divisors(&spec);
    for layer in &mut spec.layers {
        if let Mixer::Attention(AttentionSpec {
            rope: Some(rope), ..
        }) = &mut layer.mixer
            && let (RopeScaling::Llama3 { .. }, Some(divisors)) = (&rope.scaling, &divisors)
        {
            rope.scaling = RopeScaling::Divisors {
                divisors: divisors.clone(),
            };
        }
    }
    spec
}

/// Lists leaves that differ by more than the rounding to f32.
fn compare(at: &str, ours: &Json, theirs: &Json, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Json::Object(a), Json::Object(b)) if a.keys().eq(b.keys()) => {
            for (key, ours) in a {
                compare(
                    &format!("{at}{}{key}", if at.is_empty() { "" } else { "." }),
                    ours,
                    &b[key],
                    found,
                );
            }
        }
        (Json::Array(a), Json::Array(b)) if a.len() == b.len() => {
            for (i, (ours, theirs)) in a.iter().zip(b).enumerate() {
                compare(&format!("{at}[{i}]"), ours, theirs, found);
            }
        }
        (Json::Number(a), Json::Number(b)) => {
            let (a, b) = (
                a.as_f64().unwrap_or(f64::NAN),
                b.as_f64().unwrap_or(f64::NAN),
            );
            // Metadata hold f32, and a factor is divided and multiplied by another one.
            if (a - b).abs() > f64::from(f32::EPSILON) * a.abs() {
                found.push(format!("{at} is {a} and would be {b}"));
            }
        }
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => found.push(format!("{at} is {ours} and would be {theirs}")),
    }
}
