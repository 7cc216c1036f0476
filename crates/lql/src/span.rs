//! Where a piece of syntax stands in the source text.
//!
//! Byte offsets only; lines and columns are worked out when an error is rendered, because most
//! spans are never shown to anybody.

use std::hash::{Hash, Hasher};

/// A half-open range of byte offsets, `start..end`, in the text that was parsed.
///
/// Two spans always compare equal (and hash alike).
/// A span says where a node was written, not what it means, so ASTs of `STATS` and of `  stats ;`
/// are equal; this is what lets `parse(print(x)) == x` be stated with plain `==`.
/// Compare `start` and `end` to compare positions.
///
/// ```
/// use larql_lql::Span;
/// assert_eq!(Span::new(0, 5), Span::new(7, 9));
/// assert_ne!(Span::new(0, 5).start, Span::new(7, 9).start);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset just past the last byte; equal to `start` for an empty span.
    pub end: usize,
}

impl Span {
    /// The range `start..end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The smallest span that covers both.
    pub fn to(self, other: Span) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}

impl PartialEq for Span {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Span {}

impl Hash for Span {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}
