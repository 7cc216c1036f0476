//! Every operation on every instruction set of this CPU: the bits are those of the scalar set, and
//! the scalar set is within the derived bound of an f64 oracle.
//!
//! Method: a grid of widths around every register and block boundary, several seeds, and extreme
//! inputs.  Weight blocks are random bytes, with scales overwritten where they must stay finite.

#![expect(
    clippy::print_stdout,
    reason = "the test says which instruction sets it ran"
)]

mod support;

use larql_kernels::{
    Activations, Arithmetic, Form, Format, Isa, KeptRows, Kernels, LinearJob, MatrixView, RowOrder,
    decode, f32_to_f16, linear,
};
use support::{Extreme, Rng, Tiles, assert_same_bits, one_thread, weights};

const WIDTHS: [usize; 14] = [0, 1, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 640, 4096];
/// One position with one tile, and with tiles that go together and one that is left.
const ROWS_AND_POSITIONS: [(usize, usize); 7] =
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (63, 9), (37, 1)];

fn sets() -> Vec<&'static Kernels> {
    Isa::available()
        .into_iter()
        .map(|isa| Kernels::for_isa(isa).expect("an available set"))
        .collect()
}

/// Runs `op` on every set and compares with the scalar one.
fn same_on_all_sets(what: &str, op: impl Fn(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let scalar = op(Kernels::for_isa(Isa::Scalar).expect("always there"));
    for kernels in sets() {
        assert_same_bits(
            &op(kernels),
            &scalar,
            &format!("{what} on {}", kernels.isa().name()),
        );
    }
    scalar
}

#[test]
fn every_set_runs_where_the_cpu_has_it() {
    let available = Isa::available();
    assert_eq!(available[0], Isa::Scalar);
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        assert_eq!(available.contains(&Isa::Avx2), avx2);
        assert_eq!(available.contains(&Isa::Avx512), avx512);
    }
    assert_eq!(Some(&Kernels::detect().isa()), available.last());
    for isa in available {
        assert_eq!(Kernels::for_isa(isa).unwrap().isa(), isa);
        println!("runs on {}", isa.name());
    }
}

#[test]
fn dots_agree_and_are_within_the_bound() {
    for n in WIDTHS {
        for seed in 0..4 {
            for extreme in Extreme::ALL {
                let mut rng = Rng::new(seed);
                let a = extreme.floats(&mut rng, n);
                let b: [Vec<f32>; 4] = std::array::from_fn(|_| rng.floats(n));
                let four = b.each_ref().map(Vec::as_slice);
                let what = format!("dot of {n}, {extreme:?}");
                let got = same_on_all_sets(&what, |k| four.map(|b| k.dot_f32(&a, b)).to_vec());
                for (got, b) in got.iter().zip(four) {
                    let products = || a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let exact: f64 = products().sum();
                    let magnitude: f64 = products().map(f64::abs).sum();
                    // Products below the smallest normal lose up to one subnormal step each.
                    let bound = n as f64 * (f64::from(f32::EPSILON) * magnitude + 1.5e-45);
                    let error = (f64::from(*got) - exact).abs();
                    assert!(error <= bound, "{what}: error {error:e}, bound {bound:e}");
                }
            }
        }
    }
}

#[test]
fn elementwise_functions_agree() {
    for n in WIDTHS.into_iter().filter(|n| *n > 0) {
        for extreme in Extreme::ALL {
            let mut rng = Rng::new(n as u64);
            let x = extreme.floats(&mut rng, n);
            let (y, w) = (rng.floats(n), rng.floats(n));
            let what = |op: &str| format!("{op} of {n}, {extreme:?}");
            let in_place = |op: &str, run: &dyn Fn(&Kernels, &mut [f32])| {
                same_on_all_sets(&what(op), |k| {
                    let mut x = x.clone();
                    run(k, &mut x);
                    x
                })
            };
            in_place("axpy", &|k, x| k.axpy(-1.7, &y, x));
            in_place("exp", &|k, x| k.exp_in_place(x));
            in_place("softmax", &|k, x| k.softmax_in_place(x));
            in_place("silu_mul", &|k, x| k.silu_mul(x, &y));
            in_place("gelu_tanh_mul", &|k, x| k.gelu_tanh_mul(x, &y));
            let out_of_place = |op: &str, run: &dyn Fn(&Kernels, &mut [f32])| {
                same_on_all_sets(&what(op), |k| {
                    let mut out = vec![f32::NAN; n];
                    run(k, &mut out);
                    out
                })
            };
            out_of_place("rms_norm", &|k, out| k.rms_norm(&x, Some(&w), 1e-6, out));
            out_of_place("bare rms_norm", &|k, out| k.rms_norm(&x, None, 1e-6, out));
            out_of_place("layer_norm", &|k, out| {
                k.layer_norm(&x, &w, Some(&y), 1e-5, out)
            });
            out_of_place("bare layer_norm", &|k, out| {
                k.layer_norm(&x, &w, None, 1e-5, out)
            });
        }
    }
}

/// Random bytes as blocks: every bit pattern, with any scale.
#[test]
fn decoders_agree_on_any_bytes() {
    let mut rng = Rng::new(7);
    for &format in Format::ALL {
        for n_blocks in [0, 1, 2, 3, 7, 8, 9, 40] {
            let bytes = rng.bytes(n_blocks * format.block_bytes());
            let n = n_blocks * format.block_len();
            same_on_all_sets(&format!("decode {format} x {n_blocks}"), |k| {
                let mut out = vec![f32::NAN; n];
                k.decode(format, &bytes, &mut out);
                out
            });
        }
    }
}

#[test]
fn matrix_products_agree() {
    let mut n_cases = 0;
    for &format in Format::ALL {
        for cols in WIDTHS.into_iter().filter(|n| n % format.block_len() == 0) {
            for (seed, (rows, n_pos)) in ROWS_AND_POSITIONS.into_iter().enumerate() {
                for extreme in Extreme::ALL {
                    let mut rng = Rng::new(seed as u64);
                    let bytes = weights(&mut rng, format, rows, cols, extreme);
                    let weight = MatrixView::new(format, rows, cols, &bytes).unwrap();
                    let x = extreme.floats(&mut rng, n_pos * cols);
                    for arithmetic in Arithmetic::ALL {
                        let what = format!(
                            "{format} {rows} x {cols}, {n_pos}, {extreme:?} {arithmetic:?}"
                        );
                        let out =
                            same_on_all_sets(&what, |k| product(k, weight, &x, n_pos, arithmetic));
                        assert!(cols != 0 || out.iter().all(|v| *v == 0.0), "{what}");
                        n_cases += 1;
                    }
                }
            }
        }
    }
    assert!(n_cases > 2000, "{n_cases}");
}

fn product(
    kernels: &Kernels,
    weight: MatrixView<'_>,
    x: &[f32],
    n_pos: usize,
    arithmetic: Arithmetic,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; n_pos * weight.rows()];
    let mut activations = Activations::new();
    activations.prepare(
        &mut one_thread(),
        kernels,
        x,
        n_pos,
        arithmetic.forms(weight.cols(), [weight.format()]),
    );
    let tiles = Tiles::new(weight, RowOrder::Stored);
    let job = LinearJob {
        weight: tiles.view(),
        out: &mut out,
    };
    linear(&mut one_thread(), kernels, &activations, &mut [job]);
    out
}

/// The largest quants on both sides: 16-bit pair sums come within 1 % of saturation here.
#[test]
fn the_largest_integers_are_exact() {
    for format in [
        Format::Q8_0,
        Format::Q6K,
        Format::Q5K,
        Format::Q4K,
        Format::Q5_0,
    ] {
        let cols = 512;
        let shapes = [(1, 1), (17, 9)];
        let fills = [0x7f, 0x80, 0xff, 0x00];
        for (fill, (rows, n_pos)) in fills.iter().flat_map(|f| shapes.map(|shape| (*f, shape))) {
            let mut rng = Rng::new(1);
            let mut bytes = weights(&mut rng, format, rows, cols, Extreme::No);
            support::fill_quants(format, &mut bytes, fill);
            let weight = MatrixView::new(format, rows, cols, &bytes).unwrap();
            let mut row = vec![0.0; cols];
            larql_kernels::decode_row(weight, 0, &mut row);
            for (sign, arithmetic) in [1.0, -1.0]
                .into_iter()
                .flat_map(|sign| Arithmetic::ALL.map(|arithmetic| (sign, arithmetic)))
            {
                // Quantizes without error: every activation is 127 times the scale, and the middle of a block of 16 is zero.
                let at = |i| sign * if i % 16 == 5 { -127.0 } else { 127.0 };
                let x: Vec<f32> = (0..cols).map(at).collect();
                let what = format!("{format}, {rows} rows, filled with {fill:#x}, {arithmetic:?}");
                let x = x.repeat(n_pos);
                let got = same_on_all_sets(&what, |k| product(k, weight, &x, n_pos, arithmetic));
                let products = || {
                    row.iter()
                        .zip(&x[..cols])
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                };
                let exact: f64 = products().sum();
                let magnitude: f64 = products().map(f64::abs).sum();
                let error = (f64::from(got[0]) - exact).abs();
                for position in got.chunks(rows) {
                    assert_same_bits(&position[..1], &got[..1], &what);
                }
                assert!(error <= 1e-5 * magnitude, "{what}: {} for {exact}", got[0]);
            }
        }
    }
}

/// Rounding an activation to 8 bits costs at most half a step each; over random signs the errors
/// add as noise.  Relative to the norm of the output, the budget is three times what is measured.
#[test]
fn fast_is_close_to_exact() {
    let budget = |format| match format {
        Format::Q4_0 | Format::Iq4Nl | Format::Mxfp4 => 0.013,
        Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 0.011,
        Format::Q4K | Format::Q5K | Format::Q6K => 0.012,
        Format::F32 | Format::F16 | Format::Bf16 => 0.0,
        Format::Q2K | Format::Q3K | Format::Iq4Xs => 0.0,
    };
    let (rows, cols, n_pos) = (63, 768, 3);
    for &format in Format::ALL {
        let mut rng = Rng::new(11);
        let bytes = weights(&mut rng, format, rows, cols, Extreme::No);
        let weight = MatrixView::new(format, rows, cols, &bytes).unwrap();
        let x = rng.floats(n_pos * cols);
        let kernels = Kernels::detect();
        let exact = product(kernels, weight, &x, n_pos, Arithmetic::Exact);
        for arithmetic in [Arithmetic::Fast, Arithmetic::Asym16] {
            let near = product(kernels, weight, &x, n_pos, arithmetic);
            let relative = relative_difference(&near, &exact);
            println!("{format} {arithmetic:?}: {relative:.4}");
            assert!(relative <= budget(format), "{format}: {relative}");
            let on_integers = arithmetic.form(format, cols) != Form::Floats;
            assert_eq!(relative > 0.0, on_integers, "{format}: {relative}");
        }
    }
}

/// The norm of the difference, by that of `exact`.
fn relative_difference(near: &[f32], exact: &[f32]) -> f64 {
    let norm = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let difference: Vec<f32> = exact.iter().zip(near).map(|(a, b)| a - b).collect();
    norm(&difference) / norm(exact)
}

/// What blocks of 16 about their middles are for: an outlier spoils the step of 15 neighbors instead of 31, and a common
/// offset costs nothing. Measured are factors of 0.36 and 0.09.
#[test]
fn asymmetric_blocks_are_finer_beside_outliers_and_offsets() {
    let (rows, cols, n_pos) = (61, 736, 2);
    let mut rng = Rng::new(12);
    let bytes = weights(&mut rng, Format::Q8_0, rows, cols, Extreme::No);
    let weight = MatrixView::new(Format::Q8_0, rows, cols, &bytes).unwrap();
    let plain = rng.floats(n_pos * cols);
    let outliers = plain.iter().enumerate().map(|(i, x)| match i % 53 {
        7 => 32.0 * x.signum(),
        _ => *x,
    });
    let offset = plain.iter().map(|x| 10.0 + x);
    for (what, x, at_most) in [
        ("outliers", outliers.collect::<Vec<_>>(), 0.5),
        ("offset", offset.collect(), 0.15),
    ] {
        let of = |arithmetic| product(Kernels::detect(), weight, &x, n_pos, arithmetic);
        let exact = of(Arithmetic::Exact);
        let fast = relative_difference(&of(Arithmetic::Fast), &exact);
        let asym = relative_difference(&of(Arithmetic::Asym16), &exact);
        println!("{what}: fast {fast:.2e}, asym16 {asym:.2e}");
        assert!(asym <= at_most * fast, "{what}: {asym} by {fast}");
    }
}

#[test]
fn activations_that_are_not_numbers_stay_so() {
    let mut rng = Rng::new(3);
    let forms = |arithmetic: Arithmetic| {
        Format::ALL
            .iter()
            .filter(move |format| arithmetic.form(**format, 512) != Form::Floats)
            .map(move |format| (arithmetic, *format))
    };
    for (arithmetic, format) in Arithmetic::ALL.into_iter().flat_map(forms) {
        let bytes = weights(&mut rng, format, 2, 512, Extreme::No);
        let weight = MatrixView::new(format, 2, 512, &bytes).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = rng.floats(2 * 512);
            x[300] = bad;
            for kernels in sets() {
                let out = product(kernels, weight, &x, 2, arithmetic);
                assert!(
                    out[0].is_nan() && out[1].is_nan(),
                    "{format} {arithmetic:?} {bad}"
                );
                assert!(
                    out[2].is_finite() && out[3].is_finite(),
                    "{format} {arithmetic:?} {bad}"
                );
            }
        }
    }
}

/// Values as `format` stores them, and its bytes.
fn stored(format: Format, values: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let bytes: Vec<u8> = if format == Format::F16 {
        values
            .iter()
            .flat_map(|x| f32_to_f16(*x).to_le_bytes())
            .collect()
    } else {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    };
    let mut decoded = vec![0.0; values.len()];
    decode(format, &bytes, &mut decoded);
    (decoded, bytes)
}

/// Numbers of queries and keys around the groups of the kernels, and widths around their registers.
#[test]
fn attention_agrees_and_no_query_meets_another() {
    for (n_queries, n_keys, d_key, d_value) in [
        (1, 1, 3, 5),
        (2, 9, 64, 16),
        (3, 17, 72, 40),
        (4, 31, 80, 8),
        (7, 40, 256, 65),
        (16, 77, 129, 72),
    ] {
        let extremes = [Extreme::No, Extreme::Subnormal, Extreme::Saturated];
        for (extreme, format) in extremes
            .iter()
            .flat_map(|e| [(e, Format::F32), (e, Format::F16)])
        {
            let what = format!("{n_queries} queries, {n_keys} keys, {format}, {extreme:?}");
            let mut rng = Rng::new(n_keys as u64);
            let keys = extreme.floats(&mut rng, n_keys * d_key);
            let values = extreme.floats(&mut rng, n_keys * d_value);
            let queries = rng.floats(n_queries * d_key);
            let queries: Vec<&[f32]> = queries.chunks(d_key).collect();
            let (keys, key_rows) = stored(format, &keys);
            let (values, value_rows) = stored(format, &values);
            let size = format.block_bytes();
            let mut tiles = vec![0u8; n_keys.div_ceil(8) * 8 * d_key * size];
            for (i, x) in key_rows.chunks(size).enumerate() {
                let (key, d) = (i / d_key, i % d_key);
                tiles[((key / 8 * d_key + d) * 8 + key % 8) * size..][..size].copy_from_slice(x);
            }
            let stride = n_keys.next_multiple_of(8) + 3;
            let kept = |width, bytes| KeptRows {
                format,
                width,
                bytes,
            };
            let of = |k: &Kernels, queries: &[&[f32]]| {
                let mut scores = vec![f32::NAN; queries.len() * stride];
                k.scores(kept(d_key, &tiles), queries, &mut scores, stride);
                let mut z = vec![f32::NAN; queries.len() * d_value];
                k.weigh(kept(d_value, &value_rows), &scores, stride, &mut z);
                let scores = scores
                    .chunks(stride)
                    .flat_map(|row| &row[..n_keys])
                    .copied();
                (scores.collect::<Vec<f32>>(), z)
            };
            let scores = same_on_all_sets(&what, |k| of(k, &queries).0);
            let z = same_on_all_sets(&what, |k| of(k, &queries).1);
            for (q, query) in queries.iter().enumerate() {
                let alone = of(Kernels::detect(), &[query]);
                assert_same_bits(&alone.0, &scores[q * n_keys..][..n_keys], &what);
                assert_same_bits(&alone.1, &z[q * d_value..][..d_value], &what);
                for (j, key) in keys.chunks(d_key).enumerate() {
                    let products = || {
                        key.iter()
                            .zip(*query)
                            .map(|(k, q)| f64::from(*k) * f64::from(*q))
                    };
                    let bound = d_key as f64
                        * (f64::from(f32::EPSILON) * products().map(f64::abs).sum::<f64>()
                            + 1.5e-45);
                    let error = (f64::from(scores[q * n_keys + j]) - products().sum::<f64>()).abs();
                    assert!(error <= bound, "{what}: score error {error:e}");
                }
                for d in 0..d_value {
                    let terms = || {
                        (0..n_keys).map(|j| {
                            f64::from(scores[q * n_keys + j]) * f64::from(values[j * d_value + d])
                        })
                    };
                    let bound = n_keys as f64
                        * (f64::from(f32::EPSILON) * terms().map(f64::abs).sum::<f64>() + 1.5e-45);
                    let error = (f64::from(z[q * d_value + d]) - terms().sum::<f64>()).abs();
                    assert!(error <= bound, "{what}: value error {error:e}");
                }
            }
        }
    }
}
