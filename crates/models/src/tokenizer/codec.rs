//! What each id stands for as bytes of text.

use super::byte_level;
use super::special::SpecialText;
use super::vocabulary::Vocabulary;

/// The space symbol of SentencePiece vocabularies.
pub(super) const METASPACE: char = '\u{2581}';

/// What an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// Made by the model's own splitting.
    Normal,
    /// One raw byte, written like `<0xE2>`.
    Byte(u8),
    /// A marker with no text of its own.
    Control,
    /// Matched verbatim in the text.
    UserDefined,
    /// An id inside the range that no token has.
    Hole,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) kind: PieceKind,
}

/// How normal pieces are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    /// In the byte alphabet.
    ByteLevel,
    /// As text, with a symbol for the space; a whole text loses one leading space if `strip_leading`,
    /// because encoding put it there.
    Metaspace {
        /// Whether encode puts a space in front.
        strip_leading: bool,
    },
}

impl Codec {
    /// The bytes of text that a piece stands for; its marker text if it is a control token.
    pub(super) fn bytes(self, piece: Piece<'_>) -> Vec<u8> {
        match piece.kind {
            PieceKind::Byte(byte) => vec![byte],
            PieceKind::Control => piece.text.as_bytes().to_vec(),
            PieceKind::Hole => char::REPLACEMENT_CHARACTER.to_string().into_bytes(),
            PieceKind::UserDefined => match self {
                Self::ByteLevel => piece.text.as_bytes().to_vec(),
                Self::Metaspace { .. } => piece.text.replace(METASPACE, " ").into_bytes(),
            },
            PieceKind::Normal => match self {
                Self::ByteLevel => byte_level::bytes_of(piece.text),
                Self::Metaspace { .. } => piece.text.replace(METASPACE, " ").into_bytes(),
            },
        }
    }

    /// The text of a whole sequence. Ids beyond the table read as the replacement character.
    pub(super) fn decode(self, pieces: &Vocabulary, ids: &[u32], special: SpecialText) -> String {
        let mut out = Vec::new();
        let mut first_is_text = None;
        for &id in ids {
            let Some(piece) = pieces.get(id) else {
                out.extend_from_slice(char::REPLACEMENT_CHARACTER.to_string().as_bytes());
                continue;
            };
            let is_control = piece.kind == PieceKind::Control;
            if is_control && special == SpecialText::Skip {
                continue;
            }
            first_is_text.get_or_insert(!is_control);
            out.extend_from_slice(&self.bytes(piece));
        }
        let text = String::from_utf8_lossy(&out);
        match self {
            Self::Metaspace {
                strip_leading: true,
            } if first_is_text == Some(true) => text.strip_prefix(' ').unwrap_or(&text).to_owned(),
            Self::Metaspace { .. } | Self::ByteLevel => text.into_owned(),
        }
    }
}

/// The byte that a piece like `<0xE2>` names.
pub(super) fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    // from_str_radix would also take a sign.
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_pieces_are_exactly_two_hex_digits() {
        assert_eq!(byte_piece("<0xE2>"), Some(0xE2));
        assert_eq!(byte_piece("<0x0A>"), Some(10));
        for other in ["<0xE>", "<0xE2", "0xE2>", "<0xE2F>", "<0x+1>", "<0xZZ>"] {
            assert_eq!(byte_piece(other), None, "{other}");
        }
    }
}
