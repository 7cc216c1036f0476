//! Decoding against ggml's own values, bit for bit.
//!
//! Each fixture holds blocks of one format (`blocks`, U8) and what the reference decodes from them
//! (`values`, F32).

mod support;

use larql_kernels::{
    Format, Isa, Kernels, MatrixView, ShapeError, decode, decode_column, decode_row,
};
use support::panic_message;

struct Fixture {
    blocks: Vec<u8>,
    values: Vec<f32>,
}

fn fixture(format: Format) -> Fixture {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quant");
    let file =
        std::fs::read(format!("{folder}/{}.safetensors", format.name())).expect("a fixture file");
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("a fixture file")) as usize;
    let header: serde_json::Value =
        serde_json::from_slice(&file[8..8 + header_len]).expect("a fixture file");
    let tensor = |name: &str| {
        let at = |i: usize| {
            header[name]["data_offsets"][i]
                .as_u64()
                .expect("a fixture file") as usize
        };
        &file[8 + header_len..][at(0)..at(1)]
    };
    let floats = tensor("values").as_chunks::<4>().0;
    Fixture {
        blocks: tensor("blocks").to_vec(),
        values: floats.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

fn quantized() -> impl Iterator<Item = Format> {
    Format::ALL
        .iter()
        .copied()
        .filter(|format| format.block_len() > 1)
}

/// The first value whose bits differ.
fn first_difference(got: &[f32], expected: &[f32]) -> Option<(usize, f32, f32)> {
    assert_eq!(got.len(), expected.len());
    let mut pairs = got.iter().zip(expected).enumerate();
    pairs
        .find(|(_, (got, expected))| got.to_bits() != expected.to_bits())
        .map(|(i, (&got, &expected))| (i, got, expected))
}

#[test]
fn every_quantized_format_decodes_as_ggml_does() {
    let mut n_formats = 0;
    for format in quantized() {
        let Fixture { blocks, values } = fixture(format);
        assert_eq!(
            format.row_bytes(values.len()),
            Some(blocks.len()),
            "{format}"
        );
        assert!(
            values.len() >= 24 * 32 && values.iter().any(|v| *v != 0.0),
            "{format}"
        );
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; values.len()];
            Kernels::for_isa(isa)
                .unwrap()
                .decode(format, &blocks, &mut got);
            assert_eq!(first_difference(&got, &values), None, "{format} {isa:?}");
        }
        n_formats += 1;
    }
    assert_eq!(n_formats, 13);
}

/// A reader that takes the low nibble for the even element must not pass.
#[test]
fn the_fixtures_tell_nibble_orders_apart() {
    let Fixture { blocks, values } = fixture(Format::Q4_0);
    let mut got = vec![0.0; values.len()];
    decode(Format::Q4_0, &blocks, &mut got);
    for block in got.chunks_exact_mut(32) {
        let halves: Vec<f32> = block.to_vec();
        for i in 0..16 {
            block[2 * i] = halves[i];
            block[2 * i + 1] = halves[i + 16];
        }
    }
    assert!(first_difference(&got, &values).is_some());
}

#[test]
fn float_formats_convert() {
    let singles: Vec<u8> = [-1.5f32, 3.25e-39]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let halves: Vec<u8> = [0xbe00u16, 0x0001]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let brains: Vec<u8> = [0xbfc0u16, 0x0001]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let cases = [
        (Format::F32, singles, [-1.5, 3.25e-39]),
        (Format::F16, halves, [-1.5, 2f32.powi(-24)]),
        (Format::Bf16, brains, [-1.5, f32::from_bits(1 << 16)]),
    ];
    for (format, bytes, expected) in cases {
        let mut got = [0.0; 2];
        decode(format, &bytes, &mut got);
        assert_eq!(first_difference(&got, &expected), None, "{format}");
    }
}

#[test]
fn rows_and_columns_are_those_of_the_whole() {
    for format in quantized() {
        let Fixture { blocks, values } = fixture(format);
        let (rows, cols) = (8, values.len() / 8);
        let matrix = MatrixView::new(format, rows, cols, &blocks).unwrap();
        let mut row = vec![0.0; cols];
        decode_row(matrix, 5, &mut row);
        assert_eq!(
            first_difference(&row, &values[5 * cols..6 * cols]),
            None,
            "{format}"
        );
        let mut column = vec![0.0; rows];
        let col = format.block_len() + 7;
        decode_column(matrix, col, &mut column);
        let expected: Vec<f32> = (0..rows).map(|row| values[row * cols + col]).collect();
        assert_eq!(first_difference(&column, &expected), None, "{format}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let partial = MatrixView::new(Format::Q4K, 1, 640, &[]).unwrap_err();
    assert_eq!(
        partial,
        ShapeError::PartialBlock {
            format: Format::Q4K,
            cols: 640
        }
    );
    assert_eq!(
        partial.to_string(),
        "a row of 640 weights is not a whole number of Q4_K blocks of 256"
    );
    let short = MatrixView::new(Format::Q8_0, 3, 64, &[0; 203]).unwrap_err();
    assert_eq!(
        short.to_string(),
        "a 3 x 64 Q8_0 matrix takes 204 bytes, got 203"
    );
    let huge = MatrixView::new(Format::F32, usize::MAX, 2, &[]).unwrap_err();
    assert!(matches!(huge, ShapeError::TooLarge { cols: 2, .. }));
}

#[test]
fn decoding_checks_its_sizes() {
    let message = panic_message(|| decode(Format::Q8_0, &[0; 67], &mut [0.0; 64]));
    assert!(message.contains("bytes of 64 Q8_0 weights"), "{message}");
}
