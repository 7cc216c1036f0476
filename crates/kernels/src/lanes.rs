//! Buffers whose registers do not cross cache lines.
//!
//! An allocator gives addresses that are multiples of 16. Where they are none of 32, every second load of a register takes two
//! lines, and a product from a cache runs at seven tenths of its speed.

use crate::tile::TILE_ROWS;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Values that come before the first line at most.
const SKIPPED_MAX: usize = LINE / size_of::<f32>() - 1;

/// A buffer of decoded weights or sums, a value of each row of a tile at a time, that begins with a cache line and grows only.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Vec<f32>);

impl Lanes {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// `n` entries, with what they had or zeros.
    pub(crate) fn entries(&mut self, n: usize) -> &mut [[f32; TILE_ROWS]] {
        let len = n * TILE_ROWS;
        if self.0.len() < len + SKIPPED_MAX {
            self.0.resize(len + SKIPPED_MAX, 0.0);
        }
        // The contract of `align_offset` lets it not find one; that would cost speed and nothing else.
        let skipped = self.0.as_ptr().align_offset(LINE).min(SKIPPED_MAX);
        self.0[skipped..][..len].as_chunks_mut().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_with_a_line_and_are_as_many_as_asked_for() {
        let mut all = Vec::new();
        for n in [3, 1, 200, 5000, 7] {
            let mut lanes = Lanes::new();
            let entries = lanes.entries(n);
            assert_eq!((entries.len(), entries.as_ptr().addr() % LINE), (n, 0));
            entries.fill([1.5; TILE_ROWS]);
            assert_eq!(lanes.entries(n), vec![[1.5; TILE_ROWS]; n]);
            all.push(lanes);
        }
    }
}
