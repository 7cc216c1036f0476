//! Completeness and completion.

use larql_lql::{Completeness, KEYWORDS, MAX_INPUT_BYTES, completions, is_complete};

#[test]
fn completeness() {
    use Completeness::{Complete, Empty, Incomplete};
    for (text, expected) in [
        ("", Empty),
        (" ;; -- x\n", Empty),
        ("SELECT", Incomplete),
        ("SELECT * FROM edges WHERE", Incomplete),
        ("SELECT * FROM edges WHERE (a = 1", Incomplete),
        ("STATS; DESCRIBE", Incomplete),
        ("DESCRIBE \"Fra", Incomplete),
        ("DESCRIBE \"Fra\\", Incomplete),
        ("DESCRIBE 'Fra -- x", Incomplete),
        ("DESCRIBE -- x", Incomplete),
        ("WALK 'p' LAYERS 3-", Incomplete),
        ("EXPLAIN", Incomplete),
        ("STATS", Complete),
        ("STATS;", Complete),
        ("DESCRIBE \"France\" TOP 3", Complete),
        ("SELECT SELECT (", Complete),
        ("DESCRIBE France \"", Complete),
        ("INSERT INTO", Complete),
        ("USE \"\\q", Complete),
    ] {
        assert_eq!(is_complete(text), expected, "{text:?}");
    }
}

#[test]
fn completion_follows_the_grammar() {
    let starts = [
        "USE", "STATS", "SHOW", "DESCRIBE", "WALK", "INFER", "SELECT", "CREATE", "DROP", "EXPLAIN",
    ];
    for text in ["", "STATS;", "\u{feff}", "-- x\n"] {
        assert_eq!(completions(text), starts, "{text:?}");
    }
    for (text, expected) in [
        ("s", &["STATS", "SHOW", "SELECT"][..]),
        ("Desc", &["DESCRIBE"]),
        ("STATS", &["STATS"]),
        ("STATS ", &[]),
        ("EXPLAIN d", &["DESCRIBE", "DROP"]),
        ("EXPLAIN e", &[]),
        ("SHOW LAYERS ", &["RANGE"]),
        ("SHOW RELATIONS WITH ", &["EXAMPLES"]),
        (
            "DESCRIBE 'x' TOP 3 BRIEF ",
            &["RELATION", "RELATIONS", "AT", "LAYERS"],
        ),
        ("DESCRIBE 'x'T", &["TOP"]),
        ("DESCRIBE 'x' TOP ", &[]),
        ("WALK 'p' POSITION ", &["LAST"]),
        ("WALK 'p' LAYERS ", &["ALL"]),
        ("SELECT a ", &["FROM"]),
        ("SELECT * FROM ", &["EDGES", "FEATURES"]),
        (
            "SELECT * FROM edges ",
            &["NEAREST", "WHERE", "ORDER", "LIMIT"],
        ),
        (
            "SELECT * FROM edges WHERE a = 1 ",
            &["AND", "OR", "ORDER", "LIMIT"],
        ),
        (
            "SELECT * FROM edges WHERE a ",
            &["IS", "NOT", "LIKE", "IN", "BETWEEN"],
        ),
        (
            "SELECT * FROM edges WHERE a NOT ",
            &["LIKE", "IN", "BETWEEN"],
        ),
        (
            "SELECT * FROM edges WHERE ",
            &["NOT", "TRUE", "FALSE", "NULL"],
        ),
        ("SELECT * FROM edges ORDER BY a ", &["DESC", "ASC", "LIMIT"]),
        ("SELECT * FROM edges LIMIT 1", &[]),
        ("CREATE RELATION x ", &["TEMPLATES", "ANSWERS", "TYPE"]),
        ("DESCRIBE \"s", &[]),
        ("DESCRIBE \"\\q s", &[]),
        ("STATS; -- s", &[]),
        ("SELECT SELECT ", &[]),
        ("INSERT ", &[]),
        ("SHOW NOTHING; s", &[]),
    ] {
        assert_eq!(completions(text), expected, "{text:?}");
    }
    assert_eq!(completions(&" ".repeat(MAX_INPUT_BYTES + 1)), [""; 0]);
}

#[test]
fn every_keyword_is_offered_somewhere() {
    let prefixes = [
        "",
        "SHOW ",
        "SHOW LAYERS ",
        "SHOW RELATIONS ",
        "SHOW RELATIONS WITH ",
        "DESCRIBE 'x' ",
        "DESCRIBE 'x' AT ",
        "WALK 'x' ",
        "WALK 'x' LAYERS ",
        "INFER 'x' ",
        "SELECT a ",
        "SELECT a FROM ",
        "SELECT a FROM EDGES ",
        "SELECT a FROM EDGES NEAREST ",
        "SELECT a FROM EDGES WHERE ",
        "SELECT a FROM EDGES WHERE a ",
        "SELECT a FROM EDGES WHERE a = 1 ",
        "SELECT a FROM EDGES ORDER ",
        "SELECT a FROM EDGES ORDER BY a ",
        "CREATE RELATION x ",
    ];
    let offered: Vec<&str> = prefixes
        .iter()
        .flat_map(|prefix| completions(prefix))
        .collect();
    let missing: Vec<&&str> = KEYWORDS
        .iter()
        .filter(|word| !offered.contains(word))
        .collect();
    assert_eq!(missing, [&""; 0]);
}
