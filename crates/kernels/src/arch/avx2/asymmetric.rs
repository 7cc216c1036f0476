//! Dots of Q8_0 tiles with activations in asymmetric blocks of 16; the scalar function of the same name says in which order.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "a tile and a position index several arrays at once"
)]

use std::arch::x86_64::*;

use super::registers::{NEAR, prefetch};
use super::tile_weights::{halves, vector};
use super::tiles::{groups, load, store};
use crate::activations::AsymmetricBlocks;

/// A group of eight Q8_0 blocks: their scales, then eight vectors of four inputs of each row.
const GROUP: usize = 272;

/// Dots of `T` tiles with `N` positions.
pub(super) fn q8_0<const T: usize, const N: usize>(
    tiles: [&[u8]; T],
    x: &[AsymmetricBlocks<'_>; N],
    out: [&mut [[f32; 8]; N]; T],
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn kernel<const T: usize, const N: usize>(
        tiles: [&[u8]; T],
        x: &[AsymmetricBlocks<'_>; N],
        out: [&mut [[f32; 8]; N]; T],
    ) {
        let tiles = groups::<GROUP, T>(tiles);
        let n = tiles[0].len();
        let x = x.map(|x| {
            let (quants, _) = x.quants.as_chunks::<4>();
            let quants = &quants.as_chunks::<8>().0[..n];
            let scales = &x.scales.as_chunks::<2>().0[..n];
            let middles = &x.middles.as_chunks::<2>().0[..n];
            (quants, scales, middles)
        });
        let ones = _mm256_set1_epi16(1);
        let mut acc = load(&out);
        for b in 0..n {
            for t in 0..T {
                let group = &tiles[t][b];
                if N == 1 {
                    prefetch::<NEAR>(group);
                }
                let mut sums = [_mm256_setzero_ps(); N];
                for half in 0..2 {
                    let mut products = [_mm256_setzero_si256(); N];
                    let mut totals = _mm256_setzero_si256();
                    for c in half * 4..half * 4 + 4 {
                        let w = vector(group, 16 + 32 * c);
                        // Pairs of four vectors stay within 16 bits.
                        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), w);
                        totals = _mm256_add_epi16(totals, pairs);
                        let magnitude = _mm256_abs_epi8(w);
                        for p in 0..N {
                            let x = i32::from_le_bytes(x[p].0[b][c].map(|x| x as u8));
                            let signed = _mm256_sign_epi8(_mm256_set1_epi32(x), w);
                            let pairs = _mm256_maddubs_epi16(magnitude, signed);
                            let sums = _mm256_madd_epi16(pairs, ones);
                            products[p] = _mm256_add_epi32(products[p], sums);
                        }
                    }
                    let totals = _mm256_cvtepi32_ps(_mm256_madd_epi16(totals, ones));
                    for p in 0..N {
                        let (scale, middle) = (x[p].1[b][half], x[p].2[b][half]);
                        let products = _mm256_cvtepi32_ps(products[p]);
                        sums[p] = _mm256_fmadd_ps(products, _mm256_set1_ps(scale), sums[p]);
                        sums[p] = _mm256_fmadd_ps(totals, _mm256_set1_ps(middle), sums[p]);
                    }
                }
                let scale = halves(group, 0);
                for p in 0..N {
                    acc[t][p] = _mm256_fmadd_ps(scale, sums[p], acc[t][p]);
                }
            }
        }
        store(&acc, out);
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(tiles, x, out) }
}
