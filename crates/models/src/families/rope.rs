//! RoPE as configurations spell it: `rope_parameters`, the older `rope_theta` with `rope_scaling`, and GGUF keys.

mod gguf;

use std::collections::BTreeMap;

use serde_json::Value;

pub(super) use self::gguf::{
    GGUF_KEYS, dims_from_gguf, from_gguf, partial_from_gguf, theta_from_gguf,
};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::rope::{yarn_attention_factor, yarn_mscale};
use crate::spec::{RopeLayout, RopeScaling, RopeSpec};

/// What a base is above: with 1 all pairs of a head turn alike, and below it the later ones turn faster than the first.
const THETA_ABOVE: f64 = 1.0;

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

/// What a class lets a configuration say beyond the common keys.
#[derive(Clone, Copy)]
struct Extras {
    /// Share of a head that turns where no key states it; `None` where the class knows no other than all of it.
    share: Option<f64>,
    /// Original context of the long-rope form where no key states it; `None` where the class has no such form.
    long_context: Option<u32>,
}

/// Nothing but the common keys.
const COMMON: Extras = Extras {
    share: None,
    long_context: None,
};

/// One rope for all layers, which turns whole heads.
pub(super) fn from_config(cfg: &RawConfig<'_>, class: RopeClass) -> Result<RopeSpec, ModelError> {
    with_extras(cfg, class, COMMON)
}

/// One rope for all layers, which turns the first part of a head; `share` is the class's part.
pub(super) fn partial_from_config(
    cfg: &RawConfig<'_>,
    class: RopeClass,
    share: f64,
) -> Result<RopeSpec, ModelError> {
    let extras = Extras {
        share: Some(share),
        ..COMMON
    };
    with_extras(cfg, class, extras)
}

/// As [`partial_from_config`], in a class that also knows the long-rope form and states its original context beside it.
pub(super) fn long_from_config(
    cfg: &RawConfig<'_>,
    class: RopeClass,
    share: f64,
    class_original: u32,
) -> Result<RopeSpec, ModelError> {
    let original = original_context(cfg)?;
    let extras = Extras {
        share: Some(share),
        long_context: Some(original.unwrap_or(class_original)),
    };
    with_extras(cfg, class, extras)
}

fn with_extras(
    cfg: &RawConfig<'_>,
    class: RopeClass,
    extras: Extras,
) -> Result<RopeSpec, ModelError> {
    let Some(params) = params(cfg)? else {
        let share = match extras.share {
            // A class without the key leaves it to the check for unknown ones.
            None => 1.0,
            Some(share) => cfg.opt_positive("partial_rotary_factor")?.unwrap_or(share),
        };
        return Ok(RopeSpec {
            dims: dims(cfg, class.d_head, share)?,
            ..unscaled(
                class.d_head,
                theta(cfg, "rope_theta")?.unwrap_or(class.theta),
            )
        });
    };
    let outer = theta(cfg, "rope_theta")?;
    let theta = said_once(&params, "rope_theta", theta(&params, "rope_theta")?, outer)?;
    let share = match extras.share {
        None => None,
        Some(share) => {
            let key = "partial_rotary_factor";
            let outer = cfg.opt_positive(key)?;
            Some(said_once(&params, key, params.opt_positive(key)?, outer)?.unwrap_or(share))
        }
    };
    let extras = Extras { share, ..extras };
    let rope = scaled(&params, class, theta.unwrap_or(class.theta), extras)?;
    params.finish()?;
    Ok(rope)
}

/// The object of parameters, under its newer or its older name. The class lets the older one win; where files have both,
/// they must say the same.
pub(super) fn params<'a>(cfg: &RawConfig<'a>) -> Result<Option<RawConfig<'a>>, ModelError> {
    let (newer, older) = (cfg.object("rope_parameters")?, cfg.object("rope_scaling")?);
    if let (Some(newer), Some(older)) = (&newer, &older) {
        let said = |params: &RawConfig<'a>| -> BTreeMap<&'a str, &'a Value> {
            let entries = params.entries().map(|(key, value)| match key {
                "type" => ("rope_type", value),
                key => (key, value),
            });
            // The older form has them outside.
            entries
                .filter(|(key, _)| !["partial_rotary_factor", "rope_theta"].contains(key))
                .collect()
        };
        if said(newer) != said(older) {
            let got = older
                .entries()
                .map(|(key, value)| (key.to_owned(), value.clone()));
            let expected = "what rope_parameters says, or no key";
            return Err(cfg.bad("rope_scaling", &Value::Object(got.collect()), expected));
        }
        for key in ["partial_rotary_factor", "rope_theta"] {
            said_once(
                older,
                key,
                older.opt_positive(key)?,
                newer.opt_positive(key)?,
            )?;
        }
    }
    Ok(newer.or(older))
}

/// The context before a rope was stretched.
fn original_context(cfg: &RawConfig<'_>) -> Result<Option<u32>, ModelError> {
    let key = "original_max_position_embeddings";
    match cfg.opt_u32(key)? {
        Some(0) => Err(cfg.bad(key, &Value::from(0), "a number above 0")),
        stated => Ok(stated),
    }
}

/// A base.
pub(super) fn theta(cfg: &RawConfig<'_>, key: &str) -> Result<Option<f64>, ModelError> {
    match cfg.opt_positive(key)? {
        Some(theta) if theta <= THETA_ABOVE => {
            let expected = format!("a number above {THETA_ABOVE}");
            Err(cfg.bad(key, &Value::from(theta), &expected))
        }
        theta => Ok(theta),
    }
}

/// A number that may stand inside an object of parameters and outside of it, and must be the same in both places.
fn said_once(
    params: &RawConfig<'_>,
    key: &str,
    inner: Option<f64>,
    outer: Option<f64>,
) -> Result<Option<f64>, ModelError> {
    match (inner, outer) {
        (Some(inner), Some(outer)) if inner != outer => {
            let expected = format!("{outer}, as it says elsewhere");
            Err(params.bad(key, &Value::from(inner), &expected))
        }
        (inner, outer) => Ok(inner.or(outer)),
    }
}

/// Dimensions that turn; the product is cut to a whole number, as the classes do.
fn dims(cfg: &RawConfig<'_>, d_head: u32, share: f64) -> Result<u32, ModelError> {
    let dims = (f64::from(d_head) * share) as u32;
    if share <= 1.0 && dims > 0 && dims.is_multiple_of(2) {
        Ok(dims)
    } else {
        let expected = format!("a part of a head of {d_head} that is an even number");
        Err(cfg.bad("partial_rotary_factor", &Value::from(share), &expected))
    }
}

/// Two ropes, for windowed and for full layers: nested `rope_parameters`, or a local base beside the global keys.
pub(super) fn local_and_global(
    cfg: &RawConfig<'_>,
    class: RopeClass,
    local_theta: f64,
) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let Some(params) = cfg.object("rope_parameters")? else {
        let local = theta(cfg, "rope_local_base_freq")?.unwrap_or(local_theta);
        return Ok((unscaled(class.d_head, local), from_config(cfg, class)?));
    };
    let one = |key: &str, outer: &str, class_theta: f64| -> Result<RopeSpec, ModelError> {
        let nested = params.object(key)?.ok_or_else(|| params.missing(key))?;
        let inner = theta(&nested, "rope_theta")?;
        let theta = said_once(&nested, "rope_theta", inner, theta(cfg, outer)?)?;
        let rope = scaled(&nested, class, theta.unwrap_or(class_theta), COMMON)?;
        nested.finish()?;
        Ok(rope)
    };
    let ropes = (
        one("sliding_attention", "rope_local_base_freq", local_theta)?,
        one("full_attention", "rope_theta", class.theta)?,
    );
    params.finish()?;
    Ok(ropes)
}

/// The rope of one object of parameters, which turns whole heads; `theta` is the class's base.
pub(super) fn of_params(params: &RawConfig<'_>, class: RopeClass) -> Result<RopeSpec, ModelError> {
    let theta = theta(params, "rope_theta")?.unwrap_or(class.theta);
    let rope = scaled(params, class, theta, COMMON)?;
    params.finish()?;
    Ok(rope)
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

fn scaled(
    params: &RawConfig<'_>,
    class: RopeClass,
    theta: f64,
    extras: Extras,
) -> Result<RopeSpec, ModelError> {
    let kind = match (params.opt_str("rope_type")?, params.opt_str("type")?) {
        (Some(kind), Some(older)) if kind != older => {
            let expected = format!("{kind}, as rope_type says");
            return Err(params.bad("type", &Value::from(older), &expected));
        }
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) => "default",
    };
    let dims = match (params.opt_positive("partial_rotary_factor")?, extras.share) {
        (None | Some(1.0), None) => class.d_head,
        (Some(partial), None) => {
            return Err(params.bad(
                "partial_rotary_factor",
                &Value::from(partial),
                "1 or absent in this family",
            ));
        }
        (stated, Some(share)) => dims(params, class.d_head, stated.unwrap_or(share))?,
    };
    let factor = || params.positive("factor");
    let original =
        || -> Result<u32, ModelError> { Ok(original_context(params)?.unwrap_or(class.n_ctx)) };
    let scaling = match kind {
        "default" => RopeScaling::Unscaled,
        // The older names of the form, in files of a class that knows no other stretched one.
        "longrope" | "su" | "yarn" if extras.long_context.is_some() => {
            long_rope(params, class, dims, extras.long_context)?
        }
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
            let known = match extras.long_context {
                Some(_) => "one of default, linear, llama3, longrope",
                None => "one of default, linear, llama3, yarn",
            };
            return Err(params.bad("rope_type", &Value::from(other), known));
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
        dims,
        layout: RopeLayout::Split,
        scaling,
    })
}

/// Two lists of divisors. What stands beside the rope's own keys wins over them, as the class has it.
fn long_rope(
    params: &RawConfig<'_>,
    class: RopeClass,
    dims: u32,
    original: Option<u32>,
) -> Result<RopeScaling, ModelError> {
    params.ignore("original_max_position_embeddings");
    let original = original.unwrap_or(class.n_ctx);
    let list = |key: &str| -> Result<Vec<f64>, ModelError> {
        let value = params.get(key).ok_or_else(|| params.missing(key))?;
        let numbers: Option<Vec<f64>> = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers
            .filter(|list| list.len() == dims as usize / 2 && list.iter().all(|d| *d > 0.0))
            .ok_or_else(|| {
                let expected = format!("{} numbers above 0", dims / 2);
                params.bad(key, value, &expected)
            })
    };
    let stretch = params
        .opt_positive("factor")?
        .unwrap_or(f64::from(class.n_ctx) / f64::from(original));
    let by_stretch = if stretch <= 1.0 {
        1.0
    } else {
        (1.0 + stretch.ln() / f64::from(original).ln()).sqrt()
    };
    Ok(RopeScaling::LongRope {
        short: list("short_factor")?,
        long: list("long_factor")?,
        original_context: original,
        attention_factor: params
            .opt_positive("attention_factor")?
            .unwrap_or(by_stretch),
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
