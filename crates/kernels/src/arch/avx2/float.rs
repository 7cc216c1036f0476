//! The float dot: two registers of eight lanes, in the scalar lane order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{fold8, load_f32};

/// `sum_k a[k] * b[k]`; both slices have one length.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(a, b) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn kernel(a: &[f32], b: &[f32]) -> f32 {
    let (a_steps, a_rest) = a.as_chunks::<16>();
    let (b_steps, b_rest) = b.as_chunks::<16>();
    let mut acc = [_mm256_setzero_ps(); 2];
    let mut step = |a: &[f32; 16], b: &[f32; 16]| {
        for (half, acc) in acc.iter_mut().enumerate() {
            let (a, b) = (&a.as_chunks().0[half], &b.as_chunks().0[half]);
            *acc = _mm256_fmadd_ps(load_f32(a), load_f32(b), *acc);
        }
    };
    for (a, b) in a_steps.iter().zip(b_steps) {
        step(a, b);
    }
    if !a_rest.is_empty() {
        step(&pad(a_rest), &pad(b_rest));
    }
    fold8(_mm256_add_ps(acc[0], acc[1]))
}

/// Up to 16 values with zeros after them.
#[inline(always)]
fn pad(values: &[f32]) -> [f32; 16] {
    let mut padded = [0.0; 16];
    padded[..values.len()].copy_from_slice(values);
    padded
}
