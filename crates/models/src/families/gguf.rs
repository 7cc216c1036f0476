//! What the readers of GGUF metadata share: sizes, optional numbers, windows, and the refusal of unknown keys.

use larql_formats::gguf::{Array, Value};

use super::GgufFacts;
use super::decoder::{SizeKey, Sizes, check_sizes};
use crate::error::ModelError;
use crate::spec::AttentionBias;

/// Reads the sizes of GGUF metadata.
pub(super) fn sizes_from_gguf(facts: &GgufFacts<'_>, arch: &str) -> Result<Sizes, ModelError> {
    let (d_model, n_heads) = (
        gguf_size(facts, arch, "embedding_length")?,
        gguf_size(facts, arch, "attention.head_count")?,
    );
    let d_head = match gguf_u32(facts, arch, "attention.key_length")? {
        Some(width) => width,
        None if d_model % n_heads == 0 => d_model / n_heads,
        None => return Err(gguf_missing(facts, arch, "attention.key_length")),
    };
    if let Some(d_value) = gguf_u32(facts, arch, "attention.value_length")?
        && d_value != d_head
    {
        return Err(gguf_bad(
            facts,
            arch,
            "attention.value_length",
            &d_value.to_string(),
            &format!("{d_head}"),
        ));
    }
    let n_kv_heads = gguf_u32(facts, arch, "attention.head_count_kv")?.unwrap_or(n_heads);
    let d_mlp = gguf_size(facts, arch, "feed_forward_length")?;
    sizes_with_heads(facts, arch, d_mlp, n_kv_heads, d_head)
}

/// As [`sizes_from_gguf`], with the sizes that some architectures state for each layer, or in other words.
pub(super) fn sizes_with_heads(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_mlp: u32,
    n_kv_heads: u32,
    d_head: u32,
) -> Result<Sizes, ModelError> {
    if let Some(stated) = gguf_u32(facts, arch, "vocab_size")?
        && stated != facts.d_vocab
    {
        let expected = format!("{}, the rows of token_embd.weight", facts.d_vocab);
        return Err(gguf_bad(
            facts,
            arch,
            "vocab_size",
            &stated.to_string(),
            &expected,
        ));
    }
    let sizes = Sizes {
        n_layers: gguf_size(facts, arch, "block_count")?,
        d_model: gguf_size(facts, arch, "embedding_length")?,
        d_mlp,
        d_vocab: facts.d_vocab,
        n_ctx: gguf_size(facts, arch, "context_length")?,
        n_heads: gguf_size(facts, arch, "attention.head_count")?,
        n_kv_heads,
        d_head,
    };
    check_sizes(sizes, |key, got, expected| {
        gguf_bad(facts, arch, gguf_key(key), &got.to_string(), expected)
    })?;
    Ok(sizes)
}

/// A number above zero that must be there.
pub(super) fn gguf_size(facts: &GgufFacts<'_>, arch: &str, key: &str) -> Result<u32, ModelError> {
    match gguf_u32(facts, arch, key)? {
        Some(0) => Err(gguf_bad(facts, arch, key, "0", "a number above 0")),
        Some(size) => Ok(size),
        None => Err(gguf_missing(facts, arch, key)),
    }
}

/// One number for all layers, or a list with one for each.
pub(super) fn gguf_per_layer(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
    n_layers: u32,
) -> Result<Option<Vec<u32>>, ModelError> {
    let n = n_layers as usize;
    let list = match facts.metadata.get(&format!("{arch}.{key}")) {
        Some(Value::Array(Array::U32(list))) => list.iter().map(|n| Some(*n)).collect(),
        Some(Value::Array(Array::I32(list))) => {
            list.iter().map(|n| u32::try_from(*n).ok()).collect()
        }
        Some(_) | None => return Ok(gguf_u32(facts, arch, key)?.map(|one| vec![one; n])),
    };
    let numbers: Option<Vec<u32>> = Vec::into_iter(list).collect();
    match numbers {
        Some(numbers) if numbers.len() == n => Ok(Some(numbers)),
        Some(_) | None => Err(gguf_bad(
            facts,
            arch,
            key,
            "another list",
            &format!("{n} numbers of 0 or more"),
        )),
    }
}

/// Truth values, one per layer.
pub(super) fn gguf_flags(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
    n_layers: u32,
) -> Result<Option<Vec<bool>>, ModelError> {
    let whole = format!("{arch}.{key}");
    match facts.metadata.get(&whole) {
        None => Ok(None),
        Some(Value::Array(Array::Bool(flags))) if flags.len() == n_layers as usize => {
            Ok(Some(flags.clone()))
        }
        Some(other) => Err(gguf_bad(
            facts,
            arch,
            key,
            other.type_name(),
            &format!("{n_layers} truth values"),
        )),
    }
}

fn gguf_key(key: SizeKey) -> &'static str {
    match key {
        SizeKey::Layers => "block_count",
        SizeKey::Heads => "attention.head_count",
        SizeKey::KvHeads => "attention.head_count_kv",
        SizeKey::HeadDim => "attention.key_length",
    }
}

/// Biases of the attention projections: metadata do not say, the tensors do.
pub(super) fn gguf_bias(facts: &GgufFacts<'_>) -> AttentionBias {
    match (
        facts.has("blk.0.attn_q.bias"),
        facts.has("blk.0.attn_output.bias"),
    ) {
        (false, false) => AttentionBias::Absent,
        (true, false) => AttentionBias::Qkv,
        // A bias on the output alone is refused later: the tensors then do not add up.
        (_, true) => AttentionBias::Qkvo,
    }
}

/// An optional number of GGUF metadata.
pub(super) fn gguf_u32(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<u32>, ModelError> {
    Ok(facts.metadata.u32(&format!("{arch}.{key}"))?)
}

/// Keys, below the architecture, that [`gguf_window`] and [`gguf_windows`] read.
pub(super) const GGUF_WINDOW_KEYS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
];

/// The window of attention in GGUF metadata; writers say 0 where there is none.
pub(super) fn gguf_window(facts: &GgufFacts<'_>, arch: &str) -> Result<Option<u32>, ModelError> {
    Ok(gguf_u32(facts, arch, "attention.sliding_window")?.filter(|window| *window > 0))
}

/// As [`gguf_window`], in an architecture whose files must have one.
pub(super) fn gguf_needed_window(facts: &GgufFacts<'_>, arch: &str) -> Result<u32, ModelError> {
    let key = "attention.sliding_window";
    match gguf_u32(facts, arch, key)? {
        None => Err(gguf_missing(facts, arch, key)),
        Some(0) => Err(gguf_bad(facts, arch, key, "0", "a number above 0")),
        Some(window) => Ok(window),
    }
}

/// Windows of the layers where only some have one: all but each `class_period`-th, or all where that is 0, unless the
/// file states a period or the layers one by one.
pub(super) fn gguf_windows(
    facts: &GgufFacts<'_>,
    arch: &str,
    n_layers: u32,
    window: Option<u32>,
    class_period: u32,
) -> Result<Vec<Option<u32>>, ModelError> {
    let key = "attention.sliding_window_pattern";
    let n = n_layers as usize;
    let stated = facts.metadata.get(&format!("{arch}.{key}"));
    if window.is_none() && stated.is_some() {
        return Err(gguf_missing(facts, arch, "attention.sliding_window"));
    }
    let windowed = match stated {
        Some(Value::Array(Array::Bool(flags))) if flags.len() >= n => flags[..n].to_vec(),
        Some(Value::Array(array)) => {
            let got = format!("{} of {} elements", array.type_name(), array.len());
            let expected = format!("a period, or truth values for {n_layers} layers");
            return Err(gguf_bad(facts, arch, key, &got, &expected));
        }
        Some(_) | None => {
            let period = gguf_u32(facts, arch, key)?.unwrap_or(class_period);
            (0..n_layers)
                .map(|i| period == 0 || (i + 1) % period != 0)
                .collect()
        }
    };
    Ok(windowed
        .into_iter()
        .map(|windowed| window.filter(|_| windowed))
        .collect())
}

/// A finite number above zero that must be there.
pub(super) fn gguf_needed(facts: &GgufFacts<'_>, arch: &str, key: &str) -> Result<f32, ModelError> {
    gguf_positive(facts, arch, key)?.ok_or_else(|| gguf_missing(facts, arch, key))
}

/// An optional finite number above zero of GGUF metadata.
pub(super) fn gguf_positive(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<f32>, ModelError> {
    match facts.metadata.f32(&format!("{arch}.{key}"))? {
        Some(x) if !x.is_finite() || x <= 0.0 => Err(gguf_bad(
            facts,
            arch,
            key,
            &x.to_string(),
            "a finite number above 0",
        )),
        other => Ok(other),
    }
}

/// As [`gguf_positive`], where 0 is how writers say that there is no such factor.
pub(super) fn gguf_factor(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<f32>, ModelError> {
    match facts.metadata.f32(&format!("{arch}.{key}"))? {
        Some(0.0) => Ok(None),
        Some(_) | None => gguf_positive(facts, arch, key),
    }
}

/// The error for an absent key of GGUF metadata.
pub(super) fn gguf_missing(facts: &GgufFacts<'_>, arch: &str, key: &str) -> ModelError {
    ModelError::MissingKey {
        origin: facts.origin.to_owned(),
        key: format!("{arch}.{key}"),
    }
}

/// The error for a value of GGUF metadata that cannot be used.
pub(super) fn gguf_bad(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
    got: &str,
    expected: &str,
) -> ModelError {
    ModelError::BadKey {
        origin: facts.origin.to_owned(),
        key: format!("{arch}.{key}"),
        got: got.to_owned(),
        expected: expected.to_owned(),
    }
}

/// Refuses keys under `arch.` that none of the readers knows: they may change the forward pass.
pub(super) fn gguf_finish(
    facts: &GgufFacts<'_>,
    arch: &str,
    known: &[&str],
) -> Result<(), ModelError> {
    const COMMON: &[&str] = &[
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
    ];
    let prefix = format!("{arch}.");
    let keys: Vec<String> = facts
        .metadata
        .iter()
        .filter_map(|(key, _)| key.strip_prefix(&prefix).map(|rest| (key, rest)))
        .filter(|(_, rest)| !COMMON.contains(rest) && !known.contains(rest))
        .map(|(key, _)| key.to_string())
        .collect();
    if keys.is_empty() {
        Ok(())
    } else {
        Err(ModelError::UnknownKeys {
            origin: facts.origin.to_owned(),
            keys,
        })
    }
}
