//! Cosines and sines per position, computed once and shared.
//!
//! Tables are filled in stretches as positions are reached, without a lock on the reading path.

use std::sync::OnceLock;

use larql_models::spec::{RopeLayout, RopeSpec};

/// Positions per stretch.
const STRETCH: usize = 256;
/// Longest table; above any context a model is sold with, below what the index of stretches may cost.
pub(crate) const POSITIONS_MAX: usize = 1 << 22;

/// `[STRETCH, dims / 2]` pairs of (cos, sin).
type Stretch = Box<[(f32, f32)]>;

/// Which frequencies a sequence uses, where a model has two lists: chosen once, as keys that were turned with one list do
/// not meet queries that are turned with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopeLength {
    /// Up to the original context.
    Short,
    /// Beyond it.
    Long,
}

/// Cosines and sines of one rope.
#[derive(Debug)]
pub(crate) struct RopeTable {
    layout: RopeLayout,
    factor: f32,
    short: Angles,
    /// Where the model has a second list.
    long: Option<Angles>,
}

#[derive(Debug)]
struct Angles {
    frequencies: Vec<f32>,
    stretches: Vec<OnceLock<Stretch>>,
}

impl RopeTable {
    /// A table for up to `n_ctx` positions.
    pub(crate) fn new(spec: &RopeSpec, n_ctx: usize) -> Self {
        let long = spec
            .original_context()
            .map(|original| Angles::new(spec, original as usize + 1, n_ctx));
        Self {
            layout: spec.layout,
            factor: spec.attention_factor() as f32,
            short: Angles::new(spec, 0, n_ctx),
            long,
        }
    }

    /// Rotates, in every head of `row` (`[heads, d_head]`), the dimensions from `offset` on to `position`, in place.
    pub(crate) fn rotate(
        &self,
        row: &mut [f32],
        d_head: usize,
        offset: usize,
        position: usize,
        length: RopeLength,
    ) {
        let angles = match (length, &self.long) {
            (RopeLength::Long, Some(long)) => long,
            (RopeLength::Long, None) | (RopeLength::Short, _) => &self.short,
        };
        let pairs = angles.frequencies.len();
        let turned = angles.at(position, self.factor);
        for head in row.chunks_exact_mut(d_head) {
            let head = &mut head[offset..];
            for (i, (cos, sin)) in turned.iter().enumerate() {
                let (a, b) = match self.layout {
                    RopeLayout::Split => (i, i + pairs),
                    RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos - y * sin;
                head[b] = y * cos + x * sin;
            }
        }
    }
}

impl Angles {
    fn new(spec: &RopeSpec, seq_len: usize, n_ctx: usize) -> Self {
        let frequencies = spec.frequencies(seq_len).into_iter();
        let n_stretches = n_ctx.min(POSITIONS_MAX).div_ceil(STRETCH);
        Self {
            frequencies: frequencies.map(|f| f as f32).collect(),
            stretches: (0..n_stretches).map(|_| OnceLock::new()).collect(),
        }
    }

    fn at(&self, position: usize, factor: f32) -> &[(f32, f32)] {
        let pairs = self.frequencies.len();
        let stretch = self.stretches[position / STRETCH]
            .get_or_init(|| self.fill(position / STRETCH, factor));
        &stretch[(position % STRETCH) * pairs..][..pairs]
    }

    fn fill(&self, stretch: usize, factor: f32) -> Stretch {
        let mut table = Vec::with_capacity(STRETCH * self.frequencies.len());
        for position in stretch * STRETCH..(stretch + 1) * STRETCH {
            for frequency in &self.frequencies {
                // The product is rounded to f32, as the reference does; its cosine is then taken exactly.
                let angle = f64::from(position as f32 * frequency);
                table.push((angle.cos() as f32 * factor, angle.sin() as f32 * factor));
            }
        }
        table.into_boxed_slice()
    }
}
