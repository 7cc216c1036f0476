//! What can be wrong with a tokenizer's files or with a text given to it.

use thiserror::Error;

/// Why a tokenizer cannot be built or a text cannot be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The GGUF names a tokenizer model that we do not run.
    #[error("tokenizer model `{model}` is not supported, known: {known}")]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
        /// The supported names, comma separated.
        known: String,
    },
    /// The GGUF names a pre-tokenizer whose splitting rules we do not know.
    #[error("pre-tokenizer `{pre}` is not known, known: {known}")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
        /// The known names, comma separated.
        known: String,
    },
    /// A byte-level GGUF without `tokenizer.ggml.pre`: every choice would be a guess.
    #[error("tokenizer.ggml.pre is missing, so the text splitting rule of this model is unknown")]
    MissingPre,
    /// A byte-level vocabulary without merges.
    #[error("tokenizer.ggml.merges is missing, a byte-level vocabulary cannot be used without it")]
    MissingMerges,
    /// A SentencePiece vocabulary without scores.
    #[error(
        "tokenizer.ggml.scores is missing, a sentencepiece vocabulary cannot be used without it"
    )]
    MissingScores,
    /// A per-token list has another length than the token list.
    #[error("{what} has {got} entries, the vocabulary has {expected}")]
    LengthMismatch {
        /// Which list.
        what: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The number of entries found.
        got: usize,
    },
    /// A score is NaN or infinite.
    #[error("the score of token {id} `{piece}` is {score}, expected a finite number")]
    NonFiniteScore {
        /// The token.
        id: u32,
        /// Its text.
        piece: String,
        /// The score found.
        score: f32,
    },
    /// A token type outside the ones GGUF defines.
    #[error("token {id} has type {token_type}, known types are 0 to 6")]
    UnknownTokenType {
        /// The token.
        id: u32,
        /// The type found.
        token_type: i32,
    },
    /// Two ids share one text.
    #[error("token `{piece}` has two ids: {first} and {second}")]
    DuplicateToken {
        /// The text.
        piece: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// The vocabulary is empty.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// More tokens, or longer tokens, than any vocabulary has.
    #[error("{what} is {got}, the limit is {limit}")]
    Limit {
        /// Which quantity.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// The value found.
        got: usize,
    },
    /// A merge rule that is not two pieces.
    #[error("merge {index} `{merge}` is not two pieces separated by a space")]
    BadMerge {
        /// Position in the list.
        index: usize,
        /// The rule as written.
        merge: String,
    },
    /// A special token id beyond the vocabulary.
    #[error("{what} is {id}, the vocabulary has {n_vocab} tokens")]
    IdOutOfRange {
        /// Which id.
        what: String,
        /// Its value.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// A configuration names a special token which the vocabulary does not have.
    #[error("{what} names `{piece}`, which is not in the vocabulary")]
    UnknownPiece {
        /// Which key.
        what: String,
        /// The text it names.
        piece: String,
    },
    /// The model wants a beginning-of-sequence token and does not say which.
    #[error("the model asks for a beginning-of-sequence token but names none")]
    MissingBos,
    /// A value of another kind than the key allows.
    #[error("{file}: {key} must be {expected}")]
    ConfigValue {
        /// The file.
        file: &'static str,
        /// The key.
        key: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A key of the GGUF is missing or has another type.
    #[error("the tokenizer keys of the file cannot be read")]
    Metadata(#[from] larql_formats::Error),
    /// What the post-processor of tokenizer.json adds to a text cannot be said by ids around a prompt.
    #[error("tokenizer.json: {key} of its post_processor is {found}, expected {expected}")]
    PostProcessor {
        /// The key within it.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Merges are left out at random, so that a text has other ids each time.
    #[error(
        "tokenizer.json: model.dropout is {dropout}, which gives a text other ids each time, expected null or 0"
    )]
    Dropout {
        /// The share of merges left out.
        dropout: f32,
    },
    /// Two texts share one id.
    #[error(
        "tokenizer.json: `{first}` and `{second}` both have id {id}, each token needs one of its own"
    )]
    SharedId {
        /// The id.
        id: u32,
        /// The first of the texts.
        first: String,
        /// The second.
        second: String,
    },
    /// A part of tokenizer.json that the `tokenizers` crate does not read.
    #[error(
        "tokenizer.json: {part} of type {found} cannot be read, expected one of {known} with all that belongs to it"
    )]
    Part {
        /// The key of the part.
        part: &'static str,
        /// The type that it states.
        found: String,
        /// The types that can be read.
        known: &'static str,
        /// What the crate says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// tokenizer.json is not JSON, or lacks a part.
    #[error("tokenizer.json cannot be read")]
    Json(#[from] serde_json::Error),
    /// The `tokenizers` crate refused a file or a text.
    #[error("the tokenizer failed while {doing}")]
    Backend {
        /// What was being done.
        doing: &'static str,
        /// Its own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// tokenizer.json declares a decoder that loses bytes or that we do not invert.
    #[error(
        "tokenizer.json: decoder `{kind}` is not supported, known: ByteLevel, Metaspace, Replace with ByteFallback"
    )]
    UnsupportedDecoder {
        /// The declared type, or `null`.
        kind: String,
    },
    /// tokenizer.json would lose spaces: nothing in it maps a space to the vocabulary's space symbol.
    #[error(
        "tokenizer.json: the decoder reads `{symbol}` as a space, but neither normalizer nor pre-tokenizer produces it"
    )]
    NoSpaceRule {
        /// The space symbol.
        symbol: char,
    },
    /// An added token whose declared id is not the one it gets.
    #[error("tokenizer.json: added token `{piece}` declares id {declared}, but gets {got}")]
    AddedTokenId {
        /// The text.
        piece: String,
        /// The id in the file.
        declared: u32,
        /// The id in effect.
        got: u32,
    },
    /// tokenizer.json has a model that GGUF vocabularies of our kinds cannot hold.
    #[error("tokenizer.json: {what} is `{found}`, a GGUF vocabulary can hold only {expected}")]
    NotForGguf {
        /// Which part.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What it may say.
        expected: &'static str,
    },
    /// The splitting rule of a byte-level tokenizer.json has no name in GGUF.
    #[error("tokenizer.json: no known pre-tokenizer name splits text like {rule}")]
    UnrecognizedPre {
        /// The rule as JSON.
        rule: String,
    },
    /// A token that the merges never make, but that joining by scores would make.
    #[error(
        "token {id} `{piece}` is never made by the merges of tokenizer.json, but any scores would make it"
    )]
    NoScoreOrder {
        /// The token.
        id: u32,
        /// Its text.
        piece: String,
    },
    /// The converted vocabulary gives other ids than the original.
    #[error(
        "the converted tokenizer gives other ids for {text:?}: {converted:?}, the original gives {original:?}"
    )]
    ProbeMismatch {
        /// The first text that differs.
        text: String,
        /// The ids of the original; empty if it cannot encode the text.
        original: Vec<u32>,
        /// The ids of the converted form.
        converted: Vec<u32>,
    },
    /// The vocabulary has ids for which the embedding has no row.
    #[error("the tokenizer has {n_vocab} ids, the embedding has {rows} rows")]
    MoreTokensThanRows {
        /// One more than the highest id.
        n_vocab: usize,
        /// Rows of the embedding.
        rows: u32,
    },
    /// `tokenizer.model` is no SentencePiece model that we read.
    #[error("tokenizer.model: {what}")]
    SentencePieceModel {
        /// What is wrong.
        what: String,
    },
    /// No token, byte token or unknown token can stand for a piece of the text.
    #[error("the vocabulary cannot represent `{text}` and has no unknown token")]
    Unrepresentable {
        /// The piece of text.
        text: String,
    },
}

impl TokenizerError {
    pub(super) fn backend(
        doing: &'static str,
    ) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::Backend { doing, source }
    }

    /// Whether the tokenizer may be sound, but of a kind that is not run here.
    pub fn is_of_another_kind(&self) -> bool {
        matches!(
            self,
            Self::UnsupportedModel { .. }
                | Self::MissingPre
                | Self::UnknownPreTokenizer { .. }
                | Self::UnsupportedDecoder { .. }
                | Self::NoSpaceRule { .. }
        )
    }
}
