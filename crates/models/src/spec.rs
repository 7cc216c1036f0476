//! `ModelSpec`: a model as plain data.
//!
//! Every fact that changes the forward pass is spelled out here, per layer, so that the engine asks no question about a
//! family and a vindex can carry the whole answer. It is not a place for names of tensors (see [`crate::roles`]) nor for
//! facts about text (see [`crate::tokenizer`]).
//!
//! There is no `Default` anywhere: a reader states each field or does not compile.

use serde::{Deserialize, Serialize};

/// A model as plain data; one value per fact, expanded per layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Row of the family table: decides tensor names, never arithmetic.
    pub family: String,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Rows of the embedding and of the head.
    pub d_vocab: u32,
    /// Longest sequence the model was made for, in tokens.
    pub n_ctx: u32,
    /// How token ids enter the residual stream.
    pub embedding: EmbeddingSpec,
    /// One entry per layer, in order.
    pub layers: Vec<LayerSpec>,
    /// The norm before the head.
    pub final_norm: NormSpec,
    /// How the residual stream becomes logits.
    pub head: HeadSpec,
    /// Parallel residual streams, if the model has more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altup: Option<AltUpSpec>,
}

/// How token ids enter the residual stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSpec {
    /// Factor on the embedding row.
    pub multiplier: f32,
    /// Rows of a learned position table that is added, if the model has one.
    pub learned_positions: Option<u32>,
    /// Per-layer embeddings mixed in after each layer's FFN, if the model has them.
    pub per_layer: Option<PerLayerEmbedding>,
}

/// Per-layer embeddings: a second table read once per token, one slice per layer.
///
/// `input[l] = input_multiplier * (token_multiplier * table[id][l] + norm(context_multiplier * (W x0))[l])`, where `x0` is
/// what enters layer 0; after a layer, `x += post_norm(P (act(G x) * input[l]))`. An id that the table has no row for
/// takes row 0. With parallel streams, `x` is read from the active one (times its stored scale, if there is one) and the
/// result is added to all streams but the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerEmbedding {
    /// Width of one layer's slice.
    pub width: u32,
    /// Rows of the table.
    pub d_vocab: u32,
    /// Activation of the gate that lets the slice in.
    pub activation: Activation,
    /// Factor on a row of the table.
    pub token_multiplier: f32,
    /// Factor on the projection of what enters layer 0.
    pub context_multiplier: f32,
    /// Factor on the sum of the two.
    pub input_multiplier: f32,
    /// Norm on each slice of the projection.
    pub projection_norm: NormSpec,
    /// Norm on what a layer's slice adds.
    pub post_norm: NormSpec,
}

/// Alternating updates (arXiv:2301.13310): the residual stream is a stack of streams; a layer works on one of them and the
/// others follow by a learned, input-dependent mixture.
///
/// Streams after the first begin as projections of the embedding, rescaled to its root mean square. In a layer, with
/// `m(x) = tanh(R (router_multiplier * norm(x)))`: `p[i] = h[i] + sum_j (P m(h[active]))[i, j] h[j]`, the layer makes `z`
/// of `p[active]`, and `h[i] = p[i] + (1 + (C m(z))[i]) (z - p[active])`. After the last layer each stream but the first
/// goes through its projection back, is rescaled to the first one's root mean square, and the mean of all enters the
/// final norm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AltUpSpec {
    /// Streams.
    pub n_streams: u32,
    /// The one that layers work on.
    pub active: u32,
    /// Norm before the router that mixes streams.
    pub router_norm: NormSpec,
    /// Factor on what that norm returns.
    pub router_multiplier: f32,
    /// Least mean square of a stream that is rescaled.
    pub magnitude_floor: f32,
    /// Whether a stored vector multiplies the active stream before per-layer embeddings read it.
    pub correct_scale: bool,
}

/// One decoder layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// Where the norms and the residual additions sit.
    pub block: BlockShape,
    /// What mixes positions.
    pub mixer: Mixer,
    /// What works on each position.
    pub ffn: Ffn,
    /// Factor on each branch before it is added to the residual stream.
    pub residual_multiplier: f32,
    /// Whether the whole residual stream is multiplied by a stored scalar at the end of the layer.
    pub layer_scalar: bool,
    /// A low-rank branch beside the mixer, if the layer has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub laurel: Option<LaurelSpec>,
}

/// Learned augmented residual layer (arXiv:2411.07501): `y = n + norm(R (L n))` of the mixer's normalized input `n`, averaged
/// with the mixer's result: `x = (x + mixer + y) / sqrt 2`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaurelSpec {
    /// Rank of the branch.
    pub rank: u32,
    /// Norm on the branch.
    pub norm: NormSpec,
}

/// Where a layer's norms sit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockShape {
    /// `x += mixer(norm(x)); x += ffn(norm(x))`.
    PreNorm {
        /// Before the mixer.
        mixer: NormSpec,
        /// Before the FFN.
        ffn: NormSpec,
    },
    /// As `PreNorm`, with a norm on each branch's output too.
    Sandwich {
        /// Before the mixer.
        mixer: NormSpec,
        /// On the mixer's output.
        mixer_post: NormSpec,
        /// Before the FFN.
        ffn: NormSpec,
        /// On the FFN's output.
        ffn_post: NormSpec,
    },
    /// `x += norm(mixer(x)); x += norm(ffn(x))`.
    PostNorm {
        /// On the mixer's output.
        mixer_post: NormSpec,
        /// On the FFN's output.
        ffn_post: NormSpec,
    },
    /// `x += mixer(norm(x)) + ffn(norm(x))`, one norm for both.
    Parallel {
        /// Before both branches.
        norm: NormSpec,
    },
}

/// A normalization over the last axis; statistics are taken in f32.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormSpec {
    /// Which statistics are removed.
    pub kind: NormKind,
    /// Added to the variance or mean square.
    pub eps: f32,
    /// What multiplies the normalized vector.
    pub weight: NormWeight,
}

/// Which statistics a norm removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Divide by the root mean square (arXiv:1910.07467).
    Rms,
    /// Subtract the mean, divide by the standard deviation.
    Layer,
    /// As `Layer`, with an additive bias.
    LayerWithBias,
}

/// What multiplies a normalized vector, and how a Hugging Face checkpoint of the family stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormWeight {
    /// Nothing multiplies it.
    Absent,
    /// The stored vector.
    Plain,
    /// One plus the stored vector; GGUF files already hold the sum.
    PlusOne,
}

/// What mixes positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Mixer {
    /// Softmax attention with grouped K/V heads.
    Attention(AttentionSpec),
    /// Multi-head latent attention (arXiv:2405.04434).
    Mla(MlaSpec),
    /// Kimi delta attention.
    Kda(KdaSpec),
    /// Gated delta net (arXiv:2412.06464).
    GatedDelta(GatedDeltaSpec),
}

/// Softmax attention with grouped K/V heads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub d_head: u32,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Which projections carry a bias.
    pub bias: AttentionBias,
    /// Norm on queries and keys before RoPE.
    pub qk_norm: QkNorm,
    /// Norm on values.
    pub v_norm: Option<NormSpec>,
    /// Rotation of queries and keys; `None` where the layer has no positions.
    pub rope: Option<RopeSpec>,
    /// Keys visible to a query, itself included; `None` is all earlier ones.
    pub window: Option<u32>,
    /// `c * tanh(s / c)` on scores before the mask.
    pub softcap: Option<f32>,
    /// Whether a learned logit per head joins the softmax.
    pub sinks: bool,
    /// Clamp on q, k and v.
    pub clip_qkv: Option<f32>,
    /// Where keys and values come from.
    pub kv: KvSource,
    /// Whether a sigmoid gate, projected like the queries, multiplies the weighted values.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gated: bool,
}

/// Which attention projections carry a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionBias {
    /// None of them.
    Absent,
    /// Queries, keys and values.
    Qkv,
    /// Queries, keys, values and the output.
    Qkvo,
}

/// Norm on queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "norm", rename_all = "snake_case")]
pub enum QkNorm {
    /// No norm.
    Absent,
    /// Over each head, with one weight vector of `d_head` shared by the heads.
    PerHead(NormSpec),
    /// Over the whole projection, before it is split into heads.
    FullWidth(NormSpec),
}

/// Where a layer's keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "layer", rename_all = "snake_case")]
pub enum KvSource {
    /// Its own projections.
    Own,
    /// Its own key projection serves as value too.
    KeyIsValue,
    /// The keys and values of an earlier layer.
    SharedFrom(u32),
}

/// Rotary position embedding (arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading dimensions of a head that rotate.
    pub dims: u32,
    /// Which dimensions form a pair, in the canonical row order of the weights.
    pub layout: RopeLayout,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// Which dimensions RoPE rotates together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// `(i, i + dims / 2)`.
    Split,
    /// `(2 i, 2 i + 1)`.
    Interleaved,
}

/// How RoPE frequencies are stretched; formulas are at [`RopeSpec::frequencies`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Not at all.
    Unscaled,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3's blend between scaled and unscaled by wavelength.
    Llama3 {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context the model was first trained with.
        original_context: u32,
    },
    /// YaRN (arXiv:2309.00071).
    Yarn {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is scaled.
        beta_slow: f64,
        /// Context the model was first trained with.
        original_context: u32,
        /// Factor on cos and sin.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// One divisor per frequency, as GGUF files store `rope_freqs`.
    Divisors {
        /// One per pair.
        divisors: Vec<f32>,
    },
    /// Two lists of divisors, chosen by the length of the sequence.
    LongRope {
        /// Up to the original context.
        short: Vec<f64>,
        /// Beyond it.
        long: Vec<f64>,
        /// Context the model was first trained with.
        original_context: u32,
        /// Factor on cos and sin.
        attention_factor: f64,
    },
    /// Only the first part of the pairs turns, with the full head as denominator.
    Proportional {
        /// Pairs that turn.
        live_pairs: u32,
    },
}

/// Multi-head latent attention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlaSpec {
    /// Query heads.
    pub n_heads: u32,
    /// Rank of the query latent, if queries are low-rank.
    pub q_rank: Option<u32>,
    /// Rank of the K/V latent.
    pub kv_rank: u32,
    /// Head width without positions.
    pub d_nope: u32,
    /// Head width with positions.
    pub d_rope: u32,
    /// Width of a value head.
    pub d_value: u32,
    /// Factor on scores.
    pub scale: f32,
    /// Norm of the latents.
    pub latent_norm: NormSpec,
    /// Rotation; `None` where the layer has no positions.
    pub rope: Option<RopeSpec>,
}

/// Kimi delta attention: a recurrent state per head, decayed per channel.
///
/// Queries, keys and values pass a causal depthwise convolution and SiLU; queries and keys are then divided by
/// `sqrt(sum of squares + qk_eps)` and queries by `sqrt(d_head)`. Per head, with `b = sigmoid(B x)` and, per channel of the
/// key, `g = rate * softplus(D x + bias)`: `S = exp(g) S`, `S += k (b (v - S^T k))^T`, `o = S^T q`; the head puts out
/// `norm(o) * sigmoid(gate)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KdaSpec {
    /// Heads.
    pub n_heads: u32,
    /// Width of a head's keys and values.
    pub d_head: u32,
    /// Width of the causal convolution.
    pub conv_width: u32,
    /// Norm on the output of a head.
    pub out_norm: NormSpec,
    /// Added to the sum of squares that queries and keys are divided by the root of.
    pub qk_eps: f32,
}

/// Gated delta net: a recurrent state per head, decayed per head.
///
/// As [`KdaSpec`], with one decay per value head and `norm(o) * silu(gate)`; value heads `i r` to `i r + r - 1` belong to
/// key head `i`, where `r` is the number of value heads per key head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDeltaSpec {
    /// Key heads.
    pub n_key_heads: u32,
    /// Value heads; a multiple of the key heads.
    pub n_value_heads: u32,
    /// Width of a key head.
    pub d_key: u32,
    /// Width of a value head.
    pub d_value: u32,
    /// Width of the causal convolution.
    pub conv_width: u32,
    /// Norm on the output of a head.
    pub out_norm: NormSpec,
    /// Added to the sum of squares that queries and keys are divided by the root of.
    pub qk_eps: f32,
}

/// What works on each position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ffn {
    /// `down(act(gate x) * up x)`.
    Gated(FfnSpec),
    /// `down(act(up x))`.
    Plain(FfnSpec),
    /// A router over experts.
    Moe(MoeSpec),
}

/// A dense FFN.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FfnSpec {
    /// Neurons, that is, features.
    pub d_mlp: u32,
    /// Nonlinearity on the gate (gated) or on the only projection (plain).
    pub activation: Activation,
    /// Whether the projections carry biases.
    pub bias: bool,
    /// `c` where the gate is `max(gate - mean(gate) - c * std(gate), 0)` before the activation, with the standard deviation
    /// of the population; `None` takes it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_cutoff: Option<f32>,
}

/// A router over experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoeSpec {
    /// Experts.
    pub n_experts: u32,
    /// Experts that run for a token.
    pub n_active: u32,
    /// Every expert's FFN.
    pub expert: FfnSpec,
    /// How logits become scores.
    pub score: RouterScore,
    /// How experts are chosen.
    pub select: RouterSelect,
    /// Whether the chosen weights are divided by their sum, and what is added to that sum.
    pub renormalize: Option<f32>,
    /// Whether a stored bias joins the logits.
    pub router_bias: bool,
    /// Whether a stored bias joins the scores for the choice only.
    pub selection_bias: bool,
    /// Factor on the weights.
    pub scaling: f32,
    /// Experts that always run, as one FFN.
    pub shared: Option<SharedExpert>,
    /// A dense FFN that runs beside the experts, with norms of its own.
    pub parallel_dense: Option<ParallelDense>,
    /// What the router reads.
    pub router_input: RouterInput,
    /// Whether a stored factor per expert multiplies its weight.
    pub expert_scale: bool,
}

/// What a router reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RouterInput {
    /// The FFN's normalized input.
    FfnInput,
    /// The residual stream through a norm of its own, times a stored vector and `multiplier`.
    Scaled {
        /// The norm, whose weight is the stored vector.
        norm: NormSpec,
        /// Factor on the result.
        multiplier: f32,
    },
}

/// A dense FFN beside the experts: `y = dense_post(dense(ffn_norm(x))) + experts_post(experts(experts_pre(x)))`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParallelDense {
    /// The dense FFN.
    pub ffn: FfnSpec,
    /// On the dense FFN's output.
    pub dense_post: NormSpec,
    /// Before the experts.
    pub experts_pre: NormSpec,
    /// On the experts' output.
    pub experts_post: NormSpec,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// The logits choose; softmax over the chosen ones only gives the weights.
    SoftmaxOfChosen,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RouterSelect {
    /// The highest scores.
    TopK,
    /// The highest scores within the best groups.
    Grouped {
        /// Groups of equal size.
        n_groups: u32,
        /// Groups kept.
        n_kept: u32,
        /// Scores summed to rank a group; 1 is its maximum.
        group_top: u32,
    },
}

/// An expert that always runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpert {
    /// Its FFN.
    pub ffn: FfnSpec,
    /// Whether a sigmoid gate of its own multiplies it.
    pub gated: bool,
}

/// Nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))` (arXiv:1606.08415).
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// GPT-OSS: gate and up clamped to `limit`, `(up + 1) * gate * sigmoid(alpha * gate)`.
    ClampedGlu {
        /// Slope inside the sigmoid.
        alpha: f32,
        /// Clamp.
        limit: f32,
    },
}

/// How the residual stream becomes logits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSpec {
    /// Whether the embedding serves as head.
    pub tied: bool,
    /// Whether a bias is added.
    pub bias: bool,
    /// Factor on the logits.
    pub scale: f32,
    /// `c * tanh(l / c)` on the logits.
    pub softcap: Option<f32>,
}

/// A fact that manifests of before it leave out.
fn is_false(flag: &bool) -> bool {
    !flag
}

impl ModelSpec {
    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Features of a layer: `d_mlp` of a dense FFN; in a MoE layer those of expert 0, of expert 1 and so on, then those of
    /// the shared expert, then those of the dense FFN beside them.
    pub fn n_features(&self, layer: usize) -> Option<u64> {
        Some(
            self.layers
                .get(layer)?
                .ffn
                .parts()
                .map(|(_, ffn)| u64::from(ffn.d_mlp))
                .sum(),
        )
    }
}

/// A dense FFN inside a layer, in the order in which their features are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FfnPart {
    /// The layer's dense FFN, alone or beside experts.
    Dense,
    /// A routed expert.
    Expert(u32),
    /// The expert that always runs.
    Shared,
}

impl Ffn {
    /// The dense FFNs of the layer, in the order in which their features are numbered.
    pub fn parts(&self) -> impl Iterator<Item = (FfnPart, &FfnSpec)> {
        let (experts, shared, dense) = match self {
            Self::Gated(ffn) | Self::Plain(ffn) => (None, None, Some(ffn)),
            Self::Moe(moe) => (
                Some(moe),
                moe.shared.as_ref().map(|shared| &shared.ffn),
                moe.parallel_dense.as_ref().map(|dense| &dense.ffn),
            ),
        };
        let experts = experts.into_iter().flat_map(|moe| {
            (0..moe.n_experts).map(|expert| (FfnPart::Expert(expert), &moe.expert))
        });
        experts
            .chain(shared.map(|ffn| (FfnPart::Shared, ffn)))
            .chain(dense.map(|ffn| (FfnPart::Dense, ffn)))
    }

    /// Whether the dense FFNs have a gate beside the up projection.
    pub fn is_gated(&self) -> bool {
        match self {
            Self::Gated(_) | Self::Moe(_) => true,
            Self::Plain(_) => false,
        }
    }
}
