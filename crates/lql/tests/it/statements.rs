//! Statements and their canonical text.

use larql_lql::ast::{Direction, Expr, LayerChoice, LiteralValue, Operand, Position};
use larql_lql::{Statement, parse};

/// Parses exactly one statement, checks its canonical text, and that the text reads back equal.
#[track_caller]
fn one_statement_parses_to(source: &str, canonical: &str) -> Statement {
    let mut statements = parse(source).unwrap_or_else(|error| panic!("{}", error.render(source)));
    assert_eq!(statements.len(), 1, "{source}");
    let statement = statements.remove(0);
    assert_eq!(statement.to_string(), canonical);
    assert_eq!(parse(canonical).unwrap(), std::slice::from_ref(&statement));
    assert!(
        canonical
            .trim_start_matches("EXPLAIN ")
            .starts_with(statement_name(&statement))
    );
    statement
}

fn statement_name(statement: &Statement) -> &'static str {
    match statement {
        Statement::Explain(explain) => explain.statement.name(),
        other => other.name(),
    }
}

#[track_caller]
fn verified(source: &str) -> Statement {
    one_statement_parses_to(source, source)
}

#[test]
fn use_stats_and_show() {
    verified(r#"USE "models/atlas.vindex""#);
    verified("STATS");
    verified("SHOW LAYERS");
    verified("SHOW LAYERS RANGE 3-17");
    one_statement_parses_to("show layers 0-0", "SHOW LAYERS RANGE 0-0");
    one_statement_parses_to("SHOW LAYERS 7", "SHOW LAYERS RANGE 7-7");
    verified("SHOW FEATURES 12");
    verified(r#"SHOW FEATURES 0 WHERE token LIKE "%is" LIMIT 7"#);
    verified("SHOW RELATIONS");
    verified("SHOW RELATIONS WITH EXAMPLES");
    verified(r#"SHOW RELATION "capital""#);
    one_statement_parses_to("SHOW RELATION capital", r#"SHOW RELATION "capital""#);
    verified("SHOW MODELS");
}

#[test]
fn describe_takes_its_clauses_in_any_order() {
    verified(r#"DESCRIBE "France""#);
    verified(r#"DESCRIBE "France" RELATIONS ("capital", "language") LAYERS 2-5 TOP 3 VERBOSE"#);
    one_statement_parses_to(
        "describe 'France' verbose top 3 layers 2-5 relations (capital, 'language')",
        r#"DESCRIBE "France" RELATIONS ("capital", "language") LAYERS 2-5 TOP 3 VERBOSE"#,
    );
    one_statement_parses_to(
        r#"DESCRIBE "France" BRIEF AT LAYER 4 RELATIONS (capital)"#,
        r#"DESCRIBE "France" RELATION "capital" AT LAYER 4 BRIEF"#,
    );
    let Statement::Describe(node) = verified(r#"DESCRIBE "x" LAYERS 2-5 TOP 9"#) else {
        panic!()
    };
    let Some(LayerChoice::Range { range, .. }) = node.layers else {
        panic!("{node:?}")
    };
    assert_eq!(
        (range.first.value, range.last.value, node.top.unwrap().value),
        (2, 5, 9)
    );
}

#[test]
fn walk_and_infer() {
    verified(r#"WALK "The capital of France is""#);
    verified(r#"WALK "p" TOP 20 LAYERS ALL POSITION LAST"#);
    verified(r#"WALK "p" LAYERS 0-3 POSITION 2"#);
    one_statement_parses_to(r#"WALK "p" LAST TOP 1"#, r#"WALK "p" TOP 1 POSITION LAST"#);
    verified(r#"INFER "p""#);
    one_statement_parses_to(
        r#"INFER "p" GENERATE 16 TOP 2"#,
        r#"INFER "p" TOP 2 GENERATE 16"#,
    );
    let Statement::Walk(node) = verified(r#"WALK "p" POSITION 4294967295"#) else {
        panic!()
    };
    let Some(Position::At { index, .. }) = node.position else {
        panic!("{node:?}")
    };
    assert_eq!(index.value, u32::MAX);
}

#[test]
fn select() {
    verified("SELECT * FROM EDGES");
    verified("SELECT layer, feature FROM FEATURES LIMIT 0");
    one_statement_parses_to(
        "select Entity , target from edges nearest to 'Paris' at layer 3\r\n where layer>=2 and not score<1.5e0 \
         order by score desc, layer asc limit 10",
        "SELECT Entity, target FROM EDGES NEAREST TO \"Paris\" AT LAYER 3 WHERE layer >= 2 AND NOT score < 1.5 \
         ORDER BY score DESC, layer LIMIT 10",
    );
    let Statement::Select(node) = verified(r#"SELECT * FROM EDGES ORDER BY a DESC, b"#) else {
        panic!()
    };
    let directions: Vec<_> = node.order_by.iter().map(|key| key.direction).collect();
    assert_eq!(directions, [Direction::Descending, Direction::Ascending]);
}

#[test]
fn keywords_that_leave_no_doubt_name_columns() {
    verified(
        "SELECT layer, relation, top, all FROM EDGES WHERE type = 1 AND last IS NULL ORDER BY position",
    );
}

#[test]
fn explain_wraps_any_other_statement() {
    verified(r#"EXPLAIN DESCRIBE "France" TOP 2"#);
    verified("EXPLAIN STATS");
}

#[test]
fn relations_are_created_and_dropped() {
    verified(r#"CREATE RELATION "capital" TEMPLATES ("The capital of {e} is")"#);
    one_statement_parses_to(
        r#"create relation capital type "place" answers ("Paris", 'Rome') templates ("{e}:", "In {e},")"#,
        r#"CREATE RELATION "capital" TEMPLATES ("{e}:", "In {e},") ANSWERS ("Paris", "Rome") TYPE "place""#,
    );
    one_statement_parses_to("DROP RELATION capital", r#"DROP RELATION "capital""#);
}

fn filter(expr: &str, canonical: &str) -> Expr {
    let source = format!("SELECT * FROM EDGES WHERE {expr}");
    let canonical = format!("SELECT * FROM EDGES WHERE {canonical}");
    match one_statement_parses_to(&source, &canonical) {
        Statement::Select(select) => select.filter.unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_predicate() {
    for predicate in [
        "a = 1",
        "a != -1",
        "a < 1.5",
        "a <= -0.25",
        "a > 1e300",
        "a >= 9223372036854775807",
        "a = -9223372036854775808",
        "a = b",
        "\"x\" = a",
        "a = TRUE OR b = FALSE OR c = NULL",
        "a LIKE \"%x_\"",
        "a NOT LIKE \"\"",
        "a IN (1)",
        "a NOT IN (1, \"two\", 3.0, NULL, -4)",
        "a BETWEEN 1 AND 2 AND b = 3",
        "a NOT BETWEEN -1.5 AND \"z\"",
        "a IS NULL",
        "a IS NOT NULL",
        "NOT NOT a = 1",
    ] {
        filter(predicate, predicate);
    }
    filter("a=007", "a = 7");
    filter("a = 25e-1", "a = 2.5");
    filter("a = - 3", "a = -3");
}

#[test]
fn precedence_and_parentheses() {
    let Expr::Or { terms, .. } = filter("a = 1 OR b = 2 AND c = 3", "a = 1 OR b = 2 AND c = 3")
    else {
        panic!()
    };
    assert!(
        matches!(terms.as_slice(), [Expr::Compare { .. }, Expr::And { .. }]),
        "{terms:?}"
    );
    let Expr::And { terms, .. } = filter("(a=1 OR b=2) AND c=3", "(a = 1 OR b = 2) AND c = 3")
    else {
        panic!()
    };
    assert!(
        matches!(terms.as_slice(), [Expr::Or { .. }, Expr::Compare { .. }]),
        "{terms:?}"
    );
    let Expr::And { terms, .. } = filter("not a=1 and b=2", "NOT a = 1 AND b = 2") else {
        panic!()
    };
    assert!(
        matches!(terms.as_slice(), [Expr::Not { .. }, Expr::Compare { .. }]),
        "{terms:?}"
    );

    filter("((a = 1))", "a = 1");
    filter("(a = 1 AND b = 2) OR c = 3", "a = 1 AND b = 2 OR c = 3");
    filter("(a = 1 AND b = 2) AND c = 3", "(a = 1 AND b = 2) AND c = 3");
    filter("a = 1 OR (b = 2 OR c = 3)", "a = 1 OR (b = 2 OR c = 3)");
    filter("NOT (a = 1 OR b = 2)", "NOT (a = 1 OR b = 2)");
    filter("NOT (a LIKE 'x')", "NOT a LIKE \"x\"");
}

#[test]
fn literals_have_the_type_they_are_written_in() {
    let Expr::Compare {
        right: Operand::Literal(literal),
        ..
    } = filter("a = 1e3", "a = 1000.0")
    else {
        panic!()
    };
    assert_eq!(literal.value, LiteralValue::Float(1000.0));
    let Expr::Compare {
        right: Operand::Literal(literal),
        ..
    } = filter("a = -1000", "a = -1000")
    else {
        panic!()
    };
    assert_eq!(literal.value, LiteralValue::Integer(-1000));
}

#[test]
fn strings_hold_any_text() {
    one_statement_parses_to(r#"USE 'it\'s "x"'"#, r#"USE "it's \"x\"""#);
    one_statement_parses_to(r#"USE '\\\"\'\n\t\r\0'"#, r#"USE "\\\"'\n\t\r\0""#);
    one_statement_parses_to("USE 'a\r\nb -- c;'", r#"USE "a\r\nb -- c;""#);
    let Statement::Use(node) = verified("USE \"S\u{e3}o \u{6771}\u{4eac} \u{1f1eb}\"") else {
        panic!()
    };
    assert_eq!(node.path.value, "S\u{e3}o \u{6771}\u{4eac} \u{1f1eb}");
}

#[test]
fn several_statements_comments_and_blank_ones() {
    let names = |source: &str| -> Vec<&str> {
        let statements = parse(source).unwrap_or_else(|error| panic!("{}", error.render(source)));
        statements.iter().map(Statement::name).collect()
    };
    assert_eq!(names("STATS; SHOW MODELS"), ["STATS", "SHOW MODELS"]);
    assert_eq!(
        names("\u{feff};;STATS;;\r\n-- SHOW MODELS;\r\nSHOW LAYERS;; -- end"),
        ["STATS", "SHOW LAYERS"]
    );
    assert_eq!(names("SHOW -- all of them\n MODELS"), ["SHOW MODELS"]);
    for empty in ["", " \t\r\n", ";;", "-- only a comment", "\u{feff}"] {
        assert_eq!(names(empty), [""; 0], "{empty:?}");
    }
}
