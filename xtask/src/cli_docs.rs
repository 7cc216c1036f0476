//! docs/cli.md, generated from the help of the command line itself, so that the two cannot differ.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process;

const PAGE: &str = "docs/cli.md";
/// Where the arguments are declared; before it exists there is no command line to describe.
const ARGUMENTS: &str = "crates/cli/src/args.rs";

/// Rewrites the page.
pub(crate) fn write(root: &Path) -> Result<()> {
    let Some(page) = generate(root)? else {
        println!("skipped: {PAGE} ({ARGUMENTS} does not exist yet)");
        return Ok(());
    };
    let path = root.join(PAGE);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// Fails when the page differs from what [`write()`] would make of it.
pub(crate) fn check(root: &Path) -> Result<()> {
    let Some(expected) = generate(root)? else {
        println!("skipped: {PAGE} ({ARGUMENTS} does not exist yet)");
        return Ok(());
    };
    let found = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    match first_difference(&found, &expected) {
        None => Ok(()),
        Some(line) => bail!("{PAGE}:{line}: differs from the help; run `cargo xtask docs`"),
    }
}

fn generate(root: &Path) -> Result<Option<String>> {
    if !root.join(ARGUMENTS).exists() {
        return Ok(None);
    }
    let page = process::stdout(process::cargo(root).args([
        "run",
        "--quiet",
        "--package",
        "larql-cli",
        "--",
        "markdown-help",
    ]))?;
    if page.trim().is_empty() {
        bail!("`larql markdown-help` printed nothing");
    }
    let lines: Vec<&str> = page.trim_end().lines().map(str::trim_end).collect();
    Ok(Some(lines.join("\n") + "\n"))
}

/// The number of the first line that is not the same in both.
fn first_difference(found: &str, expected: &str) -> Option<usize> {
    if found == expected {
        return None;
    }
    let same = found
        .lines()
        .zip(expected.lines())
        .take_while(|(a, b)| a == b)
        .count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_line_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
    }
}
