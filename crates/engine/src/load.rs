//! From a checkpoint to a [`Model`]: each tensor by its role, shapes checked, vectors decoded once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use larql_formats::Arena;
use larql_kernels::{Team, pack_tiles_releasing, tile_bytes};
use larql_models::Checkpoint;
use larql_models::roles::{FfnRoles, LayerTensor, Needed, TensorRole, needed_tensors, norm_bias};
use larql_models::spec::{
    self, AttentionBias, AttentionSpec, BlockShape, FfnPart, FfnSpec, GatedDeltaSpec, KdaSpec,
    KvSource, LayerSpec, MlaSpec, ModelSpec, MoeSpec, NormKind, NormSpec, NormWeight, QkNorm,
    RopeSpec, RouterInput,
};

use crate::error::EngineError;
use crate::layers::{
    AltUp, Attention, BesideDense, Block, DenseFfn, Ffn, GatedDelta, Kda, Laurel, Layer, Mixer,
    Mla, Moe, Norm, PerLayer, Recurrent,
};
use crate::model::{AltUpStack, Matrix, Model, PerLayerTable};
use crate::pack::{PackedMatrices, row_order, stored_rows};
use crate::rope::RopeTable;

impl Model {
    /// Resolves a checkpoint.
    ///
    /// # Errors
    /// Names the tensor that is missing or does not fit.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        needed(checkpoint.spec())?;
        let packer = Packer {
            team: Team::new(Team::default_threads()),
            arena: Arena::new(),
        };
        Self::resolve(checkpoint, TileSource::Rows(RefCell::new(packer)))
    }

    /// Resolves a checkpoint whose matrices are tiles already: they are used where they lie, and of the checkpoint only the
    /// vectors are read.
    ///
    /// # Errors
    /// Names the matrix that is missing or has not the type and the shape that the checkpoint has, or a vector that does not
    /// fit.
    pub fn load_packed(
        checkpoint: &Checkpoint,
        matrices: &PackedMatrices,
    ) -> Result<Self, EngineError> {
        let needed = needed(checkpoint.spec())?.into_iter();
        let shapes = needed.map(|tensor| (tensor.role, tensor.shape)).collect();
        Self::resolve(checkpoint, TileSource::Packed { matrices, shapes })
    }

    fn resolve(checkpoint: &Checkpoint, tiles: TileSource<'_>) -> Result<Self, EngineError> {
        let spec = checkpoint.spec().clone();
        let load = Loader { checkpoint, tiles };
        let ropes = distinct_ropes(&spec);
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(idx, layer)| {
                LayerLoader {
                    load: &load,
                    layer: idx,
                    d_model: spec.d_model,
                }
                .layer(&spec, layer, &ropes)
            })
            .collect::<Result<_, _>>()?;
        let position_embedding = match spec.embedding.learned_positions {
            None => None,
            Some(_) => Some(load.matrix(TensorRole::PositionEmbedding)?),
        };
        let per_layer = match &spec.embedding.per_layer {
            None => None,
            Some(per_layer) => Some(PerLayerTable {
                table: load.matrix(TensorRole::PerLayerEmbedding)?,
                projection: load.matrix(TensorRole::PerLayerProjection)?,
                norm: load.norm(
                    TensorRole::PerLayerProjectionNorm,
                    None,
                    per_layer.projection_norm,
                    per_layer.width,
                )?,
            }),
        };
        let altup = match spec.altup {
            None => None,
            Some(altup) => {
                let extra = 0..altup.n_streams - 1;
                Some(AltUpStack {
                    project: extra
                        .clone()
                        .map(|i| load.matrix(TensorRole::AltUpProjection(i)))
                        .collect::<Result<_, _>>()?,
                    unembed: extra
                        .map(|i| load.matrix(TensorRole::AltUpUnembedding(i)))
                        .collect::<Result<_, _>>()?,
                })
            }
        };
        Ok(Self {
            embedding: load.matrix(TensorRole::TokenEmbedding)?,
            position_embedding,
            per_layer,
            altup,
            layers,
            final_norm: load.norm(
                TensorRole::FinalNorm,
                Some(TensorRole::FinalNormBias),
                spec.final_norm,
                spec.d_model,
            )?,
            head: match spec.head.tied {
                true => None,
                false => Some(load.matrix(TensorRole::Head)?),
            },
            head_bias: load.vector_if(spec.head.bias, TensorRole::HeadBias)?,
            ropes: ropes
                .iter()
                .map(|rope| RopeTable::new(rope, spec.n_ctx as usize))
                .collect(),
            spec,
        })
    }
}

fn rope_of(layer: &LayerSpec) -> Option<&RopeSpec> {
    match &layer.mixer {
        spec::Mixer::Attention(attention) => attention.rope.as_ref(),
        spec::Mixer::Mla(mla) => mla.rope.as_ref(),
        spec::Mixer::Kda(_) | spec::Mixer::GatedDelta(_) => None,
    }
}

fn distinct_ropes(spec: &ModelSpec) -> Vec<RopeSpec> {
    let mut ropes = Vec::new();
    for rope in spec.layers.iter().filter_map(rope_of) {
        if !ropes.contains(rope) {
            ropes.push(rope.clone());
        }
    }
    ropes
}

fn rope_index(rope: Option<&RopeSpec>, ropes: &[RopeSpec]) -> Option<usize> {
    rope.and_then(|rope| ropes.iter().position(|known| known == rope))
}

fn needed(spec: &ModelSpec) -> Result<Vec<Needed>, EngineError> {
    needed_tensors(spec).map_err(|source| EngineError::Spec {
        layer: source.layer,
        what: source.what,
    })
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    tiles: TileSource<'a>,
}

/// Where the tiles of matrices come from.
enum TileSource<'a> {
    /// They are made of the stored rows.
    Rows(RefCell<Packer>),
    /// They were made before.
    Packed {
        matrices: &'a PackedMatrices,
        shapes: BTreeMap<TensorRole, Vec<u64>>,
    },
}

/// Who makes tiles, and where they go.
struct Packer {
    team: Team,
    arena: Arena,
}

impl Loader<'_> {
    fn matrix(&self, role: TensorRole) -> Result<Matrix, EngineError> {
        match &self.tiles {
            TileSource::Rows(packer) => self.made(role, &mut packer.borrow_mut()),
            TileSource::Packed { matrices, shapes } => {
                let shape = shapes.get(&role).map_or(&[][..], Vec::as_slice);
                self.packed(role, matrices, shape)
            }
        }
    }

    /// A matrix whose tiles are made now.
    fn made(&self, role: TensorRole, packer: &mut Packer) -> Result<Matrix, EngineError> {
        let tensor = self.checkpoint.tensor(role)?;
        let view = stored_rows(&tensor)?;
        let (format, rows, cols) = (view.format(), view.rows(), view.cols());
        let no_memory = |source| EngineError::Memory {
            tensor: tensor.name.clone(),
            source,
        };
        let n_bytes = tile_bytes(format, rows, cols)
            .ok_or_else(|| no_memory(io::ErrorKind::OutOfMemory.into()))?;
        let mut tiles = packer.arena.alloc(n_bytes).map_err(no_memory)?;
        // The tiles take the place of the mapped pages, so that a model is in memory once.
        let release = &mut |range| tensor.bytes.slice(range).release();
        let order = row_order(tensor.rows);
        pack_tiles_releasing(&mut packer.team, view, order, &mut tiles, release);
        Ok(Matrix::new(tiles, format, rows, cols))
    }

    /// A matrix whose tiles were made before; the checkpoint's own bytes are not looked at.
    fn packed(
        &self,
        role: TensorRole,
        matrices: &PackedMatrices,
        shape: &[u64],
    ) -> Result<Matrix, EngineError> {
        let wrong = |expected: String, got: String| EngineError::Packed {
            role: role.to_string(),
            expected,
            got,
        };
        let format = self.checkpoint.format(role);
        let expected = || match format {
            Some(format) => format!("{format} {shape:?}"),
            None => "no such matrix".to_owned(),
        };
        let Some(packed) = matrices.get(&role) else {
            return Err(wrong(expected(), "nothing".to_owned()));
        };
        let (rows, cols) = (packed.rows, packed.cols);
        let same = |dims: &[u64], width: usize| {
            let product = dims
                .iter()
                .try_fold(1u64, |product, dim| product.checked_mul(*dim));
            product == u64::try_from(width).ok()
        };
        let fits = shape
            .split_first()
            .is_some_and(|(first, rest)| same(&[*first], rows) && same(rest, cols));
        if format != Some(packed.format) || !fits {
            let got = format!("{} [{rows}, {cols}]", packed.format);
            return Err(wrong(expected(), got));
        }
        let n_bytes = tile_bytes(packed.format, rows, cols);
        if n_bytes != Some(packed.tiles.len()) {
            let expected = n_bytes.map_or("none".to_owned(), |n| n.to_string());
            let got = packed.tiles.len();
            return Err(wrong(
                format!("{expected} bytes of tiles"),
                format!("{got} bytes"),
            ));
        }
        let tiles = packed.tiles.clone();
        Ok(Matrix::new(tiles, packed.format, rows, cols))
    }

    fn vector(&self, role: TensorRole) -> Result<Vec<f32>, EngineError> {
        let tensor = self.checkpoint.tensor(role)?;
        let values = tensor.to_f32();
        tensor.bytes.release();
        Ok(values)
    }

    fn vector_if(&self, present: bool, role: TensorRole) -> Result<Option<Vec<f32>>, EngineError> {
        match present {
            true => Ok(Some(self.vector(role)?)),
            false => Ok(None),
        }
    }

    fn norm(
        &self,
        role: TensorRole,
        bias: Option<TensorRole>,
        spec: NormSpec,
        width: u32,
    ) -> Result<Norm, EngineError> {
        let weight = match (spec.weight, spec.kind) {
            (NormWeight::Plain | NormWeight::PlusOne, _) => Some(self.vector(role)?),
            (NormWeight::Absent, NormKind::Rms) => None,
            // The kernel of a layer norm multiplies.
            (NormWeight::Absent, NormKind::Layer | NormKind::LayerWithBias) => {
                Some(vec![1.0; width as usize])
            }
        };
        let bias = match (spec.kind, bias) {
            (NormKind::LayerWithBias, Some(bias)) => Some(self.vector(bias)?),
            (NormKind::LayerWithBias, None) | (NormKind::Rms | NormKind::Layer, _) => None,
        };
        Ok(Norm {
            kind: spec.kind,
            eps: spec.eps,
            weight,
            bias,
        })
    }
}

struct LayerLoader<'a> {
    load: &'a Loader<'a>,
    layer: usize,
    d_model: u32,
}

impl LayerLoader<'_> {
    fn layer(
        &self,
        model: &ModelSpec,
        layer: &LayerSpec,
        ropes: &[RopeSpec],
    ) -> Result<Layer, EngineError> {
        let mixer = match &layer.mixer {
            spec::Mixer::Attention(attention) => {
                Mixer::Attention(self.attention(attention, ropes)?)
            }
            spec::Mixer::Mla(mla) => Mixer::Mla(self.mla(mla, ropes)?),
            spec::Mixer::Kda(kda) => Mixer::Kda(self.kda(kda)?),
            spec::Mixer::GatedDelta(delta) => Mixer::GatedDelta(self.gated_delta(delta)?),
        };
        let laurel = match &layer.laurel {
            None => None,
            Some(laurel) => Some(Laurel {
                left: self.matrix(LayerTensor::LaurelLeft)?,
                right: self.matrix(LayerTensor::LaurelRight)?,
                norm: self.norm(LayerTensor::LaurelNorm, laurel.norm, self.d_model)?,
            }),
        };
        let per_layer = match &model.embedding.per_layer {
            None => None,
            Some(per_layer) => Some(PerLayer {
                gate: self.matrix(LayerTensor::PerLayerGate)?,
                up: self.matrix(LayerTensor::PerLayerUp)?,
                post_norm: self.norm(
                    LayerTensor::PerLayerPostNorm,
                    per_layer.post_norm,
                    self.d_model,
                )?,
            }),
        };
        let altup = match &model.altup {
            None => None,
            Some(altup) => Some(AltUp {
                router_norm: self.norm(
                    LayerTensor::AltUpRouterNorm,
                    altup.router_norm,
                    self.d_model,
                )?,
                router: self.matrix(LayerTensor::AltUpRouter)?,
                predict: self.vector(LayerTensor::AltUpPredict)?,
                correct: self.vector(LayerTensor::AltUpCorrect)?,
                correct_scale: self
                    .vector_if(altup.correct_scale, LayerTensor::AltUpCorrectScale)?,
            }),
        };
        let scalar = self.vector_if(layer.layer_scalar, LayerTensor::LayerScalar)?;
        Ok(Layer {
            block: self.block(&layer.block)?,
            mixer,
            laurel,
            ffn: self.ffn(&layer.ffn)?,
            per_layer,
            altup,
            residual_multiplier: layer.residual_multiplier,
            scalar: scalar.map(|values| values[0]),
        })
    }

    fn index(&self) -> u32 {
        u32::try_from(self.layer).expect("layer counts are u32")
    }

    fn role(&self, tensor: LayerTensor) -> TensorRole {
        TensorRole::Layer(self.index(), tensor)
    }

    fn matrix(&self, tensor: LayerTensor) -> Result<Matrix, EngineError> {
        self.load.matrix(self.role(tensor))
    }

    fn matrix_if(&self, present: bool, tensor: LayerTensor) -> Result<Option<Matrix>, EngineError> {
        match present {
            true => Ok(Some(self.matrix(tensor)?)),
            false => Ok(None),
        }
    }

    fn vector(&self, tensor: LayerTensor) -> Result<Vec<f32>, EngineError> {
        self.load.vector(self.role(tensor))
    }

    fn vector_if(
        &self,
        present: bool,
        tensor: LayerTensor,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        self.load.vector_if(present, self.role(tensor))
    }

    fn norm(&self, tensor: LayerTensor, spec: NormSpec, width: u32) -> Result<Norm, EngineError> {
        let bias = norm_bias(tensor).map(|bias| self.role(bias));
        self.load.norm(self.role(tensor), bias, spec, width)
    }

    fn norm_if(
        &self,
        spec: Option<NormSpec>,
        tensor: LayerTensor,
        width: u32,
    ) -> Result<Option<Norm>, EngineError> {
        spec.map(|spec| self.norm(tensor, spec, width)).transpose()
    }

    fn block(&self, block: &BlockShape) -> Result<Block, EngineError> {
        let norm = |tensor, spec: &NormSpec| self.norm(tensor, *spec, self.d_model);
        Ok(match block {
            BlockShape::PreNorm { mixer, ffn } => Block::Sequential {
                mixer: Some(norm(LayerTensor::MixerNorm, mixer)?),
                mixer_post: None,
                ffn: Some(norm(LayerTensor::FfnNorm, ffn)?),
                ffn_post: None,
            },
            BlockShape::Sandwich {
                mixer,
                mixer_post,
                ffn,
                ffn_post,
            } => Block::Sequential {
                mixer: Some(norm(LayerTensor::MixerNorm, mixer)?),
                mixer_post: Some(norm(LayerTensor::MixerPostNorm, mixer_post)?),
                ffn: Some(norm(LayerTensor::FfnNorm, ffn)?),
                ffn_post: Some(norm(LayerTensor::FfnPostNorm, ffn_post)?),
            },
            BlockShape::PostNorm {
                mixer_post,
                ffn_post,
            } => Block::Sequential {
                mixer: None,
                mixer_post: Some(norm(LayerTensor::MixerPostNorm, mixer_post)?),
                ffn: None,
                ffn_post: Some(norm(LayerTensor::FfnPostNorm, ffn_post)?),
            },
            BlockShape::Parallel { norm: shared } => Block::Parallel {
                norm: norm(LayerTensor::MixerNorm, shared)?,
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
        let (has_k, has_v) = match spec.kv {
            KvSource::Own => (true, true),
            KvSource::KeyIsValue => (true, false),
            KvSource::SharedFrom(_) => (false, false),
        };
        let (qk_norm, q_width, k_width) = match spec.qk_norm {
            QkNorm::Absent => (None, 0, 0),
            QkNorm::PerHead(norm) => (Some(norm), spec.d_head, spec.d_head),
            QkNorm::FullWidth(norm) => (
                Some(norm),
                spec.n_heads * spec.d_head,
                spec.n_kv_heads * spec.d_head,
            ),
        };
        Ok(Attention {
            q: self.matrix(LayerTensor::Q)?,
            k: self.matrix_if(has_k, LayerTensor::K)?,
            v: self.matrix_if(has_v, LayerTensor::V)?,
            o: self.matrix(LayerTensor::O)?,
            gate: self.matrix_if(spec.gated, LayerTensor::OutGate)?,
            q_bias: self.vector_if(qkv_bias, LayerTensor::QBias)?,
            k_bias: self.vector_if(qkv_bias && has_k, LayerTensor::KBias)?,
            v_bias: self.vector_if(qkv_bias && has_v, LayerTensor::VBias)?,
            o_bias: self.vector_if(o_bias, LayerTensor::OBias)?,
            q_norm: self.norm_if(qk_norm, LayerTensor::QNorm, q_width)?,
            k_norm: self.norm_if(qk_norm.filter(|_| has_k), LayerTensor::KNorm, k_width)?,
            v_norm: self.norm_if(
                spec.v_norm.filter(|_| has_k),
                LayerTensor::VNorm,
                spec.d_head,
            )?,
            sinks: self.vector_if(spec.sinks, LayerTensor::Sinks)?,
            rope: rope_index(spec.rope.as_ref(), ropes),
            spec: spec.clone(),
        })
    }

    fn mla(&self, spec: &MlaSpec, ropes: &[RopeSpec]) -> Result<Mla, EngineError> {
        let (q, q_latent) = match spec.q_rank {
            None => (self.matrix(LayerTensor::Q)?, None),
            Some(rank) => {
                let norm = self.norm(LayerTensor::QANorm, spec.latent_norm, rank)?;
                (
                    self.matrix(LayerTensor::QB)?,
                    Some((self.matrix(LayerTensor::QA)?, norm)),
                )
            }
        };
        Ok(Mla {
            q,
            q_latent,
            kv_a: self.matrix(LayerTensor::KvA)?,
            kv_a_norm: self.norm(LayerTensor::KvANorm, spec.latent_norm, spec.kv_rank)?,
            kv_b: self.matrix(LayerTensor::KvB)?,
            o: self.matrix(LayerTensor::O)?,
            rope: rope_index(spec.rope.as_ref(), ropes),
            spec: spec.clone(),
        })
    }

    fn recurrent(&self, out_norm: NormSpec, d_value: u32) -> Result<Recurrent, EngineError> {
        Ok(Recurrent {
            q: self.matrix(LayerTensor::Q)?,
            k: self.matrix(LayerTensor::K)?,
            v: self.matrix(LayerTensor::V)?,
            conv: [
                self.vector(LayerTensor::ConvQ)?,
                self.vector(LayerTensor::ConvK)?,
                self.vector(LayerTensor::ConvV)?,
            ],
            beta: self.matrix(LayerTensor::Beta)?,
            decay_rate: self.vector(LayerTensor::DecayRate)?,
            decay_bias: self.vector(LayerTensor::DecayBias)?,
            out_norm: self.norm(LayerTensor::OutNorm, out_norm, d_value)?,
            o: self.matrix(LayerTensor::O)?,
        })
    }

    fn kda(&self, spec: &KdaSpec) -> Result<Kda, EngineError> {
        Ok(Kda {
            common: self.recurrent(spec.out_norm, spec.d_head)?,
            decay: (
                self.matrix(LayerTensor::DecayA)?,
                self.matrix(LayerTensor::DecayB)?,
            ),
            out_gate: (
                self.matrix(LayerTensor::OutGateA)?,
                self.matrix(LayerTensor::OutGateB)?,
            ),
            spec: spec.clone(),
        })
    }

    fn gated_delta(&self, spec: &GatedDeltaSpec) -> Result<GatedDelta, EngineError> {
        Ok(GatedDelta {
            common: self.recurrent(spec.out_norm, spec.d_value)?,
            decay: self.matrix(LayerTensor::Decay)?,
            out_gate: self.matrix(LayerTensor::OutGate)?,
            spec: spec.clone(),
        })
    }

    fn ffn(&self, ffn: &spec::Ffn) -> Result<Ffn, EngineError> {
        let is_gated = ffn.is_gated();
        let mut parts = Vec::new();
        let mut n_features = 0;
        for (part, spec) in ffn.parts() {
            parts.push(self.dense(part, *spec, is_gated, n_features)?);
            n_features += spec.d_mlp as usize;
        }
        let moe = match ffn {
            spec::Ffn::Gated(_) | spec::Ffn::Plain(_) => None,
            spec::Ffn::Moe(moe) => Some(self.moe(moe)?),
        };
        Ok(Ffn {
            parts,
            n_features,
            moe,
        })
    }

    fn dense(
        &self,
        part: FfnPart,
        spec: FfnSpec,
        is_gated: bool,
        first_feature: usize,
    ) -> Result<DenseFfn, EngineError> {
        let roles = FfnRoles::new(self.index(), part);
        Ok(DenseFfn {
            part,
            first_feature,
            gate: match is_gated {
                true => Some(self.load.matrix(roles.gate)?),
                false => None,
            },
            up: self.load.matrix(roles.up)?,
            down: self.load.matrix(roles.down)?,
            gate_bias: self
                .load
                .vector_if(spec.bias && is_gated, roles.gate_bias)?,
            up_bias: self.load.vector_if(spec.bias, roles.up_bias)?,
            down_bias: self.load.vector_if(spec.bias, roles.down_bias)?,
            spec,
        })
    }

    fn moe(&self, spec: &MoeSpec) -> Result<Moe, EngineError> {
        let router_norm = match spec.router_input {
            RouterInput::FfnInput => None,
            RouterInput::Scaled { norm, .. } => {
                Some(self.norm(LayerTensor::RouterNorm, norm, self.d_model)?)
            }
        };
        let beside = match &spec.parallel_dense {
            None => None,
            Some(dense) => Some(BesideDense {
                dense_post: self.norm(
                    LayerTensor::DensePostNorm,
                    dense.dense_post,
                    self.d_model,
                )?,
                experts_pre: self.norm(
                    LayerTensor::ExpertsNorm,
                    dense.experts_pre,
                    self.d_model,
                )?,
                experts_post: self.norm(
                    LayerTensor::ExpertsPostNorm,
                    dense.experts_post,
                    self.d_model,
                )?,
            }),
        };
        let is_shared_gated = spec.shared.is_some_and(|shared| shared.gated);
        Ok(Moe {
            router: self.matrix(LayerTensor::Router)?,
            router_norm,
            router_bias: self.vector_if(spec.router_bias, LayerTensor::RouterBias)?,
            selection_bias: self.vector_if(spec.selection_bias, LayerTensor::SelectionBias)?,
            expert_scale: self.vector_if(spec.expert_scale, LayerTensor::ExpertScale)?,
            shared_router: self.matrix_if(is_shared_gated, LayerTensor::SharedRouter)?,
            beside,
            spec: spec.clone(),
        })
    }
}
