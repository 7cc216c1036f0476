//! A packed vindex is the same model, bit for bit, and its tiles come from the pack.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_db::pack::{Found, PackReport, pack};
use larql_db::{Database, DbError};
use larql_engine::{
    Interrupt, Profile, Runtime, SequenceInput, SequenceState, TilePlace, WantedLogits, forward,
};
use larql_models::Checkpoint;
use larql_models::quant_mix::Mix;
use larql_models::to_gguf::Quantization;
use larql_testkit::{FAMILIES, atlas, parity_fixture};
use larql_vindex::{
    ExportSource, ExtractOptions, Level, PACK, Progress, VindexError, export_gguf, extract,
};

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn threads(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn made(path: &Path) -> PackReport {
    pack(path, threads(2), &mut go_on).unwrap()
}

/// A vindex of a checkpoint, in `dir`.
fn vindex(dir: &Path, source: &Path) -> PathBuf {
    let out = dir.join(source.file_name().unwrap());
    let source = Checkpoint::open(source).unwrap();
    let options = ExtractOptions::at(Level::Inference);
    extract(&source, None, &out, &options, &mut go_on).unwrap();
    out
}

/// Bits of the logits of a prompt and two steps, in both profiles, and where the tiles were.
fn run(path: &Path) -> (TilePlace, Vec<u32>) {
    let db = Database::open(path).unwrap();
    let model = db.model().unwrap();
    let tokens: Vec<u32> = (0..19).map(|i| 3 + i * 41 % 290).collect();
    let mut bits = Vec::new();
    for profile in [Profile::Exact, Profile::Fast] {
        let mut runtime = Runtime::new(threads(2), profile, Interrupt::default());
        let mut states = [SequenceState::new(model.spec())];
        for piece in [&tokens[..17], &tokens[17..18], &tokens[18..]] {
            let input = SequenceInput {
                tokens: piece,
                logits: WantedLogits::All,
            };
            let logits = forward(model, &mut runtime, &[input], &mut states, None).unwrap();
            bits.extend(
                logits
                    .rows()
                    .flat_map(|(_, row)| row.iter().map(|x| x.to_bits())),
            );
        }
    }
    (model.tile_place(), bits)
}

/// Packs a vindex and compares; the pack is deleted again at the end.
fn compare(path: &Path, name: &str) {
    let (place, loaded) = run(path);
    assert_eq!(place, TilePlace::Memory);
    let report = made(path);
    assert_eq!(
        (report.found, report.path),
        (Found::Nothing, path.join(PACK))
    );
    assert_eq!(report.n_bytes, path.join(PACK).metadata().unwrap().len());
    let (place, packed) = run(path);
    assert_eq!(place, TilePlace::Pack, "{name}");
    assert!(packed == loaded, "{name}: other bits");
    fs::remove_file(path.join(PACK)).unwrap();
    let (place, again) = run(path);
    assert_eq!(place, TilePlace::Memory);
    assert!(again == loaded, "{name}: other bits after the pack is gone");
}

#[test]
fn a_pack_gives_the_bits_of_a_load() {
    let dir = tempfile::tempdir().unwrap();
    for name in FAMILIES {
        let path = vindex(dir.path(), &parity_fixture(name));
        compare(&path, name);
        fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn a_pack_of_quantized_weights_too() {
    let dir = tempfile::tempdir().unwrap();
    for mix in [Mix::Q4KM, Mix::Q5KM, Mix::Q8_0, Mix::Q4_0] {
        let file = dir.path().join(format!("{}.gguf", mix.name()));
        let source = ExportSource {
            checkpoint: &Checkpoint::open(atlas()).unwrap(),
            vindex: None,
        };
        let quantization = Quantization {
            mix,
            requantize: false,
        };
        export_gguf(source, &file, Some(quantization), threads(2), &mut go_on).unwrap();
        let folder = tempfile::tempdir().unwrap();
        compare(&vindex(folder.path(), &file), mix.name());
    }
}

/// The rows in `weights.gguf` are not looked at: other ones change nothing.
#[test]
fn a_packed_model_runs_from_the_pack_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = vindex(dir.path(), &parity_fixture("qwen2"));
    let (_, loaded) = run(&path);
    made(&path);
    let weights = path.join("weights.gguf");
    let mut bytes = fs::read(&weights).unwrap();
    let tensor = {
        let checkpoint = Checkpoint::open(&weights).unwrap();
        let mut roles = checkpoint.roles();
        roles.retain(|role| role.to_string() == "layer 0 mlp.up");
        checkpoint.tensor(roles[0]).unwrap().bytes.to_vec()
    };
    let at = bytes
        .windows(tensor.len())
        .position(|window| window == tensor)
        .unwrap();
    bytes[at..at + tensor.len()].fill(0);
    // A new file under the name, as everything writes here: what is mapped stays.
    fs::remove_file(&weights).unwrap();
    fs::write(&weights, bytes).unwrap();
    assert!(run(&path) == (TilePlace::Pack, loaded.clone()));
    fs::remove_file(path.join(PACK)).unwrap();
    assert!(run(&path).1 != loaded);
}

#[test]
fn a_pack_is_made_once_and_made_again_when_it_is_not_sound() {
    let dir = tempfile::tempdir().unwrap();
    let path = vindex(dir.path(), &parity_fixture("llama"));
    let file = path.join(PACK);
    let first = made(&path);
    let good = fs::read(&file).unwrap();
    let stamp = || file.metadata().unwrap().modified().unwrap();
    let before = stamp();
    let second = made(&path);
    assert_eq!(second.found, Found::SamePack);
    assert_eq!(
        (second.n_matrices, second.n_bytes),
        (first.n_matrices, first.n_bytes)
    );
    assert_eq!(stamp(), before, "a sound pack is left alone");
    for (at, expected) in [
        (good.len() / 2, ", its table says "),
        (good.len() - 1, "the file is cut off"),
        (3, "not a pack of tiles"),
    ] {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(&file, bytes).unwrap();
        match made(&path).found {
            Found::Unusable(problem) => assert!(problem.contains(expected), "{problem}"),
            found => panic!("byte {at}: {found:?}"),
        }
        assert!(fs::read(&file).unwrap() == good);
    }
}

#[test]
fn a_pack_that_does_not_fit_is_never_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let ours = vindex(dir.path(), &parity_fixture("llama"));
    let other = vindex(dir.path(), &parity_fixture("llama-rope3"));
    made(&other);
    fs::copy(other.join(PACK), ours.join(PACK)).unwrap();
    let db = Database::open(&ours).unwrap();
    let error = db.model().unwrap_err().to_string();
    assert!(error.contains("tiles of the model with digest "), "{error}");
    match made(&ours).found {
        Found::Unusable(problem) => assert!(problem.contains("with digest "), "{problem}"),
        found => panic!("{found:?}"),
    }
    assert_eq!(run(&ours).0, TilePlace::Pack);
}

#[test]
fn only_a_vindex_that_runs_can_be_packed() {
    let dir = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let browse = dir.path().join("browse");
    let options = ExtractOptions::at(Level::Browse);
    extract(&source, None, &browse, &options, &mut go_on).unwrap();
    let error = pack(&browse, threads(1), &mut go_on).unwrap_err();
    assert!(
        matches!(error, DbError::Vindex(VindexError::NeedsLevel { .. })),
        "{error}"
    );
    assert!(!browse.join(PACK).exists());
    let folder = parity_fixture("llama");
    let error = pack(&folder, threads(1), &mut go_on).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: not a vindex: expected a directory with vindex.json",
            folder.display()
        )
    );
}
