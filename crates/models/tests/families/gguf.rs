//! Fixtures become GGUF files with the tensors and keys of llama.cpp's own converter, and come back as they were.

use std::collections::BTreeMap;
use std::fs;

use larql_formats::gguf::{Array, GgufFile, Value};
use larql_models::spec::{Ffn, Mixer, ModelSpec};
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::{Checkpoint, TensorRole};
use serde_json::json;

use super::{NAMES, edited, fixture};

/// What the converter makes of the same fixtures: see its first lines.
const CONVERTER: &str = include_str!("converter.txt");

/// Keys that the converter writes and this crate does not, or with another value.
const OTHERWISE: &[(&str, &str, &str)] = &[
    ("cohere2", "rope.scaling.type", "says that there is none"),
    ("gpt-oss", "rope.scaling.yarn_beta_fast", "the default"),
    ("gpt-oss", "rope.scaling.yarn_beta_slow", "the default"),
    (
        "gpt-oss-mxfp4",
        "rope.scaling.yarn_beta_fast",
        "the default",
    ),
    (
        "gpt-oss-mxfp4",
        "rope.scaling.yarn_beta_slow",
        "the default",
    ),
    (
        "phi",
        "feed_forward_length",
        "four times the model's width, wrong for this fixture",
    ),
    (
        "phi3",
        "attention.sliding_window",
        "says that there is none",
    ),
    (
        "phi3",
        "rope.scaling.original_context_length",
        "of a scaling that is not there",
    ),
    (
        "qwen2-moe",
        "feed_forward_length",
        "of a dense layer, of which there is none",
    ),
    ("stablelm", "use_parallel_residual", "the tensors show it"),
];

pub(super) fn plan(checkpoint: &Checkpoint) -> GgufPlan {
    GgufPlan::new(checkpoint, GgufContent::Whole).unwrap()
}

/// The checkpoint as a file, and what opening the file gives.
pub(super) fn through_a_file(checkpoint: &Checkpoint) -> (GgufFile, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let out = fs::File::create(&path).unwrap();
    plan(checkpoint).write(checkpoint, out).unwrap();
    (
        GgufFile::open(&path).unwrap(),
        Checkpoint::open(&path).unwrap(),
    )
}

#[test]
fn every_fixture_comes_back_from_its_file_alone() {
    for name in NAMES {
        let source = fixture(name);
        assert_eq!(plan(&source).differences(), [""; 0], "{name}");
        let (_, back) = through_a_file(&source);
        assert_eq!(back.spec(), source.spec(), "{name}");
        assert_eq!(back.roles(), source.roles(), "{name}");
        for role in source.roles() {
            let (ours, theirs) = (back.tensor(role).unwrap(), source.tensor(role).unwrap());
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(ours.to_f32()), bits(theirs.to_f32()), "{name}: {role}");
        }
    }
}

/// FNV-1a, as in the recorded file.
fn hash(bytes: &[u8], start: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(start, step)
}

/// A file's tensors in the recorded form, one line for a tensor of all layers.
pub(super) fn lines(file: &GgufFile) -> Vec<String> {
    let mut groups: BTreeMap<String, Vec<(u32, String)>> = BTreeMap::new();
    for info in file.tensors() {
        let in_layer = info
            .name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        let (group, layer) = match in_layer {
            Some((layer, rest)) => (format!("blk.N.{rest}"), layer.parse().unwrap()),
            None => (info.name.clone(), 0),
        };
        groups
            .entry(group)
            .or_default()
            .push((layer, info.name.clone()));
    }
    let line = |(group, mut members): (String, Vec<(u32, String)>)| {
        members.sort();
        let start = 0xcbf2_9ce4_8422_2325;
        let digest = members.iter().fold(start, |digest, (_, name)| {
            hash(&file.data(name).unwrap(), digest)
        });
        let info = file.tensor(&members[0].1).unwrap();
        let shape: Vec<String> = info.shape.iter().map(u64::to_string).collect();
        let layers: Vec<String> = members.iter().map(|(layer, _)| layer.to_string()).collect();
        let layers = match group.starts_with("blk.") {
            true => layers.join(","),
            false => "-".to_owned(),
        };
        let dtype = info.dtype.name();
        format!("{group} {dtype} {} {layers} {digest:016x}", shape.join("x"))
    };
    groups.into_iter().map(line).collect()
}

/// Whether a value is the recorded one.
fn is(value: &Value, recorded: &str) -> bool {
    match value {
        Value::F32(x) => recorded.parse().is_ok_and(|y: f64| f64::from(*x) == y),
        Value::U32(x) => recorded.parse() == Ok(*x),
        Value::String(x) => x == recorded,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_hold_what_the_stock_converter_writes() {
    let mut seen = 0;
    for section in CONVERTER.split("= ").skip(1) {
        let (name, rest) = section.split_once('\n').unwrap();
        let (file, _) = through_a_file(&fixture(name));
        let (keys, tensors): (Vec<&str>, Vec<&str>) =
            rest.lines().partition(|line| line.starts_with("@ "));
        assert_eq!(lines(&file), tensors, "{name}");
        let metadata = file.metadata();
        let arch = metadata.str("general.architecture").unwrap().unwrap();
        for line in keys {
            let (key, expected) = line[2..].split_once(' ').unwrap();
            let ours = metadata.get(&format!("{arch}.{key}"));
            let same = ours.is_some_and(|ours| is(ours, expected));
            let is_other = OTHERWISE.iter().any(|(n, k, _)| (*n, *k) == (name, key));
            assert_eq!(same, !is_other, "{name}: {key} is {ours:?}");
        }
        seen += 1;
    }
    // All but Qwen 3 with a dense layer, which the converter refuses.
    assert_eq!(seen, NAMES.len() - 1);
}

#[test]
fn keys_appear_only_where_a_reader_would_be_wrong() {
    let keys = |name: &str| {
        let plan = plan(&fixture(name));
        let arch = plan
            .metadata()
            .str("general.architecture")
            .unwrap()
            .unwrap();
        let optional = [
            "attention.scale",
            "attention.sliding_window_pattern",
            "embedding_scale",
            "expert_weights_norm",
            "expert_weights_scale",
            "expert_gating_func",
            "logit_scale",
            "residual_scale",
            "rope.freq_base_swa",
        ];
        let said = |key: &&str| plan.metadata().get(&format!("{arch}.{key}")).is_some();
        optional.into_iter().filter(said).collect::<Vec<_>>()
    };
    for name in NAMES {
        let expected: &[&str] = match *name {
            "cohere2" => &["logit_scale"],
            "granite" | "granitemoe" => &[
                "attention.scale",
                "embedding_scale",
                "logit_scale",
                "residual_scale",
            ],
            _ => &[],
        };
        assert_eq!(keys(name), expected, "{name}");
    }
    let scale = |name: &str, key: &str| plan(&fixture(name)).metadata().get(key).cloned();
    // One divides the logits by what the other multiplies them with.
    assert_eq!(
        scale("granite", "granite.logit_scale"),
        Some(Value::F32(3.0))
    );
    assert_eq!(
        scale("cohere2", "cohere2.logit_scale"),
        Some(Value::F32(0.25))
    );
}

/// Configurations whose facts the architecture can say, but a plain file would not.
#[test]
fn rarer_facts_are_said_too() {
    let source = |name: &str, key: &str, value: serde_json::Value| {
        let dir = edited(name, |cfg| drop(cfg.insert(key.to_owned(), value)));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let (file, back) = through_a_file(&checkpoint);
        assert_eq!(plan(&checkpoint).differences(), [""; 0], "{name}");
        assert_eq!(back.spec(), checkpoint.spec(), "{name}");
        file
    };
    let types = json!([
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention"
    ]);
    let file = source("gpt-oss", "layer_types", types);
    let pattern = file
        .metadata()
        .get("gpt-oss.attention.sliding_window_pattern");
    let flags = Array::Bool(vec![true, false, false, true]);
    assert_eq!(pattern, Some(&Value::Array(flags)));
    let file = source("olmoe", "norm_topk_prob", json!(true));
    let norm = file.metadata().get("olmoe.expert_weights_norm");
    assert_eq!(norm, Some(&Value::Bool(true)));
    let file = source("olmoe", "clip_qkv", json!(0.75));
    let clip = file.metadata().get("olmoe.attention.clamp_kqv");
    assert_eq!(clip, Some(&Value::F32(0.75)));
    source("mixtral", "sliding_window", json!(9));
    source("phi3", "sliding_window", json!(9));
}

#[test]
fn long_rope_has_two_tensors() {
    let list = |slope: f64| {
        (0..12)
            .map(|i| 1.0 + slope * f64::from(i))
            .collect::<Vec<f64>>()
    };
    let params = json!({
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": list(0.125), "long_factor": list(0.5),
    });
    let dir = edited("phi3", |cfg| {
        cfg["rope_parameters"] = params;
        cfg["original_max_position_embeddings"] = json!(64);
    });
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (file, back) = through_a_file(&checkpoint);
    assert_eq!(plan(&checkpoint).differences(), [""; 0]);
    let floats = |name: &str| -> Vec<f32> {
        let bytes = file.data(name).unwrap();
        let words = bytes.chunks_exact(4);
        words
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    };
    assert_eq!(floats("rope_factors_long.weight")[3], 2.5);
    assert_eq!(floats("rope_factors_short.weight")[3], 1.375);
    let frequencies = |spec: &ModelSpec, length: usize| match &spec.layers[1].mixer {
        Mixer::Attention(attention) => attention.rope.as_ref().unwrap().frequencies(length),
        other => panic!("{other:?}"),
    };
    for length in [64, 65] {
        let (ours, theirs) = (
            frequencies(back.spec(), length),
            frequencies(checkpoint.spec(), length),
        );
        assert_eq!(ours, theirs, "{length}");
    }
    assert_ne!(frequencies(back.spec(), 64), frequencies(back.spec(), 65));
}

/// Facts that GGUF has no word for are told, and never silently lost.
#[test]
fn what_a_file_cannot_say_is_listed() {
    let told = |name: &str, key: &str, value: serde_json::Value| {
        let dir = edited(name, |cfg| drop(cfg.insert(key.to_owned(), value)));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        plan(&checkpoint).differences().to_vec()
    };
    let says = |what: &str| format!("the weights file alone would be read differently: {what}");
    let by_layer = told("gpt2", "scale_attn_by_inverse_layer_idx", json!(true));
    assert_eq!(by_layer.len(), 3);
    assert!(
        by_layer[0].starts_with(&says("layers[1].mixer.scale is 0.1")),
        "{by_layer:?}"
    );
    let gate = told("gpt-oss", "swiglu_alpha", json!(2.0));
    assert_eq!(gate.len(), 1);
    assert!(
        gate[0].starts_with(&says("layers[0-3].ffn.expert.activation.alpha is 2 ")),
        "{gate:?}"
    );
    let turned = told("smollm3", "no_rope_layers", json!([1, 1, 1, 1]));
    assert_eq!(turned.len(), 1);
    assert!(
        turned[0].starts_with(&says("layers[3].mixer.rope is {")),
        "{turned:?}"
    );
}

/// Separate exponents and alternating rows become ggml blocks of one expert's gate.
#[test]
fn mxfp4_experts_are_stored_as_blocks() {
    let source = fixture("gpt-oss-mxfp4");
    let (file, back) = through_a_file(&source);
    let info = file.tensor("blk.1.ffn_gate_exps.weight").unwrap();
    assert_eq!(
        (info.dtype.name(), info.shape.as_slice()),
        ("MXFP4", [5, 96, 64].as_slice())
    );
    assert_eq!(info.n_bytes, 5 * 96 * 2 * 17);
    assert_eq!(file.metadata().u32("general.file_type").unwrap(), Some(38));
    let Ffn::Moe(moe) = &back.spec().layers[1].ffn else {
        panic!("{:?}", back.spec().layers[1].ffn)
    };
    assert_eq!(moe.n_experts, 5);
    let gate = TensorRole::Expert(1, 4, larql_models::roles::ExpertTensor::Gate);
    assert_eq!(
        back.tensor(gate).unwrap().bytes[..],
        source.tensor(gate).unwrap().bytes[..]
    );
}
