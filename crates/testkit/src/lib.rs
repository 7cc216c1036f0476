//! Checkpoints for the tests of the other crates.
//!
//! Two kinds: the tiny random ones of `data/parity`, each with the numbers another program computed from it, and Atlas,
//! the small trained model of the demo. Not for use outside tests.
#![forbid(unsafe_code)]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::GzDecoder;

/// The fixtures of `data/parity`: one of each family, and of variants with axes of their own.
pub const FAMILIES: [&str; 35] = [
    "llama",
    "llama-rope3",
    "llama-yarn",
    "mistral-sliding",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2-moe",
    "qwen3-moe",
    "qwen3-next",
    "olmo2",
    "olmoe",
    "phi",
    "phi3",
    "granite",
    "granitemoe",
    "starcoder2",
    "gpt2",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "deepseek-v2",
    "deepseek-v3",
    "cohere2",
    "smollm3",
    "glm4",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4-dense",
    "gemma4-e",
    "gemma4-moe",
    "kimi-linear",
    "arcee",
    "stablelm",
];

/// The folder of a parity fixture.
pub fn parity_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/parity")
        .join(name)
}

/// The folder of Atlas's own reference data: `facts.json`, `heldout.jsonl`, `golden.json`.
pub fn atlas_reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/atlas")
}

/// Atlas as a Hugging Face folder, unpacked beside the test programs when they first ask for it.
///
/// # Panics
/// If the assets of the repository cannot be unpacked.
pub fn atlas() -> &'static Path {
    static UNPACKED: OnceLock<PathBuf> = OnceLock::new();
    UNPACKED.get_or_init(|| unpack_atlas().expect("the assets of the repository unpack"))
}

/// The folder is named by what is in it and appears whole, so that test programs that run at once can share it.
fn unpack_atlas() -> std::io::Result<PathBuf> {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/atlas");
    let mut files = Vec::new();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        files.push((name, fs::read(assets.join(name))?));
    }
    let mut weights = Vec::new();
    GzDecoder::new(fs::File::open(assets.join("model.safetensors.gz"))?)
        .read_to_end(&mut weights)?;
    files.push(("model.safetensors", weights));
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let program = std::env::current_exe()?;
    let programs = program.parent().unwrap_or(Path::new("."));
    let folder = programs.join(format!("atlas-{:016x}", hasher.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    let staging = tempfile::tempdir_in(programs)?;
    for (name, bytes) in &files {
        fs::write(staging.path().join(name), bytes)?;
    }
    match fs::rename(staging.path(), &folder) {
        // Another program was faster.
        Err(_) if folder.is_dir() => Ok(folder),
        renamed => renamed.map(|()| folder),
    }
}
