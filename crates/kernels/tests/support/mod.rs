//! Seeded inputs and comparisons for the tests of this folder.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::num::NonZeroUsize;

use larql_kernels::{Format, MatrixView, RowOrder, Team, TileView, pack_tiles, tile_bytes};

/// SplitMix64: small, seeded, the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in -1 to 1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next_u64() as u8).collect()
    }
}

/// Inputs off the beaten track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extreme {
    /// Random values within 1.
    No,
    /// Magnitudes near 1e30 among small ones.
    Huge,
    /// Subnormal values.
    Subnormal,
    /// All values at plus or minus the maximum, so that 8-bit values are all 127 or -127.
    Saturated,
    /// Zero activations, and weight blocks with zero scales.
    Zero,
}

impl Extreme {
    pub(crate) const ALL: [Self; 5] = [
        Self::No,
        Self::Huge,
        Self::Subnormal,
        Self::Saturated,
        Self::Zero,
    ];

    pub(crate) fn floats(self, rng: &mut Rng, n: usize) -> Vec<f32> {
        let mut one = || {
            let v = rng.float();
            match self {
                Self::No => v,
                Self::Huge => {
                    v * if rng.next_u64().is_multiple_of(4) {
                        1e30
                    } else {
                        1.0
                    }
                }
                Self::Subnormal => v * 1e-39,
                Self::Saturated => 127f32.copysign(v),
                Self::Zero => 0f32.copysign(v),
            }
        };
        (0..n).map(|_| one()).collect()
    }
}

/// The byte offsets of the f16 fields of a block.
fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::Mxfp4 => &[],
        Format::F16 | Format::Bf16 => &[0],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
    }
}

/// Random blocks with finite scales of the usual size (zero for [`Extreme::Zero`]).
pub(crate) fn weights(
    rng: &mut Rng,
    format: Format,
    rows: usize,
    cols: usize,
    extreme: Extreme,
) -> Vec<u8> {
    if format == Format::F32 {
        return extreme
            .floats(rng, rows * cols)
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
    }
    let mut bytes = rng.bytes(format.row_bytes(cols).expect("whole blocks") * rows);
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &at in halves(format) {
            // Exponent bits 8 to 14 of 31 for an f16; for a bf16 the same bits are around 1e-18.
            let half = match extreme {
                Extreme::Zero => rng.next_u64() & 0x8000,
                Extreme::Subnormal => rng.next_u64() & 0x83ff,
                Extreme::No | Extreme::Huge | Extreme::Saturated => {
                    rng.next_u64() & 0x83ff | (8 + rng.next_u64() % 7) << 10
                }
            } as u16;
            block[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        if format == Format::Mxfp4 {
            block[0] = if extreme == Extreme::Zero {
                0
            } else {
                110 + (block[0] % 20)
            };
        }
    }
    bytes
}

/// A matrix in tiles.
pub(crate) struct Tiles {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Tiles {
    pub(crate) fn new(rows: MatrixView<'_>, order: RowOrder) -> Self {
        let (format, n_rows, cols) = (rows.format(), rows.rows(), rows.cols());
        let n_bytes = tile_bytes(format, n_rows, cols).expect("fits in memory");
        // What was there before must not shine through the padding.
        let mut bytes = vec![0xa5; n_bytes];
        pack_tiles(&mut team(2), rows, order, &mut bytes);
        Self {
            format,
            rows: n_rows,
            cols,
            bytes,
        }
    }

    pub(crate) fn view(&self) -> TileView<'_> {
        TileView::new(self.format, self.rows, self.cols, &self.bytes).expect("sized for the shape")
    }
}

/// Sets every byte of the blocks that is not an f16 field.
pub(crate) fn fill_quants(format: Format, bytes: &mut [u8], fill: u8) {
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for (i, byte) in block.iter_mut().enumerate() {
            if !halves(format).iter().any(|at| (*at..at + 2).contains(&i)) {
                *byte = fill;
            }
        }
    }
}

/// Compares bits; NaNs are equal, as their payload is not ours to define.
#[track_caller]
pub(crate) fn assert_same_bits(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{what}: element {i} is {got:e}, not {expected:e}");
    }
}

pub(crate) fn team(n_threads: usize) -> Team {
    Team::new(NonZeroUsize::new(n_threads).expect("at least the caller"))
}

pub(crate) fn one_thread() -> Team {
    team(1)
}

/// What `f` panics with.
pub(crate) fn panic_message(f: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
        .expect_err("it should have panicked");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or_else(|_| String::new(), |text| (*text).to_owned()),
    }
}
