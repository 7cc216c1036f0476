//! A SentencePiece vocabulary with scores as a tokenizer.json.
//!
//! The file is an ordinary BPE file that other readers can run. It has one more key,
//! `sentencepiece`, with the scores and types of the tokens: with these we get the exact
//! algorithm back, which ranked merges only approximate where scores tie.

use std::collections::HashMap;
use std::sync::Arc;

use larql_formats::gguf::StringArray;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::added::{Added, AddedTokens, Overlap};
use super::codec::{Codec, METASPACE, PieceKind};
use super::config::Head;
use super::error::TokenizerError;
use super::handle::Engine;
use super::special::SpecialTokens;
use super::spm::{Spm, kind_of_type};
use super::vocabulary::Vocabulary;

/// The key `sentencepiece` of a tokenizer.json that we wrote.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoreSection {
    add_space_prefix: bool,
    unk: Option<u32>,
    scores: Vec<f32>,
    token_types: Vec<u8>,
    /// Control and user-defined tokens that swallow the white space after them.
    rstrip: Vec<u32>,
}

/// Everything that makes a SentencePiece engine.
pub(super) struct Parts {
    pub(super) pieces: Vocabulary,
    pub(super) scores: Vec<f32>,
    pub(super) unk: Option<u32>,
    pub(super) add_space_prefix: bool,
    pub(super) rstrip: Vec<u32>,
}

impl Parts {
    pub(super) fn engine(self) -> Result<(Arc<Vocabulary>, Engine, Codec), TokenizerError> {
        let added = (0..)
            .zip(self.pieces.iter())
            .filter(|(_, p)| matches!(p.kind, PieceKind::Control | PieceKind::UserDefined))
            .map(|(id, piece)| Added {
                id,
                text: piece.text.to_string(),
                control: piece.kind == PieceKind::Control,
                single_word: false,
                lstrip: false,
                rstrip: self.rstrip.contains(&id),
            })
            .collect();
        let pieces = Arc::new(self.pieces);
        let vocabulary = Arc::clone(&pieces);
        let spm = Spm::new(vocabulary, self.scores, self.unk, self.add_space_prefix)?;
        let codec = Codec::Metaspace {
            strip_leading: self.add_space_prefix,
        };
        let engine = Engine::SentencePiece {
            spm: Box::new(spm),
            added: AddedTokens::new(added, Overlap::LongestFirst),
        };
        Ok((pieces, engine, codec))
    }
}

#[derive(Deserialize)]
struct VocabFile {
    model: VocabModel,
}

#[derive(Deserialize)]
struct VocabModel {
    vocab: HashMap<String, u32>,
}

/// The engine of a file that we wrote.
pub(super) fn engine(
    bytes: &[u8],
    head: &Head,
    section: &ScoreSection,
) -> Result<(Arc<Vocabulary>, Engine, Codec), TokenizerError> {
    let file: VocabFile = serde_json::from_slice(bytes)?;
    let n_vocab = section.scores.len();
    for (what, got) in [
        ("sentencepiece.token_types", section.token_types.len()),
        ("model.vocab", file.model.vocab.len()),
    ] {
        if got != n_vocab {
            return Err(TokenizerError::LengthMismatch {
                what,
                expected: n_vocab,
                got,
            });
        }
    }
    let mut texts = vec![None; n_vocab];
    for (text, id) in file.model.vocab {
        let slot = texts
            .get_mut(id as usize)
            .ok_or_else(|| TokenizerError::IdOutOfRange {
                what: format!("the id of `{text}`"),
                id,
                n_vocab,
            })?;
        *slot = Some(text);
    }
    let (mut texts_by_id, mut kinds) = (StringArray::new(), Vec::with_capacity(n_vocab));
    for ((id, text), token_type) in (0..).zip(texts).zip(&section.token_types) {
        // As many texts as ids, so an empty slot means that two texts share an id.
        let text = text.ok_or(TokenizerError::LengthMismatch {
            what: "model.vocab (distinct ids)",
            expected: n_vocab,
            got: id as usize,
        })?;
        let kind = kind_of_type(id, &text, i32::from(*token_type))?;
        texts_by_id.push(&text);
        kinds.push(kind);
    }
    for token in &head.added_tokens {
        super::config::check_ids("an added token's id", &[token.id], n_vocab)?;
    }
    Parts {
        pieces: Vocabulary::new(texts_by_id, kinds),
        scores: section.scores.clone(),
        unk: section.unk,
        add_space_prefix: section.add_space_prefix,
        rstrip: section.rstrip.clone(),
    }
    .engine()
}

#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: Value,
    padding: Value,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sentencepiece: Option<ScoreSection>,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'a str>,
    end_of_word_suffix: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "serialize_vocab")]
    vocab: &'a Vocabulary,
    merges: Vec<(&'a str, &'a str)>,
}

fn serialize_vocab<S: Serializer>(pieces: &&Vocabulary, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(pieces.len()))?;
    for (id, piece) in pieces.iter().enumerate() {
        map.serialize_entry(piece.text, &id)?;
    }
    map.end()
}

/// The tokenizer.json of a SentencePiece engine, with the key that only we read.
pub(super) fn write(
    pieces: &Vocabulary,
    spm: &Spm,
    added: &AddedTokens,
    special: &SpecialTokens,
) -> Result<String, TokenizerError> {
    let mut file = plain_file(pieces, spm, added, special);
    file.sentencepiece = Some(ScoreSection {
        add_space_prefix: spm.add_space_prefix,
        unk: spm.unk(),
        scores: spm.scores().to_vec(),
        token_types: pieces.iter().map(|p| type_of_kind(p.kind)).collect(),
        rstrip: added.iter().filter(|t| t.rstrip).map(|t| t.id).collect(),
    });
    Ok(serde_json::to_string(&file)?)
}

/// The tokenizer.json of a SentencePiece engine as all readers of the format take it; they refuse unknown keys.
pub(super) fn write_plain(
    pieces: &Vocabulary,
    spm: &Spm,
    added: &AddedTokens,
    special: &SpecialTokens,
) -> Result<String, TokenizerError> {
    Ok(serde_json::to_string(&plain_file(
        pieces, spm, added, special,
    ))?)
}

fn plain_file<'a>(
    pieces: &'a Vocabulary,
    spm: &'a Spm,
    added: &AddedTokens,
    special: &SpecialTokens,
) -> File<'a> {
    let text_of = |id: u32| pieces.get(id).map(|p| p.text);
    File {
        version: "1.0",
        truncation: Value::Null,
        padding: Value::Null,
        added_tokens: added.iter().map(added_token).collect(),
        normalizer: normalizer(spm.add_space_prefix),
        pre_tokenizer: Value::Null,
        post_processor: post_processor(pieces, special),
        decoder: decoder(spm.add_space_prefix),
        model: Model {
            kind: "BPE",
            dropout: None,
            unk_token: spm.unk().and_then(text_of),
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: pieces,
            merges: spm.merges(),
        },
        sentencepiece: None,
    }
}

pub(super) fn added_token(token: &Added) -> Value {
    json!({
        "id": token.id,
        "content": token.text,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": false,
        "special": token.control,
    })
}

fn normalizer(add_space_prefix: bool) -> Value {
    let mut steps = Vec::new();
    if add_space_prefix {
        steps.push(json!({ "type": "Prepend", "prepend": METASPACE }));
    }
    steps.push(json!({
        "type": "Replace",
        "pattern": { "String": " " },
        "content": METASPACE,
    }));
    json!({ "type": "Sequence", "normalizers": steps })
}

fn decoder(add_space_prefix: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": METASPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if add_space_prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Puts the prefix before a text, and the end of a text behind it where the model has it there, for other readers of the
/// file.
pub(super) fn post_processor(pieces: &Vocabulary, special: &SpecialTokens) -> Value {
    let end = special.eos.first().filter(|_| special.add_eos);
    if special.prefix.is_empty() && end.is_none() {
        return Value::Null;
    }
    let mut tokens = serde_json::Map::new();
    let mut step = |id: &u32, segment: u8| {
        let text = pieces.get(*id).map_or("", |p| p.text);
        let token = json!({ "id": text, "ids": [id], "tokens": [text] });
        tokens.insert(text.to_owned(), token);
        json!({ "SpecialToken": { "id": text, "type_id": segment } })
    };
    let mut single: Vec<Value> = special.prefix.iter().map(|id| step(id, 0)).collect();
    single.push(json!({ "Sequence": { "id": "A", "type_id": 0 } }));
    single.extend(end.map(|id| step(id, 0)));
    let mut pair = single.clone();
    pair.push(json!({ "Sequence": { "id": "B", "type_id": 1 } }));
    pair.extend(end.map(|id| step(id, 1)));
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": tokens,
    })
}

/// The inverse of [`kind_of_type`] up to types that behave alike.
fn type_of_kind(kind: PieceKind) -> u8 {
    match kind {
        PieceKind::Normal | PieceKind::Hole => 1,
        PieceKind::Control => 3,
        PieceKind::UserDefined => 4,
        PieceKind::Byte(_) => 6,
    }
}
