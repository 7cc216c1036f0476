//! The nonlinearity of an FFN: the only place that says what each [`Activation`] computes.

use larql_kernels::Kernels;
use larql_models::spec::Activation;

/// `gate[i] = act(gate[i]) * up[i]`.
pub(crate) fn gated(kernels: &Kernels, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => kernels.silu_mul(gate, up),
        Activation::GeluTanh => kernels.gelu_tanh_mul(gate, up),
        Activation::Gelu => each(gate, up, |g, u| {
            0.5 * g * (1.0 + libm::erff(g * std::f32::consts::FRAC_1_SQRT_2)) * u
        }),
        Activation::Relu => each(gate, up, |g, u| g.max(0.0) * u),
        Activation::ReluSquared => each(gate, up, |g, u| g.max(0.0) * g.max(0.0) * u),
        Activation::ClampedGlu { alpha, limit } => each(gate, up, |g, u| {
            let (g, u) = (g.min(limit), u.clamp(-limit, limit));
            (u + 1.0) * g / (1.0 + (-alpha * g).exp())
        }),
    }
}

/// `gate[i] = max(gate[i] - (mean + cutoff * std), 0)` over one row, `std` of the row as a whole (arXiv:2306.04050).
pub(crate) fn cut_off(gate: &mut [f32], cutoff: f32) {
    let n = gate.len() as f64;
    let mean = gate.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = gate
        .iter()
        .map(|x| (f64::from(*x) - mean).powi(2))
        .sum::<f64>()
        / n;
    let threshold = (mean + variance.sqrt() * f64::from(cutoff)) as f32;
    gate.iter_mut().for_each(|x| *x = (*x - threshold).max(0.0));
}

fn each(gate: &mut [f32], up: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = f(*g, *u);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every activation at points where they all differ, against values worked out in f64.
    #[test]
    fn formulas() {
        let xs = [-8.5f32, -1.3, -0.2, 0.7, 1.9, 9.25];
        let up = [2.0f32, -3.0, 0.5, 1.5, -0.25, 8.0];
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        check(Activation::Relu, &xs, &up, |g, u| g.max(0.0) * u);
        check(Activation::ReluSquared, &xs, &up, |g, u| {
            g.max(0.0).powi(2) * u
        });
        check(Activation::GeluTanh, &xs, &up, |g, u| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            0.5 * g * (1.0 + inner.tanh()) * u
        });
        check(Activation::Silu, &xs, &up, |g, u| g * sigmoid(g) * u);
        check(Activation::Gelu, &xs, &up, |g, u| {
            0.5 * g * (1.0 + libm::erf(g / 2f64.sqrt())) * u
        });
        check(
            Activation::ClampedGlu {
                alpha: 1.702,
                limit: 7.0,
            },
            &xs,
            &up,
            |g, u| {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                (u + 1.0) * g * sigmoid(1.702 * g)
            },
        );
    }

    fn check(activation: Activation, xs: &[f32], up: &[f32], oracle: impl Fn(f64, f64) -> f64) {
        let mut gate = xs.to_vec();
        gated(Kernels::detect(), activation, &mut gate, up);
        for i in 0..xs.len() {
            let want = oracle(f64::from(xs[i]), f64::from(up[i]));
            let error = (f64::from(gate[i]) - want).abs();
            assert!(
                error <= 3e-6 * want.abs().max(1.0),
                "{activation:?} at {}: {} for {want}",
                xs[i],
                gate[i]
            );
        }
    }
}
