//! Hash locks: a document that describes sources cannot be left behind when they change.
//!
//! `xtask/locks.txt` keeps a hash of the sources and of the document as they were when someone last said,
//! with `cargo xtask lock`, that the two agree.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Finding, read, repository};

const LOCKS_FILE: &str = "xtask/locks.txt";
const HEADER: &str =
    "# Written by `cargo xtask lock`: document, hash of it, hash of the sources it describes.\n";

/// A document and the sources it describes.
struct Lock {
    what: &'static str,
    document: &'static str,
    sources: &'static str,
}

const LOCKS: &[Lock] = &[Lock {
    what: "parser",
    document: "crates/lql/GRAMMAR.md",
    sources: "crates/lql/src/parser",
}];

/// Compares the present hashes with the recorded ones.
pub(crate) fn check(root: &Path, files: &[String], out: &mut Vec<Finding>) -> Result<()> {
    let recorded = fs::read_to_string(root.join(LOCKS_FILE)).unwrap_or_default();
    for lock in LOCKS {
        if let Some(present) = state(root, files, lock)? {
            out.extend(compare(lock, &recorded, &present));
        }
    }
    Ok(())
}

/// Records the present hashes.
pub(crate) fn write(root: &Path) -> Result<()> {
    let files = repository::files(root)?;
    let mut text = HEADER.to_owned();
    for lock in LOCKS {
        if let Some(present) = state(root, &files, lock)? {
            text += &line(lock, &present);
        }
    }
    fs::write(root.join(LOCKS_FILE), text).with_context(|| format!("cannot write {LOCKS_FILE}"))?;
    println!("wrote {LOCKS_FILE}");
    Ok(())
}

/// Hashes of a document (none when it is missing) and of its sources.
struct State {
    document: Option<u64>,
    sources: u64,
}

/// The present state; none while there are no sources to describe.
fn state(root: &Path, files: &[String], lock: &Lock) -> Result<Option<State>> {
    let mut described = String::new();
    for path in files.iter().filter(|path| path.starts_with(lock.sources)) {
        described += path;
        described += &read(root, path)?;
    }
    if described.is_empty() {
        return Ok(None);
    }
    let document = match root.join(lock.document).exists() {
        true => Some(fnv1a(read(root, lock.document)?.as_bytes())),
        false => None,
    };
    Ok(Some(State {
        document,
        sources: fnv1a(described.as_bytes()),
    }))
}

fn line(lock: &Lock, state: &State) -> String {
    let document = state.document.unwrap_or_default();
    format!("{} {document:016x} {:016x}\n", lock.document, state.sources)
}

fn compare(lock: &Lock, recorded: &str, present: &State) -> Option<Finding> {
    let Lock { what, document, .. } = lock;
    let expected = line(lock, present);
    let message = if present.document.is_none() {
        format!("the {what} has no description; write {document}, then run `cargo xtask lock`")
    } else if recorded.lines().any(|line| line == expected.trim_end()) {
        return None;
    } else if recorded.lines().any(|line| {
        line.starts_with(document) && line.ends_with(&format!("{:016x}", present.sources))
    }) {
        format!("the document changed: compare it with the {what}, then run `cargo xtask lock`")
    } else {
        format!("the {what} changed: update {document}, then run `cargo xtask lock`")
    };
    Some(Finding::new(document, 1, "hash-lock", message))
}

/// FNV-1a, 64 bits: stable over releases of the standard library, whose own hasher promises nothing.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        // From the test vectors of the FNV reference code.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_changed_source_or_document_breaks_the_lock_until_it_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let findings = || {
            let mut out = Vec::new();
            check(root, &repository::files(root).unwrap(), &mut out).unwrap();
            out.into_iter().map(|f| f.message).collect::<Vec<_>>()
        };
        fs::create_dir_all(root.join("crates/lql/src/parser")).unwrap();
        fs::create_dir(root.join("xtask")).unwrap();
        assert!(findings().is_empty());

        fs::write(root.join("crates/lql/src/parser/expr.rs"), "1").unwrap();
        assert!(findings()[0].starts_with("the parser has no description"));
        fs::write(root.join("crates/lql/GRAMMAR.md"), "a").unwrap();
        assert!(findings()[0].starts_with("the parser changed: update crates/lql/GRAMMAR.md"));
        write(root).unwrap();
        assert!(findings().is_empty());

        fs::write(root.join("crates/lql/GRAMMAR.md"), "b").unwrap();
        assert!(findings()[0].starts_with("the document changed"));
        fs::write(root.join("crates/lql/src/parser.rs"), "2").unwrap();
        assert!(findings()[0].starts_with("the parser changed"));
        write(root).unwrap();
        assert!(findings().is_empty());
    }
}
