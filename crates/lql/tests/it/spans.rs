//! Spans: equality ignores them, and they cover exactly the text of their node.

use larql_lql::ast::{Columns, Expr};
use larql_lql::{Span, Statement, parse};

fn text(source: &str, span: Span) -> &str {
    &source[span.start..span.end]
}

#[test]
fn equality_ignores_where_a_node_stands() {
    assert_eq!(parse("  STATS ;").unwrap(), parse("STATS").unwrap());
    assert_ne!(parse("STATS").unwrap(), parse("SHOW MODELS").unwrap());
}

#[test]
fn select_and_its_parts() {
    let source = "\u{feff} SELECT a , b FROM edges NEAREST TO 'x' AT LAYER 3 \
                  WHERE (a = 1 AND NOT b IN ( 2, -3 )) OR c IS NOT NULL ORDER BY a DESC LIMIT 5 ; STATS";
    let statements = parse(source).unwrap();
    assert_eq!(text(source, statements[1].span()), "STATS");
    assert!(text(source, statements[0].span()).starts_with("SELECT a"));
    assert!(text(source, statements[0].span()).ends_with("LIMIT 5"));
    let Statement::Select(select) = &statements[0] else {
        panic!()
    };
    let Columns::Named { names, .. } = &select.columns else {
        panic!()
    };
    assert_eq!(text(source, select.columns.span()), "a , b");
    assert_eq!(text(source, names[1].span), "b");
    assert_eq!(text(source, select.source.span), "edges");
    assert_eq!(
        text(source, select.nearest.as_ref().unwrap().span),
        "NEAREST TO 'x' AT LAYER 3"
    );
    assert_eq!(text(source, select.order_by[0].span), "a DESC");
    assert_eq!(text(source, select.limit.unwrap().span), "5");
    let Some(Expr::Or { terms, span }) = &select.filter else {
        panic!()
    };
    assert_eq!(
        text(source, *span),
        "(a = 1 AND NOT b IN ( 2, -3 )) OR c IS NOT NULL"
    );
    assert_eq!(text(source, terms[1].span()), "c IS NOT NULL");
    let Expr::And { terms, span } = &terms[0] else {
        panic!()
    };
    assert_eq!(text(source, *span), "a = 1 AND NOT b IN ( 2, -3 )");
    assert_eq!(text(source, terms[1].span()), "NOT b IN ( 2, -3 )");
    let Expr::Not { inner, .. } = &terms[1] else {
        panic!()
    };
    let Expr::In { items, .. } = &**inner else {
        panic!()
    };
    assert_eq!(text(source, items[1].span), "-3");
}

#[test]
fn describe_walk_and_create() {
    let source = "DESCRIBE 'x' LAYERS 1 - 2 RELATIONS (a, 'b') BRIEF; WALK 'p' POSITION LAST; \
                  CREATE RELATION r TEMPLATES ( '{e}' )";
    let statements = parse(source).unwrap();
    let Statement::Describe(describe) = &statements[0] else {
        panic!()
    };
    assert_eq!(text(source, describe.entity.span), "'x'");
    assert_eq!(
        text(source, describe.layers.unwrap().span()),
        "LAYERS 1 - 2"
    );
    assert_eq!(
        text(source, describe.relations.as_ref().unwrap().span),
        "RELATIONS (a, 'b')"
    );
    assert_eq!(
        text(source, describe.relations.as_ref().unwrap().names[1].span),
        "'b'"
    );
    assert_eq!(text(source, describe.detail.unwrap().span), "BRIEF");
    let Statement::Walk(walk) = &statements[1] else {
        panic!()
    };
    assert_eq!(text(source, walk.position.unwrap().span()), "POSITION LAST");
    let Statement::CreateRelation(create) = &statements[2] else {
        panic!()
    };
    assert_eq!(text(source, create.name.span), "r");
    assert_eq!(text(source, create.templates.span), "( '{e}' )");
}
