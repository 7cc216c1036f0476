//! Headers without weights: what comes, how much of it, and that it opens.

use std::fs;
use std::path::Path;

use larql_formats::{Dtype, TensorInfo, gguf, safetensors};
use larql_hub::HubError;

use crate::server::{Fault, Seen};
use crate::{Setup, noise, setup};

/// Bytes beyond headers and configuration that may be served: two looks at a stored head, and what a growing range
/// fetches in vain.
const SLACK: usize = 2 * 4096;

/// A safetensors file and the length of its header.
fn weights(tensors: &[(&str, Vec<u64>)]) -> (Vec<u8>, usize) {
    let (mut header, mut data, mut seed) = (serde_json::Map::new(), Vec::new(), 31);
    for (name, shape) in tensors {
        seed += 1;
        let begin = data.len();
        data.extend(noise(seed, shape.iter().product::<u64>() as usize * 2));
        header.insert(
            (*name).to_owned(),
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(&header);
    file.extend(&data);
    (file, 8 + header.len())
}

/// Bytes served of the files, without the list of files.
fn served(log: &[Seen]) -> usize {
    log.iter()
        .filter(|seen| !seen.path.starts_with("/api/"))
        .map(|seen| seen.sent_bytes)
        .sum()
}

fn same_tensors(found: &Path, whole: &Path) -> safetensors::Checkpoint {
    let found = safetensors::Checkpoint::open(found).unwrap();
    let whole = safetensors::Checkpoint::open(whole).unwrap();
    assert_eq!(found.tensors(), whole.tensors());
    found
}

#[test]
fn a_checkpoint_shows_its_tensors_for_a_few_kilobytes() {
    let setup = setup();
    let (file, n_header) = weights(&[
        ("model.embed_tokens.weight", vec![1000, 37]),
        ("model.norm.weight", vec![37]),
        ("lm_head.weight", vec![1000, 37]),
    ]);
    let config = br#"{"model_type":"toy"}"#;
    let files: [(&str, &[u8]); 4] = [
        ("config.json", config),
        ("model.safetensors", &file),
        ("tokenizer.json", &noise(40, 300_000)),
        ("README.md", b"text"),
    ];
    setup.server.publish("org/toy", "main", &files);
    let folder = setup.headers("hf://org/toy").unwrap();
    let log = setup.server.take_log();
    assert!(folder.ends_with("headers/toy"), "{folder:?}");
    let expected = n_header + config.len() + SLACK;
    assert_eq!(served(&log), expected, "{log:#?}");
    assert!(log.iter().all(|seen| !seen.path.contains("tokenizer")));

    let whole = setup.fetch("hf://org/toy").unwrap();
    let opened = same_tensors(&folder, &whole);
    let length = |folder: &Path| {
        fs::metadata(folder.join("model.safetensors"))
            .unwrap()
            .len()
    };
    assert_eq!(length(&folder), length(&whole));
    // The two looks tell apart a head that is another matrix than the embedding.
    let head = opened.data("lm_head.weight").unwrap();
    assert_eq!(
        head[..4096],
        opened_at(&file, n_header, 1000 * 37 * 2 + 37 * 2)
    );
    assert!(head[4096..].iter().all(|byte| *byte == 0));
    assert!(
        opened
            .data("model.norm.weight")
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
}

fn opened_at(file: &[u8], n_header: usize, offset: usize) -> [u8; 4096] {
    file[n_header + offset..][..4096].try_into().unwrap()
}

#[test]
fn shards_are_looked_at_one_by_one() {
    let setup = setup();
    let (one, n_one) = weights(&[("a", vec![301, 11]), ("b", vec![7])]);
    let (two, n_two) = weights(&[("c", vec![503, 13])]);
    let index =
        br#"{"weight_map":{"a":"x-1.safetensors","b":"x-1.safetensors","c":"x-2.safetensors"}}"#;
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("x-1.safetensors", &one),
        ("x-2.safetensors", &two),
        ("x-3.safetensors", &noise(41, 20_000)),
    ];
    setup.server.publish("org/toy", "main", &files);
    let folder = setup.headers("org/toy").unwrap();
    let log = setup.server.take_log();
    assert_eq!(served(&log), 2 + index.len() + n_one + n_two, "{log:#?}");
    same_tensors(&folder, &setup.fetch("org/toy").unwrap());
}

/// A GGUF whose header is longer than the first request, with RoPE divisors behind everything else.
fn gguf_file(n_words: usize) -> (Vec<u8>, Vec<u8>) {
    let words = (0..n_words).map(|i| format!("word number {i}")).collect();
    let mut metadata = gguf::Metadata::new();
    let words = gguf::Value::Array(gguf::Array::Strings(words));
    metadata
        .insert("general.architecture", gguf::Value::String("toy".into()))
        .unwrap();
    metadata.insert("tokenizer.ggml.tokens", words).unwrap();
    let mut writer = gguf::GgufWriter::new(metadata, gguf::DEFAULT_ALIGNMENT).unwrap();
    let divisors: Vec<u8> = (1..=20).flat_map(|i| (i as f32).to_le_bytes()).collect();
    writer
        .declare(TensorInfo::new("w", Dtype::F32, vec![997, 101]).unwrap())
        .unwrap();
    writer
        .declare(TensorInfo::new("rope_freqs.weight", Dtype::F32, vec![20]).unwrap())
        .unwrap();
    let mut stream = writer.begin(Vec::new()).unwrap();
    stream
        .write_tensor_bytes("w", &noise(42, 997 * 101 * 4))
        .unwrap();
    stream
        .write_tensor_bytes("rope_freqs.weight", &divisors)
        .unwrap();
    (stream.finish().unwrap(), divisors)
}

#[test]
fn a_gguf_shows_its_header_and_the_divisors_that_opening_reads() {
    for n_words in [3, 9000] {
        let setup = setup();
        let (file, divisors) = gguf_file(n_words);
        let n_header = file.len() - 997 * 101 * 4 - divisors.len();
        setup
            .server
            .publish("org/toy", "main", &[("d/toy.gguf", &file)]);
        let path = setup.headers("org/toy").unwrap();
        assert!(path.ends_with("headers/toy/d/toy.gguf"), "{path:?}");
        let log = setup.server.take_log();
        let served = served(&log);
        let limit = (2 * n_header).max(16 << 10) + divisors.len();
        assert!(served <= limit, "{served} of {limit}: {log:#?}");
        let opened = gguf::GgufFile::open(&path).unwrap();
        let whole = gguf::GgufFile::open(setup.fetch("org/toy").unwrap()).unwrap();
        assert_eq!(opened.tensors(), whole.tensors());
        assert_eq!(opened.metadata(), whole.metadata());
        assert_eq!(*opened.data("rope_freqs.weight").unwrap(), divisors);
        let weights = opened.data("w").unwrap();
        assert!(weights[weights.len() / 2..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_hub_without_ranges_is_read_from_the_start_only() {
    let setup = setup();
    let (file, n_header) = weights(&[("a", vec![3001, 11])]);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &file)];
    setup.server.publish("org/toy", "main", &files);
    setup
        .server
        .fail("model.safetensors", &vec![Fault::IgnoreRange; 9]);
    let folder = setup.headers("org/toy").unwrap();
    setup.server.fail("model.safetensors", &[]);
    same_tensors(&folder, &setup.fetch("org/toy").unwrap());
    let found = fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(found[..n_header], file[..n_header]);
    assert!(found[n_header..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_reply_that_breaks_off_is_asked_again() {
    let setup = setup();
    let (file, _) = weights(&[("a", vec![3001, 11])]);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{\"k\":1}"), ("model.safetensors", &file)];
    setup.server.publish("org/toy", "main", &files);
    setup.server.fail("config.json", &[Fault::Cut(3)]);
    setup
        .server
        .fail("model.safetensors", &[Fault::Cut(5), Fault::Status(502)]);
    let folder = setup.headers("org/toy").unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"{\"k\":1}");
    same_tensors(&folder, &setup.fetch("org/toy").unwrap());
}

#[test]
fn lengths_from_outside_have_limits() {
    for (length, expected) in [
        (
            u64::MAX,
            "header: 18446744073709551615 bytes, the limit is 100000000",
        ),
        (99_000_000, "longer than the file"),
    ] {
        let setup: Setup = setup();
        let mut file = noise(43, 20_000);
        file[..8].copy_from_slice(&u64::to_le_bytes(length));
        let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &file)];
        setup.server.publish("org/toy", "main", &files);
        let error = setup.headers("org/toy").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(matches!(
            error,
            HubError::TooLarge { .. } | HubError::BadReply { .. }
        ));
        assert!(served(&setup.server.take_log()) < 100);
    }
}

#[test]
fn a_model_in_the_cache_is_not_fetched_in_part() {
    let setup = setup();
    let (file, _) = weights(&[("a", vec![3001, 11])]);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &file)];
    setup.server.publish("org/toy", "main", &files);
    let whole = setup.fetch("org/toy").unwrap();
    setup.server.take_log();
    assert_eq!(setup.headers("org/toy").unwrap(), whole);
    assert_eq!(served(&setup.server.take_log()), 0);
}
