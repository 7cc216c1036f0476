//! Numbers of options, with messages that say what would be one.

use std::ops::Range;

/// A whole number.
pub(crate) fn whole(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "expected a whole number from 0".to_owned())
}

/// A number of things of which there must be one at least.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        Ok(_) | Err(_) => Err("expected a whole number from 1".to_owned()),
    }
}

/// Sequences that run together: each has keys and values of its own, and more than these fill no pass better.
const SEQUENCES_MAX: usize = 256;

/// A number of sequences that run together.
pub(crate) fn sequences(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=SEQUENCES_MAX).contains(&n) => Ok(n),
        Ok(_) | Err(_) => Err(format!("expected a whole number from 1 to {SEQUENCES_MAX}")),
    }
}

/// The seed of a random generator.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// A number, whose range is the business of what takes it.
pub(crate) fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "expected a number".to_owned())
}

/// A range of positions, the end not included; whether it fits is the business of what takes it.
pub(crate) fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    parsed.ok_or_else(|| "expected two whole numbers, as in 0..4096".to_owned())
}
