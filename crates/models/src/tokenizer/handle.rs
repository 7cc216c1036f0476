//! The [`Tokenizer`] handle.

use std::ops::Range;
use std::sync::Arc;

use super::added::{AddedTokens, MarkerRule};
use super::codec::{Codec, Piece, PieceKind};
use super::config::HfTokenizerConfig;
use super::error::TokenizerError;
use super::gguf::{self, GgufVocab};
use super::json::{self, Source};
use super::pipeline::Pipeline;
use super::special::{Bos, EncodeSpecial, SpecialText, SpecialTokens};
use super::spm::{MAX_TEXT_BYTES, Spm};
use super::spm_json;
use super::stream::DecodeStream;
use super::vocabulary::Vocabulary;

/// A model's tokenizer. Cloning is cheap; all clones share one vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) pieces: Arc<Vocabulary>,
    pub(super) engine: Engine,
    pub(super) codec: Codec,
    pub(super) special: SpecialTokens,
    pub(super) chat_template: Option<String>,
    pub(super) warnings: Vec<TokenizerWarning>,
}

#[derive(Debug)]
pub(super) enum Engine {
    /// Scores and a bigram queue.
    SentencePiece { spm: Box<Spm>, added: AddedTokens },
    /// The `tokenizers` crate.
    Pipeline(Box<Pipeline>),
}

/// Something that works but that the user must know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerWarning {
    /// tokenizer.json splits words in another way than the class in tokenizer_config.json does.
    /// We follow tokenizer.json.
    ClassMismatch {
        /// The class.
        class: String,
        /// A text on which they differ.
        probe: &'static str,
        /// Its number of tokens by tokenizer.json.
        n_tokens_file: usize,
        /// Its number of tokens by the class.
        n_tokens_class: usize,
    },
    /// A switch in tokenizer_config.json says something else than the post-processor of tokenizer.json does.
    SwitchMismatch {
        /// `add_bos_token` or `add_eos_token`.
        key: &'static str,
        /// Its value.
        stated: bool,
        /// The class that tokenizer_config.json names.
        class: Option<String>,
        /// Whether that class follows the switch, and so do we; if not, it runs tokenizer.json as it is.
        follows_key: bool,
    },
    /// The files put the end of a text behind each text; we do not, for a prompt is to be continued.
    EndLeftOut,
}

impl std::fmt::Display for TokenizerWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClassMismatch {
                class,
                probe,
                n_tokens_file,
                n_tokens_class,
            } => write!(
                f,
                "tokenizer.json and tokenizer_config.json ({class}) split words differently: {probe:?} is \
                 {n_tokens_file} tokens by the first and {n_tokens_class} by the second, using the first"
            ),
            Self::SwitchMismatch {
                key,
                stated,
                class,
                follows_key,
            } => {
                let class = class.as_deref().unwrap_or("no class");
                let choice = match follows_key {
                    true => "using the first, as this class does",
                    false => "using the second, as this class does",
                };
                write!(
                    f,
                    "{key} is {stated} in tokenizer_config.json ({class}), and the post_processor of tokenizer.json \
                     does otherwise, {choice}"
                )
            }
            Self::EndLeftOut => f.write_str(
                "the tokenizer's files put the end of a text behind each text, which a prompt is given without, for it \
                 is to be continued",
            ),
        }
    }
}

impl Engine {
    pub(super) fn id_of(&self, piece: &str) -> Option<u32> {
        match self {
            Self::SentencePiece { spm, .. } => spm.id_of(piece),
            Self::Pipeline(pipeline) => pipeline.tokenizer.token_to_id(piece),
        }
    }

    fn encode(&self, text: &str, rule: MarkerRule<'_>) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Self::Pipeline(pipeline) => pipeline.encode(text, rule),
            Self::SentencePiece { spm, added } => {
                let mut ids = Vec::new();
                let mut at = 0;
                for token in added.find(text, |span| rule.allows(span)) {
                    spm.encode_fragment(&text[at..token.span.start], &mut ids)?;
                    ids.push(token.id);
                    at = token.span.end;
                }
                spm.encode_fragment(&text[at..], &mut ids)?;
                Ok(ids)
            }
        }
    }
}

impl Tokenizer {
    pub(super) fn from_inner(mut inner: Inner) -> Self {
        // A blank template writes no message: some files have one instead of none.
        inner.chat_template = inner
            .chat_template
            .filter(|template| !template.trim().is_empty());
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Builds the tokenizer of a Hugging Face checkpoint.
    ///
    /// # Errors
    /// A file that cannot be read, contradicts itself or would lose text.
    pub fn from_json(
        tokenizer_json: &[u8],
        cfg: &HfTokenizerConfig,
    ) -> Result<Self, TokenizerError> {
        json::from_json(tokenizer_json, Source::Files(cfg))
    }

    /// Builds a tokenizer from what [`Self::to_json`], [`Self::special`] and
    /// [`Self::chat_template`] gave earlier.
    ///
    /// # Errors
    /// As [`Self::from_json`].
    pub fn restore(
        tokenizer_json: &[u8],
        special: SpecialTokens,
        chat_template: Option<String>,
    ) -> Result<Self, TokenizerError> {
        json::from_json(tokenizer_json, Source::Manifest(special, chat_template))
    }

    /// Builds the tokenizer of a GGUF.
    ///
    /// # Errors
    /// An unsupported model or pre-tokenizer, or lists that do not fit together.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        gguf::from_gguf(vocab)
    }

    /// The tokenizer as a file of the `tokenizers` format.
    ///
    /// # Errors
    /// Only if serialization fails.
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        match &self.inner.engine {
            Engine::SentencePiece { spm, added } => {
                spm_json::write(&self.inner.pieces, spm, added, &self.inner.special)
            }
            Engine::Pipeline(pipeline) => pipeline
                .tokenizer
                .to_string(false)
                .map_err(TokenizerError::backend("writing tokenizer.json")),
        }
    }

    /// The special ids.
    pub fn special(&self) -> &SpecialTokens {
        &self.inner.special
    }

    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.inner.chat_template.as_deref()
    }

    /// What the user must know about the files.
    pub fn warnings(&self) -> &[TokenizerWarning] {
        &self.inner.warnings
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// A text that is too long, or that the vocabulary cannot represent.
    pub fn encode(
        &self,
        text: &str,
        special: EncodeSpecial,
        bos: Bos,
    ) -> Result<Vec<u32>, TokenizerError> {
        let rule = match special {
            EncodeSpecial::Plain => MarkerRule::Nowhere,
            EncodeSpecial::Markers => MarkerRule::Everywhere,
        };
        self.encode_by_rule(text, rule, bos)
    }

    /// The ids of `text`, in which markers count only completely inside one of the byte ranges
    /// `scaffold`; everywhere else they are the characters that someone typed.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_scaffold(
        &self,
        text: &str,
        scaffold: &[Range<usize>],
        bos: Bos,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_by_rule(text, MarkerRule::Within(scaffold), bos)
    }

    fn encode_by_rule(
        &self,
        text: &str,
        rule: MarkerRule<'_>,
        bos: Bos,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizerError::Limit {
                what: "the length of the text in bytes",
                limit: MAX_TEXT_BYTES,
                got: text.len(),
            });
        }
        let ids = self.inner.engine.encode(text, rule)?;
        Ok(match bos {
            Bos::Never => ids,
            Bos::Model => self.inner.special.with_prefix(ids),
        })
    }

    /// The text of a whole sequence; ids that no token has read as the replacement character.
    pub fn decode(&self, ids: &[u32], special: SpecialText) -> String {
        self.inner.codec.decode(&self.inner.pieces, ids, special)
    }

    /// A decoder for ids that arrive one by one.
    pub fn stream(&self) -> DecodeStream {
        DecodeStream::new(self.clone())
    }

    /// One token as it appears in running text: with its leading space, bytes that are no
    /// character as the replacement character, a control token as its marker.
    pub fn token_text(&self, id: u32) -> Option<String> {
        let piece = self.piece(id)?;
        Some(String::from_utf8_lossy(&self.inner.codec.bytes(piece)).into_owned())
    }

    /// The bytes of text that a token stands for; those of the replacement character for an id that
    /// no token has.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.piece(id) {
            Some(piece) => self.inner.codec.bytes(piece),
            None => char::REPLACEMENT_CHARACTER.to_string().into_bytes(),
        }
    }

    /// One token as the vocabulary writes it.
    pub fn token_piece(&self, id: u32) -> Option<&str> {
        self.piece(id).map(|piece| piece.text)
    }

    /// The id that the vocabulary gives to a piece.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.inner.engine.id_of(piece)
    }

    /// One more than the highest id. The model's logits may have more rows (padding).
    pub fn n_vocab(&self) -> usize {
        self.inner.pieces.len()
    }

    /// Whether the id ends generation.
    pub fn is_stop(&self, id: u32) -> bool {
        self.inner.special.eos.contains(&id)
    }

    /// Whether the id is a marker without text of its own.
    pub fn is_control(&self, id: u32) -> bool {
        self.piece(id)
            .is_some_and(|piece| piece.kind == PieceKind::Control)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let piece = self.inner.pieces.get(id)?;
        (piece.kind != PieceKind::Hole).then_some(piece)
    }
}
