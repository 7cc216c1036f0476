//! Sessions on Atlas and rows as text.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use larql_db::{Cell, DbError, Rows, Session, SessionOptions};
use larql_engine::{Interrupt, Profile};
use larql_lql::parse;
use larql_models::Checkpoint;
use larql_testkit::atlas;
use larql_vindex::{ExtractOptions, Level, extract};
use tempfile::TempDir;

/// A session without a model.
pub(crate) fn session() -> Session {
    Session::new(SessionOptions {
        n_threads: NonZeroUsize::new(2).unwrap(),
        profile: Profile::Exact,
        interrupt: Interrupt::default(),
        models_dir: Some(models()),
    })
}

/// A session on Atlas as it comes.
pub(crate) fn atlas_session() -> Session {
    let mut session = session();
    session.open(atlas()).unwrap();
    session
}

/// A fresh vindex of Atlas.
pub(crate) fn vindex(level: Level) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("atlas.vindex");
    let source = Checkpoint::open(atlas()).unwrap();
    let tokenizer = source.tokenizer().unwrap();
    extract(
        &source,
        Some(&tokenizer),
        &out,
        &ExtractOptions::at(level),
        &mut |_| ControlFlow::Continue(()),
    )
    .unwrap();
    (folder, out)
}

/// A folder with a model, something broken and something else.
pub(crate) fn models() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        // Statics are never dropped, so it is made where builds are cleaned.
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let sub = folder.path().join("tiny");
        std::fs::create_dir(&sub).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(
                larql_testkit::parity_fixture("gemma3").join(name),
                sub.join(name),
            )
            .unwrap();
        }
        std::fs::write(folder.path().join("broken.gguf"), b"GGUF, but not really").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"no model").unwrap();
        folder
    });
    folder.path().to_owned()
}

/// Runs all statements; the rows of the last.
pub(crate) fn run(session: &mut Session, text: &str) -> Result<Rows, DbError> {
    let mut last = Rows::new(&[]);
    for statement in parse(text)? {
        last = session.execute(&statement, &mut |_| {})?;
    }
    Ok(last)
}

/// Rows as lines: a header, cells joined by ` | `, notes after `--`. Places that differ between runs have names.
pub(crate) fn lines(rows: &Rows) -> Vec<String> {
    let mut lines = vec![rows.columns.join(" | ")];
    lines.extend(
        rows.rows
            .iter()
            .map(|row| row.iter().map(cell).collect::<Vec<_>>().join(" | ")),
    );
    lines.extend(rows.notes.iter().map(|note| format!("-- {note}")));
    lines.iter().map(|line| placed(line)).collect()
}

/// Names in place of the paths of temporary folders.
pub(crate) fn placed(line: &str) -> String {
    let shown = |path: &Path| path.display().to_string();
    let line = line
        .replace(&shown(atlas()), "$ATLAS")
        .replace(&shown(&models()), "$MODELS");
    let name = atlas().file_name().unwrap().to_string_lossy().into_owned();
    line.replace(&name, "$ATLAS")
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Null => "NULL".to_owned(),
        Cell::Integer(n) => n.to_string(),
        Cell::Real(x) => significant(*x),
        Cell::Text(text) => text.replace('\n', "\\n"),
    }
}

/// Four significant digits: what lies beyond depends on the instruction set.
fn significant(x: f64) -> String {
    let digits = 3 - if x == 0.0 {
        0
    } else {
        x.abs().log10().floor() as i32
    };
    match usize::try_from(digits) {
        Ok(n) => format!("{x:.n$}"),
        Err(_) => {
            let unit = 10f64.powi(-digits);
            format!("{:.0}", (x / unit).round() * unit)
        }
    }
}

/// A reference checkpoint with a tokenizer of one token per byte, which the checkpoints have not.
pub(crate) fn family_with_bytes(family: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = larql_testkit::parity_fixture(family).join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    // The letters that stand for bytes: those that can be seen stand for themselves, the others come after U+0100.
    let is_seen = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0x100..;
    let vocab: serde_json::Map<String, serde_json::Value> = (0..=255u32)
        .map(|byte| {
            let code = if is_seen(byte) {
                byte
            } else {
                hidden.next().unwrap()
            };
            (char::from_u32(code).unwrap().to_string(), byte.into())
        })
        .collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []
        }
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), "{}").unwrap();
    folder
}
