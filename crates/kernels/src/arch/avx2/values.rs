//! Weighted sums of rows; the scalar function of the same name says in which order.

#![expect(
    clippy::needless_range_loop,
    reason = "a query indexes several arrays at once"
)]
#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{f16_at, load_f32, load_half, load_u8, part, part_f32, store_f32};
use crate::arch::scalar::float as portable;
use crate::format::{Format, Plain};

/// Adds to `out` (`[N, width]`) the rows of `values`, each times its weight.
pub(super) fn weigh<const N: usize>(
    values: &[f32],
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    #[target_feature(enable = "avx2,fma")]
    fn kernel<const N: usize>(values: &[f32], width: usize, weights: [&[f32]; N], out: &mut [f32]) {
        all_columns(values, |x| load_f32(x), |x| *x, width, weights, out);
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(values, width, weights, out) }
}

/// As [`weigh`] for rows of stored floats.
pub(super) fn weigh_stored<const N: usize>(
    format: Format,
    values: &[u8],
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const N: usize>(
        format: Format,
        values: &[u8],
        width: usize,
        weights: [&[f32]; N],
        out: &mut [f32],
    ) {
        match format.plain() {
            Some(Plain::F32) => all_columns(
                values.as_chunks::<4>().0,
                |x| _mm256_castsi256_ps(load_u8(part(x.as_flattened(), 0))),
                |x| f32::from_le_bytes(*x),
                width,
                weights,
                out,
            ),
            Some(Plain::F16) => all_columns(
                values.as_chunks::<2>().0,
                |x| _mm256_cvtph_ps(load_half(part(x.as_flattened(), 0))),
                |x| f16_at(x, 0),
                width,
                weights,
                out,
            ),
            Some(Plain::Bf16) | None => portable::weigh_stored(format, values, width, weights, out),
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(format, values, width, weights, out) }
}

/// All columns: `load` gives eight of them, `one` a single one.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn all_columns<const N: usize, W>(
    values: &[W],
    load: impl Fn(&[W; 8]) -> __m256 + Copy,
    one: impl Fn(&W) -> f32,
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    let mut at = 0;
    if N == 1 {
        at = columns::<8, N, W>(values, load, width, weights, at, out);
    }
    if N == 2 {
        at = columns::<4, N, W>(values, load, width, weights, at, out);
    }
    at = columns::<2, N, W>(values, load, width, weights, at, out);
    at = columns::<1, N, W>(values, load, width, weights, at, out);
    for column in at..width {
        for q in 0..N {
            let sum = &mut out[q * width + column];
            for (row, weight) in values.chunks_exact(width).zip(weights[q]) {
                *sum = weight.mul_add(one(&row[column]), *sum);
            }
        }
    }
}

/// Columns from `at` on, `V` registers at a time; returns where they end.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn columns<const V: usize, const N: usize, W>(
    values: &[W],
    load: impl Fn(&[W; 8]) -> __m256,
    width: usize,
    weights: [&[f32]; N],
    mut at: usize,
    out: &mut [f32],
) -> usize {
    let n = values.len() / width;
    let mut cut = [&weights[0][..n]; N];
    for q in 1..N {
        cut[q] = &weights[q][..n];
    }
    while at + 8 * V <= width {
        let mut acc = [[_mm256_setzero_ps(); V]; N];
        for q in 0..N {
            for v in 0..V {
                acc[q][v] = load_f32(part_f32(out, q * width + at + 8 * v));
            }
        }
        for (j, row) in values.chunks_exact(width).enumerate() {
            let row = row[at..at + 8 * V].as_chunks().0;
            let mut x = [_mm256_setzero_ps(); V];
            for v in 0..V {
                x[v] = load(&row[v]);
            }
            for q in 0..N {
                let weight = _mm256_set1_ps(cut[q][j]);
                for v in 0..V {
                    acc[q][v] = _mm256_fmadd_ps(weight, x[v], acc[q][v]);
                }
            }
        }
        for q in 0..N {
            for v in 0..V {
                let out = &mut out[q * width + at + 8 * v..];
                store_f32(
                    out.first_chunk_mut().expect("the columns lie in the row"),
                    acc[q][v],
                );
            }
        }
        at += 8 * V;
    }
    at
}
