//! The special ids of a model and the two questions every call to encode must answer.

use serde::{Deserialize, Serialize};

/// How markers such as `<bos>` or `<|im_start|>` inside a text are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeSpecial {
    /// They are ordinary characters: the text comes from a user.
    Plain,
    /// They become their control ids: the text was written by a template.
    Markers,
}

/// Whether encode puts the beginning of a sequence in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// As the model wants it: exactly one where it wants one, none where it does not.
    Model,
    /// Never; for a text that continues another one.
    Never,
}

/// Whether decode shows control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialText {
    /// Leave them out.
    Skip,
    /// Write their marker text.
    Keep,
}

/// The special ids of a model; stored in the manifest so that a reload behaves the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecialTokens {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// Every id that ends generation, without duplicates; the first is the one that a chat template
    /// calls `eos_token`.
    pub eos: Vec<u32>,
    /// Stands for what the vocabulary cannot write.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Whether a prompt starts with `prefix`.
    pub add_bos: bool,
    /// Whether the model was trained with an end id after each text. Encode never adds it: a prompt
    /// that is to be continued must not be ended.
    pub add_eos: bool,
    /// What stands before a prompt where `add_bos` holds: nearly always just `bos`, but some
    /// families have two ids.
    pub prefix: Vec<u32>,
}

impl SpecialTokens {
    /// Puts the prefix in front of `ids` unless it is there already.
    pub(super) fn with_prefix(&self, ids: Vec<u32>) -> Vec<u32> {
        if !self.add_bos || ids.starts_with(&self.prefix) {
            return ids;
        }
        let mut out = self.prefix.clone();
        out.extend(ids);
        out
    }

    pub(super) fn normalize(mut self) -> Self {
        let mut seen = Vec::with_capacity(self.eos.len());
        self.eos.retain(|id| {
            let is_new = !seen.contains(id);
            seen.push(*id);
            is_new
        });
        self
    }
}

/// Marker texts that end a turn or a text in the GGUF files in use. GGUF has keys for one or two of
/// them only, so a reader finds the others by their text.
pub(super) const END_MARKERS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<end_of_utterance>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// In the one vocabulary that has all three, `<|end|>` ends a message and generation goes on.
pub(super) const MESSAGE_END: &str = "<|end|>";
/// The two markers whose presence makes [`MESSAGE_END`] an ordinary marker.
pub(super) const TURN_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
