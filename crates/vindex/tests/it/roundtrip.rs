//! What comes out of a vindex is what went in.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use larql_models::Checkpoint;
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::Quantization;
use larql_models::to_hf::FloatType;
use larql_testkit::{FAMILIES, atlas, parity_fixture};
use larql_vindex::{
    ExportSource, ExtractOptions, Level, SourceDigest, Vindex, VindexError, export_gguf,
    export_safetensors, extract, verify,
};

use crate::support::{gguf, go_on, names, sha256};

/// Families whose norms or decays round when they are read, so that the vindex keeps the originals.
fn source_of<'a>(vindex: &'a Vindex, checkpoint: &'a Checkpoint) -> ExportSource<'a> {
    ExportSource {
        checkpoint,
        vindex: Some(vindex),
    }
}

#[test]
fn every_family_s_folder_comes_back_byte_for_byte() {
    for name in FAMILIES {
        let from = parity_fixture(name);
        let dir = tempfile::tempdir().unwrap();
        let (made, back) = (dir.path().join("m.vindex"), dir.path().join("back"));
        let source = Checkpoint::open(&from).unwrap();
        extract(
            &source,
            None,
            &made,
            &ExtractOptions::at(Level::All),
            &mut go_on,
        )
        .unwrap();
        let vindex = Vindex::open(&made).unwrap();
        let checkpoint = vindex.checkpoint().unwrap();
        let exported = source_of(&vindex, &checkpoint);
        let report = export_safetensors(exported, &back, None, &mut go_on).unwrap();
        assert_eq!(report.notes, [] as [&str; 0], "{name}");
        for file in ["model.safetensors", "config.json", "generation_config.json"] {
            if !from.join(file).exists() {
                continue;
            }
            let (ours, theirs) = (
                fs::read(back.join(file)).unwrap(),
                fs::read(from.join(file)).unwrap(),
            );
            assert!(ours == theirs, "{name}: {file} differs");
        }
        assert_eq!(names(dir.path()), ["back", "m.vindex"], "{name}: no debris");
    }
}

#[test]
fn atlas_comes_back_with_its_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let (made, back) = (dir.path().join("m.vindex"), dir.path().join("back"));
    let source = Checkpoint::open(atlas()).unwrap();
    let tokenizer = source.tokenizer().unwrap();
    let options = ExtractOptions::at(Level::All);
    extract(&source, Some(&tokenizer), &made, &options, &mut go_on).unwrap();
    let vindex = Vindex::open(&made).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    export_safetensors(source_of(&vindex, &checkpoint), &back, None, &mut go_on).unwrap();
    assert_eq!(names(&back), names(atlas()));
    for file in names(&back) {
        let (ours, theirs) = (
            fs::read(back.join(&file)).unwrap(),
            fs::read(atlas().join(&file)).unwrap(),
        );
        assert!(ours == theirs, "{file} differs");
    }
    // The weights carry a vocabulary of their own, so that other programs run them on text.
    let alone = Checkpoint::open(&made.join("weights.gguf")).unwrap();
    let text = "The capital of France is Paris.";
    let ids = |tokenizer: &larql_models::tokenizer::Tokenizer| {
        use larql_models::tokenizer::{Bos, EncodeSpecial};
        tokenizer
            .encode(text, EncodeSpecial::Plain, Bos::Model)
            .unwrap()
    };
    assert_eq!(ids(&alone.tokenizer().unwrap()), ids(&tokenizer));
}

#[test]
fn a_gguf_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let folder = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let direct = ExportSource {
        checkpoint: &folder,
        vindex: None,
    };
    export_gguf(direct, &at("a.gguf"), None, NonZeroUsize::MIN, &mut go_on).unwrap();
    let file = Checkpoint::open(&at("a.gguf")).unwrap();
    extract(
        &file,
        None,
        &at("m.vindex"),
        &ExtractOptions::at(Level::All),
        &mut go_on,
    )
    .unwrap();
    let vindex = Vindex::open(&at("m.vindex")).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let source = source_of(&vindex, &checkpoint);
    export_gguf(source, &at("b.gguf"), None, NonZeroUsize::MIN, &mut go_on).unwrap();
    assert!(fs::read(at("a.gguf")).unwrap() == fs::read(at("b.gguf")).unwrap());
    // And on to safetensors: rows that the GGUF interleaves are in order again, bf16 stays exact.
    export_safetensors(source, &at("hf"), Some(FloatType::Bf16), &mut go_on).unwrap();
    let back = Checkpoint::open(&at("hf")).unwrap();
    for role in folder.roles() {
        let (ours, theirs) = (back.tensor(role).unwrap(), folder.tensor(role).unwrap());
        assert_eq!(ours.bytes[..], theirs.bytes[..], "{role}");
    }
}

/// A model that left its folder for a GGUF file comes back under the names and shapes that its class loads.
#[test]
fn a_gguf_becomes_the_folder_its_class_expects() {
    for name in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let (file, back) = (dir.path().join("m.gguf"), dir.path().join("back"));
        let folder = Checkpoint::open(&parity_fixture(name)).unwrap();
        let direct = ExportSource {
            checkpoint: &folder,
            vindex: None,
        };
        export_gguf(direct, &file, None, NonZeroUsize::MIN, &mut go_on).unwrap();
        let gguf = Checkpoint::open(&file).unwrap();
        let source = ExportSource {
            checkpoint: &gguf,
            vindex: None,
        };
        export_safetensors(source, &back, Some(FloatType::Bf16), &mut go_on).unwrap();
        let made = Checkpoint::open(&back).unwrap();
        assert_eq!(made.spec().layers, folder.spec().layers, "{name}");
        let listed = |checkpoint: &Checkpoint| {
            let tensors = checkpoint.container().tensors().iter();
            let mut list: Vec<(String, Vec<u64>)> = tensors
                .map(|info| {
                    // The dense first layer of this class has two names that both load.
                    let name = info.name.replace("0.block_sparse_moe.", "0.mlp.");
                    (name, info.shape.clone())
                })
                .collect();
            list.sort();
            list
        };
        assert_eq!(listed(&made), listed(&folder), "{name}");
        for role in folder.roles() {
            let (ours, theirs) = (made.tensor(role).unwrap(), folder.tensor(role).unwrap());
            let near = ours
                .to_f32()
                .iter()
                .zip(theirs.to_f32())
                .all(|(a, b)| (a - b).abs() <= 1e-2 * b.abs());
            assert!(near, "{name}: {role}");
        }
    }
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Checkpoint::open(&parity_fixture("phi3")).unwrap();
    let source = ExportSource {
        checkpoint: &folder,
        vindex: None,
    };
    let out = dir.path().join("a.gguf");
    fs::write(&out, "mine").unwrap();
    let error = export_gguf(source, &out, None, NonZeroUsize::MIN, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::Exists { .. }), "{error}");
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    let mut stop = |_| ControlFlow::Break(());
    let other = dir.path().join("b.gguf");
    let error = export_gguf(source, &other, None, NonZeroUsize::MIN, &mut stop).unwrap_err();
    assert!(matches!(error, VindexError::Interrupted { .. }), "{error}");
    assert_eq!(names(dir.path()), ["a.gguf"]);
    // Somebody else takes the name while the file is written.
    let mut race = |_| {
        fs::write(&other, "theirs").unwrap();
        ControlFlow::Continue(())
    };
    let error = export_gguf(source, &other, None, NonZeroUsize::MIN, &mut race).unwrap_err();
    assert!(
        matches!(&error, VindexError::Exists { path } if *path == other),
        "{error}"
    );
    assert_eq!(fs::read(&other).unwrap(), b"theirs");
    fs::remove_file(&other).unwrap();
    assert_eq!(names(dir.path()), ["a.gguf"]);
    let error = export_safetensors(source, &other, None, &mut go_on).unwrap_err();
    assert!(
        matches!(error, VindexError::NothingToExport { .. }),
        "{error}"
    );
    assert_eq!(names(dir.path()), ["a.gguf"]);
}

#[test]
fn quantizing_changes_types_and_says_where_it_could_not() {
    let dir = tempfile::tempdir().unwrap();
    // Rows of 96 are blocks of 32, but not of 256; rows of 56 are neither.
    let narrow = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let wide = Checkpoint::open(&parity_fixture("qwen2")).unwrap();
    let quantization = Quantization {
        mix: Mix::parse("q4_k_m").unwrap(),
        requantize: false,
    };
    let options = ExtractOptions {
        quantization: Some(quantization),
        n_threads: NonZeroUsize::new(2).unwrap(),
        ..ExtractOptions::at(Level::All)
    };
    let out = dir.path().join("wide.vindex");
    let report = extract(&wide, None, &out, &options, &mut go_on).unwrap();
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("bits per weight")),
        "{:?}",
        report.notes
    );
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("rows of 96 are Q5_0 instead of Q4_K")),
        "{:?}",
        report.notes
    );
    let vindex = Vindex::open(&out).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let types: Vec<&str> = checkpoint.dtypes().into_keys().collect();
    assert!(
        types.contains(&"Q5_0") && !types.contains(&"BF16"),
        "{types:?}"
    );
    let mut team = larql_kernels::Team::new(NonZeroUsize::MIN);
    assert!(verify(&out, &mut team, &mut go_on).unwrap().ok());
    // What is quantized once is not quantized again unless somebody says so.
    let again = ExtractOptions {
        quantization: Some(Quantization {
            mix: Mix::parse("q8_0").unwrap(),
            requantize: false,
        }),
        ..options
    };
    let file = Checkpoint::open(&out.join("weights.gguf")).unwrap();
    let error = extract(&file, None, &dir.path().join("x"), &again, &mut go_on).unwrap_err();
    assert!(
        error.to_string().contains("is quantized already"),
        "{error}"
    );
    let report = extract(
        &narrow,
        None,
        &dir.path().join("n.vindex"),
        &options,
        &mut go_on,
    )
    .unwrap();
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("rows of 56 are F16")),
        "{:?}",
        report.notes
    );
}

/// The tokens that a GGUF file names are named by both files in which loaders look for them.
#[test]
fn the_tokens_of_a_gguf_are_those_of_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (file, back) = (dir.path().join("m.gguf"), dir.path().join("back"));
    gguf(&file, "qwen3");
    let checkpoint = Checkpoint::open(&file).unwrap();
    let source = ExportSource {
        checkpoint: &checkpoint,
        vindex: None,
    };
    export_safetensors(source, &back, None, &mut go_on).unwrap();
    let ids = |name: &str| {
        let text = fs::read(back.join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        ["bos_token_id", "pad_token_id", "eos_token_id"].map(|key| json[key].to_string())
    };
    assert_eq!(ids("generation_config.json"), ["5", "7", "[6]"]);
    assert_eq!(ids("config.json"), ["5", "7", "6"]);
    assert!(Checkpoint::open(&back).unwrap().spec() == checkpoint.spec());
}

/// Bits and types are those of the file, and nothing is left out.
#[test]
fn reports_count_what_the_file_has() {
    let dir = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(&parity_fixture("qwen2")).unwrap();
    let quantization = |mix: &str, requantize| Quantization {
        mix: Mix::parse(mix).unwrap(),
        requantize,
    };
    let direct = ExportSource {
        checkpoint: &source,
        vindex: None,
    };
    let first = dir.path().join("first.gguf");
    let mix = Some(quantization("q4_k_m", false));
    let report = export_gguf(direct, &first, mix, NonZeroUsize::MIN, &mut go_on).unwrap();
    let file = larql_formats::gguf::GgufFile::open(&first).unwrap();
    let (mut bytes, mut values) = (0, 0);
    for info in file.tensors() {
        bytes += info.n_bytes;
        values += info.shape.iter().product::<u64>();
    }
    let bits = bytes as f64 * 8.0 / values as f64;
    assert_eq!(report.bits_per_weight, Some(bits));
    let count = |name: &str| {
        let tensors = file.tensors().iter();
        tensors.filter(|info| info.dtype.name() == name).count()
    };
    assert!(report.types.len() > 2, "{:?}", report.types);
    for (name, n) in &report.types {
        assert_eq!((count(name), *n > 0), (*n, true), "{name}");
    }
    assert!(report.types.is_sorted_by(|a, b| a.1 >= b.1));
    let total: usize = report.types.iter().map(|(_, n)| n).sum();
    assert_eq!(total, file.tensors().len());
    let out = dir.path().join("q.vindex");
    let options = ExtractOptions {
        quantization: mix,
        ..ExtractOptions::at(Level::All)
    };
    let extracted = extract(&source, None, &out, &options, &mut go_on).unwrap();
    assert_eq!(extracted.types, report.types);
    assert_eq!(extracted.bits_per_weight, Some(bits));
    let plain = dir.path().join("plain.gguf");
    let report = export_gguf(direct, &plain, None, NonZeroUsize::MIN, &mut go_on).unwrap();
    assert_eq!((report.bits_per_weight, report.types), (None, vec![]));
}

/// A tensor that has the other type already got it instead of the one that the mix asks for, too.
#[test]
fn what_stays_in_another_type_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Checkpoint::open(&parity_fixture("qwen2")).unwrap();
    let mix = |name: &str| {
        Some(Quantization {
            mix: Mix::parse(name).unwrap(),
            requantize: true,
        })
    };
    let at = |name: &str| dir.path().join(name);
    let export = |checkpoint: &Checkpoint, out: &str, name: &str| {
        let source = ExportSource {
            checkpoint,
            vindex: None,
        };
        export_gguf(source, &at(out), mix(name), NonZeroUsize::MIN, &mut go_on).unwrap()
    };
    export(&folder, "a.gguf", "q4_k_m");
    let file = Checkpoint::open(&at("a.gguf")).unwrap();
    let report = export(&file, "b.gguf", "q4_0");
    let says = "1 tensor with rows of 96 is Q8_0 instead of Q6_K, whose blocks do not divide them (token_embd.weight)";
    assert!(
        report.notes.iter().any(|note| note == says),
        "{:?}",
        report.notes
    );
}

/// A vindex of a folder keeps latents in one tensor; other programs get the two that they cache.
#[test]
fn latents_leave_a_vindex_in_the_form_that_others_cache() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let folder = Checkpoint::open(&parity_fixture("deepseek-v3")).unwrap();
    let options = ExtractOptions::at(Level::All);
    extract(&folder, None, &at("m.vindex"), &options, &mut go_on).unwrap();
    let vindex = Vindex::open(&at("m.vindex")).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let direct = ExportSource {
        checkpoint: &folder,
        vindex: None,
    };
    let mut files = Vec::new();
    for (source, name) in [
        (direct, "a.gguf"),
        (source_of(&vindex, &checkpoint), "b.gguf"),
    ] {
        let report = export_gguf(source, &at(name), None, NonZeroUsize::MIN, &mut go_on).unwrap();
        assert_eq!(report.notes, [""; 0], "{name}");
        let file = larql_formats::gguf::GgufFile::open(at(name)).unwrap();
        let mut list: Vec<(String, Vec<u8>)> = file
            .tensors()
            .iter()
            .map(|info| (info.name.clone(), file.data(&info.name).unwrap().to_vec()))
            .collect();
        list.sort();
        let heads = file.metadata().u32("deepseek2.attention.head_count_kv");
        assert_eq!(heads.unwrap(), Some(1), "{name}");
        files.push(list);
    }
    assert!(
        files[0]
            .iter()
            .any(|(name, _)| name == "blk.1.attn_k_b.weight")
    );
    assert!(
        files[0] == files[1],
        "the way through a vindex changes nothing"
    );
}

#[test]
fn a_quantized_vindex_says_that_it_gives_other_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(&parity_fixture("kimi-linear")).unwrap();
    let out = dir.path().join("k.vindex");
    let options = ExtractOptions {
        quantization: Some(Quantization {
            mix: Mix::parse("q8_0").unwrap(),
            requantize: false,
        }),
        ..ExtractOptions::at(Level::All)
    };
    // The keys' half of the latent projection is transposed in the file: it keeps its type, and is read beside the other.
    extract(&source, None, &out, &options, &mut go_on).unwrap();
    let vindex = Vindex::open(&out).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let exported = source_of(&vindex, &checkpoint);
    let back = dir.path().join("back");
    let half = Some(FloatType::F16);
    let report = export_safetensors(exported, &back, half, &mut go_on).unwrap();
    assert!(
        report.notes[0].contains("decoded values in float16"),
        "{:?}",
        report.notes
    );
    // A loader rounds to the type that the configuration states, so that it has to be the one that was written.
    assert_eq!(
        report.notes[1],
        "config.json states float16 where the source had bfloat16: loaders convert all weights to what it states"
    );
    let config = |folder: &std::path::Path| fs::read_to_string(folder.join("config.json")).unwrap();
    let stated = config(&parity_fixture("kimi-linear"));
    assert!(stated.contains(r#""dtype": "bfloat16""#), "{stated}");
    assert_eq!(
        config(&back),
        stated.replace(r#""dtype": "bfloat16""#, r#""dtype": "float16""#)
    );
    let again = Checkpoint::open(&back).unwrap();
    for role in source.roles() {
        let (ours, theirs) = (again.tensor(role).unwrap(), source.tensor(role).unwrap());
        let theirs = theirs.to_f32();
        let most = theirs.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let far = ours
            .to_f32()
            .iter()
            .zip(&theirs)
            .any(|(a, b)| (a - b).abs() > most / 60.0);
        assert!(!far, "{role}");
    }
}

#[test]
fn a_type_that_nothing_takes_and_a_changed_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let out = dir.path().join("m.vindex");
    extract(
        &source,
        None,
        &out,
        &ExtractOptions::at(Level::All),
        &mut go_on,
    )
    .unwrap();
    let vindex = Vindex::open(&out).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let exported = source_of(&vindex, &checkpoint);
    let back = dir.path().join("back");
    let wanted = Some(FloatType::F32);
    let error = export_safetensors(exported, &back, wanted, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::NothingToConvert), "{error}");
    let mut bytes = fs::read(out.join("weights.gguf")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(out.join("weights.gguf")).unwrap();
    fs::write(out.join("weights.gguf"), bytes).unwrap();
    let error = export_safetensors(exported, &back, None, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::Changed { .. }), "{error}");
    let file = dir.path().join("m.gguf");
    let error = export_gguf(exported, &file, None, NonZeroUsize::MIN, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::Changed { .. }), "{error}");
    let nowhere = dir.path().join("none").join("m.gguf");
    let error = export_gguf(exported, &nowhere, None, NonZeroUsize::MIN, &mut go_on).unwrap_err();
    assert!(matches!(error, VindexError::NoFolder { .. }), "{error}");
    assert_eq!(names(dir.path()), ["m.vindex"]);
}

/// The tensors are the same, the file is not: what a copy by digest would call changed is said.
#[test]
fn a_file_whose_header_is_laid_out_otherwise_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (from, made, back) = (
        dir.path().join("from"),
        dir.path().join("m.vindex"),
        dir.path().join("back"),
    );
    fs::create_dir(&from).unwrap();
    let fixture = parity_fixture("qwen3");
    fs::copy(fixture.join("config.json"), from.join("config.json")).unwrap();
    let bytes = fs::read(fixture.join("model.safetensors")).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let (header, data) = bytes[8..].split_at(n as usize);
    let longer = [&(n + 16).to_le_bytes()[..], header, &[b' '; 16], data].concat();
    fs::write(from.join("model.safetensors"), longer).unwrap();
    let source = Checkpoint::open(&from).unwrap();
    extract(
        &source,
        None,
        &made,
        &ExtractOptions::at(Level::All),
        &mut go_on,
    )
    .unwrap();
    let vindex = Vindex::open(&made).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    let exported = source_of(&vindex, &checkpoint);
    let report = export_safetensors(exported, &back, None, &mut go_on).unwrap();
    assert_eq!(
        report.notes,
        [
            "model.safetensors is not byte for byte the file of the source: its tensors come back, its header was laid out in another way"
        ]
    );
    assert!(fs::read(back.join("model.safetensors")).unwrap() == bytes);
}

/// The digest is of other tensors than those that come back, as after a mistake in what moves rows.
#[test]
fn a_tensor_that_comes_back_otherwise_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("m.vindex");
    let source = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let options = ExtractOptions::at(Level::All);
    extract(&source, None, &made, &options, &mut go_on).unwrap();
    let good = Vindex::open(&made).unwrap().manifest().clone();
    for (edit_header, expected) in [
        (
            true,
            "its tensors come back, its header was laid out in another way",
        ),
        (false, "it has other tensors"),
    ] {
        let mut manifest = good.clone();
        let digest = &mut manifest.source.files[0].digest;
        let SourceDigest::Parts {
            header_sha256,
            changed_sha256,
        } = digest
        else {
            panic!("{digest:?}")
        };
        match edit_header {
            true => *header_sha256 = "a".repeat(64),
            false => *changed_sha256 = Some("a".repeat(64)),
        }
        manifest.seal();
        fs::write(made.join("vindex.json"), manifest.encode()).unwrap();
        let vindex = Vindex::open(&made).unwrap();
        let checkpoint = vindex.checkpoint().unwrap();
        let back = dir.path().join(format!("back-{edit_header}"));
        let exported = source_of(&vindex, &checkpoint);
        let report = export_safetensors(exported, &back, None, &mut go_on).unwrap();
        let expected =
            format!("model.safetensors is not byte for byte the file of the source: {expected}");
        assert_eq!(report.notes, [expected]);
    }
}

/// Vindexes of version 0.1.0 state a digest of the whole file, which is compared as before.
#[test]
fn a_digest_of_the_whole_is_compared_too() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("m.vindex");
    let from = parity_fixture("llama");
    let source = Checkpoint::open(&from).unwrap();
    let options = ExtractOptions::at(Level::All);
    extract(&source, None, &made, &options, &mut go_on).unwrap();
    let good = Vindex::open(&made).unwrap().manifest().clone();
    let whole = sha256(&fs::read(from.join("model.safetensors")).unwrap());
    for (sha256, n_notes) in [(whole, 0), ("a".repeat(64), 1)] {
        let mut manifest = good.clone();
        manifest.source.files[0].digest = SourceDigest::Whole { sha256 };
        manifest.seal();
        fs::write(made.join("vindex.json"), manifest.encode()).unwrap();
        let vindex = Vindex::open(&made).unwrap();
        let checkpoint = vindex.checkpoint().unwrap();
        let back = dir.path().join(format!("back-{n_notes}"));
        let exported = source_of(&vindex, &checkpoint);
        let report = export_safetensors(exported, &back, None, &mut go_on).unwrap();
        assert_eq!(report.notes.len(), n_notes, "{:?}", report.notes);
    }
}
