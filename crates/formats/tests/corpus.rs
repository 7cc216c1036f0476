//! The committed seeds of the fuzz targets, replayed: no panic, no long run, and none is stale.
//!
//! A fuzzer's finding is added as one more file; `examples/make_corpus.rs` writes the rest.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use larql_formats::Bytes;
use larql_formats::gguf::GgufFile;
use larql_formats::safetensors::SafetensorsFile;

mod support;

/// Seeds are read by fuzzers thousands of times, and live in the repository.
const SEED_BYTES_MAX: usize = 2048;

fn seeds(kind: &str) -> BTreeMap<String, Vec<u8>> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(kind);
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// Both readers get every seed: each must survive the other's files.
fn replay(name: &str, bytes: &[u8]) {
    assert!(bytes.len() <= SEED_BYTES_MAX, "{name} has {}", bytes.len());
    let bytes = Bytes::from_vec(bytes.to_vec());
    support::timed(name, || {
        if let Ok(file) = GgufFile::from_bytes(bytes.clone(), Path::new(name)) {
            for tensor in file.tensors() {
                let data = file.data(&tensor.name).unwrap();
                assert_eq!(data.len() as u64, tensor.n_bytes);
            }
        }
    });
    support::timed(name, || {
        if let Ok(file) = SafetensorsFile::from_bytes(bytes.clone(), Path::new(name)) {
            for tensor in file.tensors() {
                let data = file.data(&tensor.name).unwrap();
                assert_eq!(data.len() as u64, tensor.n_bytes);
            }
        }
    });
}

#[test]
fn every_seed_is_survived() {
    for kind in ["gguf", "safetensors"] {
        let seeds = seeds(kind);
        assert!(seeds.len() >= 40, "only {} {kind} seeds", seeds.len());
        for (name, bytes) in seeds {
            replay(&name, &bytes);
        }
    }
}

#[test]
fn the_seeds_are_the_cases_of_today() {
    for (kind, cases) in [
        ("gguf", support::gguf::cases()),
        ("safetensors", support::safetensors::cases()),
    ] {
        let seeds = seeds(kind);
        for case in cases {
            assert!(
                seeds.get(case.name) == Some(&case.bytes),
                "{kind}/{} is stale: run the example make_corpus",
                case.name
            );
        }
    }
}
