//! A checkpoint becomes a vindex and comes back the same, or nothing is left.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use larql_formats::TensorInfo;
use larql_formats::gguf::{GgufFile, GgufWriter, Value};
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::Quantization;
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_models::{Checkpoint, LayerTensor, TensorRole};
use larql_vindex::{
    ExportSource, ExtractOptions, Level, Progress, SourceDigest, SourceFile, SourceKind,
    TensorPlace, TokenizerPlace, Vindex, WeightsPlacement, export_gguf, extract,
};

use crate::support::{
    FIXTURES, bits, fixture, fixture_path, folder, gguf, go_on, names, run, sha256,
};

#[test]
fn every_family_comes_back_with_its_spec_and_every_value() {
    let dir = tempfile::tempdir().unwrap();
    for name in FIXTURES {
        let source = fixture(name);
        let out = dir.path().join(format!("{name}.vindex"));
        let options = ExtractOptions::at(Level::Inference);
        let report = extract(&source, None, &out, &options, &mut go_on).unwrap();
        assert_eq!(report.n_used, source.roles().len(), "{name}");
        assert_eq!(report.weights, WeightsPlacement::Written, "{name}");
        assert_eq!(report.notes, [] as [&str; 0], "{name}");
        let vindex = Vindex::open(&out).unwrap();
        assert_eq!(vindex.manifest().spec, *source.spec(), "{name}");
        assert_eq!(vindex.manifest().source.kind, SourceKind::HuggingFace);
        let checkpoint = vindex.checkpoint().unwrap();
        assert_eq!(checkpoint.roles(), source.roles(), "{name}");
        for role in source.roles() {
            let (ours, theirs) = (
                checkpoint.tensor(role).unwrap(),
                source.tensor(role).unwrap(),
            );
            assert_eq!(
                bits(&ours.to_f32()),
                bits(&theirs.to_f32()),
                "{name}: {role}"
            );
        }
    }
    assert_eq!(names(dir.path()).len(), FIXTURES.len(), "no debris");
}

#[test]
fn a_folder_is_kept_with_its_tokenizer_and_at_level_all_with_its_texts() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "gemma2");
    let out = dir.path().join("a b.vindex");
    let report = run(&source, &out, Level::All).unwrap();
    assert_eq!(
        names(&out),
        ["tokenizer.json", "vindex.json", "weights.gguf"]
    );
    let read = |path: &Path| fs::read(path).unwrap();
    assert_eq!(
        read(&out.join("tokenizer.json")),
        read(&source.join("tokenizer.json"))
    );
    let sizes: u64 = names(&out)
        .iter()
        .map(|name| fs::metadata(out.join(name)).unwrap().len())
        .sum();
    assert_eq!((report.bytes, report.bytes_written), (sizes, sizes));
    let vindex = Vindex::open(&out).unwrap();
    let manifest = vindex.manifest();
    assert_eq!(manifest.source.name, "gemma2 source");
    assert_eq!(
        manifest.source.text("config.json").unwrap().as_bytes(),
        read(&source.join("config.json"))
    );
    let kept: Vec<_> = manifest
        .source
        .texts
        .iter()
        .map(|text| text.name.as_str())
        .collect();
    assert_eq!(
        kept,
        [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json"
        ]
    );
    assert_eq!(
        manifest.source.tensors.len(),
        fixture("gemma2").container().tensors().len()
    );
    assert!(
        manifest
            .source
            .tensors
            .iter()
            .all(|tensor| tensor.dtype == "BF16")
    );
    let entry = manifest.tokenizer.as_ref().unwrap();
    assert_eq!(entry.place, TokenizerPlace::File);
    assert_eq!(entry.chat_template.as_deref(), Some("{{ messages }}"));
    let (ours, theirs) = (
        vindex.tokenizer().unwrap(),
        Checkpoint::open(&source).unwrap().tokenizer().unwrap(),
    );
    let encode = |t: &larql_models::tokenizer::Tokenizer| {
        t.encode("the path", EncodeSpecial::Plain, Bos::Model)
            .unwrap()
    };
    assert_eq!(encode(&ours), encode(&theirs));
    assert_eq!(
        encode(&ours)[..2],
        [33, 256],
        "beginning of sequence, then the merge"
    );
    assert_eq!(ours.special(), theirs.special());
    let lean = dir.path().join("lean");
    run(&source, &lean, Level::Inference).unwrap();
    let lean = Vindex::open(&lean).unwrap();
    assert_eq!(
        (
            lean.manifest().source.texts.len(),
            lean.manifest().source.tensors.len()
        ),
        (0, 0)
    );
    assert_eq!(
        lean.manifest().digest,
        manifest.digest,
        "the level is no part of the model"
    );
}

/// The digests of a file of safetensors, worked out from its bytes and what the manifest says of its tensors.
#[test]
fn a_shard_s_digests_are_of_its_header_and_of_what_no_listed_file_holds() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "gemma3", "qwen3", "gpt-oss"] {
        let path = fixture_path(name);
        let file = fs::read(path.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let source = Checkpoint::open(&path).unwrap();
        let recorded = |level: Level| {
            let out = dir.path().join(format!("{name}-{level}"));
            let options = ExtractOptions::at(level);
            extract(&source, None, &out, &options, &mut go_on).unwrap();
            Vindex::open(&out).unwrap().manifest().source.clone()
        };
        let all = recorded(Level::All);
        let (mut at, mut changed, mut n_held) = (header, Vec::new(), 0);
        for (tensor, info) in all.tensors.iter().zip(source.container().tensors()) {
            assert_eq!(tensor.name, info.name);
            let end = at + info.n_bytes as usize;
            match tensor.place {
                TensorPlace::Changed => changed.extend_from_slice(&file[at..end]),
                TensorPlace::Weights | TensorPlace::Kept => n_held += 1,
            }
            at = end;
        }
        assert_eq!(at, file.len());
        assert!(n_held > 0 && !changed.is_empty(), "{name}");
        let digest = SourceDigest::Parts {
            header_sha256: sha256(&file[..header]),
            changed_sha256: Some(sha256(&changed)),
        };
        let entry = SourceFile {
            name: "model.safetensors".to_owned(),
            size: file.len() as u64,
            digest,
        };
        assert_eq!(all.files, std::slice::from_ref(&entry), "{name}");
        // Less is held, so that more is under the source's own digest.
        let browse = recorded(Level::Browse);
        assert_ne!(browse.files[0].digest, entry.digest, "{name}");
    }
}

/// Nothing of what is encoded anew is held: the tensors' own digest is of all of them.
#[test]
fn a_quantized_vindex_knows_every_byte_of_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture_path("qwen3");
    let source = Checkpoint::open(&path).unwrap();
    let out = dir.path().join("q");
    let mut options = ExtractOptions::at(Level::All);
    options.quantization = Some(Quantization {
        mix: Mix::Q8_0,
        requantize: false,
    });
    extract(&source, None, &out, &options, &mut go_on).unwrap();
    let file = fs::read(path.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    assert_eq!(
        Vindex::open(&out).unwrap().manifest().source.files[0].digest,
        SourceDigest::Parts {
            header_sha256: sha256(&file[..header]),
            changed_sha256: Some(sha256(&file[header..])),
        }
    );
}

/// A vindex has tokenizer.json: what its weights file cannot say of it concerns those who read that file alone.
#[test]
fn notes_on_a_vocabulary_name_the_file_that_they_are_about() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "qwen3");
    let path = source.join("tokenizer.json");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace(r#""normalizer":null"#, r#""normalizer":{"type":"NFC"}"#);
    fs::write(&path, text).unwrap();
    let notes = run(&source, &dir.path().join("m.vindex"), Level::All)
        .unwrap()
        .notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].starts_with(
            "weights.gguf, for programs that read it alone: tokenizer.json composes characters"
        ),
        "{notes:?}"
    );
    let checkpoint = Checkpoint::open(&source).unwrap();
    let direct = ExportSource {
        checkpoint: &checkpoint,
        vindex: None,
    };
    let out = dir.path().join("m.gguf");
    let report = export_gguf(direct, &out, None, NonZeroUsize::MIN, &mut go_on).unwrap();
    assert!(
        report.notes[0].starts_with("the exported file: tokenizer.json composes characters"),
        "{:?}",
        report.notes
    );
}

#[test]
fn what_a_vindex_leaves_out_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "qwen3");
    let said = |level: Level, out: &str| {
        let report = run(&source, &dir.path().join(out), level).unwrap();
        let notes = report.notes.into_iter();
        notes
            .filter(|note| note.starts_with("left out of"))
            .collect::<Vec<_>>()
    };
    assert_eq!(said(Level::All, "nothing"), [""; 0]);
    for name in ["LICENSE", ".gitattributes", "modeling_x.py"] {
        fs::write(source.join(name), "x").unwrap();
    }
    assert_eq!(
        said(Level::All, "a"),
        ["left out of the vindex: LICENSE, modeling_x.py"]
    );
    fs::write(source.join("merges.txt"), "x").unwrap();
    assert_eq!(
        said(Level::All, "b"),
        [
            "left out of the vindex: LICENSE, merges.txt, modeling_x.py (tokenizer.json is what is read)"
        ]
    );
    assert_eq!(said(Level::Inference, "c"), [""; 0]);
    for i in 0..11 {
        fs::write(source.join(format!("p{i:02}.png")), "x").unwrap();
    }
    let note = said(Level::All, "d").remove(0);
    assert!(note.contains("p08.png and 2 more ("), "{note}");
}

#[cfg(unix)]
#[test]
fn a_gguf_file_is_linked_with_its_vocabulary_inside() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("blob");
    gguf(&real, "qwen2");
    let source = dir.path().join("model.gguf");
    std::os::unix::fs::symlink("blob", &source).unwrap();
    let out = dir.path().join("q.vindex");
    let report = run(&source, &out, Level::All).unwrap();
    assert_eq!(names(&out), ["vindex.json", "weights.gguf"]);
    assert_eq!(report.weights, WeightsPlacement::Linked);
    let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    assert_eq!(inode(&out.join("weights.gguf")), inode(&real));
    let manifest_bytes = fs::metadata(out.join("vindex.json")).unwrap().len();
    assert_eq!(report.bytes_written, manifest_bytes);
    assert_eq!(
        report.bytes,
        manifest_bytes + fs::metadata(&real).unwrap().len()
    );
    let vindex = Vindex::open(&out).unwrap();
    let sha256 = vindex.manifest().files[0].sha256.clone();
    assert_eq!(
        vindex.manifest().source.files[0].digest,
        SourceDigest::Whole { sha256 }
    );
    let ids = vindex
        .tokenizer()
        .unwrap()
        .encode("th!", EncodeSpecial::Plain, Bos::Never)
        .unwrap();
    assert_eq!(ids, [256, 33]);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let plain = dir.path().join("plain");
    fs::create_dir(&plain).unwrap();
    assert_eq!(
        mode(&out),
        mode(&plain),
        "as visible as any other directory"
    );
}

#[test]
fn a_vindex_can_be_extracted_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    let options = ExtractOptions::at(Level::Inference);
    let source = Checkpoint::open(&folder(dir.path(), "llama-yarn")).unwrap();
    let tokenizer = source.tokenizer().unwrap();
    extract(&source, Some(&tokenizer), &first, &options, &mut go_on).unwrap();
    let first = Vindex::open(&first).unwrap();
    let second = dir.path().join("second");
    let tokenizer = first.tokenizer().unwrap();
    extract(
        &first.checkpoint().unwrap(),
        Some(&tokenizer),
        &second,
        &options,
        &mut go_on,
    )
    .unwrap();
    let second = Vindex::open(&second).unwrap();
    assert_eq!(second.manifest().spec, first.manifest().spec);
    assert_eq!(second.manifest().files[0], first.manifest().files[0]);
    assert_eq!(second.tokenizer().unwrap().special(), tokenizer.special());
}

/// Writes the tensors of a GGUF over two files.
fn split(whole: &Path, dir: &Path) -> std::path::PathBuf {
    let file = GgufFile::open(whole).unwrap();
    let half = file.tensors().len() / 2;
    let mut paths = Vec::new();
    for (no, tensors) in [
        (0u16, &file.tensors()[..half]),
        (1, &file.tensors()[half..]),
    ] {
        let mut metadata = if no == 0 {
            file.metadata().clone()
        } else {
            larql_formats::gguf::Metadata::new()
        };
        metadata.set("split.no", Value::U16(no));
        metadata.set("split.count", Value::U16(2));
        metadata.set(
            "split.tensors.count",
            Value::I32(file.tensors().len() as i32),
        );
        let mut writer = GgufWriter::new(metadata, file.alignment()).unwrap();
        for info in tensors {
            writer.declare(TensorInfo::clone(info)).unwrap();
        }
        let path = dir.join(format!("m-{:05}-of-00002.gguf", no + 1));
        let mut stream = writer.begin(fs::File::create(&path).unwrap()).unwrap();
        for info in tensors {
            stream
                .write_tensor_bytes(&info.name, &file.data(&info.name).unwrap())
                .unwrap();
        }
        stream.finish().unwrap();
        paths.push(path);
    }
    paths.remove(0)
}

#[test]
fn a_split_gguf_becomes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.gguf");
    gguf(&whole, "gemma3");
    let first = split(&whole, dir.path());
    let out = dir.path().join("out");
    let report = run(&first, &out, Level::Inference).unwrap();
    assert_eq!(report.weights, WeightsPlacement::Written);
    assert_eq!(
        fs::read(out.join("weights.gguf")).unwrap(),
        fs::read(&whole).unwrap()
    );
    let vindex = Vindex::open(&out).unwrap();
    let sources: Vec<_> = vindex
        .manifest()
        .source
        .files
        .iter()
        .map(|file| file.name.as_str())
        .collect();
    assert_eq!(sources, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
    assert_eq!(vindex.tokenizer().unwrap().n_vocab(), 257);
}

#[test]
fn level_browse_leaves_attention_out_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    gguf(&file, "llama-rope3");
    let from_folder = folder(dir.path(), "qwen3");
    for (source, n_used) in [(file, 2 + 4 * 5), (from_folder, 2 + 4 * 5)] {
        let source_checkpoint = Checkpoint::open(&source).unwrap();
        let out = dir
            .path()
            .join(format!("{n_used}-{}", source.extension().is_some()));
        let report = run(&source, &out, Level::Browse).unwrap();
        assert_eq!(report.weights, WeightsPlacement::Written);
        let vindex = Vindex::open(&out).unwrap();
        let tensors = vindex.tensors().unwrap();
        let has_head = usize::from(!source_checkpoint.spec().head.tied);
        assert_eq!(
            (report.n_used, tensors.len()),
            (n_used + has_head, n_used + has_head)
        );
        for tensor in &tensors {
            let theirs = source_checkpoint.tensor(tensor.role).unwrap();
            assert_eq!(
                bits(&tensor.to_f32()),
                bits(&theirs.to_f32()),
                "{}",
                tensor.role
            );
        }
        let gate = TensorRole::Layer(2, LayerTensor::Gate);
        assert_eq!(vindex.tensor(gate).unwrap().shape, [104, 56]);
        let error = vindex
            .tensor(TensorRole::Layer(2, LayerTensor::K))
            .unwrap_err();
        let name = source.file_name().unwrap().to_str().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: needs level inference, this vindex has browse",
                out.display()
            )
        );
        assert_eq!(
            error.hint().unwrap(),
            format!("extract {name} again with --level inference or higher")
        );
        let error = vindex.checkpoint().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: needs level inference, this vindex has browse",
                out.display()
            )
        );
        assert!(vindex.tokenizer().is_ok());
    }
}

#[test]
fn levels_are_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("v");
    run(&folder(dir.path(), "llama"), &out, Level::Inference).unwrap();
    let vindex = Vindex::open(&out).unwrap();
    let allowed = Level::ALL.map(|level| vindex.requires(level).is_ok());
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn what_exists_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path(), "llama");
    let out = dir.path().join("taken");
    fs::create_dir(&out).unwrap();
    let error = run(&source, &out, Level::All).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: exists already", out.display())
    );
    assert_eq!(
        error.hint().unwrap(),
        format!(
            "remove {} or choose another name; nothing is overwritten",
            out.display()
        )
    );
    fs::remove_dir(&out).unwrap();
    fs::write(&out, "a file").unwrap();
    assert_eq!(
        run(&source, &out, Level::All).unwrap_err().to_string(),
        format!("{}: exists already", out.display())
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), "a file");
    let error = run(&source, Path::new("/"), Level::All).unwrap_err();
    assert_eq!(error.to_string(), "/: not a name for a new directory");
    let nowhere = dir.path().join("no/such");
    let error = run(&source, &nowhere, Level::All).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: there is no such folder",
            dir.path().join("no").display()
        )
    );
    assert_eq!(names(dir.path()), ["llama source", "taken"]);
}

/// Stops at the n-th report, for every n, and looks for debris; also by panic.
#[test]
fn an_interrupted_extraction_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    gguf(&file, "gemma");
    let source = folder(dir.path(), "gemma");
    let before = names(dir.path());
    let out = dir.path().join("out");
    for (source, level) in [
        (&source, Level::All),
        (&file, Level::All),
        (&file, Level::Browse),
    ] {
        let checkpoint = Checkpoint::open(source).unwrap();
        let tokenizer = checkpoint.tokenizer().unwrap();
        let options = ExtractOptions::at(level);
        let mut stages = Vec::new();
        for stop_at in 0..1000 {
            let mut n = 0;
            let mut seen = None;
            let mut progress = |progress: Progress| {
                assert!(progress.done <= progress.total, "{progress:?}");
                n += 1;
                seen = Some(progress.stage);
                if n > stop_at {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            match extract(&checkpoint, Some(&tokenizer), &out, &options, &mut progress) {
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(
                        error.to_string(),
                        format!("interrupted during {}", seen.unwrap())
                    );
                    stages.push(seen.unwrap());
                }
            }
            assert_eq!(names(dir.path()), before, "after {stop_at} reports");
            let panicked = std::panic::catch_unwind(|| {
                let mut n = 0;
                let mut progress = |_: Progress| {
                    n += 1;
                    assert!(n <= stop_at, "the caller died");
                    ControlFlow::Continue(())
                };
                extract(&checkpoint, Some(&tokenizer), &out, &options, &mut progress)
            });
            // How often the digests report depends on how long they are waited for.
            if panicked.is_ok() {
                fs::remove_dir_all(&out).unwrap();
            }
            assert_eq!(
                names(dir.path()),
                before,
                "after a panic at report {stop_at}"
            );
        }
        stages.dedup();
        let expected: &[&str] = match (source == &file, level) {
            (true, Level::Browse) => &["weights", "digest of the source", "files"],
            (true, _) => &["digest", "files"],
            (false, _) => &["weights", "files", "digest of the source", "files"],
        };
        assert_eq!(stages, expected);
        fs::remove_dir_all(&out).unwrap();
    }
}
