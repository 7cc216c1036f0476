//! Errors: the whole rendered text, the caret and the hint.

use larql_lql::{Got, ParseErrorKind, UNAVAILABLE_STATEMENTS, parse};

/// Checks the lines of the rendering, and the hint as one more line if there is any.
#[track_caller]
fn error_is(source: &str, expected: &[&str]) {
    let error = match parse(source) {
        Ok(statements) => panic!("accepted as {}", statements[0]),
        Err(error) => error,
    };
    let mut shown: Vec<String> = error.render(source).lines().map(str::to_owned).collect();
    shown.extend(error.hint().map(|hint| format!("hint: {hint}")));
    assert_eq!(shown, expected);
}

#[test]
fn misspelled_and_missing_words() {
    error_is(
        r#"DESCIRBE "France""#,
        &[
            "line 1, column 1: expected `USE`, `STATS`, `SHOW`, `DESCRIBE`, `WALK`, `INFER`, `SELECT`, `CREATE`, `DROP` or `EXPLAIN`, got `DESCIRBE`",
            r#"  DESCIRBE "France""#,
            "  ^~~~~~~~",
            "hint: did you mean `DESCRIBE`?",
        ],
    );
    error_is(
        "SELECT * FORM edges",
        &[
            "line 1, column 10: expected `FROM`, got `FORM`",
            "  SELECT * FORM edges",
            "           ^~~~",
            "hint: did you mean `FROM`?",
        ],
    );
    error_is(
        "SELECT * FROM edgs",
        &[
            "line 1, column 15: expected `EDGES` or `FEATURES`, got `edgs`",
            "  SELECT * FROM edgs",
            "                ^~~~",
            "hint: did you mean `EDGES`?",
        ],
    );
    error_is(
        "SELECT * FROM edges WHRE a = 1",
        &[
            "line 1, column 21: expected `NEAREST`, `WHERE`, `ORDER`, `LIMIT` or `;`, got `WHRE`",
            "  SELECT * FROM edges WHRE a = 1",
            "                      ^~~~",
            "hint: did you mean `WHERE`?",
        ],
    );
    error_is(
        "SELECT FROM edges",
        &[
            "line 1, column 8: expected `*` or column name, got `FROM`",
            "  SELECT FROM edges",
            "         ^~~~",
            "hint: `FROM` is a keyword and cannot name a column",
        ],
    );
    error_is(
        "SELECT a, FROM edges",
        &[
            "line 1, column 11: expected column name, got `FROM`",
            "  SELECT a, FROM edges",
            "            ^~~~",
            "hint: `FROM` is a keyword and cannot name a column",
        ],
    );
    error_is(
        "SELECT",
        &[
            "line 1, column 7: expected `*` or column name, got the end of the input",
            "  SELECT",
            "        ^",
        ],
    );
    error_is(
        "DESCRIBE France",
        &[
            "line 1, column 10: expected string, got `France`",
            "  DESCRIBE France",
            "           ^~~~~~",
            r#"hint: text stands in quotes: "France""#,
        ],
    );
    error_is(
        r#"DESCRIBE "France" LAYER 3"#,
        &[
            "line 1, column 19: expected `RELATION`, `RELATIONS`, `AT`, `LAYERS`, `TOP`, `BRIEF`, `VERBOSE` or `;`, got `LAYER`",
            r#"  DESCRIBE "France" LAYER 3"#,
            "                    ^~~~~",
            "hint: did you mean `LAYERS`?",
        ],
    );
    error_is(
        r#"DESCRIBE "France" RELATION TYPE"#,
        &[
            "line 1, column 28: expected relation name, got `TYPE`",
            r#"  DESCRIBE "France" RELATION TYPE"#,
            "                             ^~~~",
            r#"hint: text stands in quotes: "TYPE""#,
        ],
    );
    error_is(
        r#"DESCRIBE "France" RELATIONS ()"#,
        &[
            "line 1, column 30: expected relation name, got `)`",
            r#"  DESCRIBE "France" RELATIONS ()"#,
            "                               ^",
        ],
    );
    error_is(
        r#"DESCRIBE "France" RELATIONS (a, )"#,
        &[
            "line 1, column 33: expected relation name, got `)`",
            r#"  DESCRIBE "France" RELATIONS (a, )"#,
            "                                  ^",
        ],
    );
    error_is(
        "SHOW",
        &[
            "line 1, column 5: expected `LAYERS`, `FEATURES`, `RELATIONS`, `RELATION` or `MODELS`, got the end of the input",
            "  SHOW",
            "      ^",
        ],
    );
    error_is(
        "SHOW PATCHES",
        &[
            "line 1, column 6: expected `LAYERS`, `FEATURES`, `RELATIONS`, `RELATION` or `MODELS`, got `PATCHES`",
            "  SHOW PATCHES",
            "       ^~~~~~~",
        ],
    );
    error_is(
        "SHOW LAYERS x",
        &[
            "line 1, column 13: expected `RANGE`, whole number or `;`, got `x`",
            "  SHOW LAYERS x",
            "              ^",
        ],
    );
    error_is(
        "EXPLAIN EXPLAIN STATS",
        &[
            "line 1, column 9: expected `USE`, `STATS`, `SHOW`, `DESCRIBE`, `WALK`, `INFER`, `SELECT`, `CREATE` or `DROP`, got `EXPLAIN`",
            "  EXPLAIN EXPLAIN STATS",
            "          ^~~~~~~",
        ],
    );
    error_is(
        "EXPLAIN",
        &[
            "line 1, column 8: expected `USE`, `STATS`, `SHOW`, `DESCRIBE`, `WALK`, `INFER`, `SELECT`, `CREATE` or `DROP`, got the end of the input",
            "  EXPLAIN",
            "         ^",
        ],
    );
    error_is(
        r#"CREATE RELATION "r" ANSWERS ("x")"#,
        &[
            "line 1, column 34: expected `TEMPLATES` or `TYPE`, got the end of the input",
            r#"  CREATE RELATION "r" ANSWERS ("x")"#,
            "                                   ^",
        ],
    );
    error_is(
        r#"DROP "r""#,
        &[
            r#"line 1, column 6: expected `RELATION`, got `"r"`"#,
            r#"  DROP "r""#,
            "       ^~~",
        ],
    );
    error_is(
        "STATS; STATS garbage; STATS",
        &[
            "line 1, column 14: expected `;`, got `garbage`",
            "  STATS; STATS garbage; STATS",
            "               ^~~~~~~",
        ],
    );
    error_is(
        "STATS\n\n  SHOW MODELS",
        &[
            "line 3, column 3: expected `;`, got `SHOW`",
            "    SHOW MODELS",
            "    ^~~~",
            "hint: statements are separated by `;`",
        ],
    );
    error_is(
        "STATS )",
        &[
            "line 1, column 7: expected `;`, got `)`",
            "  STATS )",
            "        ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 1)",
        &[
            "line 1, column 32: expected `AND`, `OR`, `ORDER`, `LIMIT` or `;`, got `)`",
            "  SELECT * FROM edges WHERE a = 1)",
            "                                 ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE (a = 1",
        &[
            "line 1, column 33: expected `AND`, `OR` or `)`, got the end of the input",
            "  SELECT * FROM edges WHERE (a = 1",
            "                                  ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a NOT = 1",
        &[
            "line 1, column 33: expected `LIKE`, `IN` or `BETWEEN`, got `=`",
            "  SELECT * FROM edges WHERE a NOT = 1",
            "                                  ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a",
        &[
            "line 1, column 28: expected `IS`, `NOT`, `LIKE`, `IN`, `BETWEEN`, `=`, `!=`, `<`, `<=`, `>` or `>=`, got the end of the input",
            "  SELECT * FROM edges WHERE a",
            "                             ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a LIKE 5",
        &[
            "line 1, column 34: expected string, got `5`",
            "  SELECT * FROM edges WHERE a LIKE 5",
            "                                   ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a IN (b)",
        &[
            "line 1, column 33: expected string, `TRUE`, `FALSE`, `NULL` or number, got `b`",
            "  SELECT * FROM edges WHERE a IN (b)",
            "                                  ^",
            r#"hint: text stands in quotes: "b""#,
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = -x",
        &[
            "line 1, column 32: expected number, got `x`",
            "  SELECT * FROM edges WHERE a = -x",
            "                                 ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a BETWEEN 1 OR 2",
        &[
            "line 1, column 39: expected `AND`, got `OR`",
            "  SELECT * FROM edges WHERE a BETWEEN 1 OR 2",
            "                                        ^~",
        ],
    );
}

#[test]
fn characters_and_strings() {
    error_is(
        "USE \"a\\\u{e9}\"",
        &[
            "line 1, column 7: unknown escape `\\\u{e9}` in a string",
            "  USE \"a\\\u{e9}\"",
            "        ^~",
            r#"hint: the escapes are \\ \" \' \n \t \r \0; a backslash itself is written \\"#,
        ],
    );
    error_is(
        "USE 'abc\n;STATS",
        &[
            "line 1, column 5: string opened with ' is not closed",
            "  USE 'abc",
            "      ^~~~",
            "hint: close the string with '",
        ],
    );
    error_is(
        r#"USE "a\"#,
        &[
            r#"line 1, column 5: string opened with " is not closed"#,
            r#"  USE "a\"#,
            "      ^~~",
            r#"hint: close the string with ""#,
        ],
    );
    error_is(
        "USE \u{201c}a\u{201d}",
        &[
            "line 1, column 5: character U+201C is not allowed outside a string",
            "  USE \u{201c}a\u{201d}",
            "      ^",
            r#"hint: use straight quotes: " or '"#,
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a \u{2265} 1",
        &[
            "line 1, column 29: character U+2265 is not allowed outside a string",
            "  SELECT * FROM edges WHERE a \u{2265} 1",
            "                              ^",
            "hint: write `>=`",
        ],
    );
    error_is(
        "STATS \u{2013} x",
        &[
            "line 1, column 7: character U+2013 is not allowed outside a string",
            "  STATS \u{2013} x",
            "        ^",
            "hint: use the plain hyphen: -",
        ],
    );
    error_is(
        "STATS\u{a0};",
        &[
            "line 1, column 6: character U+00A0 is not allowed outside a string",
            "  STATS\u{a0};",
            "       ^",
            "hint: an invisible character stands here; use a plain space",
        ],
    );
    error_is(
        "STATS \u{e9}",
        &[
            "line 1, column 7: character U+00E9 is not allowed outside a string",
            "  STATS \u{e9}",
            "        ^",
            r#"hint: text stands in " or '"#,
        ],
    );
    error_is(
        "STATS |> STATS",
        &[
            "line 1, column 7: unexpected character `|`",
            "  STATS |> STATS",
            "        ^",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a <> 1",
        &[
            "line 1, column 29: unknown operator `<>`",
            "  SELECT * FROM edges WHERE a <> 1",
            "                              ^~",
            "hint: write `!=`",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a == 1",
        &[
            "line 1, column 29: unknown operator `==`",
            "  SELECT * FROM edges WHERE a == 1",
            "                              ^~",
            "hint: write `=`",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = .5",
        &[
            "line 1, column 31: unexpected character `.`",
            "  SELECT * FROM edges WHERE a = .5",
            "                                ^",
            "hint: a number has digits before the point: 0.5",
        ],
    );
}

#[test]
fn numbers() {
    error_is(
        "SELECT * FROM edges WHERE a = 1.",
        &[
            "line 1, column 31: `1.` is not a number",
            "  SELECT * FROM edges WHERE a = 1.",
            "                                ^~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 12abc",
        &[
            "line 1, column 31: `12abc` is not a number",
            "  SELECT * FROM edges WHERE a = 12abc",
            "                                ^~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 1e",
        &[
            "line 1, column 31: `1e` is not a number",
            "  SELECT * FROM edges WHERE a = 1e",
            "                                ^~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 1.2.3",
        &[
            "line 1, column 31: `1.2.3` is not a number",
            "  SELECT * FROM edges WHERE a = 1.2.3",
            "                                ^~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 9223372036854775808",
        &[
            "line 1, column 31: `9223372036854775808` is out of range, allowed are -9223372036854775808 to 9223372036854775807",
            "  SELECT * FROM edges WHERE a = 9223372036854775808",
            "                                ^~~~~~~~~~~~~~~~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a IN (1, -9223372036854775809)",
        &[
            "line 1, column 36: `-9223372036854775809` is out of range, allowed are -9223372036854775808 to 9223372036854775807",
            "  SELECT * FROM edges WHERE a IN (1, -9223372036854775809)",
            "                                     ^~~~~~~~~~~~~~~~~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 1e999",
        &[
            "line 1, column 31: `1e999` is too large for a 64-bit float",
            "  SELECT * FROM edges WHERE a = 1e999",
            "                                ^~~~~",
        ],
    );
    error_is(
        r#"WALK "p" LAYERS 7-3"#,
        &[
            "line 1, column 17: range 7-3 ends before it starts",
            r#"  WALK "p" LAYERS 7-3"#,
            "                  ^~~",
            "hint: write 3-7",
        ],
    );
    error_is(
        r#"WALK "p" LAYERS -1-3"#,
        &[
            "line 1, column 17: `-1` is out of range, allowed are 0 to 4294967295",
            r#"  WALK "p" LAYERS -1-3"#,
            "                  ^~",
        ],
    );
    error_is(
        r#"WALK "p" LAYERS 1-"#,
        &[
            "line 1, column 19: expected whole number, got the end of the input",
            r#"  WALK "p" LAYERS 1-"#,
            "                    ^",
        ],
    );
    error_is(
        r#"WALK "p" TOP ten"#,
        &[
            "line 1, column 14: expected whole number, got `ten`",
            r#"  WALK "p" TOP ten"#,
            "               ^~~",
        ],
    );
}

#[test]
fn clauses() {
    error_is(
        r#"DESCRIBE "x" TOP 3 BRIEF TOP 3"#,
        &[
            "line 1, column 26: `TOP` is given twice",
            r#"  DESCRIBE "x" TOP 3 BRIEF TOP 3"#,
            "                           ^~~",
        ],
    );
    error_is(
        r#"DESCRIBE "x" BRIEF VERBOSE"#,
        &[
            "line 1, column 20: `VERBOSE` cannot be combined with the earlier `BRIEF`",
            r#"  DESCRIBE "x" BRIEF VERBOSE"#,
            "                     ^~~~~~~",
        ],
    );
    error_is(
        r#"DESCRIBE "x" AT LAYER 3 LAYERS 1-4"#,
        &[
            "line 1, column 25: `LAYERS` cannot be combined with the earlier `AT LAYER`",
            r#"  DESCRIBE "x" AT LAYER 3 LAYERS 1-4"#,
            "                          ^~~~~~",
        ],
    );
    error_is(
        r#"DESCRIBE "x" RELATION a RELATIONS (b)"#,
        &[
            "line 1, column 25: `RELATIONS` cannot be combined with the earlier `RELATION`",
            r#"  DESCRIBE "x" RELATION a RELATIONS (b)"#,
            "                          ^~~~~~~~~",
        ],
    );
    error_is(
        r#"WALK "x" LAST POSITION 3"#,
        &[
            "line 1, column 15: `POSITION` cannot be combined with the earlier `LAST`",
            r#"  WALK "x" LAST POSITION 3"#,
            "                ^~~~~~~~",
        ],
    );
    error_is(
        r#"INFER "x" GENERATE 3 GENERATE 4"#,
        &[
            "line 1, column 22: `GENERATE` is given twice",
            r#"  INFER "x" GENERATE 3 GENERATE 4"#,
            "                       ^~~~~~~~",
        ],
    );
    error_is(
        r#"CREATE RELATION r TEMPLATES ("{e}") TYPE "a" TYPE "b""#,
        &[
            "line 1, column 46: `TYPE` is given twice",
            r#"  CREATE RELATION r TEMPLATES ("{e}") TYPE "a" TYPE "b""#,
            "                                               ^~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges WHERE a = 1 WHERE b = 2",
        &[
            "line 1, column 33: `WHERE` is given twice",
            "  SELECT * FROM edges WHERE a = 1 WHERE b = 2",
            "                                  ^~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges LIMIT 3 LIMIT 4",
        &[
            "line 1, column 29: `LIMIT` is given twice",
            "  SELECT * FROM edges LIMIT 3 LIMIT 4",
            "                              ^~~~~",
        ],
    );
    error_is(
        "SELECT * FROM edges LIMIT 3 WHERE a = 1",
        &[
            "line 1, column 29: `WHERE` must come before `LIMIT`",
            "  SELECT * FROM edges LIMIT 3 WHERE a = 1",
            "                              ^~~~~",
        ],
    );
    error_is(
        r#"SELECT * FROM edges ORDER BY a NEAREST TO "x""#,
        &[
            "line 1, column 32: `NEAREST TO` must come before `ORDER BY`",
            r#"  SELECT * FROM edges ORDER BY a NEAREST TO "x""#,
            "                                 ^~~~~~~",
        ],
    );
    error_is(
        "SHOW FEATURES 3 LIMIT 2 WHERE a = 1",
        &[
            "line 1, column 25: `WHERE` must come before `LIMIT`",
            "  SHOW FEATURES 3 LIMIT 2 WHERE a = 1",
            "                          ^~~~~",
        ],
    );
    error_is(
        "SHOW RELATIONS WITH EXAMPLES WITH EXAMPLES",
        &[
            "line 1, column 30: `WITH EXAMPLES` is given twice",
            "  SHOW RELATIONS WITH EXAMPLES WITH EXAMPLES",
            "                               ^~~~",
        ],
    );
}

#[test]
fn statements_of_later_versions() {
    error_is(
        r#"INSERT INTO EDGES (entity, relation, target) VALUES ("a", "b", "c")"#,
        &[
            "line 1, column 1: INSERT is not available in this version",
            r#"  INSERT INTO EDGES (entity, relation, target) VALUES ("a", "b", "c")"#,
            "  ^~~~~~",
        ],
    );
    error_is(
        "STATS;\n  explain trace \"x\"",
        &[
            "line 2, column 11: TRACE is not available in this version",
            r#"    explain trace "x""#,
            "            ^~~~~",
        ],
    );
}

#[test]
fn every_unavailable_statement_is_refused_by_name() {
    for &statement in UNAVAILABLE_STATEMENTS {
        for source in [
            statement.to_lowercase(),
            format!("{statement} \"x\" ("),
            format!("EXPLAIN {statement}"),
        ] {
            let error = parse(&source).unwrap_err();
            assert_eq!(error.kind, ParseErrorKind::NotYet { statement });
            assert_eq!(
                error.to_string(),
                format!("{statement} is not available in this version")
            );
            assert!(source[error.span.start..error.span.end].eq_ignore_ascii_case(statement));
        }
    }
}

/// Every place of the language where a whole number stands, marked with `#`.
const NUMBER_SLOTS: [&str; 17] = [
    "SHOW LAYERS RANGE #-4294967295",
    "SHOW LAYERS RANGE 0-#",
    "SHOW LAYERS #-4294967295",
    "SHOW FEATURES #",
    "SHOW FEATURES 1 LIMIT #",
    "DESCRIBE 'x' AT LAYER #",
    "DESCRIBE 'x' LAYERS 0-#",
    "DESCRIBE 'x' TOP #",
    "WALK 'x' TOP #",
    "WALK 'x' AT LAYER #",
    "WALK 'x' LAYERS # - 4294967295",
    "WALK 'x' LAYERS 0 - #",
    "WALK 'x' POSITION #",
    "INFER 'x' TOP #",
    "INFER 'x' GENERATE #",
    "SELECT * FROM EDGES NEAREST TO 'x' AT LAYER #",
    "SELECT * FROM EDGES LIMIT #",
];

#[test]
fn whole_numbers_are_never_wrapped_or_clamped() {
    for slot in NUMBER_SLOTS {
        let column = slot.find('#').unwrap();
        for fits in ["0", "2147483648", "4294967295"] {
            let printed = parse(&slot.replace('#', fits)).unwrap()[0].to_string();
            assert!(printed.contains(fits), "{printed}");
        }
        for text in [
            "4294967296",
            "4294967297",
            "18446744073709551616",
            "-2",
            "1.5",
            "1e3",
        ] {
            // A minus after a minus would begin a comment.
            if text == "-2" && slot.contains("-#") {
                continue;
            }
            let error = parse(&slot.replace('#', text)).unwrap_err();
            assert_eq!(
                (error.span.start, error.span.end),
                (column, column + text.len()),
                "{slot} {text}"
            );
            let text = text.to_owned();
            let expected = if text.contains(['.', 'e']) {
                ParseErrorKind::NotAnInteger { text }
            } else {
                ParseErrorKind::IntegerOutOfRange {
                    text,
                    min: 0,
                    max: 4_294_967_295,
                }
            };
            assert_eq!(error.kind, expected, "{slot}");
        }
    }
}

#[test]
fn the_first_fault_is_reported() {
    let error = parse("SELECT * FORM edges WHERE a = 'x").unwrap_err();
    assert_eq!(error.span.start, 9);
    let error = parse("STATS; USE \"\\q\"; SELECT").unwrap_err();
    assert_eq!(error.kind, ParseErrorKind::UnknownEscape { ch: 'q' });
    assert_eq!((error.span.start, error.span.end), (12, 14));
}

#[test]
fn errors_are_data() {
    let error = parse("SELECT * FROM nodes").unwrap_err();
    let expected = ParseErrorKind::Unexpected {
        got: Got::Token("nodes".into()),
        expected: vec!["EDGES", "FEATURES"],
    };
    assert_eq!(error.kind, expected);
    assert_eq!((error.span.start, error.span.end), (14, 19));
    let error = parse("USE ").unwrap_err();
    assert_eq!(
        error.kind,
        ParseErrorKind::Unexpected {
            got: Got::EndOfInput,
            expected: vec!["string"]
        }
    );
    let error = parse("INFER 'x' TOP 1 top 2").unwrap_err();
    let ParseErrorKind::RepeatedClause { earlier_span, .. } = error.kind else {
        panic!("{error}")
    };
    assert_eq!((earlier_span.start, earlier_span.end), (10, 13));
}

#[test]
fn messages_do_not_repeat_long_tokens() {
    let error = parse(&format!("STATS '{}'", "x".repeat(10_000))).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("expected `;`, got `'{}...'`", "x".repeat(35))
    );
    let error = parse(&format!("WALK 'x' TOP {}", "9".repeat(10_000))).unwrap_err();
    assert!(error.to_string().len() < 120, "{error}");
}
