//! Vindexes that released versions have written stay readable.
//!
//! `compat/v1` was written by `cargo run -p larql-vindex --example make_compat`. A change that makes this test fail is
//! a change of the format: raise the version, keep this folder, and add the new one's beside it.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use larql_kernels::Team;
use larql_models::TensorRole;
use larql_models::tokenizer::{Bos, EncodeSpecial};
use larql_vindex::{FORMAT_VERSION, Level, Manifest, RelationOrigin, Vindex, verify};

use crate::support::{go_on, names};

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat/v1/tiny")
}

/// A copy, so that opening tables cannot change the committed one.
fn copied(dir: &Path) -> PathBuf {
    let out = dir.join("tiny");
    fs::create_dir(&out).unwrap();
    for name in names(&sample()) {
        fs::copy(sample().join(&name), out.join(&name)).unwrap();
    }
    out
}

#[test]
fn version_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = copied(dir.path());
    let vindex = Vindex::open(&path).unwrap();
    assert_eq!(vindex.manifest().format_version, 1);
    assert_eq!(vindex.level(), Level::All);
    assert_eq!(
        vindex.manifest().digest,
        "c9cbb4b6996230650b52bc6f997ccce117ebd31059ea276ce1c447989a73fd3e"
    );
    let checkpoint = vindex.checkpoint().unwrap();
    let embedding = checkpoint.tensor(TensorRole::TokenEmbedding).unwrap();
    assert_eq!(embedding.shape, [300, 56]);
    assert_eq!(
        embedding.to_f32()[299 * 56..][..3],
        [0.05859375, -0.022338867, 0.026123047]
    );
    let ids = vindex
        .tokenizer()
        .unwrap()
        .encode("the path", EncodeSpecial::Plain, Bos::Model)
        .unwrap();
    assert_eq!(ids, [33, 256, 101, 32, 112, 97, 256]);
    let relations = vindex.knowledge().unwrap().relations().unwrap();
    assert_eq!(
        (relations[0].name.as_str(), relations[0].origin),
        ("capital", RelationOrigin::User)
    );
    assert_eq!(relations[0].templates, ["The capital of {} is"]);
    assert_eq!(relations[0].answers, ["Paris", "Rome"]);
    let feature = vindex.features().unwrap().get(3, 103).unwrap().unwrap();
    assert_eq!((feature.gate_norm, feature.outputs[1].token), (0.25, 299));
    let report = verify(&path, &mut Team::new(NonZeroUsize::MIN), &mut go_on).unwrap();
    assert!(report.ok(), "{report:?}");
}

/// The text that is committed is the text that is written: no field has come, gone or moved.
#[test]
fn version_1_is_written_as_it_was() {
    assert_eq!(FORMAT_VERSION, 1);
    let path = sample().join("vindex.json");
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(
        Manifest::decode(text.as_bytes(), &path).unwrap().encode(),
        text
    );
}
