//! Every hostile file is refused with its exact message, and every odd but legal one is read.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::Path;

use larql_formats::gguf::GgufFile;
use larql_formats::safetensors::SafetensorsFile;
use larql_formats::{Bytes, Error};

mod support;

fn gguf(bytes: &[u8]) -> Result<GgufFile, Error> {
    GgufFile::from_bytes(Bytes::from_vec(bytes.to_vec()), Path::new("x"))
}

fn safetensors(bytes: &[u8]) -> Result<SafetensorsFile, Error> {
    SafetensorsFile::from_bytes(Bytes::from_vec(bytes.to_vec()), Path::new("x"))
}

#[test]
fn gguf_cases() {
    support::check_all(support::gguf::cases(), gguf);
}

#[test]
fn safetensors_cases() {
    support::check_all(support::safetensors::cases(), safetensors);
}

#[test]
fn a_gguf_cut_anywhere_is_refused() {
    let whole = support::gguf::base().build();
    for n_bytes in 0..whole.len() {
        let error = support::timed("cut", || gguf(&whole[..n_bytes]).unwrap_err());
        match error {
            Error::Truncated { .. } | Error::Count { .. } => assert!(n_bytes < 448, "{n_bytes}"),
            Error::Outside {
                tensor, file_len, ..
            } => {
                let first = match n_bytes {
                    ..472 => "blk.0.w",
                    472..990 => "blk.0.q",
                    _ => "experts",
                };
                assert_eq!((tensor.as_str(), file_len), (first, n_bytes as u64));
            }
            other => panic!("cut at {n_bytes}: {other}"),
        }
    }
    assert_eq!(gguf(&whole).unwrap().tensors().len(), 3);
}

#[test]
fn a_gguf_cut_at_sixteenths_says_where() {
    let whole = support::gguf::base().build();
    let messages: Vec<_> = (0..16)
        .map(|i| {
            gguf(&whole[..whole.len() * i / 16])
                .unwrap_err()
                .to_string()
        })
        .collect();
    let expected = [
        "x: the file ends inside the magic: 4 bytes needed at offset 0, 0 left",
        "x: 3 tensors declared, but the 41 bytes left hold at most 1",
        "x: the file ends inside the length of the name of key 3: 8 bytes needed at offset 124, 7 left",
        "x: 3 elements of key `toy.tokens` declared, but the 18 bytes left hold at most 2",
        "x: 2 elements of key `toy.nested` declared, but the 20 bytes left hold at most 1",
        "x: the file ends inside the name of tensor 1: 7 bytes needed at offset 328, 0 left",
        "x: the file ends inside the shape of tensor `experts`: 8 bytes needed at offset 394, 0 left",
        "x: tensor `blk.0.w` lies outside the file: offset 0 in the data at 448, 24 bytes, file of 460",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 526",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 591",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 657",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 723",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 789",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 854",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 920",
        "x: tensor `blk.0.q` lies outside the file: offset 32 in the data at 448, 510 bytes, file of 986",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn a_safetensors_cut_anywhere_is_refused() {
    let whole = support::safetensors::base();
    let data_start = whole.len() - 68;
    for n_bytes in 0..whole.len() {
        let error = support::timed("cut", || safetensors(&whole[..n_bytes]).unwrap_err());
        match error {
            Error::Truncated { .. } => assert!(n_bytes < data_start),
            Error::Outside { tensor, .. } => {
                let first = match n_bytes - data_start {
                    ..24 => "w",
                    24..38 => "b",
                    _ => "e",
                };
                assert_eq!(tensor, first);
            }
            other => panic!("cut at {n_bytes}: {other}"),
        }
    }
}
