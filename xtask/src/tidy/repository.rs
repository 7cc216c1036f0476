//! Rules about files that are not Rust, and about what may be committed at all.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Finding;
use crate::process;

const MAX_BLOB_BYTES: u64 = 512 * 1024;
/// The embedded demo model is the one large thing that belongs into the history.
const LARGE_BLOBS_IN: &[&str] = &["assets/atlas/", "crates/testkit/data/parity/"];
const CHANGELOG: &str = "CHANGELOG.md";
const CHANGE_KINDS: &[&str] = &["Added", "Changed", "Fixed", "Performance", "Format"];

/// Every file below `root`, relative and sorted, without build products and hidden folders.
pub(crate) fn files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut pending = vec![String::new()];
    while let Some(folder) = pending.pop() {
        let absolute = root.join(&folder);
        let entries = fs::read_dir(&absolute)
            .with_context(|| format!("cannot read {}", absolute.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = match folder.is_empty() {
                true => name.clone(),
                false => format!("{folder}/{name}"),
            };
            let kind = entry.file_type()?;
            if kind.is_dir()
                && name != "target"
                && !name.starts_with('.')
                && !name.ends_with(".vindex")
            {
                pending.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Path and size of every tracked file that exists; none when `root` is not a git checkout.
pub(crate) fn tracked_sizes(root: &Path) -> Result<Option<Vec<(String, u64)>>> {
    if !root.join(".git").exists() {
        return Ok(None);
    }
    let listed = process::stdout(
        Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z"]),
    )?;
    let sizes = listed
        .split_terminator('\0')
        .filter_map(|path| Some((path.to_owned(), fs::metadata(root.join(path)).ok()?.len())))
        .collect();
    Ok(Some(sizes))
}

pub(crate) fn blobs(sizes: &[(String, u64)], out: &mut Vec<Finding>) {
    for (path, n_bytes) in sizes {
        if *n_bytes > MAX_BLOB_BYTES && !LARGE_BLOBS_IN.iter().any(|folder| path.contains(folder)) {
            out.push(Finding::new(
                path,
                1,
                "large-blob",
                format!("{n_bytes} bytes are tracked, at most {MAX_BLOB_BYTES}; generate it or make it smaller"),
            ));
        }
    }
}

pub(crate) fn trailing_space(path: &str, text: &str, out: &mut Vec<Finding>) {
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            let message = "trailing whitespace; remove it".into();
            out.push(Finding::new(path, i + 1, "trailing-space", message));
        }
    }
}

/// One title, then releases (`## Unreleased` first, `## 1.2.3 - 2030-01-31`), each with known sections of items.
pub(crate) fn changelog(text: &str, out: &mut Vec<Finding>) {
    let mut found = |line, message: String| {
        out.push(Finding::new(CHANGELOG, line, "changelog-shape", message));
    };
    let mut n_releases = 0;
    let mut in_section = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(section) = line.strip_prefix("### ") {
            in_section = true;
            if !CHANGE_KINDS.contains(&section) {
                let kinds = CHANGE_KINDS.join(", ");
                found(i + 1, format!("section `{section}`; use one of {kinds}"));
            }
        } else if let Some(release) = line.strip_prefix("## ") {
            in_section = false;
            n_releases += 1;
            let expected = if n_releases == 1 {
                release == "Unreleased"
            } else {
                is_release(release)
            };
            if !expected {
                found(
                    i + 1,
                    format!("release `{release}`; first `Unreleased`, then `1.2.3 - 2030-01-31`"),
                );
            }
        } else if n_releases > 0 && !in_section && !line.is_empty() {
            found(
                i + 1,
                "text outside a section; put it under Added, Changed, ...".into(),
            );
        } else if in_section
            && !(line.is_empty() || line.starts_with("- ") || line.starts_with("  "))
        {
            found(i + 1, "not an item; begin it with `- `".into());
        }
    }
    if n_releases == 0 {
        found(1, "no `## Unreleased`; add it".into());
    }
}

/// `1.2.3 - 2030-01-31`
fn is_release(text: &str) -> bool {
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once(" - ").is_some_and(|(version, date)| {
        version.split('.').count() == 3
            && version.split('.').all(all_digits)
            && date.len() == 10
            && date.split('-').count() == 3
            && date.split('-').all(all_digits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(check: impl FnOnce(&mut Vec<Finding>)) -> Vec<usize> {
        let mut out = Vec::new();
        check(&mut out);
        out.iter().map(|f| f.line).collect()
    }

    #[test]
    fn large_files_are_found_unless_they_are_the_demo_model() {
        let sizes = [
            ("a.bin".to_owned(), MAX_BLOB_BYTES + 1),
            ("b.bin".to_owned(), MAX_BLOB_BYTES),
            ("assets/atlas/model.gz".to_owned(), MAX_BLOB_BYTES * 9),
        ];
        let mut out = Vec::new();
        blobs(&sizes, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].path.as_str(), out[0].rule), ("a.bin", "large-blob"));
    }

    #[test]
    fn trailing_space_is_found() {
        assert_eq!(
            lines(|out| trailing_space("a.md", "a\nb \nc\t\n", out)),
            [2, 3]
        );
    }

    #[test]
    fn the_changelog_has_one_shape() {
        let good = "# Changelog\n\nText.\n\n## Unreleased\n\n### Added\n\n- A.\n  More.\n\n## 0.1.0 - 2030-01-31\n\n### Format\n\n- B.\n";
        assert!(lines(|out| changelog(good, out)).is_empty());
        let bad = "# Changelog\n\n## 0.2.0\n\nText.\n\n### News\n\nB.\n\n## 0.1 - today\n";
        assert_eq!(lines(|out| changelog(bad, out)), [3, 5, 7, 9, 11]);
        assert_eq!(lines(|out| changelog("# Changelog\n", out)), [1]);
    }

    #[test]
    fn build_products_and_hidden_folders_are_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["src/a", "target", ".git", "x.vindex"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("f.rs"), "").unwrap();
        }
        assert_eq!(files(dir.path()).unwrap(), ["src/a/f.rs"]);
        assert!(tracked_sizes(&dir.path().join("src")).unwrap().is_none());
    }
}
