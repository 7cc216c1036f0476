//! The two recurrent mixers: delta attention with a decay per channel (arXiv:2510.26692) and the gated delta net
//! (arXiv:2412.06464).
//!
//! Both keep a matrix `S` per head and update it position by position: `S = decay * S`, `S += k (beta (v - S^T k))^T`,
//! `o = S^T q`. The recurrence itself is run, never its chunked form, so that a prompt gives the same bits however it is
//! split. Heads are independent and are what threads share out.

use larql_kernels::Kernels;

use crate::error::EngineError;
use crate::layers::{GatedDelta, Kda, Recurrent};
use crate::ledger::{Charge, OperatorClass};
use crate::model::Matrix;
use crate::pass::{Pass, norm_chunks, sigmoid, visit};
use crate::state::SequenceState;
use crate::tap::TapPoint;

/// Above this the softplus is the identity, as in PyTorch.
const SOFTPLUS_LINEAR: f32 = 20.0;

/// Sizes of a recurrent mixer.
#[derive(Debug, Clone, Copy)]
struct Shape {
    n_heads: usize,
    n_key_heads: usize,
    d_key: usize,
    d_value: usize,
    /// Decays per head: one for all channels of a key, or one each.
    n_decays: usize,
    qk_eps: f32,
}

/// What drives the recurrence, `[rows, ..]`.
struct Drive<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// `[rows, n_heads]`.
    beta: &'a [f32],
    /// `[rows, n_heads * n_decays]`, factors on the state.
    decay: &'a [f32],
}

/// One head of one sequence at work.
#[derive(Debug, Default)]
struct Head {
    /// That of the state, while the head works.
    memory: Vec<f32>,
    /// `[rows of the sequence, d_value]`.
    out: Vec<f32>,
    /// `[d_value]`: what is added to the memory, times the key.
    delta: Vec<f32>,
}

/// Room for a recurrent mixer.
#[derive(Debug, Default)]
pub(crate) struct RecurrentRoom {
    decay: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    /// Of a projection of low rank.
    latent: Vec<f32>,
    /// What a convolution reads.
    inputs: Vec<f32>,
    heads: Vec<Head>,
}

impl Pass<'_, '_> {
    /// `branch = kda(normed)`, updating the states.
    pub(crate) fn kda(
        &mut self,
        idx: usize,
        kda: &Kda,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let (heads, d_head) = (kda.spec.n_heads as usize, kda.spec.d_head as usize);
        let shape = Shape {
            n_heads: heads,
            n_key_heads: heads,
            d_key: d_head,
            d_value: d_head,
            n_decays: d_head,
            qk_eps: kda.spec.qk_eps,
        };
        let mut room = std::mem::take(&mut self.room.recurrent);
        self.low_rank(&kda.decay, &mut room.latent, &mut room.decay);
        self.low_rank(&kda.out_gate, &mut room.latent, &mut room.gate);
        decay_factors(&kda.common, &mut room.decay, d_head);
        room.gate.iter_mut().for_each(|x| *x = sigmoid(*x));
        let result = self.recur(idx, &kda.common, shape, &mut room, states);
        self.room.recurrent = room;
        result
    }

    /// `branch = gated_delta_net(normed)`, updating the states.
    pub(crate) fn gated_delta(
        &mut self,
        idx: usize,
        delta: &GatedDelta,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let shape = Shape {
            n_heads: delta.spec.n_value_heads as usize,
            n_key_heads: delta.spec.n_key_heads as usize,
            d_key: delta.spec.d_key as usize,
            d_value: delta.spec.d_value as usize,
            n_decays: 1,
            qk_eps: delta.spec.qk_eps,
        };
        let mut room = std::mem::take(&mut self.room.recurrent);
        let n = self.rows.len();
        let mut jobs = [
            (&delta.decay, &mut room.decay),
            (&delta.out_gate, &mut room.gate),
        ];
        self.runtime
            .project(OperatorClass::Recurrent, &self.room.normed, n, &mut jobs);
        decay_factors(&delta.common, &mut room.decay, 1);
        room.gate.iter_mut().for_each(|x| *x *= sigmoid(*x));
        let result = self.recur(idx, &delta.common, shape, &mut room, states);
        self.room.recurrent = room;
        result
    }

    /// `out = up (down normed)`.
    fn low_rank(
        &mut self,
        (down, up): &(Matrix, Matrix),
        latent: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let n = self.rows.len();
        self.runtime.project(
            OperatorClass::Recurrent,
            &self.room.normed,
            n,
            &mut [(down, latent)],
        );
        self.runtime
            .project(OperatorClass::Recurrent, latent, n, &mut [(up, out)]);
    }

    /// Fills `q`, `k` and `v` with what drives the recurrence, and `beta` with the strengths of the updates.
    fn convolved(
        &mut self,
        idx: usize,
        common: &Recurrent,
        shape: Shape,
        beta: &mut Vec<f32>,
        inputs: &mut Vec<f32>,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let n = self.rows.len();
        let key_width = shape.n_key_heads * shape.d_key;
        let value_width = shape.n_heads * shape.d_value;
        self.runtime.project(
            OperatorClass::Recurrent,
            &self.room.normed,
            n,
            &mut [
                (&common.q, &mut self.room.q),
                (&common.k, &mut self.room.k),
                (&common.v, &mut self.room.v),
                (&common.beta, beta),
            ],
        );
        beta.iter_mut().for_each(|x| *x = sigmoid(*x));
        self.runtime.within(OperatorClass::Recurrent, |runtime| {
            let mut n_values = 0;
            for (part, values) in [&mut self.room.q, &mut self.room.k, &mut self.room.v]
                .into_iter()
                .enumerate()
            {
                // Read and written.
                n_values += 2 * values.len();
                let mut first = 0;
                for (sequence, count) in runs(self.rows) {
                    let tail = &mut states[sequence].recurrent(idx).conv[part];
                    let width = values.len() / n;
                    convolve(
                        &common.conv[part],
                        &mut values[first * width..][..count * width],
                        width,
                        tail,
                        inputs,
                    );
                    first += count;
                }
            }
            runtime.charge(OperatorClass::Recurrent, || {
                Charge::elementwise(n_values, 1)
            });
        });
        normalize(
            &mut self.room.q,
            shape.d_key,
            shape.qk_eps,
            (shape.d_key as f32).powf(-0.5),
        );
        normalize(&mut self.room.k, shape.d_key, shape.qk_eps, 1.0);
        self.visit_q(idx, key_width)?;
        self.visit_kv(idx, key_width, value_width)
    }

    /// Convolves, runs the recurrence, norms, gates and projects.
    fn recur(
        &mut self,
        idx: usize,
        common: &Recurrent,
        shape: Shape,
        room: &mut RecurrentRoom,
        states: &mut [SequenceState],
    ) -> Result<(), EngineError> {
        let (n, kernels) = (self.rows.len(), self.runtime.kernels);
        let value_width = shape.n_heads * shape.d_value;
        self.convolved(idx, common, shape, &mut room.beta, &mut room.inputs, states)?;
        let drive = Drive {
            q: &self.room.q,
            k: &self.room.k,
            v: &self.room.v,
            beta: &room.beta,
            decay: &room.decay,
        };
        self.room.z.resize(n * value_width, 0.0);
        let mut first = 0;
        if room.heads.len() < shape.n_heads {
            room.heads.resize_with(shape.n_heads, Head::default);
        }
        let heads = &mut room.heads[..shape.n_heads];
        for (sequence, count) in runs(self.rows) {
            let memory = &mut states[sequence].recurrent(idx).memory;
            for (head, memory) in heads.iter_mut().zip(&mut *memory) {
                std::mem::swap(&mut head.memory, memory);
                head.out.resize(count * shape.d_value, 0.0);
                head.delta.resize(shape.d_value, 0.0);
            }
            self.runtime.within(OperatorClass::Recurrent, |runtime| {
                let slabs = runtime.n_threads().min(heads.len());
                runtime.charge(OperatorClass::Recurrent, || {
                    let n_values = shape.n_heads * shape.d_key * shape.d_value;
                    // Queries, keys and decays of a head, and its values and outputs.
                    let per_head = 2 * shape.d_key + shape.n_decays + 2 * shape.d_value;
                    Charge::recurrence(count, n_values, shape.n_heads * per_head, slabs)
                });
                runtime.team.chunks_mut(heads, 1, |head, work| {
                    let rows = first..first + count;
                    step_head(kernels, &shape, &drive, head, rows, &mut work[0]);
                });
            });
            for (idx, (head, memory)) in heads.iter_mut().zip(memory).enumerate() {
                std::mem::swap(&mut head.memory, memory);
                for (i, out) in head.out.chunks_exact(shape.d_value).enumerate() {
                    let at = (first + i) * value_width + idx * shape.d_value;
                    self.room.z[at..at + shape.d_value].copy_from_slice(out);
                }
            }
            first += count;
        }
        norm_chunks(
            self.runtime,
            &common.out_norm,
            &mut self.room.z,
            shape.d_value,
        );
        self.room
            .z
            .iter_mut()
            .zip(&room.gate)
            .for_each(|(z, gate)| *z *= gate);
        visit(
            &mut self.tap,
            TapPoint::AttnZ,
            idx,
            self.rows,
            &mut self.room.z,
            value_width,
        )?;
        self.runtime.project(
            OperatorClass::Recurrent,
            &self.room.z,
            n,
            &mut [(&common.o, &mut self.room.branch)],
        );
        Ok(())
    }
}

/// Sequences of the batch with their numbers of rows, in order.
fn runs(rows: &[crate::tap::RowPlace]) -> impl Iterator<Item = (usize, usize)> {
    rows.chunk_by(|a, b| a.sequence == b.sequence)
        .map(|run| (run[0].sequence, run.len()))
}

/// Runs one head over rows of one sequence.
fn step_head(
    kernels: &Kernels,
    shape: &Shape,
    drive: &Drive<'_>,
    head: usize,
    rows: std::ops::Range<usize>,
    work: &mut Head,
) {
    let (d_key, d_value) = (shape.d_key, shape.d_value);
    let key_head = head / (shape.n_heads / shape.n_key_heads);
    let Head { memory, out, delta } = work;
    for (row, out) in rows.zip(out.chunks_exact_mut(d_value)) {
        let key_at = (row * shape.n_key_heads + key_head) * d_key;
        let (q, k) = (&drive.q[key_at..][..d_key], &drive.k[key_at..][..d_key]);
        let v = &drive.v[(row * shape.n_heads + head) * d_value..][..d_value];
        let beta = drive.beta[row * shape.n_heads + head];
        let decays =
            &drive.decay[(row * shape.n_heads + head) * shape.n_decays..][..shape.n_decays];
        delta.fill(0.0);
        for (c, memory) in memory.chunks_exact_mut(d_value).enumerate() {
            let decay = decays[c % shape.n_decays];
            memory.iter_mut().for_each(|s| *s *= decay);
            kernels.axpy(k[c], memory, delta);
        }
        for (recalled, v) in delta.iter_mut().zip(v) {
            *recalled = (v - *recalled) * beta;
        }
        out.fill(0.0);
        for (c, memory) in memory.chunks_exact_mut(d_value).enumerate() {
            kernels.axpy(k[c], delta, memory);
            kernels.axpy(q[c], memory, out);
        }
    }
}

/// Causal convolution per channel, then SiLU, in place; `tail` keeps the last inputs for the rows to come.
fn convolve(
    weight: &[f32],
    values: &mut [f32],
    width: usize,
    tail: &mut [f32],
    inputs: &mut Vec<f32>,
) {
    let taps = weight.len() / width;
    inputs.clear();
    inputs.extend_from_slice(tail);
    inputs.extend_from_slice(values);
    for (row, out) in values.chunks_exact_mut(width).enumerate() {
        for (c, y) in out.iter_mut().enumerate() {
            let weights = &weight[c * taps..][..taps];
            let sum: f32 = weights
                .iter()
                .enumerate()
                .map(|(j, w)| w * inputs[(row + j) * width + c])
                .sum();
            *y = sum * sigmoid(sum);
        }
    }
    tail.copy_from_slice(&inputs[inputs.len() - tail.len()..]);
}

/// Divides each chunk by the root of its sum of squares plus `eps`, and multiplies by `scale`.
fn normalize(values: &mut [f32], width: usize, eps: f32, scale: f32) {
    for chunk in values.chunks_exact_mut(width) {
        let sum: f32 = chunk.iter().map(|x| x * x).sum();
        let factor = 1.0 / (sum + eps).sqrt();
        chunk.iter_mut().for_each(|x| *x = *x * factor * scale);
    }
}

/// From projections to factors on the state: `exp(rate[head] * softplus(x + bias))`, `per_head` of them for each head.
fn decay_factors(common: &Recurrent, decay: &mut [f32], per_head: usize) {
    for row in decay.chunks_exact_mut(common.decay_bias.len()) {
        for (i, (x, bias)) in row.iter_mut().zip(&common.decay_bias).enumerate() {
            *x = (common.decay_rate[i / per_head] * softplus(*x + bias)).exp();
        }
    }
}

fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR {
        x
    } else {
        x.exp().ln_1p()
    }
}
