//! Text as it is generated: whole characters only, nothing held back longer than needed.

use super::handle::Tokenizer;

/// Turns ids into text one by one.
///
/// The text is that of a continuation: a leading space of the first token is kept. Control
/// tokens have no text. Bytes that can never become a character appear as the
/// replacement character at once, so a stream cannot stall on them.
#[derive(Debug)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    /// The start of a character, at most three bytes.
    pending: Vec<u8>,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            pending: Vec::new(),
        }
    }

    /// The text that `id` completes; `None` if it completes none.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.tokenizer.is_control(id) {
            return None;
        }
        self.pending
            .extend_from_slice(&self.tokenizer.token_bytes(id));
        let text = self.take_complete();
        (!text.is_empty()).then_some(text)
    }

    /// What is left at the end: the replacement character for a truncated character, else nothing.
    #[must_use]
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let rest = &self.pending[used..];
            let may_continue =
                std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
            if may_continue {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            used += invalid.len();
        }
        self.pending.drain(..used);
        text
    }
}
