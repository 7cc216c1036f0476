//! Rules about the repository that the compiler does not know, each with its reason in the message.
//!
//! They run as one test and as a step of `cargo xtask ci`.
//! A finding fails both; a note is only printed.

pub(crate) mod locks;
mod modules;
mod packages;
mod repository;
mod source;
mod text;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use source::SourceFile;

/// One thing that is wrong, shown as `path:line: rule: what and what to do`.
#[derive(Debug)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: String) -> Finding {
        Finding {
            path: path.to_owned(),
            line,
            rule,
            message,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            path,
            line,
            rule,
            message,
        } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}

/// What the rules say about the repository.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    pub(crate) notes: Vec<String>,
}

/// Applies every rule to the repository at `root`.
pub(crate) fn check_repository(root: &Path) -> Result<Report> {
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    let files = repository::files(root)?;
    let workspace = packages::Workspace::load(root)?;

    let mut sources = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".rs")) {
        sources.push(SourceFile::new(path.as_str(), read(root, path)?));
    }
    modules::dead_files(&mut sources, &workspace.target_roots, &mut findings);
    for file in &sources {
        text::check(file, &mut findings);
        notes.extend(modules::lengths(file, &mut findings));
    }

    workspace.check(&read(root, "Cargo.toml")?, &mut findings);
    for path in files
        .iter()
        .filter(|path| path.ends_with(".md") || path.ends_with(".toml"))
    {
        repository::trailing_space(path, &read(root, path)?, &mut findings);
    }
    repository::changelog(&read(root, "CHANGELOG.md")?, &mut findings);
    match repository::tracked_sizes(root)? {
        Some(sizes) => repository::blobs(&sizes, &mut findings),
        None => notes.push("skipped: sizes of tracked files (not a git checkout)".into()),
    }
    locks::check(root, &files, &mut findings)?;
    Ok(Report { findings, notes })
}

fn read(root: &Path, path: &str) -> Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let report = check_repository(&crate::process::root()).unwrap();
        let shown: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(shown.is_empty(), "\n{}\n", shown.join("\n"));
    }

    #[test]
    fn findings_name_path_line_rule_and_remedy() {
        let finding = Finding::new("a/b.rs", 7, "print", "say less".into());
        assert_eq!(finding.to_string(), "a/b.rs:7: print: say less");
    }
}
