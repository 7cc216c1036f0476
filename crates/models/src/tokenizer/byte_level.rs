//! The printable alphabet in which byte-level vocabularies write the 256 bytes (GPT-2, section 2.2).
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68 are the characters
//! from U+0100 on, in ascending order of the byte.

const FIRST_SHIFTED: u32 = 0x100;

/// Whether the byte is written as the Latin-1 character of the same number.
fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte that `c` stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    if let Ok(byte) = u8::try_from(c) {
        return stands_for_itself(byte).then_some(byte);
    }
    let nth = u32::from(c).checked_sub(FIRST_SHIFTED)?;
    (0..=u8::MAX)
        .filter(|b| !stands_for_itself(*b))
        .nth(usize::try_from(nth).ok()?)
}

/// The bytes that a piece of a byte-level vocabulary stands for; characters outside the alphabet
/// stand for their own UTF-8.
pub(super) fn bytes_of(piece: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(piece.len());
    for c in piece.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_letters_of_the_alphabet() {
        assert_eq!(byte_of('A'), Some(b'A'));
        assert_eq!(byte_of('\u{120}'), Some(b' '));
        assert_eq!(byte_of('\u{10a}'), Some(b'\n'));
        assert_eq!(byte_of('\u{100}'), Some(0));
        assert_eq!(byte_of('\u{143}'), Some(0xAD));
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of(' '), None);
        assert_eq!(bytes_of("\u{120}\u{c3}\u{a9}"), " \u{e9}".as_bytes());
    }

    #[test]
    fn the_alphabet_has_256_letters() {
        let mut seen: Vec<u8> = (0..0x200)
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=u8::MAX).collect::<Vec<_>>());
    }
}
