//! The table of all tokens, and how a token is found by its text.
//!
//! A vocabulary has hundreds of thousands of short texts, and an allocation costs more than such a text. So they lie in one
//! piece, and the index holds ids only and compares with the table.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use larql_formats::gguf::StringArray;

use super::codec::{Piece, PieceKind};
use super::error::TokenizerError;

/// Text and kind of every id.
#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    texts: StringArray,
    kinds: Vec<PieceKind>,
}

impl Vocabulary {
    /// `texts` and `kinds` have one entry per id.
    pub(super) fn new(texts: StringArray, kinds: Vec<PieceKind>) -> Self {
        debug_assert_eq!(texts.len(), kinds.len());
        Self { texts, kinds }
    }

    /// One more than the highest id.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<Piece<'_>> {
        let at = usize::try_from(id).ok()?;
        Some(Piece {
            text: self.texts.get(at)?,
            kind: *self.kinds.get(at)?,
        })
    }

    /// The pieces in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = Piece<'_>> {
        let kinds = self.kinds.iter();
        (self.texts.iter().zip(kinds)).map(|(text, kind)| Piece { text, kind: *kind })
    }
}

impl<'a> FromIterator<Piece<'a>> for Vocabulary {
    fn from_iter<I: IntoIterator<Item = Piece<'a>>>(pieces: I) -> Self {
        let mut all = Self::default();
        for piece in pieces {
            all.texts.push(piece.text);
            all.kinds.push(piece.kind);
        }
        all
    }
}

/// The id of each text of one vocabulary; holes have none.
#[derive(Debug)]
pub(super) struct TextIndex {
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl TextIndex {
    /// # Errors
    /// Two ids with one text.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let hasher = RandomState::new();
        let mut ids = HashTable::with_capacity(vocabulary.len());
        let text_of = |id: u32| vocabulary.get(id).map(|piece| piece.text);
        for (id, piece) in (0..).zip(vocabulary.iter()) {
            if piece.kind == PieceKind::Hole {
                continue;
            }
            let hash = hasher.hash_one(piece.text);
            let same = |other: &u32| text_of(*other) == Some(piece.text);
            if let Some(first) = ids.find(hash, same) {
                return Err(TokenizerError::DuplicateToken {
                    piece: piece.text.to_owned(),
                    first: *first,
                    second: id,
                });
            }
            ids.insert_unique(hash, id, |id| hasher.hash_one(text_of(*id)));
        }
        Ok(Self { ids, hasher })
    }

    /// The id of `text` in the vocabulary that this is the index of.
    pub(super) fn get(&self, vocabulary: &Vocabulary, text: &str) -> Option<u32> {
        let same = |id: &u32| vocabulary.get(*id).is_some_and(|piece| piece.text == text);
        self.ids.find(self.hasher.hash_one(text), same).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(texts: &[String]) -> Vocabulary {
        let kind = |text: &str| match text.is_empty() {
            true => PieceKind::Hole,
            false => PieceKind::Normal,
        };
        let piece = |text| Piece {
            text,
            kind: kind(text),
        };
        texts.iter().map(|text| piece(text.as_str())).collect()
    }

    #[test]
    fn every_text_is_found_and_no_other() {
        let mut texts: Vec<String> = (0..3001).map(|i| format!("t{i}")).collect();
        texts[7].clear();
        texts[2999].clear();
        let vocabulary = vocabulary(&texts);
        let index = TextIndex::new(&vocabulary).unwrap();
        for (id, text) in (0..).zip(&texts) {
            let expected = (!text.is_empty()).then_some(id);
            assert_eq!(index.get(&vocabulary, text), expected, "{text}");
        }
        assert_eq!(index.get(&vocabulary, "t"), None);
        assert_eq!(vocabulary.get(3001).map(|piece| piece.text), None);
    }

    #[test]
    fn a_text_that_comes_twice_is_named_with_both_ids() {
        let texts = ["a", "b", "", "", "b"].map(str::to_owned);
        let error = TextIndex::new(&vocabulary(&texts)).unwrap_err();
        assert!(matches!(
            error,
            TokenizerError::DuplicateToken { piece, first: 1, second: 4 } if piece == "b"
        ));
    }
}
