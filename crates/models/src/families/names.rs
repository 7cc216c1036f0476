//! How containers call the tensors.

use super::Family;
use crate::roles::{LayerTensor, TensorRole};

/// The usual names in Hugging Face checkpoints of a pre-norm decoder.
pub(super) const PRE_NORM: &[(LayerTensor, &str)] = &[
    (LayerTensor::MixerNorm, "input_layernorm.weight"),
    (LayerTensor::FfnNorm, "post_attention_layernorm.weight"),
    (LayerTensor::Q, "self_attn.q_proj.weight"),
    (LayerTensor::K, "self_attn.k_proj.weight"),
    (LayerTensor::V, "self_attn.v_proj.weight"),
    (LayerTensor::O, "self_attn.o_proj.weight"),
    (LayerTensor::QBias, "self_attn.q_proj.bias"),
    (LayerTensor::KBias, "self_attn.k_proj.bias"),
    (LayerTensor::VBias, "self_attn.v_proj.bias"),
    (LayerTensor::OBias, "self_attn.o_proj.bias"),
    (LayerTensor::QNorm, "self_attn.q_norm.weight"),
    (LayerTensor::KNorm, "self_attn.k_norm.weight"),
    (LayerTensor::Gate, "mlp.gate_proj.weight"),
    (LayerTensor::Up, "mlp.up_proj.weight"),
    (LayerTensor::Down, "mlp.down_proj.weight"),
    (LayerTensor::GateBias, "mlp.gate_proj.bias"),
    (LayerTensor::UpBias, "mlp.up_proj.bias"),
    (LayerTensor::DownBias, "mlp.down_proj.bias"),
];

/// The usual names in Hugging Face checkpoints of a decoder with norms on both sides of each branch.
pub(super) const SANDWICH: &[(LayerTensor, &str)] = &[
    (LayerTensor::MixerNorm, "input_layernorm.weight"),
    (
        LayerTensor::MixerPostNorm,
        "post_attention_layernorm.weight",
    ),
    (LayerTensor::FfnNorm, "pre_feedforward_layernorm.weight"),
    (
        LayerTensor::FfnPostNorm,
        "post_feedforward_layernorm.weight",
    ),
    (LayerTensor::Q, "self_attn.q_proj.weight"),
    (LayerTensor::K, "self_attn.k_proj.weight"),
    (LayerTensor::V, "self_attn.v_proj.weight"),
    (LayerTensor::O, "self_attn.o_proj.weight"),
    (LayerTensor::QBias, "self_attn.q_proj.bias"),
    (LayerTensor::KBias, "self_attn.k_proj.bias"),
    (LayerTensor::VBias, "self_attn.v_proj.bias"),
    (LayerTensor::OBias, "self_attn.o_proj.bias"),
    (LayerTensor::QNorm, "self_attn.q_norm.weight"),
    (LayerTensor::KNorm, "self_attn.k_norm.weight"),
    (LayerTensor::Gate, "mlp.gate_proj.weight"),
    (LayerTensor::Up, "mlp.up_proj.weight"),
    (LayerTensor::Down, "mlp.down_proj.weight"),
];

/// The name of a role in a Hugging Face checkpoint whose decoder sits under `prefix` (for instance `model.`).
pub(crate) fn hf_name(family: &Family, prefix: &str, role: TensorRole) -> Option<String> {
    Some(match role {
        TensorRole::TokenEmbedding => format!("{prefix}embed_tokens.weight"),
        TensorRole::FinalNorm => format!("{prefix}norm.weight"),
        TensorRole::Head => "lm_head.weight".to_owned(),
        TensorRole::Layer(layer, tensor) => {
            let (_, name) = family
                .hf_layer_names
                .iter()
                .find(|(known, _)| *known == tensor)?;
            format!("{prefix}layers.{layer}.{name}")
        }
    })
}

/// The name of a role in a GGUF file; llama.cpp uses one scheme for all families.
pub(crate) fn gguf_name(role: TensorRole) -> String {
    let (layer, name) = match role {
        TensorRole::TokenEmbedding => return "token_embd.weight".to_owned(),
        TensorRole::FinalNorm => return "output_norm.weight".to_owned(),
        TensorRole::Head => return "output.weight".to_owned(),
        TensorRole::Layer(layer, tensor) => (layer, gguf_layer_name(tensor)),
    };
    format!("blk.{layer}.{name}")
}

fn gguf_layer_name(tensor: LayerTensor) -> &'static str {
    match tensor {
        LayerTensor::MixerNorm => "attn_norm.weight",
        LayerTensor::MixerPostNorm => "post_attention_norm.weight",
        LayerTensor::FfnNorm => "ffn_norm.weight",
        LayerTensor::FfnPostNorm => "post_ffw_norm.weight",
        LayerTensor::Q => "attn_q.weight",
        LayerTensor::K => "attn_k.weight",
        LayerTensor::V => "attn_v.weight",
        LayerTensor::O => "attn_output.weight",
        LayerTensor::QBias => "attn_q.bias",
        LayerTensor::KBias => "attn_k.bias",
        LayerTensor::VBias => "attn_v.bias",
        LayerTensor::OBias => "attn_output.bias",
        LayerTensor::QNorm => "attn_q_norm.weight",
        LayerTensor::KNorm => "attn_k_norm.weight",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::GateBias => "ffn_gate.bias",
        LayerTensor::UpBias => "ffn_up.bias",
        LayerTensor::DownBias => "ffn_down.bias",
    }
}
