//! Finds added tokens (markers and user-defined pieces) in a text.
//!
//! Cost: one hash look-up per byte that can start a token and per distinct token length there.

use std::collections::HashMap;
use std::ops::Range;

/// A token that is matched in the text before the model's own splitting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) text: String,
    /// A control token: matched only where markers count.
    pub(super) control: bool,
    /// Only as a whole word.
    pub(super) single_word: bool,
    /// Swallows white space before it.
    pub(super) lstrip: bool,
    /// Swallows white space after it.
    pub(super) rstrip: bool,
}

/// Which of several overlapping tokens wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    /// The leftmost, then the longest: the rule of the `tokenizers` format.
    LeftmostLongest,
    /// The longest anywhere in the text, then the leftmost: the rule of GGUF vocabularies.
    LongestFirst,
}

/// Where in a text markers count as markers.
#[derive(Debug, Clone, Copy)]
pub(super) enum MarkerRule<'a> {
    /// Nowhere.
    Nowhere,
    /// In the whole text.
    Everywhere,
    /// Only if completely inside one of these byte ranges.
    Within(&'a [Range<usize>]),
}

impl MarkerRule<'_> {
    pub(super) fn allows(&self, span: &Range<usize>) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Everywhere => true,
            Self::Within(ranges) => ranges
                .iter()
                .any(|r| r.start <= span.start && span.end <= r.end),
        }
    }
}

/// One token found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) span: Range<usize>,
    pub(super) id: u32,
}

#[derive(Debug)]
pub(super) struct AddedTokens {
    tokens: Vec<Added>,
    by_text: HashMap<Box<str>, usize>,
    /// For each first byte, the distinct token lengths in descending order.
    lengths: Vec<Vec<usize>>,
    overlap: Overlap,
}

impl AddedTokens {
    pub(super) fn new(tokens: Vec<Added>, overlap: Overlap) -> Self {
        let mut by_text = HashMap::with_capacity(tokens.len());
        let mut lengths = vec![Vec::new(); 256];
        for (idx, token) in tokens.iter().enumerate() {
            let Some(&first) = token.text.as_bytes().first() else {
                continue;
            };
            by_text.insert(token.text.as_str().into(), idx);
            lengths[usize::from(first)].push(token.text.len());
        }
        for list in &mut lengths {
            list.sort_unstable_by(|a, b| b.cmp(a));
            list.dedup();
        }
        Self {
            tokens,
            by_text,
            lengths,
            overlap,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Added> {
        self.tokens.iter()
    }

    /// The tokens of `text` in order; `allow` decides for each control token's byte range.
    pub(super) fn find(&self, text: &str, allow: impl Fn(&Range<usize>) -> bool) -> Vec<Found> {
        if self.tokens.is_empty() {
            return Vec::new();
        }
        let mut found = match self.overlap {
            Overlap::LeftmostLongest => self.leftmost_longest(text, allow),
            Overlap::LongestFirst => self.longest_first(text, allow),
        };
        self.strip(text, &mut found);
        found
            .into_iter()
            .map(|(span, idx)| Found {
                span,
                id: self.tokens[idx].id,
            })
            .collect()
    }

    /// The tokens that start at `at`, longest first.
    fn candidates<'a>(
        &'a self,
        text: &'a str,
        at: usize,
        allow: &'a impl Fn(&Range<usize>) -> bool,
    ) -> impl Iterator<Item = (Range<usize>, usize)> + 'a {
        let first = usize::from(text.as_bytes()[at]);
        self.lengths[first].iter().filter_map(move |len| {
            let span = at..at + len;
            let idx = *self.by_text.get(text.get(span.clone())?)?;
            let token = &self.tokens[idx];
            let fits = (!token.control || allow(&span))
                && (!token.single_word || is_whole_word(text, &span));
            fits.then_some((span, idx))
        })
    }

    fn leftmost_longest(
        &self,
        text: &str,
        allow: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<(Range<usize>, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let first = self.candidates(text, at, &allow).next();
            if let Some((span, idx)) = first {
                at = span.end;
                found.push((span, idx));
            } else {
                at += 1;
            }
        }
        found
    }

    fn longest_first(
        &self,
        text: &str,
        allow: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<(Range<usize>, usize)> {
        let mut all: Vec<_> = (0..text.len())
            .flat_map(|at| self.candidates(text, at, &allow))
            .collect();
        all.sort_by_key(|(span, idx)| (std::cmp::Reverse(span.len()), *idx, span.start));
        let mut taken = vec![false; if all.is_empty() { 0 } else { text.len() }];
        // Longest first, so a clash with something taken shows at one of the two ends.
        all.retain(|(span, _)| {
            let free = !taken[span.start] && !taken[span.end - 1];
            if free {
                taken[span.clone()].fill(true);
            }
            free
        });
        all.sort_by_key(|(span, _)| span.start);
        all
    }

    /// Widens matches over the white space they swallow, never into a neighbor.
    fn strip(&self, text: &str, found: &mut [(Range<usize>, usize)]) {
        for i in 0..found.len() {
            let token = &self.tokens[found[i].1];
            if token.lstrip {
                let floor = if i == 0 { 0 } else { found[i - 1].0.end };
                let kept = text[floor..found[i].0.start].trim_end().len();
                found[i].0.start = floor + kept;
            }
            if token.rstrip {
                let ceiling = found.get(i + 1).map_or(text.len(), |next| next.0.start);
                let rest = &text[found[i].0.end..ceiling];
                found[i].0.end += rest.len() - rest.trim_start().len();
            }
        }
    }
}

fn is_whole_word(text: &str, span: &Range<usize>) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..span.start].chars().next_back().is_some_and(is_word)
        && !text[span.end..].chars().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(id: u32, text: &str, control: bool) -> Added {
        Added {
            id,
            text: text.into(),
            control,
            single_word: false,
            lstrip: false,
            rstrip: false,
        }
    }

    fn spans(found: &[Found]) -> Vec<(usize, usize, u32)> {
        found
            .iter()
            .map(|f| (f.span.start, f.span.end, f.id))
            .collect()
    }

    #[test]
    fn the_two_overlap_rules_differ_where_they_should() {
        let tokens = vec![added(7, "ab", false), added(8, "bcd", false)];
        let leftmost = AddedTokens::new(tokens.clone(), Overlap::LeftmostLongest);
        let longest = AddedTokens::new(tokens, Overlap::LongestFirst);
        assert_eq!(spans(&leftmost.find("xabcd", |_| true)), [(1, 3, 7)]);
        assert_eq!(spans(&longest.find("xabcd", |_| true)), [(2, 5, 8)]);
    }

    #[test]
    fn runs_take_the_longest_token_first() {
        let tokens = vec![added(1, "\n", false), added(3, "\n\n\n", false)];
        for overlap in [Overlap::LeftmostLongest, Overlap::LongestFirst] {
            let set = AddedTokens::new(tokens.clone(), overlap);
            assert_eq!(
                spans(&set.find("a\n\n\n\n\nb", |_| false)),
                [(1, 4, 3), (4, 5, 1), (5, 6, 1)]
            );
        }
    }

    #[test]
    fn a_control_token_needs_permission_and_yields_to_a_shorter_one() {
        let tokens = vec![added(1, "<a>", true), added(2, "<", false)];
        let set = AddedTokens::new(tokens, Overlap::LeftmostLongest);
        assert_eq!(
            spans(&set.find("<a><a>", |_| false)),
            [(0, 1, 2), (3, 4, 2)]
        );
        let scaffold = [0..3, 6..6];
        let rule = MarkerRule::Within(&scaffold);
        assert_eq!(
            spans(&set.find("<a><a>", |s| rule.allows(s))),
            [(0, 3, 1), (3, 4, 2)]
        );
    }

    #[test]
    fn stripping_and_whole_words() {
        let mut strip = added(5, "<m>", false);
        strip.lstrip = true;
        strip.rstrip = true;
        let mut word = added(6, "cat", false);
        word.single_word = true;
        let set = AddedTokens::new(vec![strip, word], Overlap::LeftmostLongest);
        assert_eq!(
            spans(&set.find("a \n<m> \t<m>b cats cat", |_| true)),
            [(1, 8, 5), (8, 11, 5), (18, 21, 6)]
        );
    }

    #[test]
    fn a_match_never_cuts_a_character() {
        // U+00E9 is C3 A9; a token of length 1 or 3 must not be looked up inside it.
        let set = AddedTokens::new(vec![added(1, "\u{e9}!", false)], Overlap::LongestFirst);
        assert_eq!(spans(&set.find("\u{e9}\u{e9}!", |_| true)), [(2, 5, 1)]);
    }
}
