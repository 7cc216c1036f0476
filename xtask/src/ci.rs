//! `ci`, `tidy` and `bless`: which checks exist and in which order they run.
//!
//! The tests are not among the steps of `ci`: `.ci/run` runs them after it, with the command of the README.

use std::path::Path;

use anyhow::{Result, bail};

use crate::{cli_docs, process, tidy};

/// Warnings are errors, except links from private items, which only matter to readers of the source.
const RUSTDOC_FLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

type Step = (&'static str, fn(&Path) -> Result<()>);

/// Cheap steps first; all of them run, so that one visit shows everything that is wrong.
const STEPS: &[Step] = &[
    ("fmt", fmt),
    ("tidy", tidy),
    ("clippy", clippy),
    ("doc", doc),
    ("cli-docs", cli_docs::check),
];

/// Runs every step and fails with the names of those that failed.
pub(crate) fn ci(root: &Path) -> Result<()> {
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        println!("xtask ci: {name}");
        if let Err(error) = step(root) {
            eprintln!("error: {name}: {error:#}");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("xtask ci: all {} steps passed", STEPS.len());
    Ok(())
}

/// Prints every finding of the tidy rules; any finding is a failure, notes are not.
pub(crate) fn tidy(root: &Path) -> Result<()> {
    let report = tidy::check_repository(root)?;
    for note in &report.notes {
        println!("note: {note}");
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    match report.findings.len() {
        0 => Ok(()),
        n => bail!("{n} findings"),
    }
}

/// Accepts the snapshots as they are now and regenerates what is generated.
pub(crate) fn bless(root: &Path) -> Result<()> {
    process::run(
        process::cargo(root)
            .args(["test", "--workspace"])
            .env("INSTA_UPDATE", "always")
            .env("LARQL_BLESS", "1"),
    )?;
    cli_docs::write(root)
}

fn fmt(root: &Path) -> Result<()> {
    process::run(process::cargo(root).args(["fmt", "--all", "--check"]))
}

fn clippy(root: &Path) -> Result<()> {
    process::run(process::cargo(root).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

fn doc(root: &Path) -> Result<()> {
    process::run(
        process::cargo(root)
            .args(["doc", "--workspace", "--no-deps", "--locked"])
            .env("RUSTDOCFLAGS", RUSTDOC_FLAGS),
    )
}
