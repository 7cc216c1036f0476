//! DeepSeek V2 and V3: latent attention, dense layers first, then experts in groups beside one that always runs.

use serde_json::Value;

use super::decoder::{Plain, Sizes, gguf_finish, gguf_u32, rms, same_u32, sizes_with_kv};
use super::gguf::{gguf_needed, gguf_size, sizes_with_heads};
use super::mla::{self, MlaClass};
use super::moe::{self, MoeSizes};
use super::rope;
use super::{Family, GgufFacts, GgufRopeRows, HfNames, Ignored, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::LayerTensor as T;
use crate::spec::{
    Activation, AttentionBias, Ffn, Mixer, MlaSpec, ModelSpec, MoeSpec, RopeLayout, RouterScore,
    RouterSelect,
};

pub(super) const DEEPSEEK_V2: Family = Family {
    name: "deepseek-v2",
    hf_model_types: &["deepseek_v2"],
    gguf_arch: "deepseek2",
    from_config: |cfg| from_config(cfg, Generation::Two),
    // Both generations share an architecture; the router tells them apart.
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HF,
    gguf_rules: mla::GGUF,
};

pub(super) const DEEPSEEK_V3: Family = Family {
    name: "deepseek-v3",
    hf_model_types: &["deepseek_v3"],
    gguf_arch: "deepseek2",
    from_config: |cfg| from_config(cfg, Generation::Three),
    from_gguf: None,
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HF,
    gguf_rules: mla::GGUF,
};

const HF: HfNames = HfNames {
    prefixes: names::PREFIXES,
    layers: "layers.",
    rules: &[
        names::MODEL,
        names::PRE_NORMS,
        names::ATTENTION,
        mla::HF,
        names::MLP,
        names::EXPERTS,
        EXPERTS,
    ],
    ignored: &[Ignored::LayersBeyond],
};

const EXPERTS: &[Rule] = &[
    Rule::layer(&[T::SelectionBias], "mlp.gate.e_score_correction_bias"),
    Rule::layer(&[T::SharedGate], "mlp.shared_experts.gate_proj.weight"),
    Rule::layer(&[T::SharedUp], "mlp.shared_experts.up_proj.weight"),
    Rule::layer(&[T::SharedDown], "mlp.shared_experts.down_proj.weight"),
];

#[derive(Clone, Copy)]
enum Generation {
    Two,
    Three,
}

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    tied: bool,
    mla: MlaSpec,
    n_dense: u32,
    router: MoeSpec,
}

fn from_config(cfg: &RawConfig<'_>, generation: Generation) -> Result<ModelSpec, ModelError> {
    for key in ["aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux"] {
        cfg.ignore(key);
    }
    // Layers after the last, which only speculation runs.
    cfg.ignore("num_nextn_predict_layers");
    cfg.ignore("num_mtp_layers");
    let sizes = sizes_with_kv(cfg, None, |_, _| 2)?;
    let class = MlaClass {
        q_rank: Some(1536),
        kv_rank: 512,
        d_nope: 128,
        d_rope: 64,
        d_value: 128,
    };
    let mut mla = mla::from_config(cfg, sizes.n_heads, &class)?;
    mla::agrees(cfg, "head_dim", mla.d_rope)?;
    let layout = match generation {
        Generation::Three if !cfg.bool_or("rope_interleave", true)? => RopeLayout::Split,
        Generation::Two | Generation::Three => RopeLayout::Interleaved,
    };
    mla::rope_from_config(cfg, &mut mla, sizes.n_ctx, layout)?;
    cfg.must_be_off("mlp_bias")?;
    mla::must_say(cfg, "hidden_act", "silu")?;
    mla::agrees(cfg, "moe_layer_freq", 1)?;
    let class_dense = match generation {
        Generation::Two => 0,
        Generation::Three => 3,
    };
    let n_dense = cfg.opt_u32("first_k_dense_replace")?.unwrap_or(class_dense);
    let router = router(cfg, generation)?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    cfg.finish()?;
    let found = Found {
        sizes,
        eps,
        tied,
        mla,
        n_dense,
        router,
    };
    Ok(decoder(found, generation))
}

fn router(cfg: &RawConfig<'_>, generation: Generation) -> Result<MoeSpec, ModelError> {
    let (class_experts, class_shared, class_width, class_scaling) = match generation {
        Generation::Two => (64, 2, 1407, 1.0),
        Generation::Three => (256, 1, 2048, 2.5),
    };
    let n_experts = same_u32(
        cfg,
        &["n_routed_experts", "num_experts", "num_local_experts"],
    )?;
    let n_active = match (cfg.opt_u32("num_experts_per_tok")?, generation) {
        (Some(n), _) => n,
        (None, Generation::Three) => 8,
        (None, Generation::Two) => return Err(cfg.missing("num_experts_per_tok")),
    };
    let d_expert = cfg.opt_u32("moe_intermediate_size")?.unwrap_or(class_width);
    let n_experts = n_experts.unwrap_or(class_experts);
    let sizes = MoeSizes::checked(cfg, n_experts, n_active, d_expert)?;
    let n_shared = cfg.opt_u32("n_shared_experts")?.unwrap_or(class_shared);
    let d_shared = n_shared.checked_mul(d_expert).ok_or_else(|| {
        let expected = "experts whose width fits a number of 32 bits";
        cfg.bad("n_shared_experts", &Value::from(n_shared), expected)
    })?;
    let scaling = cfg
        .opt_positive("routed_scaling_factor")?
        .unwrap_or(class_scaling) as f32;
    match generation {
        Generation::Two => {
            mla::must_say(cfg, "scoring_func", "softmax")?;
            // The class ignores the key; other code of the same models divides by the sum.
            cfg.must_be_off("norm_topk_prob")?;
            Ok(MoeSpec {
                select: softmax_groups(cfg, sizes)?,
                scaling,
                shared: (d_shared > 0).then(|| moe::shared(d_shared, Activation::Silu, false)),
                ..sizes.router(RouterScore::Softmax, Activation::Silu)
            })
        }
        Generation::Three => {
            mla::must_say(cfg, "scoring_func", "sigmoid")?;
            mla::must_say(cfg, "topk_method", "noaux_tc")?;
            let groups = cfg.opt_u32("n_group")?.unwrap_or(8);
            let kept = cfg.opt_u32("topk_group")?.unwrap_or(4);
            let select = mla::biased_groups(cfg, sizes, ("n_group", groups), ("topk_group", kept))?;
            let renormalize = cfg.bool_or("norm_topk_prob", true)?;
            Ok(mla::sigmoid_router(
                sizes,
                select,
                renormalize,
                scaling,
                d_shared,
            ))
        }
    }
}

/// `topk_method` says whether groups count at all.
fn softmax_groups(cfg: &RawConfig<'_>, sizes: MoeSizes) -> Result<RouterSelect, ModelError> {
    let number = |key: &str| match cfg.is_null(key) {
        true => Ok(None),
        false => cfg.opt_u32(key),
    };
    let (groups, kept) = (number("n_group")?, number("topk_group")?);
    match cfg.opt_str("topk_method")?.unwrap_or("greedy") {
        "greedy" => Ok(RouterSelect::TopK),
        "group_limited_greedy" => {
            let groups = groups.ok_or_else(|| cfg.missing("n_group"))?;
            let kept = kept.ok_or_else(|| cfg.missing("topk_group"))?;
            mla::groups_of(cfg, sizes, ("n_group", groups), ("topk_group", kept), 1)
        }
        other => Err(cfg.bad(
            "topk_method",
            &Value::from(other),
            "greedy or group_limited_greedy",
        )),
    }
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "deepseek2";
    let n_heads = gguf_size(facts, arch, "attention.head_count")?;
    let d_mlp = gguf_size(facts, arch, "feed_forward_length")?;
    let sizes = sizes_with_heads(facts, arch, d_mlp, n_heads, 2)?;
    let mut mla = mla::from_gguf(facts, arch)?;
    mla::rope_from_gguf(facts, arch, &mut mla, sizes.n_ctx)?;
    let router = mla::router_from_gguf(facts, arch, d_mlp)?;
    let n_dense = gguf_u32(facts, arch, "leading_dense_block_count")?.unwrap_or(0);
    let eps = gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?;
    let stretch = [mla::GGUF_STRETCH];
    let known = [rope::GGUF_KEYS, moe::GGUF_KEYS, mla::GGUF_KEYS, &stretch].concat();
    gguf_finish(facts, arch, &known)?;
    let generation = match router.score {
        RouterScore::Sigmoid => Generation::Three,
        RouterScore::Softmax | RouterScore::SoftmaxOfChosen => Generation::Two,
    };
    let found = Found {
        sizes,
        eps,
        tied: !facts.has_head(),
        mla,
        n_dense,
        router,
    };
    Ok(decoder(found, generation))
}

fn decoder(found: Found, generation: Generation) -> ModelSpec {
    let family = match generation {
        Generation::Two => "deepseek-v2",
        Generation::Three => "deepseek-v3",
    };
    let mut spec = Plain {
        family,
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: AttentionBias::Absent,
        mlp_bias: false,
        activation: Activation::Silu,
        rope: None,
        tied: found.tied,
    }
    .into_spec();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer = Mixer::Mla(found.mla.clone());
        if i >= found.n_dense as usize {
            layer.ffn = Ffn::Moe(found.router.clone());
        }
    }
    spec
}
