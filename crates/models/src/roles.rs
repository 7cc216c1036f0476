//! What a tensor is for, and which tensors a [`ModelSpec`] needs.
//!
//! A role is the engine's name for a tensor; families map roles to the names that containers use. The list of needed
//! tensors is derived from the spec alone, so accounting cannot disagree with the forward pass.

use std::fmt;

use crate::spec::{
    AttentionBias, BlockShape, Ffn, KvSource, LayerSpec, Mixer, ModelSpec, NormKind, NormSpec,
    NormWeight, QkNorm,
};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorRole {
    /// `[d_vocab, d_model]`.
    TokenEmbedding,
    /// `[d_model]`.
    FinalNorm,
    /// `[d_vocab, d_model]`, absent where the embedding serves as head.
    Head,
    /// A tensor of one layer.
    Layer(u32, LayerTensor),
}

/// A tensor of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerTensor {
    /// Norm before the mixer, `[d_model]`.
    MixerNorm,
    /// Norm on the mixer's output, `[d_model]`.
    MixerPostNorm,
    /// Norm before the FFN, `[d_model]`.
    FfnNorm,
    /// Norm on the FFN's output, `[d_model]`.
    FfnPostNorm,
    /// Queries, `[n_heads * d_head, d_model]`.
    Q,
    /// Keys, `[n_kv_heads * d_head, d_model]`.
    K,
    /// Values, `[n_kv_heads * d_head, d_model]`.
    V,
    /// Attention output, `[d_model, n_heads * d_head]`.
    O,
    /// Bias of the queries.
    QBias,
    /// Bias of the keys.
    KBias,
    /// Bias of the values.
    VBias,
    /// Bias of the attention output.
    OBias,
    /// Norm on queries.
    QNorm,
    /// Norm on keys.
    KNorm,
    /// FFN gate, `[d_mlp, d_model]`.
    Gate,
    /// FFN up, `[d_mlp, d_model]`.
    Up,
    /// FFN down, `[d_model, d_mlp]`.
    Down,
    /// Bias of the gate.
    GateBias,
    /// Bias of the up projection.
    UpBias,
    /// Bias of the down projection.
    DownBias,
}

impl LayerTensor {
    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::MixerNorm => "mixer_norm",
            Self::MixerPostNorm => "mixer_post_norm",
            Self::FfnNorm => "ffn_norm",
            Self::FfnPostNorm => "ffn_post_norm",
            Self::Q => "attn.q",
            Self::K => "attn.k",
            Self::V => "attn.v",
            Self::O => "attn.o",
            Self::QBias => "attn.q.bias",
            Self::KBias => "attn.k.bias",
            Self::VBias => "attn.v.bias",
            Self::OBias => "attn.o.bias",
            Self::QNorm => "attn.q_norm",
            Self::KNorm => "attn.k_norm",
            Self::Gate => "mlp.gate",
            Self::Up => "mlp.up",
            Self::Down => "mlp.down",
            Self::GateBias => "mlp.gate.bias",
            Self::UpBias => "mlp.up.bias",
            Self::DownBias => "mlp.down.bias",
        }
    }

    /// Whether this is a norm's weight, which some containers store one less than it acts.
    pub fn is_norm(self) -> bool {
        match self {
            Self::MixerNorm
            | Self::MixerPostNorm
            | Self::FfnNorm
            | Self::FfnPostNorm
            | Self::QNorm
            | Self::KNorm => true,
            Self::Q
            | Self::K
            | Self::V
            | Self::O
            | Self::QBias
            | Self::KBias
            | Self::VBias
            | Self::OBias
            | Self::Gate
            | Self::Up
            | Self::Down
            | Self::GateBias
            | Self::UpBias
            | Self::DownBias => false,
        }
    }
}

impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenEmbedding => f.write_str("token_embedding"),
            Self::FinalNorm => f.write_str("final_norm"),
            Self::Head => f.write_str("head"),
            Self::Layer(layer, tensor) => write!(f, "layer {layer} {}", tensor.name()),
        }
    }
}

/// A tensor that a spec needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// What it is for.
    pub role: TensorRole,
    /// Logical shape, outermost first.
    pub shape: Vec<u64>,
    /// Head width, if the rows are head dimensions that RoPE pairs up.
    pub rope_head: Option<u32>,
    /// How the family's Hugging Face checkpoints store it, if it is a norm's weight.
    pub norm: Option<NormWeight>,
}

/// An axis of a spec for which there is no tensor list yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}: {axis} is described but not run by this version")]
pub struct UnsupportedAxis {
    /// The layer.
    pub layer: usize,
    /// The axis and its value.
    pub axis: &'static str,
}

/// Every tensor the spec needs, in the order they are used.
///
/// # Errors
/// Names the first layer with an axis that this version describes and does not run.
pub fn needed_tensors(spec: &ModelSpec) -> Result<Vec<Needed>, UnsupportedAxis> {
    let d_model = u64::from(spec.d_model);
    let vocab = vec![u64::from(spec.d_vocab), d_model];
    let mut list = Needs(vec![]);
    if spec.embedding.learned_positions.is_some() {
        return Err(UnsupportedAxis {
            layer: 0,
            axis: "a learned position table",
        });
    }
    if spec.embedding.per_layer.is_some() {
        return Err(UnsupportedAxis {
            layer: 0,
            axis: "per-layer embeddings",
        });
    }
    if spec.head.bias {
        return Err(UnsupportedAxis {
            layer: spec.n_layers(),
            axis: "a bias on the head",
        });
    }
    list.plain(TensorRole::TokenEmbedding, vocab.clone());
    for (idx, layer) in spec.layers.iter().enumerate() {
        layer_tensors(&mut list, idx, layer, d_model)?;
    }
    list.norm(
        TensorRole::FinalNorm,
        d_model,
        spec.final_norm,
        spec.n_layers(),
    )?;
    if !spec.head.tied {
        list.plain(TensorRole::Head, vocab);
    }
    Ok(list.0)
}

struct Needs(Vec<Needed>);

impl Needs {
    fn plain(&mut self, role: TensorRole, shape: Vec<u64>) {
        self.0.push(Needed {
            role,
            shape,
            rope_head: None,
            norm: None,
        });
    }

    fn roped(&mut self, role: TensorRole, shape: Vec<u64>, d_head: u32) {
        self.0.push(Needed {
            role,
            shape,
            rope_head: Some(d_head),
            norm: None,
        });
    }

    fn norm(
        &mut self,
        role: TensorRole,
        width: u64,
        norm: NormSpec,
        layer: usize,
    ) -> Result<(), UnsupportedAxis> {
        match (norm.kind, norm.weight) {
            (NormKind::Rms, _) | (NormKind::Layer, NormWeight::Plain | NormWeight::PlusOne) => {}
            (NormKind::Layer, NormWeight::Absent) => {
                return Err(UnsupportedAxis {
                    layer,
                    axis: "a layer norm without weight",
                });
            }
            (NormKind::LayerWithBias, _) => {
                return Err(UnsupportedAxis {
                    layer,
                    axis: "a norm with a bias",
                });
            }
        }
        match norm.weight {
            NormWeight::Absent => {}
            NormWeight::Plain | NormWeight::PlusOne => {
                self.0.push(Needed {
                    role,
                    shape: vec![width],
                    rope_head: None,
                    norm: Some(norm.weight),
                });
            }
        }
        Ok(())
    }
}

fn layer_tensors(
    list: &mut Needs,
    idx: usize,
    layer: &LayerSpec,
    d_model: u64,
) -> Result<(), UnsupportedAxis> {
    let unsupported = |axis| Err(UnsupportedAxis { layer: idx, axis });
    let role =
        |tensor| TensorRole::Layer(u32::try_from(idx).expect("layer counts are u32"), tensor);
    if layer.layer_scalar {
        return unsupported("a layer scalar");
    }
    match &layer.block {
        BlockShape::PreNorm { mixer, ffn } => {
            list.norm(role(LayerTensor::MixerNorm), d_model, *mixer, idx)?;
            list.norm(role(LayerTensor::FfnNorm), d_model, *ffn, idx)?;
        }
        BlockShape::Sandwich {
            mixer,
            mixer_post,
            ffn,
            ffn_post,
        } => {
            list.norm(role(LayerTensor::MixerNorm), d_model, *mixer, idx)?;
            list.norm(role(LayerTensor::MixerPostNorm), d_model, *mixer_post, idx)?;
            list.norm(role(LayerTensor::FfnNorm), d_model, *ffn, idx)?;
            list.norm(role(LayerTensor::FfnPostNorm), d_model, *ffn_post, idx)?;
        }
        BlockShape::PostNorm {
            mixer_post,
            ffn_post,
        } => {
            list.norm(role(LayerTensor::MixerPostNorm), d_model, *mixer_post, idx)?;
            list.norm(role(LayerTensor::FfnPostNorm), d_model, *ffn_post, idx)?;
        }
        BlockShape::Parallel { norm } => {
            list.norm(role(LayerTensor::MixerNorm), d_model, *norm, idx)?
        }
    }
    match &layer.mixer {
        Mixer::Attention(attn) => {
            match attn.kv {
                KvSource::Own => {}
                KvSource::KeyIsValue => return unsupported("keys that serve as values"),
                KvSource::SharedFrom(_) => return unsupported("keys and values of another layer"),
            }
            if attn.v_norm.is_some() {
                return unsupported("a norm on values");
            }
            if attn.sinks {
                return unsupported("attention sinks");
            }
            let q = u64::from(attn.n_heads) * u64::from(attn.d_head);
            let kv = u64::from(attn.n_kv_heads) * u64::from(attn.d_head);
            list.roped(role(LayerTensor::Q), vec![q, d_model], attn.d_head);
            list.roped(role(LayerTensor::K), vec![kv, d_model], attn.d_head);
            list.plain(role(LayerTensor::V), vec![kv, d_model]);
            list.plain(role(LayerTensor::O), vec![d_model, q]);
            match attn.bias {
                AttentionBias::Absent => {}
                AttentionBias::Qkv | AttentionBias::Qkvo => {
                    list.roped(role(LayerTensor::QBias), vec![q], attn.d_head);
                    list.roped(role(LayerTensor::KBias), vec![kv], attn.d_head);
                    list.plain(role(LayerTensor::VBias), vec![kv]);
                }
            }
            match attn.bias {
                AttentionBias::Absent | AttentionBias::Qkv => {}
                AttentionBias::Qkvo => list.plain(role(LayerTensor::OBias), vec![d_model]),
            }
            match attn.qk_norm {
                QkNorm::Absent => {}
                QkNorm::PerHead(norm) => {
                    list.norm(role(LayerTensor::QNorm), u64::from(attn.d_head), norm, idx)?;
                    list.norm(role(LayerTensor::KNorm), u64::from(attn.d_head), norm, idx)?;
                }
                QkNorm::FullWidth(norm) => {
                    list.norm(role(LayerTensor::QNorm), q, norm, idx)?;
                    list.norm(role(LayerTensor::KNorm), kv, norm, idx)?;
                }
            }
        }
        Mixer::Mla(_) => return unsupported("multi-head latent attention"),
        Mixer::Kda(_) => return unsupported("Kimi delta attention"),
        Mixer::GatedDelta(_) => return unsupported("gated delta net"),
    }
    let (ffn, gated) = match &layer.ffn {
        Ffn::Gated(ffn) => (ffn, true),
        Ffn::Plain(ffn) => (ffn, false),
        Ffn::Moe(_) => return unsupported("a mixture of experts"),
    };
    let d_mlp = u64::from(ffn.d_mlp);
    if gated {
        list.plain(role(LayerTensor::Gate), vec![d_mlp, d_model]);
    }
    list.plain(role(LayerTensor::Up), vec![d_mlp, d_model]);
    list.plain(role(LayerTensor::Down), vec![d_model, d_mlp]);
    if ffn.bias {
        if gated {
            list.plain(role(LayerTensor::GateBias), vec![d_mlp]);
        }
        list.plain(role(LayerTensor::UpBias), vec![d_mlp]);
        list.plain(role(LayerTensor::DownBias), vec![d_model]);
    }
    Ok(())
}
