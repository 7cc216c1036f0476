//! Rules about the shape of Rust files: every file is reached by a `mod`, and nothing is too long to read.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{SourceFile, find_words, is_ident_byte, line_at, matching_brace};

const MAX_FILE_LINES: usize = 1000;
/// From here on a file is worth a second look; it is a note, not a finding.
const NOTE_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 120;

/// Files that may be longer, with the reason.
const LONG_FILES: &[(&str, &str)] = &[];
/// Functions that may be longer: path, name, reason.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[
    (
        "crates/models/tests/families/configs.rs",
        "classes_fill_in_what_is_not_said",
        "a table of families and keys",
    ),
    (
        "crates/lql/tests/it/errors.rs",
        "misspelled_and_missing_words",
        "a table of texts and messages",
    ),
    (
        "crates/vindex/tests/it/manifest.rs",
        "full_spec",
        "one value for every field of a specification",
    ),
    (
        "crates/vindex/tests/it/manifest.rs",
        "hostile_manifests_are_refused_by_field",
        "a table of damages and messages",
    ),
];

/// A `mod name;` found in a file.
struct Declaration {
    /// Possible places of the module's file.
    candidates: Vec<String>,
    test: bool,
}

/// Finds files below a `src` folder that no crate root reaches, and marks those that only tests reach.
/// `roots` are the source paths of all cargo targets.
pub(crate) fn dead_files(sources: &mut [SourceFile], roots: &[String], out: &mut Vec<Finding>) {
    let by_path: BTreeMap<&str, usize> = sources
        .iter()
        .enumerate()
        .map(|(i, file)| (file.path.as_str(), i))
        .collect();
    let mut product = BTreeSet::new();
    let mut tests = BTreeSet::new();
    let mut pending: Vec<(usize, bool, bool)> = roots
        .iter()
        .filter_map(|root| by_path.get(root.as_str()))
        .map(|i| (*i, true, false))
        .collect();
    while let Some((i, is_root, test)) = pending.pop() {
        let set = if test { &mut tests } else { &mut product };
        if !set.insert(i) {
            continue;
        }
        for declaration in declarations(&sources[i], is_root) {
            let found = declaration
                .candidates
                .iter()
                .find_map(|path| by_path.get(path.as_str()));
            if let Some(child) = found {
                pending.push((*child, false, test || declaration.test));
            }
        }
    }
    for (i, file) in sources.iter_mut().enumerate() {
        let reached = product.contains(&i);
        if !reached && tests.contains(&i) {
            file.set_test();
        } else if !reached && file.path.contains("/src/") {
            out.push(Finding::new(
                &file.path,
                1,
                "dead-file",
                "no `mod` reaches this file; declare it or delete it".into(),
            ));
        }
    }
}

/// Every out-of-line module that `file` declares.
fn declarations(file: &SourceFile, is_root: bool) -> Vec<Declaration> {
    let code = file.code.as_str();
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    let base = match is_root || stem == "mod" {
        true => folder.to_owned(),
        false => format!("{folder}/{stem}"),
    };
    let mut inline: Vec<(usize, &str)> = Vec::new();
    let mut found = Vec::new();
    for at in find_words(code, "mod") {
        let rest = code[at + 3..].trim_start();
        let len = rest.bytes().take_while(|b| is_ident_byte(*b)).count();
        let (module, tail) = rest.split_at(len);
        inline.retain(|(end, _)| at < *end);
        let mut dir = base.clone();
        for (_, outer) in &inline {
            dir = format!("{dir}/{outer}");
        }
        if tail.trim_start().starts_with('{') {
            let open = code.len() - tail.trim_start().len();
            inline.push((matching_brace(code, open), module));
        } else if tail.trim_start().starts_with(';') {
            let before = code[..at].rfind([';', '{', '}']).map_or(0, |i| i + 1);
            let candidates = match path_attribute(file, before, at) {
                Some(path) => vec![format!("{folder}/{path}")],
                None => vec![
                    format!("{dir}/{module}.rs"),
                    format!("{dir}/{module}/mod.rs"),
                ],
            };
            let test = file.is_test_at(at);
            found.push(Declaration { candidates, test });
        }
    }
    found
}

/// The value of a `#[path = ".."]` between two offsets.
fn path_attribute(file: &SourceFile, start: usize, end: usize) -> Option<&str> {
    let at = start + file.code[start..end].find("#[path")?;
    file.text[at..end].split('"').nth(1)
}

/// Files and functions that are too long; returns the files worth a second look.
pub(crate) fn lengths(file: &SourceFile, out: &mut Vec<Finding>) -> Option<String> {
    for (name, line, n_lines) in functions(&file.code) {
        let excused = LONG_FUNCTIONS
            .iter()
            .any(|(path, function, _)| *path == file.path && *function == name);
        if n_lines > MAX_FUNCTION_LINES && !excused {
            out.push(Finding::new(
                &file.path,
                line,
                "long-function",
                format!("`{name}` has {n_lines} lines, at most {MAX_FUNCTION_LINES}; split it by concept"),
            ));
        }
    }
    let n_lines = file.n_lines();
    let excused = LONG_FILES.iter().any(|(path, _)| *path == file.path);
    if n_lines > MAX_FILE_LINES && !excused {
        out.push(Finding::new(
            &file.path,
            n_lines,
            "long-file",
            format!("{n_lines} lines, at most {MAX_FILE_LINES}; split it by concept"),
        ));
    }
    (n_lines > NOTE_FILE_LINES).then(|| format!("{}: {n_lines} lines", file.path))
}

/// Functions with a body: name, first line, number of lines.
fn functions(code: &str) -> Vec<(&str, usize, usize)> {
    let mut found = Vec::new();
    for at in find_words(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let len = rest.bytes().take_while(|b| is_ident_byte(*b)).count();
        if len == 0 {
            continue;
        }
        let start = code.len() - rest.len();
        let Some(body) = body_start(code, start) else {
            continue;
        };
        let (first, last) = (line_at(code, at), line_at(code, matching_brace(code, body)));
        found.push((&rest[..len], first, last - first + 1));
    }
    found
}

/// The `{` of a function's body; none for a declaration. A `;` in an array type does not end it.
fn body_start(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(i),
            b';' | b'}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)], roots: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut sources: Vec<SourceFile> =
            files.iter().map(|(p, t)| SourceFile::new(*p, *t)).collect();
        let roots: Vec<String> = roots.iter().map(|r| (*r).to_owned()).collect();
        let mut out = Vec::new();
        dead_files(&mut sources, &roots, &mut out);
        let tests = sources
            .iter()
            .filter(|f| f.is_test_at(0))
            .map(|f| f.path.clone());
        (out.into_iter().map(|f| f.path).collect(), tests.collect())
    }

    #[test]
    fn a_file_that_no_mod_reaches_is_dead() {
        let files = [
            (
                "c/src/lib.rs",
                "mod a;\npub mod b;\nmod i {\n    mod j;\n}\n// mod gone;\n#[path = \"odd.rs\"]\nmod p;\n",
            ),
            ("c/src/a.rs", "mod x;\n"),
            ("c/src/a/x.rs", "fn f() {}\n"),
            ("c/src/b/mod.rs", "mod y;\n"),
            ("c/src/b/y.rs", "fn f() {}\n"),
            ("c/src/i/j.rs", "fn f() {}\n"),
            ("c/src/odd.rs", "fn f() {}\n"),
            ("c/src/gone.rs", "fn f() {}\n"),
            ("c/src/x.rs", "fn f() {}\n"),
            ("c/tests/data/any.rs", "fn f() {}\n"),
        ];
        let (dead, _) = dead(&files, &["c/src/lib.rs"]);
        assert_eq!(dead, ["c/src/gone.rs", "c/src/x.rs"]);
    }

    #[test]
    fn a_file_that_only_tests_reach_is_test_code() {
        let files = [
            ("c/src/lib.rs", "mod a;\n#[cfg(test)]\nmod tests;\n"),
            ("c/src/a.rs", "fn f() {}\n"),
            ("c/src/tests.rs", "mod cases;\n"),
            ("c/src/tests/cases.rs", "fn f() {}\n"),
            ("c/src/check.rs", "fn f() {}\n"),
        ];
        let (dead, tests) = dead(&files, &["c/src/lib.rs"]);
        assert_eq!(dead, ["c/src/check.rs"]);
        assert_eq!(tests, ["c/src/tests.rs", "c/src/tests/cases.rs"]);
    }

    #[test]
    fn functions_are_measured_from_fn_to_their_brace() {
        let code = "fn a();\nfn b(x: [u8; 3], f: fn(u8) -> u8)\nwhere\n    T: X,\n{\n    if x {\n    }\n}\nfn c() {}\n";
        assert_eq!(functions(code), [("b", 2, 7), ("c", 9, 1)]);
    }

    #[test]
    fn long_files_and_functions_are_found() {
        let body = "    f();\n".repeat(MAX_FUNCTION_LINES - 1);
        let file = SourceFile::new("a.rs", format!("fn ok() {{\n}}\nfn long() {{\n{body}}}\n"));
        let mut out = Vec::new();
        assert_eq!(lengths(&file, &mut out), None);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].line, out[0].rule), (3, "long-function"));

        let file = SourceFile::new("a.rs", "\n".repeat(MAX_FILE_LINES + 1));
        let mut out = Vec::new();
        assert_eq!(lengths(&file, &mut out).unwrap(), "a.rs: 1001 lines");
        assert_eq!(out[0].rule, "long-file");

        let file = SourceFile::new("a.rs", "\n".repeat(NOTE_FILE_LINES + 1));
        let mut out = Vec::new();
        assert!(lengths(&file, &mut out).is_some());
        assert!(out.is_empty());
    }
}
