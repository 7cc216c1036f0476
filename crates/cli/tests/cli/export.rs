//! What `export` and `quantize` tell about the files they write, and what is left when they cannot.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{larql, larql_in_shell, model, reference};

/// The notes of a command that writes a model.
fn notes(args: &[&str]) -> Vec<String> {
    let made = larql(args.iter().chain(&["--format", "json"])).json();
    made["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note.as_str().unwrap().to_owned())
        .collect()
}

fn count(notes: &[String], text: &str) -> usize {
    notes.iter().filter(|note| note.contains(text)).count()
}

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_model_without_a_tokenizer_gives_files_without_vocabulary_and_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, q8, vindex) = (
        path(&dir, "a.gguf"),
        path(&dir, "q8.gguf"),
        path(&dir, "a.vindex"),
    );
    let llama = reference("llama");
    for args in [
        &["export", &llama, "--to", "gguf", "-o", &gguf][..],
        &["quantize", &llama, "q8_0", "-o", &q8],
    ] {
        let notes = notes(args);
        assert_eq!(count(&notes, "no vocabulary"), 1, "{notes:?}");
    }
    larql(["extract", &llama, "-o", &vindex, "--format", "json"]).json();
    for (model, name) in [(&gguf, "of-gguf"), (&vindex, "of-vindex")] {
        let out = path(&dir, name);
        let notes = notes(&["export", model, "--to", "safetensors", "-o", &out]);
        let expected = ["the folder has no tokenizer files, as its source had none"];
        assert_eq!(notes, expected, "{name}");
    }
}

#[test]
fn matrices_that_a_type_rounds_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = path(&dir, "a.gguf");
    larql([
        "export",
        &reference("gpt2"),
        "--to",
        "gguf",
        "-o",
        &gguf,
        "--quiet",
    ])
    .run();
    let rounded = |dtype: &str| {
        let out = path(&dir, dtype);
        notes(&[
            "export",
            &gguf,
            "--to",
            "safetensors",
            "-o",
            &out,
            "--dtype",
            dtype,
        ])
    };
    // The fixture holds bfloat16 values; some of them are too small to be exact in half precision.
    assert_eq!(
        count(&rounded("float16"), "14 of 18 matrices are rounded"),
        1
    );
    assert_eq!(count(&rounded("bfloat16"), "rounded"), 0);
    assert_eq!(count(&rounded("float32"), "rounded"), 0);
}

#[test]
fn decoding_to_float32_needs_no_permission_and_rounding_does() {
    let dir = tempfile::tempdir().unwrap();
    let q8 = path(&dir, "q8.gguf");
    let source = reference("gpt2");
    larql(["quantize", &source, "q8_0", "-o", &q8, "--format", "json"]).json();
    let out = path(&dir, "f32.gguf");
    larql(["quantize", &q8, "f32", "-o", &out, "--format", "json"]).json();
    let types = larql(["show", &out, "--format", "json"]).json()["stored_types"].clone();
    assert_eq!(
        types.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["F32"]
    );
    for (mix, hint) in [
        (
            "bf16",
            "f32 holds the decoded values exactly; pass --requantize to have them rounded to bf16",
        ),
        (
            "q4_0",
            "quantize from the original weights, or pass --requantize to add the second error to the first",
        ),
    ] {
        let out = path(&dir, "refused.gguf");
        for args in [
            &["quantize", &q8, mix, "-o", &out][..],
            &["extract", &q8, "-o", &out, "--quant", mix],
        ] {
            let ran = larql(args.iter().chain(&["--format", "json"])).run();
            assert_eq!((ran.code, ran.error()["hint"].as_str()), (1, Some(hint)));
            assert!(!Path::new(&out).exists());
        }
    }
}

#[test]
fn tensors_of_the_source_are_counted_once_however_many_matrices_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    for (family, level, used, pieces, left_out) in [
        ("gpt-oss", "all", 71, 199, 0),
        ("gpt2", "inference", 52, 68, 0),
        ("phi3", "browse", 19, 23, 8),
    ] {
        let out = path(&dir, family);
        let made = larql([
            "extract",
            &reference(family),
            "-o",
            &out,
            "--level",
            level,
            "--format",
            "json",
        ])
        .json();
        let number = |name: &str| made[name].as_u64().unwrap();
        let counts = [number("used"), number("pieces"), number("left_out")];
        assert_eq!(counts, [used, pieces, left_out], "{family}");
        assert_eq!(number("source_tensors"), used + left_out, "{family}");
        let tensors = made["tensors"].as_array().unwrap();
        assert_eq!(tensors.len() as u64, used + left_out, "{family}");
        for (fate, n) in [("used", used), ("left_out", left_out)] {
            let of = tensors.iter().filter(|tensor| tensor["fate"] == fate);
            assert_eq!(of.clone().count() as u64, n, "{family}");
            assert!(
                of.clone()
                    .all(|tensor| tensor["reason"].is_null() == (fate == "used"))
            );
        }
        let kept = tensors.iter().filter(|tensor| tensor["kept_apart"] == true);
        assert_eq!(kept.count() as u64, number("kept_apart"), "{family}");
        // What is left out is not counted among what is stored.
        let stored = made["stored_types"].as_object().unwrap().values();
        let stored: u64 = stored.map(|bytes| bytes.as_u64().unwrap()).sum();
        let shown = larql(["show", &out, "--format", "json"]).json();
        assert!(
            shown["weight_bytes"].as_u64().unwrap() >= stored,
            "{family}"
        );
    }
}

#[test]
fn a_quantization_is_told_in_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let out = path(&dir, "small.gguf");
    let made = larql(["quantize", model(), "q8_0", "-o", &out, "--format", "json"]).json();
    let bits = made["bits_per_weight"].as_f64().unwrap();
    assert!((8.4..8.7).contains(&bits), "{bits}");
    let types = made["types"].as_object().unwrap();
    let n: u64 = types.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(n, made["tensors"].as_u64().unwrap());
    assert!(types.contains_key("Q8_0"), "{made}");
}

#[test]
fn the_highest_level_has_none_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let (vindex, out) = (path(&dir, "a.vindex"), path(&dir, "a"));
    let llama = reference("llama");
    larql(["extract", &llama, "-o", &vindex, "--level", "inference"]).run();
    let ran = larql([
        "export",
        &vindex,
        "--to",
        "safetensors",
        "-o",
        &out,
        "--format",
        "json",
    ])
    .run();
    assert_eq!(
        (ran.code, ran.error()["hint"].as_str()),
        (1, Some("extract llama again with --level all"))
    );
}

#[test]
fn a_file_that_is_cut_off_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = path(&dir, "a.gguf");
    let llama = reference("llama");
    larql(["export", &llama, "--to", "gguf", "-o", &gguf, "--quiet"]).run();
    let whole = fs::read(&gguf).unwrap();
    for n in [10, 500, whole.len() / 2, whole.len() - 1] {
        fs::write(&gguf, &whole[..n]).unwrap();
        let ran = larql(["show", &gguf, "--format", "json"]).run();
        let hint = ran.error()["hint"].as_str().unwrap_or("none").to_owned();
        assert!(ran.code == 1 && hint.contains("cut off"), "{n}: {ran:?}");
    }
}

/// Runs into the limit on the size of files, which ends a process that has not prepared for it.
#[cfg(unix)]
#[test]
fn a_limit_on_file_sizes_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let llama = reference("llama");
    for args in [
        &["extract", &llama, "-o", "a.vindex"][..],
        &["export", &llama, "--to", "gguf", "-o", "a.gguf"],
        &["quantize", &llama, "f32", "-o", "f32.gguf"],
    ] {
        let ran = larql_in_shell("ulimit -f 100", args.iter().chain(&["--format", "json"]))
            .dir(dir.path())
            .run();
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        let error = ran.error();
        assert!(
            error["hint"].as_str().unwrap().contains("ulimit -f"),
            "{error}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?}");
    }
}

/// A copy of the embedded model in which one text is another one.
fn altered(name: &str, alter: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model()).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, dir.path().join(from.file_name().unwrap())).unwrap();
    }
    let file = dir.path().join(name);
    let mut value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    alter(&mut value);
    fs::write(&file, value.to_string()).unwrap();
    dir
}

#[test]
fn a_broken_tokenizer_is_an_error_and_not_a_file_without_vocabulary() {
    let out = tempfile::tempdir().unwrap();
    let added = json!({"id": 99999, "content": "<zz>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    let cases = [
        (
            altered("tokenizer.json", |v| *v = json!({})),
            "tokenizer.json",
        ),
        (
            altered("tokenizer.json", |v| {
                v["added_tokens"].as_array_mut().unwrap().push(added);
            }),
            "added token `<zz>` declares id 99999",
        ),
        (
            altered("tokenizer.json", |v| v["normalizer"] = json!({"type": "X"})),
            "tokenizer.json",
        ),
        (
            altered("tokenizer_config.json", |v| v["bos_token"] = json!("<no>")),
            "bos_token names `<no>`, which is not in the vocabulary",
        ),
        (
            altered("config.json", |v| v["eos_token_id"] = json!("x")),
            "eos_token_id must be a token id",
        ),
        (
            altered("config.json", |v| v["eos_token_id"] = json!(99999)),
            "99999",
        ),
    ];
    for (source, message) in &cases {
        let source = source.path().to_str().unwrap();
        let file = path(&out, "o.gguf");
        for args in [
            &["export", source, "--to", "gguf", "-o", &file][..],
            &["quantize", source, "q8_0", "-o", &file],
        ] {
            let ran = larql(args.iter().chain(&["--format", "json"])).run();
            assert_eq!(ran.code, 1, "{message}: {ran:?}");
            let error = ran.error();
            let found = error["message"].as_str().unwrap();
            assert!(found.contains(message), "{message}: {found}");
            assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{message}");
        }
    }
}

#[test]
fn a_broken_vocabulary_is_an_error_and_not_a_folder_without_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let (file, folder) = (path(&dir, "o.gguf"), path(&dir, "folder"));
    let made = larql(["export", model(), "--to", "gguf", "-o", &file]).run();
    assert_eq!(made.code, 0, "{made:?}");
    let mut bytes = fs::read(&file).unwrap();
    let key = b"tokenizer.ggml.eos_token_id";
    let at = bytes.windows(key.len()).position(|part| part == key);
    // The key is followed by its type.
    let value = at.unwrap() + key.len() + 4;
    bytes[value..value + 4].copy_from_slice(&99_999_u32.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let ran = larql(["export", &file, "--to", "safetensors", "-o", &folder]).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.stderr.contains("tokenizer.ggml.eos_token_id is 99999"),
        "{}",
        ran.stderr
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_tokenizer_that_gguf_cannot_express_is_left_out_with_a_note() {
    let out = tempfile::tempdir().unwrap();
    let of_another_kind = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let cases = [
        (
            altered("tokenizer.json", |v| v["decoder"] = of_another_kind),
            "decoder `WordPiece` is not supported",
        ),
        (
            altered("tokenizer.json", |v| {
                v["model"]["end_of_word_suffix"] = json!("~");
            }),
            "model.end_of_word_suffix is `~`",
        ),
    ];
    for (i, (source, why)) in cases.iter().enumerate() {
        let file = path(&out, &format!("{i}.gguf"));
        let source = source.path().to_str().unwrap();
        let notes = notes(&["export", source, "--to", "gguf", "-o", &file]);
        let of_vocabulary: Vec<&String> = notes
            .iter()
            .filter(|note| note.contains("carries no vocabulary"))
            .collect();
        assert!(
            of_vocabulary.len() == 1 && of_vocabulary[0].contains(why),
            "{why}: {notes:?}"
        );
    }
}

#[test]
fn a_gguf_gets_a_name_by_which_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let llama = reference("llama");
    for (name, better) in [
        ("a.txt", "a.gguf"),
        ("a", "a.gguf"),
        ("q.gguf/", "q.gguf"),
        (".gguf", ".gguf.gguf"),
    ] {
        let (out, better) = (path(&dir, name), path(&dir, better));
        for args in [
            &["export", &llama, "--to", "gguf", "-o", &out][..],
            &["quantize", &llama, "q8_0", "-o", &out],
        ] {
            let ran = larql(args.iter().chain(&["--format", "json"])).run();
            assert_eq!(ran.code, 1, "{ran:?}");
            let error = ran.error();
            assert_eq!(error["kind"], "not_a_gguf_name");
            assert_eq!(
                error["message"],
                format!("{out}: not a name for a GGUF, which is one file whose name ends in .gguf")
            );
            assert_eq!(error["hint"], format!("for example {better}"));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
