//! How containers call the tensors: the rules that many families share.

use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T, TensorRole};

use super::HfNames;

/// Prefixes of a decoder, alone or nested in a wrapper for several modalities.
pub(super) const PREFIXES: &[&str] = &["model.", "language_model.model.", "model.language_model."];

/// The model's own tensors under their usual names.
pub(super) const MODEL: &[Rule] = &[
    Rule::model(TensorRole::TokenEmbedding, "embed_tokens.weight"),
    Rule::model(TensorRole::FinalNorm, "norm.weight"),
    Rule::model(TensorRole::FinalNormBias, "norm.bias"),
    Rule::model(TensorRole::Head, "^lm_head.weight"),
    Rule::model(TensorRole::Head, "^language_model.lm_head.weight"),
    Rule::model(TensorRole::HeadBias, "^lm_head.bias"),
];

/// Attention projections under their usual names.
pub(super) const ATTENTION: &[Rule] = &[
    Rule::layer(&[T::Q], "self_attn.q_proj.weight"),
    Rule::layer(&[T::K], "self_attn.k_proj.weight"),
    Rule::layer(&[T::V], "self_attn.v_proj.weight"),
    Rule::layer(&[T::O], "self_attn.o_proj.weight"),
    Rule::layer(&[T::QBias], "self_attn.q_proj.bias"),
    Rule::layer(&[T::KBias], "self_attn.k_proj.bias"),
    Rule::layer(&[T::VBias], "self_attn.v_proj.bias"),
    Rule::layer(&[T::OBias], "self_attn.o_proj.bias"),
    Rule::layer(&[T::QNorm], "self_attn.q_norm.weight"),
    Rule::layer(&[T::KNorm], "self_attn.k_norm.weight"),
];

/// A gated FFN under its usual names.
pub(super) const MLP: &[Rule] = &[
    Rule::layer(&[T::Gate], "mlp.gate_proj.weight"),
    Rule::layer(&[T::Up], "mlp.up_proj.weight"),
    Rule::layer(&[T::Down], "mlp.down_proj.weight"),
    Rule::layer(&[T::GateBias], "mlp.gate_proj.bias"),
    Rule::layer(&[T::UpBias], "mlp.up_proj.bias"),
    Rule::layer(&[T::DownBias], "mlp.down_proj.bias"),
];

/// Norms before each branch.
pub(super) const PRE_NORMS: &[Rule] = &[
    Rule::layer(&[T::MixerNorm], "input_layernorm.weight"),
    Rule::layer(&[T::MixerNormBias], "input_layernorm.bias"),
    Rule::layer(&[T::FfnNorm], "post_attention_layernorm.weight"),
    Rule::layer(&[T::FfnNormBias], "post_attention_layernorm.bias"),
];

/// Norms on both sides of each branch.
pub(super) const SANDWICH_NORMS: &[Rule] = &[
    Rule::layer(&[T::MixerNorm], "input_layernorm.weight"),
    Rule::layer(&[T::MixerPostNorm], "post_attention_layernorm.weight"),
    Rule::layer(&[T::FfnNorm], "pre_feedforward_layernorm.weight"),
    Rule::layer(&[T::FfnPostNorm], "post_feedforward_layernorm.weight"),
];

/// A router, and experts with a tensor each.
pub(super) const EXPERTS: &[Rule] = &[
    Rule::layer(&[T::Router], "mlp.gate.weight"),
    Rule::expert(&[E::Gate], "mlp.experts.{e}.gate_proj.weight"),
    Rule::expert(&[E::Up], "mlp.experts.{e}.up_proj.weight"),
    Rule::expert(&[E::Down], "mlp.experts.{e}.down_proj.weight"),
    Rule::experts(&[E::Gate, E::Up], "mlp.experts.gate_up_proj"),
    Rule::experts(&[E::Down], "mlp.experts.down_proj"),
];

/// A pre-norm decoder.
pub(super) const PRE_NORM: HfNames = HfNames {
    prefixes: PREFIXES,
    layers: "layers.",
    rules: &[MODEL, PRE_NORMS, ATTENTION, MLP],
    ignored: &[],
};

/// A decoder with norms on both sides of each branch.
pub(super) const SANDWICH: HfNames = HfNames {
    prefixes: PREFIXES,
    layers: "layers.",
    rules: &[MODEL, SANDWICH_NORMS, ATTENTION, MLP],
    ignored: &[],
};

/// Names in a GGUF file; llama.cpp uses one scheme for nearly all families.
pub(super) const GGUF: &[Rule] = &[
    Rule::model(TensorRole::TokenEmbedding, "token_embd.weight"),
    Rule::model(TensorRole::PositionEmbedding, "position_embd.weight"),
    Rule::model(TensorRole::FinalNorm, "output_norm.weight"),
    Rule::model(TensorRole::FinalNormBias, "output_norm.bias"),
    Rule::model(TensorRole::Head, "output.weight"),
    Rule::model(TensorRole::HeadBias, "output.bias"),
    Rule::model(TensorRole::PerLayerEmbedding, "per_layer_token_embd.weight"),
    Rule::model(
        TensorRole::PerLayerProjection,
        "per_layer_model_proj.weight",
    ),
    Rule::model(
        TensorRole::PerLayerProjectionNorm,
        "per_layer_proj_norm.weight",
    ),
    Rule::stacked(TensorRole::AltUpProjection, "altup_proj.weight"),
    Rule::stacked(TensorRole::AltUpUnembedding, "altup_unembd_proj.weight"),
    Rule::layer(&[T::MixerNorm], "attn_norm.weight"),
    Rule::layer(&[T::MixerNormBias], "attn_norm.bias"),
    Rule::layer(&[T::MixerPostNorm], "post_attention_norm.weight"),
    Rule::layer(&[T::FfnNorm], "ffn_norm.weight"),
    Rule::layer(&[T::FfnNormBias], "ffn_norm.bias"),
    Rule::layer(&[T::FfnPostNorm], "post_ffw_norm.weight"),
    Rule::layer(&[T::Q], "attn_q.weight"),
    Rule::layer(&[T::K], "attn_k.weight"),
    Rule::layer(&[T::V], "attn_v.weight"),
    Rule::layer(&[T::O], "attn_output.weight"),
    Rule::layer(&[T::QBias], "attn_q.bias"),
    Rule::layer(&[T::KBias], "attn_k.bias"),
    Rule::layer(&[T::VBias], "attn_v.bias"),
    Rule::layer(&[T::OBias], "attn_output.bias"),
    Rule::layer(&[T::QNorm], "attn_q_norm.weight"),
    Rule::layer(&[T::QNormBias], "attn_q_norm.bias"),
    Rule::layer(&[T::KNorm], "attn_k_norm.weight"),
    Rule::layer(&[T::KNormBias], "attn_k_norm.bias"),
    Rule::layer(&[T::Sinks], "attn_sinks.weight"),
    Rule::layer(&[T::OutGate], "attn_gate.weight"),
    Rule::layer(&[T::QA], "attn_q_a.weight"),
    Rule::layer(&[T::QANorm], "attn_q_a_norm.weight"),
    Rule::layer(&[T::QB], "attn_q_b.weight"),
    Rule::layer(&[T::KvA], "attn_kv_a_mqa.weight"),
    Rule::layer(&[T::KvANorm], "attn_kv_a_norm.weight"),
    Rule::layer(&[T::KvB], "attn_kv_b.weight"),
    Rule::layer(&[T::Gate], "ffn_gate.weight"),
    Rule::layer(&[T::Up], "ffn_up.weight"),
    Rule::layer(&[T::Down], "ffn_down.weight"),
    Rule::layer(&[T::GateBias], "ffn_gate.bias"),
    Rule::layer(&[T::UpBias], "ffn_up.bias"),
    Rule::layer(&[T::DownBias], "ffn_down.bias"),
    Rule::layer(&[T::Router], "ffn_gate_inp.weight"),
    Rule::layer(&[T::RouterBias], "ffn_gate_inp.bias"),
    Rule::layer(&[T::SelectionBias], "exp_probs_b.bias"),
    Rule::layer(&[T::SharedRouter], "ffn_gate_inp_shexp.weight"),
    Rule::layer(&[T::SharedGate], "ffn_gate_shexp.weight"),
    Rule::layer(&[T::SharedUp], "ffn_up_shexp.weight"),
    Rule::layer(&[T::SharedDown], "ffn_down_shexp.weight"),
    Rule::experts(&[E::Gate], "ffn_gate_exps.weight"),
    Rule::experts(&[E::Up], "ffn_up_exps.weight"),
    Rule::experts(&[E::Down], "ffn_down_exps.weight"),
    Rule::experts(&[E::GateBias], "ffn_gate_exps.bias"),
    Rule::experts(&[E::UpBias], "ffn_up_exps.bias"),
    Rule::experts(&[E::DownBias], "ffn_down_exps.bias"),
    Rule::layer(&[T::LaurelLeft], "laurel_l.weight"),
    Rule::layer(&[T::LaurelRight], "laurel_r.weight"),
    Rule::layer(&[T::LaurelNorm], "laurel_post_norm.weight"),
    Rule::layer(&[T::PerLayerGate], "inp_gate.weight"),
    Rule::layer(&[T::PerLayerUp], "proj.weight"),
    Rule::layer(&[T::PerLayerPostNorm], "post_norm.weight"),
    Rule::layer(&[T::AltUpCorrect], "altup_correct_coef.weight"),
    Rule::layer(&[T::AltUpCorrectScale], "altup_correct_scale.weight"),
    Rule::layer(&[T::AltUpPredict], "altup_predict_coef.weight"),
    Rule::layer(&[T::AltUpRouter], "altup_router.weight"),
    Rule::layer(&[T::AltUpRouterNorm], "altup_router_norm.weight"),
    Rule::layer(&[T::LayerScalar], "layer_output_scale.weight"),
    Rule::layer(&[T::ConvQ, T::ConvK, T::ConvV], "ssm_conv1d.weight"),
    Rule::layer(&[T::DecayRate], "ssm_a"),
    Rule::layer(&[T::DecayBias], "ssm_dt.bias"),
    Rule::layer(&[T::OutNorm], "ssm_norm.weight"),
];
