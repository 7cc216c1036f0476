//! Float dots: two registers of eight lanes per position, in the scalar lane order.

#![expect(
    clippy::needless_range_loop,
    reason = "a lane or position indexes several arrays at once"
)]
#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{fold8, load_f32};

/// `out[p] = sum_k w[k] * x[p][k]`; all slices have one length.
pub(super) fn dot<const N: usize>(w: &[f32], x: [&[f32]; N]) -> [f32; N] {
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(w, x) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn kernel<const N: usize>(w: &[f32], x: [&[f32]; N]) -> [f32; N] {
    let (steps, rest) = w.as_chunks::<16>();
    let (x_steps, x_rest) = cut(x, steps.len());
    let mut acc = [[_mm256_setzero_ps(); 2]; N];
    for (k, w) in steps.iter().enumerate() {
        for half in 0..2 {
            let w = load_f32(&w.as_chunks().0[half]);
            for p in 0..N {
                let x = load_f32(&x_steps[p][k].as_chunks().0[half]);
                acc[p][half] = _mm256_fmadd_ps(w, x, acc[p][half]);
            }
        }
    }
    if !rest.is_empty() {
        let w = pad(rest);
        for p in 0..N {
            let x = pad(x_rest[p]);
            for half in 0..2 {
                acc[p][half] =
                    _mm256_fmadd_ps(load_f32(&w[half]), load_f32(&x[half]), acc[p][half]);
            }
        }
    }
    let mut out = [0.0; N];
    for p in 0..N {
        out[p] = fold8(_mm256_add_ps(acc[p][0], acc[p][1]));
    }
    out
}

/// Whole steps, exactly `n_steps` of them so that indexing needs no further checks, and the rest.
///
/// Made outside the feature function: a closure written there does not inline into `array::map`.
#[inline(always)]
fn cut<const N: usize>(x: [&[f32]; N], n_steps: usize) -> ([&[[f32; 16]]; N], [&[f32]; N]) {
    (
        x.map(|x| &x.as_chunks().0[..n_steps]),
        x.map(|x| x.as_chunks::<16>().1),
    )
}

/// Up to 16 values with zeros after them.
#[inline(always)]
fn pad(values: &[f32]) -> [[f32; 8]; 2] {
    let mut padded = [[0.0; 8]; 2];
    padded.as_flattened_mut()[..values.len()].copy_from_slice(values);
    padded
}
