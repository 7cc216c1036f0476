//! RoPE as GGUF metadata spell it, with the tensors of divisors that belong to it.

use crate::error::ModelError;
use crate::families::GgufFacts;
use crate::families::decoder::{gguf_bad, gguf_missing, gguf_positive, gguf_u32};
use crate::rope::yarn_attention_factor;
use crate::spec::{RopeLayout, RopeScaling, RopeSpec};

/// GGUF keys, below the architecture, that [`from_gguf`] reads.
pub(in crate::families) const GGUF_KEYS: &[&str] = &[
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
];

/// GGUF tensors of a long-rope model: divisors up to the original context, and beyond it.
const GGUF_SHORT: &str = "rope_factors_short.weight";
const GGUF_LONG: &str = "rope_factors_long.weight";

/// The rope of GGUF metadata; the rows are canonical (split) once the loader has undone llama.cpp's permutation.
pub(in crate::families) fn from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_head: u32,
    n_ctx: u32,
) -> Result<RopeSpec, ModelError> {
    let rope = partial_from_gguf(facts, arch, d_head, n_ctx)?;
    if rope.dims == d_head {
        Ok(rope)
    } else {
        let (got, expected) = (rope.dims.to_string(), d_head.to_string());
        Err(gguf_bad(
            facts,
            arch,
            "rope.dimension_count",
            &got,
            &expected,
        ))
    }
}

/// As [`from_gguf`], where only the first part of a head may turn.
pub(in crate::families) fn partial_from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_head: u32,
    n_ctx: u32,
) -> Result<RopeSpec, ModelError> {
    let theta = gguf_positive(facts, arch, "rope.freq_base")?.map_or(10_000.0, f64::from);
    let dims = gguf_u32(facts, arch, "rope.dimension_count")?.unwrap_or(d_head);
    if dims == 0 || dims > d_head || !dims.is_multiple_of(2) {
        let expected = format!("an even number up to {d_head}");
        return Err(gguf_bad(
            facts,
            arch,
            "rope.dimension_count",
            &dims.to_string(),
            &expected,
        ));
    }
    let kind = facts.metadata.str(&format!("{arch}.rope.scaling.type"))?;
    let stated_factor = gguf_positive(facts, arch, "rope.scaling.factor")?;
    // Without a type, readers of such files take a factor for a linear one.
    let kind = match (kind, stated_factor) {
        (None, Some(factor)) if factor != 1.0 => "linear",
        (None, _) => "none",
        (Some(kind), _) => kind,
    };
    let attn_factor = gguf_positive(facts, arch, "rope.scaling.attn_factor")?;
    if let ("none" | "linear", Some(factor)) = (kind, attn_factor)
        && factor != 1.0
    {
        let expected = "1 or no key where the scaling is neither yarn nor longrope";
        let got = factor.to_string();
        return Err(gguf_bad(
            facts,
            arch,
            "rope.scaling.attn_factor",
            &got,
            expected,
        ));
    }
    let factor = || {
        stated_factor
            .map(f64::from)
            .ok_or_else(|| gguf_missing(facts, arch, "rope.scaling.factor"))
    };
    let divisors = gguf_divisors(facts, "rope_freqs.weight", dims)?;
    let scaling = match (kind, &divisors) {
        ("none", None) => RopeScaling::Unscaled,
        ("none", Some(divisors)) => RopeScaling::Divisors {
            divisors: divisors.clone(),
        },
        ("longrope", None) => {
            let list = |name: &str| -> Result<Vec<f64>, ModelError> {
                let stored = gguf_divisors(facts, name, dims)?;
                let stored = stored.ok_or_else(|| ModelError::Tensors {
                    origin: facts.origin.to_owned(),
                    missing: vec![name.to_owned()],
                    unexpected: vec![],
                })?;
                Ok(stored.into_iter().map(f64::from).collect())
            };
            RopeScaling::LongRope {
                short: list(GGUF_SHORT)?,
                long: list(GGUF_LONG)?,
                original_context: gguf_u32(facts, arch, "rope.scaling.original_context_length")?
                    .unwrap_or(n_ctx),
                attention_factor: gguf_positive(facts, arch, "rope.scaling.attn_factor")?
                    .map_or(1.0, f64::from),
            }
        }
        ("linear", None) => RopeScaling::Linear { factor: factor()? },
        ("yarn", None) => {
            let factor = factor()?;
            let stated = attn_factor.map_or(1.0, f64::from);
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
                "none, linear, yarn or longrope, the last three without rope_freqs",
            ));
        }
    };
    Ok(RopeSpec {
        theta,
        dims,
        layout: RopeLayout::Split,
        scaling,
    })
}

/// A tensor of divisors, one per pair that turns.
fn gguf_divisors(
    facts: &GgufFacts<'_>,
    name: &str,
    dims: u32,
) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(divisors) = (facts.floats)(name)? else {
        return Ok(None);
    };
    let n = dims as usize / 2;
    if divisors.len() == n && divisors.iter().all(|d| d.is_finite() && *d > 0.0) {
        return Ok(Some(divisors));
    }
    Err(ModelError::BadKey {
        origin: facts.origin.to_owned(),
        key: name.to_owned(),
        got: format!("{} numbers", divisors.len()),
        expected: format!("{n} finite numbers above 0"),
    })
}
