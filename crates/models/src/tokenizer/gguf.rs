//! Builds a tokenizer from the `tokenizer.*` keys of a GGUF.

use std::collections::HashSet;
use std::sync::Arc;

use larql_formats::Error;
use larql_formats::gguf::{Metadata, StringArray};
use serde_json::json;

use super::added::{Added, Overlap};
use super::codec::{Codec, PieceKind, byte_piece};
use super::config::check_ids;
use super::error::TokenizerError;
use super::handle::{Engine, Inner, Tokenizer};
use super::json::MAX_TOKENS;
use super::pipeline::Pipeline;
use super::pre::PreTokenizer;
use super::special::{END_MARKERS, MESSAGE_END, SpecialTokens, TURN_ENDS};
use super::spm::kind_of_type;
use super::spm_json::{self, Parts};
use super::vocabulary::{TextIndex, Vocabulary};

/// Longer texts are not tokens; the longest in use have a few hundred bytes.
const MAX_TOKEN_BYTES: usize = 1 << 16;

/// The longest merge list in use has 514,906 entries.
const MAX_MERGES: usize = 1 << 23;

pub(super) const SENTENCEPIECE: &str = "llama";
pub(super) const BYTE_LEVEL: &str = "gpt2";

/// The data that a GGUF carries under `tokenizer.*`.
#[derive(Debug, Clone)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `llama` (SentencePiece with scores) or `gpt2` (byte-level merges).
    pub model: String,
    /// `tokenizer.ggml.pre`: the splitting rule of a byte-level vocabulary.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: StringArray,
    /// `tokenizer.ggml.scores`, by id.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`, by id.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`, best first, each two pieces with a space between.
    pub merges: Option<Vec<String>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `general.name`: one family's markers swallow white space, and only the name tells.
    pub name: Option<String>,
}

impl GgufVocab {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// A key that is missing or has another type than the format says.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let text = |key: &str| Ok::<_, Error>(metadata.str(key)?.map(str::to_owned));
        let texts = |key: &str| {
            let list = metadata.strings(key)?;
            Ok::<_, Error>(list.map(|list| list.iter().map(str::to_owned).collect::<Vec<_>>()))
        };
        let tokens_key = "tokenizer.ggml.tokens";
        let model_key = "tokenizer.ggml.model";
        Ok(Self {
            model: text(model_key)?.ok_or_else(|| metadata.missing(model_key))?,
            pre: text("tokenizer.ggml.pre")?,
            tokens: (metadata.strings(tokens_key)?)
                .cloned()
                .ok_or_else(|| metadata.missing(tokens_key))?,
            scores: metadata.f32s("tokenizer.ggml.scores")?.map(<[f32]>::to_vec),
            token_types: metadata.i32s("tokenizer.ggml.token_type")?,
            merges: texts("tokenizer.ggml.merges")?,
            bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
            eos: metadata.u32("tokenizer.ggml.eos_token_id")?,
            eot: metadata.u32("tokenizer.ggml.eot_token_id")?,
            unk: metadata.u32("tokenizer.ggml.unknown_token_id")?,
            pad: metadata.u32("tokenizer.ggml.padding_token_id")?,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
            name: text("general.name")?,
        })
    }
}

pub(super) fn from_gguf(mut vocab: GgufVocab) -> Result<Tokenizer, TokenizerError> {
    check_sizes(&vocab)?;
    let pieces = pieces(&mut vocab)?;
    let chat_template = vocab.chat_template.clone();
    let (special, (pieces, engine, codec)) = match vocab.model.as_str() {
        SENTENCEPIECE => sentencepiece(vocab, pieces)?,
        BYTE_LEVEL => byte_level(&vocab, pieces)?,
        other => {
            return Err(TokenizerError::UnsupportedModel {
                model: other.to_owned(),
                known: format!("{SENTENCEPIECE}, {BYTE_LEVEL}"),
            });
        }
    };
    Ok(Tokenizer::from_inner(Inner {
        pieces,
        engine,
        codec,
        special,
        chat_template,
        warnings: Vec::new(),
    }))
}

fn check_sizes(vocab: &GgufVocab) -> Result<(), TokenizerError> {
    let n_vocab = vocab.tokens.len();
    if n_vocab == 0 {
        return Err(TokenizerError::EmptyVocabulary);
    }
    let longest = vocab.tokens.iter().map(str::len).max().unwrap_or(0);
    let n_merges = vocab.merges.as_ref().map_or(0, Vec::len);
    for (what, limit, got) in [
        ("the number of tokens", MAX_TOKENS, n_vocab),
        ("the longest token in bytes", MAX_TOKEN_BYTES, longest),
        ("the number of merges", MAX_MERGES, n_merges),
    ] {
        if got > limit {
            return Err(TokenizerError::Limit { what, limit, got });
        }
    }
    for (what, got) in [
        ("tokenizer.ggml.scores", vocab.scores.as_ref().map(Vec::len)),
        (
            "tokenizer.ggml.token_type",
            vocab.token_types.as_ref().map(Vec::len),
        ),
    ] {
        if let Some(got) = got.filter(|got| *got != n_vocab) {
            return Err(TokenizerError::LengthMismatch {
                what,
                expected: n_vocab,
                got,
            });
        }
    }
    for (what, id) in [
        ("tokenizer.ggml.bos_token_id", vocab.bos),
        ("tokenizer.ggml.eos_token_id", vocab.eos),
        ("tokenizer.ggml.eot_token_id", vocab.eot),
        ("tokenizer.ggml.unknown_token_id", vocab.unk),
        ("tokenizer.ggml.padding_token_id", vocab.pad),
    ] {
        check_ids(what, id.as_slice(), n_vocab)?;
    }
    Ok(())
}

/// One entry per id. A token that begins or ends a text or a turn is a control token whatever its
/// type says: a user must not be able to type it. The texts are taken over.
fn pieces(vocab: &mut GgufVocab) -> Result<Vocabulary, TokenizerError> {
    let declared: HashSet<u32> = [vocab.bos, vocab.eos, vocab.eot]
        .into_iter()
        .flatten()
        .collect();
    let mut kinds = Vec::with_capacity(vocab.tokens.len());
    for (id, text) in (0_u32..).zip(vocab.tokens.iter()) {
        let mut kind = match &vocab.token_types {
            Some(types) => kind_of_type(id, text, types[id as usize])?,
            None => byte_piece(text)
                .filter(|_| vocab.model == SENTENCEPIECE)
                .map_or(PieceKind::Normal, PieceKind::Byte),
        };
        let ends_a_turn = kind == PieceKind::UserDefined && END_MARKERS.contains(&text);
        if ends_a_turn || declared.contains(&id) {
            kind = PieceKind::Control;
        }
        if text.is_empty() {
            kind = PieceKind::Hole;
        }
        kinds.push(kind);
    }
    Ok(Vocabulary::new(std::mem::take(&mut vocab.tokens), kinds))
}

type Built = (SpecialTokens, (Arc<Vocabulary>, Engine, Codec));

fn sentencepiece(mut vocab: GgufVocab, pieces: Vocabulary) -> Result<Built, TokenizerError> {
    let scores = vocab.scores.take().ok_or(TokenizerError::MissingScores)?;
    let bad_score = (0..).zip(&scores).find(|(_, score)| !score.is_finite());
    if let Some((id, score)) = bad_score {
        return Err(TokenizerError::NonFiniteScore {
            id,
            piece: pieces.get(id).map_or("", |piece| piece.text).to_owned(),
            score: *score,
        });
    }
    let special = special_tokens(&vocab, &pieces, true)?;
    let parts = Parts {
        rstrip: rstrip_ids(&vocab, &pieces),
        pieces,
        scores,
        unk: vocab.unk,
        add_space_prefix: vocab.add_space_prefix.unwrap_or(true),
    };
    Ok((special, parts.engine()?))
}

/// The Phi-3 vocabularies: all markers but these swallow the white space after them.
fn rstrip_ids(vocab: &GgufVocab, pieces: &Vocabulary) -> Vec<u32> {
    let name = vocab.name.as_deref().unwrap_or("").to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return Vec::new();
    }
    (0..)
        .zip(pieces.iter())
        .filter(|(_, p)| matches!(p.kind, PieceKind::Control | PieceKind::UserDefined))
        .filter(|(_, p)| !["<unk>", "<s>", "<|endoftext|>"].contains(&p.text))
        .map(|(id, _)| id)
        .collect()
}

fn byte_level(vocab: &GgufVocab, pieces: Vocabulary) -> Result<Built, TokenizerError> {
    let name = vocab.pre.as_deref().ok_or(TokenizerError::MissingPre)?;
    let pre = PreTokenizer::by_name(name)?;
    let merges = vocab.merges.as_ref().ok_or(TokenizerError::MissingMerges)?;
    let special = special_tokens(vocab, &pieces, pre.add_bos)?;
    TextIndex::new(&pieces)?;
    let ids = (0..).zip(pieces.iter());
    let named = ids.filter(|(_, piece)| piece.kind != PieceKind::Hole);
    let merges = merges
        .iter()
        .enumerate()
        .map(|(index, merge)| split_merge(index, merge))
        .collect::<Result<Vec<_>, _>>()?;
    let model = tokenizers::models::bpe::BPE::builder()
        .vocab_and_merges(
            named
                .map(|(id, piece)| (piece.text.to_owned(), id))
                .collect::<tokenizers::models::bpe::Vocab>(),
            merges,
        )
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(TokenizerError::backend("building the merge table"))?;
    let failed = TokenizerError::backend("building the vocabulary");
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let words: tokenizers::PreTokenizerWrapper = serde_json::from_value(pre.to_json())?;
    tokenizer.with_pre_tokenizer(Some(words));
    let step = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": false,
    });
    let decoder: tokenizers::DecoderWrapper = serde_json::from_value(step)?;
    tokenizer.with_decoder(Some(decoder));
    let prefix = spm_json::post_processor(&pieces, &special);
    let processor: Option<tokenizers::PostProcessorWrapper> = serde_json::from_value(prefix)?;
    tokenizer.with_post_processor(processor);
    let added = added_tokens(&pieces);
    tokenizer
        .add_tokens(added.iter().map(|token| {
            tokenizers::AddedToken::from(token.text.clone(), token.control).normalized(false)
        }))
        .map_err(failed)?;
    let pipeline = Pipeline::new(tokenizer, Overlap::LongestFirst)?;
    let engine = Engine::Pipeline(Box::new(pipeline));
    Ok((special, (Arc::new(pieces), engine, Codec::ByteLevel)))
}

fn added_tokens(pieces: &Vocabulary) -> Vec<Added> {
    (0..)
        .zip(pieces.iter())
        .filter(|(_, p)| matches!(p.kind, PieceKind::Control | PieceKind::UserDefined))
        .map(|(id, piece)| Added {
            id,
            text: piece.text.to_string(),
            control: piece.kind == PieceKind::Control,
            single_word: false,
            lstrip: false,
            rstrip: false,
        })
        .collect()
}

fn split_merge(index: usize, merge: &str) -> Result<(String, String), TokenizerError> {
    // The space that separates is never the first character of a piece.
    let at = merge
        .char_indices()
        .skip(1)
        .find(|(_, c)| *c == ' ')
        .map(|(at, _)| at);
    match at.map(|at| (&merge[..at], &merge[at + 1..])) {
        Some((left, right)) if !right.is_empty() => Ok((left.to_owned(), right.to_owned())),
        Some(_) | None => Err(TokenizerError::BadMerge {
            index,
            merge: merge.to_owned(),
        }),
    }
}

fn special_tokens(
    vocab: &GgufVocab,
    pieces: &Vocabulary,
    add_bos_default: bool,
) -> Result<SpecialTokens, TokenizerError> {
    let marker = |text: &str| {
        let at = pieces.iter().position(|p| p.text == text)?;
        u32::try_from(at).ok()
    };
    let bos = match (vocab.bos, vocab.model.as_str()) {
        (None, SENTENCEPIECE) => marker("<s>"),
        (bos, _) => bos,
    };
    let mut eos: Vec<u32> = [vocab.eos, vocab.eot].into_iter().flatten().collect();
    if eos.is_empty() && vocab.model == SENTENCEPIECE {
        eos.extend(marker("</s>"));
    }
    let message_end_only = TURN_ENDS.iter().all(|text| marker(text).is_some());
    let by_text = (0..).zip(pieces.iter()).filter(|(_, piece)| {
        piece.kind == PieceKind::Control
            && END_MARKERS.contains(&piece.text)
            && !(message_end_only && piece.text == MESSAGE_END)
    });
    eos.extend(by_text.map(|(id, _)| id));
    let add_bos = vocab.add_bos.unwrap_or(add_bos_default);
    let prefix = if add_bos {
        vec![bos.ok_or(TokenizerError::MissingBos)?]
    } else {
        Vec::new()
    };
    Ok(SpecialTokens {
        bos,
        eos,
        unk: vocab.unk,
        pad: vocab.pad,
        add_bos,
        add_eos: vocab.add_eos.unwrap_or(false),
        prefix,
    }
    .normalize())
}
