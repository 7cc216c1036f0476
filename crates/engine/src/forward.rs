//! The one forward pass.
//!
//! Prefill, decode, several positions, several sequences, traced and edited runs are arguments of [`forward`]. Every
//! position has its own activation scales and accumulators, so neighbours never change a result, and work is split by
//! output rows or by (position, head), never along a sum.

use larql_kernels::{Kernels, decode_row};
use larql_models::spec::{Activation, NormKind, QkNorm};

use crate::activation;
use crate::attention::attend;
use crate::error::EngineError;
use crate::model::{Attention, Block, DenseFfn, Model, Norm};
use crate::rope::POSITIONS_MAX;
use crate::runtime::Runtime;
use crate::state::SequenceState;
use crate::tap::{RowPlace, Tap, TapPoint};

/// New tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// The tokens that follow what the state remembers.
    pub tokens: &'a [u32],
    /// Positions whose logits are wanted.
    pub logits: WantedLogits,
}

/// Positions whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedLogits {
    /// None of them.
    Absent,
    /// The last new position.
    Last,
    /// Every new position.
    All,
}

/// Logits of the wanted positions, in batch order.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    d_vocab: usize,
    places: Vec<RowPlace>,
    values: Vec<f32>,
}

impl Logits {
    /// Rows, in batch order.
    pub fn rows(&self) -> impl Iterator<Item = (RowPlace, &[f32])> {
        self.places
            .iter()
            .copied()
            .zip(self.values.chunks_exact(self.d_vocab))
    }

    /// The last wanted row of a sequence, `[d_vocab]`.
    pub fn last(&self, sequence: usize) -> Option<&[f32]> {
        let row = self
            .places
            .iter()
            .rposition(|place| place.sequence == sequence)?;
        Some(&self.values[row * self.d_vocab..][..self.d_vocab])
    }
}

/// Runs the new tokens of each sequence and appends to its state.
///
/// # Errors
/// Refuses bad input before anything runs; after any error the states are as they were.
pub fn forward(
    model: &Model,
    runtime: &mut Runtime,
    batch: &[SequenceInput<'_>],
    states: &mut [SequenceState],
    tap: Option<&mut dyn Tap>,
) -> Result<Logits, EngineError> {
    let rows = check(model, batch, states)?;
    let lengths: Vec<usize> = states.iter().map(SequenceState::n_positions).collect();
    let result = Pass::new(model, runtime, rows, tap).run(batch, states);
    match &result {
        Ok(_) => {
            for (state, input) in states.iter_mut().zip(batch) {
                state.advance(input.tokens.len());
            }
        }
        Err(_) => {
            for (state, n_positions) in states.iter_mut().zip(lengths) {
                state.truncate(n_positions);
            }
        }
    }
    result
}

fn check(
    model: &Model,
    batch: &[SequenceInput<'_>],
    states: &[SequenceState],
) -> Result<Vec<RowPlace>, EngineError> {
    if batch.len() != states.len() {
        return Err(EngineError::StateCount {
            sequences: batch.len(),
            states: states.len(),
        });
    }
    let spec = model.spec();
    let n_ctx = (spec.n_ctx as usize).min(POSITIONS_MAX);
    let mut rows = Vec::new();
    for (sequence, (input, state)) in batch.iter().zip(states).enumerate() {
        if state.n_layers() != spec.n_layers() {
            return Err(EngineError::StateLayers {
                expected: spec.n_layers(),
                got: state.n_layers(),
            });
        }
        if input.tokens.is_empty() {
            return Err(EngineError::EmptyInput { sequence });
        }
        if let Some(id) = input.tokens.iter().find(|id| **id >= spec.d_vocab) {
            return Err(EngineError::TokenOutOfRange {
                id: *id,
                d_vocab: spec.d_vocab,
            });
        }
        let wanted = state.n_positions() + input.tokens.len();
        if wanted > n_ctx {
            return Err(EngineError::ContextFull { wanted, n_ctx });
        }
        rows.extend((state.n_positions()..wanted).map(|position| RowPlace { sequence, position }));
    }
    Ok(rows)
}

/// Buffers and arguments of one pass; every buffer is `[rows, width]`.
struct Pass<'a, 't> {
    model: &'a Model,
    runtime: &'a mut Runtime,
    rows: Vec<RowPlace>,
    tap: Option<&'t mut (dyn Tap + 't)>,
    normed: Vec<f32>,
    branch: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    z: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    ones: Vec<f32>,
}

impl<'a, 't> Pass<'a, 't> {
    fn new(
        model: &'a Model,
        runtime: &'a mut Runtime,
        rows: Vec<RowPlace>,
        tap: Option<&'t mut (dyn Tap + 't)>,
    ) -> Self {
        let empty = Vec::new;
        Self {
            model,
            runtime,
            rows,
            tap,
            normed: empty(),
            branch: empty(),
            q: empty(),
            k: empty(),
            v: empty(),
            z: empty(),
            gate: empty(),
            up: empty(),
            ones: empty(),
        }
    }

    fn run(
        &mut self,
        batch: &[SequenceInput<'_>],
        states: &mut [SequenceState],
    ) -> Result<Logits, EngineError> {
        let d_model = self.model.spec().d_model as usize;
        let mut resid = self.embed(batch);
        for (idx, layer) in self.model.layers.iter().enumerate() {
            self.runtime.check_interrupt()?;
            self.visit(TapPoint::ResidPre, idx, &mut resid, d_model)?;
            match &layer.block {
                Block::Sequential {
                    mixer,
                    mixer_post,
                    ffn,
                    ffn_post,
                } => {
                    self.norm(mixer.as_ref(), &resid);
                    self.attention(idx, &layer.attention, states)?;
                    self.finish_branch(
                        idx,
                        mixer_post.as_ref(),
                        TapPoint::AttnOutRaw,
                        TapPoint::AttnOut,
                    )?;
                    add(&mut resid, &self.branch, layer.residual_multiplier);
                    self.visit(TapPoint::ResidMid, idx, &mut resid, d_model)?;
                    self.norm(ffn.as_ref(), &resid);
                    self.ffn(idx, &layer.ffn)?;
                    self.finish_branch(
                        idx,
                        ffn_post.as_ref(),
                        TapPoint::MlpOutRaw,
                        TapPoint::MlpOut,
                    )?;
                    add(&mut resid, &self.branch, layer.residual_multiplier);
                }
                Block::Parallel { norm } => {
                    self.norm(Some(norm), &resid);
                    self.attention(idx, &layer.attention, states)?;
                    self.finish_branch(idx, None, TapPoint::AttnOutRaw, TapPoint::AttnOut)?;
                    let attn_out = std::mem::take(&mut self.branch);
                    self.norm(Some(norm), &resid);
                    self.ffn(idx, &layer.ffn)?;
                    self.finish_branch(idx, None, TapPoint::MlpOutRaw, TapPoint::MlpOut)?;
                    add(&mut resid, &attn_out, layer.residual_multiplier);
                    add(&mut resid, &self.branch, layer.residual_multiplier);
                }
            }
            self.visit(TapPoint::ResidPost, idx, &mut resid, d_model)?;
            self.check_finite(idx, &resid, d_model)?;
        }
        self.head(batch, &resid)
    }

    /// Refuses to go on with what is no number: everything after it would look like an answer.
    fn check_finite(&self, layer: usize, resid: &[f32], d_model: usize) -> Result<(), EngineError> {
        match resid.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(at) => {
                let position = self.rows[at / d_model].position;
                Err(EngineError::NotFinite { layer, position })
            }
        }
    }

    /// Hands `[rows, width]` to the tap, row by row.
    fn visit(
        &mut self,
        point: TapPoint,
        layer: usize,
        data: &mut [f32],
        width: usize,
    ) -> Result<(), EngineError> {
        visit(&mut self.tap, point, layer, &self.rows, data, width)
    }

    fn embed(&self, batch: &[SequenceInput<'_>]) -> Vec<f32> {
        let (spec, embedding) = (self.model.spec(), self.model.embedding.view());
        let d_model = spec.d_model as usize;
        let mut resid = vec![0.0; self.rows.len() * d_model];
        let tokens = batch.iter().flat_map(|input| input.tokens);
        for (row, token) in resid.chunks_exact_mut(d_model).zip(tokens) {
            decode_row(embedding, *token as usize, row);
            if spec.embedding.multiplier != 1.0 {
                row.iter_mut().for_each(|x| *x *= spec.embedding.multiplier);
            }
        }
        resid
    }

    /// `normed = norm(resid)`, or a copy where the branch has no norm before it.
    fn norm(&mut self, norm: Option<&Norm>, resid: &[f32]) {
        let d_model = self.model.spec().d_model as usize;
        self.normed.resize(resid.len(), 0.0);
        match norm {
            None => self.normed.copy_from_slice(resid),
            Some(norm) => {
                let kernels = self.runtime.kernels;
                self.runtime
                    .team
                    .chunks_mut(&mut self.normed, d_model, |row, out| {
                        apply_norm(kernels, norm, &resid[row * d_model..][..d_model], out);
                    });
            }
        }
    }

    /// `branch = attention(normed)`, appending keys and values to the states.
    fn attention(
        &mut self,
        idx: usize,
        attention: &Attention,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let (spec, n) = (&attention.spec, self.rows.len());
        let d_head = spec.d_head as usize;
        let (q_width, kv_width) = (
            spec.n_heads as usize * d_head,
            spec.n_kv_heads as usize * d_head,
        );
        self.runtime.project(
            &self.normed,
            n,
            &mut [
                (&attention.q, &mut self.q),
                (&attention.k, &mut self.k),
                (&attention.v, &mut self.v),
            ],
        );
        add_bias(&mut self.q, attention.q_bias.as_deref());
        add_bias(&mut self.k, attention.k_bias.as_deref());
        add_bias(&mut self.v, attention.v_bias.as_deref());
        if let Some(limit) = spec.clip_qkv {
            for x in self.q.iter_mut().chain(&mut self.k).chain(&mut self.v) {
                *x = x.clamp(-limit, limit);
            }
        }
        if let Some((q_norm, k_norm)) = &attention.qk_norm {
            let (q_chunk, k_chunk) = match spec.qk_norm {
                QkNorm::FullWidth(_) => (q_width, kv_width),
                QkNorm::PerHead(_) | QkNorm::Absent => (d_head, d_head),
            };
            norm_chunks(self.runtime.kernels, q_norm, &mut self.q, q_chunk);
            norm_chunks(self.runtime.kernels, k_norm, &mut self.k, k_chunk);
        }
        if let Some(rope) = attention.rope.map(|rope| &self.model.ropes[rope]) {
            for (row, place) in self.rows.iter().enumerate() {
                rope.rotate(
                    &mut self.q[row * q_width..][..q_width],
                    d_head,
                    place.position,
                );
                rope.rotate(
                    &mut self.k[row * kv_width..][..kv_width],
                    d_head,
                    place.position,
                );
            }
        }
        visit(
            &mut self.tap,
            TapPoint::AttnQ,
            idx,
            &self.rows,
            &mut self.q,
            q_width,
        )?;
        visit(
            &mut self.tap,
            TapPoint::AttnK,
            idx,
            &self.rows,
            &mut self.k,
            kv_width,
        )?;
        visit(
            &mut self.tap,
            TapPoint::AttnV,
            idx,
            &self.rows,
            &mut self.v,
            kv_width,
        )?;
        for (row, place) in self.rows.iter().enumerate() {
            let (k, v) = (
                &self.k[row * kv_width..][..kv_width],
                &self.v[row * kv_width..][..kv_width],
            );
            states[place.sequence].push(idx, k, v);
        }
        self.z.resize(n * q_width, 0.0);
        attend(
            self.runtime,
            spec,
            idx,
            states,
            &self.rows,
            &self.q,
            &mut self.z,
            &mut self.tap,
        )?;
        visit(
            &mut self.tap,
            TapPoint::AttnZ,
            idx,
            &self.rows,
            &mut self.z,
            q_width,
        )?;
        self.runtime
            .project(&self.z, n, &mut [(&attention.o, &mut self.branch)]);
        add_bias(&mut self.branch, attention.o_bias.as_deref());
        Ok(())
    }

    /// `branch = ffn(normed)`.
    fn ffn(&mut self, idx: usize, ffn: &DenseFfn) -> Result<(), EngineError> {
        let (n, d_mlp, d_model) = (
            self.rows.len(),
            ffn.spec.d_mlp as usize,
            self.model.spec().d_model as usize,
        );
        visit(
            &mut self.tap,
            TapPoint::MlpIn,
            idx,
            &self.rows,
            &mut self.normed,
            d_model,
        )?;
        match &ffn.gate {
            Some(gate) => {
                self.runtime.project(
                    &self.normed,
                    n,
                    &mut [(gate, &mut self.gate), (&ffn.up, &mut self.up)],
                );
                add_bias(&mut self.gate, ffn.gate_bias.as_deref());
                add_bias(&mut self.up, ffn.up_bias.as_deref());
            }
            None => {
                self.runtime
                    .project(&self.normed, n, &mut [(&ffn.up, &mut self.gate)]);
                add_bias(&mut self.gate, ffn.up_bias.as_deref());
            }
        }
        visit(
            &mut self.tap,
            TapPoint::MlpPre,
            idx,
            &self.rows,
            &mut self.gate,
            d_mlp,
        )?;
        self.activate(ffn.spec.activation, ffn.gate.is_some(), d_mlp);
        visit(
            &mut self.tap,
            TapPoint::MlpPost,
            idx,
            &self.rows,
            &mut self.gate,
            d_mlp,
        )?;
        self.runtime
            .project(&self.gate, n, &mut [(&ffn.down, &mut self.branch)]);
        add_bias(&mut self.branch, ffn.down_bias.as_deref());
        Ok(())
    }

    fn activate(&mut self, activation: Activation, is_gated: bool, d_mlp: usize) {
        let kernels = self.runtime.kernels;
        let up = &self.up;
        if is_gated {
            self.runtime
                .team
                .chunks_mut(&mut self.gate, d_mlp, |row, gate| {
                    activation::gated(kernels, activation, gate, &up[row * d_mlp..][..d_mlp]);
                });
        } else {
            self.ones.resize(d_mlp, 1.0);
            let ones = &self.ones;
            self.runtime.team.chunks_mut(&mut self.gate, d_mlp, |_, x| {
                activation::plain(kernels, activation, x, ones);
            });
        }
    }

    /// Taps and norms of a branch's output before it joins the residual stream.
    fn finish_branch(
        &mut self,
        idx: usize,
        post: Option<&Norm>,
        raw: TapPoint,
        out: TapPoint,
    ) -> Result<(), EngineError> {
        let d_model = self.model.spec().d_model as usize;
        visit(
            &mut self.tap,
            raw,
            idx,
            &self.rows,
            &mut self.branch,
            d_model,
        )?;
        if let Some(norm) = post {
            norm_chunks(self.runtime.kernels, norm, &mut self.branch, d_model);
        }
        visit(
            &mut self.tap,
            out,
            idx,
            &self.rows,
            &mut self.branch,
            d_model,
        )
    }

    fn head(&mut self, batch: &[SequenceInput<'_>], resid: &[f32]) -> Result<Logits, EngineError> {
        let spec = self.model.spec();
        let (d_model, d_vocab, n_layers) = (
            spec.d_model as usize,
            spec.d_vocab as usize,
            spec.n_layers(),
        );
        let mut wanted = Vec::new();
        let mut first = 0;
        for input in batch {
            let rows = first..first + input.tokens.len();
            wanted.extend(match input.logits {
                WantedLogits::Absent => rows.end..rows.end,
                WantedLogits::Last => rows.end - 1..rows.end,
                WantedLogits::All => rows.clone(),
            });
            first = rows.end;
        }
        let places: Vec<RowPlace> = wanted.iter().map(|row| self.rows[*row]).collect();
        if places.is_empty() {
            return Ok(Logits {
                d_vocab,
                places,
                values: Vec::new(),
            });
        }
        let mut normed = vec![0.0; wanted.len() * d_model];
        for (out, row) in normed.chunks_exact_mut(d_model).zip(&wanted) {
            apply_norm(
                self.runtime.kernels,
                &self.model.final_norm,
                &resid[row * d_model..][..d_model],
                out,
            );
        }
        visit(
            &mut self.tap,
            TapPoint::FinalNorm,
            n_layers,
            &places,
            &mut normed,
            d_model,
        )?;
        let mut values = Vec::new();
        self.runtime.project(
            &normed,
            wanted.len(),
            &mut [(self.model.unembedding(), &mut values)],
        );
        if spec.head.scale != 1.0 {
            values.iter_mut().for_each(|x| *x *= spec.head.scale);
        }
        if let Some(cap) = spec.head.softcap {
            values.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        visit(
            &mut self.tap,
            TapPoint::Logits,
            n_layers,
            &places,
            &mut values,
            d_vocab,
        )?;
        if let Some(at) = values.iter().position(|x| x.is_nan()) {
            return Err(EngineError::NotANumber { id: at % d_vocab });
        }
        Ok(Logits {
            d_vocab,
            places,
            values,
        })
    }
}

/// Hands `[rows, width]` to the tap, row by row, if it wants the point.
fn visit(
    tap: &mut Option<&mut dyn Tap>,
    point: TapPoint,
    layer: usize,
    places: &[RowPlace],
    data: &mut [f32],
    width: usize,
) -> Result<(), EngineError> {
    let Some(tap) = tap.as_mut().filter(|tap| tap.wants(point, layer)) else {
        return Ok(());
    };
    for (place, row) in places.iter().zip(data.chunks_exact_mut(width)) {
        tap.visit(point, layer, *place, row)
            .map_err(|message| EngineError::Tap {
                layer,
                point: point.name(),
                message,
            })?;
    }
    Ok(())
}

/// `out = norm(x)`.
fn apply_norm(kernels: &Kernels, norm: &Norm, x: &[f32], out: &mut [f32]) {
    match norm.kind {
        NormKind::Rms => kernels.rms_norm(x, norm.weight.as_deref(), norm.eps, out),
        NormKind::Layer | NormKind::LayerWithBias => {
            let weight = norm
                .weight
                .as_deref()
                .expect("a layer norm without weight is refused at load");
            kernels.layer_norm(x, weight, None, norm.eps, out);
        }
    }
}

/// Norms each chunk of `width` in place.
fn norm_chunks(kernels: &Kernels, norm: &Norm, data: &mut [f32], width: usize) {
    let mut out = vec![0.0; width];
    for chunk in data.chunks_exact_mut(width) {
        apply_norm(kernels, norm, chunk, &mut out);
        chunk.copy_from_slice(&out);
    }
}

fn add_bias(data: &mut [f32], bias: Option<&[f32]>) {
    let Some(bias) = bias else { return };
    for row in data.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// `resid += multiplier * branch`.
fn add(resid: &mut [f32], branch: &[f32], multiplier: f32) {
    resid
        .iter_mut()
        .zip(branch)
        .for_each(|(x, b)| *x += multiplier * b);
}
