//! Runs the loom models of the thread team: its own code under every order of steps that the models' bounds allow.
//!
//! They are no part of the ordinary tests, because loom replaces the primitives of the standard library at build time.

use std::path::Path;

use anyhow::Result;

use crate::process;

/// Builds `kernels` with loom's primitives, apart from everything else, and runs its models.
pub(crate) fn run(root: &Path) -> Result<()> {
    process::run(
        process::cargo(root)
            .args([
                "test",
                "--release",
                "--locked",
                "--package",
                "larql-kernels",
            ])
            .args(["--lib", "team::models"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", root.join("target/loom")),
    )
}
