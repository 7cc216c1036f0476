//! Compares our ids with recorded ones: for each `NAME.gguf` of a folder, the strings of
//! `NAME.gguf.inp` (separated by a line `__ggml_vocab_test__`) and the id lines of `NAME.gguf.out`.
//!
//! Each vocabulary also runs as the Hugging Face files that we make of it, and as the GGUF keys that we
//! make of those files. With a second folder, the Hugging Face files are written to `OUT/NAME`.
//!
//! Run: `cargo run --release -p larql-models --example tokenizer_conformance -- FOLDER [OUT]`.
//! Prints each difference and `N passed, N failed`; fails if anything differs or nothing ran.
#![allow(clippy::print_stdout, reason = "an example talks to its terminal")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use larql_formats::gguf::GgufFile;
use larql_models::tokenizer::{
    Bos, EncodeSpecial, GgufVocab, HfTokenizerConfig, HfTokenizerFiles, HfTokenizerFolder,
    SpecialText, Tokenizer, gguf_metadata, hf_folder,
};

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
        .ok_or("usage: tokenizer_conformance FOLDER [OUT]")?;
    let out = std::env::args_os().nth(2).map(PathBuf::from);
    let mut vocabularies: Vec<PathBuf> = std::fs::read_dir(&folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    vocabularies.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    vocabularies.sort();
    let mut tally = Tally::default();
    for path in &vocabularies {
        check_vocabulary(path, out.as_deref(), &mut tally)?;
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    let ok = tally.failed == 0 && tally.passed > 0;
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The tokenizer, and its three converted forms, against every recorded string.
fn check_vocabulary(
    path: &Path,
    out: Option<&Path>,
    tally: &mut Tally,
) -> Result<(), Box<dyn Error>> {
    let file = GgufFile::open(path)?;
    let vocab = GgufVocab::from_metadata(file.metadata())?;
    let d_vocab = u32::try_from(vocab.tokens.len())?;
    let direct = Tokenizer::from_gguf(vocab.clone())?;
    let json = direct.to_json()?;
    let restored = Tokenizer::restore(json.as_bytes(), direct.special().clone(), None)?;
    let folder = hf_folder(vocab.clone())?;
    if let (Some(out), Some(stem)) = (out, path.file_stem()) {
        write_folder(&folder, &out.join(stem))?;
    }
    let config = HfTokenizerConfig {
        tokenizer_config: Some(folder.tokenizer_config.clone()),
        generation_config: None,
        config: None,
        chat_template: folder.chat_template.clone(),
    };
    let hf = Tokenizer::from_json(folder.tokenizer_json.as_bytes(), &config)?;
    let files = HfTokenizerFiles {
        tokenizer_json: folder.tokenizer_json.as_bytes(),
        config: &config,
        sentencepiece: folder.sentencepiece.as_deref(),
    };
    let name = path.display();
    let started = std::time::Instant::now();
    let mut forms = vec![
        ("gguf", direct),
        ("restored", restored),
        ("hugging face", hf),
    ];
    match gguf_metadata(&files, d_vocab) {
        Err(error) => tally.check(false, || format!("{name} (there and back): {error}")),
        Ok(again) => {
            let again_vocab = GgufVocab::from_metadata(&again.metadata)?;
            println!(
                "{name}: {:.1} s back, pre {:?} -> {:?}, same tokens: {}, scores: {}, types: {}, merges: {}, notes: {:?}",
                started.elapsed().as_secs_f64(),
                vocab.pre,
                again_vocab.pre,
                again_vocab.tokens == vocab.tokens,
                again_vocab.scores == vocab.scores,
                again_vocab.token_types == vocab.token_types,
                again_vocab.merges == vocab.merges,
                again.notes,
            );
            forms.push(("there and back", Tokenizer::from_gguf(again_vocab)?));
        }
    }
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::read_to_string(name)
    };
    let (inputs, outputs) = (beside(".inp")?, beside(".out")?);
    for (text, line) in inputs.split(SEPARATOR).zip(outputs.lines()) {
        let expected = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u32>, _>>()?;
        for (which, tokenizer) in &forms {
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

fn write_folder(folder: &HfTokenizerFolder, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    std::fs::write(to.join("tokenizer.json"), &folder.tokenizer_json)?;
    let config = folder.tokenizer_config.to_string();
    std::fs::write(to.join("tokenizer_config.json"), config)?;
    if let Some(template) = &folder.chat_template {
        std::fs::write(to.join("chat_template.jinja"), template)?;
    }
    if let Some(model) = &folder.sentencepiece {
        std::fs::write(to.join("tokenizer.model"), model)?;
    }
    Ok(())
}
