//! Gemma 3n from the metadata of GGUF files.

use super::{Found, LOCAL_THETA, STREAMS_MAX, class_cutoffs, decoder, streams};
use crate::error::ModelError;
use crate::families::GgufFacts;
use crate::families::decoder::{
    gguf_bad, gguf_bias, gguf_finish, gguf_missing, gguf_positive, gguf_u32,
};
use crate::families::gguf::{
    gguf_needed, gguf_needed_window, gguf_per_layer, gguf_size, gguf_windows, sizes_with_heads,
};
use crate::families::{rope, sharing};
use crate::spec::{Activation, ModelSpec};

pub(super) fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "gemma3n";
    let n_layers = gguf_size(facts, arch, "block_count")?;
    let list = |key: &str| {
        gguf_per_layer(facts, arch, key, n_layers)?.ok_or_else(|| gguf_missing(facts, arch, key))
    };
    let d_mlp = list("feed_forward_length")?;
    let n_kv_heads = gguf_size(facts, arch, "attention.head_count_kv")?;
    let d_head = gguf_size(facts, arch, "attention.key_length")?;
    let sizes = sizes_with_heads(facts, arch, d_mlp[0], n_kv_heads, d_head)?;
    let global = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let theta = rope::theta_from_gguf(facts, arch, "rope.freq_base_swa")?;
    let local = rope::unscaled(sizes.d_head, theta.unwrap_or(LOCAL_THETA));
    let window = gguf_needed_window(facts, arch)?;
    let windows = gguf_windows(facts, arch, n_layers, Some(window), 5)?;
    let windowed: Vec<bool> = windows.iter().map(Option::is_some).collect();
    let sources = sharing::gguf_kv_sources(facts, arch, &windowed, 20)?;
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    let shape_of = |name: &str, at: usize| {
        let shape = (facts.shape)(name)?;
        u32::try_from(*shape.get(at)?).ok()
    };
    let size_of = |name: &str, at: usize| {
        shape_of(name, at).ok_or_else(|| ModelError::Tensors {
            origin: facts.origin.to_owned(),
            missing: vec![name.to_owned()],
            unexpected: vec![],
        })
    };
    let width = size_of("per_layer_proj_norm.weight", 0)?;
    let rows = size_of("per_layer_token_embd.weight", 0)?;
    let n_streams = gguf_u32(facts, arch, "altup.num_inputs")?.unwrap_or(4);
    let active = gguf_u32(facts, arch, "altup.active_idx")?.unwrap_or(0);
    if n_streams == 0 || n_streams > STREAMS_MAX || active >= n_streams {
        let got = format!("stream {active} of {n_streams}");
        let expected = format!("one of up to {STREAMS_MAX} streams");
        return Err(gguf_bad(facts, arch, "altup.num_inputs", &got, &expected));
    }
    let key = "activation_sparsity_scale";
    let cutoffs = match facts.metadata.f32s(&format!("{arch}.{key}"))? {
        None => class_cutoffs(n_layers),
        Some(list) if list.len() == n_layers as usize => {
            // Below every gate is no cutoff at all.
            list.iter()
                .map(|c| Some(*c).filter(|c| c.is_finite()))
                .collect()
        }
        Some(list) => {
            let got = format!("{} numbers", list.len());
            return Err(gguf_bad(facts, arch, key, &got, &n_layers.to_string()));
        }
    };
    let known = [
        rope::GGUF_KEYS,
        sharing::GGUF_KEYS,
        &[
            "activation_sparsity_scale",
            "altup.active_idx",
            "altup.num_inputs",
        ],
    ];
    let found = Found {
        sizes,
        eps,
        bias: gguf_bias(facts),
        activation: Activation::GeluTanh,
        softcap: gguf_positive(facts, arch, "final_logit_softcapping")?,
        tied: !facts.has_head(),
        windows,
        sources,
        d_mlp,
        cutoffs,
        local,
        global,
        per_layer: sharing::per_layer(width, rows, sizes.d_model, Activation::GeluTanh, eps),
        altup: streams(n_streams, active, sizes.d_model, eps),
        laurel_rank: size_of("blk.0.laurel_l.weight", 0)?,
    };
    gguf_finish(facts, arch, &known.concat())?;
    Ok(decoder(found))
}
