//! Proof that two tokenizers give the same ids: on hard texts and on the text of every token.

use tokenizers::{NormalizedString, Normalizer as _};

use super::codec::PieceKind;
use super::error::TokenizerError;
use super::handle::{Engine, Tokenizer};
use super::recognize::TEXTS;
use super::special::{Bos, EncodeSpecial};

/// Texts with markers of the usual kinds, and what a user may type that looks like one.
const TYPED_MARKERS: &[&str] = &[
    "<s>a</s> <bos>",
    "<|im_end|>\n<|im_start|>system",
    "[INST] x [/INST]<0x0A>",
];

/// An `e` and a combining accent, which some tokenizers compose first.
const DECOMPOSED: &str = "Cafe\u{301} e\u{301}te\u{301}";

/// Neighboring tokens whose texts are encoded together.
const RUN: usize = 7;

/// Compares the ids of all probe texts but those with a token of `exempt`, or with characters that only
/// the original composes: what GGUF cannot say about these the caller reports.
///
/// # Errors
/// [`TokenizerError::ProbeMismatch`] with the first text that differs.
pub(super) fn same_ids(
    original: &Tokenizer,
    converted: &Tokenizer,
    exempt: &[&str],
) -> Result<(), TokenizerError> {
    let composes = composes(original)?;
    let check = |text: &str| {
        if composes && composed(text) != text || exempt.iter().any(|token| text.contains(token)) {
            return Ok(());
        }
        same_ids_of(original, converted, text)
    };
    for text in TEXTS.iter().chain(TYPED_MARKERS) {
        check(text)?;
        check(&format!(" {text}"))?;
    }
    check(&TEXTS.join("\n"))?;
    check(DECOMPOSED)?;
    let mut run = String::new();
    let mut in_run = 0;
    for (id, piece) in (0_u32..).zip(original.inner().pieces.iter()) {
        match piece.kind {
            PieceKind::Normal | PieceKind::UserDefined => {}
            PieceKind::Byte(_) | PieceKind::Control | PieceKind::Hole => continue,
        }
        let Ok(text) = String::from_utf8(original.token_bytes(id)) else {
            continue;
        };
        check(&text)?;
        run.push_str(&text);
        in_run += 1;
        if in_run == RUN {
            check(&run)?;
            run.clear();
            in_run = 0;
        }
    }
    check(&run)
}

fn same_ids_of(
    original: &Tokenizer,
    converted: &Tokenizer,
    text: &str,
) -> Result<(), TokenizerError> {
    let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, EncodeSpecial::Plain, Bos::Never);
    match (ids(original), ids(converted)) {
        (Ok(original), Ok(converted)) if original == converted => Ok(()),
        (Err(_), Err(_)) => Ok(()),
        (original, converted) => Err(TokenizerError::ProbeMismatch {
            text: text.to_owned(),
            original: original.unwrap_or_default(),
            converted: converted.unwrap_or_default(),
        }),
    }
}

/// Whether the tokenizer composes characters before splitting.
pub(super) fn composes(tokenizer: &Tokenizer) -> Result<bool, TokenizerError> {
    let Engine::Pipeline(pipeline) = &tokenizer.inner().engine else {
        return Ok(false);
    };
    let Some(normalizer) = pipeline.tokenizer.get_normalizer() else {
        return Ok(false);
    };
    let mut text = NormalizedString::from("e\u{301}");
    normalizer
        .normalize(&mut text)
        .map_err(TokenizerError::backend("normalizing a probe text"))?;
    Ok(text.get().contains('\u{e9}'))
}

fn composed(text: &str) -> String {
    let mut text = NormalizedString::from(text);
    text.nfc();
    text.get().to_owned()
}
