//! Reading memory for its own sake, which shows how fast weights can come.

use crate::arch::READ_STEP;

/// The sum of all words of `bytes`; a rest shorter than a step is left out.
pub(crate) fn add_up(bytes: &[u8]) -> u64 {
    let mut sums = [[0u64; 8]; 2];
    for step in bytes.as_chunks::<READ_STEP>().0 {
        let words = step.as_chunks::<8>().0;
        for (sum, word) in sums.as_flattened_mut().iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.as_flattened()
        .iter()
        .fold(0, |sum, lane| sum.wrapping_add(*lane))
}
