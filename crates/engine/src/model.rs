//! A resolved model: every weight where the forward pass reads it.
//!
//! Matrices stay mapped in their stored format; vectors (norms, biases) are decoded to f32 once. Nothing here computes.

use larql_formats::Bytes;
use larql_kernels::{Format, MatrixView, RowOrder};
use larql_models::roles::{LayerTensor, TensorRole, needed_tensors};
use larql_models::spec::{
    AttentionBias, AttentionSpec, BlockShape, Ffn, FfnSpec, Mixer, ModelSpec, NormKind, NormSpec,
    NormWeight, QkNorm, RopeSpec,
};
use larql_models::{Checkpoint, StoredRows};

use crate::error::EngineError;
use crate::rope::RopeTable;

/// A resolved model.
#[derive(Debug)]
pub struct Model {
    spec: ModelSpec,
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Norm,
    pub(crate) head: Option<Matrix>,
    /// The distinct ropes, in the order layers refer to them.
    pub(crate) ropes: Vec<RopeTable>,
}

/// A weight matrix `[rows, cols]` in its stored format.
#[derive(Debug, Clone)]
pub struct Matrix {
    bytes: Bytes,
    format: Format,
    rows: usize,
    cols: usize,
    order: RowOrder,
}

/// A norm with its weight as it multiplies.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
    pub(crate) weight: Option<Vec<f32>>,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) block: Block,
    pub(crate) attention: Attention,
    pub(crate) ffn: DenseFfn,
    pub(crate) residual_multiplier: f32,
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

/// Attention weights.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) spec: AttentionSpec,
    pub(crate) q: Matrix,
    pub(crate) k: Matrix,
    pub(crate) v: Matrix,
    pub(crate) o: Matrix,
    pub(crate) q_bias: Option<Vec<f32>>,
    pub(crate) k_bias: Option<Vec<f32>>,
    pub(crate) v_bias: Option<Vec<f32>>,
    pub(crate) o_bias: Option<Vec<f32>>,
    pub(crate) qk_norm: Option<(Norm, Norm)>,
    /// Index into the distinct ropes of the model.
    pub(crate) rope: Option<usize>,
}

/// A dense FFN.
#[derive(Debug)]
pub(crate) struct DenseFfn {
    pub(crate) spec: FfnSpec,
    pub(crate) gate: Option<Matrix>,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) gate_bias: Option<Vec<f32>>,
    pub(crate) up_bias: Option<Vec<f32>>,
    pub(crate) down_bias: Option<Vec<f32>>,
}

impl Matrix {
    /// A view for the kernels.
    pub fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.format, self.rows, self.cols, &self.bytes)
            .expect("the shape was checked at load")
    }

    /// Where output rows go.
    pub fn order(&self) -> RowOrder {
        self.order
    }

    /// Output width.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Stored format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Stored size.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Model {
    /// Resolves a checkpoint.
    ///
    /// # Errors
    /// Names the first layer with an axis that no forward pass here computes, or the tensor that does not fit.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        let spec = checkpoint.spec().clone();
        needed_tensors(&spec).map_err(|axis| EngineError::Unsupported {
            layer: axis.layer,
            axis: axis.axis,
        })?;
        let load = Loader { checkpoint };
        let ropes = distinct_ropes(&spec);
        let mut layers = Vec::with_capacity(spec.n_layers());
        for (idx, layer) in spec.layers.iter().enumerate() {
            let at = LayerLoader {
                load: &load,
                layer: idx,
            };
            let Mixer::Attention(attention) = &layer.mixer else {
                return Err(EngineError::Unsupported {
                    layer: idx,
                    axis: "a mixer other than attention",
                });
            };
            layers.push(Layer {
                block: at.block(&layer.block)?,
                attention: at.attention(attention, &ropes)?,
                ffn: at.ffn(&layer.ffn)?,
                residual_multiplier: layer.residual_multiplier,
            });
        }
        Ok(Self {
            embedding: load.matrix(TensorRole::TokenEmbedding)?,
            layers,
            final_norm: load.norm(TensorRole::FinalNorm, spec.final_norm)?,
            head: if spec.head.tied {
                None
            } else {
                Some(load.matrix(TensorRole::Head)?)
            },
            ropes: ropes
                .iter()
                .map(|rope| RopeTable::new(rope, spec.n_ctx as usize))
                .collect(),
            spec,
        })
    }

    /// The model as plain data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The matrix whose row `t` gives token `t`'s logit: the head, or the embedding where they are tied.
    pub fn unembedding(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The embedding, `[d_vocab, d_model]`.
    pub fn embedding(&self) -> &Matrix {
        &self.embedding
    }

    /// A layer's gate matrix `[d_mlp, d_model]`; a plain FFN's only input projection plays its part.
    pub fn gate(&self, layer: usize) -> &Matrix {
        let ffn = &self.layers[layer].ffn;
        ffn.gate.as_ref().unwrap_or(&ffn.up)
    }

    /// A layer's up matrix `[d_mlp, d_model]`.
    pub fn up(&self, layer: usize) -> &Matrix {
        &self.layers[layer].ffn.up
    }

    /// A layer's down matrix `[d_model, d_mlp]`.
    pub fn down(&self, layer: usize) -> &Matrix {
        &self.layers[layer].ffn.down
    }

    /// A layer's attention output matrix `[d_model, n_heads * d_head]`.
    pub fn attention_output(&self, layer: usize) -> &Matrix {
        &self.layers[layer].attention.o
    }

    /// Weight of the norm before the head.
    pub fn final_norm_weight(&self) -> Option<&[f32]> {
        self.final_norm.weight.as_deref()
    }

    /// Weight of the norm before a layer's FFN, if it has one.
    pub fn ffn_norm_weight(&self, layer: usize) -> Option<&[f32]> {
        match &self.layers[layer].block {
            Block::Sequential { ffn, .. } => ffn.as_ref()?.weight.as_deref(),
            Block::Parallel { norm } => norm.weight.as_deref(),
        }
    }

    /// Weights of the norms on the outputs of a layer's mixer and FFN, if it has them.
    pub fn post_norm_weights(&self, layer: usize) -> (Option<&[f32]>, Option<&[f32]>) {
        match &self.layers[layer].block {
            Block::Sequential {
                mixer_post,
                ffn_post,
                ..
            } => (
                mixer_post.as_ref().and_then(|norm| norm.weight.as_deref()),
                ffn_post.as_ref().and_then(|norm| norm.weight.as_deref()),
            ),
            Block::Parallel { .. } => (None, None),
        }
    }

    /// Bytes of weights that one decoded token reads, the embedding row excepted.
    pub fn weight_bytes_per_token(&self) -> u64 {
        let layers: usize = self.layers.iter().map(Layer::n_bytes).sum();
        (layers + self.unembedding().n_bytes()) as u64
    }
}

impl Layer {
    fn n_bytes(&self) -> usize {
        let (attention, ffn) = (&self.attention, &self.ffn);
        [
            &attention.q,
            &attention.k,
            &attention.v,
            &attention.o,
            &ffn.up,
            &ffn.down,
        ]
        .into_iter()
        .chain(&ffn.gate)
        .map(Matrix::n_bytes)
        .sum()
    }
}

fn distinct_ropes(spec: &ModelSpec) -> Vec<RopeSpec> {
    let mut ropes = Vec::new();
    for layer in &spec.layers {
        if let Mixer::Attention(AttentionSpec {
            rope: Some(rope), ..
        }) = &layer.mixer
            && !ropes.contains(rope)
        {
            ropes.push(rope.clone());
        }
    }
    ropes
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
}

impl Loader<'_> {
    fn matrix(&self, role: TensorRole) -> Result<Matrix, EngineError> {
        let tensor = self.checkpoint.tensor(role)?;
        let dim = |i: usize| usize::try_from(tensor.shape[i]).expect("a mapped tensor fits memory");
        let order = match tensor.rows {
            StoredRows::Canonical => RowOrder::Stored,
            StoredRows::Interleaved { d_head } => RowOrder::Interleaved {
                head_dim: d_head as usize,
            },
        };
        let matrix = Matrix {
            bytes: tensor.bytes,
            format: tensor.format,
            rows: dim(0),
            cols: dim(1),
            order,
        };
        MatrixView::new(matrix.format, matrix.rows, matrix.cols, &matrix.bytes).map_err(
            |source| EngineError::Matrix {
                tensor: tensor.name,
                source,
            },
        )?;
        Ok(matrix)
    }

    fn vector(&self, role: TensorRole) -> Result<Vec<f32>, EngineError> {
        Ok(self.checkpoint.tensor(role)?.to_f32())
    }

    fn norm(&self, role: TensorRole, spec: NormSpec) -> Result<Norm, EngineError> {
        let weight = match spec.weight {
            NormWeight::Absent => None,
            NormWeight::Plain | NormWeight::PlusOne => Some(self.vector(role)?),
        };
        Ok(Norm {
            kind: spec.kind,
            eps: spec.eps,
            weight,
        })
    }
}

struct LayerLoader<'a> {
    load: &'a Loader<'a>,
    layer: usize,
}

impl LayerLoader<'_> {
    fn role(&self, tensor: LayerTensor) -> TensorRole {
        TensorRole::Layer(
            u32::try_from(self.layer).expect("layer counts are u32"),
            tensor,
        )
    }

    fn matrix(&self, tensor: LayerTensor) -> Result<Matrix, EngineError> {
        self.load.matrix(self.role(tensor))
    }

    fn vector_if(
        &self,
        present: bool,
        tensor: LayerTensor,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        if present {
            Ok(Some(self.load.vector(self.role(tensor))?))
        } else {
            Ok(None)
        }
    }

    fn norm(&self, tensor: LayerTensor, spec: NormSpec) -> Result<Norm, EngineError> {
        self.load.norm(self.role(tensor), spec)
    }

    fn block(&self, block: &BlockShape) -> Result<Block, EngineError> {
        Ok(match block {
            BlockShape::PreNorm { mixer, ffn } => Block::Sequential {
                mixer: Some(self.norm(LayerTensor::MixerNorm, *mixer)?),
                mixer_post: None,
                ffn: Some(self.norm(LayerTensor::FfnNorm, *ffn)?),
                ffn_post: None,
            },
            BlockShape::Sandwich {
                mixer,
                mixer_post,
                ffn,
                ffn_post,
            } => Block::Sequential {
                mixer: Some(self.norm(LayerTensor::MixerNorm, *mixer)?),
                mixer_post: Some(self.norm(LayerTensor::MixerPostNorm, *mixer_post)?),
                ffn: Some(self.norm(LayerTensor::FfnNorm, *ffn)?),
                ffn_post: Some(self.norm(LayerTensor::FfnPostNorm, *ffn_post)?),
            },
            BlockShape::PostNorm {
                mixer_post,
                ffn_post,
            } => Block::Sequential {
                mixer: None,
                mixer_post: Some(self.norm(LayerTensor::MixerPostNorm, *mixer_post)?),
                ffn: None,
                ffn_post: Some(self.norm(LayerTensor::FfnPostNorm, *ffn_post)?),
            },
            BlockShape::Parallel { norm } => Block::Parallel {
                norm: self.norm(LayerTensor::MixerNorm, *norm)?,
            },
        })
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        ropes: &[RopeSpec],
    ) -> Result<Attention, EngineError> {
        let (qkv_bias, o_bias) = match spec.bias {
            AttentionBias::Absent => (false, false),
            AttentionBias::Qkv => (true, false),
            AttentionBias::Qkvo => (true, true),
        };
        let qk_norm = match spec.qk_norm {
            QkNorm::Absent => None,
            QkNorm::PerHead(norm) | QkNorm::FullWidth(norm) => Some((
                self.norm(LayerTensor::QNorm, norm)?,
                self.norm(LayerTensor::KNorm, norm)?,
            )),
        };
        Ok(Attention {
            q: self.matrix(LayerTensor::Q)?,
            k: self.matrix(LayerTensor::K)?,
            v: self.matrix(LayerTensor::V)?,
            o: self.matrix(LayerTensor::O)?,
            q_bias: self.vector_if(qkv_bias, LayerTensor::QBias)?,
            k_bias: self.vector_if(qkv_bias, LayerTensor::KBias)?,
            v_bias: self.vector_if(qkv_bias, LayerTensor::VBias)?,
            o_bias: self.vector_if(o_bias, LayerTensor::OBias)?,
            qk_norm,
            rope: spec
                .rope
                .as_ref()
                .and_then(|rope| ropes.iter().position(|known| known == rope)),
            spec: spec.clone(),
        })
    }

    fn ffn(&self, ffn: &Ffn) -> Result<DenseFfn, EngineError> {
        let (spec, gate) = match ffn {
            Ffn::Gated(spec) => (*spec, Some(self.matrix(LayerTensor::Gate)?)),
            Ffn::Plain(spec) => (*spec, None),
            Ffn::Moe(_) => {
                return Err(EngineError::Unsupported {
                    layer: self.layer,
                    axis: "a mixture of experts",
                });
            }
        };
        Ok(DenseFfn {
            gate_bias: self.vector_if(spec.bias && gate.is_some(), LayerTensor::GateBias)?,
            up_bias: self.vector_if(spec.bias, LayerTensor::UpBias)?,
            down_bias: self.vector_if(spec.bias, LayerTensor::DownBias)?,
            up: self.matrix(LayerTensor::Up)?,
            down: self.matrix(LayerTensor::Down)?,
            spec,
            gate,
        })
    }
}
