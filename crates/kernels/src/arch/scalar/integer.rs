//! Integer row dots, as plain loops: the specification of the order of every operation.
//!
//! Each row of weights meets `N` positions of 8-bit activations.  Products are summed as integers in
//! eight lanes (lane `l` takes elements `4 l .. 4 l + 4` of each 32), one block's lanes are scaled
//! and added to float lanes with a fused multiply-add, and the lanes are folded at the end by
//! [`fold8`].  The result for a position depends on nothing but the row and that position.

#![expect(
    clippy::needless_range_loop,
    reason = "a lane or position indexes several arrays at once"
)]

use super::decode::{
    IQ4_VALUES, MXFP4_DOUBLED, e8m0_half, f16_at, five_bits, nibbles, q5_k_quant, q6_k_quant,
    scales_and_mins,
};
use super::float::fold8;
use crate::activations::{Blocks32, Blocks256};
use crate::arch::rows_with_sums;

/// One block of 32 weights: `value[i] = scale * quants[i] + min`.
struct Unpacked {
    quants: [i8; 32],
    scale: f32,
    min: f32,
}

/// Dots over blocks of 32 with the given unpacking; `MIN` says whether the format has minima.
#[inline(always)]
fn dot32<const BYTES: usize, const MIN: bool, const N: usize>(
    rows: &[u8],
    x: [Blocks32<'_>; N],
    out: &mut [[f32; N]],
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked,
) {
    for (row, out) in rows_with_sums(rows, out) {
        *out = row_dot32::<BYTES, MIN, N>(row, x, &unpack);
    }
}

#[inline(always)]
fn row_dot32<const BYTES: usize, const MIN: bool, const N: usize>(
    row: &[u8],
    x: [Blocks32<'_>; N],
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked,
) -> [f32; N] {
    let mut acc = [[[0f32; 8]; 2]; N];
    let mut mins = [0f32; N];
    for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
        let Unpacked { quants, scale, min } = unpack(block);
        for p in 0..N {
            let y = &x[p].quants[b * 32..b * 32 + 32];
            let scale = scale * x[p].scales[b];
            for lane in 0..8 {
                let mut sum = 0;
                for i in lane * 4..lane * 4 + 4 {
                    sum += i32::from(quants[i]) * i32::from(y[i]);
                }
                let acc = &mut acc[p][b % 2][lane];
                *acc = scale.mul_add(sum as f32, *acc);
            }
            if MIN {
                mins[p] = min.mul_add(x[p].sums[b], mins[p]);
            }
        }
    }
    std::array::from_fn(|p| {
        let [even, odd] = acc[p];
        let sum = fold8(std::array::from_fn(|lane| even[lane] + odd[lane]));
        if MIN { sum + mins[p] } else { sum }
    })
}

fn offset(q: [u8; 32], by: i8) -> [i8; 32] {
    q.map(|q| q as i8 - by)
}

fn lookup(q: [u8; 32], table: &[i8; 16]) -> [i8; 32] {
    q.map(|q| table[usize::from(q)])
}

pub(super) fn q4_0<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<18, false, N>(rows, x, out, |b: &[u8; 18]| Unpacked {
        quants: offset(nibbles(&b[2..]), 8),
        scale: f16_at(b, 0),
        min: 0.0,
    })
}

pub(super) fn q4_1<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<20, true, N>(rows, x, out, |b: &[u8; 20]| Unpacked {
        quants: offset(nibbles(&b[4..]), 0),
        scale: f16_at(b, 0),
        min: f16_at(b, 2),
    })
}

pub(super) fn q5_0<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<22, false, N>(rows, x, out, |b: &[u8; 22]| Unpacked {
        quants: offset(five_bits(&b[2..6], &b[6..]), 16),
        scale: f16_at(b, 0),
        min: 0.0,
    })
}

pub(super) fn q5_1<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<24, true, N>(rows, x, out, |b: &[u8; 24]| Unpacked {
        quants: offset(five_bits(&b[4..8], &b[8..]), 0),
        scale: f16_at(b, 0),
        min: f16_at(b, 2),
    })
}

pub(super) fn q8_0<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<34, false, N>(rows, x, out, |b: &[u8; 34]| Unpacked {
        quants: std::array::from_fn(|i| b[2 + i] as i8),
        scale: f16_at(b, 0),
        min: 0.0,
    })
}

pub(super) fn iq4_nl<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<18, false, N>(rows, x, out, |b: &[u8; 18]| Unpacked {
        quants: lookup(nibbles(&b[2..]), &IQ4_VALUES),
        scale: f16_at(b, 0),
        min: 0.0,
    })
}

pub(super) fn mxfp4<const N: usize>(rows: &[u8], x: [Blocks32<'_>; N], out: &mut [[f32; N]]) {
    dot32::<17, false, N>(rows, x, out, |b: &[u8; 17]| Unpacked {
        quants: lookup(nibbles(&b[1..]), &MXFP4_DOUBLED),
        scale: e8m0_half(b[0]),
        min: 0.0,
    })
}

/// Q4_K and Q5_K: `quant(block, sub, i)` is unsigned, scales and minima are per 32.
#[inline(always)]
fn dot_with_mins<const BYTES: usize, const N: usize>(
    rows: &[u8],
    x: [Blocks256<'_>; N],
    out: &mut [[f32; N]],
    quant: impl Fn(&[u8; BYTES], usize, usize) -> u8,
) {
    for (row, out) in rows_with_sums(rows, out) {
        *out = row_dot_with_mins(row, x, &quant);
    }
}

#[inline(always)]
fn row_dot_with_mins<const BYTES: usize, const N: usize>(
    row: &[u8],
    x: [Blocks256<'_>; N],
    quant: impl Fn(&[u8; BYTES], usize, usize) -> u8,
) -> [f32; N] {
    let mut acc = [[0f32; 8]; N];
    let mut min_acc = [[0f32; 4]; N];
    for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (scales, mins) = scales_and_mins(&block[4..16]);
        for p in 0..N {
            let y = &x[p].quants[b * 256..b * 256 + 256];
            let sums = &x[p].sums32[b * 8..b * 8 + 8];
            let mut lanes = [0i32; 8];
            for sub in 0..8 {
                for i in 0..32 {
                    let product = i32::from(quant(block, sub, i)) * i32::from(y[sub * 32 + i]);
                    lanes[i / 4] += i32::from(scales[sub]) * product;
                }
            }
            let scale = d * x[p].scales[b];
            for lane in 0..8 {
                acc[p][lane] = scale.mul_add(lanes[lane] as f32, acc[p][lane]);
            }
            let scale = dmin * x[p].scales[b];
            for lane in 0..4 {
                let of = |i: usize| i32::from(mins[i]) * i32::from(sums[i]);
                let min = of(lane * 2) + of(lane * 2 + 1);
                min_acc[p][lane] = scale.mul_add(min as f32, min_acc[p][lane]);
            }
        }
    }
    std::array::from_fn(|p| {
        let mut lanes = acc[p];
        for lane in 0..4 {
            // Folding adds lane + 4 to lane first, so the minima are taken off that sum.
            lanes[lane] = (lanes[lane] + lanes[lane + 4]) - min_acc[p][lane];
        }
        (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
    })
}

pub(super) fn q4_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    dot_with_mins(rows, x, out, |b: &[u8; 144], sub, i| {
        b[16 + sub / 2 * 32 + i] >> (sub % 2 * 4) & 15
    })
}

pub(super) fn q5_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    dot_with_mins(rows, x, out, q5_k_quant)
}

/// Q6_K: values 0 to 63 less 32, signed scales per 16.  The 32 is taken off through the sums.
pub(super) fn q6_k<const N: usize>(rows: &[u8], x: [Blocks256<'_>; N], out: &mut [[f32; N]]) {
    for (row, out) in rows_with_sums(rows, out) {
        *out = q6_k_row(row, x);
    }
}

fn q6_k_row<const N: usize>(row: &[u8], x: [Blocks256<'_>; N]) -> [f32; N] {
    let mut acc = [[0f32; 8]; N];
    for (b, block) in row.as_chunks::<210>().0.iter().enumerate() {
        let d = f16_at(block, 208);
        let scale = |i: usize| i32::from(block[192 + i] as i8);
        for p in 0..N {
            let y = &x[p].quants[b * 256..b * 256 + 256];
            let sums = &x[p].sums16[b * 16..b * 16 + 16];
            let mut lanes = [0i32; 8];
            for group in 0..8 {
                for i in 0..32 {
                    let q = i32::from(q6_k_quant(block, group, i));
                    lanes[i / 4] += scale(group * 2 + i / 16) * q * i32::from(y[group * 32 + i]);
                }
            }
            let total = d * x[p].scales[b];
            for lane in 0..8 {
                let of = |i: usize| scale(i) * i32::from(sums[i]);
                let offset = of(lane * 2) + of(lane * 2 + 1);
                let sum = lanes[lane] - 32 * offset;
                acc[p][lane] = total.mul_add(sum as f32, acc[p][lane]);
            }
        }
    }
    acc.map(fold8)
}
