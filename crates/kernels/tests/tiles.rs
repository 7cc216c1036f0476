//! Tiles lose nothing: every byte comes back, whatever the shape, the order of rows and the threads.

mod support;

use larql_kernels::{
    Format, Kernels, MatrixView, RowOrder, TILE_ROWS, TileView, decode_row, pack_tiles_releasing,
    tile_bytes,
};
use support::{Rng, Tiles, assert_same_bits, panic_message, team};

/// Shapes around the tile, with one block and with several.
const ROWS: [usize; 8] = [0, 1, 7, 8, 9, 16, 41, 211];

#[test]
fn every_format_comes_back_byte_for_byte() {
    for &format in Format::ALL {
        for rows in ROWS {
            for n_blocks in [1, 3] {
                let mut rng = Rng::new(rows as u64);
                let cols = n_blocks * format.block_len();
                let bytes = rng.bytes(rows * format.row_bytes(cols).unwrap());
                let view = MatrixView::new(format, rows, cols, &bytes).unwrap();
                let tiles = Tiles::new(view, RowOrder::Stored);
                let mut back = vec![0x5a; bytes.len()];
                tiles.view().unpack_into(RowOrder::Stored, &mut back);
                assert!(back == bytes, "{format} {rows} x {cols}");
                if rows.is_multiple_of(TILE_ROWS) {
                    assert_eq!(tiles.view().bytes().len(), bytes.len(), "{format}");
                }
            }
        }
    }
}

#[test]
fn rows_decode_as_before_and_heads_are_put_in_order() {
    let (head_dim, n_heads) = (6, 7);
    let order = RowOrder::Interleaved { head_dim };
    for &format in Format::ALL {
        let (rows, cols) = (head_dim * n_heads, 2 * format.block_len());
        let mut rng = Rng::new(3);
        let bytes = support::weights(&mut rng, format, rows, cols, support::Extreme::No);
        let view = MatrixView::new(format, rows, cols, &bytes).unwrap();
        let tiles = Tiles::new(view, order);
        let (mut got, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..rows {
            let (head, within) = (row / head_dim, row % head_dim);
            let stored = head * head_dim + within % 3 * 2 + within / 3;
            assert_eq!((order.stored(row), order.logical(stored)), (stored, row));
            tiles.view().decode_row(Kernels::detect(), row, &mut got);
            decode_row(view, stored, &mut expected);
            assert_same_bits(&got, &expected, &format!("{format} row {row}"));
        }
        let mut back = vec![0; bytes.len()];
        tiles.view().unpack_into(order, &mut back);
        assert!(back == bytes, "{format}");
    }
}

/// More bytes than are packed at a time: the ranges that are given back cover the source once, in order.
#[test]
fn a_large_matrix_is_packed_in_parts() {
    let (format, rows, cols) = (Format::F32, 2501, 2000);
    let mut rng = Rng::new(4);
    let bytes = rng.bytes(rows * cols * 4);
    let view = MatrixView::new(format, rows, cols, &bytes).unwrap();
    for n_threads in 1..=3 {
        let mut released = Vec::new();
        let mut packed = vec![0xa5; tile_bytes(format, rows, cols).unwrap()];
        let team = &mut team(n_threads);
        let mut done = |range| released.push(range);
        pack_tiles_releasing(team, view, RowOrder::Stored, &mut packed, &mut done);
        assert!(released.len() > 2, "{released:?}");
        assert_eq!(released[0].start, 0);
        assert!(released.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!(released.last().unwrap().end, bytes.len());
        let whole = Tiles::new(view, RowOrder::Stored);
        assert!(packed == whole.view().bytes());
    }
}

#[test]
fn sizes_are_checked() {
    assert_eq!(tile_bytes(Format::Q8_0, 9, 64), Some(16 * 68));
    assert_eq!(tile_bytes(Format::Q8_0, 9, 65), None);
    assert_eq!(tile_bytes(Format::F32, usize::MAX, 64), None);
    let bytes = [0; 16 * 68 - 1];
    let error = TileView::new(Format::Q8_0, 9, 64, &bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a 9 x 64 Q8_0 matrix takes 1088 bytes, got 1087"
    );
    let view = MatrixView::new(Format::F32, 10, 1, &[0; 40]).unwrap();
    let order = RowOrder::Interleaved { head_dim: 4 };
    let message = panic_message(|| drop(Tiles::new(view, order)));
    assert!(message.contains("whole heads"), "{message}");
}
