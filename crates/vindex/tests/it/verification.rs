//! Damage of every kind is found by name.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use larql_formats::safetensors::{SafetensorsFile, Writer};
use larql_formats::{Dtype, TensorInfo};
use larql_kernels::Team;
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::{Checkpoint, LayerTensor, TensorRole};
use larql_vindex::{
    FeatureRow, Level, Manifest, RelationOrigin, RelationRow, TensorPlace, VerifyReport, Vindex,
    VindexError, verify,
};
use sha2::{Digest, Sha256};

use crate::support::{fixture_path, folder, go_on, run};

fn check(path: &Path) -> VerifyReport {
    let mut team = Team::new(NonZeroUsize::new(3).unwrap());
    verify(path, &mut team, &mut go_on).unwrap()
}

/// Names and findings of what failed.
fn failures(path: &Path) -> Vec<(String, String)> {
    let report = check(path);
    assert_eq!(report.ok(), report.failures().count() == 0);
    report
        .failures()
        .map(|check| (check.name.clone(), check.detail.clone()))
        .collect()
}

fn vindex(dir: &Path, name: &str, level: Level) -> std::path::PathBuf {
    let out = dir.join("v");
    run(&folder(dir, name), &out, level).unwrap();
    out
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_sound_vindex_passes_with_everything_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "gemma3", Level::All);
    let opened = Vindex::open(&out).unwrap();
    let row = FeatureRow {
        layer: 1,
        feature: 2,
        gate_norm: 1.0,
        down_norm: 2.0,
        outputs: vec![],
    };
    opened.features().unwrap().put_many(&[row]).unwrap();
    let relation = RelationRow {
        name: "capital".into(),
        templates: vec!["The capital of {} is".into()],
        answers: vec![],
        answer_type: None,
        origin: RelationOrigin::User,
    };
    opened
        .knowledge()
        .unwrap()
        .create_relation(&relation)
        .unwrap();
    fs::create_dir(out.join("patches")).unwrap();
    let report = check(&out);
    let lines: Vec<_> = report
        .checks
        .iter()
        .map(|c| (c.name.as_str(), c.ok, c.detail.as_str()))
        .collect();
    let n_params = Checkpoint::open(&dir.path().join("gemma3 source"))
        .unwrap()
        .n_params();
    let values = format!("{n_params} values, all finite");
    let size = |name: &str| fs::metadata(out.join(name)).unwrap().len();
    let weights = format!("{} bytes, digest as in the manifest", size("weights.gguf"));
    let tokenizer = format!(
        "{} bytes, digest as in the manifest",
        size("tokenizer.json")
    );
    assert_eq!(
        lines,
        [
            ("vindex.json", true, "format version 1, level all"),
            ("weights.gguf", true, weights.as_str()),
            ("tokenizer.json", true, tokenizer.as_str()),
            ("tensors", true, "54 tensors, as the spec needs them"),
            ("values", true, values.as_str()),
            ("source", true, "54 tensors in 1 file, 4 texts"),
            ("tokenizer", true, "257 tokens"),
            (
                "features.db",
                true,
                "cache of this model; its rows are not compared with the weights",
            ),
            ("knowledge.db", true, "1 relations"),
        ]
    );
    let again = Vindex::open(&out).unwrap();
    assert_eq!(
        again.manifest().digest,
        opened.manifest().digest,
        "tables are no part of the model"
    );
}

#[test]
fn every_level_passes() {
    let dir = tempfile::tempdir().unwrap();
    for level in Level::ALL {
        let out = dir.path().join(level.name());
        let source = dir.path().join(format!("s{level}"));
        fs::create_dir(&source).unwrap();
        run(&folder(&source, "qwen2"), &out, level).unwrap();
        assert_eq!(failures(&out), [], "{level}");
    }
}

#[test]
fn a_flipped_byte_is_found_in_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "llama", Level::All);
    for name in ["weights.gguf", "tokenizer.json", "vindex.json"] {
        let path = out.join(name);
        let good = fs::read(&path).unwrap();
        let places = [
            0,
            good.len() / 7,
            good.len() / 3,
            good.len() / 2,
            good.len() - 9,
            good.len() - 2,
        ];
        for at in places {
            flip(&path, at);
            let found = failures(&out);
            assert!(
                found.iter().any(|(n, _)| n == name),
                "{name} byte {at}: {found:?}"
            );
            fs::write(&path, &good).unwrap();
        }
    }
    flip(
        &out.join("weights.gguf"),
        fs::metadata(out.join("weights.gguf")).unwrap().len() as usize / 2,
    );
    let found = failures(&out);
    assert!(
        found[0].1.starts_with("digest ") && found[0].1.contains(", the manifest says "),
        "{found:?}"
    );
}

#[test]
fn missing_short_and_foreign_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "llama", Level::Inference);
    let weights = out.join("weights.gguf");
    let good = fs::read(&weights).unwrap();
    fs::write(&weights, &good[..good.len() - 7]).unwrap();
    let found = failures(&out);
    assert_eq!(
        found[0],
        (
            "weights.gguf".into(),
            format!("{} bytes, the manifest says {}", good.len() - 7, good.len())
        )
    );
    assert_eq!(found[1].0, "tensors");
    let error = Vindex::open(&out).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: {} bytes, the manifest says {}",
            weights.display(),
            good.len() - 7,
            good.len()
        )
    );
    fs::remove_file(&weights).unwrap();
    assert_eq!(failures(&out)[0], ("weights.gguf".into(), "missing".into()));
    let error = Vindex::open(&out).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: missing, the manifest names it", weights.display())
    );
    fs::write(&weights, &good).unwrap();
    fs::write(out.join("lm_head.bin"), "old").unwrap();
    fs::write(out.join("features.db-old"), "old").unwrap();
    assert_eq!(
        failures(&out),
        [
            ("features.db-old".into(), "not part of a vindex".into()),
            ("lm_head.bin".into(), "not part of a vindex".into()),
        ]
    );
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut team = Team::new(NonZeroUsize::MIN);
    let error = verify(&empty, &mut team, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::NotAVindex { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "{}: not a vindex: expected a directory with vindex.json",
            empty.display()
        )
    );
}

/// A weight that is no number is in the source already: the digests agree, the value is still found.
#[test]
fn a_value_that_is_no_number_is_found_by_tensor_and_row() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "gemma");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let file = source.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let down = checkpoint
        .tensor(TensorRole::Layer(3, LayerTensor::Down))
        .unwrap();
    let at = bytes
        .windows(down.bytes.len())
        .position(|window| window == &down.bytes[..])
        .unwrap();
    let value = at + (41 * 104 + 17) * 2;
    bytes[value..value + 2].copy_from_slice(&0x7f80u16.to_le_bytes());
    drop((checkpoint, down));
    fs::write(&file, bytes).unwrap();
    let out = dir.path().join("v");
    run(&source, &out, Level::Inference).unwrap();
    assert_eq!(
        failures(&out),
        [(
            "values".into(),
            "tensor `blk.3.ffn_down.weight`, row 41, column 17: inf is not finite".into()
        )]
    );
}

#[test]
fn tables_of_another_model_and_damaged_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "llama", Level::Inference);
    drop(Vindex::open(&out).unwrap().features().unwrap());
    let other_dir = dir.path().join("other");
    fs::create_dir(&other_dir).unwrap();
    let other = vindex(&other_dir, "gemma", Level::Inference);
    drop(Vindex::open(&other).unwrap().features().unwrap());
    fs::copy(other.join("features.db"), out.join("features.db")).unwrap();
    fs::write(out.join("knowledge.db"), [1u8; 200]).unwrap();
    let found = failures(&out);
    assert_eq!(
        found[0],
        ("features.db".into(), "features of another model".into())
    );
    assert_eq!(found[1].0, "knowledge.db");
    assert!(found[1].1.ends_with("file is not a database"), "{found:?}");
}

/// Weights whose header is sound but which lack a tensor: only accounting can tell.
#[test]
fn weights_that_do_not_fit_the_spec_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "qwen3", Level::Inference);
    let source = Checkpoint::open(&dir.path().join("qwen3 source")).unwrap();
    let plan = GgufPlan::new(&source, GgufContent::WithoutAttention).unwrap();
    fs::write(
        out.join("weights.gguf"),
        plan.write(&source, Vec::new()).unwrap(),
    )
    .unwrap();
    let found = failures(&out);
    assert_eq!(found[1].0, "tensors");
    assert!(
        found[1]
            .1
            .contains("24 tensors missing: blk.0.attn_q.weight"),
        "{found:?}"
    );
}

/// Seals whatever the manifest says now, as somebody who knows how would.
fn edit(out: &Path, change: impl FnOnce(&mut Manifest)) {
    let path = out.join("vindex.json");
    let mut manifest = Manifest::decode(&fs::read(&path).unwrap(), &path).unwrap();
    change(&mut manifest);
    manifest.seal();
    fs::write(&path, manifest.encode()).unwrap();
}

/// What a manifest says about its source is compared with what the weights can give, not believed.
#[test]
fn a_source_that_cannot_come_back_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("v");
    run(&fixture_path("gpt2"), &out, Level::All).unwrap();
    let good = fs::read(out.join("vindex.json")).unwrap();
    assert_eq!(failures(&out), []);
    type Change = fn(&mut Manifest);
    let changes: [(Change, &str); 6] = [
        (
            |m| m.source.tensors[1].shape.reverse(),
            "h.0.attn.c_attn.weight",
        ),
        (
            |m| m.source.tensors[1].dtype = "F99".into(),
            "type F99 of transformer.h.0.attn.c_attn.weight",
        ),
        (
            |m| m.source.tensors[1].file = 9,
            "transformer.h.0.attn.c_attn.weight is in file 9",
        ),
        (
            |m| m.source.tensors[1].place = TensorPlace::Kept,
            "h.0.attn.c_attn.weight is nowhere",
        ),
        (
            |m| m.source.tensors[1].name = "transformer.h.9.attn.c_attn.weight".into(),
            "no tensor for layer 0 attn.q",
        ),
        (
            |m| {
                let config = m.source.texts.iter_mut().find(|t| t.name == "config.json");
                let config = &mut config.unwrap().text;
                *config = config.replace(
                    "\"layer_norm_epsilon\": 1e-05",
                    "\"layer_norm_epsilon\": 2e-05",
                );
            },
            "config.json",
        ),
    ];
    for (change, expected) in changes {
        fs::write(out.join("vindex.json"), &good).unwrap();
        edit(&out, change);
        assert_ne!(
            fs::read(out.join("vindex.json")).unwrap(),
            good,
            "{expected}"
        );
        let found = failures(&out);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "source");
        assert!(found[0].1.contains(expected), "{found:?}");
    }
}

/// A file of weights that would be written where a text belongs.
#[test]
fn names_of_the_source_that_clash_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(dir.path(), "llama", Level::All);
    for name in ["config.json", "tokenizer.json"] {
        edit(&out, |m| m.source.files[0].name = name.into());
        let found = failures(&out);
        assert_eq!(found[0].0, "vindex.json");
        assert!(
            found[0].1.contains(&format!(
                "`source.files[0].name`: `{name}`, which is not a file of weights"
            )),
            "{found:?}"
        );
        let good = Manifest::decode(&fs::read(out.join("vindex.json")).unwrap(), &out);
        assert!(good.is_err());
        fs::remove_dir_all(&out).unwrap();
        run(&dir.path().join("llama source"), &out, Level::All).unwrap();
    }
}

/// The tensors that were kept apart are those that the manifest says, and no others.
#[test]
fn kept_tensors_are_compared_with_the_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "llama");
    let file = source.join("model.safetensors");
    let with_spare = |name: &str, value: f32| {
        let old = SafetensorsFile::open(fixture_path("llama").join("model.safetensors")).unwrap();
        let mut writer = Writer::new(old.metadata()).unwrap();
        for info in old.tensors() {
            writer.declare(info.clone()).unwrap();
        }
        writer
            .declare(TensorInfo::new(name, Dtype::F32, vec![3]).unwrap())
            .unwrap();
        let mut stream = writer.begin(Vec::new()).unwrap();
        for info in old.tensors() {
            let data = old.data(&info.name).unwrap();
            stream.write_tensor_bytes(&info.name, &data).unwrap();
        }
        let spare = [value; 3].map(f32::to_le_bytes).concat();
        stream.write_tensor_bytes(name, &spare).unwrap();
        stream.finish().unwrap()
    };
    let spare = "model.layers.0.self_attn.rotary_emb.inv_freq";
    fs::write(&file, with_spare(spare, 0.5)).unwrap();
    let out = dir.path().join("v");
    run(&source, &out, Level::All).unwrap();
    assert_eq!(failures(&out), []);
    let kept = out.join("source.safetensors");
    let mut writer = Writer::new(&BTreeMap::new()).unwrap();
    for (name, shape) in [(spare, vec![1, 3]), ("junk", vec![2])] {
        writer
            .declare(TensorInfo::new(name, Dtype::F32, shape).unwrap())
            .unwrap();
    }
    let mut stream = writer.begin(Vec::new()).unwrap();
    stream.write_tensor_bytes(spare, &[1; 12]).unwrap();
    stream.write_tensor_bytes("junk", &[1; 8]).unwrap();
    let bytes = stream.finish().unwrap();
    fs::write(&kept, &bytes).unwrap();
    let size = bytes.len() as u64;
    let digest = Sha256::digest(&bytes);
    let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    edit(&out, |m| {
        let entry = m.files.iter_mut().find(|f| f.name == "source.safetensors");
        let entry = entry.unwrap();
        (entry.size, entry.sha256) = (size, sha256);
    });
    let found = failures(&out);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .1
            .ends_with("inv_freq is F32 [3], but F32 [1, 3] in source.safetensors"),
        "{found:?}"
    );
    edit(&out, |m| {
        let tensor = m.source.tensors.iter_mut().find(|t| t.name == spare);
        tensor.unwrap().shape = vec![1, 3];
    });
    let found = failures(&out);
    assert!(
        found[0]
            .1
            .ends_with("junk in source.safetensors is not a tensor of the source"),
        "{found:?}"
    );
}
