//! Float dots over tiles, decoded or stored as plain values; the scalar functions of the same names say in which order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{load_f32, load_half, load_u8, prefetch, rolled, store_f32};
use crate::arch::PLACES;
use crate::arch::scalar::tiles::{self as portable, CHAIN, cut_each, entries};
use crate::format::{Format, Plain};

/// How far ahead stored values are asked for: four chains of F32 have so many bytes, so that the beginning of each has come when
/// all four begin.
const AHEAD: usize = 8192;

/// Adds to `out` the products of `inputs` rows of eight weights with `N` positions, [`CHAIN`] inputs per chain; `x[p]` has as many
/// values.
pub(super) fn floats<const T: usize, const N: usize>(
    weights: &[[[f32; 8]; T]],
    x: [&[f32]; N],
    mut out: [&mut [[f32; 8]; N]; T],
) {
    #[target_feature(enable = "avx2,fma")]
    fn kernel<const T: usize, const N: usize>(
        weights: &[[[f32; 8]; T]],
        x: [&[f32]; N],
        out: &mut [&mut [[f32; 8]; N]; T],
    ) {
        all_chains::<0, T, N, 1, _>(
            [weights],
            |[w]| {
                let mut rows = [_mm256_setzero_ps(); T];
                for t in 0..T {
                    rows[t] = load_f32(&w[t]);
                }
                rows
            },
            x,
            out,
        );
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(weights, x, &mut out) }
}

/// Dots of whole tiles of plain values.
pub(super) fn plain_dots<const T: usize, const N: usize>(
    format: Format,
    tiles: [&[u8]; T],
    x: [&[f32]; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const T: usize, const N: usize>(
        format: Format,
        tiles: [&[u8]; T],
        x: [&[f32]; N],
        mut out: [&mut [[f32; 8]; N]; T],
    ) {
        match format.plain() {
            Some(Plain::F32) => all_chains::<AHEAD, T, N, T, _>(
                tiles.map(|tile| tile.as_chunks::<32>().0),
                |w| of_each(w, |w| _mm256_castsi256_ps(load_u8(w))),
                x,
                &mut out,
            ),
            Some(Plain::F16) => all_chains::<AHEAD, T, N, T, _>(
                tiles.map(|tile| tile.as_chunks::<16>().0),
                |w| of_each(w, |w| _mm256_cvtph_ps(load_half(w))),
                x,
                &mut out,
            ),
            Some(Plain::Bf16) => all_chains::<AHEAD, T, N, T, _>(
                tiles.map(|tile| tile.as_chunks::<16>().0),
                |w| {
                    of_each(w, |w| {
                        let bits = _mm256_cvtepu16_epi32(load_half(w));
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                    })
                },
                x,
                &mut out,
            ),
            None => portable::plain_dots(format, tiles, x, out),
        }
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(format, tiles, x, out) }
}

/// The value of each tile, loaded.
#[target_feature(enable = "avx2")]
#[inline]
fn of_each<const T: usize, W>(weights: [&W; T], load: impl Fn(&W) -> __m256) -> [__m256; T] {
    let mut rows = [_mm256_setzero_ps(); T];
    for t in 0..T {
        rows[t] = load(weights[t]);
    }
    rows
}

/// All columns: as many chains at a time as make eight sums, so that none waits for itself. Where the weights come from memory,
/// those `AHEAD` bytes on are asked for, and four sums are enough: memory gives less than they take.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn all_chains<const AHEAD: usize, const T: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> [__m256; T] + Copy,
    x: [&[f32]; N],
    out: &mut [&mut [[f32; 8]; N]; T],
) {
    let at = match T * N {
        PLACES if AHEAD > 0 && T == PLACES => in_turn(weights, load, x, out),
        1 if AHEAD > 0 => chains::<4, AHEAD, T, N, S, W>(weights, load, x, 0, out),
        2 if AHEAD > 0 => chains::<2, AHEAD, T, N, S, W>(weights, load, x, 0, out),
        1 => chains::<8, AHEAD, T, N, S, W>(weights, load, x, 0, out),
        2 => chains::<4, AHEAD, T, N, S, W>(weights, load, x, 0, out),
        4 => chains::<2, AHEAD, T, N, S, W>(weights, load, x, 0, out),
        _ => 0,
    };
    let at = chains::<1, AHEAD, T, N, S, W>(weights, load, x, at, out);
    let rest = weights[0].len() - at;
    if rest > 0 {
        chain(weights, load, x, at, rest, out);
    }
}

/// Chains of every tile and position from `at` on, `C` at a time; returns where they end.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn chains<const C: usize, const AHEAD: usize, const T: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> [__m256; T],
    x: [&[f32]; N],
    mut at: usize,
    out: &mut [&mut [[f32; 8]; N]; T],
) -> usize {
    while at + CHAIN * C <= weights[0].len() {
        let mut acc = [[[_mm256_setzero_ps(); N]; T]; C];
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

/// Columns of a step of [`in_turn`].
const STEP: usize = 4;

/// The steps of each chain.
#[inline(always)]
fn steps<X, const S: usize>(chains: [&[X; CHAIN]; S]) -> [&[[X; STEP]]; S] {
    let mut steps = [chains[0].as_chunks().0; S];
    for s in 1..S {
        steps[s] = chains[s].as_chunks().0;
    }
    steps
}

/// Chains of every tile and position, one at a time, so that every tile is read from front to back; returns where they end.
///
/// Sums enough are under way where the tiles are [`PLACES`]. In one step of the loop a load goes on by a line or two.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn in_turn<const T: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> [__m256; T],
    x: [&[f32]; N],
    out: &mut [&mut [[f32; 8]; N]; T],
) -> usize {
    let n_chains = weights[0].len() / CHAIN;
    for at in (0..n_chains).map(|chain| chain * CHAIN) {
        let mut acc = [[_mm256_setzero_ps(); N]; T];
        let rows = steps(cut_each(weights, at));
        let inputs = steps(cut_each(x, at));
        for step in rolled(0..CHAIN / STEP) {
            let steps = entries(rows, step);
            #[expect(
                clippy::needless_range_loop,
                reason = "weights and positions go by together"
            )]
            for i in 0..STEP {
                let w = load(entries(steps, i));
                for p in 0..N {
                    let x = _mm256_set1_ps(inputs[p][step][i]);
                    for t in 0..T {
                        acc[t][p] = _mm256_fmadd_ps(w[t], x, acc[t][p]);
                    }
                }
            }
        }
        add(&acc, out);
    }
    n_chains * CHAIN
}

/// A last, shorter chain of every tile and position.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn chain<const T: usize, const N: usize, const S: usize, W>(
    weights: [&[W]; S],
    load: impl Fn([&W; S]) -> [__m256; T],
    x: [&[f32]; N],
    at: usize,
    len: usize,
    out: &mut [&mut [[f32; 8]; N]; T],
) {
    let mut acc = [[_mm256_setzero_ps(); N]; T];
    for i in at..at + len {
        let w = load(entries(weights, i));
        for p in 0..N {
            let x = _mm256_set1_ps(x[p][i]);
            for t in 0..T {
                acc[t][p] = _mm256_fmadd_ps(w[t], x, acc[t][p]);
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
