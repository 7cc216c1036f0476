//! Matrix products: several matrices of stored weights times the same activations, in one dispatch.
//!
//! The rows of all jobs are laid end to end and split over the team by bytes, because reading the
//! weights is what costs.  A row is read once per four positions, and in exact arithmetic decoded
//! once for all of them.  The sum of a row and a position is computed by one thread in one fixed
//! order, so neither the split nor the number of positions can change a bit of it.

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::Activations;
use crate::arch::{Dots32, Dots256, IntegerDots, Kernels};
use crate::matrix::MatrixView;
use crate::team::{RowOrder, RowWriter, Team};

/// Below this many weight bytes times positions a dispatch costs more than it saves.
const SERIAL_WORK_MAX: usize = 16 * 1024;

/// Rows that are walked for one group of positions before the next group is loaded.
const ROWS_PER_PASS: usize = 16;

/// Decoded weights that are kept at a time, in values: fits a second-level cache with the
/// activations of a few positions.
const DECODED_MAX: usize = 64 * 1024;

/// Positions that share one reading of a row.
const GROUP: usize = 4;

/// One output of a fused dispatch: `out[p * rows + order(r)] = sum_k weight[r, k] * x[p, k]`.
#[derive(Debug)]
pub struct LinearJob<'a> {
    /// `[rows, cols]`.
    pub weight: MatrixView<'a>,
    /// Where row `r` is written.
    pub row_order: RowOrder,
    /// `[n_pos, rows]`.
    pub out: &'a mut [f32],
}

/// The rows of one job that one thread computes.
struct Share<'a> {
    weight: MatrixView<'a>,
    writer: RowWriter<'a>,
}

/// Computes all jobs over the activations `x`.
///
/// With activations prepared for [`Arithmetic::Fast`](crate::Arithmetic::Fast), a format with an
/// integer kernel runs on it; everything else runs in floats.
///
/// # Panics
///
/// If a weight's columns differ from the activations', an output has another size than
/// `n_pos * rows`, or the rows of an interleaved job are not whole heads.
pub fn linear(team: &mut Team, kernels: &Kernels, x: &Activations, jobs: &mut [LinearJob<'_>]) {
    let mut work_bytes = 0usize;
    for job in &*jobs {
        assert_eq!(
            job.weight.cols(),
            x.cols(),
            "columns of weights and activations"
        );
        work_bytes = work_bytes.saturating_add(job.weight.bytes().len());
    }
    let n_threads = match work_bytes.saturating_mul(x.n_pos()) {
        0..=SERIAL_WORK_MAX => 1,
        _ => team.n_threads(),
    };
    let mut shares = split(jobs, x.n_pos(), work_bytes, n_threads);
    let run = |shares: &mut Vec<Share<'_>>| {
        for share in shares {
            compute(kernels, x, share);
        }
    };
    match &mut *shares {
        [only] => run(only),
        shares => team.chunks_mut(shares, 1, |_, share| share.iter_mut().for_each(run)),
    }
}

/// Gives every thread a contiguous run of rows of about the same number of bytes.
fn split<'a>(
    jobs: &'a mut [LinearJob<'_>],
    n_pos: usize,
    work_bytes: usize,
    n_threads: usize,
) -> Vec<Vec<Share<'a>>> {
    let mut shares: Vec<Vec<Share<'a>>> = (0..n_threads).map(|_| Vec::new()).collect();
    let end_of = |thread: usize| crate::team::share(work_bytes, thread, n_threads).end;
    let (mut thread, mut at) = (0, 0);
    for job in jobs {
        let weight = job.weight;
        let mut rest = RowWriter::new(job.out, n_pos, weight.rows(), job.row_order);
        let row_bytes = weight.row_len_bytes();
        while !rest.range().is_empty() {
            while thread + 1 < n_threads && at >= end_of(thread) {
                thread += 1;
            }
            let room = if thread + 1 == n_threads || row_bytes == 0 {
                usize::MAX
            } else {
                (end_of(thread) - at).div_ceil(row_bytes)
            };
            let n_rows = rest.range().len().min(room);
            let end = rest.range().start + n_rows;
            shares[thread].push(Share {
                weight,
                writer: rest.split_before(end),
            });
            at += n_rows * row_bytes;
        }
    }
    shares
}

fn compute(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    let weight = share.weight;
    if x.cols() == 0 {
        empty_sums(x.n_pos(), &mut share.writer);
        return;
    }
    match kernels.integer_dots(weight.format()) {
        Some(IntegerDots::Per32(dots)) if x.has_32() => {
            let Dots32 { one, four } = dots;
            by_passes(
                share,
                x.n_pos(),
                |rows, p, out| one(weight.range_bytes(rows), [x.blocks_32(p)], out),
                |rows, p, out| {
                    let x = [p, p + 1, p + 2, p + 3].map(|p| x.blocks_32(p));
                    four(weight.range_bytes(rows), x, out);
                },
            );
        }
        Some(IntegerDots::Per256(dots)) if x.has_256() => {
            let Dots256 { one, four } = dots;
            by_passes(
                share,
                x.n_pos(),
                |rows, p, out| one(weight.range_bytes(rows), [x.blocks_256(p)], out),
                |rows, p, out| {
                    let x = [p, p + 1, p + 2, p + 3].map(|p| x.blocks_256(p));
                    four(weight.range_bytes(rows), x, out);
                },
            );
        }
        Some(IntegerDots::Per32(_) | IntegerDots::Per256(_)) | None => exact(kernels, x, share),
    }
}

/// Rows without columns.
fn empty_sums(n_pos: usize, writer: &mut RowWriter<'_>) {
    for pos in 0..n_pos {
        for row in writer.range() {
            writer.set(row, pos, 0.0);
        }
    }
}

/// Walks a few rows for each group of positions, so that both stay in cache.
fn by_passes(
    share: &mut Share<'_>,
    n_pos: usize,
    one: impl Fn(Range<usize>, usize, &mut [[f32; 1]]),
    four: impl Fn(Range<usize>, usize, &mut [[f32; GROUP]]),
) {
    let rows = share.writer.range();
    for first in rows.clone().step_by(ROWS_PER_PASS) {
        let pass = first..rows.end.min(first + ROWS_PER_PASS);
        walk(&mut share.writer, pass, n_pos, &one, &four);
    }
}

/// Meets at most [`ROWS_PER_PASS`] rows with all positions; `one` and `four` take the rows, the
/// first position, and a place for the sums of each row.
fn walk(
    writer: &mut RowWriter<'_>,
    rows: Range<usize>,
    n_pos: usize,
    one: impl Fn(Range<usize>, usize, &mut [[f32; 1]]),
    four: impl Fn(Range<usize>, usize, &mut [[f32; GROUP]]),
) {
    let grouped = n_pos - n_pos % GROUP;
    for pos in (0..grouped).step_by(GROUP) {
        let mut sums = [[0.0; GROUP]; ROWS_PER_PASS];
        four(rows.clone(), pos, &mut sums[..rows.len()]);
        for i in 0..GROUP {
            for (row, sums) in rows.clone().zip(&sums) {
                writer.set(row, pos + i, sums[i]);
            }
        }
    }
    for pos in grouped..n_pos {
        let mut sums = [[0.0]; ROWS_PER_PASS];
        one(rows.clone(), pos, &mut sums[..rows.len()]);
        for (row, [sum]) in rows.clone().zip(sums) {
            writer.set(row, pos, sum);
        }
    }
}

thread_local! {
    /// Decoded rows of this thread; kept, because a decode step asks for it hundreds of times.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Decodes a few rows, then meets every position with them.
fn exact(kernels: &Kernels, x: &Activations, share: &mut Share<'_>) {
    let (weight, cols) = (share.weight, x.cols());
    let rows = share.writer.range();
    // Without several positions to share the decoded rows, one at a time stays in the first level.
    let fitting = if x.n_pos() == 1 {
        1
    } else {
        DECODED_MAX / cols
    };
    let n_rows = fitting.clamp(1, ROWS_PER_PASS);
    DECODED.with_borrow_mut(|decoded| {
        if decoded.len() < n_rows * cols {
            decoded.resize(n_rows * cols, 0.0);
        }
        for first in rows.clone().step_by(n_rows) {
            let pass = first..rows.end.min(first + n_rows);
            for row in pass.clone() {
                let at = (row - first) * cols;
                kernels.decode(
                    weight.format(),
                    weight.row_bytes(row),
                    &mut decoded[at..at + cols],
                );
            }
            let rows = || decoded.chunks_exact(cols);
            walk(
                &mut share.writer,
                pass,
                x.n_pos(),
                |_, p, out| {
                    for (row, out) in rows().zip(out) {
                        *out = [kernels.dot_f32(row, x.position(p))];
                    }
                },
                |_, p, out| {
                    let x = [p, p + 1, p + 2, p + 3].map(|p| x.position(p));
                    for (row, out) in rows().zip(out) {
                        *out = kernels.dot4_f32(row, x);
                    }
                },
            );
        }
    });
}
