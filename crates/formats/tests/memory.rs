//! A small file cannot make a reader reserve much memory. Alone in its binary, because the
//! kernel counts the whole process.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![cfg(target_os = "linux")]

use std::path::Path;

use larql_formats::Bytes;
use larql_formats::gguf::GgufFile;
use larql_formats::safetensors::SafetensorsFile;

mod support;

/// Reserved, not only touched: `Vec::with_capacity` of a hostile count shows here.
fn peak_address_space_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn hostile_files_reserve_no_memory() {
    let mut cases = support::gguf::cases();
    cases.extend(support::safetensors::cases());
    let before = peak_address_space_kb();
    for case in &cases {
        let bytes = Bytes::from_vec(case.bytes.clone());
        drop(GgufFile::from_bytes(bytes.clone(), Path::new("x")));
        drop(SafetensorsFile::from_bytes(bytes, Path::new("x")));
    }
    let grown = peak_address_space_kb() - before;
    assert!(grown < 50_000, "{grown} kB for {} small files", cases.len());

    // The measure itself works. An allocator may have mapped and returned some before.
    let reserved: Vec<u8> = std::hint::black_box(Vec::with_capacity(1 << 30));
    assert!(reserved.capacity() > 0 && peak_address_space_kb() - before > 50_000);
}
