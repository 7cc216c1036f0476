//! What joins the residual stream beside mixer and FFN: parallel streams, a low-rank branch, embeddings per layer.

use larql_models::spec::AltUpSpec;

use crate::activation;
use crate::layers::{AltUp, Laurel, PerLayer};
use crate::ledger::OperatorClass;
use crate::model::{AltUpStack, Matrix};
use crate::pass::{Pass, norm_chunks};

/// All residual streams of a pass, each `[rows, d_model]`.
pub(crate) type Streams = Vec<Vec<f32>>;

impl Pass<'_, '_> {
    /// The streams that enter layer 0: the embedding, and projections of it brought to its magnitude.
    pub(crate) fn split_streams(
        &mut self,
        altup: &AltUpSpec,
        stack: &AltUpStack,
        resid: &[f32],
    ) -> Streams {
        let mut streams = vec![resid.to_vec()];
        for matrix in &stack.project {
            streams.push(self.projected(matrix, resid, resid, altup.magnitude_floor));
        }
        streams
    }

    /// The mean of the first stream and the others, taken back and brought to its magnitude.
    pub(crate) fn join_streams(
        &mut self,
        altup: &AltUpSpec,
        stack: &AltUpStack,
        streams: &Streams,
    ) -> Vec<f32> {
        let mut sum = streams[0].clone();
        for (matrix, stream) in stack.unembed.iter().zip(&streams[1..]) {
            let back = self.projected(matrix, stream, &streams[0], altup.magnitude_floor);
            sum.iter_mut().zip(&back).for_each(|(x, y)| *x += y);
        }
        let n = streams.len() as f32;
        sum.iter_mut().for_each(|x| *x /= n);
        sum
    }

    /// `matrix x`, each row scaled to the root mean square of the same row of `like`.
    fn projected(&mut self, matrix: &Matrix, x: &[f32], like: &[f32], floor: f32) -> Vec<f32> {
        let (mut out, d_model) = (Vec::new(), matrix.cols());
        self.runtime.project(
            OperatorClass::Other,
            x,
            self.rows.len(),
            &mut [(matrix, &mut out)],
        );
        for (row, like) in out
            .chunks_exact_mut(d_model)
            .zip(like.chunks_exact(d_model))
        {
            let factor = mean_square(like).sqrt() / mean_square(row).max(floor).sqrt();
            row.iter_mut().for_each(|x| *x *= factor);
        }
        out
    }

    /// Every stream as the layer expects it from all of them (arXiv:2301.13310, eq. 1).
    pub(crate) fn predict(
        &mut self,
        spec: &AltUpSpec,
        altup: &AltUp,
        streams: &Streams,
    ) -> Streams {
        let (n, d_model) = (streams.len(), self.model.spec().d_model as usize);
        let modalities = self.modalities(spec, altup, &streams[spec.active as usize]);
        let mut predicted = streams.clone();
        for (row, modal) in modalities.chunks_exact(n).enumerate() {
            let span = row * d_model..(row + 1) * d_model;
            for (i, out) in predicted.iter_mut().enumerate() {
                for (j, stream) in streams.iter().enumerate() {
                    let weights = &altup.predict[(i * n + j) * n..][..n];
                    let factor = dot(weights, modal);
                    self.runtime.kernels.axpy(
                        factor,
                        &stream[span.clone()],
                        &mut out[span.clone()],
                    );
                }
            }
        }
        predicted
    }

    /// The predicted streams, moved by what the layer did to the active one.
    pub(crate) fn correct(
        &mut self,
        spec: &AltUpSpec,
        altup: &AltUp,
        mut predicted: Streams,
        activated: &[f32],
    ) -> Streams {
        let (n, d_model) = (predicted.len(), self.model.spec().d_model as usize);
        let modalities = self.modalities(spec, altup, activated);
        let active = &predicted[spec.active as usize];
        let innovation: Vec<f32> = activated.iter().zip(active).map(|(a, p)| a - p).collect();
        for (row, modal) in modalities.chunks_exact(n).enumerate() {
            let span = row * d_model..(row + 1) * d_model;
            for (i, out) in predicted.iter_mut().enumerate() {
                let factor = dot(&altup.correct[i * n..][..n], modal) + 1.0;
                self.runtime.kernels.axpy(
                    factor,
                    &innovation[span.clone()],
                    &mut out[span.clone()],
                );
            }
        }
        predicted
    }

    /// `tanh(router (norm(x) * multiplier))`, `[rows, n_streams]`.
    fn modalities(&mut self, spec: &AltUpSpec, altup: &AltUp, x: &[f32]) -> Vec<f32> {
        let d_model = self.model.spec().d_model as usize;
        let mut normed = vec![0.0; x.len()];
        self.norm_rows(&altup.router_norm, x, d_model, &mut normed);
        normed.iter_mut().for_each(|x| *x *= spec.router_multiplier);
        let mut out = Vec::new();
        self.runtime.project(
            OperatorClass::Other,
            &normed,
            self.rows.len(),
            &mut [(&altup.router, &mut out)],
        );
        out.iter_mut().for_each(|x| *x = x.tanh());
        out
    }

    /// The low-rank branch of `normed`, with `normed` itself.
    pub(crate) fn laurel(&mut self, laurel: &Laurel) -> Vec<f32> {
        let (mut low, mut out, n) = (Vec::new(), Vec::new(), self.rows.len());
        self.runtime.project(
            OperatorClass::Other,
            &self.normed,
            n,
            &mut [(&laurel.left, &mut low)],
        );
        self.runtime.project(
            OperatorClass::Other,
            &low,
            n,
            &mut [(&laurel.right, &mut out)],
        );
        let width = self.model.spec().d_model as usize;
        norm_chunks(self.runtime, &laurel.norm, &mut out, width);
        out.iter_mut().zip(&self.normed).for_each(|(x, y)| *x += y);
        out
    }

    /// Fills the per-layer inputs of all layers from the tokens and what enters layer 0.
    pub(crate) fn per_layer_inputs(&mut self, tokens: &[u32], resid: &[f32]) {
        let model = self.model;
        let (Some(spec), Some(table)) = (&model.spec().embedding.per_layer, &model.per_layer)
        else {
            return;
        };
        let width = spec.width as usize;
        let mut inputs = Vec::new();
        let scaled: Vec<f32> = resid.iter().map(|x| x * spec.context_multiplier).collect();
        self.runtime.project(
            OperatorClass::Other,
            &scaled,
            self.rows.len(),
            &mut [(&table.projection, &mut inputs)],
        );
        norm_chunks(self.runtime, &table.norm, &mut inputs, width);
        let mut row = vec![0.0; table.table.cols()];
        for (id, out) in tokens.iter().zip(inputs.chunks_exact_mut(row.len())) {
            // Tokens that the table does not know take its first row, as the reference does.
            let known = if *id < spec.d_vocab { *id as usize } else { 0 };
            table.table.decode_row(known, &mut row);
            for (x, token) in out.iter_mut().zip(&row) {
                *x = (*x + token * spec.token_multiplier) * spec.input_multiplier;
            }
        }
        self.per_layer = inputs;
    }

    /// What the layer's slice of the per-layer inputs adds to `x`.
    pub(crate) fn per_layer_branch(
        &mut self,
        idx: usize,
        per_layer: &PerLayer,
        x: &[f32],
    ) -> Vec<f32> {
        let (model, n) = (self.model, self.rows.len());
        let Some(spec) = &model.spec().embedding.per_layer else {
            return vec![0.0; x.len()];
        };
        let (width, d_model) = (spec.width as usize, model.spec().d_model as usize);
        let (mut gate, mut out) = (Vec::new(), Vec::new());
        self.runtime.project(
            OperatorClass::Other,
            x,
            n,
            &mut [(&per_layer.gate, &mut gate)],
        );
        let stride = model.spec().n_layers() * width;
        for (row, gate) in gate.chunks_exact_mut(width).enumerate() {
            let slice = &self.per_layer[row * stride + idx * width..][..width];
            activation::gated(self.runtime.kernels, spec.activation, gate, slice);
        }
        self.runtime.project(
            OperatorClass::Other,
            &gate,
            n,
            &mut [(&per_layer.up, &mut out)],
        );
        norm_chunks(self.runtime, &per_layer.post_norm, &mut out, d_model);
        out
    }

    /// `x * vector` in every row.
    pub(crate) fn scaled_by(&self, x: &[f32], vector: Option<&[f32]>) -> Vec<f32> {
        let mut out = x.to_vec();
        if let Some(vector) = vector {
            for row in out.chunks_exact_mut(vector.len()) {
                row.iter_mut().zip(vector).for_each(|(x, s)| *x *= s);
            }
        }
        out
    }
}

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
