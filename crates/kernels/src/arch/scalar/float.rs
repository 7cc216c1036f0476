//! Float functions in a fixed order of operations.
//!
//! Every reduction runs in lanes: element `i` of a dot goes to lane `i % 16`, missing elements of
//! the last 16 count as zero, lanes `l` and `l + 8` are added, and [`fold8`] folds the rest.  All
//! instruction sets follow this order, so they agree bit for bit.  Element-wise functions are exact
//! sequences of IEEE operations, so vectorizing them cannot change a bit.

#![expect(
    clippy::needless_range_loop,
    reason = "a lane or position indexes several arrays at once"
)]

use super::decode::decode;
use crate::format::Format;

/// Folds eight lanes: `l + 4` into `l`, then `2` into `0` and `3` into `1`, then `1` into `0`.
#[inline(always)]
pub(crate) fn fold8(lanes: [f32; 8]) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|l| lanes[l] + lanes[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// `out[p] = sum_k w[k] * x[p][k]`; all slices have one length.
#[inline(always)]
pub(crate) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0f32; 16];
    let (steps, rest) = w.as_chunks::<16>();
    let (x_steps, x_rest) = x.as_chunks::<16>();
    for (w, x) in steps.iter().zip(x_steps) {
        for lane in 0..16 {
            acc[lane] = w[lane].mul_add(x[lane], acc[lane]);
        }
    }
    if !rest.is_empty() {
        for lane in 0..16 {
            let of = |s: &[f32]| s.get(lane).copied().unwrap_or(0.0);
            acc[lane] = of(rest).mul_add(of(x_rest), acc[lane]);
        }
    }
    fold8(std::array::from_fn(|lane| acc[lane] + acc[lane + 8]))
}

/// `y[i] += alpha * x[i]`, fused.
#[inline(always)]
pub(crate) fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = alpha.mul_add(x, *y);
    }
}

/// `sum_i f(x[i])` in eight lanes, element `i` in lane `i % 8`.
#[inline(always)]
fn sum8(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut acc = [0f32; 8];
    let (steps, rest) = x.as_chunks::<8>();
    for step in steps {
        for lane in 0..8 {
            acc[lane] += f(step[lane]);
        }
    }
    for (lane, &v) in rest.iter().enumerate() {
        acc[lane] += f(v);
    }
    fold8(acc)
}

/// Adding and subtracting this rounds a small float to the nearest integer, ties to even, and
/// leaves that integer in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `e^x` within 2 ulp over all of `f32`: Cody-Waite reduction to `|r| <= ln 2 / 2`, the minimax
/// polynomial of the Cephes library, and a scale in two steps so that subnormal results round once.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is infinite or rounds to zero; NaN passes through both tests.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    y * power(half) * power(n.wrapping_sub(half))
}

#[inline(always)]
pub(crate) fn exp_in_place(x: &mut [f32]) {
    for x in x {
        *x = exp(*x);
    }
}

/// `x[i] = e^(x[i] - max) / sum`; nothing to do when empty.
#[inline(always)]
pub(crate) fn softmax_in_place(x: &mut [f32]) {
    let mut lanes = [f32::NEG_INFINITY; 8];
    let (steps, rest) = x.as_chunks::<8>();
    for step in steps {
        for lane in 0..8 {
            lanes[lane] = if step[lane] > lanes[lane] {
                step[lane]
            } else {
                lanes[lane]
            };
        }
    }
    for &v in rest {
        lanes[0] = if v > lanes[0] { v } else { lanes[0] };
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for v in &mut *x {
        *v = exp(*v - max);
    }
    let scale = 1.0 / sum8(x, |v| v);
    for v in x {
        *v *= scale;
    }
}

/// `gate[i] = gate[i] / (1 + e^-gate[i]) * up[i]`.
#[inline(always)]
pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// `gate[i] = 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) * up[i]`, through
/// `0.5 (1 + tanh z) = 1 / (1 + e^(-2 z))`.
#[inline(always)]
pub(crate) fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) {
    /// `-2 sqrt(2 / pi)`.
    const SLOPE: f32 = -1.595_769;
    for (g, &u) in gate.iter_mut().zip(up) {
        let x = *g;
        let z = SLOPE * x * (0.044_715 * x).mul_add(x, 1.0);
        *g = x / (1.0 + exp(z)) * u;
    }
}

/// `out[i] = x[i] * scale * weight[i]`.
#[inline(always)]
pub(crate) fn scale(x: &[f32], weight: Option<&[f32]>, scale: f32, out: &mut [f32]) {
    match weight {
        Some(weight) => {
            for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * w;
            }
        }
        None => {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x * scale;
            }
        }
    }
}

/// `out[i] = (x[i] - mean) / sqrt(var + eps) * weight[i] + bias[i]`, with the biased variance.
#[inline(always)]
pub(crate) fn layer_norm(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    let n = x.len() as f32;
    let mean = sum8(x, |v| v) / n;
    let variance = sum8(x, |v| (v - mean) * (v - mean)) / n;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * scale * w;
    }
    if let Some(bias) = bias {
        for (out, &b) in out.iter_mut().zip(bias) {
            *out += b;
        }
    }
}
/// Adds to `out` (`[N, width]`) the rows of `values`, each times its weight, one after another.
pub(crate) fn weigh<const N: usize>(
    values: &[f32],
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    for (out, weights) in out.chunks_exact_mut(width).zip(weights) {
        for (row, weight) in values.chunks_exact(width).zip(weights) {
            for (sum, value) in out.iter_mut().zip(row) {
                *sum = weight.mul_add(*value, *sum);
            }
        }
    }
}

/// As [`weigh`] for rows of stored floats.
pub(crate) fn weigh_stored<const N: usize>(
    format: Format,
    values: &[u8],
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    const SOME: usize = 64;
    let size = format.block_bytes();
    let mut decoded = [0.0; SOME];
    for (j, row) in values.chunks_exact(width * size).enumerate() {
        for (first, some) in (0..).step_by(SOME).zip(row.chunks(SOME * size)) {
            let decoded = &mut decoded[..some.len() / size];
            decode(format, some, decoded);
            for (q, weights) in weights.iter().enumerate() {
                axpy(
                    weights[j],
                    decoded,
                    &mut out[q * width + first..][..decoded.len()],
                );
            }
        }
    }
}
