//! Gemma 3n: parallel streams, a low-rank branch beside attention, per-layer embeddings, sparse gates, shared keys and values.

mod gguf;

use serde_json::Value;

use super::decoder::{
    Plain, Sizes, activation_named, attentions, flagged_bias, layer_windows, rms, sizes_beside,
    softcap,
};
use super::rope::{self, RopeClass};
use super::{Family, GgufRopeRows, HfNames, names, sharing};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{LayerTensor as T, TensorRole};
use crate::spec::{
    Activation, AltUpSpec, AttentionBias, BlockShape, Ffn, KvSource, LaurelSpec, ModelSpec,
    PerLayerEmbedding, QkNorm, RopeSpec,
};

/// Base of the windowed layers.
const LOCAL_THETA: f64 = 10_000.0;

/// Least mean square of a stream that is rescaled.
const MAGNITUDE_FLOOR: f32 = 1e-5;

/// Streams a file may claim; published models have 4.
const STREAMS_MAX: u32 = 64;

pub(super) const GEMMA3N: Family = Family {
    name: "gemma3n",
    hf_model_types: &["gemma3n_text", "gemma3n"],
    gguf_arch: "gemma3n",
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
            STREAMS,
        ],
        ignored: sharing::IGNORED,
    },
    gguf_rules: &[],
};

const STREAMS: &[Rule] = &[
    Rule::indexed(TensorRole::AltUpProjection, "altup_projections.{i}.weight"),
    Rule::indexed(
        TensorRole::AltUpUnembedding,
        "altup_unembed_projections.{i}.weight",
    ),
    Rule::layer(&[T::AltUpCorrect], "altup.correction_coefs.weight"),
    Rule::layer(&[T::AltUpCorrectScale], "altup.correct_output_scale"),
    Rule::layer(&[T::AltUpPredict], "altup.prediction_coefs.weight"),
    Rule::layer(&[T::AltUpRouter], "altup.modality_router.weight"),
    Rule::layer(&[T::AltUpRouterNorm], "altup.router_norm.weight"),
    Rule::layer(&[T::LaurelLeft], "laurel.linear_left.weight"),
    Rule::layer(&[T::LaurelRight], "laurel.linear_right.weight"),
    Rule::layer(&[T::LaurelNorm], "laurel.post_laurel_norm.weight"),
];

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
    cutoffs: Vec<Option<f32>>,
    local: RopeSpec,
    global: RopeSpec,
    per_layer: PerLayerEmbedding,
    altup: AltUpSpec,
    laurel_rank: u32,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Clamps weights and scales their changes while training; scores are not scaled by the third.
    for key in [
        "altup_coef_clip",
        "altup_lr_multiplier",
        "query_pre_attn_scalar",
    ] {
        cfg.ignore(key);
    }
    let d_mlp = widths(cfg)?;
    let n_ctx = cfg.u32("max_position_embeddings")?;
    let sizes = sizes_beside(cfg, d_mlp[0], n_ctx, Some(2), |_, _| 256)?;
    let d_mlp = per_layer_widths(cfg, d_mlp, sizes.n_layers)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 1_000_000.0,
        n_ctx,
    };
    let (local, global) = rope::local_and_global(cfg, class, LOCAL_THETA)?;
    let window = cfg.window("sliding_window", 512)?;
    let windows = layer_windows(cfg, sizes.n_layers, Some(window), |i| (i + 1) % 5 != 0)?;
    let windowed: Vec<bool> = windows.iter().map(Option::is_some).collect();
    let sources = sharing::kv_sources(cfg, &windowed, 15)?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let activation = match cfg.opt_str("hidden_activation")? {
        None => Activation::GeluTanh,
        Some(name) => activation_named(name)
            .ok_or_else(|| cfg.bad("hidden_activation", &Value::from(name), "gelu_pytorch_tanh"))?,
    };
    let positive = |key: &str, class_size: u32| match cfg.opt_u32(key)? {
        Some(0) => Err(cfg.bad(key, &Value::from(0), "a number above 0")),
        stated => Ok(stated.unwrap_or(class_size)),
    };
    let width = positive("hidden_size_per_layer_input", 256)?;
    let rows = positive("vocab_size_per_layer_input", 262_144)?;
    let found = Found {
        sizes,
        eps,
        bias: flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
        activation,
        softcap: match cfg.is_null("final_logit_softcapping") {
            true => {
                let key = "final_logit_softcapping";
                return Err(cfg.bad(key, &Value::Null, "a number above 0, or no key"));
            }
            false => softcap(cfg, "final_logit_softcapping")?.or(Some(30.0)),
        },
        tied: cfg.bool_or("tie_word_embeddings", true)?,
        windows,
        sources,
        d_mlp,
        cutoffs: cutoffs(cfg, sizes.n_layers)?,
        local,
        global,
        per_layer: sharing::per_layer(width, rows, sizes.d_model, activation, eps),
        altup: altup(cfg, sizes.d_model, eps)?,
        laurel_rank: positive("laurel_rank", 64)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

/// `intermediate_size`: one number, or a list of them.
fn widths(cfg: &RawConfig<'_>) -> Result<Vec<u32>, ModelError> {
    let key = "intermediate_size";
    let value = cfg.get(key).ok_or_else(|| cfg.missing(key))?;
    let width = |value: &Value| {
        let width = value.as_u64().and_then(|n| u32::try_from(n).ok());
        width.filter(|n| *n > 0)
    };
    let widths: Option<Vec<u32>> = match value {
        Value::Array(list) => list.iter().map(width).collect(),
        value => width(value).map(|width| vec![width]),
    };
    widths
        .filter(|widths| !widths.is_empty())
        .ok_or_else(|| cfg.bad(key, value, "a number above 0, or one per layer"))
}

fn per_layer_widths(
    cfg: &RawConfig<'_>,
    widths: Vec<u32>,
    n_layers: u32,
) -> Result<Vec<u32>, ModelError> {
    let n = n_layers as usize;
    let is_list = cfg.get("intermediate_size").is_some_and(Value::is_array);
    match widths.as_slice() {
        [one] if !is_list => Ok(vec![*one; n]),
        list if list.len() == n => Ok(widths),
        list => {
            let got = Value::from(format!("{} entries", list.len()));
            Err(cfg.bad("intermediate_size", &got, &format!("{n} entries")))
        }
    }
}

/// `activation_sparsity_pattern`: the share of gates of a layer that are cut off. The class cuts 95 percent in the first
/// ten layers of models that have more.
fn cutoffs(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<Option<f32>>, ModelError> {
    let key = "activation_sparsity_pattern";
    let n = n_layers as usize;
    let Some(value) = cfg.get(key) else {
        return Ok(class_cutoffs(n_layers));
    };
    let expected = format!("{n} numbers from 0 to below 1");
    let shares: Option<Vec<f64>> = value
        .as_array()
        .and_then(|list| list.iter().map(Value::as_f64).collect());
    let shares = shares
        .filter(|list| list.len() == n && list.iter().all(|share| (0.0..1.0).contains(share)))
        .ok_or_else(|| cfg.bad(key, value, &expected))?;
    Ok(shares
        .into_iter()
        .map(|share| (share > 0.0).then(|| standard_deviations(share)))
        .collect())
}

/// The cutoffs of the published models.
fn class_cutoffs(n_layers: u32) -> Vec<Option<f32>> {
    let n_sparse = if n_layers > 10 { 10 } else { 0 };
    (0..n_layers)
        .map(|i| (i < n_sparse).then(|| standard_deviations(0.95)))
        .collect()
}

/// Standard deviations above the mean below which a share of the normal distribution lies. The share is taken in f32, as
/// the class has it.
pub(super) fn standard_deviations(share: f64) -> f32 {
    let share = f64::from(share as f32);
    // Halved as often as an f64 has digits; beyond 8 deviations no share differs from 0 or 1 in f32.
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = 0.5 * (low + high);
        if normal_share(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (0.5 * (low + high)) as f32
}

/// Share of the normal distribution below `x`, by the series of Marsaglia (2004), "Evaluating the normal distribution",
/// section 3.
pub(super) fn normal_share(x: f64) -> f64 {
    let (mut sum, mut term, mut i) = (x, x, 1.0);
    loop {
        i += 2.0;
        term *= x * x / i;
        let next = sum + term;
        if next == sum {
            break;
        }
        sum = next;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn altup(cfg: &RawConfig<'_>, d_model: u32, eps: f32) -> Result<AltUpSpec, ModelError> {
    let n_streams = cfg.opt_u32("altup_num_inputs")?.unwrap_or(4);
    if n_streams == 0 || n_streams > STREAMS_MAX {
        let expected = format!("1 to {STREAMS_MAX}");
        return Err(cfg.bad("altup_num_inputs", &Value::from(n_streams), &expected));
    }
    let active = cfg.opt_u32("altup_active_idx")?.unwrap_or(0);
    if active >= n_streams {
        let expected = format!("a stream below {n_streams}");
        return Err(cfg.bad("altup_active_idx", &Value::from(active), &expected));
    }
    // The class keeps the vector of a scale that is switched off.
    if !cfg.bool_or("altup_correct_scale", true)? {
        let off = Value::from(false);
        return Err(cfg.bad("altup_correct_scale", &off, "true or absent"));
    }
    Ok(streams(n_streams, active, d_model, eps))
}

fn streams(n_streams: u32, active: u32, d_model: u32, eps: f32) -> AltUpSpec {
    AltUpSpec {
        n_streams,
        active,
        router_norm: rms(eps),
        router_multiplier: (1.0 / f64::from(d_model)) as f32,
        magnitude_floor: MAGNITUDE_FLOOR,
        correct_scale: true,
    }
}

fn decoder(found: Found) -> ModelSpec {
    let norm = rms(found.eps);
    let mut spec = Plain {
        family: "gemma3n",
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    spec.embedding.multiplier = (found.sizes.d_model as f32).sqrt();
    spec.embedding.per_layer = Some(found.per_layer);
    spec.altup = Some(found.altup);
    spec.head.softcap = found.softcap;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.block = BlockShape::Sandwich {
            mixer: norm,
            mixer_post: norm,
            ffn: norm,
            ffn_post: norm,
        };
        layer.laurel = Some(LaurelSpec {
            rank: found.laurel_rank,
            norm,
        });
        if let Ffn::Gated(ffn) = &mut layer.ffn {
            ffn.d_mlp = found.d_mlp[i];
            ffn.gate_cutoff = found.cutoffs[i];
        }
    }
    for (i, attention) in attentions(&mut spec) {
        attention.scale = 1.0;
        attention.qk_norm = QkNorm::PerHead(norm);
        attention.kv = found.sources[i];
        attention.v_norm = sharing::value_norm(attention.kv, found.eps);
        attention.window = found.windows[i];
        attention.rope = Some(match attention.window {
            Some(_) => found.local.clone(),
            None => found.global.clone(),
        });
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_normal_distribution_ends_where_torch_says() {
        // torch.distributions.Normal(0, 1).icdf in float32.
        for (share, expected) in [(0.5, 0.0), (0.9, 1.281_551_5), (0.95, 1.644_853_5_f32)] {
            let got = standard_deviations(share);
            assert!((got - expected).abs() <= 3e-7, "{share}: {got}");
        }
        assert!((standard_deviations(0.3) + 0.524_400_5).abs() <= 3e-7);
    }
}
