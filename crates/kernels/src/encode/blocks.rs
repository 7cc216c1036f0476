//! One function per format: weights of a block to its bytes.

use super::ScaleOverflow;
use super::affine::{self, Lowest, SubLines};
use super::halves::{f32_to_bf16, f32_to_f16};
use super::pack;
use super::signed::{self, CodeRange, SubScales};
use super::unit::{Stored, Unit};

const Q4_0: signed::Levels = signed::Levels {
    low: -8.0,
    high: 7.0,
    from: -2.0,
    step: 0.1,
    n_steps: 30,
};

const Q5_0: signed::Levels = signed::Levels {
    low: -16.0,
    high: 15.0,
    from: -2.5,
    step: 0.1,
    n_steps: 35,
};

/// All halves between those that map the largest magnitude to 127 and to 124 are tried, so there is
/// no grid.  Minus 128 is left out: the integer kernels rely on a symmetric range, and ggml never writes it.
const Q8_0: signed::Levels = signed::Levels {
    low: -127.0,
    high: 127.0,
    from: -3.0,
    step: 0.0,
    n_steps: 0,
};

const Q3_K: signed::Levels = signed::Levels {
    low: -4.0,
    high: 3.0,
    from: -1.5,
    step: 0.1,
    n_steps: 24,
};

const Q6_K: signed::Levels = signed::Levels {
    low: -32.0,
    high: 31.0,
    from: -2.5,
    step: 0.125,
    n_steps: 26,
};

const Q4_1: affine::Levels = affine::Levels {
    q_max: 15.0,
    from: -0.4,
    step: 0.32,
    n_steps: 6,
    lowest: Lowest::Free,
};

const Q5_1: affine::Levels = affine::Levels {
    q_max: 31.0,
    from: -0.4,
    step: 0.32,
    n_steps: 6,
    lowest: Lowest::Free,
};

const Q2_K: affine::Levels = affine::Levels {
    q_max: 3.0,
    from: -0.3,
    step: 0.16,
    n_steps: 6,
    lowest: Lowest::NotPositive,
};

const Q4_K: affine::Levels = affine::Levels {
    lowest: Lowest::NotPositive,
    ..Q4_1
};

const Q5_K: affine::Levels = affine::Levels {
    lowest: Lowest::NotPositive,
    ..Q5_1
};

pub(super) fn f32(x: &[f32; 1], out: &mut [u8; 4]) -> Result<(), ScaleOverflow> {
    *out = x[0].to_le_bytes();
    Ok(())
}

pub(super) fn f16(x: &[f32; 1], out: &mut [u8; 2]) -> Result<(), ScaleOverflow> {
    half(f32_to_f16(x[0]), 0x7c00, out)
}

pub(super) fn bf16(x: &[f32; 1], out: &mut [u8; 2]) -> Result<(), ScaleOverflow> {
    half(f32_to_bf16(x[0]), 0x7f80, out)
}

fn half(bits: u16, infinity: u16, out: &mut [u8; 2]) -> Result<(), ScaleOverflow> {
    if bits & 0x7fff == infinity {
        return Err(ScaleOverflow);
    }
    *out = bits.to_le_bytes();
    Ok(())
}

type FindScale = fn(&[f32; 32], &Unit, &signed::Levels) -> Result<Stored, ScaleOverflow>;

/// The scale and the integers of a block with one scale.
fn one_scale(
    x: &[f32; 32],
    levels: &signed::Levels,
    find: FindScale,
) -> Result<(Stored, [i8; 32]), ScaleOverflow> {
    let Some(unit) = Unit::of(x) else {
        return Ok((Stored::ZERO, [0; 32]));
    };
    let x = unit.weights(x);
    let scale = find(&x, &unit, levels)?;
    Ok((scale, signed::integers(&x, scale.value, levels)))
}

pub(super) fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) -> Result<(), ScaleOverflow> {
    let (scale, q) = one_scale(x, &Q8_0, signed::block_scale_of_all)?;
    out[..2].copy_from_slice(&scale.bits.to_le_bytes());
    out[2..].copy_from_slice(&q.map(|q| q as u8));
    Ok(())
}

pub(super) fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) -> Result<(), ScaleOverflow> {
    let (scale, q) = one_scale(x, &Q4_0, signed::block_scale)?;
    out[..2].copy_from_slice(&scale.bits.to_le_bytes());
    pack::nibbles(&q.map(|q| (q + 8) as u8), &mut out[2..]);
    Ok(())
}

pub(super) fn q5_0(x: &[f32; 32], out: &mut [u8; 22]) -> Result<(), ScaleOverflow> {
    let (scale, q) = one_scale(x, &Q5_0, signed::block_scale)?;
    let q = q.map(|q| (q + 16) as u8);
    out[..2].copy_from_slice(&scale.bits.to_le_bytes());
    out[2..6].copy_from_slice(&pack::fifth_bits(&q));
    pack::nibbles(&q, &mut out[6..]);
    Ok(())
}

/// Writes scale and lowest value into the first four bytes and returns the integers.
fn one_line(
    x: &[f32; 32],
    levels: &affine::Levels,
    out: &mut [u8],
) -> Result<[u8; 32], ScaleOverflow> {
    let Some(unit) = Unit::of(x) else {
        out[..4].fill(0);
        return Ok([0; 32]);
    };
    let x = unit.weights(x);
    let line = affine::block_line(&x, &unit, levels)?;
    out[..2].copy_from_slice(&line.scale.bits.to_le_bytes());
    out[2..4].copy_from_slice(&line.low.bits.to_le_bytes());
    Ok(affine::integers(
        &x,
        line.scale.value,
        line.low.value,
        levels,
    ))
}

pub(super) fn q4_1(x: &[f32; 32], out: &mut [u8; 20]) -> Result<(), ScaleOverflow> {
    let q = one_line(x, &Q4_1, out)?;
    pack::nibbles(&q, &mut out[4..]);
    Ok(())
}

pub(super) fn q5_1(x: &[f32; 32], out: &mut [u8; 24]) -> Result<(), ScaleOverflow> {
    let q = one_line(x, &Q5_1, out)?;
    out[4..8].copy_from_slice(&pack::fifth_bits(&q));
    pack::nibbles(&q, &mut out[8..]);
    Ok(())
}

/// The block as `N` sub-blocks.
fn split<const LEN: usize, const N: usize>(x: &[f32; 256]) -> [[f32; LEN]; N] {
    const { assert!(LEN * N == 256) };
    std::array::from_fn(|sub| std::array::from_fn(|i| x[sub * LEN + i]))
}

type Lines<const LEN: usize, const N: usize> = (SubLines<N>, [[u8; LEN]; N]);

/// The lines of the sub-blocks and the integers on them.
fn many_lines<const LEN: usize, const N: usize>(
    x: &[f32; 256],
    levels: &affine::Levels,
    code_max: f32,
) -> Result<Lines<LEN, N>, ScaleOverflow> {
    let Some(unit) = Unit::of(x) else {
        return Ok((SubLines::ZERO, [[0; LEN]; N]));
    };
    let x = split::<LEN, N>(&unit.weights(x));
    let lines = affine::sub_lines(&x, &unit, levels, code_max)?;
    let q = std::array::from_fn(|sub| {
        let (scale, low) = lines.of(sub);
        affine::integers(&x[sub], scale, low, levels)
    });
    Ok((lines, q))
}

pub(super) fn q2_k(x: &[f32; 256], out: &mut [u8; 84]) -> Result<(), ScaleOverflow> {
    let (lines, q) = many_lines::<16, 16>(x, &Q2_K, 15.0)?;
    let codes = lines.scale_codes.iter().zip(&lines.min_codes);
    for (out, (scale, min)) in out.iter_mut().zip(codes) {
        *out = scale | min << 4;
    }
    pack::two_bits(&q, &mut out[16..80]);
    out[80..82].copy_from_slice(&lines.scale.bits.to_le_bytes());
    out[82..].copy_from_slice(&lines.min.bits.to_le_bytes());
    Ok(())
}

/// Writes the scales into the first 16 bytes and returns the integers.
fn eight_lines(
    x: &[f32; 256],
    levels: &affine::Levels,
    out: &mut [u8],
) -> Result<[[u8; 32]; 8], ScaleOverflow> {
    let (lines, q) = many_lines::<32, 8>(x, levels, 63.0)?;
    out[..2].copy_from_slice(&lines.scale.bits.to_le_bytes());
    out[2..4].copy_from_slice(&lines.min.bits.to_le_bytes());
    pack::scales_and_mins(&lines.scale_codes, &lines.min_codes, &mut out[4..16]);
    Ok(q)
}

pub(super) fn q4_k(x: &[f32; 256], out: &mut [u8; 144]) -> Result<(), ScaleOverflow> {
    let q = eight_lines(x, &Q4_K, out)?;
    pack::nibble_pairs(&q, &mut out[16..]);
    Ok(())
}

pub(super) fn q5_k(x: &[f32; 256], out: &mut [u8; 176]) -> Result<(), ScaleOverflow> {
    let q = eight_lines(x, &Q5_K, out)?;
    for i in 0..32 {
        out[16 + i] = (0..8).fold(0, |bits, sub| bits | (q[sub][i] >> 4 & 1) << sub);
    }
    pack::nibble_pairs(&q, &mut out[48..]);
    Ok(())
}

type Scales = (SubScales<16>, [[i8; 16]; 16]);

/// The scales of 16 sub-blocks and the integers at them.
fn many_scales(
    x: &[f32; 256],
    levels: &signed::Levels,
    range: &CodeRange,
) -> Result<Scales, ScaleOverflow> {
    let Some(unit) = Unit::of(x) else {
        return Ok((SubScales::ZERO, [[0; 16]; 16]));
    };
    let x = split::<16, 16>(&unit.weights(x));
    let scales = signed::sub_scales(&x, &unit, levels, range)?;
    let q = std::array::from_fn(|sub| signed::integers(&x[sub], scales.of(sub), levels));
    Ok((scales, q))
}

pub(super) fn q3_k(x: &[f32; 256], out: &mut [u8; 110]) -> Result<(), ScaleOverflow> {
    const RANGE: CodeRange = CodeRange {
        low: -32.0,
        high: 31.0,
        top_codes: &[
            -34.0, -33.0, -32.0, -31.0, -30.0, -29.0, -28.0, -27.0, -26.0, -25.0, -24.0, -23.0,
            -22.0, -21.0, -20.0, -19.0, -18.0, -17.0, -16.0, 31.0,
        ],
    };
    let (scales, q) = many_scales(x, &Q3_K, &RANGE)?;
    let q = q.map(|q| q.map(|q| (q + 4) as u8));
    pack::third_bits(&q, &mut out[..32]);
    pack::two_bits(&q, &mut out[32..96]);
    pack::signed_scales(&scales.codes, &mut out[96..108]);
    out[108..].copy_from_slice(&scales.scale.bits.to_le_bytes());
    Ok(())
}

pub(super) fn q6_k(x: &[f32; 256], out: &mut [u8; 210]) -> Result<(), ScaleOverflow> {
    const RANGE: CodeRange = CodeRange {
        low: -128.0,
        high: 127.0,
        top_codes: &[
            -131.0, -128.0, -124.0, -120.0, -114.0, -106.0, -98.0, -90.0, 127.0,
        ],
    };
    let (scales, q) = many_scales(x, &Q6_K, &RANGE)?;
    let q = q.map(|q| q.map(|q| (q + 32) as u8));
    pack::six_bits(&q, &mut out[..192]);
    out[192..208].copy_from_slice(&scales.codes.map(|code| code as u8));
    out[208..].copy_from_slice(&scales.scale.bits.to_le_bytes());
    Ok(())
}
