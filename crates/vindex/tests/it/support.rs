//! Tiny checkpoints to extract, and a tokenizer for them.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_formats::gguf::{Array, Value};
use larql_models::Checkpoint;
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::tokenizer::Tokenizer;
use larql_vindex::{ExtractOptions, ExtractReport, Level, Progress, VindexError, extract};
use serde_json::json;
use sha2::{Digest, Sha256};

pub(crate) const FIXTURES: [&str; 9] = [
    "llama",
    "llama-rope3",
    "llama-yarn",
    "mistral-sliding",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
];

pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testkit/data/parity")
        .join(name)
}

pub(crate) fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture_path(name)).unwrap()
}

/// A folder like the fixture's, with a tokenizer and without the golden file, in `dir`.
pub(crate) fn folder(dir: &Path, name: &str) -> PathBuf {
    let folder = dir.join(format!("{name} source"));
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(fixture_path(name).join(file), folder.join(file)).unwrap();
    }
    fs::write(folder.join("tokenizer.json"), tokenizer_json()).unwrap();
    let config = json!({"bos_token": "!", "eos_token": "#", "add_bos_token": true, "chat_template": "{{ messages }}"});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// The character by which byte-level vocabularies write each byte.
fn byte_pieces() -> Vec<String> {
    let mut next = 256u32;
    (0..=255u8)
        .map(|byte| {
            let shown = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if shown { u32::from(byte) } else { next };
            next += u32::from(!shown);
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// Bytes as tokens, and one merge.
fn tokenizer_json() -> String {
    let mut pieces = byte_pieces();
    pieces.push("th".to_owned());
    let vocab: serde_json::Map<String, serde_json::Value> = pieces
        .into_iter()
        .zip(0..)
        .map(|(piece, id)| (piece, json!(id)))
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "!", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
            ],
            "pair": [
                { "Sequence": { "id": "A", "type_id": 0 } },
                { "Sequence": { "id": "B", "type_id": 1 } },
            ],
            "special_tokens": { "!": { "id": "!", "ids": [33], "tokens": ["!"] } },
        }, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["t", "h"]],
        },
    })
    .to_string()
}

/// The fixture as a GGUF file with a vocabulary inside.
pub(crate) fn gguf(path: &Path, name: &str) {
    let checkpoint = fixture(name);
    let mut plan = GgufPlan::new(&checkpoint, GgufContent::Whole).unwrap();
    let mut pieces = byte_pieces();
    pieces.push("th".to_owned());
    let n = pieces.len();
    let metadata = plan.metadata_mut();
    metadata.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.set("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    let strings =
        |list: Vec<String>| Value::Array(Array::Strings(list.iter().map(String::as_str).collect()));
    metadata.set("tokenizer.ggml.tokens", strings(pieces));
    metadata.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![1; n])),
    );
    metadata.set("tokenizer.ggml.merges", strings(vec!["t h".to_owned()]));
    metadata.set("tokenizer.ggml.bos_token_id", Value::U32(5));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(6));
    metadata.set("tokenizer.ggml.padding_token_id", Value::U32(7));
    fs::write(path, plan.write(&checkpoint, Vec::new()).unwrap()).unwrap();
}

pub(crate) fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Extracts with the source's own tokenizer, if it has one.
pub(crate) fn run(source: &Path, out: &Path, level: Level) -> Result<ExtractReport, VindexError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let tokenizer: Option<Tokenizer> = checkpoint.tokenizer().ok();
    extract(
        &checkpoint,
        tokenizer.as_ref(),
        out,
        &ExtractOptions::at(level),
        &mut go_on,
    )
}

/// Names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
