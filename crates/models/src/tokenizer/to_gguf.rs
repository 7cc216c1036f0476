//! The tokenizer of a Hugging Face folder as the `tokenizer.*` keys of a GGUF.
//!
//! Useful for: writing files that stock GGUF readers can run on text.
//! Not useful for: WordPiece and unigram vocabularies, which are refused by name.
//!
//! The one idea: the result is not trusted. The keys are read back as a GGUF reader does and both
//! tokenizers encode the probe texts and the text of every token; a difference is an error.
//! Cost: two encodings of the text of every token by each of the two tokenizers.

use larql_formats::gguf::{Array, Metadata, StringArray, Value};
use serde::Deserialize;

use super::codec::{Codec, METASPACE, PieceKind};
use super::config::{DeclaredToken, Head, HfTokenizerConfig, named_token};
use super::error::TokenizerError;
use super::gguf::{BYTE_LEVEL, GgufVocab, SENTENCEPIECE};
use super::handle::{Engine, Tokenizer};
use super::pipeline::Pipeline;
use super::probe;
use super::recognize;
use super::scores::{self, Ranks};
use super::sp_model::{self, SpModel};
use super::vocabulary::TextIndex;

/// Types of tokens in a GGUF.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The score of tokens that no text is joined into, as stock converters write it.
const NEVER_JOINED: f32 = -1000.0;

/// The tokenizer files of a Hugging Face folder.
#[derive(Debug, Clone, Copy)]
pub struct HfTokenizerFiles<'a> {
    /// The bytes of `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// The files beside it.
    pub config: &'a HfTokenizerConfig,
    /// The bytes of `tokenizer.model`, if there is one: it has the scores of a SentencePiece vocabulary.
    pub sentencepiece: Option<&'a [u8]>,
}

/// A tokenizer as GGUF keys.
#[derive(Debug, Clone)]
pub struct GgufTokenizer {
    /// The keys `tokenizer.*`.
    pub metadata: Metadata,
    /// What the original does and GGUF has no key for, as sentences.
    pub notes: Vec<String>,
}

/// The part of tokenizer.json that only a conversion needs.
#[derive(Deserialize)]
struct ModelFile {
    model: ModelPart,
}

#[derive(Deserialize)]
struct ModelPart {
    /// Old files have no type.
    #[serde(rename = "type")]
    kind: Option<String>,
    merges: Option<Vec<Merge>>,
    #[serde(default)]
    ignore_merges: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl Merge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Line(line) => line.split_once(' '),
        }
    }
}

/// The lists of a vocabulary, one entry per row of the embedding.
struct Lists {
    model: &'static str,
    pre: &'static str,
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Option<Vec<f32>>,
    merges: Option<Vec<String>>,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
}

/// The `tokenizer.*` keys for a model whose embedding has `d_vocab` rows.
///
/// # Errors
/// [`TokenizerError::NotForGguf`], [`TokenizerError::UnrecognizedPre`] and [`TokenizerError::NoScoreOrder`] for
/// what GGUF cannot hold, [`TokenizerError::ProbeMismatch`] if the keys would give other ids, and
/// all that [`Tokenizer::from_json`] refuses.
pub fn gguf_metadata(
    files: &HfTokenizerFiles<'_>,
    d_vocab: u32,
) -> Result<GgufTokenizer, TokenizerError> {
    let original = Tokenizer::from_json(files.tokenizer_json, files.config)?;
    if original.n_vocab() > d_vocab as usize {
        return Err(TokenizerError::MoreTokensThanRows {
            n_vocab: original.n_vocab(),
            rows: d_vocab,
        });
    }
    let head: Head = serde_json::from_slice(files.tokenizer_json)?;
    let part = model_part(files.tokenizer_json)?;
    let exempt: Vec<&str> = (head.added_tokens.iter())
        .filter(|token| token.lstrip || token.rstrip || token.single_word)
        .map(|token| token.content.as_str())
        .collect();
    let build = |lists: Lists| {
        let metadata = metadata(lists, &original, files.config)?;
        let converted = Tokenizer::from_gguf(GgufVocab::from_metadata(&metadata)?)?;
        probe::same_ids(&original, &converted, &exempt)?;
        Ok::<_, TokenizerError>((metadata, converted))
    };
    let (metadata, converted) = match (&original.inner().engine, original.inner().codec) {
        (Engine::SentencePiece { spm, .. }, _) => {
            let scores = spm.scores().to_vec();
            build(derived_lists(
                &original,
                scores,
                spm.add_space_prefix,
                d_vocab,
            ))?
        }
        (Engine::Pipeline(pipeline), Codec::ByteLevel) => {
            build(byte_level_lists(&original, pipeline, &part, d_vocab)?)?
        }
        (Engine::Pipeline(pipeline), Codec::Metaspace { strip_leading }) => {
            let stated = match files.sentencepiece.map(sp_model::read) {
                Some(model) => build(stated_lists(&original, &model?, &head, d_vocab)?).ok(),
                None => None,
            };
            match stated {
                Some(built) => built,
                None => {
                    let scores = scores_of_merges(&original, pipeline, &part)?;
                    build(derived_lists(&original, scores, strip_leading, d_vocab))?
                }
            }
        }
    };
    let notes = notes(&original, &converted, &head)?;
    Ok(GgufTokenizer { metadata, notes })
}

fn model_part(bytes: &[u8]) -> Result<ModelPart, TokenizerError> {
    let part = serde_json::from_slice::<ModelFile>(bytes)?.model;
    let kind = part.kind.as_deref().unwrap_or("BPE");
    if kind != "BPE" || part.merges.is_none() {
        return Err(TokenizerError::NotForGguf {
            what: "model.type",
            found: kind.to_owned(),
            expected: "BPE with merges",
        });
    }
    for (what, value) in [
        (
            "model.continuing_subword_prefix",
            &part.continuing_subword_prefix,
        ),
        ("model.end_of_word_suffix", &part.end_of_word_suffix),
    ] {
        if let Some(found) = value.as_ref().filter(|text| !text.is_empty()) {
            return Err(TokenizerError::NotForGguf {
                what,
                found: found.clone(),
                expected: "null",
            });
        }
    }
    Ok(part)
}

/// Names and types of all rows; rows without a token are padding.
fn rows(original: &Tokenizer, d_vocab: u32) -> (Vec<String>, Vec<i32>) {
    let pieces = &original.inner().pieces;
    let unk = original.special().unk;
    (0..d_vocab)
        .map(|id| {
            let padding = || (format!("[PAD{id}]"), UNUSED);
            let Some(piece) = pieces.get(id) else {
                return padding();
            };
            let token_type = match piece.kind {
                PieceKind::Hole => return padding(),
                PieceKind::Control if unk == Some(id) => UNKNOWN,
                PieceKind::Control => CONTROL,
                PieceKind::UserDefined => USER_DEFINED,
                PieceKind::Byte(_) => BYTE,
                PieceKind::Normal => NORMAL,
            };
            (piece.text.to_string(), token_type)
        })
        .unzip()
}

fn byte_level_lists(
    original: &Tokenizer,
    pipeline: &Pipeline,
    part: &ModelPart,
    d_vocab: u32,
) -> Result<Lists, TokenizerError> {
    let words = pipeline.tokenizer.get_pre_tokenizer();
    let pre = recognize::name_of(words, part.ignore_merges)?;
    let (tokens, types) = rows(original, d_vocab);
    let mut lines = Vec::new();
    for (index, merge) in part.merges.iter().flatten().enumerate() {
        let parts = merge.parts();
        let writable =
            parts.filter(|(l, r)| ![l, r].iter().any(|p| p.is_empty() || p.contains(' ')));
        let (left, right) = writable.ok_or_else(|| TokenizerError::BadMerge {
            index,
            merge: parts.map(|(l, r)| format!("{l} {r}")).unwrap_or_default(),
        })?;
        lines.push(format!("{left} {right}"));
    }
    Ok(Lists {
        model: BYTE_LEVEL,
        pre,
        tokens,
        types,
        scores: None,
        merges: Some(lines),
        add_space_prefix: false,
        remove_extra_whitespaces: false,
    })
}

/// The lists with the given scores. Added tokens of space symbols are ordinary ones: the text has
/// spaces in their place when a reader matches added tokens, and joining makes them.
fn derived_lists(
    original: &Tokenizer,
    mut scores: Vec<f32>,
    add_space_prefix: bool,
    d_vocab: u32,
) -> Lists {
    let (tokens, mut types) = rows(original, d_vocab);
    for (text, token_type) in tokens.iter().zip(&mut types) {
        if *token_type == USER_DEFINED && text.contains(METASPACE) {
            *token_type = NORMAL;
        }
    }
    scores.resize(d_vocab as usize, NEVER_JOINED);
    Lists {
        model: SENTENCEPIECE,
        pre: "default",
        tokens,
        types,
        scores: Some(scores),
        merges: None,
        add_space_prefix,
        remove_extra_whitespaces: false,
    }
}

fn scores_of_merges(
    original: &Tokenizer,
    pipeline: &Pipeline,
    part: &ModelPart,
) -> Result<Vec<f32>, TokenizerError> {
    let pieces = &original.inner().pieces;
    let index = TextIndex::new(pieces)?;
    let id_of = |text: &str| index.get(pieces, text);
    let mut ranks = Ranks::new();
    for (rank, merge) in part.merges.iter().flatten().enumerate() {
        let found = merge.parts().and_then(|(left, right)| {
            let joined = id_of(&format!("{left}{right}"))?;
            Some(((id_of(left)?, id_of(right)?), joined))
        });
        let (pair, joined) = found.ok_or_else(|| TokenizerError::BadMerge {
            index: rank,
            merge: merge
                .parts()
                .map(|(l, r)| format!("{l} {r}"))
                .unwrap_or_default(),
        })?;
        ranks.entry(pair).or_insert((rank, joined));
    }
    scores::from_merges(
        pieces,
        &id_of,
        &ranks,
        pipeline.tokenizer.get_pre_tokenizer(),
    )
}

/// The lists by `tokenizer.model`, with the added tokens of tokenizer.json on top, as stock converters
/// write them.
fn stated_lists(
    original: &Tokenizer,
    model: &SpModel,
    head: &Head,
    d_vocab: u32,
) -> Result<Lists, TokenizerError> {
    if model.pieces.len() > d_vocab as usize {
        return Err(TokenizerError::MoreTokensThanRows {
            n_vocab: model.pieces.len(),
            rows: d_vocab,
        });
    }
    let (mut tokens, mut types) = rows(original, d_vocab);
    let mut scores = vec![NEVER_JOINED; d_vocab as usize];
    for (id, piece) in model.pieces.iter().enumerate() {
        tokens[id].clone_from(&piece.text);
        types[id] = piece.kind;
        scores[id] = piece.score;
    }
    for token in &head.added_tokens {
        // Ids were checked when the original was built.
        let id = token.id as usize;
        if token.special {
            tokens[id].clone_from(&token.content);
            if types[id] != UNKNOWN {
                types[id] = CONTROL;
            }
        } else {
            tokens[id] = token.content.replace(METASPACE, " ");
            types[id] = USER_DEFINED;
        }
        scores[id] = NEVER_JOINED;
    }
    Ok(Lists {
        model: SENTENCEPIECE,
        pre: "default",
        tokens,
        types,
        scores: Some(scores),
        merges: None,
        add_space_prefix: model.add_dummy_prefix,
        remove_extra_whitespaces: model.remove_extra_whitespaces,
    })
}

fn metadata(
    lists: Lists,
    original: &Tokenizer,
    cfg: &HfTokenizerConfig,
) -> Result<Metadata, TokenizerError> {
    let mut metadata = Metadata::new();
    let mut put = |key: &str, value| metadata.insert(format!("tokenizer.{key}"), value);
    let strings =
        |list: Vec<String>| Value::Array(Array::Strings(list.iter().collect::<StringArray>()));
    put("ggml.model", Value::String(lists.model.to_owned()))?;
    put("ggml.pre", Value::String(lists.pre.to_owned()))?;
    put("ggml.tokens", strings(lists.tokens))?;
    if let Some(scores) = lists.scores {
        put("ggml.scores", Value::Array(Array::F32(scores)))?;
    }
    put("ggml.token_type", Value::Array(Array::I32(lists.types)))?;
    if let Some(merges) = lists.merges {
        put("ggml.merges", strings(merges))?;
    }
    let special = original.special();
    let sep = named_token(cfg, "sep_token", &|piece| original.id_of(piece))?;
    let mut eos = special.eos.iter().copied();
    for (key, id) in [
        ("ggml.bos_token_id", special.bos),
        ("ggml.eos_token_id", eos.next()),
        ("ggml.eot_token_id", eos.next()),
        ("ggml.unknown_token_id", special.unk),
        ("ggml.seperator_token_id", sep),
        ("ggml.padding_token_id", special.pad),
    ] {
        if let Some(id) = id {
            put(key, Value::U32(id))?;
        }
    }
    let one_bos = special.bos.is_some_and(|bos| special.prefix == [bos]);
    put(
        "ggml.add_bos_token",
        Value::Bool(special.add_bos && one_bos),
    )?;
    put("ggml.add_eos_token", Value::Bool(special.add_eos))?;
    if lists.model == SENTENCEPIECE {
        put("ggml.add_space_prefix", Value::Bool(lists.add_space_prefix))?;
        let remove = Value::Bool(lists.remove_extra_whitespaces);
        put("ggml.remove_extra_whitespaces", remove)?;
    }
    if let Some(template) = original.chat_template() {
        put("chat_template", Value::String(template.to_owned()))?;
    }
    Ok(metadata)
}

/// What is lost.
fn notes(
    original: &Tokenizer,
    converted: &Tokenizer,
    head: &Head,
) -> Result<Vec<String>, TokenizerError> {
    let mut notes = Vec::new();
    let (before, after) = (original.special(), converted.special());
    if before.prefix != after.prefix {
        notes.push(format!(
            "a prompt starts with the ids {:?}, GGUF can state only one beginning-of-sequence id",
            before.prefix
        ));
    }
    let lost: Vec<u32> = before
        .eos
        .iter()
        .copied()
        .filter(|id| !after.eos.contains(id))
        .collect();
    if !lost.is_empty() {
        notes.push(format!(
            "the ids {lost:?} end generation, GGUF has no key for so many"
        ));
    }
    if probe::composes(original)? {
        notes.push(
            "tokenizer.json composes characters (NFC) before splitting, GGUF readers do not: decomposed text gets \
             other ids"
                .to_owned(),
        );
    }
    let count =
        |flag: fn(&DeclaredToken) -> bool| head.added_tokens.iter().filter(|t| flag(t)).count();
    for (flag, n) in [
        ("lstrip", count(|token| token.lstrip)),
        ("rstrip", count(|token| token.rstrip)),
        ("single_word", count(|token| token.single_word)),
    ] {
        if n > 0 {
            notes.push(format!(
                "{n} added tokens have the flag {flag}, GGUF has no key for it"
            ));
        }
    }
    Ok(notes)
}
