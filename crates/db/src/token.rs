//! A lone token as text.
//!
//! A token may be part of a character. Alone it is no text, and a replacement character in its place would look the same for
//! all of them, so its bytes are written out. Running text is decoded as a whole and never comes here.

use larql_models::tokenizer::Tokenizer;

/// A token as it appears in running text, with its leading space; bytes that are no character as `<0xC3>`. Absent for ids
/// that no token has.
pub fn lone_token(tokenizer: &Tokenizer, id: u32) -> Option<String> {
    tokenizer.token_piece(id)?;
    Some(bytes_as_text(&tokenizer.token_bytes(id)))
}

/// The same without the white space around it, unless it is nothing else; `?` for ids that no token has.
pub(crate) fn token_word(tokenizer: &Tokenizer, id: u32) -> String {
    let text = lone_token(tokenizer, id).unwrap_or_else(|| "?".to_owned());
    match text.trim() {
        "" => text,
        word => word.to_owned(),
    }
}

fn bytes_as_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("<0x{byte:02X}>"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::bytes_as_text;

    #[test]
    fn bytes_that_are_no_character_are_written_out() {
        for (bytes, text) in [
            (&b" Paris"[..], " Paris"),
            (&[0xc3], "<0xC3>"),
            (&[b' ', 0xe2, 0x80], " <0xE2><0x80>"),
            (&[0xa9, b'e'], "<0xA9>e"),
            ("\u{e9}\u{fffd}".as_bytes(), "\u{e9}\u{fffd}"),
            (&[], ""),
        ] {
            assert_eq!(bytes_as_text(bytes), text);
        }
    }
}
