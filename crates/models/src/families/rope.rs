//! RoPE as configurations spell it: `rope_parameters`, the older `rope_theta` with `rope_scaling`, and GGUF keys.

use serde_json::Value;

use super::GgufFacts;
use super::decoder::{gguf_bad, gguf_missing, gguf_positive, gguf_u32};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::rope::{yarn_attention_factor, yarn_mscale};
use crate::spec::{RopeLayout, RopeScaling, RopeSpec};

/// GGUF keys, below the architecture, that [`from_gguf`] reads.
pub(super) const GGUF_KEYS: &[&str] = &[
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
];

/// What the class of a configuration takes for granted.
#[derive(Clone, Copy)]
pub(super) struct RopeClass {
    /// Width of a head.
    pub(super) d_head: u32,
    /// Base where no key states it.
    pub(super) theta: f64,
    /// Longest sequence, the original context of YaRN where no key states it.
    pub(super) n_ctx: u32,
}

/// One rope for all layers.
pub(super) fn from_config(cfg: &RawConfig<'_>, class: RopeClass) -> Result<RopeSpec, ModelError> {
    match cfg.object("rope_parameters")? {
        Some(params) => {
            let theta = params.opt_positive("rope_theta")?.unwrap_or(class.theta);
            let rope = scaled(&params, class, theta)?;
            params.finish()?;
            Ok(rope)
        }
        None => {
            let theta = cfg.opt_positive("rope_theta")?.unwrap_or(class.theta);
            match cfg.object("rope_scaling")? {
                Some(scaling) => {
                    let rope = scaled(&scaling, class, theta)?;
                    scaling.finish()?;
                    Ok(rope)
                }
                None => Ok(unscaled(class.d_head, theta)),
            }
        }
    }
}

/// Two ropes, for windowed and for full layers: nested `rope_parameters`, or a local base beside the global keys.
pub(super) fn local_and_global(
    cfg: &RawConfig<'_>,
    class: RopeClass,
    local_theta: f64,
) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let Some(params) = cfg.object("rope_parameters")? else {
        let local = cfg
            .opt_positive("rope_local_base_freq")?
            .unwrap_or(local_theta);
        return Ok((unscaled(class.d_head, local), from_config(cfg, class)?));
    };
    let one = |key: &str, theta: f64| -> Result<RopeSpec, ModelError> {
        let nested = params.object(key)?.ok_or_else(|| params.missing(key))?;
        let theta = nested.opt_positive("rope_theta")?.unwrap_or(theta);
        let rope = scaled(&nested, class, theta)?;
        nested.finish()?;
        Ok(rope)
    };
    let ropes = (
        one("sliding_attention", local_theta)?,
        one("full_attention", class.theta)?,
    );
    params.finish()?;
    Ok(ropes)
}

/// A rope that turns all of a head and is not stretched.
pub(super) fn unscaled(d_head: u32, theta: f64) -> RopeSpec {
    RopeSpec {
        theta,
        dims: d_head,
        layout: RopeLayout::Split,
        scaling: RopeScaling::Unscaled,
    }
}

fn scaled(params: &RawConfig<'_>, class: RopeClass, theta: f64) -> Result<RopeSpec, ModelError> {
    let kind = match (params.opt_str("rope_type")?, params.opt_str("type")?) {
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) => "default",
    };
    if let Some(partial) = params.opt_positive("partial_rotary_factor")?
        && partial != 1.0
    {
        return Err(params.bad(
            "partial_rotary_factor",
            &Value::from(partial),
            "1 or absent in this family",
        ));
    }
    let factor = || params.positive("factor");
    let original = || -> Result<u32, ModelError> {
        Ok(params
            .opt_u32("original_max_position_embeddings")?
            .unwrap_or(class.n_ctx))
    };
    let scaling = match kind {
        "default" => RopeScaling::Unscaled,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: params.positive("low_freq_factor")?,
            high_freq_factor: params.positive("high_freq_factor")?,
            original_context: params.u32("original_max_position_embeddings")?,
        },
        "yarn" => {
            let factor = factor()?;
            RopeScaling::Yarn {
                factor,
                beta_fast: params.opt_positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: params.opt_positive("beta_slow")?.unwrap_or(1.0),
                original_context: original()?,
                attention_factor: config_attention_factor(params, factor)?,
                truncate: params.bool_or("truncate", true)?,
            }
        }
        other => {
            return Err(params.bad(
                "rope_type",
                &Value::from(other),
                "one of default, linear, llama3, yarn",
            ));
        }
    };
    if let RopeScaling::Llama3 {
        low_freq_factor,
        high_freq_factor,
        ..
    } = &scaling
        && low_freq_factor >= high_freq_factor
    {
        return Err(params.bad(
            "high_freq_factor",
            &Value::from(*high_freq_factor),
            "more than low_freq_factor",
        ));
    }
    Ok(RopeSpec {
        theta,
        dims: class.d_head,
        layout: RopeLayout::Split,
        scaling,
    })
}

/// An explicit factor wins; then the ratio of two mscales; then YaRN's default.
fn config_attention_factor(params: &RawConfig<'_>, factor: f64) -> Result<f64, ModelError> {
    let (mscale, all_dim) = (params.opt_f64("mscale")?, params.opt_f64("mscale_all_dim")?);
    Ok(
        match (params.opt_positive("attention_factor")?, mscale, all_dim) {
            (Some(explicit), _, _) => explicit,
            (None, Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
                yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
            }
            (None, _, _) => yarn_attention_factor(factor),
        },
    )
}

/// The rope of GGUF metadata; the rows are canonical (split) once the loader has undone llama.cpp's permutation.
pub(super) fn from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_head: u32,
    n_ctx: u32,
) -> Result<RopeSpec, ModelError> {
    let theta = gguf_positive(facts, arch, "rope.freq_base")?.map_or(10_000.0, f64::from);
    if let Some(dims) = gguf_u32(facts, arch, "rope.dimension_count")?
        && dims != d_head
    {
        return Err(gguf_bad(
            facts,
            arch,
            "rope.dimension_count",
            &dims.to_string(),
            &d_head.to_string(),
        ));
    }
    let kind = facts
        .metadata
        .str(&format!("{arch}.rope.scaling.type"))?
        .unwrap_or("none");
    let factor = || {
        gguf_positive(facts, arch, "rope.scaling.factor")?
            .map(f64::from)
            .ok_or_else(|| gguf_missing(facts, arch, "rope.scaling.factor"))
    };
    let scaling = match (kind, &facts.rope_divisors) {
        ("none", None) => RopeScaling::Unscaled,
        ("none", Some(divisors)) => {
            let sound = divisors.len() == d_head as usize / 2
                && divisors.iter().all(|d| d.is_finite() && *d > 0.0);
            if !sound {
                let expected = format!("{} finite numbers above 0", d_head / 2);
                return Err(ModelError::BadKey {
                    origin: facts.origin.to_owned(),
                    key: "rope_freqs.weight".to_owned(),
                    got: format!("{} numbers", divisors.len()),
                    expected,
                });
            }
            RopeScaling::Divisors {
                divisors: divisors.clone(),
            }
        }
        ("linear", None) => RopeScaling::Linear { factor: factor()? },
        ("yarn", None) => {
            let factor = factor()?;
            let stated =
                gguf_positive(facts, arch, "rope.scaling.attn_factor")?.map_or(1.0, f64::from);
            RopeScaling::Yarn {
                factor,
                beta_fast: gguf_positive(facts, arch, "rope.scaling.yarn_beta_fast")?
                    .map_or(32.0, f64::from),
                beta_slow: gguf_positive(facts, arch, "rope.scaling.yarn_beta_slow")?
                    .map_or(1.0, f64::from),
                original_context: gguf_u32(facts, arch, "rope.scaling.original_context_length")?
                    .unwrap_or(n_ctx),
                attention_factor: stated * yarn_attention_factor(factor),
                truncate: true,
            }
        }
        (other, _) => {
            return Err(gguf_bad(
                facts,
                arch,
                "rope.scaling.type",
                other,
                "none, linear or yarn without rope_freqs",
            ));
        }
    };
    Ok(RopeSpec {
        theta,
        dims: d_head,
        layout: RopeLayout::Split,
        scaling,
    })
}
