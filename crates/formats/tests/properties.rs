//! Random tensor sets survive writing and reading, and no damage makes a reader panic.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::path::Path;

use larql_formats::gguf::{Array, GgufFile, GgufWriter, Metadata, StringArray, Value};
use larql_formats::safetensors::{SafetensorsFile, Writer};
use larql_formats::{Bytes, Dtype, TensorInfo};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use support::gguf::noise;

mod support;

/// Names mapped to type, shape of blocks, and a place in a stream of noise.
type Tensors = BTreeMap<String, (Dtype, Vec<u64>, usize)>;

fn tensors(dtypes: Vec<Dtype>, rank_max: usize) -> impl Strategy<Value = Tensors> {
    let shape = vec(0u64..5, 0..=rank_max);
    let tensor = (proptest::sample::select(dtypes), shape, 0usize..1000).prop_map(
        |(dtype, mut shape, seed)| {
            match shape.last_mut() {
                Some(last) => *last *= dtype.block_len(),
                None if dtype.block_len() > 1 => shape.push(dtype.block_len()),
                None => {}
            }
            (dtype, shape, seed)
        },
    );
    btree_map("[ -~\u{e9}]{0,40}", tensor, 0..8)
}

fn data(tensor: &TensorInfo, seed: usize) -> Vec<u8> {
    noise(seed + tensor.n_bytes as usize).split_off(seed)
}

fn infos(tensors: &Tensors) -> Vec<(TensorInfo, Vec<u8>)> {
    tensors
        .iter()
        .map(|(name, (dtype, shape, seed))| {
            let info = TensorInfo::new(name, *dtype, shape.clone()).unwrap();
            let data = data(&info, *seed);
            (info, data)
        })
        .collect()
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        (-1e30f32..1e30).prop_map(Value::F32),
        (-1e300f64..1e300).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        "\\PC{0,20}".prop_map(Value::String),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(-1e30f32..1e30, 0..9).prop_map(Array::F32),
        vec(-1e300f64..1e300, 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec("\\PC{0,9}", 0..9)
            .prop_map(|strings| Array::Strings(strings.iter().collect::<StringArray>())),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| vec(inner, 0..3).prop_map(Array::Nested))
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let value = prop_oneof![scalar(), array().prop_map(Value::Array)];
    btree_map("[a-z.]{1,30}", value, 0..6).prop_map(|keys| {
        let mut metadata = Metadata::new();
        for (key, value) in keys {
            metadata.insert(key, value).unwrap();
        }
        metadata
    })
}

/// How a file is damaged: bytes changed, a range removed, its own bytes pasted, the tail cut.
#[derive(Debug, Clone)]
enum Damage {
    Set(Index, u8),
    Flip(Index, u8),
    Max(Index),
    Remove(Index, usize),
    Paste(Index, Index, usize),
    Cut(Index),
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let at = any::<Index>;
    let one = prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Damage::Set(i, b)),
        (at(), 0u8..8).prop_map(|(i, bit)| Damage::Flip(i, bit)),
        at().prop_map(Damage::Max),
        (at(), 1usize..20).prop_map(|(i, n)| Damage::Remove(i, n)),
        (at(), at(), 1usize..40).prop_map(|(i, j, n)| Damage::Paste(i, j, n)),
        at().prop_map(Damage::Cut),
    ];
    vec(one, 1..6)
}

fn apply(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for one in damage {
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        match one {
            Damage::Set(i, byte) => bytes[i.index(len)] = *byte,
            Damage::Flip(i, bit) => bytes[i.index(len)] ^= 1 << bit,
            Damage::Max(i) => {
                let start = i.index(len);
                bytes[start..len.min(start + 8)].fill(0xff);
            }
            Damage::Remove(i, n) => {
                let start = i.index(len);
                bytes.drain(start..len.min(start + n));
            }
            Damage::Paste(i, j, n) => {
                let from = j.index(len);
                let piece = bytes[from..len.min(from + n)].to_vec();
                let at = i.index(len);
                bytes.splice(at..at, piece);
            }
            Damage::Cut(i) => bytes.truncate(i.index(len)),
        }
    }
    bytes
}

fn gguf_types() -> Vec<Dtype> {
    Dtype::ALL
        .into_iter()
        .filter(|d| d.to_ggml().is_some())
        .collect()
}

fn safetensors_types() -> Vec<Dtype> {
    Dtype::ALL
        .into_iter()
        .filter(|d| d.to_safetensors().is_some())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn gguf_reads_what_it_wrote(
        tensors in tensors(gguf_types(), 4),
        metadata in metadata(),
        log_alignment in 3u32..9,
        chunk in 1usize..50,
    ) {
        let infos = infos(&tensors);
        let mut writer = GgufWriter::new(metadata.clone(), 1 << log_alignment).unwrap();
        for (info, _) in &infos {
            writer.declare(info.clone()).unwrap();
        }
        let mut stream = writer.begin(Vec::new()).unwrap();
        for (info, data) in &infos {
            stream
                .write_tensor(&info.name, |sink| data.chunks(chunk).try_for_each(|c| sink.put(c)))
                .unwrap();
        }
        let bytes = stream.finish().unwrap();
        let file = GgufFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")).unwrap();
        prop_assert_eq!(file.alignment(), 1 << log_alignment);
        prop_assert_eq!(file.tensors().len(), infos.len());
        for ((info, data), found) in infos.iter().zip(file.tensors()) {
            prop_assert_eq!(info, found);
            prop_assert_eq!(&*file.data(&info.name).unwrap(), &data[..]);
        }
        let mut found = file.metadata().clone();
        if log_alignment != 5 {
            found.remove("general.alignment").unwrap();
        }
        prop_assert_eq!(found, metadata);
    }

    #[test]
    fn safetensors_reads_what_it_wrote(
        tensors in tensors(safetensors_types(), 6),
        metadata in btree_map("\\PC{0,9}", "\\PC{0,9}", 0..3),
        chunk in 1usize..50,
    ) {
        let infos = infos(&tensors);
        let mut writer = Writer::new(&metadata).unwrap();
        for (info, _) in &infos {
            writer.declare(info.clone()).unwrap();
        }
        let mut stream = writer.begin(Vec::new()).unwrap();
        for (info, data) in &infos {
            stream
                .write_tensor(&info.name, |sink| data.chunks(chunk).try_for_each(|c| sink.put(c)))
                .unwrap();
        }
        let bytes = stream.finish().unwrap();
        let file = SafetensorsFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")).unwrap();
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors().len(), infos.len());
        for (info, data) in &infos {
            prop_assert_eq!(file.tensor(&info.name), Some(info));
            prop_assert_eq!(&*file.data(&info.name).unwrap(), &data[..]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn a_damaged_gguf_never_panics(damage in damage()) {
        let bytes = apply(support::gguf::base().build(), &damage);
        if let Ok(file) = GgufFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")) {
            for tensor in file.tensors() {
                prop_assert_eq!(file.data(&tensor.name).unwrap().len() as u64, tensor.n_bytes);
                prop_assert_eq!(tensor.dtype.n_bytes(&tensor.shape), Some(tensor.n_bytes));
            }
        }
    }

    #[test]
    fn a_damaged_safetensors_never_panics(damage in damage()) {
        let bytes = apply(support::safetensors::base(), &damage);
        if let Ok(file) = SafetensorsFile::from_bytes(Bytes::from_vec(bytes), Path::new("x")) {
            for tensor in file.tensors() {
                prop_assert_eq!(file.data(&tensor.name).unwrap().len() as u64, tensor.n_bytes);
                prop_assert_eq!(tensor.dtype.n_bytes(&tensor.shape), Some(tensor.n_bytes));
            }
        }
    }
}
