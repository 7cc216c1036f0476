//! The one forward pass.
//!
//! Prefill, decode, several positions, several sequences, traced and edited runs are arguments of [`forward`]. Every
//! position has its own activation scales and accumulators, so neighbours never change a result, and work is split by
//! output rows or by (position, head), never along a sum.

use crate::error::EngineError;
use crate::layers::{Block, Layer, Mixer, Norm};
use crate::ledger::OperatorClass;
use crate::model::Model;
use crate::pass::{Pass, add, add_bias, apply_norm, norm_chunks, visit};
use crate::rope::POSITIONS_MAX;
use crate::runtime::Runtime;
use crate::state::{SequenceState, Snapshot};
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
    for state in &mut *states {
        state.enter(runtime.profile())?;
    }
    let snapshots: Vec<Snapshot> = states.iter().map(SequenceState::snapshot).collect();
    let result = runtime.measured(|runtime| {
        runtime.count_pass();
        Pass::new(model, runtime, rows, tap).run(batch, states)
    });
    match &result {
        Ok(_) => {
            for (state, input) in states.iter_mut().zip(batch) {
                state.advance(input.tokens.len());
            }
        }
        Err(_) => {
            for (state, snapshot) in states.iter_mut().zip(snapshots) {
                state.restore(snapshot);
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
    let learned = spec
        .embedding
        .learned_positions
        .map_or(usize::MAX, |n| n as usize);
    let n_ctx = (spec.n_ctx as usize).min(POSITIONS_MAX).min(learned);
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
        if let Some(n_positions_max) = state.n_positions_max()
            && wanted > n_positions_max
        {
            return Err(EngineError::RopeLength {
                wanted,
                n_positions_max,
            });
        }
        rows.extend((state.n_positions()..wanted).map(|position| RowPlace { sequence, position }));
    }
    Ok(rows)
}

impl Pass<'_, '_> {
    fn run(
        &mut self,
        batch: &[SequenceInput<'_>],
        states: &mut [SequenceState],
    ) -> Result<Logits, EngineError> {
        let model = self.model;
        let d_model = model.spec().d_model as usize;
        let tokens: Vec<u32> = batch
            .iter()
            .flat_map(|input| input.tokens)
            .copied()
            .collect();
        let mut resid = self.embed(&tokens);
        self.per_layer_inputs(&tokens, &resid);
        let mut streams = match (&model.spec().altup, &model.altup) {
            (Some(spec), Some(stack)) => Some((*spec, self.split_streams(spec, stack, &resid))),
            (Some(_) | None, _) => None,
        };
        for (idx, layer) in model.layers.iter().enumerate() {
            self.runtime.check_interrupt()?;
            if let Some((spec, streams)) = &mut streams {
                resid.clone_from(&streams[spec.active as usize]);
            }
            self.visit(TapPoint::ResidPre, idx, &mut resid, d_model)?;
            match (&mut streams, &layer.altup) {
                (Some((spec, streams)), Some(altup)) => {
                    streams[spec.active as usize].clone_from(&resid);
                    let predicted = self.predict(spec, altup, streams);
                    resid.clone_from(&predicted[spec.active as usize]);
                    self.block(idx, layer, &mut resid, states)?;
                    *streams = self.correct(spec, altup, predicted, &resid);
                    if let Some(per_layer) = &layer.per_layer {
                        let scale = altup.correct_scale.as_deref();
                        let active = self.scaled_by(&streams[spec.active as usize], scale);
                        let branch = self.per_layer_branch(idx, per_layer, &active);
                        streams[1..]
                            .iter_mut()
                            .for_each(|stream| add(stream, &branch, 1.0));
                    }
                    resid.clone_from(&streams[spec.active as usize]);
                }
                (Some(_) | None, _) => {
                    self.block(idx, layer, &mut resid, states)?;
                    if let Some(per_layer) = &layer.per_layer {
                        let branch = self.per_layer_branch(idx, per_layer, &resid);
                        add(&mut resid, &branch, 1.0);
                    }
                }
            }
            if let Some(scalar) = layer.scalar {
                resid.iter_mut().for_each(|x| *x *= scalar);
            }
            self.visit(TapPoint::ResidPost, idx, &mut resid, d_model)?;
            self.check_finite(idx, &resid, d_model)?;
            if let Some((spec, streams)) = &mut streams {
                streams[spec.active as usize].clone_from(&resid);
            }
        }
        if let (Some((spec, streams)), Some(stack)) = (&streams, &model.altup) {
            resid = self.join_streams(spec, stack, streams);
        }
        self.head(batch, &resid)
    }

    /// Mixer and FFN of one layer, with their norms and residual additions.
    fn block(
        &mut self,
        idx: usize,
        layer: &Layer,
        resid: &mut [f32],
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let d_model = self.model.spec().d_model as usize;
        match &layer.block {
            Block::Sequential {
                mixer,
                mixer_post,
                ffn,
                ffn_post,
            } => {
                self.norm(mixer.as_ref(), resid);
                let laurel = layer.laurel.as_ref().map(|laurel| self.laurel(laurel));
                self.mix(idx, layer, states)?;
                let points = (TapPoint::AttnOutRaw, TapPoint::AttnOut);
                self.finish_branch(idx, mixer_post.as_ref(), points)?;
                add(resid, &self.branch, layer.residual_multiplier);
                if let Some(laurel) = laurel {
                    add(resid, &laurel, 1.0);
                    resid
                        .iter_mut()
                        .for_each(|x| *x *= std::f32::consts::FRAC_1_SQRT_2);
                }
                self.visit(TapPoint::ResidMid, idx, resid, d_model)?;
                self.norm(ffn.as_ref(), resid);
                self.ffn(idx, &layer.ffn, resid)?;
                let points = (TapPoint::MlpOutRaw, TapPoint::MlpOut);
                self.finish_branch(idx, ffn_post.as_ref(), points)?;
                add(resid, &self.branch, layer.residual_multiplier);
            }
            Block::Parallel { norm } => {
                self.norm(Some(norm), resid);
                self.mix(idx, layer, states)?;
                self.finish_branch(idx, None, (TapPoint::AttnOutRaw, TapPoint::AttnOut))?;
                let attn_out = std::mem::take(&mut self.branch);
                self.norm(Some(norm), resid);
                self.ffn(idx, &layer.ffn, resid)?;
                self.finish_branch(idx, None, (TapPoint::MlpOutRaw, TapPoint::MlpOut))?;
                add(resid, &attn_out, layer.residual_multiplier);
                add(resid, &self.branch, layer.residual_multiplier);
            }
        }
        Ok(())
    }

    /// `branch = mixer(normed)`.
    fn mix(
        &mut self,
        idx: usize,
        layer: &Layer,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(idx, attention, states),
            Mixer::Mla(mla) => self.mla(idx, mla, states),
            Mixer::Kda(kda) => self.kda(idx, kda, states),
            Mixer::GatedDelta(delta) => self.gated_delta(idx, delta, states),
        }
    }

    fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let (spec, embedding) = (self.model.spec(), &self.model.embedding);
        let d_model = spec.d_model as usize;
        let mut resid = vec![0.0; self.rows.len() * d_model];
        for (row, token) in resid.chunks_exact_mut(d_model).zip(tokens) {
            embedding.decode_row(*token as usize, row);
            if spec.embedding.multiplier != 1.0 {
                row.iter_mut().for_each(|x| *x *= spec.embedding.multiplier);
            }
        }
        if let Some(table) = &self.model.position_embedding {
            let mut position = vec![0.0; d_model];
            for (row, place) in resid.chunks_exact_mut(d_model).zip(&self.rows) {
                table.decode_row(place.position, &mut position);
                row.iter_mut().zip(&position).for_each(|(x, p)| *x += p);
            }
        }
        resid
    }

    /// Taps and norms of a branch's output before it joins the residual stream.
    fn finish_branch(
        &mut self,
        idx: usize,
        post: Option<&Norm>,
        (raw, out): (TapPoint, TapPoint),
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
            norm_chunks(self.runtime, norm, &mut self.branch, d_model);
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
            OperatorClass::Head,
            &normed,
            wanted.len(),
            &mut [(self.model.unembedding(), &mut values)],
        );
        add_bias(&mut values, self.model.head_bias.as_deref());
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
