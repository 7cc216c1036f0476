//! Multi-head latent attention and the router that comes with it, as configurations state them.

use serde_json::Value;

use super::GgufFacts;
use super::decoder::{gguf_bad, gguf_positive, gguf_u32};
use super::gguf::{gguf_factor, gguf_missing, gguf_size};
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::rope::{yarn_attention_factor, yarn_mscale};
use crate::spec::{
    Activation, MlaSpec, MoeSpec, NormKind, NormSpec, NormWeight, RopeLayout, RopeScaling,
    RopeSpec, RouterScore, RouterSelect,
};

/// Latents are normalized with this epsilon, whatever the configuration says of other norms.
const LATENT_EPS: f32 = 1e-6;

/// Scores of a router that are summed to rank a group where a bias joins them.
const GROUP_TOP: u32 = 2;

/// Added to the sum by which sigmoid scores are divided.
pub(super) const RENORMALIZE_EPS: f32 = 1e-20;

/// Names of the projections beside the usual ones.
pub(super) const HF: &[Rule] = &[
    Rule::layer(&[T::QA], "self_attn.q_a_proj.weight"),
    Rule::layer(&[T::QANorm], "self_attn.q_a_layernorm.weight"),
    Rule::layer(&[T::QB], "self_attn.q_b_proj.weight"),
    Rule::layer(&[T::KvA], "self_attn.kv_a_proj_with_mqa.weight"),
    Rule::layer(&[T::KvANorm], "self_attn.kv_a_layernorm.weight"),
    Rule::layer(&[T::KvB], "self_attn.kv_b_proj.weight"),
];

/// Names in GGUF files: keys and values in one tensor, or in two with the keys transposed.
pub(super) const GGUF: &[Rule] = &[
    Rule::layer(&[T::KvB], "attn_kv_b.weight"),
    Rule::latent_halves("attn_k_b.weight", "attn_v_b.weight"),
];

/// The second of them alone, which is what the stock converter writes.
pub(crate) const HALVES: &[Rule] = &[GGUF[1]];

/// GGUF keys, below the architecture, that the readers of this module know.
pub(super) const GGUF_KEYS: &[&str] = &[
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.value_length_mla",
    GGUF_SCORE,
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
];

/// The key of a router's score.
const GGUF_SCORE: &str = "expert_gating_func";

/// The key, beside those of any rope, that [`rope_from_gguf`] reads.
pub(super) const GGUF_STRETCH: &str = "rope.scaling.yarn_log_multiplier";

/// Widths of a class of configurations where keys are absent.
pub(super) struct MlaClass {
    pub(super) q_rank: Option<u32>,
    pub(super) kv_rank: u32,
    pub(super) d_nope: u32,
    pub(super) d_rope: u32,
    pub(super) d_value: u32,
}

/// Reads the widths; scores are scaled by the width of a whole head, and no position turns anything.
pub(super) fn from_config(
    cfg: &RawConfig<'_>,
    n_heads: u32,
    class: &MlaClass,
) -> Result<MlaSpec, ModelError> {
    let width = |key: &str, class_width: u32| match cfg.opt_u32(key)? {
        Some(0) => Err(cfg.bad(key, &Value::from(0), "a number above 0")),
        stated => Ok(stated.unwrap_or(class_width)),
    };
    let q_rank = match class.q_rank {
        // Which a class with a rank of its own takes for queries without a latent.
        _ if cfg.is_null("q_lora_rank") => None,
        Some(rank) => Some(width("q_lora_rank", rank)?),
        None => cfg.opt_u32("q_lora_rank")?,
    };
    let (d_nope, d_rope) = (
        width("qk_nope_head_dim", class.d_nope)?,
        width("qk_rope_head_dim", class.d_rope)?,
    );
    if !d_rope.is_multiple_of(2) {
        return Err(cfg.bad("qk_rope_head_dim", &Value::from(d_rope), "an even number"));
    }
    agrees(cfg, "qk_head_dim", d_nope + d_rope)?;
    agrees(cfg, "num_key_value_heads", n_heads)?;
    cfg.must_be_off("attention_bias")?;
    Ok(MlaSpec {
        n_heads,
        q_rank,
        kv_rank: width("kv_lora_rank", class.kv_rank)?,
        d_nope,
        d_rope,
        d_value: width("v_head_dim", class.d_value)?,
        scale: f64::from(d_nope + d_rope).powf(-0.5) as f32,
        latent_norm: latent_norm(),
        rope: None,
    })
}

/// The norm of both latents.
pub(super) fn latent_norm() -> NormSpec {
    NormSpec {
        kind: NormKind::Rms,
        eps: LATENT_EPS,
        weight: NormWeight::Plain,
    }
}

/// Refuses a number that contradicts what other keys say.
pub(super) fn agrees(cfg: &RawConfig<'_>, key: &str, expected: u32) -> Result<(), ModelError> {
    match cfg.opt_u32(key)? {
        Some(stated) if stated != expected => {
            Err(cfg.bad(key, &Value::from(stated), &expected.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Reads the rope of the rotated part, and stretches the scores as YaRN's `mscale_all_dim` asks for.
pub(super) fn rope_from_config(
    cfg: &RawConfig<'_>,
    mla: &mut MlaSpec,
    n_ctx: u32,
    layout: RopeLayout,
) -> Result<(), ModelError> {
    let class = RopeClass {
        d_head: mla.d_rope,
        theta: 10_000.0,
        n_ctx,
    };
    let rope = RopeSpec {
        layout,
        ..rope::from_config(cfg, class)?
    };
    if let RopeScaling::Yarn { factor, .. } = rope.scaling {
        let all_dim = match rope::params(cfg)? {
            Some(params) => params.opt_f64("mscale_all_dim")?.unwrap_or(0.0),
            None => 0.0,
        };
        mla.scale = scale(mla, factor, all_dim);
    }
    mla.rope = Some(rope);
    Ok(())
}

/// Factor on scores where YaRN stretches the context; 0 for `all_dim` leaves it as it is.
pub(super) fn scale(mla: &MlaSpec, factor: f64, all_dim: f64) -> f32 {
    let plain = f64::from(mla.d_nope + mla.d_rope).powf(-0.5);
    let stretch = if all_dim == 0.0 {
        1.0
    } else {
        yarn_mscale(factor, all_dim)
    };
    (plain * stretch * stretch) as f32
}

/// A router with sigmoid scores, whose stored bias joins them for the choice only.
pub(super) fn sigmoid_router(
    sizes: MoeSizes,
    select: RouterSelect,
    renormalize: bool,
    scaling: f32,
    d_shared: u32,
) -> MoeSpec {
    MoeSpec {
        select,
        selection_bias: true,
        renormalize: renormalize.then_some(RENORMALIZE_EPS),
        scaling,
        shared: (d_shared > 0).then(|| moe::shared(d_shared, Activation::Silu, false)),
        ..sizes.router(RouterScore::Sigmoid, Activation::Silu)
    }
}

/// Groups of a sigmoid router; one group is none.
pub(super) fn biased_groups(
    cfg: &RawConfig<'_>,
    sizes: MoeSizes,
    groups: (&str, u32),
    kept: (&str, u32),
) -> Result<RouterSelect, ModelError> {
    let select = groups_of(cfg, sizes, groups, kept, GROUP_TOP)?;
    Ok(match select {
        RouterSelect::Grouped { n_groups: 1, .. } => RouterSelect::TopK,
        select => select,
    })
}

/// Groups of a router: keys and the numbers found under them. Enough experts must be left in those that are kept.
pub(super) fn groups_of(
    cfg: &RawConfig<'_>,
    sizes: MoeSizes,
    (groups_key, n_groups): (&str, u32),
    (kept_key, n_kept): (&str, u32),
    group_top: u32,
) -> Result<RouterSelect, ModelError> {
    let fits = n_groups > 0
        && sizes.n_experts.is_multiple_of(n_groups)
        && sizes.n_experts / n_groups >= group_top;
    if !fits {
        let expected = format!(
            "a divisor of {} with groups of {group_top} or more",
            sizes.n_experts
        );
        return Err(cfg.bad(groups_key, &Value::from(n_groups), &expected));
    }
    let enough = u64::from(n_kept) * u64::from(sizes.n_experts / n_groups);
    if n_kept > n_groups || enough < u64::from(sizes.n_active) {
        let expected = format!(
            "at most {n_groups} groups that hold {} experts",
            sizes.n_active
        );
        return Err(cfg.bad(kept_key, &Value::from(n_kept), &expected));
    }
    Ok(RouterSelect::Grouped {
        n_groups,
        n_kept,
        group_top,
    })
}

/// Refuses a word of a configuration but the one that the class computes.
pub(super) fn must_say(cfg: &RawConfig<'_>, key: &str, word: &str) -> Result<(), ModelError> {
    match cfg.opt_str(key)? {
        Some(other) if other != word => Err(cfg.bad(key, &Value::from(other), word)),
        Some(_) | None => Ok(()),
    }
}

/// Reads the widths of GGUF metadata; no position turns anything yet. Files for caches of latents state the width of heads
/// under keys of their own.
pub(super) fn from_gguf(facts: &GgufFacts<'_>, arch: &str) -> Result<MlaSpec, ModelError> {
    let width = |own: &str, other: &str| match gguf_u32(facts, arch, own)? {
        Some(width) if width > 0 => Ok(width),
        Some(_) | None => gguf_size(facts, arch, other),
    };
    let d_head = width("attention.key_length_mla", "attention.key_length")?;
    let d_value = width("attention.value_length_mla", "attention.value_length")?;
    let d_rope = gguf_size(facts, arch, "rope.dimension_count")?;
    let d_nope = d_head.checked_sub(d_rope).filter(|width| *width > 0);
    let d_nope = d_nope.filter(|_| d_rope.is_multiple_of(2)).ok_or_else(|| {
        let expected = format!("an even number below {d_head}");
        gguf_bad(
            facts,
            arch,
            "rope.dimension_count",
            &d_rope.to_string(),
            &expected,
        )
    })?;
    Ok(MlaSpec {
        n_heads: gguf_size(facts, arch, "attention.head_count")?,
        q_rank: gguf_u32(facts, arch, "attention.q_lora_rank")?.filter(|rank| *rank > 0),
        kv_rank: gguf_size(facts, arch, "attention.kv_lora_rank")?,
        d_nope,
        d_rope,
        d_value,
        scale: f64::from(d_head).powf(-0.5) as f32,
        latent_norm: latent_norm(),
        rope: None,
    })
}

/// Reads the rope of GGUF metadata. A file that states by how much YaRN stretches the scores leaves cos and sin as they are.
pub(super) fn rope_from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    mla: &mut MlaSpec,
    n_ctx: u32,
) -> Result<(), ModelError> {
    let mut rope = RopeSpec {
        layout: RopeLayout::Interleaved,
        ..rope::from_gguf(facts, arch, mla.d_rope, n_ctx)?
    };
    if let Some(stated) = gguf_factor(facts, arch, GGUF_STRETCH)? {
        let RopeScaling::Yarn {
            factor,
            attention_factor,
            ..
        } = &mut rope.scaling
        else {
            let expected = "0 or no key where the scaling is not yarn";
            let got = stated.to_string();
            return Err(gguf_bad(facts, arch, GGUF_STRETCH, &got, expected));
        };
        mla.scale = scale(mla, *factor, log_multiplier_all_dim(stated));
        *attention_factor /= yarn_attention_factor(*factor);
    }
    mla.rope = Some(rope);
    Ok(())
}

/// `mscale_all_dim` of what GGUF files state: a tenth of it, of which f32 keeps the decimal digits.
fn log_multiplier_all_dim(stated: f32) -> f64 {
    stated
        .to_string()
        .parse::<f64>()
        .map_or(0.0, |tenth| tenth * 10.0)
}

/// Refuses a router without sigmoid scores where tensors or the architecture say that it has them. Files converted from
/// configurations that leave it to their class do not say so, and would be read as softmax.
pub(super) fn gguf_sigmoid(
    facts: &GgufFacts<'_>,
    arch: &str,
    score: RouterScore,
) -> Result<(), ModelError> {
    match (score, gguf_u32(facts, arch, GGUF_SCORE)?) {
        (RouterScore::Sigmoid, _) => Ok(()),
        (RouterScore::Softmax | RouterScore::SoftmaxOfChosen, None) => {
            Err(gguf_missing(facts, arch, GGUF_SCORE))
        }
        (RouterScore::Softmax | RouterScore::SoftmaxOfChosen, Some(stated)) => {
            let (got, expected) = (stated.to_string(), "2 for sigmoid");
            Err(gguf_bad(facts, arch, GGUF_SCORE, &got, expected))
        }
    }
}

/// Reads a router of GGUF metadata: as sigmoid scores where the file says so, else softmax.
pub(super) fn router_from_gguf(
    facts: &GgufFacts<'_>,
    arch: &str,
    d_mlp: u32,
) -> Result<MoeSpec, ModelError> {
    let sizes = MoeSizes::needed_from_gguf(facts, arch, |_| d_mlp)?;
    let score = match gguf_u32(facts, arch, GGUF_SCORE)? {
        None | Some(0 | 1) => RouterScore::Softmax,
        Some(2) => RouterScore::Sigmoid,
        Some(other) => {
            let expected = "1 for softmax or 2 for sigmoid";
            return Err(gguf_bad(
                facts,
                arch,
                GGUF_SCORE,
                &other.to_string(),
                expected,
            ));
        }
    };
    let n_groups = gguf_u32(facts, arch, "expert_group_count")?.unwrap_or(1);
    let n_kept = match gguf_u32(facts, arch, "expert_group_used_count")? {
        Some(kept) => kept,
        None if n_groups <= 1 => 1,
        None => return Err(gguf_missing(facts, arch, "expert_group_used_count")),
    };
    let select = if n_groups <= 1 {
        if n_kept > 1 {
            let expected = "1 or no key without groups";
            let key = "expert_group_used_count";
            return Err(gguf_bad(facts, arch, key, &n_kept.to_string(), expected));
        }
        RouterSelect::TopK
    } else {
        let group_top = match score {
            RouterScore::Sigmoid => GROUP_TOP,
            RouterScore::Softmax | RouterScore::SoftmaxOfChosen => 1,
        };
        let size = sizes.n_experts / n_groups;
        let fits = sizes.n_experts.is_multiple_of(n_groups)
            && size >= group_top
            && n_kept <= n_groups
            && u64::from(n_kept) * u64::from(size) >= u64::from(sizes.n_active);
        if !fits {
            let got = format!("{n_kept} of {n_groups} groups");
            let expected = format!(
                "groups of {} experts that hold the {} that run",
                sizes.n_experts, sizes.n_active
            );
            return Err(gguf_bad(facts, arch, "expert_group_count", &got, &expected));
        }
        RouterSelect::Grouped {
            n_groups,
            n_kept,
            group_top,
        }
    };
    let key = "expert_shared_count";
    let n_shared = gguf_u32(facts, arch, key)?.unwrap_or(0);
    let d_shared = n_shared.checked_mul(sizes.d_expert).ok_or_else(|| {
        let expected = "experts whose width fits a number of 32 bits";
        gguf_bad(facts, arch, key, &n_shared.to_string(), expected)
    })?;
    let scaling = gguf_positive(facts, arch, "expert_weights_scale")?.unwrap_or(1.0);
    let normed = facts
        .metadata
        .bool(&format!("{arch}.expert_weights_norm"))?;
    // No key says so, the tensors do.
    let n_layers = gguf_size(facts, arch, "block_count")?;
    let has_bias = |layer| facts.has(&format!("blk.{layer}.exp_probs_b.bias"));
    let selection_bias = (0..n_layers).any(has_bias);
    if selection_bias {
        gguf_sigmoid(facts, arch, score)?;
    }
    Ok(MoeSpec {
        score,
        selection_bias,
        ..sigmoid_router(sizes, select, normed.unwrap_or(false), scaling, d_shared)
    })
}
