//! A layer's weights where the forward pass reads them.
//!
//! Plain data: [`crate::load`] fills it, [`crate::forward()`] runs it.

use larql_models::spec::{
    AttentionSpec, FfnPart, FfnSpec, GatedDeltaSpec, KdaSpec, MlaSpec, MoeSpec, NormKind,
};

use crate::model::Matrix;

/// A norm with its weight as it multiplies.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
    pub(crate) weight: Option<Vec<f32>>,
    pub(crate) bias: Option<Vec<f32>>,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) block: Block,
    pub(crate) mixer: Mixer,
    pub(crate) laurel: Option<Laurel>,
    pub(crate) ffn: Ffn,
    pub(crate) per_layer: Option<PerLayer>,
    pub(crate) altup: Option<AltUp>,
    pub(crate) residual_multiplier: f32,
    /// Factor on the whole residual stream at the end.
    pub(crate) scalar: Option<f32>,
}

/// Norms and residual additions of a layer.
#[derive(Debug)]
pub(crate) enum Block {
    Sequential {
        mixer: Option<Norm>,
        mixer_post: Option<Norm>,
        ffn: Option<Norm>,
        ffn_post: Option<Norm>,
    },
    Parallel {
        norm: Norm,
    },
}

/// What mixes positions.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Attention),
    Mla(Mla),
    Kda(Kda),
    GatedDelta(GatedDelta),
}

/// Attention weights.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) spec: AttentionSpec,
    pub(crate) q: Matrix,
    /// Absent where another layer's keys serve.
    pub(crate) k: Option<Matrix>,
    /// Absent where the keys, or another layer's values, serve.
    pub(crate) v: Option<Matrix>,
    pub(crate) o: Matrix,
    pub(crate) gate: Option<Matrix>,
    pub(crate) q_bias: Option<Vec<f32>>,
    pub(crate) k_bias: Option<Vec<f32>>,
    pub(crate) v_bias: Option<Vec<f32>>,
    pub(crate) o_bias: Option<Vec<f32>>,
    pub(crate) q_norm: Option<Norm>,
    pub(crate) k_norm: Option<Norm>,
    pub(crate) v_norm: Option<Norm>,
    pub(crate) sinks: Option<Vec<f32>>,
    /// Index into the distinct ropes of the model.
    pub(crate) rope: Option<usize>,
}

/// Multi-head latent attention weights.
#[derive(Debug)]
pub(crate) struct Mla {
    pub(crate) spec: MlaSpec,
    /// Queries from the input, or from their latent.
    pub(crate) q: Matrix,
    pub(crate) q_latent: Option<(Matrix, Norm)>,
    pub(crate) kv_a: Matrix,
    pub(crate) kv_a_norm: Norm,
    pub(crate) kv_b: Matrix,
    pub(crate) o: Matrix,
    pub(crate) rope: Option<usize>,
}

/// What the two recurrent mixers share.
#[derive(Debug)]
pub(crate) struct Recurrent {
    pub(crate) q: Matrix,
    pub(crate) k: Matrix,
    pub(crate) v: Matrix,
    /// Causal convolutions over q, k and v, `[channels, conv_width]`.
    pub(crate) conv: [Vec<f32>; 3],
    pub(crate) beta: Matrix,
    /// `-exp(A_log)` per head.
    pub(crate) decay_rate: Vec<f32>,
    pub(crate) decay_bias: Vec<f32>,
    pub(crate) out_norm: Norm,
    pub(crate) o: Matrix,
}

/// Weights of delta attention with a decay per channel.
#[derive(Debug)]
pub(crate) struct Kda {
    pub(crate) spec: KdaSpec,
    pub(crate) common: Recurrent,
    pub(crate) decay: (Matrix, Matrix),
    pub(crate) out_gate: (Matrix, Matrix),
}

/// Gated delta net weights.
#[derive(Debug)]
pub(crate) struct GatedDelta {
    pub(crate) spec: GatedDeltaSpec,
    pub(crate) common: Recurrent,
    pub(crate) decay: Matrix,
    pub(crate) out_gate: Matrix,
}

/// A low-rank branch beside the mixer.
#[derive(Debug)]
pub(crate) struct Laurel {
    pub(crate) left: Matrix,
    pub(crate) right: Matrix,
    pub(crate) norm: Norm,
}

/// What works on each position: dense FFNs, and a router where some of them take turns.
#[derive(Debug)]
pub(crate) struct Ffn {
    /// In the order in which features are numbered.
    pub(crate) parts: Vec<DenseFfn>,
    /// Features of all parts.
    pub(crate) n_features: usize,
    pub(crate) moe: Option<Moe>,
}

/// A dense FFN.
#[derive(Debug)]
pub(crate) struct DenseFfn {
    pub(crate) part: FfnPart,
    /// The number of its first feature.
    pub(crate) first_feature: usize,
    pub(crate) spec: FfnSpec,
    pub(crate) gate: Option<Matrix>,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) gate_bias: Option<Vec<f32>>,
    pub(crate) up_bias: Option<Vec<f32>>,
    pub(crate) down_bias: Option<Vec<f32>>,
}

/// A router, and what stands around the experts.
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) spec: MoeSpec,
    pub(crate) router: Matrix,
    pub(crate) router_norm: Option<Norm>,
    pub(crate) router_bias: Option<Vec<f32>>,
    pub(crate) selection_bias: Option<Vec<f32>>,
    pub(crate) expert_scale: Option<Vec<f32>>,
    pub(crate) shared_router: Option<Matrix>,
    pub(crate) beside: Option<BesideDense>,
}

/// Norms of experts that run beside a dense FFN.
#[derive(Debug)]
pub(crate) struct BesideDense {
    pub(crate) dense_post: Norm,
    pub(crate) experts_pre: Norm,
    pub(crate) experts_post: Norm,
}

/// A layer's share of the per-layer embeddings.
#[derive(Debug)]
pub(crate) struct PerLayer {
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) post_norm: Norm,
}

/// A layer's mixture of residual streams; coefficients are `[out, in]`.
#[derive(Debug)]
pub(crate) struct AltUp {
    pub(crate) router_norm: Norm,
    pub(crate) router: Matrix,
    pub(crate) predict: Vec<f32>,
    pub(crate) correct: Vec<f32>,
    pub(crate) correct_scale: Option<Vec<f32>>,
}
