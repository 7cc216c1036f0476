//! Routers over experts, as configurations and GGUF files state them.

use serde_json::Value;

use super::GgufFacts;
use super::decoder::{gguf_bad, gguf_missing, gguf_u32, same_u32};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::spec::{
    Activation, FfnSpec, MoeSpec, RouterInput, RouterScore, RouterSelect, SharedExpert,
};

/// Experts a file may claim; far above any model, far below what exhausts memory.
const EXPERTS_MAX: u32 = 1 << 16;

/// GGUF keys, below the architecture, that the readers of this module know.
pub(super) const GGUF_KEYS: &[&str] = &[
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
];

/// The key that [`gguf_renormalize`] reads.
pub(super) const GGUF_RENORMALIZE: &str = "expert_weights_norm";

/// The width of an expert that always runs.
pub(super) const GGUF_SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

/// How many experts, how many of them run, and how wide one is.
#[derive(Debug, Clone, Copy)]
pub(super) struct MoeSizes {
    pub(super) n_experts: u32,
    pub(super) n_active: u32,
    pub(super) d_expert: u32,
}

impl MoeSizes {
    /// Reads the counts of `config.json`, with those of the class where keys are absent.
    pub(super) fn from_config(
        cfg: &RawConfig<'_>,
        class_experts: u32,
        class_active: u32,
        d_expert: u32,
    ) -> Result<Self, ModelError> {
        let local = same_u32(cfg, &["num_local_experts", "num_experts"])?;
        let n_experts = local.unwrap_or(class_experts);
        let n_active = cfg.opt_u32("num_experts_per_tok")?.unwrap_or(class_active);
        Self::checked(cfg, n_experts, n_active, d_expert)
    }

    /// Counts of `config.json` that no router contradicts.
    pub(super) fn checked(
        cfg: &RawConfig<'_>,
        n_experts: u32,
        n_active: u32,
        d_expert: u32,
    ) -> Result<Self, ModelError> {
        if n_experts == 0 || n_experts > EXPERTS_MAX {
            let expected = format!("1 to {EXPERTS_MAX}");
            return Err(cfg.bad("num_experts", &Value::from(n_experts), &expected));
        }
        if n_active == 0 || n_active > n_experts {
            let expected = format!("1 to {n_experts}");
            return Err(cfg.bad("num_experts_per_tok", &Value::from(n_active), &expected));
        }
        Ok(Self {
            n_experts,
            n_active,
            d_expert,
        })
    }

    /// Reads GGUF metadata; `None` where there are no experts. `d_expert` says how wide one is where no key does, given how
    /// many run.
    pub(super) fn from_gguf(
        facts: &GgufFacts<'_>,
        arch: &str,
        d_expert: impl Fn(u32) -> u32,
    ) -> Result<Option<Self>, ModelError> {
        let bad = |key, got: u32, expected: String| {
            Err(gguf_bad(facts, arch, key, &got.to_string(), &expected))
        };
        let n_experts = match gguf_u32(facts, arch, "expert_count")? {
            None | Some(0) => {
                for key in GGUF_KEYS {
                    if let Some(stated @ 1..) = gguf_u32(facts, arch, key)? {
                        return bad(key, stated, "0 or no key without experts".to_owned());
                    }
                }
                return Ok(None);
            }
            Some(n) => n,
        };
        if n_experts > EXPERTS_MAX {
            return bad("expert_count", n_experts, format!("at most {EXPERTS_MAX}"));
        }
        let n_active = gguf_u32(facts, arch, "expert_used_count")?
            .ok_or_else(|| gguf_missing(facts, arch, "expert_used_count"))?;
        if n_active == 0 || n_active > n_experts {
            return bad("expert_used_count", n_active, format!("1 to {n_experts}"));
        }
        let d_expert = gguf_u32(facts, arch, "expert_feed_forward_length")?
            .unwrap_or_else(|| d_expert(n_active));
        if d_expert == 0 {
            let expected = "a number above 0".to_owned();
            return bad("expert_feed_forward_length", d_expert, expected);
        }
        Ok(Some(Self {
            n_experts,
            n_active,
            d_expert,
        }))
    }

    /// As [`Self::from_gguf`], in an architecture whose experts are as wide as its files say of all FFNs.
    pub(super) fn ffns_from_gguf(
        facts: &GgufFacts<'_>,
        arch: &str,
        d_mlp: u32,
    ) -> Result<Option<Self>, ModelError> {
        let sizes = Self::from_gguf(facts, arch, |_| d_mlp)?;
        match sizes {
            Some(Self { d_expert, .. }) if d_expert != d_mlp => {
                let expected = format!("{d_expert}, as expert_feed_forward_length says");
                let key = "feed_forward_length";
                Err(gguf_bad(facts, arch, key, &d_mlp.to_string(), &expected))
            }
            sizes => Ok(sizes),
        }
    }

    /// As [`Self::from_gguf`], where experts must be there.
    pub(super) fn needed_from_gguf(
        facts: &GgufFacts<'_>,
        arch: &str,
        d_expert: impl Fn(u32) -> u32,
    ) -> Result<Self, ModelError> {
        Self::from_gguf(facts, arch, d_expert)?
            .ok_or_else(|| gguf_missing(facts, arch, "expert_count"))
    }

    /// A router with a score, whose best experts run, and nothing else: what most are but for a few facts.
    pub(super) fn router(self, score: RouterScore, activation: Activation) -> MoeSpec {
        MoeSpec {
            n_experts: self.n_experts,
            n_active: self.n_active,
            expert: ffn(self.d_expert, activation),
            score,
            select: RouterSelect::TopK,
            renormalize: None,
            router_bias: false,
            selection_bias: false,
            scaling: 1.0,
            shared: None,
            parallel_dense: None,
            router_input: RouterInput::FfnInput,
            expert_scale: false,
        }
    }
}

/// Whether the weights of the chosen experts are divided by their sum; `by_arch` is what llama.cpp does in files of the
/// architecture, whose converter does not say.
pub(super) fn gguf_renormalize(
    facts: &GgufFacts<'_>,
    arch: &str,
    by_arch: bool,
) -> Result<Option<f32>, ModelError> {
    let stated = facts.metadata.bool(&format!("{arch}.{GGUF_RENORMALIZE}"))?;
    Ok(stated.unwrap_or(by_arch).then_some(0.0))
}

/// A dense FFN without biases.
pub(super) fn ffn(d_mlp: u32, activation: Activation) -> FfnSpec {
    FfnSpec {
        d_mlp,
        activation,
        bias: false,
        gate_cutoff: None,
    }
}

/// An expert of this width that always runs.
pub(super) fn shared(d_mlp: u32, activation: Activation, gated: bool) -> SharedExpert {
    SharedExpert {
        ffn: ffn(d_mlp, activation),
        gated,
    }
}

/// Which layers have experts: those with a router in the file.
pub(super) fn gguf_has_router(facts: &GgufFacts<'_>, layer: u32) -> bool {
    facts.has(&format!("blk.{layer}.ffn_gate_inp.weight"))
}
