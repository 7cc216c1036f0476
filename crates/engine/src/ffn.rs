//! The FFN of a layer: one dense FFN for every row, or a router that gives rows to experts.
//!
//! Both run the same code: each part is a dense FFN with the rows it gets and the weight of each. Rows of an expert are
//! taken together, so its weights are read once. A row's parts are added in the order of their number, whatever else is
//! in the batch. The weight of a row multiplies its activations, so that an activation is what its down column is
//! multiplied by.

use larql_models::spec::{FfnPart, MoeSpec, RouterInput, RouterScore, RouterSelect};

use crate::activation;
use crate::error::EngineError;
use crate::layers::{DenseFfn, Ffn, Moe};
use crate::ledger::{Charge, OperatorClass};
use crate::pass::{Pass, add_bias, norm_chunks, sigmoid, visit, wants};
use crate::tap::TapPoint;

/// The rows of the pass that a part works on.
struct Share<'a> {
    ffn: &'a DenseFfn,
    /// Row of the pass, and the weight of the part's output there; `None` is all rows with weight one.
    rows: Option<Vec<(usize, f32)>>,
    /// `[rows of the share, d_mlp]`; the only input projection where the FFN is not gated.
    gate: Vec<f32>,
    /// The same, empty where the FFN is not gated.
    up: Vec<f32>,
}

impl Share<'_> {
    /// Row of the pass.
    fn row(&self, i: usize) -> usize {
        self.rows.as_ref().map_or(i, |rows| rows[i].0)
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
            &self.rows,
            &mut self.normed,
            d_model,
        )?;
        let Some(moe) = &ffn.moe else {
            let mut shares = vec![Share {
                ffn: &ffn.parts[0],
                rows: None,
                gate: std::mem::take(&mut self.gate),
                up: std::mem::take(&mut self.up),
            }];
            let input = std::mem::take(&mut self.normed);
            let mut branch = std::mem::take(&mut self.branch);
            branch.resize(input.len(), 0.0);
            self.project_in(&mut shares[0], &input);
            self.fire(idx, ffn, &mut shares)?;
            self.project_out(&shares[0], &mut branch);
            for share in shares {
                (self.gate, self.up) = (share.gate, share.up);
            }
            (self.normed, self.branch) = (input, branch);
            return Ok(());
        };
        self.moe(idx, ffn, moe, resid)
    }

    fn moe(&mut self, idx: usize, ffn: &Ffn, moe: &Moe, resid: &[f32]) -> Result<(), EngineError> {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let dense_in = std::mem::take(&mut self.normed);
        let experts_in = moe.beside.as_ref().map(|beside| {
            let mut normed = vec![0.0; resid.len()];
            self.norm_rows(&beside.experts_pre, resid, d_model, &mut normed);
            normed
        });
        let experts_in = experts_in.as_ref().unwrap_or(&dense_in);
        let mut weights = self.route(moe, experts_in, resid);
        let n_experts = moe.spec.n_experts as usize;
        visit(
            &mut self.tap,
            TapPoint::MoeWeights,
            idx,
            &self.rows,
            &mut weights,
            n_experts,
        )?;
        let shared = moe.shared_router.as_ref().map(|router| {
            let mut gate = Vec::new();
            self.runtime.project(
                OperatorClass::Ffn,
                experts_in,
                n,
                &mut [(router, &mut gate)],
            );
            gate.iter()
                .map(|x| sigmoid(*x))
                .enumerate()
                .collect::<Vec<_>>()
        });
        let mut shares = Vec::new();
        for part in &ffn.parts {
            let rows = match part.part {
                FfnPart::Expert(expert) => {
                    let column = weights.iter().skip(expert as usize).step_by(n_experts);
                    let rows: Vec<_> = column
                        .copied()
                        .enumerate()
                        .filter(|(_, weight)| *weight != 0.0)
                        .collect();
                    if rows.is_empty() {
                        continue;
                    }
                    Some(rows)
                }
                FfnPart::Shared => shared.clone(),
                FfnPart::Dense => None,
            };
            let mut share = Share {
                ffn: part,
                rows,
                gate: Vec::new(),
                up: Vec::new(),
            };
            let input = match part.part {
                FfnPart::Dense => &dense_in,
                FfnPart::Expert(_) | FfnPart::Shared => experts_in,
            };
            self.project_in(&mut share, input);
            shares.push(share);
        }
        self.fire(idx, ffn, &mut shares)?;
        let mut branch = std::mem::take(&mut self.branch);
        branch.clear();
        branch.resize(n * d_model, 0.0);
        let mut out = vec![0.0; n * d_model];
        let mut dense = Vec::new();
        for share in &shares {
            self.project_out(share, &mut out);
            if let (FfnPart::Dense, Some(beside)) = (share.ffn.part, &moe.beside) {
                dense = out.clone();
                norm_chunks(self.runtime, &beside.dense_post, &mut dense, d_model);
                continue;
            }
            let n_rows = share.gate.len() / share.ffn.up.rows();
            for i in 0..n_rows {
                let to = &mut branch[share.row(i) * d_model..][..d_model];
                let from = &out[i * d_model..][..d_model];
                to.iter_mut().zip(from).for_each(|(x, y)| *x += y);
            }
        }
        if let Some(beside) = &moe.beside {
            norm_chunks(self.runtime, &beside.experts_post, &mut branch, d_model);
            branch.iter_mut().zip(&dense).for_each(|(x, y)| *x += y);
        }
        (self.normed, self.branch) = (dense_in, branch);
        Ok(())
    }

    /// Gate and up projections of a share, before the activation; the product with up waits for [`Self::fire`].
    fn project_in(&mut self, share: &mut Share<'_>, input: &[f32]) {
        let (ffn, cols) = (share.ffn, share.ffn.up.cols());
        let gathered: Vec<f32>;
        let (x, n) = match &share.rows {
            None => (input, input.len() / cols),
            Some(rows) => {
                let each = rows
                    .iter()
                    .flat_map(|(row, _)| &input[row * cols..][..cols]);
                gathered = each.copied().collect();
                (gathered.as_slice(), rows.len())
            }
        };
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
    fn fire(&mut self, idx: usize, ffn: &Ffn, shares: &mut [Share<'_>]) -> Result<(), EngineError> {
        self.visit_features(TapPoint::MlpPre, idx, ffn, shares, f32::NAN)?;
        let kernels = self.runtime.kernels;
        for share in shares.iter_mut() {
            let d_mlp = share.ffn.up.rows();
            let (spec, rows, up) = (share.ffn.spec, share.rows.as_deref(), &share.up);
            let ones = vec![1.0; if up.is_empty() { d_mlp } else { 0 }];
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
        shares: &mut [Share<'_>],
        absent: f32,
    ) -> Result<(), EngineError> {
        if !wants(&self.tap, point, idx) {
            return Ok(());
        }
        if ffn.moe.is_none() {
            let gate = &mut shares[0].gate;
            return visit(&mut self.tap, point, idx, &self.rows, gate, ffn.n_features);
        }
        let mut all = vec![absent; self.rows.len() * ffn.n_features];
        for share in shares.iter() {
            let d_mlp = share.ffn.up.rows();
            for (i, from) in share.gate.chunks_exact(d_mlp).enumerate() {
                let at = share.row(i) * ffn.n_features + share.ffn.first_feature;
                all[at..at + d_mlp].copy_from_slice(from);
            }
        }
        visit(
            &mut self.tap,
            point,
            idx,
            &self.rows,
            &mut all,
            ffn.n_features,
        )?;
        for share in shares {
            let d_mlp = share.ffn.up.rows();
            for i in 0..share.gate.len() / d_mlp {
                let at = share.row(i) * ffn.n_features + share.ffn.first_feature;
                share.gate[i * d_mlp..][..d_mlp].copy_from_slice(&all[at..at + d_mlp]);
            }
        }
        Ok(())
    }

    /// `out = down(activations)` of the share's rows, from the start of `out`.
    fn project_out(&mut self, share: &Share<'_>, out: &mut Vec<f32>) {
        let ffn = share.ffn;
        let n = share.gate.len() / ffn.up.rows();
        self.runtime
            .project(OperatorClass::Ffn, &share.gate, n, &mut [(&ffn.down, out)]);
        let Some(bias) = ffn.down_bias.as_deref() else {
            return;
        };
        for (i, row) in out.chunks_exact_mut(bias.len()).take(n).enumerate() {
            let weight = share.rows.as_ref().map_or(1.0, |rows| rows[i].1);
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += weight * b);
        }
    }

    /// Weight of every expert's output in every row, `[rows, n_experts]`; zero where it does not run.
    fn route(&mut self, moe: &Moe, input: &[f32], resid: &[f32]) -> Vec<f32> {
        let (n, d_model) = (self.rows.len(), self.model.spec().d_model as usize);
        let mut logits = Vec::new();
        match (moe.spec.router_input, &moe.router_norm) {
            (RouterInput::Scaled { multiplier, .. }, Some(norm)) => {
                let mut scaled = vec![0.0; resid.len()];
                self.norm_rows(norm, resid, d_model, &mut scaled);
                scaled.iter_mut().for_each(|x| *x *= multiplier);
                self.runtime.project(
                    OperatorClass::Ffn,
                    &scaled,
                    n,
                    &mut [(&moe.router, &mut logits)],
                );
            }
            (RouterInput::FfnInput | RouterInput::Scaled { .. }, _) => {
                self.runtime.project(
                    OperatorClass::Ffn,
                    input,
                    n,
                    &mut [(&moe.router, &mut logits)],
                );
            }
        }
        add_bias(&mut logits, moe.router_bias.as_deref());
        let kernels = self.runtime.kernels;
        for row in logits.chunks_exact_mut(moe.spec.n_experts as usize) {
            weigh(kernels, moe, row);
        }
        logits
    }
}

/// Turns one row of router logits into weights of experts.
fn weigh(kernels: &larql_kernels::Kernels, moe: &Moe, row: &mut [f32]) {
    let (bias, scale) = (moe.selection_bias.as_deref(), moe.expert_scale.as_deref());
    choose(kernels, &moe.spec, bias, scale, row);
}

/// As [`weigh`], on plain numbers: `selection_bias` joins the scores that choose and no others.
fn choose(
    kernels: &larql_kernels::Kernels,
    spec: &MoeSpec,
    selection_bias: Option<&[f32]>,
    expert_scale: Option<&[f32]>,
    row: &mut [f32],
) {
    let mut scores = row.to_vec();
    match spec.score {
        RouterScore::Softmax => kernels.softmax_in_place(&mut scores),
        RouterScore::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        RouterScore::SoftmaxOfChosen => {}
    }
    let mut choice = scores.clone();
    if let Some(bias) = selection_bias {
        choice.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
    if let RouterSelect::Grouped {
        n_groups,
        n_kept,
        group_top,
    } = spec.select
    {
        keep_groups(
            &mut choice,
            n_groups as usize,
            n_kept as usize,
            group_top as usize,
        );
    }
    let chosen = best(&choice, spec.n_active as usize);
    let mut weights: Vec<f32> = chosen.iter().map(|expert| scores[*expert]).collect();
    match spec.score {
        RouterScore::SoftmaxOfChosen => kernels.softmax_in_place(&mut weights),
        RouterScore::Softmax | RouterScore::Sigmoid => {}
    }
    if let Some(eps) = spec.renormalize {
        let sum = weights.iter().sum::<f32>() + eps;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    row.fill(0.0);
    for (expert, weight) in chosen.into_iter().zip(weights) {
        let scale = expert_scale.map_or(1.0, |scale| scale[expert]);
        row[expert] = weight * spec.scaling * scale;
    }
}

/// Hides all experts but those of the best groups; a group is as good as the sum of its `top` best.
fn keep_groups(choice: &mut [f32], n_groups: usize, n_kept: usize, top: usize) {
    let size = choice.len() / n_groups.max(1);
    let totals: Vec<f32> = choice
        .chunks_exact(size)
        .map(|group| best(group, top).into_iter().map(|i| group[i]).sum())
        .collect();
    let kept = best(&totals, n_kept);
    for (group, scores) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&group) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// Indices of the `n` largest values, largest first; of equals, the first.
fn best(values: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use larql_kernels::Kernels;
    use larql_models::spec::{Activation, FfnSpec};

    use super::*;

    /// A router over `n_experts`, two of which run, with nothing switched on.
    fn router(n_experts: u32, score: RouterScore) -> MoeSpec {
        MoeSpec {
            n_experts,
            n_active: 2,
            expert: FfnSpec {
                d_mlp: 3,
                activation: Activation::Silu,
                bias: false,
                gate_cutoff: None,
            },
            score,
            select: RouterSelect::TopK,
            renormalize: None,
            router_bias: false,
            selection_bias: false,
            scaling: 1.0,
            shared: None,
            parallel_dense: None,
            router_input: RouterInput::FfnInput,
            expert_scale: false,
        }
    }

    fn weights(
        spec: &MoeSpec,
        bias: Option<&[f32]>,
        scale: Option<&[f32]>,
        logits: &[f32],
    ) -> Vec<f32> {
        let mut row = logits.to_vec();
        choose(Kernels::detect(), spec, bias, scale, &mut row);
        row
    }

    fn close(got: &[f32], want: &[f32]) {
        let near = got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near && got.len() == want.len(), "{got:?} for {want:?}");
    }

    #[test]
    fn softmax_over_all_or_over_the_chosen() {
        let logits = [1.0, 3.0, -2.0, 2.0];
        let exps: Vec<f32> = logits.iter().map(|x| f32::exp(*x)).collect();
        let (all, two) = (exps.iter().sum::<f32>(), exps[1] + exps[3]);
        let over_all = weights(&router(4, RouterScore::Softmax), None, None, &logits);
        close(&over_all, &[0.0, exps[1] / all, 0.0, exps[3] / all]);
        let chosen = weights(
            &router(4, RouterScore::SoftmaxOfChosen),
            None,
            None,
            &logits,
        );
        close(&chosen, &[0.0, exps[1] / two, 0.0, exps[3] / two]);
        let renormalized = MoeSpec {
            renormalize: Some(0.0),
            scaling: 2.5,
            ..router(4, RouterScore::Softmax)
        };
        let scale = [1.0, 0.5, 1.0, 3.0];
        let got = weights(&renormalized, None, Some(&scale), &logits);
        close(&got, &[0.0, 1.25 * exps[1] / two, 0.0, 7.5 * exps[3] / two]);
    }

    /// A large bias chooses, and the weight is still the raw score: subtracting it again would lose every digit.
    #[test]
    fn a_selection_bias_chooses_and_does_not_weigh() {
        let logits = [-18.0, 1.0, 0.5, 0.0];
        let bias = [12.0, 0.0, 0.0, 0.0];
        let got = weights(&router(4, RouterScore::Sigmoid), Some(&bias), None, &logits);
        assert_eq!(got[0], sigmoid(-18.0));
        close(&got[1..], &[sigmoid(1.0), 0.0, 0.0]);
    }

    #[test]
    fn groups_are_ranked_by_the_sum_of_their_best() {
        let grouped = |group_top| MoeSpec {
            select: RouterSelect::Grouped {
                n_groups: 2,
                n_kept: 1,
                group_top,
            },
            ..router(6, RouterScore::Sigmoid)
        };
        // The first group has the best expert, the second the better pair.
        let logits = [2.0, -3.0, -3.0, 1.0, 1.5, -4.0];
        let s = |x| sigmoid(x);
        let by_best = weights(&grouped(1), None, None, &logits);
        close(&by_best, &[s(2.0), s(-3.0), 0.0, 0.0, 0.0, 0.0]);
        let by_pair = weights(&grouped(2), None, None, &logits);
        close(&by_pair, &[0.0, 0.0, 0.0, s(1.0), s(1.5), 0.0]);
    }

    #[test]
    fn of_equal_experts_the_first_run() {
        let got = weights(
            &router(5, RouterScore::SoftmaxOfChosen),
            None,
            None,
            &[0.5; 5],
        );
        close(&got, &[0.5, 0.5, 0.0, 0.0, 0.0]);
    }
}
