//! Writes the sample of the current format version anew:
//! `cargo run -p larql-vindex --example make_compat`.
//!
//! Run it only for a new version: the samples of released ones must stay as they are.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use larql_models::Checkpoint;
use larql_vindex::{
    ExtractOptions, FORMAT_VERSION, FeatureRow, Level, OutputToken, RelationOrigin, RelationRow,
    Vindex, extract,
};

#[path = "../tests/it/support.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "made for the tests, which use all of it"
)]
mod support;

fn main() -> Result<(), Box<dyn Error>> {
    let temp = tempfile::tempdir()?;
    let source = Checkpoint::open(&support::folder(temp.path(), "gemma3"))?;
    let tokenizer = source.tokenizer()?;
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("compat/v{FORMAT_VERSION}"));
    std::fs::create_dir_all(&parent)?;
    let out = parent.join("tiny");
    let options = ExtractOptions::at(Level::All);
    extract(&source, Some(&tokenizer), &out, &options, &mut |_| {
        ControlFlow::Continue(())
    })?;
    let vindex = Vindex::open(&out)?;
    vindex.features()?.put_many(&[FeatureRow {
        layer: 3,
        feature: 103,
        gate_norm: 0.25,
        down_norm: 4.0,
        outputs: vec![
            OutputToken {
                token: 7,
                score: 1.5,
            },
            OutputToken {
                token: 299,
                score: -0.125,
            },
        ],
    }])?;
    vindex.knowledge()?.create_relation(&RelationRow {
        name: "capital".to_owned(),
        templates: vec!["The capital of {} is".to_owned()],
        answers: vec!["Paris".to_owned(), "Rome".to_owned()],
        answer_type: Some("city".to_owned()),
        origin: RelationOrigin::User,
    })?;
    Ok(())
}
