//! Activations made ready once for all the matrices that consume them.
//!
//! Holds a float copy and, for the integer kernels, 8-bit forms in blocks of 32 and of 256.  Every
//! position has its own scales, so a position's result never depends on its neighbours.  Buffers
//! are kept between calls.

use crate::arch::Kernels;
use crate::format::Format;

/// How activations meet weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Float activations; weights are decoded to f32 and accumulated in f32.
    Exact,
    /// 8-bit activations with a scale per 32 or 256, for the formats for which
    /// [`has_integer_kernel`] holds; as [`Arithmetic::Exact`] for the others and for a width that
    /// is not a whole number of blocks.
    Fast,
}

/// Whether [`Arithmetic::Fast`] runs `format` on integers.
pub fn has_integer_kernel(format: Format) -> bool {
    crate::arch::scalar::KERNELS.integer_dots(format).is_some()
}

/// One position in blocks of 32.
#[derive(Clone, Copy)]
pub(crate) struct Blocks32<'a> {
    /// `[cols]`, within -127 to 127.
    pub(crate) quants: &'a [i8],
    /// `[cols / 32]`.
    pub(crate) scales: &'a [f32],
    /// `[cols / 32]`: the scale times the sum of the quants.
    pub(crate) sums: &'a [f32],
}

/// One position in blocks of 256.
#[derive(Clone, Copy)]
pub(crate) struct Blocks256<'a> {
    /// `[cols]`, within -127 to 127.
    pub(crate) quants: &'a [i8],
    /// `[cols / 256]`.
    pub(crate) scales: &'a [f32],
    /// `[cols / 16]`: sums of quants.
    pub(crate) sums16: &'a [i16],
    /// `[cols / 32]`: sums of quants.
    pub(crate) sums32: &'a [i16],
}

/// `[n_pos, cols]` activations in every form that a kernel may ask for.
#[derive(Debug, Default)]
pub struct Activations {
    n_pos: usize,
    cols: usize,
    has_32: bool,
    has_256: bool,
    floats: Vec<f32>,
    quants_32: Vec<i8>,
    scales_32: Vec<f32>,
    sums_32: Vec<f32>,
    quants_256: Vec<i8>,
    scales_256: Vec<f32>,
    sums16_256: Vec<i16>,
    sums32_256: Vec<i16>,
}

impl Activations {
    /// No positions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `x`, row-major `[n_pos, cols]`, in place of what was there.
    ///
    /// # Panics
    ///
    /// If `x.len() != n_pos * cols`.
    pub fn prepare(
        &mut self,
        kernels: &Kernels,
        x: &[f32],
        n_pos: usize,
        cols: usize,
        arithmetic: Arithmetic,
    ) {
        assert_eq!(
            Some(x.len()),
            n_pos.checked_mul(cols),
            "values of {n_pos} x {cols} activations"
        );
        self.n_pos = n_pos;
        self.cols = cols;
        self.floats.clear();
        self.floats.extend_from_slice(x);
        let (wants_32, wants_256) = match arithmetic {
            Arithmetic::Exact => (false, false),
            Arithmetic::Fast => (cols.is_multiple_of(32), cols.is_multiple_of(256)),
        };
        self.has_32 = wants_32;
        self.has_256 = wants_256;
        if wants_32 {
            self.quants_32.resize(x.len(), 0);
            self.scales_32.resize(x.len() / 32, 0.0);
            self.sums_32.resize(x.len() / 32, 0.0);
            kernels.quantize_32(
                x,
                &mut self.quants_32,
                &mut self.scales_32,
                &mut self.sums_32,
            );
        }
        if wants_256 {
            self.quants_256.resize(x.len(), 0);
            self.scales_256.resize(x.len() / 256, 0.0);
            self.sums16_256.resize(x.len() / 16, 0);
            self.sums32_256.resize(x.len() / 32, 0);
            kernels.quantize_256(
                x,
                &mut self.quants_256,
                &mut self.scales_256,
                &mut self.sums16_256,
                &mut self.sums32_256,
            );
        }
    }

    /// Positions held.
    pub fn n_pos(&self) -> usize {
        self.n_pos
    }

    /// Values per position.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The float values of position `p`.
    ///
    /// # Panics
    ///
    /// If there is no such position.
    pub fn position(&self, p: usize) -> &[f32] {
        assert!(p < self.n_pos, "position {p} of {}", self.n_pos);
        &self.floats[p * self.cols..(p + 1) * self.cols]
    }

    /// Whether the 8-bit form in blocks of 32 was made.
    pub(crate) fn has_32(&self) -> bool {
        self.has_32
    }

    /// Whether the 8-bit form in blocks of 256 was made.
    pub(crate) fn has_256(&self) -> bool {
        self.has_256
    }

    /// Position `p` in blocks of 32; only when [`Self::has_32`].
    pub(crate) fn blocks_32(&self, p: usize) -> Blocks32<'_> {
        assert!(self.has_32 && p < self.n_pos);
        let n = self.cols / 32;
        Blocks32 {
            quants: &self.quants_32[p * self.cols..(p + 1) * self.cols],
            scales: &self.scales_32[p * n..(p + 1) * n],
            sums: &self.sums_32[p * n..(p + 1) * n],
        }
    }

    /// Position `p` in blocks of 256; only when [`Self::has_256`].
    pub(crate) fn blocks_256(&self, p: usize) -> Blocks256<'_> {
        assert!(self.has_256 && p < self.n_pos);
        let n = self.cols / 256;
        Blocks256 {
            quants: &self.quants_256[p * self.cols..(p + 1) * self.cols],
            scales: &self.scales_256[p * n..(p + 1) * n],
            sums16: &self.sums16_256[p * n * 16..(p + 1) * n * 16],
            sums32: &self.sums32_256[p * n * 8..(p + 1) * n * 8],
        }
    }
}
