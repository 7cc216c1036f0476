//! How much of a text each of its tokens is.

use larql_models::tokenizer::Tokenizer;

/// How much of the text a token is; narrow, because a long text has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) bytes: u32,
    /// Characters that begin in it: those of a run of tokens add up whatever tokens they are split over.
    pub(super) characters: u32,
}

/// The extent of each token; the first byte that the tokens do not spell, if they spell another text.
///
/// A tokenizer that normalizes, or has an unknown token, spells another text: then bits per byte would be of neither.
pub(super) fn extents(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> Result<Vec<Extent>, u64> {
    spelled(ids.iter().map(|id| tokenizer.token_bytes(*id)), text)
}

fn spelled(pieces: impl Iterator<Item = Vec<u8>> + Clone, text: &str) -> Result<Vec<Extent>, u64> {
    let n_spelled: usize = pieces.clone().map(|piece| piece.len()).sum();
    let text = text.as_bytes();
    let mut at = 0;
    let mut all = Vec::new();
    for (i, mut piece) in pieces.enumerate() {
        if i == 0 && n_spelled == text.len() + 1 && piece.first() == Some(&b' ') {
            // Encoding put this space in front.
            piece.remove(0);
        }
        let rest = &text[at..];
        if !rest.starts_with(&piece) {
            let same = rest.iter().zip(&piece).take_while(|(a, b)| a == b);
            return Err((at + same.count()) as u64);
        }
        at += piece.len();
        let characters = piece.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let narrow = |n: usize| u32::try_from(n).expect("a piece of a vocabulary is short");
        all.push(Extent {
            bytes: narrow(piece.len()),
            characters: narrow(characters),
        });
    }
    if at == text.len() {
        Ok(all)
    } else {
        Err(at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]], text: &str) -> Result<Vec<(u32, u32)>, u64> {
        spelled(pieces.iter().map(|piece| piece.to_vec()), text)
            .map(|all| all.iter().map(|one| (one.bytes, one.characters)).collect())
    }

    #[test]
    fn a_split_character_counts_once() {
        assert_eq!(
            of(&[b"a\xe2", b"\x82", b"\xacb"], "a\u{20ac}b"),
            Ok(vec![(2, 2), (1, 0), (2, 1)])
        );
    }

    #[test]
    fn only_the_space_that_encoding_added_is_left_out() {
        assert_eq!(of(&[b" a", b" b"], "a b"), Ok(vec![(1, 1), (2, 2)]));
        assert_eq!(of(&[b" a", b" b"], " a b"), Ok(vec![(2, 2), (2, 2)]));
        assert_eq!(of(&[b"  ", b" a"], "  a"), Ok(vec![(1, 1), (2, 2)]));
        assert_eq!(of(&[b" ", b"a"], "a"), Ok(vec![(0, 0), (1, 1)]));
    }

    #[test]
    fn another_text_is_told_by_its_first_byte() {
        assert_eq!(of(&[b"ab", b"cx"], "abcd"), Err(3));
        assert_eq!(of(&[b"ab"], "abcd"), Err(2));
        assert_eq!(of(&[b"ab", b"cde"], "abcd"), Err(4));
        assert_eq!(of(&[b"x", b"b"], "ab"), Err(0));
    }
}
