//! Dots of Q8_0 tiles with activations in asymmetric blocks of 16: the specification of the order of operations.
//!
//! With `x = scale * q + middle`, sixteen products are `scale * sum(w q) + middle * sum(w)`: two integer sums, exact, and two
//! fused multiply-adds. Those of both halves of a block of weights add up before the scale of the weights comes in.

use super::decode::f16_at;
use super::tiles::each;
use crate::activations::AsymmetricBlocks;
use crate::format::Format;
use crate::tile::{TILE_ROWS, unpack_block};

const BYTES: usize = Format::Q8_0.block_bytes();

/// Dots of `T` tiles with `N` positions.
pub(super) fn q8_0<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    x: &[AsymmetricBlocks<'_>; N],
    out: [&mut [[f32; TILE_ROWS]; N]; T],
) {
    each(tiles, out, |tile, out| one_tile(tile, x, out));
}

fn one_tile<const N: usize>(
    tile: &[u8],
    x: &[AsymmetricBlocks<'_>; N],
    out: &mut [[f32; TILE_ROWS]; N],
) {
    for (b, group) in tile.chunks_exact(BYTES * TILE_ROWS).enumerate() {
        for lane in 0..TILE_ROWS {
            let mut block = [0; BYTES];
            unpack_block(Format::Q8_0, group, lane, &mut block);
            for (x, out) in x.iter().zip(&mut *out) {
                let mut sum = 0f32;
                for (half, weights) in block[2..].as_chunks::<16>().0.iter().enumerate() {
                    let at = b * 2 + half;
                    let quants = &x.quants[at * 16..][..16];
                    let (mut products, mut total) = (0i32, 0i32);
                    for (w, q) in weights.iter().zip(quants) {
                        let w = i32::from(*w as i8);
                        products += w * i32::from(*q);
                        total += w;
                    }
                    sum = (products as f32).mul_add(x.scales[at], sum);
                    sum = (total as f32).mul_add(x.middles[at], sum);
                }
                out[lane] = f16_at(&block, 0).mul_add(sum, out[lane]);
            }
        }
    }
}
