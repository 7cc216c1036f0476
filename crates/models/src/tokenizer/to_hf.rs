//! The vocabulary of a GGUF as the tokenizer files of a Hugging Face folder.
//!
//! Useful for: loading an exported model with `AutoTokenizer`, or with [`Tokenizer::from_json`].
//! Not useful for: restoring what the GGUF never had, such as the limit on a prompt's length.
//!
//! The one idea: tokenizer.json alone runs the vocabulary; for one with scores it has the merges in the order of
//! scores, which is all that its format can say. The scores themselves go into `tokenizer.model`, so that
//! the way back loses nothing.

use serde_json::{Map, Value, json};

use super::codec::{METASPACE, PieceKind};
use super::error::TokenizerError;
use super::gguf::GgufVocab;
use super::handle::{Engine, Tokenizer};
use super::sp_model::{self, SpModel, SpPiece};
use super::spm_json;

/// The tokenizer files of a Hugging Face folder, under their usual names.
#[derive(Debug, Clone)]
pub struct HfTokenizerFolder {
    /// `tokenizer.json`.
    pub tokenizer_json: String,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Value,
    /// `chat_template.jinja`, if the model has a template.
    pub chat_template: Option<String>,
    /// `tokenizer.model`, for a vocabulary with scores.
    pub sentencepiece: Option<Vec<u8>>,
    /// The id that begins a text, if the vocabulary has one; for `bos_token_id` of `config.json` and
    /// `generation_config.json`.
    pub bos: Option<u32>,
    /// The id that fills up batches, if the vocabulary has one; for `pad_token_id` of both.
    pub pad: Option<u32>,
    /// The ids that end generation; for `eos_token_id` of `generation_config.json`.
    pub eos: Vec<u32>,
}

/// The files of a GGUF vocabulary.
///
/// # Errors
/// As [`Tokenizer::from_gguf`].
pub fn hf_folder(vocab: GgufVocab) -> Result<HfTokenizerFolder, TokenizerError> {
    let types = vocab.token_types.clone();
    let tokenizer = Tokenizer::from_gguf(vocab)?;
    let inner = tokenizer.inner();
    let (tokenizer_json, sentencepiece) = match &inner.engine {
        Engine::SentencePiece { spm, added } => {
            let json = spm_json::write_plain(&inner.pieces, spm, added, &inner.special)?;
            let model = sp_model(
                &tokenizer,
                spm.scores(),
                spm.add_space_prefix,
                types.as_deref(),
            );
            (json, Some(sp_model::write(&model)))
        }
        Engine::Pipeline(_) => (tokenizer.to_json()?, None),
    };
    Ok(HfTokenizerFolder {
        tokenizer_json,
        tokenizer_config: tokenizer_config(&tokenizer),
        chat_template: tokenizer.chat_template().map(str::to_owned),
        sentencepiece,
        bos: tokenizer.special().bos,
        pad: tokenizer.special().pad,
        eos: tokenizer.special().eos.clone(),
    })
}

fn tokenizer_config(tokenizer: &Tokenizer) -> Value {
    let special = tokenizer.special();
    let mut config = Map::new();
    // The class that runs tokenizer.json as it is; the model's own classes have rules of their own.
    config.insert(
        "tokenizer_class".to_owned(),
        json!("PreTrainedTokenizerFast"),
    );
    for (key, id) in [
        ("bos_token", special.bos),
        ("eos_token", special.eos.first().copied()),
        ("unk_token", special.unk),
        ("pad_token", special.pad),
    ] {
        if let Some(text) = id.and_then(|id| tokenizer.token_piece(id)) {
            config.insert(key.to_owned(), json!(text));
        }
    }
    config.insert("add_bos_token".to_owned(), json!(special.add_bos));
    config.insert("add_eos_token".to_owned(), json!(special.add_eos));
    // Decoding gives back what was encoded, so nothing is to be tidied.
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    Value::Object(config)
}

fn sp_model(
    tokenizer: &Tokenizer,
    scores: &[f32],
    add_space_prefix: bool,
    types: Option<&[i32]>,
) -> SpModel {
    let special = tokenizer.special();
    let mut byte_fallback = false;
    let mut pieces = Vec::with_capacity(scores.len());
    for (id, (piece, score)) in tokenizer.inner().pieces.iter().zip(scores).enumerate() {
        let is_unk = special.unk.is_some_and(|unk| unk as usize == id);
        let kind = match piece.kind {
            _ if is_unk => 2,
            PieceKind::Control => 3,
            PieceKind::UserDefined => 4,
            PieceKind::Byte(_) => 6,
            PieceKind::Normal if types.is_some_and(|types| types[id] == 5) => 5,
            PieceKind::Normal | PieceKind::Hole => 1,
        };
        byte_fallback |= kind == 6;
        // GGUF writes the spaces of user-defined pieces as they stand in a text.
        let text = match piece.kind {
            PieceKind::UserDefined => piece.text.replace(' ', &METASPACE.to_string()),
            PieceKind::Normal | PieceKind::Byte(_) | PieceKind::Control | PieceKind::Hole => {
                piece.text.to_string()
            }
        };
        pieces.push(SpPiece {
            text,
            score: *score,
            kind,
        });
    }
    SpModel {
        pieces,
        byte_fallback,
        add_dummy_prefix: add_space_prefix,
        remove_extra_whitespaces: false,
        unk: special.unk,
        bos: special.bos,
        eos: special.eos.first().copied(),
        pad: special.pad,
    }
}
