//! Rules about the lines of one Rust file: what may not be written, and where.

use super::Finding;
use super::source::{SourceFile, find_words};

/// Files that may hold other than ASCII, with the reason.
const NON_ASCII: &[(&str, &str)] = &[];

/// Where `unsafe` may be written: the kernels per instruction set, the thread team, the memory map.
const UNSAFE_IN: &[&str] = &[
    "crates/kernels/src/arch/",
    "crates/kernels/src/team/",
    "crates/formats/src/mmap.rs",
];

/// Crates with a file in [`UNSAFE_IN`]; every other crate root forbids `unsafe` altogether.
const UNSAFE_CRATES: &[&str] = &["crates/kernels/", "crates/formats/"];

/// Crates that work for every family and therefore may not name one.
const FAMILY_FREE: &[&str] = &["crates/engine/src/", "crates/vindex/src/"];

const FAMILIES: &[&str] = &[
    "bitnet",
    "cohere",
    "deepseek",
    "falcon",
    "gemma",
    "glm",
    "gpt",
    "granite",
    "kimi",
    "llama",
    "mamba",
    "mistral",
    "mixtral",
    "olmo",
    "olmoe",
    "phi",
    "qwen",
    "smollm",
    "starcoder",
];

/// Programs whose name contains that of a family.
const NOT_FAMILIES: &[&str] = &["llama.cpp"];

/// Functions that `kernels` defines for everyone: a second copy is how two answers begin.
const DEFINED_ONCE: &[&str] = &[
    "bf16_to_f32",
    "f16_to_f32",
    "f32_to_bf16",
    "f32_to_f16",
    "gelu",
    "gelu_erf",
    "gelu_tanh",
    "layer_norm",
    "relu",
    "rms_norm",
    "silu",
    "softmax",
];

/// A text that may not stand in code, except where `allowed` says so.
struct Ban {
    rule: &'static str,
    needles: &'static [&'static str],
    allowed: fn(&str, bool) -> bool,
    advice: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        rule: "unfinished",
        needles: &["todo!(", "unimplemented!("],
        allowed: |_, _| false,
        advice: "finish it, or return a typed error that names what is unsupported",
    },
    Ban {
        rule: "debug-print",
        needles: &["dbg!("],
        allowed: |_, _| false,
        advice: "remove it",
    },
    Ban {
        rule: "hidden-test",
        needles: &["#[ignore"],
        allowed: |_, _| false,
        advice: "make it cheap enough to run always, or an explicit xtask step",
    },
    Ban {
        rule: "should-panic",
        needles: &["#[should_panic"],
        allowed: |_, _| false,
        advice: "return an error and assert it, or catch the panic where it is expected",
    },
    Ban {
        rule: "print",
        needles: &["println!(", "eprintln!(", "print!(", "eprint!("],
        // Cargo reads what a build script prints.
        allowed: |path, test| {
            test || is_in(path, &["crates/cli/", "xtask/"]) || path.ends_with("/build.rs")
        },
        advice: "return the data; only the command line prints",
    },
    Ban {
        rule: "environment",
        needles: &["env::var(", "env::vars(", "env::var_os(", "env::vars_os("],
        allowed: |path, _| {
            // The test reads whether `cargo xtask bless` runs it; nothing it checks depends on that.
            is_in(
                path,
                &[
                    "crates/cli/src/env.rs",
                    "crates/db/tests/lql/slt.rs",
                    "xtask/",
                ],
            ) || path.ends_with("/build.rs")
        },
        advice: "take it as an option; only crates/cli/src/env.rs reads the environment",
    },
    Ban {
        rule: "unsafe",
        needles: &["unsafe"],
        allowed: |path, _| is_in(path, UNSAFE_IN),
        advice: "call a safe wrapper, or move it to crates/kernels/src/arch",
    },
    Ban {
        rule: "async",
        needles: &["async"],
        allowed: |path, _| is_in(path, &["crates/server/"]),
        advice: "nothing below the server is async; take a callback or return an iterator",
    },
];

fn is_in(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

/// Everything wrong with the lines of `file`.
pub(crate) fn check(file: &SourceFile, out: &mut Vec<Finding>) {
    module_doc(file, out);
    forbids_unsafe(file, out);
    for (line, text, code, test) in file.lines() {
        let mut found = |rule, message| out.push(Finding::new(&file.path, line, rule, message));
        if text.ends_with([' ', '\t', '\r']) {
            found(
                "trailing-space",
                "trailing whitespace; run `cargo fmt`".into(),
            );
        }
        if !text.is_ascii() && !NON_ASCII.iter().any(|(path, _)| *path == file.path) {
            let odd = text.chars().find(|c| !c.is_ascii()).unwrap_or_default();
            found(
                "ascii",
                format!(
                    "non-ASCII {}; write \\u{{{:x}}} or plain words",
                    odd.escape_unicode(),
                    odd as u32
                ),
            );
        }
        for ban in BANS {
            for needle in ban.needles {
                if find_needle(code, needle) && !(ban.allowed)(&file.path, test) {
                    found(ban.rule, format!("`{needle}`; {}", ban.advice));
                }
            }
        }
        if is_in(&file.path, FAMILY_FREE)
            && let Some(family) = family_in(text)
        {
            found(
                "family-name",
                format!(
                    "`{family}`; a family is data of `models`: ask the ModelSpec for the property"
                ),
            );
        }
        if !test && let Some(name) = defined_here(&file.path, code) {
            found(
                "defined-once",
                format!("`fn {name}`; call the one in `larql_kernels`"),
            );
        }
    }
}

fn find_needle(code: &str, needle: &str) -> bool {
    find_words(code, needle).next().is_some()
}

fn module_doc(file: &SourceFile, out: &mut Vec<Finding>) {
    if !file.text.starts_with("//!") {
        out.push(Finding::new(
            &file.path,
            1,
            "module-doc",
            "begin with `//!`: what the module is and what it is not".into(),
        ));
    }
}

fn forbids_unsafe(file: &SourceFile, out: &mut Vec<Finding>) {
    let is_root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
    if is_root
        && !is_in(&file.path, UNSAFE_CRATES)
        && !file.code.contains("#![forbid(unsafe_code)]")
    {
        out.push(Finding::new(
            &file.path,
            1,
            "forbid-unsafe",
            "a crate root without `#![forbid(unsafe_code)]`; add it".into(),
        ));
    }
}

/// The family that a line names, as a word of its own or as the first part of one (`Gemma3Config`).
fn family_in(text: &str) -> Option<&'static str> {
    let mut lower = text.to_ascii_lowercase();
    for program in NOT_FAMILIES {
        lower = lower.replace(program, &" ".repeat(program.len()));
    }
    FAMILIES.iter().copied().find(|family| {
        lower
            .match_indices(family)
            .any(|(at, _)| is_word(text.as_bytes(), at, at + family.len()))
    })
}

/// Whether `bytes[start..end]` is a word in the sense of snake_case, CamelCase or prose.
fn is_word(bytes: &[u8], start: usize, end: usize) -> bool {
    let starts = start == 0
        || !bytes[start - 1].is_ascii_alphabetic()
        || (bytes[start - 1].is_ascii_lowercase() && bytes[start].is_ascii_uppercase());
    let ends = match bytes.get(end) {
        Some(next) if next.is_ascii_lowercase() => false,
        Some(next) if next.is_ascii_uppercase() => bytes[end - 1].is_ascii_lowercase(),
        _ => true,
    };
    starts && ends
}

fn defined_here(path: &str, code: &str) -> Option<&'static str> {
    if path.starts_with("crates/kernels/") {
        return None;
    }
    DEFINED_ONCE.iter().copied().find(|name| {
        ["(", "<"]
            .iter()
            .any(|open| find_needle(code, &format!("fn {name}{open}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules that `text` breaks when it stands at `path`, as `line:rule`.
    fn broken(path: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        check(&SourceFile::new(path, text), &mut out);
        out.iter()
            .map(|f| format!("{}:{}", f.line, f.rule))
            .collect()
    }

    #[test]
    fn a_file_opens_with_its_doc() {
        assert_eq!(broken("crates/db/src/a.rs", "// a\n"), ["1:module-doc"]);
        assert!(broken("crates/db/src/a.rs", "//! A.\n").is_empty());
    }

    #[test]
    fn a_crate_root_forbids_unsafe() {
        assert_eq!(
            broken("crates/db/src/lib.rs", "//! A.\n"),
            ["1:forbid-unsafe"]
        );
        assert!(broken("crates/kernels/src/lib.rs", "//! A.\n").is_empty());
        assert!(broken("crates/db/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn trailing_space_and_other_scripts_are_found() {
        assert_eq!(
            broken("crates/db/src/a.rs", "//! A.\nlet a = 1; \n// caf\u{e9}\n"),
            ["2:trailing-space", "3:ascii"]
        );
    }

    #[test]
    fn unfinished_code_and_hidden_tests_are_found_even_in_tests() {
        let text = "//! A.\ntodo!();\nunimplemented!();\ndbg!(1);\n#[ignore]\n#[ignore = \"slow\"]\n#[should_panic]\n";
        let rules = [
            "2:unfinished",
            "3:unfinished",
            "4:debug-print",
            "5:hidden-test",
            "6:hidden-test",
            "7:should-panic",
        ];
        assert_eq!(broken("crates/db/tests/a.rs", text), rules);
        assert!(
            broken(
                "crates/db/tests/a.rs",
                "//! A todo!() in prose.\nf(\"dbg!(\");\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn libraries_do_not_print() {
        let text = "//! A.\nprintln!(\"a\");\neprint!(\"a\");\n";
        assert_eq!(broken("crates/db/src/a.rs", text), ["2:print", "3:print"]);
        for path in [
            "crates/cli/src/a.rs",
            "xtask/src/a.rs",
            "crates/db/tests/a.rs",
            "crates/db/examples/a.rs",
            "crates/db/build.rs",
        ] {
            assert!(broken(path, text).is_empty(), "{path}");
        }
        let in_tests =
            "//! A.\n#[cfg(test)]\nmod tests {\n    fn a() {\n        println!();\n    }\n}\n";
        assert!(broken("crates/db/src/a.rs", in_tests).is_empty());
    }

    #[test]
    fn one_file_reads_the_environment() {
        let text = "//! A.\nstd::env::var(\"A\");\nenv::var_os(\"A\");\nenv!(\"A\");\n";
        assert_eq!(
            broken("crates/cli/src/main2.rs", text),
            ["2:environment", "3:environment"]
        );
        assert!(broken("crates/cli/src/env.rs", text).is_empty());
    }

    #[test]
    fn unsafe_stays_behind_its_fence() {
        let text = "//! No unsafe here.\n#![deny(unsafe_code)]\nunsafe { f() }\n";
        assert_eq!(broken("crates/kernels/src/dot.rs", text), ["3:unsafe"]);
        assert_eq!(broken("crates/engine/src/a.rs", text), ["3:unsafe"]);
        for path in UNSAFE_IN {
            assert!(broken(path, text).is_empty(), "{path}");
        }
    }

    #[test]
    fn nothing_is_async() {
        assert_eq!(
            broken("crates/db/src/a.rs", "//! A.\nasync fn a() {}\n"),
            ["2:async"]
        );
        assert!(broken("crates/server/src/a.rs", "//! A.\nasync fn a() {}\n").is_empty());
    }

    #[test]
    fn the_engine_names_no_family() {
        for line in [
            "// as in Gemma",
            "struct Gemma3Config;",
            "fn qwen2_bias() {}",
            "f(\"llama\");",
            "const GPT2: u32 = 2;",
            "is_mistral()",
            "let phi = 1;",
        ] {
            let text = format!("//! A.\n{line}\n");
            assert_eq!(
                broken("crates/engine/src/a.rs", &text),
                ["2:family-name"],
                "{line}"
            );
            assert!(broken("crates/models/src/a.rs", &text).is_empty(), "{line}");
        }
        for line in [
            "// llama.cpp runs it",
            "// philosophy, morphic",
            "// PHILOSOPHY",
            "// glmnet",
        ] {
            let text = format!("//! A.\n{line}\n");
            assert!(broken("crates/vindex/src/a.rs", &text).is_empty(), "{line}");
        }
    }

    #[test]
    fn kernels_are_defined_once() {
        let text = "//! A.\nfn softmax(x: &mut [f32]) {}\npub fn silu<T>(x: T) {}\nfn softmax_rows() {}\nsoftmax(x);\n";
        assert_eq!(
            broken("crates/engine/src/a.rs", text),
            ["2:defined-once", "3:defined-once"]
        );
        assert!(broken("crates/kernels/src/arch/scalar/a.rs", text).is_empty());
        assert!(broken("crates/engine/tests/a.rs", text).is_empty());
    }
}
