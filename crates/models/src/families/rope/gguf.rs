//! RoPE as GGUF metadata spell it, with the tensors of divisors that belong to it.

use super::THETA_ABOVE;
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

/// Base where no key states it.
const CLASS_THETA: f64 = 10_000.0;

/// The tensor of one divisor per frequency.
const GGUF_DIVISORS: &str = "rope_freqs.weight";

/// Architectures in which llama.cpp has it; in others it does not load the file.
const WITH_DIVISORS: [&str; 5] = ["llama", "arcee", "granite", "granitemoe", "gemma4"];

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
    let theta = theta_from_gguf(facts, arch, "rope.freq_base")?.unwrap_or(CLASS_THETA);
    let key = "rope.dimension_count";
    let stated = gguf_u32(facts, arch, key)?.unwrap_or(d_head);
    let dims = dims_from_gguf(facts, arch, key, stated, d_head)?;
    let kind = facts.metadata.str(&format!("{arch}.rope.scaling.type"))?;
    let stated_factor = gguf_positive(facts, arch, "rope.scaling.factor")?;
    // Without a type, readers of such files take a factor for a linear one.
    let kind = match (kind, stated_factor) {
        (None, Some(factor)) if factor != 1.0 => "linear",
        (None, _) => "none",
        (Some(kind), _) => kind,
    };
    let unknown_kind = |kind: &str| {
        let expected = "none, linear, yarn or longrope, the last three without rope_freqs";
        gguf_bad(facts, arch, "rope.scaling.type", kind, expected)
    };
    if !["none", "linear", "yarn", "longrope"].contains(&kind) {
        return Err(unknown_kind(kind));
    }
    only_of(facts, arch, kind)?;
    // Which says how the model was made, and nothing of what it computes.
    facts
        .metadata
        .bool(&format!("{arch}.rope.scaling.finetuned"))?;
    let original = original_context(facts, arch, n_ctx)?;
    let attn_factor = gguf_positive(facts, arch, "rope.scaling.attn_factor")?;
    let attn_factor = attn_factor.map_or(1.0, f64::from);
    let factor = || {
        stated_factor
            .map(f64::from)
            .ok_or_else(|| gguf_missing(facts, arch, "rope.scaling.factor"))
    };
    let divisors = gguf_divisors(facts, GGUF_DIVISORS, dims)?;
    if divisors.is_some() && !WITH_DIVISORS.contains(&arch) {
        return Err(ModelError::Tensors {
            origin: facts.origin.to_owned(),
            missing: vec![],
            unexpected: vec![GGUF_DIVISORS.to_owned()],
        });
    }
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
                original_context: original,
                attention_factor: attn_factor,
            }
        }
        ("linear", None) => RopeScaling::Linear { factor: factor()? },
        ("yarn", None) => {
            let factor = factor()?;
            RopeScaling::Yarn {
                factor,
                beta_fast: gguf_positive(facts, arch, "rope.scaling.yarn_beta_fast")?
                    .map_or(32.0, f64::from),
                beta_slow: gguf_positive(facts, arch, "rope.scaling.yarn_beta_slow")?
                    .map_or(1.0, f64::from),
                original_context: original,
                attention_factor: attn_factor * yarn_attention_factor(factor),
                truncate: true,
            }
        }
        (other, _) => return Err(unknown_kind(other)),
    };
    Ok(RopeSpec {
        theta,
        dims,
        layout: RopeLayout::Split,
        scaling,
    })
}

/// Dimensions of a head that turn, as found under a key.
pub(in crate::families) fn dims_from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
    dims: u32,
    d_head: u32,
) -> Result<u32, ModelError> {
    if dims > 0 && dims <= d_head && dims.is_multiple_of(2) {
        return Ok(dims);
    }
    let expected = format!("an even number up to {d_head}");
    Err(gguf_bad(facts, arch, key, &dims.to_string(), &expected))
}

/// The base under a key, if it is stated.
pub(in crate::families) fn theta_from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    key: &str,
) -> Result<Option<f64>, ModelError> {
    match gguf_positive(facts, arch, key)?.map(f64::from) {
        Some(theta) if theta <= THETA_ABOVE => {
            let (got, expected) = (theta.to_string(), format!("a number above {THETA_ABOVE}"));
            Err(gguf_bad(facts, arch, key, &got, &expected))
        }
        theta => Ok(theta),
    }
}

/// Original context of a stretched rope: that of the model where no key states it.
fn original_context(facts: &GgufFacts<'_>, arch: &str, n_ctx: u32) -> Result<u32, ModelError> {
    let key = "rope.scaling.original_context_length";
    match gguf_u32(facts, arch, key)? {
        Some(0) => Err(gguf_bad(facts, arch, key, "0", "a number above 0")),
        stated => Ok(stated.unwrap_or(n_ctx)),
    }
}

/// Refuses numbers of a scaling other than the one that the file asks for. The original context stands in files of long-rope
/// models without one, whose converter states it always.
fn only_of(facts: &GgufFacts<'_>, arch: &str, kind: &str) -> Result<(), ModelError> {
    for (key, kinds) in [
        ("rope.scaling.factor", ["linear", "yarn"].as_slice()),
        ("rope.scaling.attn_factor", &["yarn", "longrope"]),
        ("rope.scaling.yarn_beta_fast", &["yarn"]),
        ("rope.scaling.yarn_beta_slow", &["yarn"]),
    ] {
        if let Some(stated) = gguf_positive(facts, arch, key)?
            && !kinds.contains(&kind)
            // Which is no scaling at all.
            && stated != 1.0
        {
            let kinds = kinds.join(" nor ");
            let expected = format!("1 or no key where the scaling is neither {kinds}");
            return Err(gguf_bad(facts, arch, key, &stated.to_string(), &expected));
        }
    }
    Ok(())
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
