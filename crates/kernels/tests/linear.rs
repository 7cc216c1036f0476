//! `linear` gives the bits of one row and one position whatever surrounds them.

mod support;

use larql_kernels::{
    Activations, Arithmetic, Format, Kernels, LinearJob, MatrixView, RowOrder, Team, linear,
};
use support::{Extreme, Rng, Tiles, assert_same_bits, one_thread, panic_message, team, weights};

struct Weights {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Weights {
    fn new(rng: &mut Rng, format: Format, rows: usize, cols: usize) -> Self {
        let bytes = weights(rng, format, rows, cols, Extreme::No);
        Self {
            format,
            rows,
            cols,
            bytes,
        }
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.format, self.rows, self.cols, &self.bytes)
            .expect("sized for the shape")
    }
}

/// All outputs of one dispatch.
fn run(
    team: &mut Team,
    x: &[f32],
    n_pos: usize,
    arithmetic: Arithmetic,
    jobs: &[(&Weights, RowOrder)],
) -> Vec<Vec<f32>> {
    run_in_pieces(team, x, n_pos, arithmetic, jobs).0
}

/// As [`run`], with the number of pieces of the work.
fn run_in_pieces(
    team: &mut Team,
    x: &[f32],
    n_pos: usize,
    arithmetic: Arithmetic,
    jobs: &[(&Weights, RowOrder)],
) -> (Vec<Vec<f32>>, usize) {
    let kernels = Kernels::detect();
    let mut activations = Activations::new();
    let formats = jobs.iter().map(|(w, _)| w.format);
    let forms = arithmetic.forms(jobs[0].0.cols, formats);
    activations.prepare(team, kernels, x, n_pos, forms);
    let mut outputs: Vec<Vec<f32>> = jobs
        .iter()
        .map(|(w, _)| vec![f32::NAN; n_pos * w.rows])
        .collect();
    let tiles: Vec<Tiles> = jobs
        .iter()
        .map(|(w, order)| Tiles::new(w.view(), *order))
        .collect();
    let mut jobs: Vec<LinearJob<'_>> = tiles
        .iter()
        .zip(&mut outputs)
        .map(|(tiles, out)| LinearJob {
            weight: tiles.view(),
            out,
        })
        .collect();
    let pieces = linear(team, kernels, &activations, &mut jobs);
    (outputs, pieces)
}

#[test]
fn positions_threads_and_neighbors_change_no_bit() {
    for &format in Format::ALL {
        for arithmetic in Arithmetic::ALL {
            let mut rng = Rng::new(5);
            let cols = format.block_len().max(32) * 3;
            // More tiles than are worked on together, and enough bytes to be split.
            let w = Weights::new(&mut rng, format, 273, cols);
            let other = Weights::new(&mut rng, Format::Q8_0, 77, cols);
            let jobs = [(&w, RowOrder::Stored), (&other, RowOrder::Stored)];
            let mut x = rng.floats(259 * cols);
            // A neighbor 400 times larger than the position under test, which is the first.
            x[cols..2 * cols].iter_mut().for_each(|v| *v *= 400.0);
            let alone = run(&mut one_thread(), &x[..cols], 1, arithmetic, &jobs);
            for n_threads in 1..=3 {
                let mut team = team(n_threads);
                for n_pos in [1, 2, 3, 5, 7, 17, 259] {
                    let what = format!("{format} {arithmetic:?} {n_pos} on {n_threads}");
                    let got = run(&mut team, &x[..n_pos * cols], n_pos, arithmetic, &jobs);
                    assert_same_bits(&got[0][..273], &alone[0], &what);
                    assert_same_bits(&got[1][..77], &alone[1], &what);
                    let last = &x[(n_pos - 1) * cols..n_pos * cols];
                    let last = run(&mut one_thread(), last, 1, arithmetic, &jobs);
                    assert_same_bits(&got[0][(n_pos - 1) * 273..], &last[0], &what);
                    assert_same_bits(&got[1][(n_pos - 1) * 77..], &last[1], &what);
                }
            }
        }
    }
}

#[test]
fn columns_beyond_a_panel_change_no_bit() {
    for &format in Format::ALL {
        for arithmetic in Arithmetic::ALL {
            let mut rng = Rng::new(8);
            let cols = 2048 + format.block_len().max(32);
            let w = Weights::new(&mut rng, format, 37, cols);
            let jobs = [(&w, RowOrder::Stored)];
            let x = rng.floats(13 * cols);
            let got = run(&mut one_thread(), &x, 13, arithmetic, &jobs);
            for (p, x) in x.chunks(cols).enumerate() {
                let alone = run(&mut one_thread(), x, 1, arithmetic, &jobs);
                let what = format!("{format} {arithmetic:?} position {p}");
                assert_same_bits(&got[0][p * 37..][..37], &alone[0], &what);
            }
        }
    }
}

#[test]
fn long_work_is_cut_finer_than_threads_and_short_work_is_not() {
    let mut rng = Rng::new(9);
    let w = Weights::new(&mut rng, Format::Q8_0, 1037, 96);
    let x = rng.floats(131 * 96);
    let jobs = [(&w, RowOrder::Stored)];
    for (n_threads, n_pos, expected) in [(1, 131, 1), (2, 131, 16), (3, 131, 24), (2, 1, 2)] {
        let mut team = team(n_threads);
        let x = &x[..n_pos * 96];
        let (_, pieces) = run_in_pieces(&mut team, x, n_pos, Arithmetic::Fast, &jobs);
        assert_eq!(pieces, expected, "{n_threads} threads, {n_pos} positions");
    }
}

#[test]
fn outputs_are_the_products() {
    let mut rng = Rng::new(6);
    let (rows, cols, n_pos) = (37, 45, 6);
    let w = Weights::new(&mut rng, Format::F32, rows, cols);
    let values: Vec<f32> = w
        .bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let x = rng.floats(n_pos * cols);
    let got = run(
        &mut team(2),
        &x,
        n_pos,
        Arithmetic::Exact,
        &[(&w, RowOrder::Stored)],
    );
    for p in 0..n_pos {
        for r in 0..rows {
            let terms = || (0..cols).map(|k| f64::from(values[r * cols + k] * x[p * cols + k]));
            let bound =
                2.0 * cols as f64 * f64::from(f32::EPSILON) * terms().map(f64::abs).sum::<f64>();
            let error = (f64::from(got[0][p * rows + r]) - terms().sum::<f64>()).abs();
            assert!(error <= bound, "row {r} position {p}: {error:e}");
        }
    }
}

#[test]
fn interleaved_rows_are_permuted() {
    let mut rng = Rng::new(8);
    let (head_dim, n_heads, cols) = (6, 47, 96);
    let rows = head_dim * n_heads;
    let w = Weights::new(&mut rng, Format::Q8_0, rows, cols);
    for n_pos in [1, 5] {
        let x = rng.floats(n_pos * cols);
        for n_threads in 1..=3 {
            let jobs = [
                (&w, RowOrder::Stored),
                (&w, RowOrder::Interleaved { head_dim }),
            ];
            let got = run(&mut team(n_threads), &x, n_pos, Arithmetic::Fast, &jobs);
            let mut expected = vec![f32::NAN; n_pos * rows];
            for (p, h, i, j) in indices(n_pos, n_heads, head_dim) {
                expected[p * rows + h * head_dim + j * head_dim / 2 + i] =
                    got[0][p * rows + h * head_dim + 2 * i + j];
            }
            assert_same_bits(&got[1], &expected, "permuted");
        }
    }
}

fn indices(
    n_pos: usize,
    n_heads: usize,
    head_dim: usize,
) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..n_pos * n_heads * head_dim).map(move |at| {
        let (p, rest) = (at / (n_heads * head_dim), at % (n_heads * head_dim));
        (p, rest / head_dim, rest % head_dim / 2, rest % 2)
    })
}

#[test]
fn jobs_may_be_empty() {
    let mut rng = Rng::new(9);
    let empty = Weights::new(&mut rng, Format::Q8_0, 0, 640);
    let w = Weights::new(&mut rng, Format::Q5_0, 100, 640);
    let x = rng.floats(640);
    for n_threads in 1..=3 {
        let jobs = [
            (&empty, RowOrder::Stored),
            (&w, RowOrder::Stored),
            (&empty, RowOrder::Stored),
        ];
        let got = run(&mut team(n_threads), &x, 1, Arithmetic::Fast, &jobs);
        assert!(got[0].is_empty() && got[2].is_empty());
        assert!(got[1].iter().all(|v| v.is_finite()));
    }
}

#[test]
fn rows_must_be_whole_heads() {
    let w = Weights::new(&mut Rng::new(1), Format::F32, 10, 4);
    let jobs = [(&w, RowOrder::Interleaved { head_dim: 4 })];
    let message = panic_message(|| {
        run(&mut one_thread(), &[0.0; 4], 1, Arithmetic::Exact, &jobs);
    });
    assert!(message.contains("whole heads"), "{message}");
}

#[test]
fn columns_must_agree() {
    let mut rng = Rng::new(1);
    let narrow = Weights::new(&mut rng, Format::F32, 10, 4);
    let wide = Weights::new(&mut rng, Format::F32, 10, 5);
    let jobs = [(&narrow, RowOrder::Stored), (&wide, RowOrder::Stored)];
    let message = panic_message(|| {
        run(&mut one_thread(), &[0.0; 4], 1, Arithmetic::Exact, &jobs);
    });
    assert!(
        message.contains("columns of weights and activations"),
        "{message}"
    );
}

/// What a buffer holds of an earlier call meets nothing, and does not change the bits of a later one.
#[test]
fn only_prepared_forms_are_met() {
    let mut rng = Rng::new(7);
    let (n_pos, cols) = (3, 96);
    let of = |format| Weights::new(&mut Rng::new(8), format, 10, cols);
    let (quantized, plain) = (of(Format::Q8_0), of(Format::F32));
    let tiles = |w: &Weights| Tiles::new(w.view(), RowOrder::Stored);
    let (quantized_tiles, plain_tiles) = (tiles(&quantized), tiles(&plain));
    let kernels = Kernels::detect();
    let mut x = Activations::new();
    let meet = |x: &Activations, tiles: &Tiles| {
        let mut out = vec![f32::NAN; n_pos * 10];
        let mut jobs = [LinearJob {
            weight: tiles.view(),
            out: &mut out,
        }];
        linear(&mut one_thread(), kernels, x, &mut jobs);
        out
    };
    for arithmetic in [Arithmetic::Fast, Arithmetic::Asym16, Arithmetic::Fast] {
        for (weight, this, other) in [
            (&quantized, &quantized_tiles, &plain_tiles),
            (&plain, &plain_tiles, &quantized_tiles),
        ] {
            let values = rng.floats(n_pos * cols);
            let forms = arithmetic.forms(cols, [weight.format]);
            x.prepare(&mut one_thread(), kernels, &values, n_pos, forms);
            let jobs = [(weight, RowOrder::Stored)];
            let fresh = run(&mut one_thread(), &values, n_pos, arithmetic, &jobs);
            assert_same_bits(&meet(&x, this), &fresh[0], weight.format.name());
            let message = panic_message(|| {
                meet(&x, other);
            });
            assert!(message.contains("were not prepared"), "{message}");
        }
    }
}
