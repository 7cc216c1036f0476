//! Fixtures become GGUF files that stock tools read, and come back as they were.

use larql_formats::gguf::{Array, GgufFile, GgufWriter, Value as GgufValue};
use larql_formats::safetensors::SafetensorsFile;
use larql_formats::{Dtype, TensorInfo};
use larql_models::spec::{RopeScaling, RouterSelect};
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::{Checkpoint, LayerTensor, TensorRole};
use larql_testkit::parity_fixture;
use serde_json::json;

use super::{NAMES, edited, fixture, mla, moe, same_values, set};
use crate::gguf::{lines, plan, through_a_file};

/// What the converter makes of the same fixtures: see its first lines.
const CONVERTER: &str = include_str!("../converter_mixers.txt");

/// Tensors that this crate writes otherwise than the converter.
const OTHERWISE: &[(&str, &str)] = &[
    // In one piece, as older files have it, which needs no copy to be read.
    ("deepseek-v2", "blk.N.attn_k_b.weight"),
    ("deepseek-v2", "blk.N.attn_kv_b.weight"),
    ("deepseek-v2", "blk.N.attn_v_b.weight"),
    ("deepseek-v3", "blk.N.attn_k_b.weight"),
    ("deepseek-v3", "blk.N.attn_kv_b.weight"),
    ("deepseek-v3", "blk.N.attn_v_b.weight"),
    // Without a dimension of one.
    ("kimi-linear", "blk.N.ssm_conv1d_k.weight"),
    ("kimi-linear", "blk.N.ssm_conv1d_q.weight"),
    ("kimi-linear", "blk.N.ssm_conv1d_v.weight"),
    // A last digit of the exponential.
    ("kimi-linear", "blk.N.ssm_a"),
];

/// Copies that stock tools want of layers whose keys and values come from another one.
const LENT: [&str; 6] = [
    "blk.2.attn_k.weight",
    "blk.2.attn_v.weight",
    "blk.2.attn_k_norm.weight",
    "blk.3.attn_k.weight",
    "blk.3.attn_v.weight",
    "blk.3.attn_k_norm.weight",
];

#[test]
fn every_fixture_comes_back_from_its_file_alone() {
    for name in NAMES {
        comes_back(&fixture(name), name);
    }
}

/// Plans a file that says everything, and reads it again. Returns it.
fn comes_back(source: &Checkpoint, name: &str) -> GgufFile {
    assert_eq!(plan(source).differences(), [""; 0], "{name}");
    let (file, back) = through_a_file(source);
    assert_eq!(back.spec(), source.spec(), "{name}");
    let ignored: Vec<&str> = back.ignored().iter().map(|i| i.name.as_str()).collect();
    let expected: &[&str] = match name {
        "gemma3n" => &LENT,
        name if name.starts_with("gemma4") => &["rope_freqs.weight"],
        _ => &[],
    };
    assert_eq!(ignored, expected, "{name}");
    same_values(source, &back, name);
    file
}

#[test]
fn files_hold_what_the_stock_converter_writes() {
    let mut seen = 0;
    for section in CONVERTER.split("= ").skip(1) {
        let (name, rest) = section.split_once('\n').unwrap();
        let (file, _) = through_a_file(&fixture(name));
        let is_same = |line: &&str| {
            let tensor = line.split(' ').next().unwrap();
            !OTHERWISE.contains(&(name, tensor))
        };
        let ours = lines(&file);
        let ours: Vec<&str> = ours.iter().map(String::as_str).filter(is_same).collect();
        let theirs: Vec<&str> = rest.lines().filter(is_same).collect();
        assert_eq!(ours, theirs, "{name}");
        seen += 1;
    }
    // All but Gemma 3n, whose converter takes only the published sizes.
    assert_eq!(seen, NAMES.len() - 1);
}

/// What other programs get has the latents that the converter writes, and says how wide they are in a cache.
#[test]
fn files_for_others_have_latents_in_the_form_that_is_cached() {
    for name in ["deepseek-v2", "deepseek-v3"] {
        let (source, dir) = (fixture(name), tempfile::tempdir().unwrap());
        let path = dir.path().join("model.gguf");
        let plan = GgufPlan::new(&source, GgufContent::Portable).unwrap();
        assert_eq!(plan.peer_notes(), [""; 0], "{name}");
        let out = std::fs::File::create(&path).unwrap();
        plan.write(&source, out).unwrap();
        let mut sections = CONVERTER.split("= ");
        let theirs = sections.find_map(|section| section.strip_prefix(&format!("{name}\n")));
        let theirs: Vec<&str> = theirs.unwrap().lines().collect();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(lines(&file), theirs, "{name}");
        for (key, width) in [
            ("head_count_kv", 1),
            ("key_length", 40),
            ("value_length", 32),
            ("key_length_mla", 24),
            ("value_length_mla", 20),
        ] {
            let stated = file.metadata().u32(&format!("deepseek2.attention.{key}"));
            assert_eq!(stated.unwrap(), Some(width), "{name}: {key}");
        }
        let back = Checkpoint::open(&path).unwrap();
        assert_eq!(back.spec(), source.spec(), "{name}");
        same_values(&source, &back, name);
    }
}

#[test]
fn latents_that_stay_in_one_piece_are_said() {
    let (file, whole) = through_a_file(&fixture("deepseek-v3"));
    assert!(file.tensor("blk.2.attn_kv_b.weight").is_some());
    let plan = GgufPlan::new(&whole, GgufContent::Portable).unwrap();
    assert!(!plan.has_more());
    let notes = plan.peer_notes();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("attn_kv_b.weight is the form of older files"),
        "{notes:?}"
    );
    let vindex = GgufPlan::new(&whole, GgufContent::Whole).unwrap();
    assert_eq!(vindex.peer_notes(), [""; 0]);
}

#[test]
fn yarn_stretches_the_scores_of_latents() {
    let dir = edited("deepseek-v3", |cfg| {
        set(
            cfg,
            "rope_parameters",
            json!({
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 64,
            }),
        );
    });
    let source = Checkpoint::open(dir.path()).unwrap();
    let spec = mla(source.spec(), 0);
    let stretch = 0.1 * 0.707 * 40f64.ln() + 1.0;
    let expected = 24f64.powf(-0.5) * stretch * stretch;
    assert!((f64::from(spec.scale) - expected).abs() < 1e-7);
    let RopeScaling::Yarn {
        attention_factor, ..
    } = spec.rope.as_ref().unwrap().scaling
    else {
        panic!("{spec:?}");
    };
    let expected = (0.1 * 40f64.ln() + 1.0) / stretch;
    assert!((attention_factor - expected).abs() < 1e-12);
    assert_eq!(plan(&source).differences(), [""; 0]);
    let (file, back) = through_a_file(&source);
    let stated = file
        .metadata()
        .f32("deepseek2.rope.scaling.yarn_log_multiplier");
    assert_eq!(stated.unwrap(), Some(0.0707));
    assert!((mla(back.spec(), 0).scale - spec.scale).abs() < 1e-7);
}

#[test]
fn groups_of_softmax_experts_are_ranked_by_their_best() {
    let dir = edited("deepseek-v2", |cfg| {
        set(cfg, "topk_method", json!("group_limited_greedy"));
        set(cfg, "n_group", json!(4));
        set(cfg, "topk_group", json!(3));
    });
    let source = Checkpoint::open(dir.path()).unwrap();
    let expected = RouterSelect::Grouped {
        n_groups: 4,
        n_kept: 3,
        group_top: 1,
    };
    assert_eq!(moe(source.spec(), 2).select, expected);
    comes_back(&source, "deepseek-v2 in groups");
}

/// Files that keep the rows of keys transposed, as the converter writes them, hold the same latents.
#[test]
fn latents_in_two_tensors_are_put_together() {
    let source = fixture("deepseek-v3");
    let (file, _) = through_a_file(&source);
    let mut tensors = Vec::new();
    for info in file.tensors() {
        let bytes = file.data(&info.name).unwrap().to_vec();
        let Some(layer) = info.name.strip_suffix("attn_kv_b.weight") else {
            tensors.push((info.clone(), bytes));
            continue;
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let value = |row: usize, col: usize| bytes[(row * 32 + col) * 2..][..2].to_vec();
        for head in 0..4 {
            for col in 0..32 {
                (0..16).for_each(|row| keys.extend(value(head * 36 + row, col)));
            }
            for row in 16..36 {
                (0..32).for_each(|col| values.extend(value(head * 36 + row, col)));
            }
        }
        let half = |name: &str, shape: [u64; 3]| {
            TensorInfo::new(format!("{layer}{name}"), Dtype::Bf16, shape.to_vec()).unwrap()
        };
        tensors.push((half("attn_k_b.weight", [4, 32, 16]), keys));
        tensors.push((half("attn_v_b.weight", [4, 20, 32]), values));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("halves.gguf");
    write(&path, &file, &tensors);
    let back = Checkpoint::open(&path).unwrap();
    assert_eq!(back.spec(), source.spec());
    same_values(&source, &back, "halves");
    for (info, bytes) in &mut tensors {
        if info.name == "blk.2.attn_v_b.weight" {
            *info = TensorInfo::new(info.name.clone(), Dtype::F16, info.shape.clone()).unwrap();
            bytes.fill(0);
        }
    }
    write(&path, &file, &tensors);
    // Halves of unequal types are read as numbers: here the keys of each head are what they were, its values are zero.
    let mixed = Checkpoint::open(&path).unwrap();
    let role = TensorRole::Layer(2, LayerTensor::KvB);
    let (ours, theirs) = (mixed.tensor(role).unwrap(), source.tensor(role).unwrap());
    assert_eq!(ours.format, larql_kernels::Format::F32);
    let (ours, theirs) = (ours.to_f32(), theirs.to_f32());
    for (at, (x, want)) in ours.iter().zip(&theirs).enumerate() {
        let row = at / 32 % 36;
        assert_eq!(*x, if row < 16 { *want } else { 0.0 }, "row {row}");
    }
}

/// Files of the first converter have what the configuration's own tensor holds.
#[test]
fn older_files_of_delta_nets_are_read() {
    let source = fixture("qwen3-next");
    let (file, _) = through_a_file(&source);
    let weights = parity_fixture("qwen3-next").join("model.safetensors");
    let weights = SafetensorsFile::open(&weights).unwrap();
    let mut tensors = Vec::new();
    for info in file.tensors() {
        if info.name.ends_with("attn_gate.weight") {
            continue;
        }
        let Some(layer) = info.name.strip_suffix("attn_qkv.weight") else {
            tensors.push((info.clone(), file.data(&info.name).unwrap().to_vec()));
            continue;
        };
        let number = layer.trim_start_matches("blk.").trim_end_matches('.');
        let name = format!("model.layers.{number}.linear_attn.in_proj_qkvz.weight");
        let fused =
            TensorInfo::new(format!("{layer}ssm_in.weight"), Dtype::Bf16, vec![208, 56]).unwrap();
        tensors.push((fused, weights.data(&name).unwrap().to_vec()));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("older.gguf");
    write(&path, &file, &tensors);
    same_values(&source, &Checkpoint::open(&path).unwrap(), "older");
}

fn write(path: &std::path::Path, like: &GgufFile, tensors: &[(TensorInfo, Vec<u8>)]) {
    let mut writer = GgufWriter::new(like.metadata().clone(), like.alignment()).unwrap();
    for (info, _) in tensors {
        writer.declare(info.clone()).unwrap();
    }
    let mut stream = writer.begin(std::fs::File::create(path).unwrap()).unwrap();
    for (info, bytes) in tensors {
        stream.write_tensor_bytes(&info.name, bytes).unwrap();
    }
    stream.finish().unwrap();
}

/// Keys of recurrent layers, of streams, and of heads of two widths.
#[test]
fn metadata_says_what_stock_tools_ask_for() {
    let value = |name: &str, key: &str| {
        let plan = plan(&fixture(name));
        plan.metadata().get(key).cloned()
    };
    let number = |n: u32| Some(GgufValue::U32(n));
    assert_eq!(
        value("deepseek-v2", "deepseek2.attention.q_lora_rank"),
        number(0)
    );
    assert_eq!(value("deepseek-v2", "deepseek2.expert_gating_func"), None);
    assert_eq!(
        value("deepseek-v3", "deepseek2.expert_gating_func"),
        number(2)
    );
    assert_eq!(
        value("deepseek-v3", "deepseek2.expert_group_count"),
        number(4)
    );
    assert_eq!(
        value("deepseek-v3", "deepseek2.attention.key_length_mla"),
        None
    );
    assert_eq!(
        value("kimi-linear", "kimi-linear.attention.key_length_mla"),
        number(24)
    );
    let heads = Array::U32(vec![0, 1, 0, 1]);
    let kv_heads = value("kimi-linear", "kimi-linear.attention.head_count_kv");
    assert_eq!(kv_heads, Some(GgufValue::Array(heads)));
    let flags = Array::Bool(vec![true, false, true, false]);
    let recurrent = value("qwen3-next", "qwen3next.attention.recurrent_layers");
    assert_eq!(recurrent, Some(GgufValue::Array(flags.clone())));
    assert_eq!(
        value("qwen3-next", "qwen3next.full_attention_interval"),
        number(2)
    );
    assert_eq!(value("qwen3-next", "qwen3next.ssm.inner_size"), number(80));
    let pattern = value("gemma4-e", "gemma4.attention.sliding_window_pattern");
    assert_eq!(pattern, Some(GgufValue::Array(flags)));
    assert_eq!(
        value("gemma4-dense", "gemma4.attention.key_length"),
        number(32)
    );
    assert_eq!(
        value("gemma4-dense", "gemma4.attention.key_length_swa"),
        number(24)
    );
    assert_eq!(
        value("gemma4-dense", "gemma4.embedding_length_per_layer_input"),
        number(0)
    );
    let cutoffs = Array::F32(vec![
        1.281_551_5,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
    ]);
    let scale = value("gemma3n", "gemma3n.activation_sparsity_scale");
    assert_eq!(scale, Some(GgufValue::Array(cutoffs)));
}
