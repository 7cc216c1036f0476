//! Float dots over decoded tiles; the scalar function of the same name says in which order.

#![expect(
    clippy::needless_range_loop,
    reason = "a position indexes several arrays at once"
)]
#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{load_f32, store_f32};
use crate::arch::scalar::tiles::CHAIN;

/// Chains of sums that run at once, so that one need not wait for another.
const CHAINS: usize = 8;

/// Adds to `out` the products of `inputs` rows of eight weights with `N` positions, [`CHAIN`] inputs per chain; `x[p]` has as many
/// values.
pub(super) fn floats<const N: usize>(
    weights: &[[f32; 8]],
    x: [&[f32]; N],
    out: &mut [[f32; 8]; N],
) {
    #[target_feature(enable = "avx2,fma")]
    fn kernel<const N: usize>(weights: &[[f32; 8]], x: [&[f32]; N], out: &mut [[f32; 8]; N]) {
        let mut at = 0;
        let n = weights.len();
        if N == 1 {
            while at + CHAIN * CHAINS <= n {
                chains::<CHAINS, N>(&weights[at..], x, at, out);
                at += CHAIN * CHAINS;
            }
        }
        while at + CHAIN * 2 <= n {
            chains::<2, N>(&weights[at..], x, at, out);
            at += CHAIN * 2;
        }
        while at < n {
            let len = (n - at).min(CHAIN);
            chain::<N>(&weights[at..at + len], x, at, out);
            at += len;
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(weights, x, out) }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn chains<const C: usize, const N: usize>(
    weights: &[[f32; 8]],
    x: [&[f32]; N],
    at: usize,
    out: &mut [[f32; 8]; N],
) {
    let mut acc = [[_mm256_setzero_ps(); N]; C];
    let weights: &[[[f32; 8]; CHAIN]] = &weights.as_chunks().0[..C];
    let mut cut = [[[0f32; CHAIN].as_slice(); C]; N];
    for p in 0..N {
        for c in 0..C {
            cut[p][c] = &x[p][at + CHAIN * c..][..CHAIN];
        }
    }
    for i in 0..CHAIN {
        for c in 0..C {
            let w = load_f32(&weights[c][i]);
            for p in 0..N {
                acc[c][p] = _mm256_fmadd_ps(w, _mm256_set1_ps(cut[p][c][i]), acc[c][p]);
            }
        }
    }
    for c in 0..C {
        for p in 0..N {
            let sum = _mm256_add_ps(load_f32(&out[p]), acc[c][p]);
            store_f32(&mut out[p], sum);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn chain<const N: usize>(weights: &[[f32; 8]], x: [&[f32]; N], at: usize, out: &mut [[f32; 8]; N]) {
    let mut acc = [_mm256_setzero_ps(); N];
    for (i, w) in weights.iter().enumerate() {
        let w = load_f32(w);
        for p in 0..N {
            acc[p] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[p][at + i]), acc[p]);
        }
    }
    for p in 0..N {
        let sum = _mm256_add_ps(load_f32(&out[p]), acc[p]);
        store_f32(&mut out[p], sum);
    }
}
