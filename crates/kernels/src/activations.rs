//! Activations made ready once for all the matrices that consume them.
//!
//! Holds a float copy and, for the integer kernels, an 8-bit form in blocks of 32.  Every
//! position has its own scales, so a position's result never depends on its neighbours.  Buffers
//! are kept between calls.

use crate::arch::Kernels;
use crate::format::Format;
use crate::team::Team;

/// How activations meet weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Float activations; weights are decoded to f32 and accumulated in f32.
    Exact,
    /// 8-bit activations with a scale per 32, for the formats for which
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
pub(crate) struct Blocks<'a> {
    /// `[cols]`, within -127 to 127.
    pub(crate) quants: &'a [i8],
    /// `[cols / 32]`.
    pub(crate) scales: &'a [f32],
    /// `[cols / 32]`: sums of quants.
    pub(crate) sums: &'a [i32],
    /// `[cols / 16]`: sums of quants.
    pub(crate) halves: &'a [i16],
    /// `[cols / 32]`: the scale times the sum of the quants.
    pub(crate) scaled_sums: &'a [f32],
}

/// Where quantized blocks go; the fields are those of [`Blocks`].
#[derive(Debug)]
pub(crate) struct QuantizedMut<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [i32],
    pub(crate) halves: &'a mut [i16],
    pub(crate) scaled_sums: &'a mut [f32],
}

/// `[n_pos, cols]` activations in every form that a kernel may ask for, position after position in each.
#[derive(Debug, Default)]
pub struct Activations {
    n_pos: usize,
    cols: usize,
    has_blocks: bool,
    floats: Vec<f32>,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    halves: Vec<i16>,
    scaled_sums: Vec<f32>,
    /// Empty between calls.
    parts: Vec<QuantizedMut<'static>>,
}

/// An empty list with the memory of `list`: a list of what is borrowed, kept where nothing is borrowed any more. Collecting
/// an iterator over a vector reuses its memory if the elements are alike; if it did not, this would still be right.
pub(crate) fn emptied<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter()
        .map(|_| unreachable!("it is empty"))
        .collect()
}

impl Activations {
    /// No positions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `x`, row-major `[n_pos, cols]`, in place of what was there; the team shares the positions.
    ///
    /// # Panics
    ///
    /// If `x.len() != n_pos * cols`.
    pub fn prepare(
        &mut self,
        team: &mut Team,
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
        self.has_blocks = match arithmetic {
            Arithmetic::Exact => false,
            Arithmetic::Fast => cols.is_multiple_of(32),
        };
        self.floats.clear();
        self.floats.extend_from_slice(x);
        if !self.has_blocks || cols == 0 {
            return;
        }
        self.quants.resize(x.len(), 0);
        self.scales.resize(x.len() / 32, 0.0);
        self.sums.resize(x.len() / 32, 0);
        self.halves.resize(x.len() / 16, 0);
        self.scaled_sums.resize(x.len() / 32, 0.0);
        // What belongs to a position stays together, so that each thread gets whole positions.
        let each = (self.quants.chunks_mut(cols))
            .zip(self.scales.chunks_mut(cols / 32))
            .zip(self.sums.chunks_mut(cols / 32))
            .zip(self.halves.chunks_mut(cols / 16))
            .zip(self.scaled_sums.chunks_mut(cols / 32))
            .map(
                |((((quants, scales), sums), halves), scaled_sums)| QuantizedMut {
                    quants,
                    scales,
                    sums,
                    halves,
                    scaled_sums,
                },
            );
        let mut parts = emptied(std::mem::take(&mut self.parts));
        parts.extend(each);
        team.chunks_mut(&mut parts, 1, |p, part| {
            kernels.quantize(&x[p * cols..][..cols], &mut part[0]);
        });
        self.parts = emptied(parts);
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
    #[inline]
    pub fn position(&self, p: usize) -> &[f32] {
        assert!(p < self.n_pos, "position {p} of {}", self.n_pos);
        &self.floats[p * self.cols..][..self.cols]
    }

    /// Whether the 8-bit form was made.
    pub(crate) fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// Position `p` in blocks of 32; only when [`Self::has_blocks`].
    #[inline(always)]
    pub(crate) fn blocks(&self, p: usize) -> Blocks<'_> {
        assert!(self.has_blocks && p < self.n_pos);
        let (cols, n) = (self.cols, self.cols / 32);
        Blocks {
            quants: &self.quants[p * cols..][..cols],
            scales: &self.scales[p * n..][..n],
            sums: &self.sums[p * n..][..n],
            halves: &self.halves[p * n * 2..][..n * 2],
            scaled_sums: &self.scaled_sums[p * n..][..n],
        }
    }
}
