//! Reading memory as fast as this set can: a register at a time, from several places.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

use std::arch::x86_64::*;

use super::registers::{load_u8, store_u8};
use crate::arch::READ_STEP;

/// Places that are read in turn. Loads that nothing waits for keep more lines under way than prefetching does, and the
/// hardware follows each place for itself: on a Zen 3, 4 gave a fifth more than one, on a Zen 4 as much, where 8 gave a
/// tenth less.
const PLACES: usize = 4;

/// The sum of all words of `bytes`; a rest shorter than a step is left out.
pub(super) fn add_up(bytes: &[u8]) -> u64 {
    #[target_feature(enable = "avx2")]
    fn kernel(bytes: &[u8]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); READ_STEP / 32];
        let steps = bytes.as_chunks::<READ_STEP>().0;
        // An odd number: places whose distance is a large power of two meet in the same sets of the caches and the same
        // banks of memory, which took a quarter off.
        let apart = steps.len() / PLACES;
        let apart = apart.saturating_sub(1 - apart % 2);
        let places = (0..apart).flat_map(|i| (0..PLACES).map(move |place| place * apart + i));
        for at in places.chain(apart * PLACES..steps.len()) {
            for (sum, part) in sums.iter_mut().zip(steps[at].as_chunks::<32>().0) {
                *sum = _mm256_add_epi64(*sum, load_u8(part));
            }
        }
        sums.iter().fold(0, |total, sum| {
            let mut lanes = [0; 32];
            store_u8(&mut lanes, *sum);
            lanes.as_chunks::<8>().0.iter().fold(total, |total, lane| {
                total.wrapping_add(u64::from_le_bytes(*lane))
            })
        })
    }
    // SAFETY: reachable only through the table that `super::kernels` guards.
    unsafe { kernel(bytes) }
}
