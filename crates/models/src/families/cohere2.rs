//! Cohere 2 (Command R7B): one norm without bias for both branches, and windowed layers, which alone have positions.

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bias,
    gguf_finish, gguf_needed, gguf_needed_window, gguf_windows, head_share, layer_windows,
    mean_norm, sizes_from_config, sizes_from_gguf,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{
    Activation, AttentionBias, BlockShape, ModelSpec, NormKind, NormSpec, RopeLayout, RopeSpec,
};

/// One full layer in four where no key says otherwise.
const PERIOD: u32 = 4;

pub(super) const COHERE2: Family = Family {
    name: "cohere2",
    hf_model_types: &["cohere2"],
    gguf_arch: "cohere2",
    from_config,
    from_gguf: Some(from_gguf),
    // Pairs are neighbours in Hugging Face checkpoints too.
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, names::PRE_NORMS, names::ATTENTION, names::MLP],
        ignored: &[],
    },
    gguf_rules: &[],
};

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    rope: RopeSpec,
    windows: Vec<Option<u32>>,
    logits: f32,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Published files describe the architecture again in keys that the class does not read.
    for (key, value) in [
        ("layer_switch", 4.into()),
        ("order_of_interleaved_layers", "local_attn_first".into()),
        ("position_embedding_type", "rope_gptj".into()),
        ("rotary_pct", 1.0.into()),
        ("use_gated_activation", true.into()),
        ("use_parallel_block", true.into()),
        ("use_qk_norm", false.into()),
    ] {
        cfg.must_be(key, &value)?;
    }
    // Ways to lay the tied embedding out, which tensors show.
    cfg.ignore("use_embedding_sharing");
    cfg.ignore("use_parallel_embedding");
    let sizes = sizes_from_config(cfg, head_share)?;
    // The class derives the width of a head and overwrites the key.
    let derived = head_share(sizes.d_model, sizes.n_heads);
    cfg.must_be("head_dim", &derived.into())?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let period = cfg.opt_u32("sliding_window_pattern")?.unwrap_or(PERIOD);
    if period == 0 {
        return Err(cfg.bad("sliding_window_pattern", &0.into(), "a number above 0"));
    }
    let window = Some(cfg.window("sliding_window", 4096)?);
    let found = Found {
        sizes,
        eps: cfg.opt_positive("layer_norm_eps")?.unwrap_or(1e-5) as f32,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        activation: activation_or(cfg, "hidden_act", Activation::Silu)?,
        rope: rope::from_config(cfg, class)?,
        windows: layer_windows(cfg, sizes.n_layers, window, |i| (i + 1) % period != 0)?,
        logits: cfg.opt_positive("logit_scale")?.unwrap_or(0.0625) as f32,
        tied: cfg.bool_or("tie_word_embeddings", true)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "cohere2";
    let sizes = sizes_from_gguf(facts, arch)?;
    let window = gguf_needed_window(facts, arch)?;
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_epsilon")?,
        bias: gguf_bias(facts),
        activation: Activation::Silu,
        rope: rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?,
        windows: gguf_windows(facts, arch, sizes.n_layers, Some(window), PERIOD)?,
        logits: gguf_needed(facts, arch, "logit_scale")?,
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(GGUF_WINDOW_KEYS);
    known.extend(["attention.layer_norm_epsilon", "logit_scale"]);
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let norm = NormSpec {
        kind: NormKind::Layer,
        ..mean_norm(found.eps)
    };
    let mut spec = Plain {
        family: "cohere2",
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    spec.head.scale = found.logits;
    let rope = RopeSpec {
        layout: RopeLayout::Interleaved,
        ..found.rope
    };
    for (i, attention) in attentions(&mut spec) {
        attention.window = found.windows[i];
        attention.rope = found.windows[i].map(|_| rope.clone());
    }
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.block = BlockShape::Parallel { norm });
    spec
}
