//! What a tensor is for, and which tensors a [`ModelSpec`] needs.
//!
//! A role is the engine's name for a tensor; families map roles to the names that containers use. The list of needed
//! tensors is derived from the spec alone, so accounting cannot disagree with the forward pass.

use std::fmt;

use crate::spec::{
    AttentionBias, AttentionSpec, BlockShape, Ffn, FfnPart, FfnSpec, KvSource, LayerSpec, Mixer,
    ModelSpec, MoeSpec, NormKind, NormSpec, NormWeight, QkNorm, RouterInput,
};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorRole {
    /// `[d_vocab, d_model]`.
    TokenEmbedding,
    /// `[n_positions, d_model]`, added to the embedding.
    PositionEmbedding,
    /// `[per_layer.d_vocab, n_layers * per_layer.width]`.
    PerLayerEmbedding,
    /// `[n_layers * per_layer.width, d_model]`.
    PerLayerProjection,
    /// `[per_layer.width]`.
    PerLayerProjectionNorm,
    /// `[d_model, d_model]`: makes stream `i + 1` of the embedding.
    AltUpProjection(u32),
    /// A tensor of one layer.
    Layer(u32, LayerTensor),
    /// A tensor of one routed expert of one layer: layer, expert, tensor.
    Expert(u32, u32, ExpertTensor),
    /// `[d_model, d_model]`: takes stream `i + 1` back before the final norm.
    AltUpUnembedding(u32),
    /// `[d_model]`.
    FinalNorm,
    /// `[d_model]`.
    FinalNormBias,
    /// `[d_vocab, d_model]`, absent where the embedding serves as head.
    Head,
    /// `[d_vocab]`.
    HeadBias,
}

macro_rules! tensors {
    ($(#[$outer:meta])* $name:ident { $($(#[$meta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$meta])* $variant,)* }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name used in messages.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

tensors! {
    /// A tensor of one layer. A mixer's widths are those of its kind: see [`needed_tensors`].
    LayerTensor {
        /// Norm before the mixer, `[d_model]`.
        MixerNorm = "mixer_norm",
        /// Its bias.
        MixerNormBias = "mixer_norm.bias",
        /// Norm on the mixer's output, `[d_model]`.
        MixerPostNorm = "mixer_post_norm",
        /// Its bias.
        MixerPostNormBias = "mixer_post_norm.bias",
        /// Queries, `[n_heads * d_head, d_model]`.
        Q = "attn.q",
        /// Keys, `[n_kv_heads * d_head, d_model]`.
        K = "attn.k",
        /// Values, `[n_kv_heads * d_value, d_model]`.
        V = "attn.v",
        /// Mixer output, `[d_model, n_heads * d_value]`.
        O = "attn.o",
        /// Bias of the queries.
        QBias = "attn.q.bias",
        /// Bias of the keys.
        KBias = "attn.k.bias",
        /// Bias of the values.
        VBias = "attn.v.bias",
        /// Bias of the mixer output.
        OBias = "attn.o.bias",
        /// Norm on queries.
        QNorm = "attn.q_norm",
        /// Its bias.
        QNormBias = "attn.q_norm.bias",
        /// Norm on keys.
        KNorm = "attn.k_norm",
        /// Its bias.
        KNormBias = "attn.k_norm.bias",
        /// Norm on values.
        VNorm = "attn.v_norm",
        /// Its bias.
        VNormBias = "attn.v_norm.bias",
        /// Logit per head that joins the softmax, `[n_heads]`.
        Sinks = "attn.sinks",
        /// Gate on the mixer's values before the output, as wide as they are.
        OutGate = "attn.out_gate",
        /// Down projection of a low-rank gate, `[d_head, d_model]`.
        OutGateA = "attn.out_gate_a",
        /// Up projection of a low-rank gate, `[n_heads * d_head, d_head]`.
        OutGateB = "attn.out_gate_b",
        /// Query latent, `[q_rank, d_model]`.
        QA = "attn.q_a",
        /// Norm of the query latent, `[q_rank]`.
        QANorm = "attn.q_a_norm",
        /// Its bias.
        QANormBias = "attn.q_a_norm.bias",
        /// Queries from their latent, `[n_heads * (d_nope + d_rope), q_rank]`.
        QB = "attn.q_b",
        /// K/V latent and the shared rotated key, `[kv_rank + d_rope, d_model]`.
        KvA = "attn.kv_a",
        /// Norm of the K/V latent, `[kv_rank]`.
        KvANorm = "attn.kv_a_norm",
        /// Its bias.
        KvANormBias = "attn.kv_a_norm.bias",
        /// Keys and values from their latent, per head `d_nope` rows of key, then `d_value` of value.
        KvB = "attn.kv_b",
        /// Causal convolution over queries, `[width of q, conv_width]`.
        ConvQ = "attn.conv_q",
        /// The same over keys.
        ConvK = "attn.conv_k",
        /// The same over values.
        ConvV = "attn.conv_v",
        /// Strength of the update, `[n_heads, d_model]`.
        Beta = "attn.beta",
        /// Decay of the state, `[n_heads, d_model]`.
        Decay = "attn.decay",
        /// Down projection of a low-rank decay, `[d_head, d_model]`.
        DecayA = "attn.decay_a",
        /// Up projection of a low-rank decay, `[n_heads * d_head, d_head]`.
        DecayB = "attn.decay_b",
        /// Rate of the decay, `-exp(A_log)`, `[n_heads]`.
        DecayRate = "attn.decay_rate",
        /// Bias of the decay before the softplus.
        DecayBias = "attn.decay.bias",
        /// Norm on the output of a recurrent head, `[d_value]`.
        OutNorm = "attn.out_norm",
        /// Its bias.
        OutNormBias = "attn.out_norm.bias",
        /// Low-rank branch beside the mixer, down, `[rank, d_model]`.
        LaurelLeft = "laurel.left",
        /// Low-rank branch beside the mixer, up, `[d_model, rank]`.
        LaurelRight = "laurel.right",
        /// Norm on that branch, `[d_model]`.
        LaurelNorm = "laurel.norm",
        /// Its bias.
        LaurelNormBias = "laurel.norm.bias",
        /// Norm before the FFN, `[d_model]`.
        FfnNorm = "ffn_norm",
        /// Its bias.
        FfnNormBias = "ffn_norm.bias",
        /// Norm on the FFN's output, `[d_model]`.
        FfnPostNorm = "ffn_post_norm",
        /// Its bias.
        FfnPostNormBias = "ffn_post_norm.bias",
        /// FFN gate, `[d_mlp, d_model]`.
        Gate = "mlp.gate",
        /// FFN up, `[d_mlp, d_model]`.
        Up = "mlp.up",
        /// FFN down, `[d_model, d_mlp]`.
        Down = "mlp.down",
        /// Bias of the gate.
        GateBias = "mlp.gate.bias",
        /// Bias of the up projection.
        UpBias = "mlp.up.bias",
        /// Bias of the down projection.
        DownBias = "mlp.down.bias",
        /// Router of a mixture of experts, `[n_experts, d_model]`.
        Router = "moe.router",
        /// Bias of the router's logits, `[n_experts]`.
        RouterBias = "moe.router.bias",
        /// Bias of the scores that choose, `[n_experts]`.
        SelectionBias = "moe.selection_bias",
        /// Weight of the norm on the router's own input, `[d_model]`.
        RouterNorm = "moe.router_norm",
        /// Its bias.
        RouterNormBias = "moe.router_norm.bias",
        /// Factor on each expert's weight, `[n_experts]`.
        ExpertScale = "moe.expert_scale",
        /// Gate of the expert that always runs.
        SharedGate = "moe.shared.gate",
        /// Up projection of the expert that always runs.
        SharedUp = "moe.shared.up",
        /// Down projection of the expert that always runs.
        SharedDown = "moe.shared.down",
        /// Bias of its gate.
        SharedGateBias = "moe.shared.gate.bias",
        /// Bias of its up projection.
        SharedUpBias = "moe.shared.up.bias",
        /// Bias of its down projection.
        SharedDownBias = "moe.shared.down.bias",
        /// Gate on that expert as a whole, `[1, d_model]`.
        SharedRouter = "moe.shared.router",
        /// Norm on the output of the dense FFN beside the experts, `[d_model]`.
        DensePostNorm = "moe.dense_post_norm",
        /// Its bias.
        DensePostNormBias = "moe.dense_post_norm.bias",
        /// Norm before the experts where a dense FFN runs beside them, `[d_model]`.
        ExpertsNorm = "moe.experts_norm",
        /// Its bias.
        ExpertsNormBias = "moe.experts_norm.bias",
        /// Norm on the experts' output where a dense FFN runs beside them, `[d_model]`.
        ExpertsPostNorm = "moe.experts_post_norm",
        /// Its bias.
        ExpertsPostNormBias = "moe.experts_post_norm.bias",
        /// Gate that lets the per-layer embedding in, `[per_layer.width, d_model]`.
        PerLayerGate = "per_layer.gate",
        /// Back to the residual stream, `[d_model, per_layer.width]`.
        PerLayerUp = "per_layer.up",
        /// Norm on what the per-layer embedding adds, `[d_model]`.
        PerLayerPostNorm = "per_layer.post_norm",
        /// Its bias.
        PerLayerPostNormBias = "per_layer.post_norm.bias",
        /// Corrections of all streams from the active one, `[n_streams, n_streams]`.
        AltUpCorrect = "altup.correct",
        /// Vector on the corrected active stream, `[d_model]`.
        AltUpCorrectScale = "altup.correct_scale",
        /// Predictions of all streams, `[n_streams * n_streams, n_streams]`.
        AltUpPredict = "altup.predict",
        /// Router of the streams, `[n_streams, d_model]`.
        AltUpRouter = "altup.router",
        /// Norm before that router, `[d_model]`.
        AltUpRouterNorm = "altup.router_norm",
        /// Its bias.
        AltUpRouterNormBias = "altup.router_norm.bias",
        /// Factor on the residual stream at the end of the layer, `[1]`.
        LayerScalar = "layer_scalar",
    }
}

tensors! {
    /// A tensor of one routed expert.
    ExpertTensor {
        /// Gate, `[d_expert, d_model]`.
        Gate = "gate",
        /// Up projection, `[d_expert, d_model]`.
        Up = "up",
        /// Down projection, `[d_model, d_expert]`.
        Down = "down",
        /// Bias of the gate.
        GateBias = "gate.bias",
        /// Bias of the up projection.
        UpBias = "up.bias",
        /// Bias of the down projection.
        DownBias = "down.bias",
    }
}

impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenEmbedding => f.write_str("token_embedding"),
            Self::PositionEmbedding => f.write_str("position_embedding"),
            Self::PerLayerEmbedding => f.write_str("per_layer_embedding"),
            Self::PerLayerProjection => f.write_str("per_layer_projection"),
            Self::PerLayerProjectionNorm => f.write_str("per_layer_projection_norm"),
            Self::AltUpProjection(i) => write!(f, "altup_projection {i}"),
            Self::AltUpUnembedding(i) => write!(f, "altup_unembedding {i}"),
            Self::FinalNorm => f.write_str("final_norm"),
            Self::FinalNormBias => f.write_str("final_norm.bias"),
            Self::Head => f.write_str("head"),
            Self::HeadBias => f.write_str("head.bias"),
            Self::Layer(layer, tensor) => write!(f, "layer {layer} {}", tensor.name()),
            Self::Expert(layer, expert, tensor) => {
                write!(f, "layer {layer} expert {expert} {}", tensor.name())
            }
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
    /// How a family's Hugging Face checkpoints store its values.
    pub stored: StoredValue,
}

/// How a Hugging Face checkpoint stores the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredValue {
    /// As they act.
    Effective,
    /// One less than they act.
    MinusOne,
    /// The logarithm of their negative.
    LogOfNegative,
}

/// A spec that no model can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}: {what}")]
pub struct InvalidSpec {
    /// The layer.
    pub layer: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// Every tensor the spec needs, in the order they are used.
///
/// # Errors
/// Names the first layer whose numbers contradict each other.
pub fn needed_tensors(spec: &ModelSpec) -> Result<Vec<Needed>, InvalidSpec> {
    let d_model = u64::from(spec.d_model);
    let vocab = vec![u64::from(spec.d_vocab), d_model];
    let n_layers = spec.layers.len() as u64;
    let mut list = Needs(vec![]);
    list.plain(TensorRole::TokenEmbedding, vocab.clone());
    if let Some(n) = spec.embedding.learned_positions {
        list.plain(TensorRole::PositionEmbedding, vec![u64::from(n), d_model]);
    }
    if let Some(per_layer) = &spec.embedding.per_layer {
        let width = u64::from(per_layer.width);
        let rows = u64::from(per_layer.d_vocab);
        list.plain(TensorRole::PerLayerEmbedding, vec![rows, n_layers * width]);
        list.plain(
            TensorRole::PerLayerProjection,
            vec![n_layers * width, d_model],
        );
        list.norm(
            TensorRole::PerLayerProjectionNorm,
            None,
            width,
            per_layer.projection_norm,
        );
    }
    for i in 0..extra_streams(spec) {
        list.plain(TensorRole::AltUpProjection(i), vec![d_model, d_model]);
    }
    for (idx, layer) in spec.layers.iter().enumerate() {
        check_layer(spec, idx, layer)?;
        layer_tensors(&mut list, spec, idx, layer);
    }
    for i in 0..extra_streams(spec) {
        list.plain(TensorRole::AltUpUnembedding(i), vec![d_model, d_model]);
    }
    let bias = Some(TensorRole::FinalNormBias);
    list.norm(TensorRole::FinalNorm, bias, d_model, spec.final_norm);
    if !spec.head.tied {
        list.plain(TensorRole::Head, vocab);
    }
    if spec.head.bias {
        list.plain(TensorRole::HeadBias, vec![u64::from(spec.d_vocab)]);
    }
    Ok(list.0)
}

fn extra_streams(spec: &ModelSpec) -> u32 {
    spec.altup
        .map_or(0, |altup| altup.n_streams.saturating_sub(1))
}

/// Heads of a layer; far above any model, far below what exhausts memory when each is laid out.
const HEADS_MAX: u32 = 1 << 16;

/// Experts of a layer, for the same reason.
const EXPERTS_MAX: u32 = 1 << 16;

/// Numbers of a layer that the forward pass divides by or indexes with.
fn check_layer(spec: &ModelSpec, idx: usize, layer: &LayerSpec) -> Result<(), InvalidSpec> {
    let bad = |what| Err(InvalidSpec { layer: idx, what });
    let heads = match &layer.mixer {
        Mixer::Attention(attn) => attn.n_heads,
        Mixer::Mla(mla) => mla.n_heads,
        Mixer::Kda(kda) => kda.n_heads,
        Mixer::GatedDelta(delta) => delta.n_value_heads.max(delta.n_key_heads),
    };
    let n_experts = match &layer.ffn {
        Ffn::Moe(moe) => moe.n_experts,
        Ffn::Gated(_) | Ffn::Plain(_) => 0,
    };
    if heads == 0 || heads > HEADS_MAX {
        return bad("no heads, or more than any model has");
    }
    if n_experts > EXPERTS_MAX {
        return bad("more experts than any model has");
    }
    match &layer.mixer {
        Mixer::Attention(attn) => {
            if attn.n_kv_heads == 0 || !attn.n_heads.is_multiple_of(attn.n_kv_heads) {
                return bad("the number of K/V heads does not divide the number of heads");
            }
            if attn
                .rope
                .as_ref()
                .is_some_and(|rope| rope.dims > attn.d_head)
            {
                return bad("RoPE turns more dimensions than a head has");
            }
            if let KvSource::SharedFrom(donor) = attn.kv {
                let donor = donor as usize;
                let same = donor < idx
                    && match &spec.layers[donor].mixer {
                        Mixer::Attention(other) => {
                            (other.n_kv_heads, other.d_head) == (attn.n_kv_heads, attn.d_head)
                                && !matches!(other.kv, KvSource::SharedFrom(_))
                        }
                        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => false,
                    };
                if !same {
                    return bad("keys and values come from a layer that has none of this shape");
                }
            }
        }
        Mixer::Mla(mla) => {
            if mla.rope.as_ref().is_some_and(|rope| rope.dims > mla.d_rope) {
                return bad("RoPE turns more dimensions than the rotated part has");
            }
        }
        Mixer::Kda(kda) => {
            if kda.conv_width == 0 {
                return bad("a convolution of no width");
            }
        }
        Mixer::GatedDelta(delta) => {
            if delta.n_key_heads == 0 || !delta.n_value_heads.is_multiple_of(delta.n_key_heads) {
                return bad("the number of key heads does not divide the number of value heads");
            }
            if delta.conv_width == 0 {
                return bad("a convolution of no width");
            }
        }
    }
    if let Ffn::Moe(moe) = &layer.ffn
        && (moe.n_active == 0 || moe.n_active > moe.n_experts)
    {
        return bad("more experts run than there are, or none");
    }
    if spec
        .altup
        .is_some_and(|altup| altup.active >= altup.n_streams)
    {
        return bad("the active stream is not one of the streams");
    }
    Ok(())
}

struct Needs(Vec<Needed>);

impl Needs {
    fn plain(&mut self, role: TensorRole, shape: Vec<u64>) {
        self.push(role, shape, None, StoredValue::Effective);
    }

    fn push(
        &mut self,
        role: TensorRole,
        shape: Vec<u64>,
        rope_head: Option<u32>,
        stored: StoredValue,
    ) {
        self.0.push(Needed {
            role,
            shape,
            rope_head,
            stored,
        });
    }

    /// A norm's weight and, where its kind has one, its bias; `bias` is `None` where no family has one.
    fn norm(&mut self, role: TensorRole, bias: Option<TensorRole>, width: u64, norm: NormSpec) {
        match norm.weight {
            NormWeight::Absent => {}
            NormWeight::Plain => self.push(role, vec![width], None, StoredValue::Effective),
            NormWeight::PlusOne => self.push(role, vec![width], None, StoredValue::MinusOne),
        }
        match (norm.kind, bias) {
            (NormKind::LayerWithBias, Some(bias)) => self.plain(bias, vec![width]),
            (NormKind::LayerWithBias, None) | (NormKind::Rms | NormKind::Layer, _) => {}
        }
    }
}

/// The needs of one layer.
struct LayerNeeds<'a> {
    list: &'a mut Needs,
    layer: u32,
    d_model: u64,
}

impl LayerNeeds<'_> {
    fn plain(&mut self, tensor: LayerTensor, shape: Vec<u64>) {
        self.list
            .plain(TensorRole::Layer(self.layer, tensor), shape);
    }

    fn roped(&mut self, tensor: LayerTensor, shape: Vec<u64>, d_head: u32) {
        let role = TensorRole::Layer(self.layer, tensor);
        self.list
            .push(role, shape, Some(d_head), StoredValue::Effective);
    }

    fn norm(&mut self, tensor: LayerTensor, width: u64, norm: NormSpec) {
        let bias = norm_bias(tensor).map(|bias| TensorRole::Layer(self.layer, bias));
        self.list
            .norm(TensorRole::Layer(self.layer, tensor), bias, width, norm);
    }

    /// Gate, up and down of a dense FFN, with their biases.
    fn ffn(&mut self, ffn: &FfnSpec, gated: bool, names: [LayerTensor; 6]) {
        let (d_model, d_mlp) = (self.d_model, u64::from(ffn.d_mlp));
        let [gate, up, down, gate_bias, up_bias, down_bias] = names;
        if gated {
            self.plain(gate, vec![d_mlp, d_model]);
        }
        self.plain(up, vec![d_mlp, d_model]);
        self.plain(down, vec![d_model, d_mlp]);
        if ffn.bias {
            if gated {
                self.plain(gate_bias, vec![d_mlp]);
            }
            self.plain(up_bias, vec![d_mlp]);
            self.plain(down_bias, vec![d_model]);
        }
    }
}

/// Norms of a layer, weight and bias.
const NORMS: &[(LayerTensor, LayerTensor)] = &[
    (LayerTensor::MixerNorm, LayerTensor::MixerNormBias),
    (LayerTensor::MixerPostNorm, LayerTensor::MixerPostNormBias),
    (LayerTensor::QNorm, LayerTensor::QNormBias),
    (LayerTensor::KNorm, LayerTensor::KNormBias),
    (LayerTensor::VNorm, LayerTensor::VNormBias),
    (LayerTensor::QANorm, LayerTensor::QANormBias),
    (LayerTensor::KvANorm, LayerTensor::KvANormBias),
    (LayerTensor::OutNorm, LayerTensor::OutNormBias),
    (LayerTensor::LaurelNorm, LayerTensor::LaurelNormBias),
    (LayerTensor::FfnNorm, LayerTensor::FfnNormBias),
    (LayerTensor::FfnPostNorm, LayerTensor::FfnPostNormBias),
    (LayerTensor::RouterNorm, LayerTensor::RouterNormBias),
    (LayerTensor::DensePostNorm, LayerTensor::DensePostNormBias),
    (LayerTensor::ExpertsNorm, LayerTensor::ExpertsNormBias),
    (
        LayerTensor::ExpertsPostNorm,
        LayerTensor::ExpertsPostNormBias,
    ),
    (
        LayerTensor::PerLayerPostNorm,
        LayerTensor::PerLayerPostNormBias,
    ),
    (
        LayerTensor::AltUpRouterNorm,
        LayerTensor::AltUpRouterNormBias,
    ),
];

/// The bias that belongs to a norm's weight; `None` for what is no norm.
pub fn norm_bias(weight: LayerTensor) -> Option<LayerTensor> {
    let (_, bias) = NORMS.iter().find(|(norm, _)| *norm == weight)?;
    Some(*bias)
}

/// Tensors of one dense FFN inside a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FfnRoles {
    /// Gate.
    pub gate: TensorRole,
    /// Up projection.
    pub up: TensorRole,
    /// Down projection.
    pub down: TensorRole,
    /// Bias of the gate.
    pub gate_bias: TensorRole,
    /// Bias of the up projection.
    pub up_bias: TensorRole,
    /// Bias of the down projection.
    pub down_bias: TensorRole,
}

impl FfnRoles {
    /// The tensors of a part of a layer's FFN.
    pub fn new(layer: u32, part: FfnPart) -> Self {
        let [gate, up, down, gate_bias, up_bias, down_bias] = match part {
            FfnPart::Dense => DENSE.map(|tensor| TensorRole::Layer(layer, tensor)),
            FfnPart::Shared => SHARED.map(|tensor| TensorRole::Layer(layer, tensor)),
            FfnPart::Expert(expert) => {
                EXPERT.map(|tensor| TensorRole::Expert(layer, expert, tensor))
            }
        };
        Self {
            gate,
            up,
            down,
            gate_bias,
            up_bias,
            down_bias,
        }
    }
}

const EXPERT: [ExpertTensor; 6] = [
    ExpertTensor::Gate,
    ExpertTensor::Up,
    ExpertTensor::Down,
    ExpertTensor::GateBias,
    ExpertTensor::UpBias,
    ExpertTensor::DownBias,
];

const DENSE: [LayerTensor; 6] = [
    LayerTensor::Gate,
    LayerTensor::Up,
    LayerTensor::Down,
    LayerTensor::GateBias,
    LayerTensor::UpBias,
    LayerTensor::DownBias,
];

const SHARED: [LayerTensor; 6] = [
    LayerTensor::SharedGate,
    LayerTensor::SharedUp,
    LayerTensor::SharedDown,
    LayerTensor::SharedGateBias,
    LayerTensor::SharedUpBias,
    LayerTensor::SharedDownBias,
];

fn layer_tensors(list: &mut Needs, spec: &ModelSpec, idx: usize, layer: &LayerSpec) {
    use LayerTensor as T;
    let d_model = u64::from(spec.d_model);
    let mut at = LayerNeeds {
        list,
        layer: u32::try_from(idx).expect("layer counts are u32"),
        d_model,
    };
    if let Some(altup) = &spec.altup {
        let n = u64::from(altup.n_streams);
        at.norm(T::AltUpRouterNorm, d_model, altup.router_norm);
        at.plain(T::AltUpRouter, vec![n, d_model]);
        at.plain(T::AltUpPredict, vec![n * n, n]);
        at.plain(T::AltUpCorrect, vec![n, n]);
        if altup.correct_scale {
            at.plain(T::AltUpCorrectScale, vec![d_model]);
        }
    }
    match &layer.block {
        BlockShape::PreNorm { mixer, ffn } => {
            at.norm(T::MixerNorm, d_model, *mixer);
            at.norm(T::FfnNorm, d_model, *ffn);
        }
        BlockShape::Sandwich {
            mixer,
            mixer_post,
            ffn,
            ffn_post,
        } => {
            at.norm(T::MixerNorm, d_model, *mixer);
            at.norm(T::MixerPostNorm, d_model, *mixer_post);
            at.norm(T::FfnNorm, d_model, *ffn);
            at.norm(T::FfnPostNorm, d_model, *ffn_post);
        }
        BlockShape::PostNorm {
            mixer_post,
            ffn_post,
        } => {
            at.norm(T::MixerPostNorm, d_model, *mixer_post);
            at.norm(T::FfnPostNorm, d_model, *ffn_post);
        }
        BlockShape::Parallel { norm } => at.norm(T::MixerNorm, d_model, *norm),
    }
    mixer_tensors(&mut at, &layer.mixer);
    if let Some(laurel) = &layer.laurel {
        let rank = u64::from(laurel.rank);
        at.plain(T::LaurelLeft, vec![rank, d_model]);
        at.plain(T::LaurelRight, vec![d_model, rank]);
        at.norm(T::LaurelNorm, d_model, laurel.norm);
    }
    match &layer.ffn {
        Ffn::Gated(ffn) => at.ffn(ffn, true, DENSE),
        Ffn::Plain(ffn) => at.ffn(ffn, false, DENSE),
        Ffn::Moe(moe) => moe_tensors(&mut at, moe),
    }
    if let Some(per_layer) = &spec.embedding.per_layer {
        let width = u64::from(per_layer.width);
        at.plain(T::PerLayerGate, vec![width, d_model]);
        at.plain(T::PerLayerUp, vec![d_model, width]);
        at.norm(T::PerLayerPostNorm, d_model, per_layer.post_norm);
    }
    if layer.layer_scalar {
        at.plain(T::LayerScalar, vec![1]);
    }
}

fn attention_tensors(at: &mut LayerNeeds<'_>, attn: &AttentionSpec) {
    use LayerTensor as T;
    let d_model = at.d_model;
    let d_head = u64::from(attn.d_head);
    let (q, kv) = (
        u64::from(attn.n_heads) * d_head,
        u64::from(attn.n_kv_heads) * d_head,
    );
    let (has_k, has_v) = match attn.kv {
        KvSource::Own => (true, true),
        KvSource::KeyIsValue => (true, false),
        KvSource::SharedFrom(_) => (false, false),
    };
    let (qkv_bias, o_bias) = match attn.bias {
        AttentionBias::Absent => (false, false),
        AttentionBias::Qkv => (true, false),
        AttentionBias::Qkvo => (true, true),
    };
    at.roped(T::Q, vec![q, d_model], attn.d_head);
    if attn.gated {
        at.plain(T::OutGate, vec![q, d_model]);
    }
    if has_k {
        at.roped(T::K, vec![kv, d_model], attn.d_head);
    }
    if has_v {
        at.plain(T::V, vec![kv, d_model]);
    }
    at.plain(T::O, vec![d_model, q]);
    if qkv_bias {
        at.roped(T::QBias, vec![q], attn.d_head);
        if has_k {
            at.roped(T::KBias, vec![kv], attn.d_head);
        }
        if has_v {
            at.plain(T::VBias, vec![kv]);
        }
    }
    if o_bias {
        at.plain(T::OBias, vec![d_model]);
    }
    let (norm, q_width, k_width) = match attn.qk_norm {
        QkNorm::Absent => (None, 0, 0),
        QkNorm::PerHead(norm) => (Some(norm), d_head, d_head),
        QkNorm::FullWidth(norm) => (Some(norm), q, kv),
    };
    if let Some(norm) = norm {
        at.norm(T::QNorm, q_width, norm);
        if has_k {
            at.norm(T::KNorm, k_width, norm);
        }
    }
    if let Some(norm) = attn.v_norm
        && has_k
    {
        at.norm(T::VNorm, d_head, norm);
    }
    if attn.sinks {
        at.plain(T::Sinks, vec![u64::from(attn.n_heads)]);
    }
}

fn mixer_tensors(at: &mut LayerNeeds<'_>, mixer: &Mixer) {
    use LayerTensor as T;
    let d_model = at.d_model;
    match mixer {
        Mixer::Attention(attn) => attention_tensors(at, attn),
        Mixer::Mla(mla) => {
            let heads = u64::from(mla.n_heads);
            let (nope, rope) = (u64::from(mla.d_nope), u64::from(mla.d_rope));
            let (kv_rank, d_value) = (u64::from(mla.kv_rank), u64::from(mla.d_value));
            match mla.q_rank {
                None => at.plain(T::Q, vec![heads * (nope + rope), d_model]),
                Some(rank) => {
                    let rank = u64::from(rank);
                    at.plain(T::QA, vec![rank, d_model]);
                    at.norm(T::QANorm, rank, mla.latent_norm);
                    at.plain(T::QB, vec![heads * (nope + rope), rank]);
                }
            }
            at.plain(T::KvA, vec![kv_rank + rope, d_model]);
            at.norm(T::KvANorm, kv_rank, mla.latent_norm);
            at.plain(T::KvB, vec![heads * (nope + d_value), kv_rank]);
            at.plain(T::O, vec![d_model, heads * d_value]);
        }
        Mixer::Kda(kda) => {
            let (heads, d_head) = (u64::from(kda.n_heads), u64::from(kda.d_head));
            let (width, conv) = (heads * d_head, u64::from(kda.conv_width));
            for tensor in [T::Q, T::K, T::V] {
                at.plain(tensor, vec![width, d_model]);
            }
            for tensor in [T::ConvQ, T::ConvK, T::ConvV] {
                at.plain(tensor, vec![width, conv]);
            }
            at.plain(T::Beta, vec![heads, d_model]);
            at.plain(T::DecayA, vec![d_head, d_model]);
            at.plain(T::DecayB, vec![width, d_head]);
            decay_rate(at, heads);
            at.plain(T::DecayBias, vec![width]);
            at.plain(T::OutGateA, vec![d_head, d_model]);
            at.plain(T::OutGateB, vec![width, d_head]);
            at.norm(T::OutNorm, d_head, kda.out_norm);
            at.plain(T::O, vec![d_model, width]);
        }
        Mixer::GatedDelta(delta) => {
            let key = u64::from(delta.n_key_heads) * u64::from(delta.d_key);
            let heads = u64::from(delta.n_value_heads);
            let value = heads * u64::from(delta.d_value);
            let conv = u64::from(delta.conv_width);
            at.plain(T::Q, vec![key, d_model]);
            at.plain(T::K, vec![key, d_model]);
            at.plain(T::V, vec![value, d_model]);
            at.plain(T::OutGate, vec![value, d_model]);
            at.plain(T::ConvQ, vec![key, conv]);
            at.plain(T::ConvK, vec![key, conv]);
            at.plain(T::ConvV, vec![value, conv]);
            at.plain(T::Beta, vec![heads, d_model]);
            at.plain(T::Decay, vec![heads, d_model]);
            decay_rate(at, heads);
            at.plain(T::DecayBias, vec![heads]);
            at.norm(T::OutNorm, u64::from(delta.d_value), delta.out_norm);
            at.plain(T::O, vec![d_model, value]);
        }
    }
}

fn decay_rate(at: &mut LayerNeeds<'_>, heads: u64) {
    let role = TensorRole::Layer(at.layer, LayerTensor::DecayRate);
    at.list
        .push(role, vec![heads], None, StoredValue::LogOfNegative);
}

fn moe_tensors(at: &mut LayerNeeds<'_>, moe: &MoeSpec) {
    use LayerTensor as T;
    let (d_model, n_experts) = (at.d_model, u64::from(moe.n_experts));
    match moe.router_input {
        RouterInput::FfnInput => {}
        RouterInput::Scaled { norm, .. } => at.norm(T::RouterNorm, d_model, norm),
    }
    at.plain(T::Router, vec![n_experts, d_model]);
    if moe.router_bias {
        at.plain(T::RouterBias, vec![n_experts]);
    }
    if moe.selection_bias {
        at.plain(T::SelectionBias, vec![n_experts]);
    }
    if moe.expert_scale {
        at.plain(T::ExpertScale, vec![n_experts]);
    }
    let d_expert = u64::from(moe.expert.d_mlp);
    for expert in 0..moe.n_experts {
        let layer = at.layer;
        let mut need = |tensor, shape| {
            at.list
                .plain(TensorRole::Expert(layer, expert, tensor), shape)
        };
        need(ExpertTensor::Gate, vec![d_expert, d_model]);
        need(ExpertTensor::Up, vec![d_expert, d_model]);
        need(ExpertTensor::Down, vec![d_model, d_expert]);
        if moe.expert.bias {
            need(ExpertTensor::GateBias, vec![d_expert]);
            need(ExpertTensor::UpBias, vec![d_expert]);
            need(ExpertTensor::DownBias, vec![d_model]);
        }
    }
    if let Some(shared) = &moe.shared {
        at.ffn(&shared.ffn, true, SHARED);
        if shared.gated {
            at.plain(T::SharedRouter, vec![1, d_model]);
        }
    }
    if let Some(dense) = &moe.parallel_dense {
        at.ffn(&dense.ffn, true, DENSE);
        at.norm(T::DensePostNorm, d_model, dense.dense_post);
        at.norm(T::ExpertsNorm, d_model, dense.experts_pre);
        at.norm(T::ExpertsPostNorm, d_model, dense.experts_post);
    }
}
