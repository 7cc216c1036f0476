//! Compares our ids with recorded ones: for each `NAME.gguf` of a folder, the strings of
//! `NAME.gguf.inp` (separated by a line `__ggml_vocab_test__`) and the id lines of `NAME.gguf.out`.
//!
//! Run: `cargo run --release -p larql-models --example tokenizer_conformance -- FOLDER`.
//! Prints each difference and `N passed, N failed`; fails if anything differs or nothing ran.
#![allow(clippy::print_stdout, reason = "an example talks to its terminal")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use larql_formats::gguf::GgufFile;
use larql_models::tokenizer::{Bos, EncodeSpecial, GgufVocab, SpecialText, Tokenizer};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn check(&mut self, passed: bool, report: impl FnOnce() -> String) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
            println!("{}", report());
        }
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or("usage: tokenizer_conformance FOLDER")?;
    let mut vocabularies: Vec<PathBuf> = std::fs::read_dir(&folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    vocabularies.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    vocabularies.sort();
    let mut tally = Tally::default();
    for path in &vocabularies {
        check_vocabulary(path, &mut tally)?;
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    let ok = tally.failed == 0 && tally.passed > 0;
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The tokenizer, and the one restored from what a vindex keeps, against every recorded string.
fn check_vocabulary(path: &Path, tally: &mut Tally) -> Result<(), Box<dyn Error>> {
    let file = GgufFile::open(path)?;
    let direct = Tokenizer::from_gguf(GgufVocab::from_metadata(file.metadata())?)?;
    let json = direct.to_json()?;
    let restored = Tokenizer::restore(json.as_bytes(), direct.special().clone(), None)?;
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::read_to_string(name)
    };
    let (inputs, outputs) = (beside(".inp")?, beside(".out")?);
    let name = path.display();
    for (text, line) in inputs.split(SEPARATOR).zip(outputs.lines()) {
        let expected = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u32>, _>>()?;
        for (which, tokenizer) in [("gguf", &direct), ("restored", &restored)] {
            let ids = tokenizer.encode(text, EncodeSpecial::Plain, Bos::Never)?;
            tally.check(ids == expected, || {
                format!("{name} ({which}): {text:?}\n  expected {expected:?}\n  got      {ids:?}")
            });
            let decoded = tokenizer.decode(&ids, SpecialText::Keep);
            tally.check(decoded == text, || {
                format!("{name} ({which}): {text:?} decodes to {decoded:?}")
            });
        }
    }
    Ok(())
}
