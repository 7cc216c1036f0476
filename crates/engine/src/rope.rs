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

/// Cosines and sines of one rope.
#[derive(Debug)]
pub(crate) struct RopeTable {
    frequencies: Vec<f32>,
    factor: f32,
    layout: RopeLayout,
    stretches: Vec<OnceLock<Stretch>>,
}

impl RopeTable {
    /// A table for up to `n_ctx` positions.
    pub(crate) fn new(spec: &RopeSpec, n_ctx: usize) -> Self {
        let n_stretches = n_ctx.min(POSITIONS_MAX).div_ceil(STRETCH);
        Self {
            frequencies: spec
                .frequencies(n_ctx)
                .into_iter()
                .map(|f| f as f32)
                .collect(),
            factor: spec.attention_factor() as f32,
            layout: spec.layout,
            stretches: (0..n_stretches).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Rotates every head of `row` (`[heads, d_head]`) to `position`, in place.
    pub(crate) fn rotate(&self, row: &mut [f32], d_head: usize, position: usize) {
        let pairs = self.frequencies.len();
        let stretch =
            self.stretches[position / STRETCH].get_or_init(|| self.fill(position / STRETCH));
        let angles = &stretch[(position % STRETCH) * pairs..][..pairs];
        for head in row.chunks_exact_mut(d_head) {
            for (i, (cos, sin)) in angles.iter().enumerate() {
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

    fn fill(&self, stretch: usize) -> Stretch {
        let mut table = Vec::with_capacity(STRETCH * self.frequencies.len());
        for position in stretch * STRETCH..(stretch + 1) * STRETCH {
            for frequency in &self.frequencies {
                // The product is rounded to f32, as the reference does; its cosine is then taken exactly.
                let angle = f64::from(position as f32 * frequency);
                table.push((
                    angle.cos() as f32 * self.factor,
                    angle.sin() as f32 * self.factor,
                ));
            }
        }
        table.into_boxed_slice()
    }
}
