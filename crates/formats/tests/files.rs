//! Files on disk: what the readers see of hand-made files, what the writers produce, shards,
//! large offsets, and writers that are used wrongly.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use larql_formats::gguf::{Array, GgufFile, GgufWriter, Metadata, Value};
use larql_formats::safetensors::{SafetensorsFile, Writer};
use larql_formats::{Bytes, Dtype, Error, TensorInfo, publish};
use support::gguf::{U32, key, noise, tensor};

mod support;

fn info(name: &str, dtype: Dtype, shape: &[u64]) -> TensorInfo {
    TensorInfo::new(name, dtype, shape.to_vec()).unwrap()
}

#[test]
fn a_hand_made_gguf_is_read_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b\u{e9}.gguf");
    fs::write(&path, support::gguf::base().build()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(
        file.tensors(),
        [
            info("blk.0.w", Dtype::F32, &[2, 3]),
            info("blk.0.q", Dtype::Q8_0, &[5, 96]),
            info("experts", Dtype::F16, &[2, 3, 5]),
        ]
    );
    assert_eq!(&*file.data("blk.0.q").unwrap(), &noise(604)[32..542]);
    assert_eq!(&*file.data("experts").unwrap(), &noise(604)[544..]);
    let m = file.metadata();
    let keys: Vec<_> = m.iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        [
            "general.architecture",
            "toy.context_length",
            "toy.eps",
            "toy.flag",
            "toy.tokens",
            "toy.nested"
        ]
    );
    assert_eq!(m.str("general.architecture").unwrap(), Some("toy"));
    assert_eq!(m.u64("toy.context_length").unwrap(), Some(96));
    assert_eq!(m.f32("toy.eps").unwrap(), Some(1e-6));
    assert_eq!(m.bool("toy.flag").unwrap(), Some(true));
    let tokens = m.strings("toy.tokens").unwrap().unwrap();
    assert_eq!(
        tokens.iter().collect::<Vec<_>>(),
        ["a", "", "\u{e9}\u{4e2d}"]
    );
    let nested = Array::Nested(vec![Array::U32(vec![7]), Array::Bool(vec![true, false])]);
    assert_eq!(m.get("toy.nested"), Some(&Value::Array(nested)));
    let error = m.u32("toy.tokens").unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{}: key `toy.tokens` is an array of strings, expected u32",
            path.display()
        )
    );
    let error = file.data("blk.1.w").unwrap_err().to_string();
    assert_eq!(error, format!("{}: no tensor `blk.1.w`", path.display()));
}

#[test]
fn data_outlive_the_file_object() {
    let bytes = Bytes::from_vec(support::gguf::base().build());
    let data = {
        let file = GgufFile::from_bytes(bytes, Path::new("x")).unwrap();
        file.data("blk.0.w").unwrap()
    };
    assert_eq!(&*data, &noise(604)[..24]);
}

#[test]
fn the_alignment_of_the_file_places_its_data() {
    for alignment in [8u32, 64, 4096] {
        let mut raw = support::gguf::base();
        raw.keys
            .push(key("general.alignment", U32, &alignment.to_le_bytes()));
        raw.alignment = alignment as usize;
        raw.tensors = vec![
            tensor("w", &[3], 24, 0),
            tensor("v", &[5], 24, u64::from(alignment)),
        ];
        raw.data = noise(alignment as usize + 5);
        let file = GgufFile::from_bytes(Bytes::from_vec(raw.build()), Path::new("x")).unwrap();
        assert_eq!(file.alignment(), alignment);
        assert_eq!(&*file.data("w").unwrap(), &raw.data[..3]);
        assert_eq!(&*file.data("v").unwrap(), &raw.data[alignment as usize..]);
    }
}

#[test]
fn a_gguf_is_written_byte_for_byte_as_by_hand() {
    let raw = support::gguf::base();
    let bytes = raw.build();
    let file = GgufFile::from_bytes(Bytes::from_vec(bytes.clone()), Path::new("x")).unwrap();
    let mut writer = GgufWriter::new(file.metadata().clone(), file.alignment()).unwrap();
    for tensor in file.tensors() {
        writer.declare(tensor.clone()).unwrap();
    }
    let mut stream = writer.begin(Vec::new()).unwrap();
    while let Some(tensor) = stream.next_tensor() {
        let name = tensor.name.clone();
        let data = file.data(&name).unwrap();
        stream
            .write_tensor(&name, |sink| data.chunks(7).try_for_each(|c| sink.put(c)))
            .unwrap();
    }
    let mut written = stream.finish().unwrap();
    // The hand-made file has noise between its tensors and no padding after the last.
    let mut expected = bytes;
    expected[448 + 24..448 + 32].fill(0);
    expected[448 + 542..448 + 544].fill(0);
    assert_eq!(written.len(), 448 + 608);
    written.truncate(expected.len());
    assert!(written == expected);
}

#[test]
fn another_alignment_is_stated_and_a_contradiction_refused() {
    let mut writer = GgufWriter::new(Metadata::new(), 64).unwrap();
    writer.declare(info("a", Dtype::U16, &[3])).unwrap_err();
    writer.declare(info("a", Dtype::I16, &[3])).unwrap();
    writer.declare(info("b", Dtype::I16, &[2])).unwrap();
    let mut stream = writer.begin(Vec::new()).unwrap();
    stream.write_tensor_bytes("a", &[1; 6]).unwrap();
    stream.write_tensor_bytes("b", &[2; 4]).unwrap();
    let bytes = stream.finish().unwrap();
    assert_eq!(bytes.len() % 64, 0);
    let file = GgufFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")).unwrap();
    assert_eq!(file.metadata().u32("general.alignment").unwrap(), Some(64));
    assert_eq!(&*file.data("b").unwrap(), [2; 4]);
    let error = GgufWriter::new(file.metadata().clone(), 32).unwrap_err();
    assert_eq!(
        error.to_string(),
        "(output): key `general.alignment` is 64, which is no alignment of this writer"
    );
    let error = GgufWriter::new(Metadata::new(), 48).unwrap_err();
    assert_eq!(
        error.to_string(),
        "(output): alignment 48 is not a power of two"
    );
}

#[test]
fn writers_hold_their_callers_to_the_header() {
    let started = || {
        let mut writer = GgufWriter::new(Metadata::new(), 32).unwrap();
        writer.declare(info("a", Dtype::F32, &[2])).unwrap();
        writer.declare(info("b", Dtype::F32, &[3])).unwrap();
        writer.begin(Vec::new()).unwrap()
    };
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();

    let mut stream = started();
    assert_eq!(
        message(stream.write_tensor_bytes("b", &[0; 12])),
        "tensor `b` written out of order: `a` is due"
    );
    assert_eq!(
        message(stream.write_tensor_bytes("a", &[0; 9])),
        "tensor `a`: 8 bytes declared, 9 written"
    );
    let mut stream = started();
    assert_eq!(
        message(stream.write_tensor("a", |sink| sink.put(&[0; 3]))),
        "tensor `a`: 8 bytes declared, 3 written"
    );
    let mut stream = started();
    stream.write_tensor_bytes("a", &[0; 8]).unwrap();
    assert_eq!(
        message(stream.finish().map(drop)),
        "1 declared tensors were not written, the first is `b`"
    );
    let mut stream = started();
    stream.write_tensor_bytes("a", &[0; 8]).unwrap();
    stream.write_tensor_bytes("b", &[0; 12]).unwrap();
    assert_eq!(
        message(stream.write_tensor_bytes("b", &[0; 12])),
        "tensor `b` written out of order: none is due"
    );
}

#[test]
fn writers_refuse_what_a_container_cannot_hold() {
    let mut gguf = GgufWriter::new(Metadata::new(), 32).unwrap();
    let mut safetensors = Writer::new(&BTreeMap::new()).unwrap();
    let long = "n".repeat(65_536);
    gguf.declare(info("a", Dtype::F32, &[2])).unwrap();
    safetensors.declare(info("a", Dtype::F32, &[2])).unwrap();
    let mut lie = info("lie", Dtype::F32, &[2, 3]);
    lie.n_bytes = 12;
    let cases = [
        (
            gguf.declare(info("f8", Dtype::F8E4M3, &[2])),
            "tensor `f8`: GGUF cannot hold type F8_E4M3",
        ),
        (
            gguf.declare(info("r", Dtype::F32, &[1; 5])),
            "(memory): tensor `r` has 5 dimensions, at most 4 are supported",
        ),
        (
            gguf.declare(info("a", Dtype::F32, &[2])),
            "(memory): tensor `a` appears twice",
        ),
        (
            gguf.declare(info(&long, Dtype::F32, &[2])),
            "(output): the length of a tensor name is 65536, the limit is 65535",
        ),
        (
            gguf.declare(lie.clone()),
            "tensor `lie` of type F32 and shape [2, 3] declared with 12 bytes",
        ),
        (
            safetensors.declare(info("q", Dtype::Q4K, &[256])),
            "tensor `q`: safetensors cannot hold type Q4_K",
        ),
        (
            safetensors.declare(info("a", Dtype::F32, &[2])),
            "(memory): tensor `a` appears twice",
        ),
        (
            safetensors.declare(info("__metadata__", Dtype::F32, &[2])),
            "(memory): tensor `__metadata__` appears twice",
        ),
        (
            safetensors.declare(lie),
            "tensor `lie` of type F32 and shape [2, 3] declared with 12 bytes",
        ),
        (
            TensorInfo::new("t", Dtype::Q6K, vec![3, 128]).map(drop),
            "(memory): tensor `t` of type Q6_K and shape [3, 128]: rows are not whole blocks of 256 values",
        ),
    ];
    for (result, expected) in cases {
        assert_eq!(result.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_safetensors_header_is_written_as_the_reference_does() {
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = Writer::new(&metadata).unwrap();
    writer.declare(info("w", Dtype::F32, &[2, 3])).unwrap();
    writer.declare(info("a\"b", Dtype::Bf16, &[])).unwrap();
    let mut stream = writer.begin(Vec::new()).unwrap();
    stream.write_tensor_bytes("w", &noise(24)).unwrap();
    stream.write_tensor_bytes("a\"b", &[1, 2]).unwrap();
    let bytes = stream.finish().unwrap();
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#""a\"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}"#
    );
    let padded = header.len().next_multiple_of(8);
    assert_ne!(padded, header.len(), "the sample must need padding");
    assert_eq!(bytes[..8], (padded as u64).to_le_bytes());
    assert_eq!(&bytes[8..8 + header.len()], header.as_bytes());
    assert!(
        bytes[8 + header.len()..8 + padded]
            .iter()
            .all(|b| *b == b' ')
    );
    assert_eq!(bytes.len(), 8 + padded + 26);
    let file = SafetensorsFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")).unwrap();
    assert_eq!(file.metadata(), &metadata);
    assert_eq!(&*file.data("w").unwrap(), noise(24));
    assert_eq!(file.tensor("a\"b").unwrap().shape, [0u64; 0]);
}

#[test]
fn a_safetensors_header_that_no_reader_accepts_is_not_written() {
    let mut writer = Writer::new(&BTreeMap::new()).unwrap();
    let long = "n".repeat(100_000_000);
    let error = writer.declare(info(&long, Dtype::U8, &[0])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "(output): the header length is 100000048, the limit is 100000000"
    );
}

/// Three shards of one tensor each, and one without values.
fn write_shards(dir: &Path, count: u16, n_tensors: u32) -> Vec<PathBuf> {
    (0..3u16)
        .map(|no| {
            let mut raw = support::gguf::base();
            if no > 0 {
                raw.keys.clear();
            }
            raw.keys.push(key("split.no", 2, &no.to_le_bytes()));
            raw.keys.push(key("split.count", 2, &count.to_le_bytes()));
            let total = n_tensors.to_le_bytes();
            raw.keys.push(key("split.tensors.count", 5, &total));
            raw.tensors = vec![
                tensor(format!("empty{no}"), &[0], 24, 0),
                tensor(format!("w{no}"), &[u64::from(no) + 3], 24, 0),
            ];
            raw.data.truncate(usize::from(no) + 3);
            let path = dir.join(format!("toy-{:05}-of-00003.gguf", no + 1));
            fs::write(&path, raw.build()).unwrap();
            path
        })
        .collect()
}

#[test]
fn any_shard_opens_the_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_shards(dir.path(), 3, 6);
    for path in &paths {
        let file = GgufFile::open(path).unwrap();
        assert_eq!(file.paths(), paths);
        let names: Vec<_> = file.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["empty0", "w0", "empty1", "w1", "empty2", "w2"]);
        assert_eq!(
            file.metadata().str("general.architecture").unwrap(),
            Some("toy")
        );
        assert_eq!(&*file.data("w2").unwrap(), &noise(604)[..5]);
    }
}

#[test]
fn a_model_with_a_wrong_shard_is_not_a_smaller_model() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &Path, text: &str| format!("{}: {text}", path.display());
    let open = |path: &Path| GgufFile::open(path).unwrap_err().to_string();

    let paths = write_shards(dir.path(), 3, 7);
    let expected = "key `split.tensors.count` is 7, expected 6";
    assert_eq!(open(&paths[1]), at(&paths[0], expected));

    let paths = write_shards(dir.path(), 2, 6);
    let expected = "key `split.count` is 2, expected 3";
    assert_eq!(open(&paths[1]), at(&paths[1], expected));

    let paths = write_shards(dir.path(), 3, 6);
    fs::copy(&paths[0], &paths[2]).unwrap();
    let expected = "key `split.no` is 0, expected 2";
    assert_eq!(open(&paths[0]), at(&paths[2], expected));

    fs::remove_file(&paths[2]).unwrap();
    assert_eq!(open(&paths[0]), at(&paths[2], "shard 3 of 3 is missing"));

    let renamed = dir.path().join("toy.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    let expected = "one of 3 shards, but its name does not end in -NNNNN-of-00003.gguf";
    assert_eq!(open(&renamed), at(&renamed, expected));

    fs::write(&paths[0], support::gguf::base().build()).unwrap();
    let expected = "key `split.count` is absent, expected 3";
    assert_eq!(open(&paths[0]), at(&paths[0], expected));
}

/// A sparse file: only the two ends take room on the disk.
#[test]
fn a_tensor_beyond_four_gigabytes_is_found() {
    let far = 9u64 << 29;
    let mut raw = support::gguf::base();
    raw.tensors = vec![tensor("near", &[far], 24, 0), tensor("far", &[5], 24, far)];
    raw.data = noise(24);
    let header = raw.build();
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut file = File::create(&path).unwrap();
    file.write_all(&header).unwrap();
    let data_start = header.len() as u64 - 24;
    file.seek(SeekFrom::Start(data_start + far)).unwrap();
    file.write_all(b"there").unwrap();
    drop(file);
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(&*file.data("far").unwrap(), b"there");
    assert_eq!(file.data("near").unwrap()[..24], noise(24));
}

#[test]
fn a_conversion_that_fails_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let error = publish(&path, |out| {
        let mut writer = GgufWriter::new(Metadata::new(), 32)?;
        writer.declare(info("w", Dtype::F32, &[2, 3]))?;
        let mut stream = writer.begin(out)?;
        stream.write_tensor("w", |sink| sink.put(&[0; 20]))?;
        stream.finish().map(drop)
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor `w`: 24 bytes declared, 20 written"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
