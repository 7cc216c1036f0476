//! FFN features read from the weights: norms, what they write, what their gates match.
//!
//! Nothing here runs the model. What a feature writes is a direction; whether it ever fires on a prompt is what `WALK`
//! shows. Weights are read in the exact arithmetic, so the numbers do not depend on the profile.
//! Cost: norms read a matrix once; tokens read the unembedding once per batch of features.

use larql_engine::{EngineError, Runtime, top_k};
use larql_kernels::{
    Activations, Arithmetic, Format, Kernels, LinearJob, MatrixView, RowOrder, TileView,
    decode_row, linear, pack_tiles, tile_bytes,
};
use larql_models::roles::{FfnRoles, LayerTensor, TensorRole};
use larql_models::spec::{BlockShape, Ffn, FfnPart, NormKind, NormSpec, NormWeight};
use larql_models::{ModelError, StoredTensor};

use larql_vindex::{FeatureRow, FeatureTable, Level, OutputToken};

use crate::database::Database;
use crate::error::DbError;
use crate::progress::{OnProgress, Progress};

/// Logits held at once while tokens are computed: 64 MB.
const LOGITS_MAX: usize = 16 << 20;
/// Most features per batch; more would not read the unembedding noticeably less often.
const BATCH_MAX: usize = 256;
/// Columns summed by one thread at a time: a multiple of every block length.
const COLUMNS_PER_SHARE: usize = 256;
/// Rows of a matrix whose norms one thread takes at a time.
const ROWS_PER_SHARE: usize = 64;
/// Tokens that a vindex keeps of each feature.
pub const TOKENS_CACHED: usize = 10;
/// Features computed between two writes to the cache, so that an interrupted run keeps most of its work.
const FEATURES_PER_WRITE: usize = 2048;

/// Every tensor of the open model.
///
/// # Errors
/// Names what is wrong with the weights.
pub(crate) fn tensors(db: &Database) -> Result<Vec<StoredTensor>, DbError> {
    if let Some(vindex) = db.vindex().filter(|vindex| vindex.level() == Level::Browse) {
        return Ok(vindex.tensors()?);
    }
    let checkpoint = db.checkpoint()?;
    Ok(checkpoint
        .roles()
        .into_iter()
        .map(|role| checkpoint.tensor(role))
        .collect::<Result<_, _>>()?)
}

/// The tensor of a role, at any level that has it.
fn tensor(db: &Database, role: TensorRole) -> Result<StoredTensor, DbError> {
    match db.vindex().filter(|vindex| vindex.level() == Level::Browse) {
        Some(vindex) => Ok(vindex.tensor(role)?),
        None => Ok(db.checkpoint()?.tensor(role)?),
    }
}

/// The `k` tokens that each feature's down column writes most, with the logits it adds per unit of activation before the
/// final norm divides by the residual stream's size.
///
/// The score of token `t` is `unembedding[t] . (w_final * w_post * down)`: `w_final` and `w_post` are the weights of the
/// final norm and of the norm on the FFN's output, where the model has them. A final layer norm also removes the mean of
/// what it multiplies. Negative activations write the opposite.
///
/// A vindex keeps them in `features.db`, [`TOKENS_CACHED`] of each feature, and is asked first.
///
/// # Errors
/// If a tensor is absent, or somebody interrupts.
pub fn feature_tokens(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
    features: &[u32],
    k: usize,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Vec<(u32, f32)>>, DbError> {
    let Some(vindex) = db.vindex().filter(|_| k <= TOKENS_CACHED) else {
        return computed_tokens(db, runtime, layer, features, k, on_progress);
    };
    let number = u32::try_from(layer).expect("layer counts are u32");
    let mut table = vindex.features()?;
    let mut missing = Vec::new();
    for feature in features {
        if table.get(number, *feature)?.is_none() {
            missing.push(*feature);
        }
    }
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() {
        let (gate, down) = (
            matched_norms(db, runtime, layer)?,
            down_norms(db, runtime, layer)?,
        );
        let total = missing.len() as u64;
        let mut done = 0;
        for part in missing.chunks(FEATURES_PER_WRITE) {
            let mut report = |progress: Progress| {
                on_progress(Progress {
                    done: done + progress.done,
                    total,
                    ..progress
                });
            };
            let tokens = computed_tokens(db, runtime, layer, part, TOKENS_CACHED, &mut report)?;
            let rows: Vec<FeatureRow> = part
                .iter()
                .zip(tokens)
                .map(|(feature, tokens)| FeatureRow {
                    layer: number,
                    feature: *feature,
                    gate_norm: gate[*feature as usize],
                    down_norm: down[*feature as usize],
                    outputs: tokens
                        .into_iter()
                        .map(|(token, score)| OutputToken { token, score })
                        .collect(),
                })
                .collect();
            table.put_many(&rows)?;
            done += part.len() as u64;
        }
    }
    features
        .iter()
        .map(|feature| cached_tokens(&table, number, *feature, k))
        .collect()
}

fn cached_tokens(
    table: &FeatureTable,
    layer: u32,
    feature: u32,
    k: usize,
) -> Result<Vec<(u32, f32)>, DbError> {
    let row = table.get(layer, feature)?.map_or(vec![], |row| row.outputs);
    Ok(row
        .into_iter()
        .take(k)
        .map(|OutputToken { token, score }| (token, score))
        .collect())
}

fn computed_tokens(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
    features: &[u32],
    k: usize,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Vec<(u32, f32)>>, DbError> {
    let parts = parts(db, layer)?;
    let unembedding = Weights::unembedding(db)?;
    let unembedded = unembedding.tiles(runtime);
    let (d_model, d_vocab) = (unembedding.cols, unembedding.rows);
    let last = norm_weight(db, db.spec().final_norm, TensorRole::FinalNorm)?;
    let last = last.unwrap_or_else(|| vec![1.0; d_model]);
    let centers = match db.spec().final_norm.kind {
        NormKind::Rms => false,
        NormKind::Layer | NormKind::LayerWithBias => true,
    };
    let n_batch = (LOGITS_MAX / d_vocab.max(1)).clamp(1, BATCH_MAX);
    let (mut directions, mut logits) = (Vec::new(), Vec::new());
    let mut tokens = Vec::with_capacity(features.len());
    for batch in features.chunks(n_batch) {
        if runtime.interrupt().is_raised() {
            return Err(EngineError::Interrupted.into());
        }
        write_directions(db, layer, &parts, batch, d_model, &mut directions)?;
        for direction in directions.chunks_exact_mut(d_model) {
            if centers {
                let mean = direction.iter().sum::<f32>() / d_model as f32;
                direction.iter_mut().for_each(|x| *x -= mean);
            }
            direction.iter_mut().zip(&last).for_each(|(x, w)| *x *= w);
        }
        project(
            runtime,
            unembedded.view(),
            &directions,
            batch.len(),
            &mut logits,
        );
        if let Some(at) = logits.iter().position(|x| x.is_nan()) {
            return Err(EngineError::NotANumber { id: at % d_vocab }.into());
        }
        tokens.extend(logits.chunks_exact(d_vocab).map(|row| top_k(row, k)));
        on_progress(Progress {
            stage: "tokens of features",
            done: tokens.len() as u64,
            total: features.len() as u64,
        });
    }
    Ok(tokens)
}

/// `out = [features.len(), d_model]`: down columns as a norm on the FFN's output passes them on.
fn write_directions(
    db: &Database,
    layer: usize,
    parts: &[Part],
    features: &[u32],
    d_model: usize,
    out: &mut Vec<f32>,
) -> Result<(), DbError> {
    out.clear();
    out.resize(features.len() * d_model, 0.0);
    let missing = |feature: u32| ModelError::NoTensor {
        origin: db.path().display().to_string(),
        role: format!("layer {layer} feature {feature}"),
    };
    // With the place in the batch; features of one part are read together.
    let mut wanted: Vec<(usize, u32, usize)> = Vec::with_capacity(features.len());
    for (place, feature) in features.iter().enumerate() {
        let part = parts
            .iter()
            .position(|part| (part.first..part.first + part.n).contains(feature))
            .ok_or_else(|| missing(*feature))?;
        wanted.push((part, feature - parts[part].first, place));
    }
    wanted.sort_unstable();
    let mut columns = Vec::new();
    for group in wanted.chunk_by(|a, b| a.0 == b.0) {
        let part = &parts[group[0].0];
        let down = Weights::new(tensor(db, part.roles.down)?);
        let within: Vec<u32> = group.iter().map(|(_, column, _)| *column).collect();
        Columns::new(&down).read(&within, &mut columns);
        let post = post_scale(db, layer, part.part)?;
        for ((_, _, place), column) in group.iter().zip(columns.chunks_exact(d_model)) {
            let to = &mut out[place * d_model..][..d_model];
            to.copy_from_slice(column);
            to.iter_mut().zip(&post).for_each(|(x, w)| *x *= w);
        }
    }
    Ok(())
}

/// A dense FFN inside a layer, with its place among the layer's features.
struct Part {
    part: FfnPart,
    first: u32,
    n: u32,
    roles: FfnRoles,
}

/// The dense FFNs of a layer, in the order in which their features are numbered.
fn parts(db: &Database, layer: usize) -> Result<Vec<Part>, DbError> {
    let number = u32::try_from(layer).expect("layer counts are u32");
    let mut first = 0;
    let part = |(part, spec): (FfnPart, &larql_models::spec::FfnSpec)| {
        let made = Part {
            part,
            first,
            n: spec.d_mlp,
            roles: FfnRoles::new(number, part),
        };
        first += spec.d_mlp;
        made
    };
    Ok(ffn(db, layer)?.parts().map(part).collect())
}

/// Norms of a layer's gate rows; absent where the FFN has no gate.
///
/// # Errors
/// If the tensor is absent from the files.
pub fn gate_norms(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
) -> Result<Option<Vec<f32>>, DbError> {
    if !ffn(db, layer)?.is_gated() {
        return Ok(None);
    }
    Ok(Some(layer_row_norms(db, runtime, layer, |roles| {
        roles.gate
    })?))
}

/// Norms of a layer's up rows.
///
/// # Errors
/// If the tensor is absent from the files.
pub fn up_norms(db: &Database, runtime: &mut Runtime, layer: usize) -> Result<Vec<f32>, DbError> {
    layer_row_norms(db, runtime, layer, |roles| roles.up)
}

fn layer_row_norms(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
    role: impl Fn(&FfnRoles) -> TensorRole,
) -> Result<Vec<f32>, DbError> {
    let mut norms = Vec::new();
    for part in parts(db, layer)? {
        norms.extend(row_norms(
            runtime,
            &Weights::new(tensor(db, role(&part.roles))?),
        ));
    }
    Ok(norms)
}

/// Norms of a layer's down columns.
///
/// # Errors
/// If the tensor is absent from the files.
pub fn down_norms(db: &Database, runtime: &mut Runtime, layer: usize) -> Result<Vec<f32>, DbError> {
    let mut norms = Vec::new();
    for part in parts(db, layer)? {
        let down = Weights::new(tensor(db, part.roles.down)?);
        norms.extend(column_norms(runtime, &down));
    }
    Ok(norms)
}

fn column_norms(runtime: &mut Runtime, down: &Weights) -> Vec<f32> {
    let kernels = runtime.kernels();
    let mut norms = vec![0.0; down.cols];
    runtime
        .team()
        .chunks_mut(&mut norms, COLUMNS_PER_SHARE, |share, norms| {
            let mut values = vec![0.0; norms.len()];
            let mut sums = vec![0.0f64; norms.len()];
            for row in 0..down.rows {
                down.part_of_row(kernels, row, share * COLUMNS_PER_SHARE, &mut values);
                sums.iter_mut()
                    .zip(&values)
                    .for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            }
            norms
                .iter_mut()
                .zip(&sums)
                .for_each(|(norm, sum)| *norm = sum.sqrt() as f32);
        });
    norms
}

/// What the gates of a layer would see of a token: its embedding as the layer's FFN norm would pass it on.
///
/// # Errors
/// If a tensor is absent from the files.
pub fn token_vector(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
    token: u32,
) -> Result<Vec<f32>, DbError> {
    let embedding = Weights::new(tensor(db, TensorRole::TokenEmbedding)?);
    let mut row = vec![0.0; embedding.cols];
    decode_row(embedding.view(), token as usize, &mut row);
    let multiplier = db.spec().embedding.multiplier;
    row.iter_mut().for_each(|x| *x *= multiplier);
    let (norm, tensor) = match &db.spec().layers[layer].block {
        BlockShape::PreNorm { ffn, .. } | BlockShape::Sandwich { ffn, .. } => {
            (ffn, LayerTensor::FfnNorm)
        }
        BlockShape::Parallel { norm } => (norm, LayerTensor::MixerNorm),
        BlockShape::PostNorm { .. } => return Ok(row),
    };
    let weight = norm_weight(db, *norm, layer_role(layer, tensor))?;
    let mut out = vec![0.0; row.len()];
    let kernels = runtime.kernels();
    match norm.kind {
        NormKind::Rms => kernels.rms_norm(&row, weight.as_deref(), norm.eps, &mut out),
        NormKind::Layer | NormKind::LayerWithBias => {
            let weight = weight.unwrap_or_else(|| vec![1.0; row.len()]);
            kernels.layer_norm(&row, &weight, None, norm.eps, &mut out);
        }
    }
    Ok(out)
}

/// Each gate row of a layer times `vector`; a plain FFN's only input projection plays the gate's part.
///
/// # Errors
/// If the tensor is absent from the files.
pub fn gate_dots(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
    vector: &[f32],
) -> Result<Vec<f32>, DbError> {
    let (mut all, mut dots) = (Vec::new(), Vec::new());
    for part in parts(db, layer)? {
        let gate = Weights::new(tensor(db, matched_role(db, layer, &part.roles)?)?);
        let gate = gate.tiles(runtime);
        project(runtime, gate.view(), vector, 1, &mut dots);
        all.extend_from_slice(&dots);
    }
    Ok(all)
}

/// Norms of the rows that [`gate_dots`] multiplies.
///
/// # Errors
/// If the tensor is absent from the files.
pub fn matched_norms(
    db: &Database,
    runtime: &mut Runtime,
    layer: usize,
) -> Result<Vec<f32>, DbError> {
    let is_gated = ffn(db, layer)?.is_gated();
    layer_row_norms(db, runtime, layer, |roles| {
        if is_gated { roles.gate } else { roles.up }
    })
}

/// What fires a feature: its gate row, or the only input row it has.
fn matched_role(db: &Database, layer: usize, roles: &FfnRoles) -> Result<TensorRole, DbError> {
    Ok(match ffn(db, layer)?.is_gated() {
        true => roles.gate,
        false => roles.up,
    })
}

fn ffn(db: &Database, layer: usize) -> Result<&Ffn, DbError> {
    let missing = || ModelError::NoTensor {
        origin: db.path().display().to_string(),
        role: format!("layer {layer}"),
    };
    Ok(&db.spec().layers.get(layer).ok_or_else(missing)?.ffn)
}

fn layer_role(layer: usize, tensor: LayerTensor) -> TensorRole {
    TensorRole::Layer(u32::try_from(layer).expect("layer counts are u32"), tensor)
}

/// A norm's weight as it multiplies.
fn norm_weight(
    db: &Database,
    norm: NormSpec,
    role: TensorRole,
) -> Result<Option<Vec<f32>>, DbError> {
    match norm.weight {
        NormWeight::Absent => Ok(None),
        NormWeight::Plain | NormWeight::PlusOne => Ok(Some(tensor(db, role)?.to_f32())),
    }
}

/// What multiplies a down column of a part before it joins the residual stream.
fn post_scale(db: &Database, layer: usize, part: FfnPart) -> Result<Vec<f32>, DbError> {
    let spec = db.spec();
    let mut scale = vec![1.0; spec.d_model as usize];
    let mut through = |norm: NormSpec, weight: LayerTensor| -> Result<(), DbError> {
        if let Some(weight) = norm_weight(db, norm, layer_role(layer, weight))? {
            scale.iter_mut().zip(&weight).for_each(|(x, w)| *x *= w);
        }
        Ok(())
    };
    if let Ffn::Moe(moe) = ffn(db, layer)?
        && let Some(beside) = &moe.parallel_dense
    {
        match part {
            FfnPart::Dense => through(beside.dense_post, LayerTensor::DensePostNorm)?,
            FfnPart::Expert(_) | FfnPart::Shared => {
                through(beside.experts_post, LayerTensor::ExpertsPostNorm)?;
            }
        }
    }
    match &spec.layers[layer].block {
        BlockShape::Sandwich { ffn_post, .. } | BlockShape::PostNorm { ffn_post, .. } => {
            through(*ffn_post, LayerTensor::FfnPostNorm)?;
        }
        BlockShape::PreNorm { .. } | BlockShape::Parallel { .. } => {}
    }
    Ok(scale)
}

/// A stored matrix.
struct Weights {
    tensor: StoredTensor,
    rows: usize,
    cols: usize,
}

impl Weights {
    fn new(tensor: StoredTensor) -> Self {
        let dim = |i: usize| usize::try_from(tensor.shape[i]).expect("a mapped tensor fits memory");
        Self {
            rows: dim(0),
            cols: dim(1),
            tensor,
        }
    }

    fn unembedding(db: &Database) -> Result<Self, DbError> {
        let role = if db.spec().head.tied {
            TensorRole::TokenEmbedding
        } else {
            TensorRole::Head
        };
        Ok(Self::new(tensor(db, role)?))
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.tensor.format, self.rows, self.cols, &self.tensor.bytes)
            .expect("opening checked the shape of every tensor")
    }

    /// The matrix in tiles, for products.
    fn tiles(&self, runtime: &mut Runtime) -> Tiles {
        let (format, rows, cols) = (self.tensor.format, self.rows, self.cols);
        let n_bytes = tile_bytes(format, rows, cols).expect("as many as of rows in memory");
        let mut bytes = vec![0; n_bytes];
        pack_tiles(runtime.team(), self.view(), RowOrder::Stored, &mut bytes);
        Tiles {
            format,
            rows,
            cols,
            bytes,
        }
    }

    /// Columns `first..first + out.len()` of a row; both ends lie between blocks.
    fn part_of_row(&self, kernels: &Kernels, row: usize, first: usize, out: &mut [f32]) {
        let format = self.tensor.format;
        let bytes = |cols: usize| cols / format.block_len() * format.block_bytes();
        let row_bytes = self.view().row_bytes(row);
        kernels.decode(
            format,
            &row_bytes[bytes(first)..bytes(first + out.len())],
            out,
        );
    }
}

/// A matrix as products want it.
struct Tiles {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Tiles {
    fn view(&self) -> TileView<'_> {
        TileView::new(self.format, self.rows, self.cols, &self.bytes)
            .expect("they were packed from this shape")
    }
}

/// Norms of the rows.
fn row_norms(runtime: &mut Runtime, weights: &Weights) -> Vec<f32> {
    let kernels = runtime.kernels();
    let mut norms = vec![0.0; weights.rows];
    runtime
        .team()
        .chunks_mut(&mut norms, ROWS_PER_SHARE, |share, norms| {
            let mut values = vec![0.0; weights.cols];
            for (idx, norm) in norms.iter_mut().enumerate() {
                weights.part_of_row(kernels, share * ROWS_PER_SHARE + idx, 0, &mut values);
                *norm = values
                    .iter()
                    .map(|x| f64::from(*x) * f64::from(*x))
                    .sum::<f64>()
                    .sqrt() as f32;
            }
        });
    norms
}

/// Reads columns of a matrix, several at a time because a block of a row holds several.
struct Columns<'a> {
    weights: &'a Weights,
    block: Vec<f32>,
}

impl<'a> Columns<'a> {
    fn new(weights: &'a Weights) -> Self {
        Self {
            weights,
            block: Vec::new(),
        }
    }

    /// `out = [columns.len(), rows]`.
    fn read(&mut self, columns: &[u32], out: &mut Vec<f32>) {
        let (rows, cols) = (self.weights.rows, self.weights.cols);
        let kernels = Kernels::detect();
        // Wide enough that a dense batch is decoded in few calls, narrow enough that a lone column stays cheap.
        let width = self.weights.tensor.format.block_len().max(32);
        out.clear();
        out.resize(columns.len() * rows, 0.0);
        let mut sorted: Vec<(usize, usize)> = columns
            .iter()
            .enumerate()
            .map(|(place, column)| (*column as usize, place))
            .collect();
        sorted.sort_unstable();
        for group in sorted.chunk_by(|a, b| a.0 / width == b.0 / width) {
            let first = group[0].0 / width * width;
            self.block.resize(width.min(cols - first), 0.0);
            for row in 0..rows {
                self.weights
                    .part_of_row(kernels, row, first, &mut self.block);
                for (column, place) in group {
                    out[place * rows + row] = self.block[column - first];
                }
            }
        }
    }
}

/// `out[p, r] = w[r, :] . x[p, :]` in the exact arithmetic.
fn project(
    runtime: &mut Runtime,
    weight: TileView<'_>,
    x: &[f32],
    n_pos: usize,
    out: &mut Vec<f32>,
) {
    let kernels = runtime.kernels();
    let mut activations = Activations::new();
    activations.prepare(
        runtime.team(),
        kernels,
        x,
        n_pos,
        Arithmetic::Exact.forms(weight.cols(), [weight.format()]),
    );
    out.clear();
    out.resize(n_pos * weight.rows(), 0.0);
    let mut jobs = [LinearJob {
        weight,
        out: out.as_mut_slice(),
    }];
    linear(runtime.team(), kernels, &activations, &mut jobs);
}
