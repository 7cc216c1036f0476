//! The words of the language, and the limits on what is read.

/// Every keyword, in alphabetic order; case does not matter in the text.
pub const KEYWORDS: &[&str] = &[
    "ALL",
    "AND",
    "ANSWERS",
    "ASC",
    "AT",
    "BETWEEN",
    "BRIEF",
    "BY",
    "CREATE",
    "DESC",
    "DESCRIBE",
    "DROP",
    "EDGES",
    "EXAMPLES",
    "EXPLAIN",
    "FALSE",
    "FEATURES",
    "FROM",
    "GENERATE",
    "IN",
    "INFER",
    "IS",
    "LAST",
    "LAYER",
    "LAYERS",
    "LIKE",
    "LIMIT",
    "MODELS",
    "NEAREST",
    "NOT",
    "NULL",
    "OR",
    "ORDER",
    "POSITION",
    "RANGE",
    "RELATION",
    "RELATIONS",
    "SELECT",
    "SHOW",
    "STATS",
    "TEMPLATES",
    "TO",
    "TOP",
    "TRUE",
    "TYPE",
    "USE",
    "VERBOSE",
    "WALK",
    "WHERE",
    "WITH",
];

/// The keywords that cannot name a column, because a statement could then be read in two ways or
/// a forgotten column would swallow the clause after it.
pub const RESERVED: &[&str] = &[
    "AND", "ASC", "BETWEEN", "BY", "DESC", "FALSE", "FROM", "IN", "IS", "LIKE", "LIMIT", "NOT",
    "NULL", "OR", "ORDER", "SELECT", "TRUE", "WHERE",
];

/// First words of statements that are known but not available in this version.
pub const UNAVAILABLE_STATEMENTS: &[&str] = &[
    "APPLY",
    "BEGIN",
    "COMPACT",
    "COMPILE",
    "DELETE",
    "DIFF",
    "EXTRACT",
    "INSERT",
    "MERGE",
    "REBALANCE",
    "REMOVE",
    "SAVE",
    "TRACE",
    "UPDATE",
];

/// Longest input in bytes; statements are typed or scripted by people, and a bound on the text
/// bounds the memory of everything made from it.
pub const MAX_INPUT_BYTES: usize = 1 << 20;

/// Deepest nesting of parentheses and `NOT`; keeps recursion, here and in consumers, off the end
/// of the stack.
pub const MAX_DEPTH: usize = 64;

/// Most items of any list, and most terms of one `AND` or `OR` chain.
pub const MAX_LIST_ITEMS: usize = 10_000;

/// The entry of `words` that `word` spells in any case.
pub(crate) fn find(words: &[&'static str], word: &str) -> Option<&'static str> {
    words
        .iter()
        .copied()
        .find(|known| known.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_do_not_overlap() {
        for list in [KEYWORDS, RESERVED, UNAVAILABLE_STATEMENTS] {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "{list:?}");
        }
        assert_eq!(RESERVED.iter().find(|word| !KEYWORDS.contains(word)), None);
        assert_eq!(
            UNAVAILABLE_STATEMENTS
                .iter()
                .find(|word| KEYWORDS.contains(word)),
            None
        );
    }

    #[test]
    fn find_ignores_case() {
        assert_eq!(find(KEYWORDS, "sElEcT"), Some("SELECT"));
        assert_eq!(find(KEYWORDS, "selec"), None);
    }
}
