//! Mixtral: Mistral's attention, and experts whose weights are renormalized.

use super::decoder::{Plain, activation_or, attentions, head_share, rms, sizes_with_kv};
use super::moe::MoeSizes;
use super::rope::{self, RopeClass};
use super::{Family, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T};
use crate::spec::{Activation, AttentionBias, Ffn, ModelSpec, MoeSpec, RouterScore};

pub(super) const MIXTRAL: Family = Family {
    name: "mixtral",
    hf_model_types: &["mixtral"],
    gguf_arch: "llama",
    from_config,
    // Llama's reader sees the experts and names this family.
    from_gguf: None,
    gguf_rope_rows: GgufRopeRows::Interleaved,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[
            names::MODEL,
            names::PRE_NORMS,
            names::ATTENTION,
            EXPERTS,
            names::EXPERTS,
        ],
        ignored: &[],
    },
    gguf_rules: &[],
};

/// The published names; newer files may use those that many families share.
const EXPERTS: &[Rule] = &[
    Rule::layer(&[T::Router], "block_sparse_moe.gate.weight"),
    Rule::expert(&[E::Gate], "block_sparse_moe.experts.{e}.w1.weight"),
    Rule::expert(&[E::Up], "block_sparse_moe.experts.{e}.w3.weight"),
    Rule::expert(&[E::Down], "block_sparse_moe.experts.{e}.w2.weight"),
];

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = sizes_with_kv(cfg, Some(8), head_share)?;
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 1_000_000.0,
        n_ctx: sizes.n_ctx,
    };
    let rope = rope::from_config(cfg, class)?;
    let window = cfg.opt_window("sliding_window", None)?;
    let eps = cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32;
    let act = activation_or(cfg, "hidden_act", Activation::Silu)?;
    let experts = MoeSizes::from_config(cfg, 8, 2, sizes.d_mlp)?;
    let tied = cfg.bool_or("tie_word_embeddings", false)?;
    cfg.finish()?;
    let mut spec = Plain {
        family: "mixtral",
        sizes,
        norm: rms(eps),
        attention_bias: AttentionBias::Absent,
        mlp_bias: false,
        activation: act,
        rope: Some(rope),
        tied,
    }
    .into_spec();
    attentions(&mut spec).for_each(|(_, attention)| attention.window = window);
    let router = router(experts, act);
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.ffn = Ffn::Moe(router.clone()));
    Ok(spec)
}

/// Softmax over all experts; the weights of the chosen ones add up to one.
pub(super) fn router(sizes: MoeSizes, activation: Activation) -> MoeSpec {
    MoeSpec {
        renormalize: Some(0.0),
        ..sizes.router(RouterScore::Softmax, activation)
    }
}
