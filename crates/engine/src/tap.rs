//! Taps: observe or edit the forward pass at named points.
//!
//! The code that computes a value hands it to the tap at the moment it has it; whatever the tap writes is what the pass
//! goes on with. Without a tap nothing is copied and nothing else changes. Names follow TransformerLens.

/// A point of the forward pass; shapes are per position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TapPoint {
    /// `[d_model]`: the residual stream entering the layer.
    ResidPre,
    /// `[n_heads * d_head]`: queries as they meet keys, after norm and RoPE.
    AttnQ,
    /// `[n_kv_heads * d_head]`: keys as they are kept, after norm and RoPE.
    AttnK,
    /// `[n_kv_heads * d_head]`: values as they are kept.
    AttnV,
    /// `[n_heads * (position + 1)]`: weights on keys 0 to the position's own, zero where the mask hides them.
    AttnPattern,
    /// `[n_heads * d_head]`: weighted values, before the output projection.
    AttnZ,
    /// `[d_model]`: the mixer's output before a norm on it.
    AttnOutRaw,
    /// `[d_model]`: what the mixer adds to the residual stream.
    AttnOut,
    /// `[d_model]`: the residual stream between mixer and FFN.
    ResidMid,
    /// `[d_model]`: the FFN's input, after its norm.
    MlpIn,
    /// `[n_experts]`: the weight of each expert's output, zero where it does not run; only in layers with a router.
    MoeWeights,
    /// `[n_features]`: the gate before the activation; NaN for features of experts that do not run.
    MlpPre,
    /// `[n_features]`: what each feature's down column is multiplied by, the weight of its expert included; writing to
    /// features of experts that do not run changes nothing.
    MlpPost,
    /// `[d_model]`: the FFN's output before a norm on it.
    MlpOutRaw,
    /// `[d_model]`: what the FFN adds to the residual stream.
    MlpOut,
    /// `[d_model]`: the residual stream leaving the layer.
    ResidPost,
    /// `[d_model]`: after the final norm; the layer index is the number of layers.
    FinalNorm,
    /// `[d_vocab]`: after scale and softcap; the layer index is the number of layers.
    Logits,
}

impl TapPoint {
    /// Every point, in the order of execution.
    pub const ALL: [Self; 18] = [
        Self::ResidPre,
        Self::AttnQ,
        Self::AttnK,
        Self::AttnV,
        Self::AttnPattern,
        Self::AttnZ,
        Self::AttnOutRaw,
        Self::AttnOut,
        Self::ResidMid,
        Self::MlpIn,
        Self::MoeWeights,
        Self::MlpPre,
        Self::MlpPost,
        Self::MlpOutRaw,
        Self::MlpOut,
        Self::ResidPost,
        Self::FinalNorm,
        Self::Logits,
    ];

    /// The name users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResidPre => "resid_pre",
            Self::AttnQ => "attn.q",
            Self::AttnK => "attn.k",
            Self::AttnV => "attn.v",
            Self::AttnPattern => "attn.pattern",
            Self::AttnZ => "attn.z",
            Self::AttnOutRaw => "attn_out.raw",
            Self::AttnOut => "attn_out",
            Self::ResidMid => "resid_mid",
            Self::MlpIn => "mlp.in",
            Self::MoeWeights => "moe.weights",
            Self::MlpPre => "mlp.pre",
            Self::MlpPost => "mlp.post",
            Self::MlpOutRaw => "mlp_out.raw",
            Self::MlpOut => "mlp_out",
            Self::ResidPost => "resid_post",
            Self::FinalNorm => "final_norm",
            Self::Logits => "logits",
        }
    }
}

/// Where in the batch a row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Index of the sequence in the batch.
    pub sequence: usize,
    /// Absolute position in that sequence.
    pub position: usize,
}

/// Observes or edits named points of a forward pass.
pub trait Tap {
    /// Whether [`Tap::visit`] is to be called for a point of a layer.
    fn wants(&self, point: TapPoint, layer: usize) -> bool;

    /// One position's values; writing to `row` changes what the pass goes on with.
    ///
    /// # Errors
    /// A message ends the pass and rewinds the sequences to where they were.
    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String>;
}

/// Keeps every value of the chosen points.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<TapPoint>,
    rows: Vec<Recorded>,
}

/// One recorded row.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The point.
    pub point: TapPoint,
    /// The layer.
    pub layer: usize,
    /// Where in the batch.
    pub place: RowPlace,
    /// The values.
    pub values: Vec<f32>,
}

impl Recorder {
    /// Records these points at every layer and position.
    pub fn new(points: &[TapPoint]) -> Self {
        Self {
            points: points.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Everything recorded, in the order of execution.
    pub fn rows(&self) -> &[Recorded] {
        &self.rows
    }

    /// The values at one place, if they were recorded; absent is not zero.
    pub fn find(&self, point: TapPoint, layer: usize, place: RowPlace) -> Option<&[f32]> {
        self.rows
            .iter()
            .find(|row| row.point == point && row.layer == layer && row.place == place)
            .map(|row| row.values.as_slice())
    }
}

impl Tap for Recorder {
    fn wants(&self, point: TapPoint, _layer: usize) -> bool {
        self.points.contains(&point)
    }

    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String> {
        self.rows.push(Recorded {
            point,
            layer,
            place,
            values: row.to_vec(),
        });
        Ok(())
    }
}
