//! Formats without a minimum: a weight is a scale times a signed integer.
//!
//! For fixed integers `q` the best scale is `sum xq / sum qq` and leaves the error
//! `sum xx - (sum xq)^2 / sum qq`, so a candidate costs one pass and is judged by the optimum that
//! its integers admit, not by itself.

use super::ScaleOverflow;
use super::probes::{inverse_of, round_within, signed_error, signed_sums};
use super::unit::{Stored, Unit};

/// By how much a larger scale must be better.  A lone large weight is met exactly by every integer;
/// the smallest scale that does so keeps the scale that sub-blocks share small.
const GAIN_MARGIN: f32 = 5e-7;

/// Half-precision neighbors tried on each side of a scale.
const NEIGHBORS: i32 = 2;

/// The integers of a weight, and the scales to try: those that put the largest magnitude at
/// `low` or `high` plus `from` to `to` in steps of `step`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    pub(super) low: f32,
    pub(super) high: f32,
    pub(super) from: f32,
    pub(super) step: f32,
    pub(super) n_steps: u16,
}

/// The best real-valued scale found for `x`, which may be negative; zero for zeros.
fn search<const LEN: usize>(x: &[f32; LEN], levels: &Levels) -> f32 {
    let top = x
        .iter()
        .fold(0f32, |top, &v| if v.abs() > top.abs() { v } else { top });
    if top == 0.0 {
        return 0.0;
    }
    let Levels { low, high, .. } = *levels;
    let (mut best, mut best_gain) = (top / low, 0f32);
    for side in [low, high] {
        for i in (0..levels.n_steps).rev() {
            let level = side.abs() + levels.from + levels.step * f32::from(i);
            let inverse = level.copysign(side) / top;
            let sums = signed_sums(x, inverse, low, high);
            let gain = sums.xq * sums.xq / sums.qq;
            if gain > best_gain * (1.0 + GAIN_MARGIN) {
                best_gain = gain;
                best = sums.xq / sums.qq;
            }
        }
    }
    best
}

/// The stored scale of a block with one scale, `x` being in the unit.
pub(super) fn block_scale<const LEN: usize>(
    x: &[f32; LEN],
    unit: &Unit,
    levels: &Levels,
) -> Result<Stored, ScaleOverflow> {
    let Levels { low, high, .. } = *levels;
    let center = unit.store(search(x, levels))?;
    let mut best = (f32::INFINITY, Stored::ZERO);
    for offset in -NEIGHBORS..=NEIGHBORS {
        if let Some(scale) = unit.neighbor(center, offset) {
            let error = signed_error(x, scale.value, low, high);
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    Ok(best.1)
}

/// As [`block_scale`] for so many levels that the halves themselves are the grid: the best of all
/// halves that put the largest magnitude at `high` to `high + levels.from`, and one on each side.
pub(super) fn block_scale_of_all<const LEN: usize>(
    x: &[f32; LEN],
    unit: &Unit,
    levels: &Levels,
) -> Result<Stored, ScaleOverflow> {
    let Levels { low, high, .. } = *levels;
    let top = x.iter().fold(0f32, |top, v| top.max(v.abs()));
    let center = unit.store(top / high)?;
    // Only the scale that is taken has to fit; `neighbor` stops at the largest half.
    let steps = match unit.store(top / (high + levels.from)) {
        Ok(widest) => i32::from(widest.bits) - i32::from(center.bits),
        Err(ScaleOverflow) => i32::from(u16::MAX),
    };
    let mut best = (f32::INFINITY, Stored::ZERO);
    for offset in -1..=steps + 1 {
        if let Some(scale) = unit.neighbor(center, offset) {
            let error = signed_error(x, scale.value, low, high);
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    Ok(best.1)
}

/// The integers of `x` at a scale, as the format counts them (`low` is the smallest).
pub(super) fn integers<const LEN: usize>(x: &[f32; LEN], scale: f32, levels: &Levels) -> [i8; LEN] {
    let inverse = inverse_of(scale);
    x.map(|x| round_within(x * inverse, levels.low, levels.high) as i8)
}

/// The codes of the scale of a sub-block.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeRange {
    pub(super) low: f32,
    pub(super) high: f32,
    /// What to try as the code of the largest scale.  Codes beyond the range clip it in favor of
    /// the other sub-blocks.
    pub(super) top_codes: &'static [f32],
}

/// The scales of a block of sub-blocks: sub-block `i` has the scale `scale * codes[i]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubScales<const N: usize> {
    pub(super) scale: Stored,
    pub(super) codes: [i8; N],
}

impl<const N: usize> SubScales<N> {
    pub(super) const ZERO: Self = Self {
        scale: Stored::ZERO,
        codes: [0; N],
    };

    /// The scale of a sub-block.
    pub(super) fn of(&self, sub: usize) -> f32 {
        self.scale.value * f32::from(self.codes[sub])
    }
}

/// The stored scales of a block of `N` sub-blocks, `x` being in the unit.
pub(super) fn sub_scales<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    unit: &Unit,
    levels: &Levels,
    range: &CodeRange,
) -> Result<SubScales<N>, ScaleOverflow> {
    let targets: [f32; N] = std::array::from_fn(|sub| search(&x[sub], levels));
    let top = targets
        .iter()
        .fold(0f32, |top, &v| if v.abs() > top.abs() { v } else { top });
    let mut coarse = (f32::INFINITY, SubScales::ZERO);
    for &code in range.top_codes {
        let Ok(scale) = unit.store(top / code) else {
            // Another code may make a smaller scale of it.
            continue;
        };
        for scale in unit.subnormals_around(scale) {
            let found = codes(x, &targets, scale, levels, range, Reach::Between);
            if found.0 < coarse.0 {
                coarse = found;
            }
        }
    }
    if coarse.0 == f32::INFINITY {
        return Err(ScaleOverflow);
    }
    let mut best = codes(x, &targets, coarse.1.scale, levels, range, Reach::Beyond);
    let center = unit.store(refit(x, &best.1, levels));
    for scale in center
        .into_iter()
        .flat_map(|center| unit.subnormals_around(center))
    {
        let found = codes(x, &targets, scale, levels, range, Reach::Beyond);
        if found.0 < best.0 {
            best = found;
        }
    }
    Ok(best.1)
}

/// The codes to try for a target between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The two.
    Between,
    /// Also the next on each side.
    Beyond,
}

/// The best codes near the targets for one stored scale, and their squared error.
fn codes<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    targets: &[f32; N],
    scale: Stored,
    levels: &Levels,
    range: &CodeRange,
    reach: Reach,
) -> (f32, SubScales<N>) {
    // Zero comes first among codes that are equally good, as all are for a sub-block of zeros.
    let offsets: &[f32] = match reach {
        Reach::Between | Reach::Beyond if scale == Stored::ZERO => &[0.0],
        Reach::Between => &[0.0, 1.0],
        Reach::Beyond => &[0.0, 1.0, -1.0, 2.0],
    };
    let inverse = inverse_of(scale.value);
    let mut found = SubScales {
        scale,
        codes: [0; N],
    };
    let mut total = 0.0;
    for (sub, x) in x.iter().enumerate() {
        let below = round_within(targets[sub] * inverse - 0.5, range.low, range.high);
        let mut best = (f32::INFINITY, 0f32);
        for offset in offsets {
            let code = below + offset;
            if code < range.low || code > range.high {
                continue;
            }
            let error = signed_error(x, scale.value * code, levels.low, levels.high);
            if error < best.0 {
                best = (error, code);
            }
        }
        total += best.0;
        found.codes[sub] = best.1 as i8;
    }
    (total, found)
}

/// The least-squares scale for the codes and integers of `scales`.
fn refit<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    scales: &SubScales<N>,
    levels: &Levels,
) -> f32 {
    let (mut xq, mut qq) = (0f32, 0f32);
    for (sub, x) in x.iter().enumerate() {
        let code = f32::from(scales.codes[sub]);
        let inverse = inverse_of(scales.of(sub));
        let sums = signed_sums(x, inverse, levels.low, levels.high);
        xq += code * sums.xq;
        qq += code * code * sums.qq;
    }
    if qq > 0.0 {
        xq / qq
    } else {
        scales.scale.value
    }
}
