//! Gemma 4: heads whose width depends on the kind of layer, keys that serve as values, experts beside a dense FFN, per-layer
//! embeddings, and a scalar on the residual stream.

mod gguf;

use serde_json::Value;

use super::decoder::{
    Plain, Sizes, activation_named, attentions, flagged_bias, layer_windows, rms, sizes_with_kv,
    softcap,
};
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufRopeRows, HfNames, names, sharing};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T};
use crate::spec::{
    Activation, AttentionBias, BlockShape, Ffn, KvSource, ModelSpec, MoeSpec, ParallelDense,
    PerLayerEmbedding, QkNorm, RopeLayout, RopeScaling, RopeSpec, RouterInput, RouterScore,
};

/// Bases of the windowed and of the full layers, and the part of the pairs that turns in the latter.
const LOCAL_THETA: f64 = 10_000.0;
const GLOBAL_THETA: f64 = 1_000_000.0;
const GLOBAL_SHARE: f64 = 0.25;

pub(super) const GEMMA4: Family = Family {
    name: "gemma4",
    hf_model_types: &["gemma4_text", "gemma4"],
    gguf_arch: "gemma4",
    from_config,
    from_gguf: Some(gguf::from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: sharing::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::SANDWICH_NORMS,
            names::ATTENTION,
            names::MLP,
            sharing::PER_LAYER,
            EXPERTS,
        ],
        ignored: sharing::IGNORED,
    },
    gguf_rules: GGUF,
};

const EXPERTS: &[Rule] = &[
    Rule::layer(&[T::LayerScalar], "layer_scalar"),
    Rule::layer(&[T::Router], "router.proj.weight"),
    Rule::layer(&[T::RouterNorm], "router.scale"),
    Rule::layer(&[T::ExpertScale], "router.per_expert_scale"),
    Rule::layer(&[T::DensePostNorm], "post_feedforward_layernorm_1.weight"),
    Rule::layer(&[T::ExpertsPostNorm], "post_feedforward_layernorm_2.weight"),
    Rule::layer(&[T::ExpertsNorm], "pre_feedforward_layernorm_2.weight"),
    Rule::experts(&[E::Gate, E::Up], "experts.gate_up_proj"),
    Rule::experts(&[E::Down], "experts.down_proj"),
    Rule::expert(&[E::Gate], "experts.{e}.gate_proj.weight"),
    Rule::expert(&[E::Up], "experts.{e}.up_proj.weight"),
    Rule::expert(&[E::Down], "experts.{e}.down_proj.weight"),
];

const GGUF: &[Rule] = &[
    Rule::layer(&[T::RouterNorm], "ffn_gate_inp.scale"),
    Rule::layer(&[T::ExpertScale], "ffn_down_exps.scale"),
    Rule::layer(&[T::DensePostNorm], "post_ffw_norm_1.weight"),
    Rule::layer(&[T::ExpertsPostNorm], "post_ffw_norm_2.weight"),
    Rule::layer(&[T::ExpertsNorm], "pre_ffw_norm_2.weight"),
    Rule::experts(&[E::Gate, E::Up], "ffn_gate_up_exps.weight"),
];

/// Attention of one kind of layer.
#[derive(Clone)]
struct Heads {
    n_kv_heads: u32,
    d_head: u32,
    rope: RopeSpec,
}

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    softcap: Option<f32>,
    tied: bool,
    windows: Vec<Option<u32>>,
    sources: Vec<KvSource>,
    d_mlp: Vec<u32>,
    local: Heads,
    global: Heads,
    per_layer: Option<PerLayerEmbedding>,
    experts: Option<MoeSizes>,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    match cfg.opt_str("use_bidirectional_attention")? {
        // Only images see what comes after them.
        None | Some("vision") => {}
        Some(other) => {
            let key = "use_bidirectional_attention";
            return Err(cfg.bad(key, &Value::from(other), "vision or absent"));
        }
    }
    let sizes = sizes_with_kv(cfg, Some(4), |_, _| 256)?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let activation = match cfg.opt_str("hidden_activation")? {
        None => Activation::GeluTanh,
        Some(name) => activation_named(name)
            .ok_or_else(|| cfg.bad("hidden_activation", &Value::from(name), "gelu_pytorch_tanh"))?,
    };
    let windows = windows(cfg, sizes.n_layers)?;
    let windowed: Vec<bool> = windows.iter().map(Option::is_some).collect();
    let mut sources = sharing::kv_sources(cfg, &windowed, 0)?;
    let per_layer = per_layer(cfg, sizes, activation, eps)?;
    let n_shared = sources.iter().filter(|s| **s != KvSource::Own).count();
    if n_shared > 0 && per_layer.is_none() {
        // The class runs layers that share only where it has per-layer embeddings.
        let expected = "0 where hidden_size_per_layer_input is 0";
        return Err(cfg.bad("num_kv_shared_layers", &Value::from(n_shared), expected));
    }
    let key_is_value = cfg.bool_or("attention_k_eq_v", false)?;
    for (source, windowed) in sources.iter_mut().zip(&windowed) {
        if key_is_value && !windowed && *source == KvSource::Own {
            *source = KvSource::KeyIsValue;
        }
    }
    let (local, global) = heads(cfg, sizes, &windowed, key_is_value)?;
    let found = Found {
        eps,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        activation,
        softcap: softcap(cfg, "final_logit_softcapping")?,
        tied: cfg.bool_or("tie_word_embeddings", true)?,
        d_mlp: widths(cfg, sizes, &sources)?,
        windows,
        sources,
        local,
        global,
        per_layer,
        experts: experts(cfg)?,
        sizes,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

/// Every sixth layer is without a window where no key says otherwise, and the last one always.
fn windows(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<Option<u32>>, ModelError> {
    let window = cfg.window("sliding_window", 512)?;
    let mut windows = layer_windows(cfg, n_layers, Some(window), |i| (i + 1) % 6 != 0)?;
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    Ok(windows)
}

/// Heads of windowed and of full layers: by `per_layer_config`, or by the keys of published files.
fn heads(
    cfg: &RawConfig<'_>,
    sizes: Sizes,
    windowed: &[bool],
    key_is_value: bool,
) -> Result<(Heads, Heads), ModelError> {
    let d_global = cfg.opt_u32("global_head_dim")?.unwrap_or(512);
    let n_global = cfg.opt_u32("num_global_key_value_heads")?;
    let own = (sizes.n_kv_heads, sizes.d_head);
    let ((n_local, d_local), (n_global, d_global)) = match cfg.object("per_layer_config")? {
        None => {
            let n_global = n_global.filter(|_| key_is_value).unwrap_or(own.0);
            (own, (n_global, d_global))
        }
        Some(overrides) => {
            let layers = overridden(&overrides, own, windowed.len())?;
            let kind = |wanted: bool| {
                let mut of_kind = windowed.iter().zip(&layers).filter(|(w, _)| **w == wanted);
                let first = of_kind.next().map_or(own, |(_, heads)| *heads);
                of_kind.all(|(_, heads)| *heads == first).then_some(first)
            };
            let expected = "the same heads in all layers of a kind";
            let mixed = || cfg.bad("per_layer_config", &Value::from("a mixture"), expected);
            (
                kind(true).ok_or_else(mixed)?,
                kind(false).ok_or_else(mixed)?,
            )
        }
    };
    for (n_kv_heads, d_head) in [(n_local, d_local), (n_global, d_global)] {
        if n_kv_heads == 0 || !sizes.n_heads.is_multiple_of(n_kv_heads) {
            let expected = format!("a divisor of {}", sizes.n_heads);
            let key = "num_global_key_value_heads";
            return Err(cfg.bad(key, &Value::from(n_kv_heads), &expected));
        }
        if d_head == 0 || !d_head.is_multiple_of(2) {
            let expected = "an even number above 0";
            return Err(cfg.bad("global_head_dim", &Value::from(d_head), expected));
        }
    }
    let (local, global) = ropes(cfg, d_local, d_global, sizes.n_ctx)?;
    Ok((
        Heads {
            n_kv_heads: n_local,
            d_head: d_local,
            rope: local,
        },
        Heads {
            n_kv_heads: n_global,
            d_head: d_global,
            rope: global,
        },
    ))
}

/// K/V heads and width of a head of each layer, where an object under the layer's number may change both.
fn overridden(
    overrides: &RawConfig<'_>,
    own: (u32, u32),
    n_layers: usize,
) -> Result<Vec<(u32, u32)>, ModelError> {
    let mut layers = Vec::with_capacity(n_layers);
    for i in 0..n_layers {
        let mut heads = own;
        if let Some(changes) = overrides.object(&i.to_string())? {
            heads.0 = changes.opt_u32("num_key_value_heads")?.unwrap_or(own.0);
            heads.1 = changes.opt_u32("head_dim")?.unwrap_or(own.1);
            changes.finish()?;
        }
        layers.push(heads);
    }
    overrides.finish()?;
    Ok(layers)
}

fn ropes(
    cfg: &RawConfig<'_>,
    d_local: u32,
    d_global: u32,
    n_ctx: u32,
) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let class = |d_head, theta| RopeClass {
        d_head,
        theta,
        n_ctx,
    };
    let Some(params) = cfg.object("rope_parameters")? else {
        let global = proportional(d_global, GLOBAL_THETA, GLOBAL_SHARE);
        return Ok((rope::unscaled(d_local, LOCAL_THETA), global));
    };
    let one = |key: &str, class: RopeClass| -> Result<RopeSpec, ModelError> {
        let nested = params.object(key)?.ok_or_else(|| params.missing(key))?;
        // The class has bases only for files without `rope_parameters`.
        if nested.get("rope_theta").is_none() {
            return Err(nested.missing("rope_theta"));
        }
        if nested.opt_str("rope_type")? != Some("proportional") {
            return rope::of_params(&nested, class);
        }
        if let Some(factor) = nested.opt_positive("factor")?
            && factor != 1.0
        {
            return Err(nested.bad("factor", &Value::from(factor), "1 or absent"));
        }
        let share = nested.opt_positive("partial_rotary_factor")?.unwrap_or(1.0);
        if share > 1.0 {
            let expected = "a number up to 1";
            return Err(nested.bad("partial_rotary_factor", &Value::from(share), expected));
        }
        let theta = rope::theta(&nested, "rope_theta")?.unwrap_or(class.theta);
        nested.finish()?;
        Ok(proportional(class.d_head, theta, share))
    };
    let ropes = (
        one("sliding_attention", class(d_local, LOCAL_THETA))?,
        one("full_attention", class(d_global, GLOBAL_THETA))?,
    );
    params.finish()?;
    Ok(ropes)
}

/// A rope that turns a share of the pairs of whole heads.
fn proportional(d_head: u32, theta: f64, share: f64) -> RopeSpec {
    RopeSpec {
        theta,
        dims: d_head,
        layout: RopeLayout::Split,
        scaling: RopeScaling::Proportional {
            live_pairs: (share * f64::from(d_head) / 2.0) as u32,
        },
    }
}

/// Layers that share keys and values may have twice the width.
fn widths(cfg: &RawConfig<'_>, sizes: Sizes, sources: &[KvSource]) -> Result<Vec<u32>, ModelError> {
    let double = cfg.bool_or("use_double_wide_mlp", false)?;
    let wide = sizes.d_mlp.checked_mul(2).ok_or_else(|| {
        let expected = "a number whose double fits 32 bits";
        cfg.bad("intermediate_size", &Value::from(sizes.d_mlp), expected)
    })?;
    let width = |source: &KvSource| match source {
        KvSource::SharedFrom(_) if double => wide,
        KvSource::SharedFrom(_) | KvSource::Own | KvSource::KeyIsValue => sizes.d_mlp,
    };
    Ok(sources.iter().map(width).collect())
}

fn per_layer(
    cfg: &RawConfig<'_>,
    sizes: Sizes,
    activation: Activation,
    eps: f32,
) -> Result<Option<PerLayerEmbedding>, ModelError> {
    let width = cfg.opt_u32("hidden_size_per_layer_input")?.unwrap_or(256);
    let rows = cfg
        .opt_u32("vocab_size_per_layer_input")?
        .unwrap_or(262_144);
    if width == 0 {
        return Ok(None);
    }
    // The class has no row for other ids.
    if rows < sizes.d_vocab {
        let expected = format!("at least {}", sizes.d_vocab);
        return Err(cfg.bad("vocab_size_per_layer_input", &Value::from(rows), &expected));
    }
    Ok(Some(sharing::per_layer(
        width,
        rows,
        sizes.d_model,
        activation,
        eps,
    )))
}

fn experts(cfg: &RawConfig<'_>) -> Result<Option<MoeSizes>, ModelError> {
    // All of them are null in models without experts.
    let number = |key: &str| match cfg.is_null(key) {
        true => Ok(None),
        false => cfg.opt_u32(key),
    };
    let (n_experts, n_active, d_expert) = (
        number("num_experts")?,
        number("top_k_experts")?,
        number("moe_intermediate_size")?,
    );
    if !cfg.bool_or("enable_moe_block", false)? {
        let stated = [
            ("num_experts", n_experts),
            ("top_k_experts", n_active),
            ("moe_intermediate_size", d_expert),
        ];
        for (key, stated) in stated {
            if let Some(stated @ 1..) = stated {
                let expected = "0 or null where enable_moe_block is not true";
                return Err(cfg.bad(key, &Value::from(stated), expected));
            }
        }
        return Ok(None);
    }
    let sizes = MoeSizes::checked(
        cfg,
        n_experts.ok_or_else(|| cfg.missing("num_experts"))?,
        n_active.ok_or_else(|| cfg.missing("top_k_experts"))?,
        d_expert.ok_or_else(|| cfg.missing("moe_intermediate_size"))?,
    )?;
    Ok(Some(sizes))
}

/// The router reads the residual stream through a norm of its own; a dense FFN runs beside the experts.
fn router(sizes: MoeSizes, d_model: u32, d_mlp: u32, activation: Activation, eps: f32) -> MoeSpec {
    MoeSpec {
        renormalize: Some(0.0),
        parallel_dense: Some(ParallelDense {
            ffn: moe::ffn(d_mlp, activation),
            dense_post: rms(eps),
            experts_pre: rms(eps),
            experts_post: rms(eps),
        }),
        router_input: RouterInput::Scaled {
            norm: rms(eps),
            multiplier: f64::from(d_model).powf(-0.5) as f32,
        },
        expert_scale: true,
        ..sizes.router(RouterScore::Softmax, activation)
    }
}

fn decoder(found: Found) -> ModelSpec {
    let norm = rms(found.eps);
    let d_model = found.sizes.d_model;
    let mut spec = Plain {
        family: "gemma4",
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    spec.embedding.multiplier = (d_model as f32).sqrt();
    spec.embedding.per_layer = found.per_layer;
    spec.head.softcap = found.softcap;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.block = BlockShape::Sandwich {
            mixer: norm,
            mixer_post: norm,
            ffn: norm,
            ffn_post: norm,
        };
        layer.layer_scalar = true;
        let (d_mlp, activation) = (found.d_mlp[i], found.activation);
        layer.ffn = match found.experts {
            None => Ffn::Gated(moe::ffn(d_mlp, activation)),
            Some(sizes) => Ffn::Moe(router(sizes, d_model, d_mlp, activation, found.eps)),
        };
    }
    for (i, attention) in attentions(&mut spec) {
        attention.scale = 1.0;
        attention.qk_norm = QkNorm::PerHead(norm);
        attention.kv = found.sources[i];
        attention.v_norm = sharing::value_norm(attention.kv, found.eps);
        attention.window = found.windows[i];
        let heads = match attention.window {
            Some(_) => &found.local,
            None => &found.global,
        };
        attention.n_kv_heads = heads.n_kv_heads;
        attention.d_head = heads.d_head;
        attention.rope = Some(heads.rope.clone());
    }
    spec
}
