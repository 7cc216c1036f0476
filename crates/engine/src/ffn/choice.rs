//! Which experts a router chooses, and what their outputs weigh.

use larql_kernels::Kernels;
use larql_models::spec::{MoeSpec, RouterScore, RouterSelect};

use crate::pass::sigmoid;

/// Room for the choice of experts.
#[derive(Debug, Default)]
pub(super) struct ChoiceRoom {
    scores: Vec<f32>,
    /// The scores that choose.
    choice: Vec<f32>,
    /// The chosen.
    order: Vec<usize>,
    weights: Vec<f32>,
    /// How good each group is.
    totals: Vec<f32>,
}

/// Turns one row of router logits into weights of experts: `selection_bias` joins the scores that choose and no others.
pub(super) fn choose(
    kernels: &Kernels,
    spec: &MoeSpec,
    selection_bias: Option<&[f32]>,
    expert_scale: Option<&[f32]>,
    row: &mut [f32],
    room: &mut ChoiceRoom,
) {
    let ChoiceRoom {
        scores,
        choice,
        order,
        weights,
        totals,
    } = room;
    scores.clear();
    scores.extend_from_slice(row);
    match spec.score {
        RouterScore::Softmax => kernels.softmax_in_place(scores),
        RouterScore::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        RouterScore::SoftmaxOfChosen => {}
    }
    choice.clone_from(scores);
    if let Some(bias) = selection_bias {
        choice.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
    if let RouterSelect::Grouped {
        n_groups,
        n_kept,
        group_top,
    } = spec.select
    {
        let groups = (n_groups as usize, n_kept as usize, group_top as usize);
        keep_groups(choice, groups, order, totals);
    }
    best(choice, spec.n_active as usize, order);
    weights.clear();
    weights.extend(order.iter().map(|expert| scores[*expert]));
    match spec.score {
        RouterScore::SoftmaxOfChosen => kernels.softmax_in_place(weights),
        RouterScore::Softmax | RouterScore::Sigmoid => {}
    }
    if let Some(eps) = spec.renormalize {
        let sum = weights.iter().sum::<f32>() + eps;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    row.fill(0.0);
    for (expert, weight) in order.iter().zip(&*weights) {
        let scale = expert_scale.map_or(1.0, |scale| scale[*expert]);
        row[*expert] = weight * spec.scaling * scale;
    }
}

/// Hides all experts but those of the best groups; a group is as good as the sum of its `top` best.
fn keep_groups(
    choice: &mut [f32],
    (n_groups, n_kept, top): (usize, usize, usize),
    order: &mut Vec<usize>,
    totals: &mut Vec<f32>,
) {
    let size = choice.len() / n_groups.max(1);
    totals.clear();
    for group in choice.chunks_exact(size) {
        best(group, top, order);
        totals.push(order.iter().map(|i| group[*i]).sum());
    }
    best(totals, n_kept, order);
    for (group, scores) in choice.chunks_exact_mut(size).enumerate() {
        if !order.contains(&group) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// Fills `order` with the indices of the `n` largest values, largest first; of equals, the first.
fn best(values: &[f32], n: usize, order: &mut Vec<usize>) {
    order.clear();
    order.extend(0..values.len());
    // No two are equal, so this is the order of a stable sort, without its memory.
    order.sort_unstable_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(n);
}

#[cfg(test)]
mod tests {
    use larql_models::spec::{Activation, FfnSpec, RouterInput};

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
        let mut room = ChoiceRoom::default();
        choose(Kernels::detect(), spec, bias, scale, &mut row, &mut room);
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
