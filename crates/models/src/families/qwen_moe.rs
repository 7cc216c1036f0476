//! Qwen2 and Qwen3 with experts: softmax routers in all or some layers; Qwen2 adds an expert that always runs, behind a gate.

use serde_json::Value;

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, activation_or, attentions, flagged_bias, gguf_bias,
    gguf_finish, gguf_needed, gguf_u32, gguf_window, gguf_windows, head_share, layer_windows, rms,
    sizes_from_gguf, sizes_with_kv,
};
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{
    Activation, AttentionBias, Ffn, ModelSpec, MoeSpec, QkNorm, RopeSpec, RouterScore,
};

pub(super) const QWEN2_MOE: Family = Family {
    name: "qwen2-moe",
    hf_model_types: &["qwen2_moe"],
    gguf_arch: "qwen2moe",
    from_config: |cfg| from_config(cfg, Generation::Two),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Two)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HF,
    gguf_rules: &[],
};

pub(super) const QWEN3_MOE: Family = Family {
    name: "qwen3-moe",
    hf_model_types: &["qwen3_moe"],
    gguf_arch: "qwen3moe",
    from_config: |cfg| from_config(cfg, Generation::Three),
    from_gguf: Some(|facts| from_gguf(facts, Generation::Three)),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HF,
    gguf_rules: &[],
};

const HF: HfNames = HfNames {
    prefixes: names::PREFIXES,
    layers: "layers.",
    rules: &[
        names::MODEL,
        names::PRE_NORMS,
        names::ATTENTION,
        names::MLP,
        names::EXPERTS,
        SHARED,
    ],
    ignored: &[],
};

pub(super) const SHARED: &[Rule] = &[
    Rule::layer(&[T::SharedGate], "mlp.shared_expert.gate_proj.weight"),
    Rule::layer(&[T::SharedUp], "mlp.shared_expert.up_proj.weight"),
    Rule::layer(&[T::SharedDown], "mlp.shared_expert.down_proj.weight"),
    Rule::layer(&[T::SharedRouter], "mlp.shared_expert_gate.weight"),
];

#[derive(Clone, Copy)]
enum Generation {
    Two,
    Three,
}

/// What a class takes for granted.
struct Class {
    kv_heads: u32,
    experts: u32,
    active: u32,
    d_expert: u32,
}

impl Generation {
    fn class(self) -> Class {
        match self {
            Self::Two => Class {
                kv_heads: 16,
                experts: 60,
                active: 4,
                d_expert: 1408,
            },
            Self::Three => Class {
                kv_heads: 4,
                experts: 128,
                active: 8,
                d_expert: 768,
            },
        }
    }
}

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    activation: Activation,
    tied: bool,
    rope: RopeSpec,
    router: MoeSpec,
    /// Whether each layer has experts.
    sparse: Vec<bool>,
}

fn from_config(cfg: &RawConfig<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let class = generation.class();
    let sizes = sizes_with_kv(cfg, Some(class.kv_heads), head_share)?;
    let rope_class = RopeClass {
        d_head: sizes.d_head,
        theta: 10_000.0,
        n_ctx: sizes.n_ctx,
    };
    let rope = rope::from_config(cfg, rope_class)?;
    let bias = match generation {
        Generation::Two => flagged_bias(cfg, "qkv_bias", true, AttentionBias::Qkv)?,
        Generation::Three => flagged_bias(cfg, "attention_bias", false, AttentionBias::Qkvo)?,
    };
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let activation = activation_or(cfg, "hidden_act", Activation::Silu)?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    let windows = windows(cfg, sizes.n_layers, generation)?;
    let d_expert = cfg
        .opt_u32("moe_intermediate_size")?
        .unwrap_or(class.d_expert);
    let experts = MoeSizes::from_config(cfg, class.experts, class.active, d_expert)?;
    let renormalize = cfg.bool_or("norm_topk_prob", false)?.then_some(0.0);
    let d_shared = match generation {
        Generation::Two => Some(
            cfg.opt_u32("shared_expert_intermediate_size")?
                .unwrap_or(5632),
        ),
        // Published files describe the other generation's choices too.
        Generation::Three => {
            cfg.must_be_off("qkv_bias")?;
            cfg.must_be("shared_expert_intermediate_size", &0.into())?;
            cfg.must_be("use_qk_norm", &true.into())?;
            None
        }
    };
    let sparse = sparse_layers(cfg, sizes.n_layers)?;
    cfg.finish()?;
    let found = Found {
        sizes,
        eps,
        bias,
        activation,
        tied,
        rope,
        router: router(experts, activation, renormalize, d_shared),
        sparse,
    };
    let mut spec = decoder(found, generation);
    attentions(&mut spec).for_each(|(i, attention)| attention.window = windows[i]);
    Ok(spec)
}

/// `use_sliding_window` silences `sliding_window`; Qwen2's class then windows every other layer of the first
/// `max_window_layers`, Qwen3's class all layers.
fn windows(
    cfg: &RawConfig<'_>,
    n_layers: u32,
    generation: Generation,
) -> Result<Vec<Option<u32>>, ModelError> {
    let window = match cfg.bool_or("use_sliding_window", false)? {
        true => cfg.opt_window("sliding_window", Some(4096))?,
        false => {
            cfg.ignore("sliding_window");
            None
        }
    };
    let first_full = cfg.opt_u32("max_window_layers")?.unwrap_or(28);
    match generation {
        Generation::Two => layer_windows(cfg, n_layers, window, |i| i % 2 == 0 && i < first_full),
        Generation::Three => Ok(vec![window; n_layers as usize]),
    }
}

/// Layers with experts: each `decoder_sparse_step`-th, but for those listed.
pub(super) fn sparse_layers(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<bool>, ModelError> {
    let step = match cfg.opt_u32("decoder_sparse_step")? {
        Some(0) => return Err(cfg.bad("decoder_sparse_step", &Value::from(0), "a number above 0")),
        step => step.unwrap_or(1),
    };
    let dense: Vec<u64> = match cfg.get("mlp_only_layers") {
        None => Vec::new(),
        Some(value) => value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_u64).collect())
            .ok_or_else(|| cfg.bad("mlp_only_layers", value, "a list of layer numbers"))?,
    };
    Ok((0..n_layers)
        .map(|i| (i + 1) % step == 0 && !dense.contains(&u64::from(i)))
        .collect())
}

fn from_gguf(facts: &GgufFacts<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    let arch = match generation {
        Generation::Two => "qwen2moe",
        Generation::Three => "qwen3moe",
    };
    let sizes = sizes_from_gguf(facts, arch)?;
    let rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    // llama.cpp splits the width of the FFN over the experts that run where no key states that of one.
    let experts = MoeSizes::needed_from_gguf(facts, arch, |n_active| sizes.d_mlp / n_active)?;
    let (by_arch, d_shared) = match generation {
        Generation::Two => {
            let stated = gguf_u32(facts, arch, moe::GGUF_SHARED_WIDTH)?;
            (false, Some(stated.unwrap_or(sizes.d_mlp)))
        }
        Generation::Three => (true, None),
    };
    let renormalize = moe::gguf_renormalize(facts, arch, by_arch)?;
    let window = gguf_window(facts, arch)?;
    let windows = gguf_windows(facts, arch, sizes.n_layers, window, 0)?;
    let sparse = (0..sizes.n_layers)
        .map(|layer| moe::gguf_has_router(facts, layer))
        .collect();
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(moe::GGUF_KEYS);
    known.push(moe::GGUF_RENORMALIZE);
    known.extend(GGUF_WINDOW_KEYS);
    if d_shared.is_some() {
        known.push(moe::GGUF_SHARED_WIDTH);
    }
    gguf_finish(facts, arch, &known)?;
    let found = Found {
        sizes,
        eps,
        bias: gguf_bias(facts),
        activation: Activation::Silu,
        tied: !facts.has_head(),
        rope,
        router: router(experts, Activation::Silu, renormalize, d_shared),
        sparse,
    };
    let mut spec = decoder(found, generation);
    attentions(&mut spec).for_each(|(i, attention)| attention.window = windows[i]);
    Ok(spec)
}

fn router(
    experts: MoeSizes,
    activation: Activation,
    renormalize: Option<f32>,
    d_shared: Option<u32>,
) -> MoeSpec {
    MoeSpec {
        renormalize,
        shared: d_shared.map(|d_mlp| moe::shared(d_mlp, activation, true)),
        ..experts.router(RouterScore::Softmax, activation)
    }
}

fn decoder(found: Found, generation: Generation) -> ModelSpec {
    let norm = rms(found.eps);
    let (family, qk_norm) = match generation {
        Generation::Two => ("qwen2-moe", QkNorm::Absent),
        Generation::Three => ("qwen3-moe", QkNorm::PerHead(norm)),
    };
    let mut spec = Plain {
        family,
        sizes: found.sizes,
        norm,
        attention_bias: found.bias,
        mlp_bias: false,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.qk_norm = qk_norm);
    for (layer, sparse) in spec.layers.iter_mut().zip(found.sparse) {
        if sparse {
            layer.ffn = Ffn::Moe(found.router.clone());
        }
    }
    spec
}
