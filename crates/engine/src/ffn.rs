//! The FFN of a layer: one dense FFN for every row, or a router that gives rows to experts.
//!
//! Both run the same code: each part is a dense FFN with the rows it gets and the weight of each. Rows of an expert are
//! taken together, so its weights are read once. A row's parts are added in the order of their number, whatever else is
//! in the batch. The weight of a row multiplies its activations, so that an activation is what its down column is
//! multiplied by.

mod choice;

use larql_models::spec::{FfnPart, RouterInput};

use crate::activation;
use crate::error::EngineError;
use crate::layers::{DenseFfn, Ffn, Moe};
use crate::ledger::{Charge, OperatorClass};
use crate::pass::{Pass, add_bias, norm_chunks, sigmoid, visit, wants};
use crate::tap::TapPoint;

use choice::{ChoiceRoom, choose};

/// The rows of the pass that a part works on.
#[derive(Debug, Default)]
struct Share {
    /// Which part of the layer.
    part: usize,
    /// Whether it gets all rows, with weight one.
    all_rows: bool,
    /// Otherwise: row of the pass, and the weight of the part's output there.
    rows: Vec<(usize, f32)>,
    /// `[rows of the share, d_mlp]`; the only input projection where the FFN is not gated.
    gate: Vec<f32>,
    /// The same, empty where the FFN is not gated.
    up: Vec<f32>,
}

/// Room for an FFN.
#[derive(Debug, Default)]
pub(crate) struct FfnRoom {
    /// Of the layer at work the first few; the others keep their memory.
    shares: Vec<Share>,
    /// The rows of an expert, together.
    gathered: Vec<f32>,
    /// What takes the place of `up` where there is none.
    ones: Vec<f32>,
    /// The input of experts that have a norm of their own.
    experts_in: Vec<f32>,
    router_in: Vec<f32>,
    /// Weight of every expert's output in every row, `[rows, n_experts]`; zero where it does not run.
    weights: Vec<f32>,
    /// Weight of the shared expert in every row, where it has a router.
    shared: Vec<f32>,
    choice: ChoiceRoom,
    /// The output of one part.
    out: Vec<f32>,
    /// That of the dense part beside experts.
    dense: Vec<f32>,
}

impl Share {
    /// Makes it the share of a part that gets all rows.
    fn give_all(&mut self, part: usize) {
        self.part = part;
        self.all_rows = true;
        self.rows.clear();
    }

    /// Makes it the share of a part that gets some rows.
    fn give(&mut self, part: usize, rows: impl Iterator<Item = (usize, f32)>) {
        self.part = part;
        self.all_rows = false;
        self.rows.clear();
        self.rows.extend(rows);
    }

    /// Row of the pass.
    fn row(&self, i: usize) -> usize {
        if self.all_rows { i } else { self.rows[i].0 }
    }

    /// Weight of the output.
    fn weight(&self, i: usize) -> f32 {
        if self.all_rows { 1.0 } else { self.rows[i].1 }
    }
}

impl Pass<'_, '_> {
    /// `branch = ffn(normed)`; `resid` is what the FFN's norm was taken of.
    pub(crate) fn ffn(&mut self, idx: usize, ffn: &Ffn, resid: &[f32]) -> Result<(), EngineError> {
        let d_model = self.model.spec().d_model as usize;
        visit(
            &mut self.tap,
            TapPoint::MlpIn,
            idx,
            self.rows,
            &mut self.room.normed,
            d_model,
        )?;
        let mut room = std::mem::take(&mut self.room.ffn);
        let input = std::mem::take(&mut self.room.normed);
        let mut branch = std::mem::take(&mut self.room.branch);
        let result = match &ffn.moe {
            None => self.dense(idx, ffn, &input, &mut branch, &mut room),
            Some(moe) => self.moe(idx, ffn, moe, (&input, resid), &mut branch, &mut room),
        };
        (self.room.ffn, self.room.normed, self.room.branch) = (room, input, branch);
        result
    }

    fn dense(
        &mut self,
        idx: usize,
        ffn: &Ffn,
        input: &[f32],
        branch: &mut Vec<f32>,
        room: &mut FfnRoom,
    ) -> Result<(), EngineError> {
        let FfnRoom {
            shares,
            gathered,
            ones,
            ..
        } = room;
        let share = at_least(shares, 1);
        share[0].give_all(0);
        self.project_in(&ffn.parts[0], &mut share[0], input, gathered);
        self.fire(idx, ffn, share, ones)?;
        self.project_out(&ffn.parts[0], &share[0], branch);
        Ok(())
    }

    /// As [`Self::ffn`] with a router, which may ask for the residual stream too.
    fn moe(
        &mut self,
        idx: usize,
        ffn: &Ffn,
        moe: &Moe,
        (dense_in, resid): (&[f32], &[f32]),
        branch: &mut Vec<f32>,
        room: &mut FfnRoom,
    ) -> Result<(), EngineError> {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let n_shares = self.share_out(idx, ffn, moe, (dense_in, resid), room)?;
        let FfnRoom {
            shares,
            ones,
            out,
            dense,
            ..
        } = room;
        let shares = &mut shares[..n_shares];
        self.fire(idx, ffn, shares, ones)?;
        branch.clear();
        branch.resize(n * d_model, 0.0);
        for share in &*shares {
            let part = &ffn.parts[share.part];
            self.project_out(part, share, out);
            if let (FfnPart::Dense, Some(beside)) = (part.part, &moe.beside) {
                std::mem::swap(out, dense);
                norm_chunks(self.runtime, &beside.dense_post, dense, d_model);
                continue;
            }
            for (i, from) in out.chunks_exact(d_model).enumerate() {
                let to = &mut branch[share.row(i) * d_model..][..d_model];
                to.iter_mut().zip(from).for_each(|(x, y)| *x += y);
            }
        }
        if let Some(beside) = &moe.beside {
            norm_chunks(self.runtime, &beside.experts_post, branch, d_model);
            branch.iter_mut().zip(&*dense).for_each(|(x, y)| *x += y);
        }
        Ok(())
    }

    /// Lets the router give out the rows, and takes each share as far as its projections in. Gives the number of shares.
    fn share_out(
        &mut self,
        idx: usize,
        ffn: &Ffn,
        moe: &Moe,
        (dense_in, resid): (&[f32], &[f32]),
        room: &mut FfnRoom,
    ) -> Result<usize, EngineError> {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let experts_in = match &moe.beside {
            None => dense_in,
            Some(beside) => {
                room.experts_in.resize(resid.len(), 0.0);
                self.norm_rows(&beside.experts_pre, resid, d_model, &mut room.experts_in);
                room.experts_in.as_slice()
            }
        };
        let (router_in, weights) = (&mut room.router_in, &mut room.weights);
        self.route(
            moe,
            (experts_in, resid),
            router_in,
            weights,
            &mut room.choice,
        );
        let n_experts = moe.spec.n_experts as usize;
        visit(
            &mut self.tap,
            TapPoint::MoeWeights,
            idx,
            self.rows,
            weights,
            n_experts,
        )?;
        if let Some(router) = &moe.shared_router {
            let mut jobs = [(router, &mut room.shared)];
            self.runtime
                .project(OperatorClass::Ffn, experts_in, n, &mut jobs);
            room.shared.iter_mut().for_each(|x| *x = sigmoid(*x));
        }
        let mut n_shares = 0;
        for (at, part) in ffn.parts.iter().enumerate() {
            let share = &mut at_least(&mut room.shares, n_shares + 1)[n_shares];
            match part.part {
                FfnPart::Expert(expert) => {
                    let column = weights.iter().skip(expert as usize).step_by(n_experts);
                    let rows = column.copied().enumerate();
                    share.give(at, rows.filter(|(_, weight)| *weight != 0.0));
                    if share.rows.is_empty() {
                        continue;
                    }
                }
                FfnPart::Shared if moe.shared_router.is_some() => {
                    share.give(at, room.shared.iter().copied().enumerate());
                }
                FfnPart::Shared | FfnPart::Dense => share.give_all(at),
            }
            let input = match part.part {
                FfnPart::Dense => dense_in,
                FfnPart::Expert(_) | FfnPart::Shared => experts_in,
            };
            self.project_in(part, share, input, &mut room.gathered);
            n_shares += 1;
        }
        Ok(n_shares)
    }

    /// Gate and up projections of a share, before the activation; the product with up waits for [`Self::fire`].
    fn project_in(
        &mut self,
        ffn: &DenseFfn,
        share: &mut Share,
        input: &[f32],
        gathered: &mut Vec<f32>,
    ) {
        let cols = ffn.up.cols();
        let x = if share.all_rows {
            input
        } else {
            gathered.clear();
            for (row, _) in &share.rows {
                gathered.extend_from_slice(&input[row * cols..][..cols]);
            }
            gathered
        };
        let n = x.len() / cols;
        match &ffn.gate {
            Some(gate) => {
                let mut jobs = [(gate, &mut share.gate), (&ffn.up, &mut share.up)];
                self.runtime.project(OperatorClass::Ffn, x, n, &mut jobs);
                add_bias(&mut share.gate, ffn.gate_bias.as_deref());
                add_bias(&mut share.up, ffn.up_bias.as_deref());
            }
            None => {
                self.runtime
                    .project(OperatorClass::Ffn, x, n, &mut [(&ffn.up, &mut share.gate)]);
                add_bias(&mut share.gate, ffn.up_bias.as_deref());
                share.up.clear();
            }
        }
    }

    /// Activations of all shares, shown to the tap before and after.
    fn fire(
        &mut self,
        idx: usize,
        ffn: &Ffn,
        shares: &mut [Share],
        ones: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.visit_features(TapPoint::MlpPre, idx, ffn, shares, f32::NAN)?;
        let kernels = self.runtime.kernels;
        for share in shares.iter_mut() {
            let part = &ffn.parts[share.part];
            let (spec, d_mlp, up) = (part.spec, part.up.rows(), &share.up);
            let rows = (!share.all_rows).then_some(share.rows.as_slice());
            if up.is_empty() {
                ones.resize(d_mlp, 1.0);
            }
            self.runtime.within(OperatorClass::Ffn, |runtime| {
                // The gate is read and written.
                let n_values = 2 * share.gate.len() + up.len();
                let slabs = runtime.n_threads().min(share.gate.len() / d_mlp);
                runtime.charge(OperatorClass::Ffn, || Charge::elementwise(n_values, slabs));
                runtime
                    .team
                    .chunks_mut(&mut share.gate, d_mlp, |row, gate| {
                        if let Some(cutoff) = spec.gate_cutoff {
                            activation::cut_off(gate, cutoff);
                        }
                        let up = match up.is_empty() {
                            true => ones.as_slice(),
                            false => &up[row * d_mlp..][..d_mlp],
                        };
                        activation::gated(kernels, spec.activation, gate, up);
                        if let Some(rows) = rows {
                            gate.iter_mut().for_each(|x| *x *= rows[row].1);
                        }
                    });
            });
        }
        self.visit_features(TapPoint::MlpPost, idx, ffn, shares, 0.0)
    }

    /// Shows `[rows, n_features]` to the tap; `absent` stands for features of experts that do not run.
    fn visit_features(
        &mut self,
        point: TapPoint,
        idx: usize,
        ffn: &Ffn,
        shares: &mut [Share],
        absent: f32,
    ) -> Result<(), EngineError> {
        if !wants(&self.tap, point, idx) {
            return Ok(());
        }
        if ffn.moe.is_none() {
            let gate = &mut shares[0].gate;
            return visit(&mut self.tap, point, idx, self.rows, gate, ffn.n_features);
        }
        let mut all = vec![absent; self.rows.len() * ffn.n_features];
        for share in shares.iter() {
            let part = &ffn.parts[share.part];
            let d_mlp = part.up.rows();
            for (i, from) in share.gate.chunks_exact(d_mlp).enumerate() {
                let at = share.row(i) * ffn.n_features + part.first_feature;
                all[at..at + d_mlp].copy_from_slice(from);
            }
        }
        visit(
            &mut self.tap,
            point,
            idx,
            self.rows,
            &mut all,
            ffn.n_features,
        )?;
        for share in shares {
            let part = &ffn.parts[share.part];
            let d_mlp = part.up.rows();
            for i in 0..share.gate.len() / d_mlp {
                let at = share.row(i) * ffn.n_features + part.first_feature;
                share.gate[i * d_mlp..][..d_mlp].copy_from_slice(&all[at..at + d_mlp]);
            }
        }
        Ok(())
    }

    /// `out = down(activations)` of the share's rows.
    fn project_out(&mut self, ffn: &DenseFfn, share: &Share, out: &mut Vec<f32>) {
        let n = share.gate.len() / ffn.up.rows();
        self.runtime
            .project(OperatorClass::Ffn, &share.gate, n, &mut [(&ffn.down, out)]);
        let Some(bias) = ffn.down_bias.as_deref() else {
            return;
        };
        for (i, row) in out.chunks_exact_mut(bias.len()).enumerate() {
            let weight = share.weight(i);
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += weight * b);
        }
    }

    /// Fills `weights` with the weight of every expert's output in every row.
    fn route(
        &mut self,
        moe: &Moe,
        (experts_in, resid): (&[f32], &[f32]),
        router_in: &mut Vec<f32>,
        weights: &mut Vec<f32>,
        room: &mut ChoiceRoom,
    ) {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let x = match (moe.spec.router_input, &moe.router_norm) {
            (RouterInput::Scaled { multiplier, .. }, Some(norm)) => {
                router_in.resize(resid.len(), 0.0);
                self.norm_rows(norm, resid, d_model, router_in);
                router_in.iter_mut().for_each(|x| *x *= multiplier);
                router_in
            }
            (RouterInput::FfnInput | RouterInput::Scaled { .. }, _) => experts_in,
        };
        self.runtime.project(
            OperatorClass::Ffn,
            x,
            n,
            &mut [(&moe.router, &mut *weights)],
        );
        add_bias(weights, moe.router_bias.as_deref());
        let kernels = self.runtime.kernels;
        let (bias, scale) = (moe.selection_bias.as_deref(), moe.expert_scale.as_deref());
        for row in weights.chunks_exact_mut(moe.spec.n_experts as usize) {
            choose(kernels, &moe.spec, bias, scale, row, room);
        }
    }
}

/// The first `n` shares, made if there are not so many.
fn at_least(shares: &mut Vec<Share>, n: usize) -> &mut [Share] {
    if shares.len() < n {
        shares.resize_with(n, Share::default);
    }
    &mut shares[..n]
}
