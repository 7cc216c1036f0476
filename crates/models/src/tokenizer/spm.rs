//! SentencePiece BPE: repeatedly joins the neighboring pair whose joined token has the highest score,
//! the leftmost of equals (Kudo and Richardson 2018, the algorithm of `bpe_model.cc`).
//!
//! Cost: O(n log n) in the length of a fragment.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::codec::{METASPACE, PieceKind, byte_piece};
use super::error::TokenizerError;
use super::vocabulary::{TextIndex, Vocabulary};

/// No symbol on this side.
const NONE: usize = usize::MAX;

/// The fragment length up to which positions fit the queue entries, and a bound on the memory of one
/// call (about 60 bytes per character).
pub(super) const MAX_TEXT_BYTES: usize = 1 << 28;

#[derive(Debug)]
pub(super) struct Spm {
    pieces: Arc<Vocabulary>,
    /// Every token by its text; its score is only meaningful where `mergeable`.
    ids: TextIndex,
    scores: Vec<f32>,
    mergeable: Vec<bool>,
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    pub(super) add_space_prefix: bool,
}

struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

/// A pair that could be joined; ordered so that the queue's top is the next to join.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Bigram {}

impl Spm {
    /// `pieces` and `scores` have one entry per id.
    pub(super) fn new(
        pieces: Arc<Vocabulary>,
        scores: Vec<f32>,
        unk: Option<u32>,
        add_space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        let ids = TextIndex::new(&pieces)?;
        let mut bytes = Box::new([None; 256]);
        for (id, piece) in (0..).zip(pieces.iter()) {
            if let PieceKind::Byte(byte) = piece.kind {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        // Control and byte tokens are not reachable from text: otherwise `<eos>` typed by a
        // user could join into the control token.
        let mergeable = pieces
            .iter()
            .map(|p| matches!(p.kind, PieceKind::Normal | PieceKind::UserDefined))
            .collect();
        // Adding zero turns -0.0 into 0.0, so that the two tie.
        let scores = scores.into_iter().map(|s| s + 0.0).collect();
        Ok(Self {
            pieces,
            ids,
            scores,
            mergeable,
            bytes,
            unk,
            add_space_prefix,
        })
    }

    pub(super) fn id_of(&self, piece: &str) -> Option<u32> {
        self.ids.get(&self.pieces, piece)
    }

    pub(super) fn unk(&self) -> Option<u32> {
        self.unk
    }

    pub(super) fn scores(&self) -> &[f32] {
        &self.scores
    }

    fn mergeable_id(&self, piece: &str) -> Option<u32> {
        let id = self.id_of(piece)?;
        self.mergeable[id as usize].then_some(id)
    }

    /// Appends the ids of one fragment of text between two added tokens.
    pub(super) fn encode_fragment(
        &self,
        fragment: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if fragment.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(fragment.len() + METASPACE.len_utf8());
        if self.add_space_prefix {
            text.push(METASPACE);
        }
        text.extend(
            fragment
                .chars()
                .map(|c| if c == ' ' { METASPACE } else { c }),
        );
        let symbols = self.join(&text);
        let mut last_unknown = false;
        let mut at = 0;
        while at != NONE {
            let symbol = &symbols[at];
            at = symbol.next;
            let piece = &text[symbol.start..symbol.start + symbol.len];
            if let Some(id) = self.mergeable_id(piece) {
                out.push(id);
                last_unknown = false;
            } else if let Some(ids) = self.byte_ids(piece) {
                out.extend(ids);
                last_unknown = false;
            } else if let Some(unk) = self.unk {
                // A run of unknown characters is one unknown token.
                if !last_unknown {
                    out.push(unk);
                }
                last_unknown = true;
            } else {
                return Err(TokenizerError::Unrepresentable {
                    text: piece.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn byte_ids(&self, piece: &str) -> Option<Vec<u32>> {
        piece.bytes().map(|b| self.bytes[usize::from(b)]).collect()
    }

    /// The symbols of a non-empty `text` after all joins, as a list linked from index 0.
    fn join(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            queue.extend(self.bigram(text, &symbols, right - 1, right));
        }
        while let Some(top) = queue.pop() {
            let (left, right) = (&symbols[top.left], &symbols[top.right]);
            // A symbol that was joined away has length 0; one that grew has another length.
            if left.len == 0 || right.len == 0 || left.len + right.len != top.len {
                continue;
            }
            let next = right.next;
            symbols[top.left].len = top.len;
            symbols[top.left].next = next;
            symbols[top.right].len = 0;
            if next != NONE {
                symbols[next].prev = top.left;
                queue.extend(self.bigram(text, &symbols, top.left, next));
            }
            let prev = symbols[top.left].prev;
            if prev != NONE {
                queue.extend(self.bigram(text, &symbols, prev, top.left));
            }
        }
        symbols
    }

    fn bigram(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Bigram> {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        let id = self.mergeable_id(&text[start..start + len])?;
        Some(Bigram {
            score: self.scores[id as usize],
            left,
            right,
            len,
        })
    }

    /// The pairs that join into each token, in the order of the `tokenizers` format: best score first.
    ///
    /// Where two tokens tie, and for texts that repeat with a token's own period, the format cannot
    /// say "leftmost"; the pairs then come in the order of ids.
    pub(super) fn merges(&self) -> Vec<(&str, &str)> {
        let with_id = (0..).zip(&self.mergeable);
        let mergeable = with_id.filter(|(_, mergeable)| **mergeable);
        let mut order: Vec<u32> = mergeable.map(|(id, _)| id).collect();
        order.sort_by(|a, b| {
            self.scores[*b as usize]
                .total_cmp(&self.scores[*a as usize])
                .then(a.cmp(b))
        });
        let mut merges = Vec::new();
        for id in order {
            let text = self.pieces.get(id).map_or("", |piece| piece.text);
            let mut splits: Vec<_> = text
                .char_indices()
                .skip(1)
                .filter_map(|(at, _)| {
                    let (left, right) = text.split_at(at);
                    Some((
                        self.mergeable_id(left)?,
                        self.mergeable_id(right)?,
                        left,
                        right,
                    ))
                })
                .collect();
            splits.sort_by_key(|(left, right, ..)| (*left, *right));
            merges.extend(splits.into_iter().map(|(.., left, right)| (left, right)));
        }
        merges
    }
}

/// The kind of a token by its GGUF type.
pub(super) fn kind_of_type(
    id: u32,
    text: &str,
    token_type: i32,
) -> Result<PieceKind, TokenizerError> {
    match token_type {
        // Undefined and unused tokens are ordinary text to every reader in use.
        0 | 1 | 5 => Ok(PieceKind::Normal),
        2 | 3 => Ok(PieceKind::Control),
        4 => Ok(PieceKind::UserDefined),
        6 => Ok(byte_piece(text).map_or(PieceKind::Normal, PieceKind::Byte)),
        token_type => Err(TokenizerError::UnknownTokenType { id, token_type }),
    }
}
