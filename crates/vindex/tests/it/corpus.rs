//! Manifests that a fuzzer or a user may produce: each is read or refused, quickly and without a panic.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use larql_vindex::Manifest;

/// Far more than any of the files takes, far less than a hang.
const READ_TIME_MAX: Duration = Duration::from_millis(500);

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                fs::read(path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    let files = corpus();
    assert!(files.len() > 20, "only {} files", files.len());
    for (name, text) in files {
        let start = Instant::now();
        let read = Manifest::decode(&text, Path::new("vindex.json"));
        assert!(
            start.elapsed() < READ_TIME_MAX,
            "{name}: {:?}",
            start.elapsed()
        );
        match read {
            Ok(_) => assert!(name.starts_with("ok-"), "{name} was read"),
            Err(error) => {
                assert!(name.starts_with("err-"), "{name}: {error}");
                assert!(error.to_string().contains("vindex.json"), "{name}: {error}");
            }
        }
    }
}

/// One damaged byte at a time, and cuts: no panic, and never another manifest than the one that was written.
#[test]
fn damage_is_never_read_as_something_else() {
    let (_, text) = corpus()
        .into_iter()
        .find(|(name, _)| name == "ok-tiny.json")
        .unwrap();
    let whole = Manifest::decode(&text, Path::new("vindex.json")).unwrap();
    for at in (0..text.len()).step_by(41) {
        for byte in [b'0', b'"', b'}', 0, 0xff, text[at] ^ 1] {
            let mut damaged = text.clone();
            damaged[at] = byte;
            if let Ok(read) = Manifest::decode(&damaged, Path::new("vindex.json")) {
                assert!(read == whole, "byte {at} set to {byte}");
            }
        }
        assert!(
            Manifest::decode(&text[..at], Path::new("vindex.json")).is_err(),
            "cut at {at}"
        );
    }
}
