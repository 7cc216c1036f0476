//! Atlas and a GGUF file through our directory and back, and through the formats that others read.

use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use larql_models::Checkpoint;
use larql_models::tokenizer::{Bos, EncodeSpecial};
use serde_json::Value;

use super::peers::{Peers, agreeing, distance, logits};
use super::python::Rows;
use crate::process;

/// Files of Atlas that are stored as they are; the weights beside them are compressed.
const PLAIN_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
const WEIGHTS: &str = "model.safetensors";
/// Largest relative difference of transformers' logits from the GGUF file: it subtracts again what the format adds to
/// norm weights, which rounds.
const GGUF_REL_MAX: f64 = 1e-5;

/// Largest difference of our logits from transformers', which computes with the decoded weights.
const DECODED_ERROR_MAX: f32 = 1e-3;
const PROMPT: &str = "The capital of France is Paris, and the capital of Japan is";

/// Byte identity of the way through a vindex, and transformers' logits of each export.
pub(super) fn atlas(peers: &Peers) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("atlas");
    unpack(&process::root().join("assets/atlas"), &source)?;
    let vindex = dir.path().join("atlas.vindex");
    let back = dir.path().join("back");
    let gguf = dir.path().join("atlas.gguf");
    let [extract, export, to, out] = ["extract", "export", "--to", "-o"].map(Path::new);
    peers.larql(&[extract, &source, out, &vindex])?;
    peers.larql(&[export, &vindex, to, Path::new("safetensors"), out, &back])?;
    peers.larql(&[export, &vindex, to, Path::new("gguf"), out, &gguf])?;

    let differing = differing_files(&source, &back)?;
    println!(
        "atlas: folder -> vindex -> folder: {}",
        if differing.is_empty() {
            "the same bytes".to_owned()
        } else {
            format!("differ: {}", differing.join(", "))
        }
    );
    let ids = prompt_ids()?;
    let n = ids.len();
    let original = peers.python().transformers(&source, &ids)?;
    let reference: Vec<&[f32]> = original.iter().map(Vec::as_slice).collect();
    let compare = |rows: &Rows| -> Result<(usize, f64)> {
        Ok((agreeing(rows, &reference), distance(rows, &reference)?))
    };
    let (safetensors_equal, safetensors_rel) = compare(&peers.python().transformers(&back, &ids)?)?;
    let (gguf_equal, gguf_rel) = compare(&peers.python().transformers_as(&gguf, &ids, &source)?)?;
    let (alone_equal, alone_rel) = compare(&peers.python().transformers(&gguf, &ids)?)?;
    println!(
        "atlas: transformers on the exported folder: top-1 {safetensors_equal}/{n}, {safetensors_rel:.1e}"
    );
    println!("atlas: transformers on the exported GGUF: top-1 {gguf_equal}/{n}, {gguf_rel:.1e}");
    // Its reader of this architecture knows no key for the scale of scores or the period of windows.
    println!(
        "atlas: the same by transformers' reading of the metadata (shown only): top-1 {alone_equal}/{n}, {alone_rel:.1e}"
    );
    ensure!(differing.is_empty(), "the folder came back different");
    ensure!(
        safetensors_rel == 0.0,
        "the exported folder has other logits"
    );
    ensure!(
        gguf_equal == n && gguf_rel <= GGUF_REL_MAX,
        "the exported GGUF has other logits"
    );
    Ok(())
}

/// The same for a GGUF file, whose folder transformers must load with its tokenizer.
pub(super) fn gguf(peers: &Peers, file: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [vindex, back, folder] =
        ["m.vindex", "back.gguf", "folder"].map(|name| dir.path().join(name));
    let [extract, export, to, out] = ["extract", "export", "--to", "-o"].map(Path::new);
    peers.larql(&[extract, file, out, &vindex])?;
    peers.larql(&[export, &vindex, to, Path::new("gguf"), out, &back])?;
    let is_same = fs::read(file)? == fs::read(&back)?;
    let name = file.display();
    println!(
        "{name}: GGUF -> vindex -> GGUF: {}",
        if is_same { "the same bytes" } else { "differs" }
    );
    peers.larql(&[export, &vindex, to, Path::new("safetensors"), out, &folder])?;
    let (ids, theirs) = peers.python().transformers_text(&folder, PROMPT)?;
    let our_ids =
        Checkpoint::open(file)?
            .tokenizer()?
            .encode(PROMPT, EncodeSpecial::Plain, Bos::Model)?;
    let ours = logits(file, &ids)?;
    let reference: Vec<&[f32]> = theirs.iter().map(Vec::as_slice).collect();
    let (n, equal, rel) = (
        ids.len(),
        agreeing(&ours, &reference),
        distance(&ours, &reference)?,
    );
    let error = ours
        .iter()
        .flatten()
        .zip(theirs.iter().flatten())
        .fold(0.0_f32, |error, (a, b)| error.max((a - b).abs()));
    println!(
        "{name}: transformers on the exported folder: ids {}, top-1 {equal}/{n}, largest difference {error:.1e} ({rel:.1e})",
        if ids == our_ids { "equal" } else { "differ" }
    );
    ensure!(is_same, "the file came back different");
    ensure!(
        ids == our_ids,
        "transformers' tokenizer makes other ids: {ids:?} for {our_ids:?}"
    );
    ensure!(
        equal == n && error <= DECODED_ERROR_MAX,
        "the exported folder has other logits"
    );
    Ok(())
}

fn unpack(assets: &Path, target: &Path) -> Result<()> {
    fs::create_dir(target)?;
    for name in PLAIN_FILES {
        fs::copy(assets.join(name), target.join(name))
            .with_context(|| format!("atlas's {name}"))?;
    }
    let packed = assets.join(format!("{WEIGHTS}.gz"));
    let mut weights = Vec::new();
    GzDecoder::new(fs::File::open(&packed).with_context(|| packed.display().to_string())?)
        .read_to_end(&mut weights)?;
    fs::write(target.join(WEIGHTS), weights)?;
    Ok(())
}

/// Names of files that `back` lacks or has with other bytes, or has besides.
fn differing_files(source: &Path, back: &Path) -> Result<Vec<String>> {
    let mut differing = Vec::new();
    for entry in fs::read_dir(source)? {
        let name = entry?.file_name();
        let returned = fs::read(back.join(&name)).ok();
        if returned != Some(fs::read(source.join(&name))?) {
            differing.push(name.to_string_lossy().into_owned());
        }
    }
    for entry in fs::read_dir(back)? {
        let name = entry?.file_name();
        if !source.join(&name).exists() {
            differing.push(format!("{} (new)", name.to_string_lossy()));
        }
    }
    differing.sort();
    Ok(differing)
}

/// The ids of the longest prompt of Atlas's reference data.
fn prompt_ids() -> Result<Vec<u32>> {
    let file = process::root().join("crates/testkit/data/atlas/golden.json");
    let text = fs::read(&file).with_context(|| file.display().to_string())?;
    let json: Value = serde_json::from_slice(&text)?;
    json["prompts"]
        .as_array()
        .context("no list `prompts`")?
        .iter()
        .filter_map(|prompt| serde_json::from_value::<Vec<u32>>(prompt["ids"].clone()).ok())
        .max_by_key(Vec::len)
        .context("no prompt has ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_lost_changed_or_added_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (source, back) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&back).unwrap();
        for name in ["same", "changed", "lost"] {
            fs::write(source.join(name), name).unwrap();
        }
        for (name, text) in [("same", "same"), ("changed", "chanced"), ("added", "")] {
            fs::write(back.join(name), text).unwrap();
        }
        assert_eq!(
            differing_files(&source, &back).unwrap(),
            ["added (new)", "changed", "lost"]
        );
    }

    #[test]
    fn atlas_unpacks_to_a_whole_folder() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("atlas");
        unpack(&process::root().join("assets/atlas"), &target).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 5);
        assert!(prompt_ids().unwrap().len() > 6);
    }
}
