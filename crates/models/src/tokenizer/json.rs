//! Builds a tokenizer from a tokenizer.json.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use super::added::{MarkerRule, Overlap};
use super::codec::{Codec, METASPACE, Piece, PieceKind, byte_piece};
use super::config::{self, Head, HfTokenizerConfig};
use super::error::TokenizerError;
use super::handle::{Engine, Inner, Tokenizer, TokenizerWarning};
use super::pipeline::Pipeline;
use super::pre::PreTokenizer;
use super::special::SpecialTokens;
use super::spm_json;
use super::vocabulary::Vocabulary;

/// Ids beyond this are not a vocabulary but a damaged file; the largest in use have 262,208.
pub(super) const MAX_TOKENS: usize = 1 << 22;

/// The space in the byte alphabet.
const BYTE_SPACE: char = '\u{120}';

/// A text on which the splitting rules in use differ.
const PROBE: &str = "re-use of 12345 items isn't   free; HELLO'S caf\u{e9} (x+y)!\n\n  3.14";

type BackendError = Box<dyn std::error::Error + Send + Sync>;

/// What decides about the special tokens.
pub(super) enum Source<'a> {
    /// The files beside the tokenizer.json.
    Files(&'a HfTokenizerConfig),
    /// A manifest that recorded them earlier.
    Manifest(SpecialTokens, Option<String>),
}

pub(super) fn from_json(bytes: &[u8], source: Source<'_>) -> Result<Tokenizer, TokenizerError> {
    let head: Head = serde_json::from_slice(bytes)?;
    let (pieces, engine, codec) = match &head.sentencepiece {
        Some(scores) => spm_json::engine(bytes, &head, scores)?,
        None => pipeline_engine(bytes, &head)?,
    };
    let id_of = |piece: &str| engine.id_of(piece);
    let mut warnings = Vec::new();
    let (special, chat_template) = match source {
        Source::Manifest(special, template) => {
            config::check_ids("prefix", &special.prefix, pieces.len())?;
            (special.normalize(), template)
        }
        Source::Files(cfg) => {
            if let Engine::Pipeline(pipeline) = &engine {
                warnings.extend(class_mismatch(pipeline, cfg)?);
            }
            let (special, of_config) = config::special_tokens(&head, cfg, pieces.len(), &id_of)?;
            warnings.extend(of_config);
            (special, config::chat_template(cfg)?)
        }
    };
    Ok(Tokenizer::from_inner(Inner {
        pieces,
        engine,
        codec,
        special,
        chat_template,
        warnings,
    }))
}

fn pipeline_engine(
    bytes: &[u8],
    head: &Head,
) -> Result<(Arc<Vocabulary>, Engine, Codec), TokenizerError> {
    let tokenizer =
        tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| unreadable(bytes, error))?;
    if let ModelWrapper::BPE(model) = tokenizer.get_model()
        && let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0)
    {
        return Err(TokenizerError::Dropout { dropout });
    }
    for token in &head.added_tokens {
        match tokenizer.token_to_id(&token.content) {
            Some(got) if got != token.id => {
                return Err(TokenizerError::AddedTokenId {
                    piece: token.content.clone(),
                    declared: token.id,
                    got,
                });
            }
            Some(_) | None => {}
        }
    }
    let (codec, byte_fallback) = decoder_codec(&head.decoder)?;
    let pieces = pieces(&tokenizer, head, byte_fallback)?;
    check_space_rule(codec, head)?;
    let pipeline = Pipeline::new(tokenizer, Overlap::LeftmostLongest)?;
    Ok((
        Arc::new(pieces),
        Engine::Pipeline(Box::new(pipeline)),
        codec,
    ))
}

/// A key of a tokenizer.json, whether the crate reads a value of it, and the types that it knows.
type Part = (&'static str, fn(&Value) -> bool, &'static str);

/// The crate does not say which part of a file it cannot read, so each is tried alone.
fn unreadable(bytes: &[u8], source: BackendError) -> TokenizerError {
    let Ok(file) = serde_json::from_slice::<Value>(bytes) else {
        return TokenizerError::backend("reading tokenizer.json")(source);
    };
    let parts: [Part; 5] = [
        (
            "model",
            reads::<ModelWrapper>,
            "BPE, Unigram, WordLevel, WordPiece",
        ),
        (
            "normalizer",
            reads::<Option<NormalizerWrapper>>,
            "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, \
             Sequence, Strip, StripAccents",
        ),
        (
            "pre_tokenizer",
            reads::<Option<PreTokenizerWrapper>>,
            "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, Sequence, \
             Split, UnicodeScripts, Whitespace, WhitespaceSplit",
        ),
        (
            "post_processor",
            reads::<Option<PostProcessorWrapper>>,
            "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing",
        ),
        (
            "decoder",
            reads::<Option<DecoderWrapper>>,
            "BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece",
        ),
    ];
    match parts.iter().find(|(part, reads, _)| !reads(&file[*part])) {
        Some((part, _, known)) => TokenizerError::Part {
            part,
            found: file[*part]["type"].to_string(),
            known,
            source,
        },
        None => TokenizerError::backend("reading tokenizer.json")(source),
    }
}

fn reads<T: DeserializeOwned>(part: &Value) -> bool {
    T::deserialize(part).is_ok()
}

/// One entry per id.
fn pieces(
    tokenizer: &tokenizers::Tokenizer,
    head: &Head,
    byte_fallback: bool,
) -> Result<Vocabulary, TokenizerError> {
    let vocab = tokenizer.get_vocab(true);
    let n_vocab = vocab.values().max().map_or(0, |max| *max as usize + 1);
    if n_vocab == 0 {
        return Err(TokenizerError::EmptyVocabulary);
    }
    if n_vocab > MAX_TOKENS {
        return Err(TokenizerError::Limit {
            what: "the highest token id",
            limit: MAX_TOKENS,
            got: n_vocab - 1,
        });
    }
    let hole = Piece {
        text: "",
        kind: PieceKind::Hole,
    };
    let mut pieces = vec![hole; n_vocab];
    let mut shared: Option<u32> = None;
    for (text, id) in &vocab {
        let kind = match byte_piece(text) {
            Some(byte) if byte_fallback => PieceKind::Byte(byte),
            Some(_) | None => PieceKind::Normal,
        };
        let slot = &mut pieces[*id as usize];
        if slot.kind != PieceKind::Hole {
            shared = Some(shared.map_or(*id, |lowest| lowest.min(*id)));
        }
        *slot = Piece {
            text: text.as_str(),
            kind,
        };
    }
    if let Some(shared) = shared {
        let sharing = vocab.iter().filter(|(_, id)| **id == shared);
        let mut texts: Vec<&String> = sharing.map(|(text, _)| text).collect();
        texts.sort_unstable();
        return Err(TokenizerError::SharedId {
            id: shared,
            first: texts[0].clone(),
            second: texts[1].clone(),
        });
    }
    for token in &head.added_tokens {
        if let Some(slot) = pieces.get_mut(token.id as usize) {
            slot.kind = if token.special {
                PieceKind::Control
            } else {
                PieceKind::UserDefined
            };
        }
    }
    Ok(pieces.into_iter().collect())
}

/// How the declared decoder turns pieces into text, and whether it knows byte tokens.
fn decoder_codec(decoder: &Value) -> Result<(Codec, bool), TokenizerError> {
    let steps = match decoder["type"].as_str() {
        Some("Sequence") => decoder["decoders"]
            .as_array()
            .map_or(&[][..], Vec::as_slice),
        Some(_) | None => std::slice::from_ref(decoder),
    };
    let mut byte_level = false;
    let mut metaspace = false;
    let mut byte_fallback = false;
    let mut strip_leading = false;
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => byte_level = true,
            Some("ByteFallback") => byte_fallback = true,
            Some("Fuse") => {}
            Some("Metaspace") => {
                metaspace = true;
                let never = step["prepend_scheme"] == "never" || step["add_prefix_space"] == false;
                strip_leading |= !never;
            }
            Some("Replace")
                if step["pattern"]["String"] == METASPACE.to_string() && step["content"] == " " =>
            {
                metaspace = true;
            }
            Some("Strip") if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                strip_leading = true;
            }
            other => {
                return Err(TokenizerError::UnsupportedDecoder {
                    kind: other.unwrap_or("null").to_owned(),
                });
            }
        }
    }
    match (byte_level, metaspace) {
        (true, false) => Ok((Codec::ByteLevel, byte_fallback)),
        (false, true) => Ok((Codec::Metaspace { strip_leading }, byte_fallback)),
        (true, true) | (false, false) => Err(TokenizerError::UnsupportedDecoder {
            kind: decoder.to_string(),
        }),
    }
}

/// The space symbol that the decoder expects needs a rule that writes it, or spaces vanish.
fn check_space_rule(codec: Codec, head: &Head) -> Result<(), TokenizerError> {
    let (symbol, makers) = match codec {
        Codec::ByteLevel => (BYTE_SPACE, &["ByteLevel"][..]),
        Codec::Metaspace { .. } => (METASPACE, &["Metaspace", "Replace"][..]),
    };
    let rules = [&head.normalizer, &head.pre_tokenizer];
    if rules.iter().any(|rule| mentions_type(rule, makers)) {
        Ok(())
    } else {
        Err(TokenizerError::NoSpaceRule { symbol })
    }
}

/// Whether a step of one of the given types occurs in `value`.
fn mentions_type(value: &Value, types: &[&str]) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type")
                .and_then(Value::as_str)
                .is_some_and(|kind| types.contains(&kind))
                || map.values().any(|v| mentions_type(v, types))
        }
        Value::Array(list) => list.iter().any(|v| mentions_type(v, types)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A warning if tokenizer_config.json names a class whose splitting rule is another one.
fn class_mismatch(
    pipeline: &Pipeline,
    cfg: &HfTokenizerConfig,
) -> Result<Option<TokenizerWarning>, TokenizerError> {
    let (class, pre) = match config::tokenizer_class(cfg) {
        Some(class @ ("GPT2Tokenizer" | "GPT2TokenizerFast")) => (class, "gpt-2"),
        Some(class @ ("Qwen2Tokenizer" | "Qwen2TokenizerFast")) => (class, "qwen2"),
        Some(_) | None => return Ok(None),
    };
    let json = PreTokenizer::by_name(pre)?.to_json();
    let words: tokenizers::PreTokenizerWrapper = serde_json::from_value(json)?;
    let by_file = pipeline.encode(PROBE, MarkerRule::Nowhere);
    let by_class = pipeline.encode_words(PROBE, MarkerRule::Nowhere, Some(&words));
    // A vocabulary too small for the probe text has nothing to compare.
    let (Ok(by_file), Ok(by_class)) = (by_file, by_class) else {
        return Ok(None);
    };
    Ok(
        (by_file != by_class).then(|| TokenizerWarning::ClassMismatch {
            class: class.to_owned(),
            probe: PROBE,
            n_tokens_file: by_file.len(),
            n_tokens_class: by_class.len(),
        }),
    )
}
