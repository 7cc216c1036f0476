//! What joins the residual stream beside mixer and FFN: parallel streams, a low-rank branch, embeddings per layer.

use larql_models::spec::AltUpSpec;

use crate::activation;
use crate::layers::{AltUp, Laurel, PerLayer};
use crate::ledger::OperatorClass;
use crate::model::{AltUpStack, Matrix};
use crate::pass::{Pass, add, norm_chunks};

/// Room for what stands beside mixer and FFN.
#[derive(Debug, Default)]
pub(crate) struct StreamRoom {
    /// All residual streams, each `[rows, d_model]`.
    streams: Vec<Vec<f32>>,
    /// The same as a layer expects them.
    predicted: Vec<Vec<f32>>,
    /// One stream on its way: normed, scaled, or taken back.
    passing: Vec<f32>,
    modalities: Vec<f32>,
    /// What the low-rank branch adds.
    pub(crate) laurel: Vec<f32>,
    /// The inner values of a branch.
    inner: Vec<f32>,
    /// Per-layer inputs, `[rows, n_layers * width]`, where the model has them.
    per_layer: Vec<f32>,
    /// What a layer's slice of them adds.
    branch: Vec<f32>,
}

impl Pass<'_, '_> {
    /// The stream that layers work on.
    pub(crate) fn active_stream(&mut self, altup: &AltUpSpec) -> &mut Vec<f32> {
        &mut self.room.streams.streams[altup.active as usize]
    }

    /// The same as the layer expects it, since [`Self::predict`].
    pub(crate) fn predicted_stream(&self, altup: &AltUpSpec) -> &Vec<f32> {
        &self.room.streams.predicted[altup.active as usize]
    }

    /// The streams that enter layer 0: the embedding, and projections of it brought to its magnitude.
    pub(crate) fn split_streams(&mut self, altup: &AltUpSpec, stack: &AltUpStack, resid: &[f32]) {
        let mut streams = std::mem::take(&mut self.room.streams.streams);
        streams.resize_with(1 + stack.project.len(), Vec::new);
        let (first, others) = streams.split_first_mut().expect("it has one or more");
        first.clear();
        first.extend_from_slice(resid);
        for (matrix, stream) in stack.project.iter().zip(others) {
            self.projected(matrix, resid, resid, altup.magnitude_floor, stream);
        }
        self.room.streams.streams = streams;
    }

    /// `sum` = the mean of the first stream and the others, taken back and brought to its magnitude.
    pub(crate) fn join_streams(
        &mut self,
        altup: &AltUpSpec,
        stack: &AltUpStack,
        sum: &mut Vec<f32>,
    ) {
        let mut room = std::mem::take(&mut self.room.streams);
        let (streams, back) = (&room.streams, &mut room.passing);
        sum.clone_from(&streams[0]);
        for (matrix, stream) in stack.unembed.iter().zip(&streams[1..]) {
            self.projected(matrix, stream, &streams[0], altup.magnitude_floor, back);
            sum.iter_mut().zip(&*back).for_each(|(x, y)| *x += y);
        }
        let n = streams.len() as f32;
        sum.iter_mut().for_each(|x| *x /= n);
        self.room.streams = room;
    }

    /// `out = matrix x`, each row scaled to the root mean square of the same row of `like`.
    fn projected(
        &mut self,
        matrix: &Matrix,
        x: &[f32],
        like: &[f32],
        floor: f32,
        out: &mut Vec<f32>,
    ) {
        let (n, d_model) = (self.rows.len(), matrix.cols());
        self.runtime
            .project(OperatorClass::Other, x, n, &mut [(matrix, &mut *out)]);
        for (row, like) in out
            .chunks_exact_mut(d_model)
            .zip(like.chunks_exact(d_model))
        {
            let factor = mean_square(like).sqrt() / mean_square(row).max(floor).sqrt();
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Predicts every stream as the layer expects it from all of them (arXiv:2301.13310, eq. 1).
    pub(crate) fn predict(&mut self, spec: &AltUpSpec, altup: &AltUp) {
        let mut room = std::mem::take(&mut self.room.streams);
        let active = std::mem::take(&mut room.streams[spec.active as usize]);
        self.modalities(spec, altup, &active, &mut room);
        room.streams[spec.active as usize] = active;
        let StreamRoom {
            streams,
            predicted,
            modalities,
            ..
        } = &mut room;
        let (n, d_model) = (streams.len(), self.model.spec().d_model as usize);
        predicted.clone_from(streams);
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
        self.room.streams = room;
    }

    /// Makes the streams the predicted ones, moved by what the layer did to the active one.
    pub(crate) fn correct(&mut self, spec: &AltUpSpec, altup: &AltUp, activated: &[f32]) {
        let mut room = std::mem::take(&mut self.room.streams);
        self.modalities(spec, altup, activated, &mut room);
        let StreamRoom {
            streams,
            predicted,
            passing: innovation,
            modalities,
            ..
        } = &mut room;
        let (n, d_model) = (predicted.len(), self.model.spec().d_model as usize);
        let active = &predicted[spec.active as usize];
        innovation.clear();
        innovation.extend(activated.iter().zip(active).map(|(a, p)| a - p));
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
        std::mem::swap(streams, predicted);
        self.room.streams = room;
    }

    /// `modalities = tanh(router (norm(x) * multiplier))`, `[rows, n_streams]`.
    fn modalities(&mut self, spec: &AltUpSpec, altup: &AltUp, x: &[f32], room: &mut StreamRoom) {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let (normed, out) = (&mut room.passing, &mut room.modalities);
        normed.resize(x.len(), 0.0);
        self.norm_rows(&altup.router_norm, x, d_model, normed);
        normed.iter_mut().for_each(|x| *x *= spec.router_multiplier);
        self.runtime.project(
            OperatorClass::Other,
            normed,
            n,
            &mut [(&altup.router, &mut *out)],
        );
        out.iter_mut().for_each(|x| *x = x.tanh());
    }

    /// The low-rank branch of `normed`, with `normed` itself.
    pub(crate) fn laurel(&mut self, laurel: &Laurel) {
        let (n, width) = (self.rows.len(), self.model.spec().d_model as usize);
        let normed = &self.room.normed;
        let StreamRoom {
            inner: low,
            laurel: out,
            ..
        } = &mut self.room.streams;
        self.runtime.project(
            OperatorClass::Other,
            normed,
            n,
            &mut [(&laurel.left, &mut *low)],
        );
        self.runtime.project(
            OperatorClass::Other,
            low,
            n,
            &mut [(&laurel.right, &mut *out)],
        );
        norm_chunks(self.runtime, &laurel.norm, out, width);
        out.iter_mut().zip(normed).for_each(|(x, y)| *x += y);
    }

    /// Fills the per-layer inputs of all layers from the tokens and what enters layer 0.
    pub(crate) fn per_layer_inputs(&mut self, tokens: &[u32], resid: &[f32]) {
        let model = self.model;
        let (Some(spec), Some(table)) = (&model.spec().embedding.per_layer, &model.per_layer)
        else {
            return;
        };
        let (n, width) = (self.rows.len(), spec.width as usize);
        let StreamRoom {
            passing: scaled,
            per_layer: inputs,
            ..
        } = &mut self.room.streams;
        scaled.clear();
        scaled.extend(resid.iter().map(|x| x * spec.context_multiplier));
        self.runtime.project(
            OperatorClass::Other,
            scaled,
            n,
            &mut [(&table.projection, &mut *inputs)],
        );
        norm_chunks(self.runtime, &table.norm, inputs, width);
        let row = &mut self.room.embedding;
        row.resize(table.table.cols(), 0.0);
        for (id, out) in tokens.iter().zip(inputs.chunks_exact_mut(row.len())) {
            // Tokens that the table does not know take its first row, as the reference does.
            let known = if *id < spec.d_vocab { *id as usize } else { 0 };
            table.table.decode_row(known, row);
            for (x, token) in out.iter_mut().zip(&*row) {
                *x = (*x + token * spec.token_multiplier) * spec.input_multiplier;
            }
        }
    }

    /// Adds to `x` what the layer's slice of the per-layer inputs makes of it.
    pub(crate) fn per_layer_on(&mut self, idx: usize, per_layer: &PerLayer, x: &mut [f32]) {
        let mut room = std::mem::take(&mut self.room.streams);
        self.per_layer_branch(idx, per_layer, x, &mut room);
        add(x, &room.branch, 1.0);
        self.room.streams = room;
    }

    /// Adds to every stream but the first what the layer's slice of the per-layer inputs makes of the active one.
    pub(crate) fn per_layer_on_streams(
        &mut self,
        idx: usize,
        spec: &AltUpSpec,
        altup: &AltUp,
        per_layer: &PerLayer,
    ) {
        let mut room = std::mem::take(&mut self.room.streams);
        let mut active = std::mem::take(&mut room.passing);
        active.clone_from(&room.streams[spec.active as usize]);
        if let Some(scale) = &altup.correct_scale {
            for row in active.chunks_exact_mut(scale.len()) {
                row.iter_mut().zip(scale).for_each(|(x, s)| *x *= s);
            }
        }
        self.per_layer_branch(idx, per_layer, &active, &mut room);
        for stream in &mut room.streams[1..] {
            add(stream, &room.branch, 1.0);
        }
        room.passing = active;
        self.room.streams = room;
    }

    /// `branch` = what the layer's slice of the per-layer inputs makes of `x`.
    fn per_layer_branch(
        &mut self,
        idx: usize,
        per_layer: &PerLayer,
        x: &[f32],
        room: &mut StreamRoom,
    ) {
        let (model, n) = (self.model, self.rows.len());
        let StreamRoom {
            inner: gate,
            branch: out,
            per_layer: inputs,
            ..
        } = room;
        let Some(spec) = &model.spec().embedding.per_layer else {
            out.clear();
            return;
        };
        let (width, d_model) = (spec.width as usize, model.spec().d_model as usize);
        self.runtime.project(
            OperatorClass::Other,
            x,
            n,
            &mut [(&per_layer.gate, &mut *gate)],
        );
        let stride = model.spec().n_layers() * width;
        for (row, gate) in gate.chunks_exact_mut(width).enumerate() {
            let slice = &inputs[row * stride + idx * width..][..width];
            activation::gated(self.runtime.kernels, spec.activation, gate, slice);
        }
        self.runtime.project(
            OperatorClass::Other,
            gate,
            n,
            &mut [(&per_layer.up, &mut *out)],
        );
        norm_chunks(self.runtime, &per_layer.post_norm, out, d_model);
    }
}

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
