//! Float dots over pairs of tiles, decoded or stored as plain values; the scalar functions of the same names say in which order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{both_halves, both_integers, load_both};
use super::tiles::{load, store};
use crate::arch::avx2::registers::{load_u8, prefetch};
use crate::arch::scalar::tiles::{self as portable, CHAIN, cut_each, entries};
use crate::format::{Format, Plain};

/// How far ahead stored values are asked for, as in the AVX2 table.
const AHEAD: usize = 8192;

/// Adds to `out` the products of `inputs` rows of eight weights with `N` positions, [`CHAIN`] inputs per chain; `x[p]` has as many
/// values.
pub(super) fn floats<const N: usize>(
    weights: &[[[f32; 8]; 2]],
    x: [&[f32]; N],
    out: [&mut [[f32; 8]; N]; 2],
) {
    #[target_feature(enable = "avx512f,avx512vl")]
    fn kernel<const N: usize>(
        weights: &[[[f32; 8]; 2]],
        x: [&[f32]; N],
        out: [&mut [[f32; 8]; N]; 2],
    ) {
        all_chains::<0, N, 1, _>([weights], |[w]| load_both(w), x, out);
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(weights, x, out) }
}

/// Dots of whole tiles of plain values.
pub(super) fn plain_dots<const N: usize>(
    format: Format,
    tiles: [&[u8]; 2],
    x: [&[f32]; N],
    out: [&mut [[f32; 8]; N]; 2],
) {
    #[target_feature(enable = "avx512f,avx512vl")]
    fn kernel<const N: usize>(
        format: Format,
        tiles: [&[u8]; 2],
        x: [&[f32]; N],
        out: [&mut [[f32; 8]; N]; 2],
    ) {
        let [a, b] = tiles;
        match format.plain() {
            Some(Plain::F32) => all_chains::<AHEAD, N, 2, _>(
                [a.as_chunks::<32>().0, b.as_chunks::<32>().0],
                |[a, b]| _mm512_castsi512_ps(both_integers(load_u8(a), load_u8(b))),
                x,
                out,
            ),
            Some(Plain::F16) => all_chains::<AHEAD, N, 2, _>(
                [a.as_chunks::<16>().0, b.as_chunks::<16>().0],
                |w| _mm512_cvtph_ps(both_halves(w)),
                x,
                out,
            ),
            Some(Plain::Bf16) => all_chains::<AHEAD, N, 2, _>(
                [a.as_chunks::<16>().0, b.as_chunks::<16>().0],
                |w| {
                    let bits = _mm512_cvtepu16_epi32(both_halves(w));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                },
                x,
                out,
            ),
            None => portable::plain_dots(format, tiles, x, out),
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(format, tiles, x, out) }
}

/// All columns: as many chains at a time as make eight sums, so that none waits for itself, and four where the weights come from
/// memory, which gives less than they take.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn all_chains<const AHEAD: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> __m512 + Copy,
    x: [&[f32]; N],
    out: [&mut [[f32; 8]; N]; 2],
) {
    let mut acc = self::load(&out);
    let at = match N {
        1 if AHEAD > 0 => chains::<4, AHEAD, N, S, W>(weights, load, x, 0, &mut acc),
        1 => chains::<8, AHEAD, N, S, W>(weights, load, x, 0, &mut acc),
        2 => chains::<4, AHEAD, N, S, W>(weights, load, x, 0, &mut acc),
        4 => chains::<2, AHEAD, N, S, W>(weights, load, x, 0, &mut acc),
        _ => 0,
    };
    let at = chains::<1, AHEAD, N, S, W>(weights, load, x, at, &mut acc);
    let n = weights[0].len();
    if at < n {
        let mut sums = [_mm512_setzero_ps(); N];
        #[expect(
            clippy::needless_range_loop,
            reason = "weights and positions go by together"
        )]
        for i in at..n {
            let w = load(entries(weights, i));
            for p in 0..N {
                sums[p] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[p][i]), sums[p]);
            }
        }
        add(&sums, &mut acc);
    }
    store(&acc, out);
}

/// Chains of every position from `at` on, `C` at a time; returns where they end.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn chains<const C: usize, const AHEAD: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> __m512,
    x: [&[f32]; N],
    mut at: usize,
    acc: &mut [__m512; N],
) -> usize {
    while at + CHAIN * C <= weights[0].len() {
        let mut sums = [[_mm512_setzero_ps(); N]; C];
        let mut rows = [cut_each(weights, at); C];
        let mut inputs = [cut_each(x, at); C];
        for c in 1..C {
            rows[c] = cut_each(weights, at + CHAIN * c);
            inputs[c] = cut_each(x, at + CHAIN * c);
        }
        for i in 0..CHAIN {
            if AHEAD > 0 {
                for weights in weights {
                    prefetch::<AHEAD>(&weights[at + C * i..][..C]);
                }
            }
            for c in 0..C {
                let w = load(entries(rows[c], i));
                for p in 0..N {
                    sums[c][p] = _mm512_fmadd_ps(w, _mm512_set1_ps(inputs[c][p][i]), sums[c][p]);
                }
            }
        }
        for sums in &sums {
            add(sums, acc);
        }
        at += CHAIN * C;
    }
    at
}

#[target_feature(enable = "avx512f")]
#[inline]
fn add<const N: usize>(sums: &[__m512; N], acc: &mut [__m512; N]) {
    for p in 0..N {
        acc[p] = _mm512_add_ps(acc[p], sums[p]);
    }
}
