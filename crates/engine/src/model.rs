//! A resolved model: every weight where the forward pass reads it.
//!
//! Matrices keep their stored format and are rearranged in tiles of rows; vectors (norms, biases) are decoded to f32 once.
//! Nothing here computes.

use std::ops::Deref;
use std::sync::Arc;

use larql_formats::{ArenaBytes, Bytes};
use larql_kernels::{Format, Kernels, TileView};
use larql_models::spec::{FfnPart, ModelSpec};

use crate::layers::{Block, DenseFfn, Ffn, Layer, Mixer, Norm};
use crate::pack::TilePlace;
use crate::rope::RopeTable;

/// A resolved model.
#[derive(Debug)]
pub struct Model {
    pub(crate) spec: ModelSpec,
    pub(crate) embedding: Matrix,
    pub(crate) position_embedding: Option<Matrix>,
    pub(crate) per_layer: Option<PerLayerTable>,
    pub(crate) altup: Option<AltUpStack>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Norm,
    pub(crate) head: Option<Matrix>,
    pub(crate) head_bias: Option<Vec<f32>>,
    /// The distinct ropes, in the order layers refer to them.
    pub(crate) ropes: Vec<RopeTable>,
}

/// Embeddings that every layer gets a slice of.
#[derive(Debug)]
pub(crate) struct PerLayerTable {
    pub(crate) table: Matrix,
    pub(crate) projection: Matrix,
    pub(crate) norm: Norm,
}

/// How further residual streams are made of the first, and taken back.
#[derive(Debug)]
pub(crate) struct AltUpStack {
    pub(crate) project: Vec<Matrix>,
    pub(crate) unembed: Vec<Matrix>,
}

/// A dense FFN inside a layer: the layer's only one, an expert, or what runs beside experts.
#[derive(Debug, Clone, Copy)]
pub struct FfnView<'a> {
    /// Which it is.
    pub part: FfnPart,
    /// The number of its first feature in the layer.
    pub first_feature: usize,
    /// What fires: the gate matrix `[d_mlp, d_model]`, or a plain FFN's only input projection.
    pub gate: &'a Matrix,
    /// The up matrix `[d_mlp, d_model]`.
    pub up: &'a Matrix,
    /// The down matrix `[d_model, d_mlp]`.
    pub down: &'a Matrix,
}

/// A weight matrix `[rows, cols]` in its stored format, in tiles; rows are in canonical order.
#[derive(Debug, Clone)]
pub struct Matrix {
    tiles: Tiles,
    format: Format,
    rows: usize,
    cols: usize,
}

/// The bytes of a matrix, wherever they are.
#[derive(Debug, Clone)]
pub(crate) enum Tiles {
    /// In memory of this process, in large pages where the system has them.
    Memory(Arc<ArenaBytes>),
    /// In a mapped file, in its small pages.
    Mapped(Bytes),
}

impl From<ArenaBytes> for Tiles {
    fn from(bytes: ArenaBytes) -> Self {
        Self::Memory(Arc::new(bytes))
    }
}

impl From<Bytes> for Tiles {
    fn from(bytes: Bytes) -> Self {
        Self::Mapped(bytes)
    }
}

impl Deref for Tiles {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl Matrix {
    /// A matrix whose tiles are known to have its shape.
    pub(crate) fn new(tiles: impl Into<Tiles>, format: Format, rows: usize, cols: usize) -> Self {
        Self {
            tiles: tiles.into(),
            format,
            rows,
            cols,
        }
    }

    /// A view for the kernels.
    pub fn view(&self) -> TileView<'_> {
        TileView::new(self.format, self.rows, self.cols, &self.tiles)
            .expect("the shape was checked at load")
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

    /// Stored size, with the padding of the last tile.
    pub fn n_bytes(&self) -> usize {
        self.tiles.len()
    }

    /// Decodes row `row` to `out`, which has [`Self::cols`] values.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        self.view().decode_row(Kernels::detect(), row, out);
    }
}

impl Model {
    /// The model as plain data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Where the tiles of its matrices are; those of one model are all in one place.
    pub fn tile_place(&self) -> TilePlace {
        match &self.embedding.tiles {
            Tiles::Memory(_) => TilePlace::Memory,
            Tiles::Mapped(_) => TilePlace::Pack,
        }
    }

    /// The matrix whose row `t` gives token `t`'s logit: the head, or the embedding where they are tied.
    pub fn unembedding(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The embedding, `[d_vocab, d_model]`.
    pub fn embedding(&self) -> &Matrix {
        &self.embedding
    }

    /// The dense FFNs of a layer, in the order in which their features are numbered.
    pub fn ffns(&self, layer: usize) -> impl ExactSizeIterator<Item = FfnView<'_>> {
        self.layers[layer].ffn.parts.iter().map(DenseFfn::view)
    }

    /// The dense FFN that holds a feature of a layer, and the feature's number in it.
    pub fn ffn_of(&self, layer: usize, feature: usize) -> Option<(FfnView<'_>, usize)> {
        let parts = &self.layers[layer].ffn.parts;
        let at = parts
            .partition_point(|part| part.first_feature <= feature)
            .checked_sub(1)?;
        let within = feature - parts[at].first_feature;
        (within < parts[at].up.rows()).then(|| (parts[at].view(), within))
    }

    /// A mixer's output matrix `[d_model, n_heads * d_value]`.
    pub fn mixer_output(&self, layer: usize) -> &Matrix {
        match &self.layers[layer].mixer {
            Mixer::Attention(attention) => &attention.o,
            Mixer::Mla(mla) => &mla.o,
            Mixer::Kda(kda) => &kda.common.o,
            Mixer::GatedDelta(delta) => &delta.common.o,
        }
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

    /// Bytes of weights that one decoded token reads, rows of embeddings excepted; of experts, those that run.
    pub fn weight_bytes_per_token(&self) -> u64 {
        let layers: usize = self.layers.iter().map(Layer::n_bytes).sum();
        let streams = self
            .altup
            .iter()
            .flat_map(|stack| stack.project.iter().chain(&stack.unembed));
        let per_layer = self.per_layer.iter().map(|table| &table.projection);
        let others: usize = streams.chain(per_layer).map(Matrix::n_bytes).sum();
        (layers + others + self.unembedding().n_bytes()) as u64
    }
}

impl DenseFfn {
    fn view(&self) -> FfnView<'_> {
        FfnView {
            part: self.part,
            first_feature: self.first_feature,
            gate: self.gate.as_ref().unwrap_or(&self.up),
            up: &self.up,
            down: &self.down,
        }
    }

    fn n_bytes(&self) -> usize {
        let gate = self.gate.as_ref().map_or(0, Matrix::n_bytes);
        gate + self.up.n_bytes() + self.down.n_bytes()
    }
}

impl Ffn {
    fn n_bytes(&self) -> usize {
        let Some(moe) = &self.moe else {
            return self.parts.iter().map(DenseFfn::n_bytes).sum();
        };
        let is_expert = |part: &&DenseFfn| matches!(part.part, FfnPart::Expert(_));
        let experts: usize = self
            .parts
            .iter()
            .filter(is_expert)
            .map(DenseFfn::n_bytes)
            .sum();
        let always: usize = self
            .parts
            .iter()
            .filter(|part| !is_expert(part))
            .map(DenseFfn::n_bytes)
            .sum();
        let (active, all) = (moe.spec.n_active as usize, moe.spec.n_experts as usize);
        let shared_router = moe.shared_router.as_ref().map_or(0, Matrix::n_bytes);
        experts / all * active + always + moe.router.n_bytes() + shared_router
    }
}

impl Layer {
    fn n_bytes(&self) -> usize {
        let laurel = self.laurel.iter().flat_map(|l| [&l.left, &l.right]);
        let per_layer = self.per_layer.iter().flat_map(|p| [&p.gate, &p.up]);
        // The streams are mixed before the layer and after it.
        let altup = self.altup.iter().flat_map(|altup| [&altup.router; 2]);
        let beside: usize = laurel
            .chain(per_layer)
            .chain(altup)
            .map(Matrix::n_bytes)
            .sum();
        self.mixer.n_bytes() + self.ffn.n_bytes() + beside
    }
}

impl Mixer {
    fn n_bytes(&self) -> usize {
        let mut matrices: Vec<&Matrix> = Vec::new();
        match self {
            Self::Attention(a) => {
                matrices.extend([&a.q, &a.o]);
                matrices.extend(a.k.iter().chain(&a.v).chain(&a.gate));
            }
            Self::Mla(m) => {
                matrices.extend([&m.q, &m.kv_a, &m.kv_b, &m.o]);
                matrices.extend(m.q_latent.iter().map(|(latent, _)| latent));
            }
            Self::Kda(k) => {
                let c = &k.common;
                matrices.extend([&c.q, &c.k, &c.v, &c.beta, &c.o]);
                matrices.extend([&k.decay.0, &k.decay.1, &k.out_gate.0, &k.out_gate.1]);
            }
            Self::GatedDelta(d) => {
                let c = &d.common;
                matrices.extend([&c.q, &c.k, &c.v, &c.beta, &c.o, &d.decay, &d.out_gate]);
            }
        }
        matrices.into_iter().map(Matrix::n_bytes).sum()
    }
}
