//! Element-wise functions and norms against f64.

mod support;

use larql_kernels::Kernels;
use support::Rng;

/// Distance in units of the last place of the expected value, down to the smallest subnormal.
fn ulps(got: f32, expected: f64) -> f64 {
    let rounded = (expected as f32).abs().max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
    (f64::from(got) - expected).abs() / unit
}

#[test]
fn exp_is_within_two_ulps_everywhere() {
    let kernels = Kernels::detect();
    // A stride that is prime reaches every exponent at changing fractions.
    let all: Vec<f32> = (0..=u32::MAX)
        .step_by(2017)
        .map(f32::from_bits)
        .filter(|x| (-103.9..88.72).contains(x))
        .collect();
    assert!(all.len() > 1_000_000);
    let mut got = all.clone();
    kernels.exp_in_place(&mut got);
    let mut worst = 0f64;
    for (x, got) in all.iter().zip(got) {
        let error = ulps(got, f64::from(*x).exp());
        worst = worst.max(error);
        assert!(error <= 2.0, "e^{x:e}: {got:e}, {error} ulps");
    }
    assert!(
        worst > 0.4,
        "half an ulp is lost to rounding somewhere: {worst}"
    );
}

#[test]
fn exp_at_the_edges() {
    let mut x = [
        0.0,
        -0.0,
        88.722_8,
        88.8,
        1e30,
        f32::INFINITY,
        -103.9,
        -104.0,
        -1e30,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    Kernels::detect().exp_in_place(&mut x);
    assert_eq!(x[..2], [1.0, 1.0]);
    assert!(x[2].is_finite() && x[2] > 3.402e38, "{}", x[2]);
    assert_eq!(x[3..6], [f32::INFINITY; 3]);
    assert_eq!(x[6].to_bits(), 1, "the smallest subnormal");
    assert_eq!(x[7..10], [0.0; 3]);
    assert!(x[10].is_nan());
}

#[test]
fn gated_activations_are_within_a_few_ulps() {
    let mut rng = Rng::new(4);
    let gate: Vec<f32> = (0..20_003).map(|_| rng.float() * 12.0).collect();
    let up = rng.floats(gate.len());
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    let kernels = Kernels::detect();
    let (mut silu, mut gelu) = (gate.clone(), gate.clone());
    kernels.silu_mul(&mut silu, &up);
    kernels.gelu_tanh_mul(&mut gelu, &up);
    for i in 0..gate.len() {
        let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
        let expected = g * sigmoid(g) * u;
        assert!(
            ulps(silu[i], expected) <= 6.0,
            "silu({g}) * {u}: {}",
            silu[i]
        );
        let z = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
        let expected = 0.5 * g * (1.0 + z.tanh()) * u;
        // The exponent 2 z carries its own rounding into the result.
        let error = (f64::from(gelu[i]) - expected).abs();
        let scale = (g * sigmoid(2.0 * z) * u).abs();
        let bound = f64::from(f32::EPSILON) * (6.0 + 6.0 * z.abs()) * scale + 1e-15;
        assert!(
            error <= bound,
            "gelu({g}) * {u}: {} for {expected}",
            gelu[i]
        );
    }
}

#[test]
fn softmax_sums_to_one_and_keeps_masked_entries_at_zero() {
    let mut rng = Rng::new(5);
    for n in [1, 2, 7, 9, 100, 1025] {
        let mut scores: Vec<f32> = (0..n).map(|_| rng.float() * 30.0 + 500.0).collect();
        if n > 2 {
            scores[1] = f32::NEG_INFINITY;
        }
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = scores.iter().map(|s| f64::from(s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        Kernels::detect().softmax_in_place(&mut scores);
        for (got, weight) in scores.iter().zip(&weights) {
            let expected = weight / sum;
            assert!((f64::from(*got) - expected).abs() <= 1e-6 * expected + 1e-38);
        }
        assert!(n <= 2 || scores[1] == 0.0);
    }
    Kernels::detect().softmax_in_place(&mut []);
    let mut masked = [f32::NEG_INFINITY; 3];
    Kernels::detect().softmax_in_place(&mut masked);
    assert!(masked.iter().all(|v| v.is_nan()));
}

#[test]
fn norms_follow_their_definitions() {
    let mut rng = Rng::new(6);
    let kernels = Kernels::detect();
    for n in [1, 5, 64, 641] {
        let x: Vec<f32> = (0..n).map(|_| rng.float() + 0.7).collect();
        let (w, b) = (rng.floats(n), rng.floats(n));
        let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| f64::from(*v)).collect() };
        let (xs, ws, bs) = (wide(&x), wide(&w), wide(&b));
        let mean = |v: &mut dyn Iterator<Item = f64>| v.sum::<f64>() / n as f64;
        let rms = (mean(&mut xs.iter().map(|x| x * x)) + 1e-6).sqrt();
        let center = mean(&mut xs.iter().copied());
        let deviation = (mean(&mut xs.iter().map(|x| (x - center).powi(2))) + 1e-2).sqrt();
        let mut out = vec![0.0; n];
        let check = |out: &[f32], expected: &dyn Fn(usize) -> f64, what: &str| {
            for (i, got) in out.iter().enumerate() {
                let error = (f64::from(*got) - expected(i)).abs();
                assert!(
                    error <= 1e-5,
                    "{what} {i} of {n}: {got} for {}",
                    expected(i)
                );
            }
        };
        kernels.rms_norm(&x, Some(&w), 1e-6, &mut out);
        check(&out, &|i| xs[i] / rms * ws[i], "rms");
        kernels.rms_norm(&x, None, 1e-6, &mut out);
        check(&out, &|i| xs[i] / rms, "bare rms");
        kernels.layer_norm(&x, &w, Some(&b), 1e-2, &mut out);
        check(
            &out,
            &|i| (xs[i] - center) / deviation * ws[i] + bs[i],
            "layer",
        );
        kernels.layer_norm(&x, &w, None, 1e-2, &mut out);
        check(
            &out,
            &|i| (xs[i] - center) / deviation * ws[i],
            "bare layer",
        );
    }
}
