//! Formats with a minimum: a weight is a scale times an unsigned integer plus a lowest value.
//!
//! For fixed integers `q` the best scale and lowest value solve a linear 2 x 2 system, so a
//! candidate (both ends of the range moved inward or outward a little) costs one pass.

use super::ScaleOverflow;
use super::probes::{AffineSums, affine_error, affine_sums, inverse_of, round_within};
use super::unit::{Stored, Unit};

/// Half-precision neighbors tried on each side of a scale or minimum.
const NEIGHBORS: i32 = 1;

/// Rounds of solving for the line and rounding to it again.
const ALTERNATIONS: usize = 4;

/// Whether the lowest value may be above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lowest {
    /// Any sign: the block stores it with a sign.
    Free,
    /// Zero or below: the block stores its negative as an unsigned code.
    NotPositive,
}

/// The integers of a weight, `0..=q_max`, and how far the ends of the range are moved: from
/// `from` steps of the integer grid inward (negative: outward), `n_steps` times `step`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    pub(super) q_max: f32,
    pub(super) from: f32,
    pub(super) step: f32,
    pub(super) n_steps: u16,
    pub(super) lowest: Lowest,
}

/// `x ~ scale * q + low`.
#[derive(Debug, Clone, Copy)]
struct Line {
    scale: f32,
    low: f32,
}

/// The least-squares line for fixed integers and how much of the error it removes, against
/// `x ~ 0`; `None` when all integers are zero.
fn solve(sums: &AffineSums, x_sum: f32, n: f32, lowest: Lowest) -> Option<(f32, Line)> {
    let determinant = n * sums.qq - sums.q * sums.q;
    if determinant > 0.0 {
        let scale = (n * sums.xq - x_sum * sums.q) / determinant;
        let low = (sums.qq * x_sum - sums.q * sums.xq) / determinant;
        if scale > 0.0 && (low <= 0.0 || lowest == Lowest::Free) {
            return Some((scale * sums.xq + low * x_sum, Line { scale, low }));
        }
    }
    if sums.qq > 0.0 && sums.xq > 0.0 {
        let scale = sums.xq / sums.qq;
        return Some((scale * sums.xq, Line { scale, low: 0.0 }));
    }
    None
}

/// The best real-valued line found for `x`.
fn search<const LEN: usize>(x: &[f32; LEN], levels: &Levels) -> Line {
    let mut bottom = x.iter().fold(f32::INFINITY, |m, &v| m.min(v));
    let top = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    if levels.lowest == Lowest::NotPositive {
        bottom = bottom.min(0.0);
    }
    let (q_max, n) = (levels.q_max, LEN as f32);
    let step = (top - bottom) / q_max;
    let mut best = Line {
        scale: step,
        low: bottom,
    };
    if step <= 0.0 {
        return best;
    }
    let x_sum: f32 = x.iter().sum();
    let mut best_gain = f32::NEG_INFINITY;
    let mut try_line = |line: Line| {
        let sums = affine_sums(x, line.low, inverse_of(line.scale), q_max);
        match solve(&sums, x_sum, n, levels.lowest) {
            Some((gain, line)) if gain > best_gain => {
                best_gain = gain;
                best = line;
                true
            }
            Some(_) | None => false,
        }
    };
    let inward = |i: u16| levels.from + levels.step * f32::from(i);
    for up in 0..levels.n_steps {
        for down in 0..levels.n_steps {
            let low = bottom + inward(up) * step;
            let scale = (top - inward(down) * step - low) / q_max;
            if scale > 0.0 {
                try_line(Line { scale, low });
            }
        }
    }
    for _ in 0..ALTERNATIONS {
        let line = best;
        let sums = affine_sums(x, line.low, inverse_of(line.scale), q_max);
        match solve(&sums, x_sum, n, levels.lowest) {
            Some((gain, line)) if gain > best_gain => (best_gain, best) = (gain, line),
            Some(_) | None => break,
        }
    }
    best
}

/// The stored scale and lowest value of a block with one of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLine {
    pub(super) scale: Stored,
    pub(super) low: Stored,
}

/// The stored line of a block with one line, `x` being in the unit.
pub(super) fn block_line<const LEN: usize>(
    x: &[f32; LEN],
    unit: &Unit,
    levels: &Levels,
) -> Result<BlockLine, ScaleOverflow> {
    let line = search(x, levels);
    let (scale, low) = (unit.store(line.scale)?, unit.store(line.low)?);
    let mut best = (f32::INFINITY, BlockLine { scale, low });
    for scale_offset in -NEIGHBORS..=NEIGHBORS {
        for low_offset in -NEIGHBORS..=NEIGHBORS {
            let scale = unit.neighbor(scale, scale_offset);
            let low = unit.neighbor(low, low_offset);
            if let (Some(scale), Some(low)) = (scale, low) {
                let error = affine_error(x, low.value, scale.value, levels.q_max);
                if error < best.0 {
                    best = (error, BlockLine { scale, low });
                }
            }
        }
    }
    Ok(best.1)
}

/// The integers of `x` on a line.
pub(super) fn integers<const LEN: usize>(
    x: &[f32; LEN],
    scale: f32,
    low: f32,
    levels: &Levels,
) -> [u8; LEN] {
    let inverse = inverse_of(scale);
    x.map(|x| round_within((x - low) * inverse, 0.0, levels.q_max) as u8)
}

/// The lines of a block of sub-blocks: `x ~ scale * scale_codes[i] * q - min * min_codes[i]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubLines<const N: usize> {
    pub(super) scale: Stored,
    pub(super) min: Stored,
    pub(super) scale_codes: [u8; N],
    pub(super) min_codes: [u8; N],
}

impl<const N: usize> SubLines<N> {
    pub(super) const ZERO: Self = Self {
        scale: Stored::ZERO,
        min: Stored::ZERO,
        scale_codes: [0; N],
        min_codes: [0; N],
    };

    /// Scale and lowest value of a sub-block.
    pub(super) fn of(&self, sub: usize) -> (f32, f32) {
        (
            self.scale.value * f32::from(self.scale_codes[sub]),
            -self.min.value * f32::from(self.min_codes[sub]),
        )
    }
}

/// Rounds of fitting the two stored scales to the codes and the codes to them.
const REFITS: usize = 2;

/// The stored lines of a block of `N` sub-blocks, `x` being in the unit; codes are `0..=code_max`.
pub(super) fn sub_lines<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    unit: &Unit,
    levels: &Levels,
    code_max: f32,
) -> Result<SubLines<N>, ScaleOverflow> {
    let targets: [Target; N] = std::array::from_fn(|sub| {
        let Line { scale, low } = search(&x[sub], levels);
        let sums = affine_sums(&x[sub], low, inverse_of(scale), levels.q_max);
        let q_mean = sums.q / LEN as f32;
        Target {
            scale,
            min: -low,
            q_mean,
        }
    });
    let scale_max = targets.iter().fold(0f32, |m, t| m.max(t.scale));
    let min_max = targets.iter().fold(0f32, |m, t| m.max(t.min));
    let mut best = (f32::INFINITY, SubLines::ZERO);
    let mut pair = Some((scale_max / code_max, min_max / code_max));
    for _ in 0..=REFITS {
        let Some((scale, min)) = pair else { break };
        let (scale, min) = (unit.store(scale)?, unit.store(min)?);
        let before = best.0;
        for scale in unit.subnormals_around(scale) {
            for min in unit.subnormals_around(min) {
                let found = codes(x, &targets, scale, min, levels, code_max);
                if found.0 < best.0 {
                    best = found;
                }
            }
        }
        if best.0 >= before {
            break;
        }
        pair = refit(x, &best.1, levels);
    }
    Ok(best.1)
}

/// What a sub-block would store if nothing were rounded.
#[derive(Debug, Clone, Copy)]
struct Target {
    scale: f32,
    min: f32,
    q_mean: f32,
}

/// The best codes near the targets for the two stored scales, and their squared error.
fn codes<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    targets: &[Target; N],
    scale: Stored,
    min: Stored,
    levels: &Levels,
    code_max: f32,
) -> (f32, SubLines<N>) {
    let mut found = SubLines {
        scale,
        min,
        ..SubLines::ZERO
    };
    let (scale_inverse, min_inverse) = (inverse_of(scale.value), inverse_of(min.value));
    let mut total = 0.0;
    for (sub, (x, target)) in x.iter().zip(targets).enumerate() {
        let nearest = round_within(target.scale * scale_inverse, 0.0, code_max);
        let mut best = (f32::INFINITY, 0f32, 0f32);
        for scale_offset in [-1.0, 0.0, 1.0] {
            let scale_code = nearest + scale_offset;
            if scale_code < 0.0 || scale_code > code_max {
                continue;
            }
            let sub_scale = scale.value * scale_code;
            // A wider scale needs a lower start to keep the middle of the range where it was.
            let min_wanted = target.min + (sub_scale - target.scale) * target.q_mean;
            let nearest = round_within(min_wanted * min_inverse, 0.0, code_max);
            for min_offset in [-1.0, 0.0, 1.0] {
                let min_code = nearest + min_offset;
                if min_code < 0.0 || min_code > code_max {
                    continue;
                }
                let error = affine_error(x, -(min.value * min_code), sub_scale, levels.q_max);
                if error < best.0 {
                    best = (error, scale_code, min_code);
                }
            }
        }
        total += best.0;
        found.scale_codes[sub] = best.1 as u8;
        found.min_codes[sub] = best.2 as u8;
    }
    (total, found)
}

/// The least-squares pair of stored scales for the codes and integers of `lines`; `None` when the
/// pair is not determined or would be negative.
fn refit<const LEN: usize, const N: usize>(
    x: &[[f32; LEN]; N],
    lines: &SubLines<N>,
    levels: &Levels,
) -> Option<(f32, f32)> {
    // x ~ scale * a - min * b with a = scale_code * q and b = min_code.
    let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f32, 0f32, 0f32, 0f32, 0f32);
    for (sub, x) in x.iter().enumerate() {
        let (scale, low) = lines.of(sub);
        let sums = affine_sums(x, low, inverse_of(scale), levels.q_max);
        let x_sum: f32 = x.iter().sum();
        let scale_code = f32::from(lines.scale_codes[sub]);
        let min_code = f32::from(lines.min_codes[sub]);
        aa += scale_code * scale_code * sums.qq;
        ab += scale_code * min_code * sums.q;
        bb += min_code * min_code * LEN as f32;
        xa += scale_code * sums.xq;
        xb += min_code * x_sum;
    }
    if bb == 0.0 {
        return (aa > 0.0).then(|| (xa / aa, lines.min.value));
    }
    let determinant = aa * bb - ab * ab;
    let scale = (xa * bb - xb * ab) / determinant;
    let min = (xa * ab - xb * aa) / determinant;
    (determinant > 0.0 && scale >= 0.0 && min >= 0.0).then_some((scale, min))
}
