//! Block decoders: the exact values that ggml computes, in the same order of operations.
//!
//! Each function decodes one block; [`decode`] runs it over a row.  The loops are written over
//! fixed-size arrays so that the same source, compiled with wider registers, vectorizes.

use crate::format::Format;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Values of the 4-bit indices of IQ4_NL and IQ4_XS.
pub(crate) const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the values of the 4-bit floats of MXFP4; [`e8m0_half`] halves the scale to match.
pub(crate) const MXFP4_DOUBLED: [i8; 16] =
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Decodes whole blocks; the caller has checked that the sizes agree.
#[inline(always)]
pub(crate) fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => blocks(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| {
            y[0] = f32::from_le_bytes(*b);
        }),
        Format::F16 => blocks(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| {
            y[0] = f16_to_f32(u16::from_le_bytes(*b));
        }),
        Format::Bf16 => blocks(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| {
            y[0] = bf16_to_f32(u16::from_le_bytes(*b));
        }),
        Format::Q4_0 => blocks(bytes, out, q4_0),
        Format::Q4_1 => blocks(bytes, out, q4_1),
        Format::Q5_0 => blocks(bytes, out, q5_0),
        Format::Q5_1 => blocks(bytes, out, q5_1),
        Format::Q8_0 => blocks(bytes, out, q8_0),
        Format::Q2K => blocks(bytes, out, q2_k),
        Format::Q3K => blocks(bytes, out, q3_k),
        Format::Q4K => blocks(bytes, out, q4_k),
        Format::Q5K => blocks(bytes, out, q5_k),
        Format::Q6K => blocks(bytes, out, q6_k),
        Format::Iq4Nl => blocks(bytes, out, iq4_nl),
        Format::Iq4Xs => blocks(bytes, out, iq4_xs),
        Format::Mxfp4 => blocks(bytes, out, mxfp4),
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, rest) = bytes.as_chunks::<BYTES>();
    let (values, tail) = out.as_chunks_mut::<LEN>();
    debug_assert!(rest.is_empty() && tail.is_empty() && blocks.len() == values.len());
    for (block, y) in blocks.iter().zip(values) {
        one(block, y);
    }
}

/// The f16 at byte `at` of a block.
#[inline(always)]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Half of the power of two that an MXFP4 scale byte names.
#[inline(always)]
pub(crate) fn e8m0_half(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        e => (u32::from(e) - 1) << 23,
    })
}

/// The 32 four-bit values of 16 bytes: low nibbles first, then high nibbles.
#[inline(always)]
pub(crate) fn nibbles(qs: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    for i in 0..16 {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
    q
}

/// As [`nibbles`] with bit `i` of `high` as the fifth bit of value `i`.
#[inline(always)]
pub(crate) fn five_bits(high: &[u8], qs: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let mut q = nibbles(qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((high >> i & 1) as u8) << 4;
    }
    q
}

#[inline(always)]
fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    let q = nibbles(&b[2..]);
    for i in 0..32 {
        y[i] = (i32::from(q[i]) - 8) as f32 * d;
    }
}

#[inline(always)]
fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let q = nibbles(&b[4..]);
    for i in 0..32 {
        y[i] = f32::from(q[i]) * d + m;
    }
}

#[inline(always)]
fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    let q = five_bits(&b[2..6], &b[6..]);
    for i in 0..32 {
        y[i] = (i32::from(q[i]) - 16) as f32 * d;
    }
}

#[inline(always)]
fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    let q = five_bits(&b[4..8], &b[8..]);
    for i in 0..32 {
        y[i] = f32::from(q[i]) * d + m;
    }
}

#[inline(always)]
fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for i in 0..32 {
        y[i] = f32::from(b[2 + i] as i8) * d;
    }
}

/// 16 scale bytes (low nibble scale, high nibble minimum), 64 bytes of 2-bit values, f16 d, dmin.
#[inline(always)]
fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for sub in 0..16 {
        let scale = d * f32::from(b[sub] & 15);
        let min = dmin * f32::from(b[sub] >> 4);
        let (half, shift) = (sub / 8, sub % 8 / 2 * 2);
        let from = 16 + half * 32 + sub % 2 * 16;
        for i in 0..16 {
            y[sub * 16 + i] = scale * f32::from(b[from + i] >> shift & 3) - min;
        }
    }
}

/// 32 bytes of high bits (clear means minus 4), 64 bytes of 2-bit values, 12 bytes of scales, f16 d.
#[inline(always)]
fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let d = f16_at(b, 108);
    let packed = &b[96..108];
    for sub in 0..16 {
        let low = if sub < 8 {
            packed[sub] & 15
        } else {
            packed[sub - 8] >> 4
        };
        let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
        let scale = d * (i32::from(low | high << 4) - 32) as f32;
        let (half, pair, odd) = (sub / 8, sub % 8 / 2, sub % 2);
        for i in 0..16 {
            let low = b[32 + half * 32 + odd * 16 + i] >> (pair * 2) & 3;
            let bit = b[odd * 16 + i] >> (half * 4 + pair) & 1;
            y[sub * 16 + i] = scale * (i32::from(low) - 4 + 4 * i32::from(bit)) as f32;
        }
    }
}

/// The eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K block: the first four of each
/// in the low bits of bytes 0 to 7, the others in the nibbles of bytes 8 to 11 with their upper two
/// bits at the top of bytes 0 to 7.
#[inline(always)]
pub(crate) fn scales_and_mins(p: &[u8]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes([p[i], p[i + 1], p[i + 2], p[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let six = 0x3f3f_3f3f;
    let four = 0x0f0f_0f0f;
    let top = |w: u32| (w >> 6 & 0x0303_0303) << 4;
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    (
        join(a & six, c & four | top(a)),
        join(b & six, c >> 4 & four | top(b)),
    )
}

#[inline(always)]
fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, mins) = scales_and_mins(&b[4..16]);
    for sub in 0..8 {
        let scale = d * f32::from(scales[sub]);
        let min = dmin * f32::from(mins[sub]);
        let (from, shift) = (16 + sub / 2 * 32, sub % 2 * 4);
        for i in 0..32 {
            y[sub * 32 + i] = scale * f32::from(b[from + i] >> shift & 15) - min;
        }
    }
}

/// Value `i` of sub-block `sub` of a Q5_K block.
#[inline(always)]
pub(crate) fn q5_k_quant(b: &[u8; 176], sub: usize, i: usize) -> u8 {
    let low = b[48 + sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
    low | (b[16 + i] >> sub & 1) << 4
}

#[inline(always)]
fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, mins) = scales_and_mins(&b[4..16]);
    for sub in 0..8 {
        let scale = d * f32::from(scales[sub]);
        let min = dmin * f32::from(mins[sub]);
        for i in 0..32 {
            y[sub * 32 + i] = scale * f32::from(q5_k_quant(b, sub, i)) - min;
        }
    }
}

/// Value `i` of the 32-wide group `group` of a Q6_K block, 0 to 63.
#[inline(always)]
pub(crate) fn q6_k_quant(b: &[u8; 210], group: usize, i: usize) -> u8 {
    let (half, quarter) = (group / 4, group % 4);
    let low = b[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
    low | (b[128 + half * 32 + i] >> (quarter * 2) & 3) << 4
}

#[inline(always)]
fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let d = f16_at(b, 208);
    for group in 0..8 {
        for part in 0..2 {
            let scale = d * f32::from(b[192 + group * 2 + part] as i8);
            for i in part * 16..part * 16 + 16 {
                let q = i32::from(q6_k_quant(b, group, i)) - 32;
                y[group * 32 + i] = scale * q as f32;
            }
        }
    }
}

#[inline(always)]
fn iq4_nl(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    let q = nibbles(&b[2..]);
    for i in 0..32 {
        y[i] = d * f32::from(IQ4_VALUES[usize::from(q[i])]);
    }
}

/// f16 d, 16 high scale bits of 8 x 2, 4 bytes of low scale nibbles, 8 x 16 bytes of indices.
#[inline(always)]
fn iq4_xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    let high = u16::from_le_bytes([b[2], b[3]]);
    for sub in 0..8 {
        let low = b[4 + sub / 2] >> (sub % 2 * 4) & 15;
        let scale = i32::from(low) | i32::from(high >> (sub * 2) & 3) << 4;
        let scale = d * (scale - 32) as f32;
        let q = nibbles(&b[8 + sub * 16..8 + sub * 16 + 16]);
        for i in 0..32 {
            y[sub * 32 + i] = scale * f32::from(IQ4_VALUES[usize::from(q[i])]);
        }
    }
}

#[inline(always)]
fn mxfp4(b: &[u8; 17], y: &mut [f32; 32]) {
    let d = e8m0_half(b[0]);
    let q = nibbles(&b[1..]);
    for i in 0..32 {
        y[i] = d * f32::from(MXFP4_DOUBLED[usize::from(q[i])]);
    }
}
