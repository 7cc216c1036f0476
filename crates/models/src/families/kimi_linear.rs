//! Kimi Linear: three layers of delta attention to one of latent attention without positions, and DeepSeek's experts.

use serde_json::Value;

use super::decoder::{Plain, Sizes, gguf_finish, gguf_missing, rms, same_u32, sizes_beside};
use super::gguf::{gguf_needed, gguf_per_layer, gguf_size, sizes_with_heads};
use super::layer_kinds::kinds;
use super::mla::{self, MlaClass};
use super::moe::{self, MoeSizes};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, Ignored, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T};
use crate::spec::{Activation, AttentionBias, Ffn, KdaSpec, Mixer, MlaSpec, ModelSpec, MoeSpec};

/// Added to the sum of squares of queries and keys.
const QK_EPS: f32 = 1e-6;

pub(super) const KIMI_LINEAR: Family = Family {
    name: "kimi-linear",
    hf_model_types: &["kimi_linear"],
    gguf_arch: "kimi-linear",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::PRE_NORMS,
            names::ATTENTION,
            mla::HF,
            DELTA,
            names::MLP,
            EXPERTS,
            names::EXPERTS,
        ],
        ignored: &[Ignored::LayersBeyond],
    },
    gguf_rules: GGUF,
};

/// Published files and what the class calls the same tensors in memory.
const DELTA: &[Rule] = &[
    Rule::layer(&[T::ConvQ], "self_attn.q_conv1d.weight").conv(),
    Rule::layer(&[T::ConvK], "self_attn.k_conv1d.weight").conv(),
    Rule::layer(&[T::ConvV], "self_attn.v_conv1d.weight").conv(),
    Rule::layer(&[T::ConvQ, T::ConvK, T::ConvV], "self_attn.conv1d.weight").conv(),
    Rule::layer(&[T::Beta], "self_attn.b_proj.weight"),
    Rule::layer(&[T::DecayA], "self_attn.f_a_proj.weight"),
    Rule::layer(&[T::DecayB], "self_attn.f_b_proj.weight"),
    Rule::layer(&[T::DecayRate], "self_attn.A_log").third(),
    Rule::layer(&[T::DecayBias], "self_attn.dt_bias"),
    Rule::layer(&[T::DecayA], "self_attn.forget_gate.f_a_proj.weight"),
    Rule::layer(&[T::DecayB], "self_attn.forget_gate.f_b_proj.weight"),
    Rule::layer(&[T::DecayRate], "self_attn.forget_gate.A_log").third(),
    Rule::layer(&[T::DecayBias], "self_attn.forget_gate.dt_bias"),
    Rule::layer(&[T::OutGateA], "self_attn.g_a_proj.weight"),
    Rule::layer(&[T::OutGateB], "self_attn.g_b_proj.weight"),
    Rule::layer(&[T::OutNorm], "self_attn.o_norm.weight"),
];

const EXPERTS: &[Rule] = &[
    // The class writes its dense layers under the experts' name.
    Rule::layer(&[T::Gate], "block_sparse_moe.gate_proj.weight"),
    Rule::layer(&[T::Up], "block_sparse_moe.up_proj.weight"),
    Rule::layer(&[T::Down], "block_sparse_moe.down_proj.weight"),
    Rule::layer(&[T::Router], "block_sparse_moe.gate.weight"),
    Rule::layer(
        &[T::SelectionBias],
        "block_sparse_moe.gate.e_score_correction_bias",
    ),
    Rule::layer(&[T::SelectionBias], "mlp.gate.e_score_correction_bias"),
    Rule::layer(
        &[T::SharedGate],
        "block_sparse_moe.shared_experts.gate_proj.weight",
    ),
    Rule::layer(
        &[T::SharedUp],
        "block_sparse_moe.shared_experts.up_proj.weight",
    ),
    Rule::layer(
        &[T::SharedDown],
        "block_sparse_moe.shared_experts.down_proj.weight",
    ),
    Rule::layer(&[T::SharedGate], "mlp.shared_experts.gate_proj.weight"),
    Rule::layer(&[T::SharedUp], "mlp.shared_experts.up_proj.weight"),
    Rule::layer(&[T::SharedDown], "mlp.shared_experts.down_proj.weight"),
    Rule::expert(&[E::Gate], "block_sparse_moe.experts.{e}.w1.weight"),
    Rule::expert(&[E::Up], "block_sparse_moe.experts.{e}.w3.weight"),
    Rule::expert(&[E::Down], "block_sparse_moe.experts.{e}.w2.weight"),
];

const GGUF: &[Rule] = &[
    // llama.cpp mixes up the halves of keys where a file has both kinds of layers and this tensor in one piece.
    mla::GGUF[1],
    mla::GGUF[0],
    Rule::layer(&[T::ConvQ], "ssm_conv1d_q.weight").conv(),
    Rule::layer(&[T::ConvK], "ssm_conv1d_k.weight").conv(),
    Rule::layer(&[T::ConvV], "ssm_conv1d_v.weight").conv(),
    Rule::layer(&[T::Beta], "ssm_beta.weight"),
    Rule::layer(&[T::DecayA], "ssm_f_a.weight"),
    Rule::layer(&[T::DecayB], "ssm_f_b.weight"),
    Rule::layer(&[T::DecayRate], "ssm_a").third(),
    Rule::layer(&[T::OutGateA], "ssm_g_a.weight"),
    Rule::layer(&[T::OutGateB], "ssm_g_b.weight"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    tied: bool,
    mla: MlaSpec,
    kda: KdaSpec,
    router: MoeSpec,
    /// Whether each layer is one of delta attention.
    linear: Vec<bool>,
    /// Whether each layer has experts.
    sparse: Vec<bool>,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    // Nothing has positions, so no rope is ever made; the head width is that of the rope.
    for key in ["rope_theta", "rope_scaling", "rope_parameters"] {
        cfg.ignore(key);
    }
    for key in ["pretraining_tp", "num_nextn_predict_layers", "ep_size"] {
        cfg.ignore(key);
    }
    let n_ctx = same_u32(cfg, &["model_max_length", "max_position_embeddings"])?;
    let n_ctx = n_ctx.ok_or_else(|| cfg.missing("model_max_length"))?;
    let d_mlp = cfg.u32("intermediate_size")?;
    let sizes = sizes_beside(cfg, d_mlp, n_ctx, None, |_, _| 2)?;
    let class = MlaClass {
        q_rank: None,
        kv_rank: 512,
        d_nope: 128,
        d_rope: 64,
        d_value: 128,
    };
    let mla = mla::from_config(cfg, sizes.n_heads, &class)?;
    if !cfg.bool_or("mla_use_nope", true)? {
        return Err(cfg.bad("mla_use_nope", &Value::from(false), "true or absent"));
    }
    mla::must_say(cfg, "hidden_act", "silu")?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32;
    let (kda, linear) = delta(cfg, sizes.n_layers, eps)?;
    let sparse = sparse_layers(cfg, sizes.n_layers)?;
    let router = router(cfg)?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    cfg.finish()?;
    Ok(decoder(Found {
        sizes,
        eps,
        tied,
        mla,
        kda,
        router,
        linear,
        sparse,
    }))
}

/// Widths of the delta layers, and which layers they are: published files have both in an object of its own, which wins.
fn delta(cfg: &RawConfig<'_>, n_layers: u32, eps: f32) -> Result<(KdaSpec, Vec<bool>), ModelError> {
    let nested = cfg.object("linear_attn_config")?;
    let width = |key: &str, nested_key: &str, class_width: u32| -> Result<u32, ModelError> {
        let outer = cfg.opt_u32(key)?;
        let (at, key, found) = match &nested {
            Some(inner) => match inner.opt_u32(nested_key)? {
                Some(found) => (inner, nested_key, Some(found)),
                None => (cfg, key, outer),
            },
            None => (cfg, key, outer),
        };
        match found {
            Some(0) => Err(at.bad(key, &Value::from(0), "a number above 0")),
            found => Ok(found.unwrap_or(class_width)),
        }
    };
    let kda = KdaSpec {
        n_heads: width("linear_num_heads", "num_heads", 32)?,
        d_head: width("linear_head_dim", "head_dim", 128)?,
        conv_width: width("linear_conv_kernel_dim", "short_conv_kernel_size", 4)?,
        out_norm: rms(eps),
        qk_eps: QK_EPS,
    };
    let types = cfg.opt_strings("layer_types")?;
    let lists = match &nested {
        Some(inner) => {
            let lists = numbered_layers(inner, n_layers)?;
            inner.finish()?;
            lists
        }
        None => None,
    };
    let linear = match (types, lists) {
        (Some(types), _) => kinds(cfg, "layer_types", &types, n_layers, LINEAR_OR_FULL)?,
        (None, Some(lists)) => lists,
        (None, None) => (0..n_layers).map(|i| i == 0 || i % 4 != 0).collect(),
    };
    Ok((kda, linear))
}

const LINEAR_OR_FULL: (&str, &str) = ("linear_attention", "full_attention");

/// Two lists that number the layers from 1, each layer in one of them.
fn numbered_layers(nested: &RawConfig<'_>, n_layers: u32) -> Result<Option<Vec<bool>>, ModelError> {
    let mut kinds: Vec<Option<bool>> = vec![None; n_layers as usize];
    let mut lists = 0;
    for (key, linear) in [("full_attn_layers", false), ("kda_layers", true)] {
        let Some(value) = nested.get(key) else {
            continue;
        };
        lists += 1;
        let expected = format!("numbers of layers from 1 to {n_layers}, each in one list");
        let bad = || nested.bad(key, value, &expected);
        for number in value.as_array().ok_or_else(bad)? {
            let number = number
                .as_u64()
                .filter(|n| (1..=u64::from(n_layers)).contains(n));
            let slot = &mut kinds[number.ok_or_else(bad)? as usize - 1];
            if slot.replace(linear).is_some() {
                return Err(bad());
            }
        }
    }
    if lists < 2 {
        return Ok(None);
    }
    let whole: Option<Vec<bool>> = kinds.into_iter().collect();
    match whole {
        Some(kinds) => Ok(Some(kinds)),
        None => Err(nested.bad(
            "kda_layers",
            &Value::from("lists that leave layers out"),
            &format!("all of the layers 1 to {n_layers} in the two lists"),
        )),
    }
}

fn sparse_layers(cfg: &RawConfig<'_>, n_layers: u32) -> Result<Vec<bool>, ModelError> {
    mla::agrees(cfg, "moe_layer_freq", 1)?;
    let key = "first_k_dense_replace";
    let stated = cfg.opt_u32(key)?;
    let of_count = |n_dense: u32| (0..n_layers).map(|i| i >= n_dense).collect();
    let Some(words) = cfg.opt_strings("mlp_layer_types")? else {
        return Ok(of_count(stated.unwrap_or(1)));
    };
    let kinds = kinds(
        cfg,
        "mlp_layer_types",
        &words,
        n_layers,
        ("sparse", "dense"),
    )?;
    match stated {
        Some(n_dense) if kinds != of_count(n_dense) => {
            let expected = "the dense layers of mlp_layer_types, or no key";
            Err(cfg.bad(key, &Value::from(n_dense), expected))
        }
        Some(_) | None => Ok(kinds),
    }
}

fn router(cfg: &RawConfig<'_>) -> Result<MoeSpec, ModelError> {
    mla::must_say(cfg, "moe_router_activation_func", "sigmoid")?;
    if !cfg.bool_or("use_grouped_topk", true)? {
        return Err(cfg.bad("use_grouped_topk", &Value::from(false), "true or absent"));
    }
    let number = |keys: &[&str], class: u32| -> Result<u32, ModelError> {
        Ok(same_u32(cfg, keys)?.unwrap_or(class))
    };
    let n_experts = number(&["num_experts", "num_local_experts"], 256)?;
    let n_active = number(&["num_experts_per_token", "num_experts_per_tok"], 8)?;
    let d_expert = number(&["moe_intermediate_size"], 1024)?;
    let sizes = MoeSizes::checked(cfg, n_experts, n_active, d_expert)?;
    let groups = number(&["num_expert_group", "n_group"], 1)?;
    let kept = number(&["topk_group"], 1)?;
    let select = mla::biased_groups(
        cfg,
        sizes,
        ("num_expert_group", groups),
        ("topk_group", kept),
    )?;
    let n_shared = number(&["num_shared_experts", "n_shared_experts"], 1)?;
    let d_shared = n_shared.checked_mul(d_expert).ok_or_else(|| {
        let expected = "experts whose width fits a number of 32 bits";
        cfg.bad("num_shared_experts", &Value::from(n_shared), expected)
    })?;
    let newer = cfg.bool_or("norm_topk_prob", true)?;
    let renormalize = cfg.bool_or("moe_renormalize", newer)?;
    if cfg.get("norm_topk_prob").is_some() && newer != renormalize {
        let expected = format!("{renormalize}, as moe_renormalize says");
        return Err(cfg.bad("norm_topk_prob", &Value::from(newer), &expected));
    }
    let scaling = cfg.opt_positive("routed_scaling_factor")?.unwrap_or(2.446) as f32;
    Ok(mla::sigmoid_router(
        sizes,
        select,
        renormalize,
        scaling,
        d_shared,
    ))
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "kimi-linear";
    let n_heads = gguf_size(facts, arch, "attention.head_count")?;
    let d_mlp = gguf_size(facts, arch, "feed_forward_length")?;
    let sizes = sizes_with_heads(facts, arch, d_mlp, n_heads, 2)?;
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    // Layers of delta attention have no heads of keys and values.
    let kv_heads = gguf_per_layer(facts, arch, "attention.head_count_kv", sizes.n_layers)?
        .ok_or_else(|| gguf_missing(facts, arch, "attention.head_count_kv"))?;
    let linear: Vec<bool> = kv_heads.iter().map(|n| *n == 0).collect();
    let sparse = (0..sizes.n_layers)
        .map(|layer| moe::gguf_has_router(facts, layer))
        .collect();
    let mut router = mla::router_from_gguf(facts, arch, d_mlp)?;
    mla::gguf_sigmoid(facts, arch, router.score)?;
    // Which llama.cpp does for all files of the architecture.
    if facts
        .metadata
        .get("kimi-linear.expert_weights_norm")
        .is_none()
    {
        router.renormalize = Some(mla::RENORMALIZE_EPS);
    }
    // No key counts the heads of delta attention; each has one strength of its update.
    let beta = (0..sizes.n_layers)
        .find_map(|layer| (facts.shape)(&format!("blk.{layer}.ssm_beta.weight")))
        .and_then(|shape| u32::try_from(*shape.first()?).ok());
    let kda = KdaSpec {
        n_heads: beta.unwrap_or(n_heads),
        d_head: gguf_size(facts, arch, "kda.head_dim")?,
        conv_width: gguf_size(facts, arch, "ssm.conv_kernel")?,
        out_norm: rms(eps),
        qk_eps: QK_EPS,
    };
    let mla = mla::from_gguf(facts, arch)?;
    let known = [
        moe::GGUF_KEYS,
        mla::GGUF_KEYS,
        &["kda.head_dim", "rope.dimension_count", "ssm.conv_kernel"],
    ];
    gguf_finish(facts, arch, &known.concat())?;
    Ok(decoder(Found {
        sizes,
        eps,
        tied: !facts.has_head(),
        mla,
        kda,
        router,
        linear,
        sparse,
    }))
}

fn decoder(found: Found) -> ModelSpec {
    let mut spec = Plain {
        family: "kimi-linear",
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: AttentionBias::Absent,
        mlp_bias: false,
        activation: Activation::Silu,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    let kinds = found.linear.into_iter().zip(found.sparse);
    for (layer, (linear, sparse)) in spec.layers.iter_mut().zip(kinds) {
        layer.mixer = match linear {
            true => Mixer::Kda(found.kda.clone()),
            false => Mixer::Mla(found.mla.clone()),
        };
        if sparse {
            layer.ffn = Ffn::Moe(found.router.clone());
        }
    }
    spec
}
