//! Float dots over decoded tiles; the scalar function of the same name says in which order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{load_f32, store_f32};
use crate::arch::scalar::tiles::CHAIN;

/// Adds to `out` the products of `inputs` rows of eight weights with `N` positions, [`CHAIN`] inputs per chain; `x[p]` has as many
/// values.
pub(super) fn floats<const T: usize, const N: usize>(
    weights: [&[[f32; 8]]; T],
    x: [&[f32]; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    #[target_feature(enable = "avx2,fma")]
    fn kernel<const T: usize, const N: usize>(
        weights: [&[[f32; 8]]; T],
        x: [&[f32]; N],
        mut out: [&mut [[f32; 8]; N]; T],
    ) {
        // Eight sums at once, so that none waits for itself.
        let at = match T * N {
            1 => chains::<8, T, N>(weights, x, 0, &mut out),
            2 => chains::<4, T, N>(weights, x, 0, &mut out),
            4 => chains::<2, T, N>(weights, x, 0, &mut out),
            _ => 0,
        };
        let at = chains::<1, T, N>(weights, x, at, &mut out);
        let rest = weights[0].len() - at;
        if rest > 0 {
            chain::<T, N>(weights, x, at, rest, &mut out);
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(weights, x, out) }
}

/// Chains of every tile and position from `at` on, `C` at a time; returns where they end.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn chains<const C: usize, const T: usize, const N: usize>(
    weights: [&[[f32; 8]]; T],
    x: [&[f32]; N],
    mut at: usize,
    out: &mut [&mut [[f32; 8]; N]; T],
) -> usize {
    while at + CHAIN * C <= weights[0].len() {
        let mut acc = [[[_mm256_setzero_ps(); N]; T]; C];
        let mut rows = [[&[[0f32; 8]; CHAIN]; T]; C];
        let mut inputs = [[&[0f32; CHAIN]; N]; C];
        for c in 0..C {
            for t in 0..T {
                rows[c][t] = cut(weights[t], at + CHAIN * c);
            }
            for p in 0..N {
                inputs[c][p] = cut(x[p], at + CHAIN * c);
            }
        }
        for i in 0..CHAIN {
            for c in 0..C {
                let mut w = [_mm256_setzero_ps(); T];
                for t in 0..T {
                    w[t] = load_f32(&rows[c][t][i]);
                }
                for p in 0..N {
                    let x = _mm256_set1_ps(inputs[c][p][i]);
                    for t in 0..T {
                        acc[c][t][p] = _mm256_fmadd_ps(w[t], x, acc[c][t][p]);
                    }
                }
            }
        }
        for acc in &acc {
            add(acc, out);
        }
        at += CHAIN * C;
    }
    at
}

/// The chain that begins at `at`.
#[inline(always)]
fn cut<X>(values: &[X], at: usize) -> &[X; CHAIN] {
    values[at..]
        .first_chunk()
        .expect("the chain lies inside the row")
}

/// A last, shorter chain of every tile and position.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn chain<const T: usize, const N: usize>(
    weights: [&[[f32; 8]]; T],
    x: [&[f32]; N],
    at: usize,
    len: usize,
    out: &mut [&mut [[f32; 8]; N]; T],
) {
    let mut acc = [[_mm256_setzero_ps(); N]; T];
    for i in at..at + len {
        for p in 0..N {
            let x = _mm256_set1_ps(x[p][i]);
            for t in 0..T {
                acc[t][p] = _mm256_fmadd_ps(load_f32(&weights[t][i]), x, acc[t][p]);
            }
        }
    }
    add(&acc, out);
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn add<const T: usize, const N: usize>(acc: &[[__m256; N]; T], out: &mut [&mut [[f32; 8]; N]; T]) {
    for t in 0..T {
        for p in 0..N {
            let sum = _mm256_add_ps(load_f32(&out[t][p]), acc[t][p]);
            store_f32(&mut out[t][p], sum);
        }
    }
}
