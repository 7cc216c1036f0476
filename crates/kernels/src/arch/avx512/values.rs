//! Weighted sums of rows, sixteen columns in a register; the scalar functions of the same names say in which order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{load_16, load_bytes, store_16};
use crate::arch::avx2::registers::{f16_at, load_u8, part};
use crate::arch::scalar::float as portable;
use crate::format::{Format, Plain};

/// Adds to `out` (`[N, width]`) the rows of `values`, each times its weight.
pub(super) fn weigh<const N: usize>(
    values: &[f32],
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    #[target_feature(enable = "avx512f,avx512vl")]
    fn kernel<const N: usize>(values: &[f32], width: usize, weights: [&[f32]; N], out: &mut [f32]) {
        all_columns(values, |x| load_16(x), |x| *x, width, weights, out);
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
    #[target_feature(enable = "avx512f,avx512vl")]
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
                |x| _mm512_castsi512_ps(load_bytes(part(x.as_flattened(), 0))),
                |x| f32::from_le_bytes(*x),
                width,
                weights,
                out,
            ),
            Some(Plain::F16) => all_columns(
                values.as_chunks::<2>().0,
                |x| _mm512_cvtph_ps(load_u8(part(x.as_flattened(), 0))),
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

/// All columns: `load` gives sixteen of them, `one` a single one.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn all_columns<const N: usize, W>(
    values: &[W],
    load: impl Fn(&[W; 16]) -> __m512 + Copy,
    one: impl Fn(&W) -> f32,
    width: usize,
    weights: [&[f32]; N],
    out: &mut [f32],
) {
    let mut at = 0;
    if N <= 2 {
        at = columns::<8, N, W>(values, load, width, weights, at, out);
    }
    at = columns::<4, N, W>(values, load, width, weights, at, out);
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
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn columns<const V: usize, const N: usize, W>(
    values: &[W],
    load: impl Fn(&[W; 16]) -> __m512,
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
    while at + 16 * V <= width {
        let mut acc = [[_mm512_setzero_ps(); V]; N];
        for q in 0..N {
            for v in 0..V {
                acc[q][v] = load_16(
                    out[q * width + at + 16 * v..]
                        .first_chunk()
                        .expect("the columns lie in the row"),
                );
            }
        }
        for (j, row) in values.chunks_exact(width).enumerate() {
            let row = row[at..at + 16 * V].as_chunks().0;
            let mut x = [_mm512_setzero_ps(); V];
            for v in 0..V {
                x[v] = load(&row[v]);
            }
            for q in 0..N {
                let weight = _mm512_set1_ps(cut[q][j]);
                for v in 0..V {
                    acc[q][v] = _mm512_fmadd_ps(weight, x[v], acc[q][v]);
                }
            }
        }
        for q in 0..N {
            for v in 0..V {
                let out = &mut out[q * width + at + 16 * v..];
                store_16(
                    out.first_chunk_mut().expect("the columns lie in the row"),
                    acc[q][v],
                );
            }
        }
        at += 16 * V;
    }
    at
}
