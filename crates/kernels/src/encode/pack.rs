//! Placing integers and codes into the bits of a block, as [`crate::decode`] takes them out.

/// 32 four-bit values: value `i` in the low half of byte `i`, value `i + 16` in its high half.
pub(super) fn nibbles(q: &[u8; 32], out: &mut [u8]) {
    for i in 0..16 {
        out[i] = q[i] & 15 | (q[i + 16] & 15) << 4;
    }
}

/// The fifth bits of 32 values, value `i` in bit `i`.
pub(super) fn fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    let mut bits = 0u32;
    for (i, q) in q.iter().enumerate() {
        bits |= u32::from(q >> 4 & 1) << i;
    }
    bits.to_le_bytes()
}

/// Pairs of 32 values in the nibbles of 32 bytes, four pairs.
pub(super) fn nibble_pairs(q: &[[u8; 32]; 8], out: &mut [u8]) {
    for (pair, out) in out.chunks_exact_mut(32).enumerate() {
        for i in 0..32 {
            out[i] = q[pair * 2][i] & 15 | (q[pair * 2 + 1][i] & 15) << 4;
        }
    }
}

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
pub(super) fn scales_and_mins(scales: &[u8; 8], mins: &[u8; 8], out: &mut [u8]) {
    for i in 0..4 {
        out[i] = scales[i] & 63 | scales[i + 4] >> 4 << 6;
        out[i + 4] = mins[i] & 63 | mins[i + 4] >> 4 << 6;
        out[i + 8] = scales[i + 4] & 15 | (mins[i + 4] & 15) << 4;
    }
}

/// 16 signed 6-bit scales in 12 bytes, as Q3_K stores them.
pub(super) fn signed_scales(scales: &[i8; 16], out: &mut [u8]) {
    out.fill(0);
    for (sub, &scale) in scales.iter().enumerate() {
        let code = (scale + 32) as u8;
        out[sub % 8] |= (code & 15) << (sub / 8 * 4);
        out[8 + sub % 4] |= (code >> 4) << (sub / 4 * 2);
    }
}

/// 16 sub-blocks of 16 two-bit values in 64 bytes, as Q2_K and Q3_K store them.
pub(super) fn two_bits(q: &[[u8; 16]; 16], out: &mut [u8]) {
    out.fill(0);
    for (sub, q) in q.iter().enumerate() {
        let (half, pair, odd) = (sub / 8, sub % 8 / 2, sub % 2);
        for (i, q) in q.iter().enumerate() {
            out[half * 32 + odd * 16 + i] |= (q & 3) << (pair * 2);
        }
    }
}

/// The third bits of 16 sub-blocks of 16 values in 32 bytes, as Q3_K stores them.
pub(super) fn third_bits(q: &[[u8; 16]; 16], out: &mut [u8]) {
    out.fill(0);
    for (sub, q) in q.iter().enumerate() {
        let (half, pair, odd) = (sub / 8, sub % 8 / 2, sub % 2);
        for (i, q) in q.iter().enumerate() {
            out[odd * 16 + i] |= (q >> 2 & 1) << (half * 4 + pair);
        }
    }
}

/// 16 sub-blocks of 16 six-bit values: 128 bytes of low nibbles, then 64 of upper bit pairs.
pub(super) fn six_bits(q: &[[u8; 16]; 16], out: &mut [u8]) {
    out.fill(0);
    let (low, high) = out.split_at_mut(128);
    for (sub, q) in q.iter().enumerate() {
        let (group, part) = (sub / 2, sub % 2);
        let (half, quarter) = (group / 4, group % 4);
        for (i, q) in q.iter().enumerate() {
            let at = part * 16 + i;
            low[half * 64 + quarter % 2 * 32 + at] |= (q & 15) << (quarter / 2 * 4);
            high[half * 32 + at] |= (q >> 4) << (quarter * 2);
        }
    }
}
