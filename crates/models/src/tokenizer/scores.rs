//! Scores for a vocabulary that has only ranked merges.
//!
//! Joining by scores may use every pair whose text is a token, joining by merges only the listed pairs.
//! Both do the same if each token is scored by the rank of the merge that completes it when its own text is
//! encoded alone. Proof: as long as no join has crossed the ends of a stretch with the text of token T, the stretch
//! passes through the states that T's text alone passes through. So two neighbors that make up T's text are the last
//! state before T, and the pair that merges join there. The one exception is a token whose text, alone,
//! ends as two pieces that no merge joins: any score would join them. Such a vocabulary is refused.

use std::collections::HashMap;

use tokenizers::{NormalizedString, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper};

use super::codec::PieceKind;
use super::error::TokenizerError;
use super::vocabulary::Vocabulary;

/// Two pieces by id, to the merge's rank and the id of the two joined.
pub(super) type Ranks = HashMap<(u32, u32), (usize, u32)>;

/// One score per id; `words` is the splitting rule of the tokenizer.json.
pub(super) fn from_merges(
    pieces: &Vocabulary,
    id_of: &impl Fn(&str) -> Option<u32>,
    ranks: &Ranks,
    words: Option<&PreTokenizerWrapper>,
) -> Result<Vec<f32>, TokenizerError> {
    // Tokens that nothing joins into: worse than all others.
    let last = -(ranks.len() as f32 + 1.0);
    let mut scores = vec![last; pieces.len()];
    let failed = TokenizerError::backend("splitting the text of a token");
    for (id, piece) in (0_u32..).zip(pieces.iter()) {
        if !matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined)
            || piece.text.chars().nth(1).is_none()
        {
            continue;
        }
        let mut split = PreTokenizedString::from(NormalizedString::from(piece.text));
        if let Some(words) = words {
            words.pre_tokenize(&mut split).map_err(&failed)?;
        }
        let mut alone = Alone::default();
        for (word, ..) in split.get_splits(
            tokenizers::OffsetReferential::Original,
            tokenizers::OffsetType::None,
        ) {
            alone.push(word, id_of, ranks);
        }
        if let (1, Some(rank)) = (
            alone.n_pieces,
            alone.last_rank.filter(|_| alone.id == Some(id)),
        ) {
            scores[id as usize] = -(rank as f32);
        } else if alone.n_pieces == 2 && piece.kind == PieceKind::Normal {
            return Err(TokenizerError::NoScoreOrder {
                id,
                piece: piece.text.to_string(),
            });
        }
    }
    Ok(scores)
}

/// What remains of a token's text after all merges.
#[derive(Default)]
struct Alone {
    n_pieces: usize,
    id: Option<u32>,
    last_rank: Option<usize>,
}

impl Alone {
    /// Merges the characters of `word`: the best rank first, the leftmost of equals.
    fn push(&mut self, word: &str, id_of: &impl Fn(&str) -> Option<u32>, ranks: &Ranks) {
        let mut symbols: Vec<Option<u32>> = word
            .chars()
            .map(|c| id_of(c.encode_utf8(&mut [0; 4])))
            .collect();
        loop {
            let best = symbols
                .windows(2)
                .enumerate()
                .filter_map(|(at, pair)| {
                    let &(rank, id) = ranks.get(&(pair[0]?, pair[1]?))?;
                    Some((rank, at, id))
                })
                .min();
            let Some((rank, at, id)) = best else {
                break;
            };
            symbols[at] = Some(id);
            symbols.remove(at + 1);
            self.last_rank = Some(rank);
        }
        self.n_pieces += symbols.len();
        self.id = symbols.first().copied().flatten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(tokens: &[&str], merges: &[(&str, &str)]) -> Result<Vec<f32>, TokenizerError> {
        let texts = tokens.iter().collect();
        let pieces = Vocabulary::new(texts, vec![PieceKind::Normal; tokens.len()]);
        let id_of = |text: &str| {
            let at = tokens.iter().position(|token| *token == text)?;
            u32::try_from(at).ok()
        };
        let id = |text: &str| id_of(text).unwrap();
        let ranks = merges
            .iter()
            .enumerate()
            .map(|(rank, (l, r))| ((id(l), id(r)), (rank, id(&format!("{l}{r}")))))
            .collect();
        from_merges(&pieces, &id_of, &ranks, None)
    }

    #[test]
    fn a_token_has_the_rank_of_the_merge_that_completes_it() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc"];
        // `abc` can be `ab`+`c` or `a`+`bc`; alone, `bc` comes first.
        let merges = [("b", "c"), ("ab", "c"), ("a", "b"), ("a", "bc")];
        assert_eq!(
            build(&tokens, &merges).unwrap(),
            [-5.0, -5.0, -5.0, -2.0, 0.0, -3.0]
        );
    }

    #[test]
    fn a_token_that_only_scores_would_make_is_named() {
        // Alone, `abc` ends as `a`, `bc`, and no merge joins them.
        let tokens = ["a", "b", "c", "ab", "bc", "abc"];
        let merges = [("b", "c"), ("a", "b"), ("ab", "c")];
        let error = build(&tokens, &merges).unwrap_err();
        assert!(matches!(error, TokenizerError::NoScoreOrder { id: 5, piece } if piece == "abc"));
        // Three pieces are never joined at once.
        let three = build(&["a", "b", "c", "abc"], &[]).unwrap();
        assert_eq!(three, [-1.0; 4]);
    }
}
