//! Gemma 4 from the metadata of GGUF files.

use super::{Found, Heads, LOCAL_THETA, decoder};
use crate::error::ModelError;
use crate::families::GgufFacts;
use crate::families::decoder::{gguf_bias, gguf_finish, gguf_missing, gguf_positive, gguf_u32};
use crate::families::gguf::{
    gguf_flags, gguf_needed, gguf_needed_window, gguf_per_layer, gguf_size, sizes_with_heads,
};
use crate::families::moe::{self, MoeSizes};
use crate::families::{rope, sharing};
use crate::spec::{Activation, KvSource, ModelSpec, RopeScaling, RopeSpec};

/// Divisor of a frequency from which on nothing turns within any context.
const STANDSTILL: f32 = 1e29;

pub(super) fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "gemma4";
    let n_layers = gguf_size(facts, arch, "block_count")?;
    let needed = |key: &str| gguf_missing(facts, arch, key);
    let key = "feed_forward_length";
    let d_mlp = gguf_per_layer(facts, arch, key, n_layers)?.ok_or_else(|| needed(key))?;
    let key = "attention.sliding_window_pattern";
    let windowed = gguf_flags(facts, arch, key, n_layers)?.ok_or_else(|| needed(key))?;
    let window = gguf_needed_window(facts, arch)?;
    let key = "attention.head_count_kv";
    let kv_heads = match gguf_per_layer(facts, arch, key, n_layers)? {
        Some(list) => list,
        None => vec![gguf_size(facts, arch, "attention.head_count")?; n_layers as usize],
    };
    let of_kind = |wanted: bool| {
        let mut layers = windowed
            .iter()
            .zip(&kv_heads)
            .filter(|(w, _)| **w == wanted);
        layers.next().map_or(kv_heads[0], |(_, n)| *n)
    };
    let d_local = gguf_size(facts, arch, "attention.key_length_swa")?;
    let d_global = gguf_size(facts, arch, "attention.key_length")?;
    let sizes = sizes_with_heads(facts, arch, d_mlp[0], of_kind(true), d_local)?;
    sizes_with_heads(facts, arch, d_mlp[0], of_kind(false), d_global)?;
    let global = gguf_global_rope(facts, arch, d_global, sizes.n_ctx)?;
    let theta = rope::theta_from_gguf(facts, arch, "rope.freq_base_swa")?;
    let key = "rope.dimension_count_swa";
    let turned = gguf_u32(facts, arch, key)?.unwrap_or(global.dims);
    let local = RopeSpec {
        dims: rope::dims_from_gguf(facts, arch, key, turned, d_local)?,
        ..rope::unscaled(d_local, theta.unwrap_or(LOCAL_THETA))
    };
    let mut sources = sharing::gguf_kv_sources(facts, arch, &windowed, n_layers as usize)?;
    for (layer, source) in sources.iter_mut().enumerate() {
        if *source == KvSource::Own && !facts.has(&format!("blk.{layer}.attn_v.weight")) {
            *source = KvSource::KeyIsValue;
        }
    }
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    let width = gguf_u32(facts, arch, "embedding_length_per_layer_input")?
        .ok_or_else(|| needed("embedding_length_per_layer_input"))?;
    let (d_model, gelu) = (sizes.d_model, Activation::GeluTanh);
    let per_layer =
        (width > 0).then(|| sharing::per_layer(width, sizes.d_vocab, d_model, gelu, eps));
    let known = [
        rope::GGUF_KEYS,
        moe::GGUF_KEYS,
        sharing::GGUF_KEYS,
        &[
            "attention.key_length_swa",
            "attention.value_length_swa",
            "rope.dimension_count_swa",
        ],
    ];
    let found = Found {
        eps,
        bias: gguf_bias(facts),
        activation: gelu,
        softcap: gguf_positive(facts, arch, "final_logit_softcapping")?,
        tied: !facts.has_head(),
        windows: windowed
            .iter()
            .map(|w| Some(window).filter(|_| *w))
            .collect(),
        sources,
        local: Heads {
            n_kv_heads: of_kind(true),
            d_head: d_local,
            rope: local,
        },
        global: Heads {
            n_kv_heads: of_kind(false),
            d_head: d_global,
            rope: global,
        },
        per_layer,
        experts: MoeSizes::from_gguf(facts, arch, |_| 0)?,
        d_mlp,
        sizes,
    };
    gguf_finish(facts, arch, &known.concat())?;
    Ok(decoder(found))
}

/// The rope of full layers: pairs whose divisor is out of all proportion do not turn.
fn gguf_global_rope(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_head: u32,
    n_ctx: u32,
) -> Result<RopeSpec, ModelError> {
    let rope = rope::from_gguf(facts, arch, d_head, n_ctx)?;
    let RopeScaling::Divisors { divisors } = &rope.scaling else {
        return Ok(rope);
    };
    let live = divisors
        .iter()
        .take_while(|divisor| **divisor == 1.0)
        .count();
    if divisors[live..].iter().any(|divisor| *divisor < STANDSTILL) {
        return Ok(rope);
    }
    Ok(RopeSpec {
        scaling: RopeScaling::Proportional {
            live_pairs: u32::try_from(live).unwrap_or(u32::MAX),
        },
        ..rope
    })
}
