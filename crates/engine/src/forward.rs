//! The one forward pass.
//!
//! Prefill, decode, several positions, several sequences, traced and edited runs are arguments of [`forward`]. Every
//! position has its own activation scales and accumulators, so neighbours never change a result, and work is split by
//! output rows or by (position, head), never along a sum.

use std::sync::Arc;

use crate::error::EngineError;
use crate::layers::{Block, Layer, Mixer, Norm};
use crate::ledger::OperatorClass;
use crate::model::Model;
use crate::pass::{Pass, add, add_bias, apply_norm, norm_chunks, visit};
use crate::rope::POSITIONS_MAX;
use crate::runtime::Runtime;
use crate::sample::{first_nan, first_not_finite};
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

/// Logits of the wanted positions, in batch order. A copy shares the values; once the last is dropped, a later pass writes
/// to the same memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits(Arc<LogitRows>);

/// The values behind [`Logits`].
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LogitRows {
    d_vocab: usize,
    places: Vec<RowPlace>,
    values: Vec<f32>,
}

impl Logits {
    /// Rows, in batch order.
    pub fn rows(&self) -> impl Iterator<Item = (RowPlace, &[f32])> {
        let LogitRows {
            d_vocab,
            places,
            values,
        } = &*self.0;
        places.iter().copied().zip(values.chunks_exact(*d_vocab))
    }

    /// The last wanted row of a sequence, `[d_vocab]`.
    pub fn last(&self, sequence: usize) -> Option<&[f32]> {
        let LogitRows {
            d_vocab,
            places,
            values,
        } = &*self.0;
        let row = places
            .iter()
            .rposition(|place| place.sequence == sequence)?;
        Some(&values[row * d_vocab..][..*d_vocab])
    }
}

impl LogitRows {
    /// Values that there is memory for.
    pub(crate) fn capacity(&self) -> usize {
        self.values.capacity()
    }
}

/// Room for what a batch is before it runs and may have to be again, kept from pass to pass.
#[derive(Debug, Default)]
pub(crate) struct BatchRoom {
    rows: Vec<RowPlace>,
    tokens: Vec<u32>,
    snapshots: Vec<Snapshot>,
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
    let mut room = std::mem::take(&mut runtime.batch);
    let result = run_batch(model, runtime, batch, states, tap, &mut room);
    runtime.batch = room;
    result
}

fn run_batch(
    model: &Model,
    runtime: &mut Runtime,
    batch: &[SequenceInput<'_>],
    states: &mut [SequenceState],
    tap: Option<&mut dyn Tap>,
    room: &mut BatchRoom,
) -> Result<Logits, EngineError> {
    let BatchRoom {
        rows,
        tokens,
        snapshots,
    } = room;
    check(model, batch, states, rows)?;
    for state in &mut *states {
        state.enter(runtime.profile())?;
    }
    snapshots.resize_with(states.len(), Snapshot::default);
    for (state, snapshot) in states.iter().zip(&mut *snapshots) {
        state.take_snapshot(snapshot);
    }
    tokens.clear();
    for input in batch {
        tokens.extend_from_slice(input.tokens);
    }
    let result = runtime.measured(|runtime| {
        runtime.count_pass();
        let mut pass = Pass::new(model, runtime, rows, tap);
        let result = pass.run(batch, tokens, states);
        pass.end();
        result
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

/// Refuses what cannot be run; fills `rows` with the places of the new tokens.
fn check(
    model: &Model,
    batch: &[SequenceInput<'_>],
    states: &[SequenceState],
    rows: &mut Vec<RowPlace>,
) -> Result<(), EngineError> {
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
    rows.clear();
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
    Ok(())
}

impl Pass<'_, '_> {
    fn run(
        &mut self,
        batch: &[SequenceInput<'_>],
        tokens: &[u32],
        states: &mut [SequenceState],
    ) -> Result<Logits, EngineError> {
        let mut resid = std::mem::take(&mut self.room.resid);
        let result = self
            .layers(tokens, states, &mut resid)
            .and_then(|()| self.head(batch, &resid));
        self.room.resid = resid;
        result
    }

    /// The residual stream from the embedding to the last layer.
    fn layers(
        &mut self,
        tokens: &[u32],
        states: &mut [SequenceState],
        resid: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let model = self.model;
        let d_model = model.spec().d_model as usize;
        self.embed(tokens, resid);
        self.per_layer_inputs(tokens, resid);
        let streams = match (&model.spec().altup, &model.altup) {
            (Some(spec), Some(stack)) => {
                self.split_streams(spec, stack, resid);
                Some((spec, stack))
            }
            (Some(_) | None, _) => None,
        };
        for (idx, layer) in model.layers.iter().enumerate() {
            self.runtime.check_interrupt()?;
            if let Some((spec, _)) = streams {
                resid.clone_from(self.active_stream(spec));
            }
            self.visit(TapPoint::ResidPre, idx, resid, d_model)?;
            match (streams, &layer.altup) {
                (Some((spec, _)), Some(altup)) => {
                    self.active_stream(spec).clone_from(resid);
                    self.predict(spec, altup);
                    resid.clone_from(self.predicted_stream(spec));
                    self.block(idx, layer, resid, states)?;
                    self.correct(spec, altup, resid);
                    if let Some(per_layer) = &layer.per_layer {
                        self.per_layer_on_streams(idx, spec, altup, per_layer);
                    }
                    resid.clone_from(self.active_stream(spec));
                }
                (Some(_) | None, _) => {
                    self.block(idx, layer, resid, states)?;
                    if let Some(per_layer) = &layer.per_layer {
                        self.per_layer_on(idx, per_layer, resid);
                    }
                }
            }
            if let Some(scalar) = layer.scalar {
                resid.iter_mut().for_each(|x| *x *= scalar);
            }
            self.visit(TapPoint::ResidPost, idx, resid, d_model)?;
            self.check_finite(idx, resid, d_model)?;
            if let Some((spec, _)) = streams {
                self.active_stream(spec).clone_from(resid);
            }
        }
        if let Some((spec, stack)) = streams {
            self.join_streams(spec, stack, resid);
        }
        Ok(())
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
                if let Some(laurel) = &layer.laurel {
                    self.laurel(laurel);
                }
                self.mix(idx, layer, states)?;
                let points = (TapPoint::AttnOutRaw, TapPoint::AttnOut);
                self.finish_branch(idx, mixer_post.as_ref(), points)?;
                add(resid, &self.room.branch, layer.residual_multiplier);
                if layer.laurel.is_some() {
                    add(resid, &self.room.streams.laurel, 1.0);
                    resid
                        .iter_mut()
                        .for_each(|x| *x *= std::f32::consts::FRAC_1_SQRT_2);
                }
                self.visit(TapPoint::ResidMid, idx, resid, d_model)?;
                self.norm(ffn.as_ref(), resid);
                self.ffn(idx, &layer.ffn, resid)?;
                let points = (TapPoint::MlpOutRaw, TapPoint::MlpOut);
                self.finish_branch(idx, ffn_post.as_ref(), points)?;
                add(resid, &self.room.branch, layer.residual_multiplier);
            }
            Block::Parallel { norm } => {
                self.norm(Some(norm), resid);
                self.mix(idx, layer, states)?;
                self.finish_branch(idx, None, (TapPoint::AttnOutRaw, TapPoint::AttnOut))?;
                std::mem::swap(&mut self.room.branch, &mut self.room.mixer_branch);
                self.norm(Some(norm), resid);
                self.ffn(idx, &layer.ffn, resid)?;
                self.finish_branch(idx, None, (TapPoint::MlpOutRaw, TapPoint::MlpOut))?;
                add(resid, &self.room.mixer_branch, layer.residual_multiplier);
                add(resid, &self.room.branch, layer.residual_multiplier);
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

    fn embed(&mut self, tokens: &[u32], resid: &mut Vec<f32>) {
        let (spec, embedding) = (self.model.spec(), &self.model.embedding);
        let d_model = spec.d_model as usize;
        resid.resize(self.rows.len() * d_model, 0.0);
        for (row, token) in resid.chunks_exact_mut(d_model).zip(tokens) {
            embedding.decode_row(*token as usize, row);
            if spec.embedding.multiplier != 1.0 {
                row.iter_mut().for_each(|x| *x *= spec.embedding.multiplier);
            }
        }
        if let Some(table) = &self.model.position_embedding {
            let position = &mut self.room.embedding;
            position.resize(d_model, 0.0);
            for (row, place) in resid.chunks_exact_mut(d_model).zip(self.rows) {
                table.decode_row(place.position, position);
                row.iter_mut().zip(&*position).for_each(|(x, p)| *x += p);
            }
        }
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
            self.rows,
            &mut self.room.branch,
            d_model,
        )?;
        if let Some(norm) = post {
            norm_chunks(self.runtime, norm, &mut self.room.branch, d_model);
        }
        visit(
            &mut self.tap,
            out,
            idx,
            self.rows,
            &mut self.room.branch,
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
        let wanted = &mut self.room.wanted;
        wanted.clear();
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
        let mut logits = self.runtime.free_logits();
        let out = Arc::get_mut(&mut logits).expect("free logits are held by nobody");
        out.d_vocab = d_vocab;
        out.places.clear();
        out.places.extend(wanted.iter().map(|row| self.rows[*row]));
        let (places, values) = (&out.places, &mut out.values);
        if places.is_empty() {
            values.clear();
            self.runtime.keep_logits(&logits);
            return Ok(Logits(logits));
        }
        let normed = &mut self.room.normed;
        normed.resize(wanted.len() * d_model, 0.0);
        for (out, row) in normed.chunks_exact_mut(d_model).zip(&*wanted) {
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
            places,
            normed,
            d_model,
        )?;
        self.runtime.project(
            OperatorClass::Head,
            normed,
            wanted.len(),
            &mut [(self.model.unembedding(), values)],
        );
        add_bias(values, self.model.head_bias.as_deref());
        if spec.head.scale != 1.0 {
            values.iter_mut().for_each(|x| *x *= spec.head.scale);
        }
        // Before the softcap, which makes an ordinary number of infinity.
        if let Some(at) = first_not_finite(values) {
            return Err(EngineError::LogitNotFinite {
                position: places[at / d_vocab].position,
                id: at % d_vocab,
                value: values[at],
            });
        }
        if let Some(cap) = spec.head.softcap {
            values.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        visit(
            &mut self.tap,
            TapPoint::Logits,
            n_layers,
            places,
            values,
            d_vocab,
        )?;
        // What was finite can only be so no more by a tap, which may exclude tokens with negative infinity.
        if self.tap.is_some()
            && let Some(at) = first_nan(values)
        {
            return Err(EngineError::NotANumber { id: at % d_vocab });
        }
        self.runtime.keep_logits(&logits);
        Ok(Logits(logits))
    }
}
