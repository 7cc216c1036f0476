//! Which features and heads wrote an answer: direct logit attribution.
//!
//! Everything is read from the pass that ran: activations, branch outputs and the final residual are captured at one
//! position, and each contribution uses the norms of that pass. Contributions of all features, heads, biases and the
//! embedding add up to the token's logit before the softcap. Indirect effects, through later layers, are not in it.
//!
//! For token `t` with unembedding row `E_t`, final norm weight `w` and final residual `x`, the direction is
//! `g = E_t * w / rms(x)`; a branch whose output `y` passes a norm of weight `p` is read through `g * p / rms(y)`.

use larql_engine::{Matrix, Model, RowPlace, Runtime, Tap, TapPoint};
use larql_kernels::Kernels;
use larql_models::spec::{BlockShape, Ffn, Mixer, NormKind, NormSpec};

use crate::error::DbError;

/// Values of one position of one pass, layer by layer.
#[derive(Debug)]
pub struct Capture {
    place: RowPlace,
    layers: Vec<CapturedLayer>,
    final_resid: Vec<f32>,
}

#[derive(Debug, Default, Clone)]
struct CapturedLayer {
    z: Vec<f32>,
    attn_out_raw: Vec<f32>,
    mlp_pre: Vec<f32>,
    mlp_post: Vec<f32>,
    mlp_out_raw: Vec<f32>,
    expert_weights: Vec<f32>,
}

/// A part of the model that wrote to a logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contribution {
    /// The layer.
    pub layer: usize,
    /// The part.
    pub part: Part,
    /// What it added to the logit.
    pub logit: f64,
}

/// A feature or a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// An FFN neuron.
    Feature(u32),
    /// An attention head.
    Head(u32),
}

impl Capture {
    /// Captures one position.
    pub fn new(model: &Model, place: RowPlace) -> Self {
        Self {
            place,
            layers: vec![CapturedLayer::default(); model.spec().n_layers()],
            final_resid: Vec::new(),
        }
    }

    /// The gate before the activation, `[d_mlp]`.
    pub fn mlp_pre(&self, layer: usize) -> &[f32] {
        &self.layers[layer].mlp_pre
    }

    /// What multiplied each feature's down column, `[d_mlp]`.
    pub fn mlp_post(&self, layer: usize) -> &[f32] {
        &self.layers[layer].mlp_post
    }

    /// What the router gave each expert, `[n_experts]`, 0 where it did not run; empty in layers without experts.
    pub fn expert_weights(&self, layer: usize) -> &[f32] {
        &self.layers[layer].expert_weights
    }
}

impl Tap for Capture {
    fn wants(&self, point: TapPoint, layer: usize) -> bool {
        match point {
            TapPoint::AttnZ
            | TapPoint::AttnOutRaw
            | TapPoint::MlpPre
            | TapPoint::MlpPost
            | TapPoint::MoeWeights
            | TapPoint::MlpOutRaw => true,
            TapPoint::ResidPost => layer + 1 == self.layers.len(),
            TapPoint::ResidPre
            | TapPoint::AttnQ
            | TapPoint::AttnK
            | TapPoint::AttnV
            | TapPoint::AttnPattern
            | TapPoint::AttnOut
            | TapPoint::ResidMid
            | TapPoint::MlpIn
            | TapPoint::MlpOut
            | TapPoint::FinalNorm
            | TapPoint::Logits => false,
        }
    }

    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        place: RowPlace,
        row: &mut [f32],
    ) -> Result<(), String> {
        if place != self.place {
            return Ok(());
        }
        let kept = row.to_vec();
        match point {
            TapPoint::AttnZ => self.layers[layer].z = kept,
            TapPoint::AttnOutRaw => self.layers[layer].attn_out_raw = kept,
            TapPoint::MlpPre => self.layers[layer].mlp_pre = kept,
            TapPoint::MlpPost => self.layers[layer].mlp_post = kept,
            TapPoint::MlpOutRaw => self.layers[layer].mlp_out_raw = kept,
            TapPoint::MoeWeights => self.layers[layer].expert_weights = kept,
            TapPoint::ResidPost => self.final_resid = kept,
            other => return Err(format!("{} was not asked for", other.name())),
        }
        Ok(())
    }
}

/// Every feature's and head's contribution to `token`'s logit at the captured position, largest magnitude first.
///
/// # Errors
/// If a norm on the way is not an RMS norm: removing a mean is not linear in the parts.
pub fn attribute(
    model: &Model,
    runtime: &Runtime,
    capture: &Capture,
    token: u32,
) -> Result<Vec<Contribution>, DbError> {
    let (spec, kernels) = (model.spec(), runtime.kernels());
    let norms = spec.layers.iter().flat_map(|layer| {
        let (mixer, ffn) = post_norms(&layer.block);
        [mixer, ffn]
    });
    if norms
        .flatten()
        .chain([spec.final_norm])
        .any(|norm| norm.kind != NormKind::Rms)
    {
        return Err(DbError::NotYet {
            what: "attribution through a norm that removes the mean",
        });
    }
    for layer in &spec.layers {
        let beside = matches!(&layer.ffn, Ffn::Moe(moe) if moe.parallel_dense.is_some());
        let other = layer.layer_scalar || layer.laurel.is_some() || beside;
        if other || spec.altup.is_some() || spec.embedding.per_layer.is_some() {
            return Err(DbError::NotYet {
                what: match beside {
                    true => "attribution where experts and a dense FFN have norms of their own",
                    false => "attribution through scaled or parallel residual streams",
                },
            });
        }
    }
    let mut direction = vec![0.0; spec.d_model as usize];
    model
        .unembedding()
        .decode_row(token as usize, &mut direction);
    through_norm(
        &mut direction,
        model.final_norm_weight(),
        Some(spec.final_norm),
        &capture.final_resid,
    );
    direction.iter_mut().for_each(|g| *g *= spec.head.scale);
    let mut contributions = Vec::new();
    for (layer, captured) in capture.layers.iter().enumerate() {
        let layer_spec = &spec.layers[layer];
        let (attn_post, mlp_post) = model.post_norm_weights(layer);
        let (attn_norm, mlp_norm) = post_norms(&layer_spec.block);
        let scaled = |weight, norm, raw: &[f32]| {
            let mut g = direction.clone();
            through_norm(&mut g, weight, norm, raw);
            g.iter_mut()
                .for_each(|g| *g *= layer_spec.residual_multiplier);
            g
        };
        let g = scaled(attn_post, attn_norm, &captured.attn_out_raw);
        let reads = transposed(kernels, model.mixer_output(layer), &g);
        let d_head = match &layer_spec.mixer {
            Mixer::Attention(attention) => attention.d_head,
            Mixer::Mla(mla) => mla.d_value,
            Mixer::Kda(kda) => kda.d_head,
            Mixer::GatedDelta(delta) => delta.d_value,
        } as usize;
        for (head, (read, z)) in (0u32..).zip(reads.chunks(d_head).zip(captured.z.chunks(d_head))) {
            contributions.push(Contribution {
                layer,
                part: Part::Head(head),
                logit: dot(read, z),
            });
        }
        let g = scaled(mlp_post, mlp_norm, &captured.mlp_out_raw);
        for ffn in model.ffns(layer) {
            let n = ffn.down.cols();
            let fired = &captured.mlp_post[ffn.first_feature..][..n];
            // An expert that did not run wrote nothing, and its matrix need not be read.
            if fired.iter().all(|a| *a == 0.0) {
                continue;
            }
            let reads = transposed(kernels, ffn.down, &g);
            let first = u32::try_from(ffn.first_feature).expect("features are u32");
            for (feature, (read, a)) in (first..).zip(reads.iter().zip(fired)) {
                contributions.push(Contribution {
                    layer,
                    part: Part::Feature(feature),
                    logit: f64::from(*read) * f64::from(*a),
                });
            }
        }
    }
    contributions.sort_by(|a, b| b.logit.abs().total_cmp(&a.logit.abs()));
    Ok(contributions)
}

/// The norms on the outputs of mixer and FFN.
fn post_norms(block: &BlockShape) -> (Option<NormSpec>, Option<NormSpec>) {
    match block {
        BlockShape::PreNorm { .. } | BlockShape::Parallel { .. } => (None, None),
        BlockShape::Sandwich {
            mixer_post,
            ffn_post,
            ..
        }
        | BlockShape::PostNorm {
            mixer_post,
            ffn_post,
        } => (Some(*mixer_post), Some(*ffn_post)),
    }
}

/// `g[i] *= weight[i] / rms(raw)`: reads a direction through the norm that `raw` passed.
fn through_norm(g: &mut [f32], weight: Option<&[f32]>, norm: Option<NormSpec>, raw: &[f32]) {
    let Some(norm) = norm else { return };
    let mean_square = raw
        .iter()
        .map(|x| f64::from(*x) * f64::from(*x))
        .sum::<f64>()
        / raw.len().max(1) as f64;
    let inverse = 1.0 / (mean_square + f64::from(norm.eps)).sqrt();
    for (i, g) in g.iter_mut().enumerate() {
        *g *= weight.map_or(1.0, |w| w[i]) * inverse as f32;
    }
}

/// `out[c] = sum_r w[r, c] * g[r]`.
fn transposed(kernels: &Kernels, matrix: &Matrix, g: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; matrix.cols()];
    let mut row = vec![0.0; matrix.cols()];
    for (r, g) in g.iter().enumerate() {
        matrix.decode_row(r, &mut row);
        kernels.axpy(*g, &row, &mut out);
    }
    out
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}
