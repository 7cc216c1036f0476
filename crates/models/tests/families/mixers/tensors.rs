//! Names of tensors, fused ones, and those that lie beside a model.

use larql_formats::safetensors::{SafetensorsFile, Writer};
use larql_formats::{Dtype, TensorInfo};
use larql_models::Checkpoint;
use larql_models::roles::{LayerTensor, TensorRole};
use larql_testkit::parity_fixture;
use serde_json::{Map, Value, json};

use super::{Edit, edited, fixture, same_values, set};

/// Rows of the fused projections by the formula of the class: per key head, a block of each part.
#[test]
fn fused_projections_are_cut_by_heads() {
    let checkpoint = fixture("qwen3-next");
    let whole = |name: &str| {
        let data = checkpoint.container().tensors().iter();
        let info = data.into_iter().find(|info| info.name == name).unwrap();
        assert_eq!(info.dtype, Dtype::Bf16);
        let path = parity_fixture("qwen3-next").join("model.safetensors");
        let file = SafetensorsFile::open(&path).unwrap();
        let bytes = file.data(name).unwrap().to_vec();
        let row = bytes.len() / info.shape[0] as usize;
        bytes.chunks(row).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let rows = |layer: u32, tensor: LayerTensor| {
        let stored = checkpoint.tensor(TensorRole::Layer(layer, tensor)).unwrap();
        let row = stored.row_bytes();
        stored
            .bytes
            .chunks(row)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let fused = whole("model.layers.0.linear_attn.in_proj_qkvz.weight");
    // A group has 12 rows of query, 12 of key, and 2 value heads of 20 rows twice.
    let pick = |at: usize, n: usize| {
        let group = |g: usize| fused[g * 104 + at..][..n].to_vec();
        [group(0), group(1)].concat()
    };
    assert_eq!(rows(0, LayerTensor::Q), pick(0, 12));
    assert_eq!(rows(0, LayerTensor::K), pick(12, 12));
    assert_eq!(rows(0, LayerTensor::V), pick(24, 40));
    assert_eq!(rows(0, LayerTensor::OutGate), pick(64, 40));
    let fused = whole("model.layers.2.linear_attn.in_proj_ba.weight");
    let pick = |at: [usize; 4]| at.map(|row| fused[row].clone()).to_vec();
    assert_eq!(rows(2, LayerTensor::Beta), pick([0, 1, 4, 5]));
    assert_eq!(rows(2, LayerTensor::Decay), pick([2, 3, 6, 7]));
    let fused = whole("model.layers.1.self_attn.q_proj.weight");
    let half = |at: usize| {
        let head = |h: usize| fused[h * 48 + at..][..24].to_vec();
        (0..4).flat_map(head).collect::<Vec<_>>()
    };
    assert_eq!(rows(1, LayerTensor::Q), half(0));
    assert_eq!(rows(1, LayerTensor::OutGate), half(24));
}

/// A fixture whose tensors are renamed or added to, beside an edited configuration.
fn retensored(
    name: &str,
    edit: Edit,
    change: impl Fn(&mut Vec<(TensorInfo, Vec<u8>)>),
) -> tempfile::TempDir {
    let dir = edited(name, edit);
    let path = dir.path().join("model.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let tensor = |info: &TensorInfo| (info.clone(), file.data(&info.name).unwrap().to_vec());
    let mut tensors: Vec<_> = file.tensors().iter().map(tensor).collect();
    drop(file);
    std::fs::remove_file(&path).unwrap();
    change(&mut tensors);
    let mut writer = Writer::new(&[("format".to_owned(), "pt".to_owned())].into()).unwrap();
    for (info, _) in &tensors {
        writer.declare(info.clone()).unwrap();
    }
    let mut stream = writer.begin(std::fs::File::create(&path).unwrap()).unwrap();
    while let Some(next) = stream.next_tensor().map(|info| info.name.clone()) {
        let (_, bytes) = tensors.iter().find(|(info, _)| info.name == next).unwrap();
        stream.write_tensor_bytes(&next, bytes).unwrap();
    }
    stream.finish().unwrap();
    dir
}

fn renamed(info: &TensorInfo, name: String) -> TensorInfo {
    TensorInfo::new(name, info.dtype, info.shape.clone()).unwrap()
}

fn nest_as(cfg: &mut Map<String, Value>, model_type: &str) {
    let text = std::mem::take(cfg);
    set(cfg, "model_type", json!(model_type));
    set(cfg, "text_config", Value::Object(text));
    set(cfg, "vision_config", json!({ "hidden_size": 8 }));
    set(cfg, "audio_config", json!({ "hidden_size": 8 }));
}

/// Text models inside wrappers for several modalities.
#[test]
fn wrappers_are_opened_for_their_text() {
    let cases: [(&str, Edit); 2] = [
        ("gemma3n", |cfg| nest_as(cfg, "gemma3n")),
        ("gemma4-e", |cfg| nest_as(cfg, "gemma4")),
    ];
    for (name, edit) in cases {
        let dir = retensored(name, edit, |tensors| {
            for (info, _) in tensors.iter_mut() {
                let rest = info.name.strip_prefix("model.").unwrap();
                *info = renamed(info, format!("model.language_model.{rest}"));
            }
            let (info, bytes) = tensors[0].clone();
            for part in [
                "audio_tower.conv",
                "embed_vision.norm",
                "vision_tower.patch",
            ] {
                let other = renamed(&info, format!("model.{part}.weight"));
                tensors.push((other, bytes.clone()));
            }
        });
        let wrapped = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(wrapped.spec(), fixture(name).spec(), "{name}");
        assert_eq!(wrapped.ignored().len(), 3, "{name}");
        same_values(&fixture(name), &wrapped, name);
    }
}

/// Published files carry tensors that no class loads.
#[test]
fn what_only_lies_beside_the_model_is_ignored_with_a_reason() {
    let extra = |name: &str, like: &'static str, new: &'static str| {
        retensored(
            name,
            |_| {},
            move |tensors| {
                let like = tensors.iter().find(|(info, _)| info.name == like).unwrap();
                let (info, bytes) = like.clone();
                tensors.push((renamed(&info, new.to_owned()), bytes));
            },
        )
    };
    let cases = [
        (
            "gemma3n",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.2.self_attn.k_proj.weight",
        ),
        (
            "gemma4-e",
            "model.layers.1.self_attn.k_norm.weight",
            "model.layers.3.self_attn.k_norm.weight",
        ),
        (
            "deepseek-v3",
            "model.layers.0.input_layernorm.weight",
            "model.layers.4.enorm.weight",
        ),
        ("qwen3-next", "model.norm.weight", "mtp.norm.weight"),
    ];
    for (name, like, new) in cases {
        let checkpoint = Checkpoint::open(extra(name, like, new).path()).unwrap();
        let ignored: Vec<&str> = checkpoint
            .ignored()
            .iter()
            .map(|i| i.name.as_str())
            .collect();
        assert_eq!(ignored, [new], "{name}");
    }
    for (name, like, new) in [
        (
            "gemma3n",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.2.self_attn.x_proj.weight",
        ),
        (
            "gemma4-dense",
            "model.layers.0.self_attn.v_proj.weight",
            "model.layers.2.self_attn.v_proj.weight",
        ),
    ] {
        let message = Checkpoint::open(extra(name, like, new).path())
            .unwrap_err()
            .to_string();
        assert!(message.contains(new), "{name}: {message}");
    }
}

/// What the class calls its tensors in memory may stand in a file too.
#[test]
fn kimi_is_read_under_both_kinds_of_names() {
    let dir = retensored(
        "kimi-linear",
        |_| {},
        |tensors| {
            for (info, _) in tensors.iter_mut() {
                let name = info.name.replace("block_sparse_moe.", "mlp.");
                let name = name
                    .replace(".w1.", ".gate_proj.")
                    .replace(".w2.", ".down_proj.");
                let mut name = name.replace(".w3.", ".up_proj.");
                for part in ["f_a_proj", "f_b_proj", "A_log", "dt_bias"] {
                    name =
                        name.replace(&format!("attn.{part}"), &format!("attn.forget_gate.{part}"));
                }
                *info = renamed(info, name);
            }
        },
    );
    let back = Checkpoint::open(dir.path()).unwrap();
    same_values(&fixture("kimi-linear"), &back, "kimi-linear");
}
