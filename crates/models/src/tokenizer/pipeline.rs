//! Runs a tokenizer.json pipeline (normalizer, pre-tokenizer, model) of the `tokenizers` crate.
//!
//! Added tokens are matched by [`super::added`] and the post-processor and truncation are left out:
//! the caller decides about BOS, and a prompt is never cut silently.

use tokenizers::normalizer::Range as NormalizedRange;
use tokenizers::{
    AddedToken, Model as _, ModelWrapper, NormalizedString, Normalizer as _, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, Token,
};

use super::added::{Added, AddedTokens, MarkerRule, Overlap};
use super::error::TokenizerError;

type BackendError = Box<dyn std::error::Error + Send + Sync>;
type Pieces = Vec<(NormalizedString, Option<Vec<Token>>)>;

#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) tokenizer: tokenizers::Tokenizer,
    /// Added tokens matched in the text as it is.
    verbatim: AddedTokens,
    /// Added tokens matched after normalization.
    normalized: AddedTokens,
}

/// The model produced fewer characters than it was given.
#[derive(Debug, thiserror::Error)]
#[error("no token for a character of `{0}`")]
struct Dropped(String);

impl Pipeline {
    /// `overlap` decides between verbatim added tokens that overlap in a text.
    pub(super) fn new(
        tokenizer: tokenizers::Tokenizer,
        overlap: Overlap,
    ) -> Result<Self, TokenizerError> {
        let mut verbatim = Vec::new();
        let mut normalized = Vec::new();
        let mut all: Vec<(u32, AddedToken)> =
            tokenizer.get_added_tokens_decoder().into_iter().collect();
        all.sort_by_key(|(id, _)| *id);
        for (id, token) in all {
            let is_normalized = token.normalized;
            let mut added = Added {
                id,
                text: token.content,
                control: token.special,
                single_word: token.single_word,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
            };
            if is_normalized {
                if let Some(normalizer) = tokenizer.get_normalizer() {
                    let mut text = NormalizedString::from(added.text.as_str());
                    normalizer
                        .normalize(&mut text)
                        .map_err(TokenizerError::backend("normalizing an added token"))?;
                    added.text = text.get().to_owned();
                }
                normalized.push(added);
            } else {
                verbatim.push(added);
            }
        }
        Ok(Self {
            tokenizer,
            verbatim: AddedTokens::new(verbatim, overlap),
            normalized: AddedTokens::new(normalized, Overlap::LeftmostLongest),
        })
    }

    pub(super) fn encode(
        &self,
        text: &str,
        rule: MarkerRule<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_words(text, rule, self.tokenizer.get_pre_tokenizer())
    }

    /// As `encode`, with another pre-tokenizer in place of the pipeline's own.
    pub(super) fn encode_words(
        &self,
        text: &str,
        rule: MarkerRule<'_>,
        words: Option<&PreTokenizerWrapper>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let failed = TokenizerError::backend("encoding a text");
        let mut split = PreTokenizedString::from(text);
        split
            .split(|_, part| cut(&part, &self.verbatim, rule))
            .map_err(&failed)?;
        split
            .split(|_, mut part| {
                if let Some(normalizer) = self.tokenizer.get_normalizer() {
                    normalizer.normalize(&mut part)?;
                }
                cut(&part, &self.normalized, rule)
            })
            .map_err(&failed)?;
        if let Some(words) = words {
            words.pre_tokenize(&mut split).map_err(&failed)?;
        }
        let model = self.tokenizer.get_model();
        split
            .tokenize(|word| tokenize_whole(model, word.get()))
            .map_err(|source| match source.downcast::<Dropped>() {
                Ok(dropped) => TokenizerError::Unrepresentable { text: dropped.0 },
                Err(source) => failed(source),
            })?;
        Ok(split
            .get_splits(OffsetReferential::Original, OffsetType::None)
            .into_iter()
            .filter_map(|(_, _, tokens)| tokens.as_ref())
            .flatten()
            .map(|token| token.id)
            .collect())
    }
}

/// Cuts `part` at the added tokens in it.
fn cut(
    part: &NormalizedString,
    tokens: &AddedTokens,
    rule: MarkerRule<'_>,
) -> Result<Pieces, BackendError> {
    let slice = |range: std::ops::Range<usize>| {
        part.slice(NormalizedRange::Normalized(range))
            .ok_or_else(|| BackendError::from("an added token cuts a character"))
    };
    let found = tokens.find(part.get(), |span| {
        part.slice(NormalizedRange::Normalized(span.clone()))
            .is_some_and(|s| {
                let (start, end) = s.offsets_original();
                rule.allows(&(start..end))
            })
    });
    let mut pieces = Pieces::with_capacity(2 * found.len() + 1);
    let mut at = 0;
    for token in found {
        if at < token.span.start {
            pieces.push((slice(at..token.span.start)?, None));
        }
        let marker = slice(token.span.clone())?;
        let text = marker.get().to_owned();
        let len = text.len();
        pieces.push((marker, Some(vec![Token::new(token.id, text, (0, len))])));
        at = token.span.end;
    }
    if at < part.get().len() {
        pieces.push((slice(at..part.get().len())?, None));
    }
    Ok(pieces)
}

/// The crate's BPE leaves out characters that it has no token for; that must not pass silently.
fn tokenize_whole(model: &ModelWrapper, word: &str) -> Result<Vec<Token>, BackendError> {
    let tokens = model.tokenize(word)?;
    let covered = tokens.last().map_or(0, |token| token.offsets.1);
    if covered < word.len() {
        return Err(Box::new(Dropped(word.to_owned())));
    }
    Ok(tokens)
}
