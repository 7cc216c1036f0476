//! Random trees: printed and read again they are equal.

use larql_lql::ast::*;
use larql_lql::{RESERVED, Span, Statement, parse};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

// Strategies are boxed: nested generic ones need more stack than a test thread has.

const SPAN: Span = Span::new(0, 0);

fn text() -> BoxedStrategy<Text> {
    let value = prop_oneof![any::<String>(), "[A-Za-z '\"\\\\\n\r\t\0;{}-]{0,12}"];
    value.prop_map(|value| Text { value, span: SPAN }).boxed()
}

fn ident() -> BoxedStrategy<Ident> {
    let name = prop_oneof![
        "[A-Za-z_][A-Za-z0-9_]{0,9}",
        Just("layer".to_owned()),
        Just("TOP".to_owned())
    ];
    name.prop_filter("reserved", |name| {
        !RESERVED.contains(&name.to_ascii_uppercase().as_str())
    })
    .prop_map(|name| Ident { name, span: SPAN })
    .boxed()
}

fn number() -> BoxedStrategy<Number> {
    prop_oneof![any::<u32>(), 0..40u32, Just(u32::MAX)]
        .prop_map(|value| Number { value, span: SPAN })
        .boxed()
}

fn range() -> BoxedStrategy<LayerRange> {
    (number(), number())
        .prop_map(|(a, b)| {
            let (first, last) = if a.value <= b.value { (a, b) } else { (b, a) };
            LayerRange {
                first,
                last,
                span: SPAN,
            }
        })
        .boxed()
}

fn literal() -> BoxedStrategy<Literal> {
    let value = prop_oneof![
        text().prop_map(|text| LiteralValue::Text(text.value)),
        any::<i64>().prop_map(LiteralValue::Integer),
        Just(LiteralValue::Integer(i64::MIN)),
        any::<f64>()
            .prop_filter("finite", |value| value.is_finite())
            .prop_map(LiteralValue::Float),
        (-100i32..100).prop_map(|value| LiteralValue::Float(f64::from(value))),
        any::<bool>().prop_map(LiteralValue::Boolean),
        Just(LiteralValue::Null),
    ];
    value
        .prop_map(|value| Literal { value, span: SPAN })
        .boxed()
}

fn operand() -> BoxedStrategy<Operand> {
    prop_oneof![
        ident().prop_map(Operand::Column),
        literal().prop_map(Operand::Literal)
    ]
    .boxed()
}

fn compare_op() -> BoxedStrategy<CompareOp> {
    use CompareOp::{Eq, Ge, Gt, Le, Lt, Ne};
    prop_oneof![Just(Eq), Just(Ne), Just(Lt), Just(Le), Just(Gt), Just(Ge)].boxed()
}

fn predicate() -> BoxedStrategy<Expr> {
    prop_oneof![
        (operand(), compare_op(), operand()).prop_map(|(left, op, right)| Expr::Compare {
            left,
            op,
            right,
            span: SPAN
        }),
        (ident(), any::<bool>(), text()).prop_map(|(column, negated, pattern)| Expr::Like {
            column,
            negated,
            pattern,
            span: SPAN
        }),
        (ident(), any::<bool>(), vec(literal(), 1..4)).prop_map(|(column, negated, items)| {
            Expr::In {
                column,
                negated,
                items,
                span: SPAN,
            }
        }),
        (ident(), any::<bool>(), literal(), literal()).prop_map(|(column, negated, low, high)| {
            Expr::Between {
                column,
                negated,
                low,
                high,
                span: SPAN,
            }
        }),
        (ident(), any::<bool>()).prop_map(|(column, negated)| Expr::IsNull {
            column,
            negated,
            span: SPAN
        }),
    ]
    .boxed()
}

fn expr() -> BoxedStrategy<Expr> {
    predicate()
        .prop_recursive(5, 24, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 2..4).prop_map(|terms| Expr::And { terms, span: SPAN }),
                vec(inner.clone(), 2..4).prop_map(|terms| Expr::Or { terms, span: SPAN }),
                inner.prop_map(|inner| Expr::Not {
                    inner: Box::new(inner),
                    span: SPAN
                }),
            ]
        })
        .boxed()
}

fn layers() -> BoxedStrategy<LayerChoice> {
    prop_oneof![
        number().prop_map(|layer| LayerChoice::One { layer, span: SPAN }),
        range().prop_map(|range| LayerChoice::Range { range, span: SPAN }),
        Just(LayerChoice::All { span: SPAN }),
    ]
    .boxed()
}

fn describe() -> BoxedStrategy<Statement> {
    let relations = vec(text(), 1..4).prop_map(|names| RelationList { names, span: SPAN });
    let level = prop_oneof![Just(DetailLevel::Brief), Just(DetailLevel::Verbose)];
    let detail = level.prop_map(|level| Detail { level, span: SPAN });
    let clauses = (
        option::of(relations),
        option::of(layers()),
        option::of(number()),
        option::of(detail),
    );
    (text(), clauses)
        .prop_map(|(entity, (relations, layers, top, detail))| {
            Statement::Describe(Describe {
                entity,
                relations,
                layers,
                top,
                detail,
                span: SPAN,
            })
        })
        .boxed()
}

fn walk() -> BoxedStrategy<Statement> {
    let position = prop_oneof![
        number().prop_map(|index| Position::At { index, span: SPAN }),
        Just(Position::Last { span: SPAN }),
    ];
    (
        text(),
        option::of(number()),
        option::of(layers()),
        option::of(position),
    )
        .prop_map(|(prompt, top, layers, position)| {
            Statement::Walk(Walk {
                prompt,
                top,
                layers,
                position,
                span: SPAN,
            })
        })
        .boxed()
}

fn select() -> BoxedStrategy<Statement> {
    let columns = prop_oneof![
        Just(Columns::All { span: SPAN }),
        vec(ident(), 1..4).prop_map(|names| Columns::Named { names, span: SPAN }),
    ];
    let kind = prop_oneof![Just(SourceKind::Edges), Just(SourceKind::Features)];
    let source = kind.prop_map(|kind| Source { kind, span: SPAN });
    let nearest = (text(), option::of(number())).prop_map(|(text, layer)| Nearest {
        text,
        layer,
        span: SPAN,
    });
    let direction = prop_oneof![Just(Direction::Ascending), Just(Direction::Descending)];
    let key = (ident(), direction).prop_map(|(column, direction)| OrderKey {
        column,
        direction,
        span: SPAN,
    });
    let clauses = (
        option::of(nearest),
        option::of(expr()),
        vec(key, 0..3),
        option::of(number()),
    );
    (columns, source, clauses)
        .prop_map(|(columns, source, (nearest, filter, order_by, limit))| {
            Statement::Select(Select {
                columns,
                source,
                nearest,
                filter,
                order_by,
                limit,
                span: SPAN,
            })
        })
        .boxed()
}

fn show() -> BoxedStrategy<Statement> {
    prop_oneof![
        option::of(range())
            .prop_map(|range| Statement::ShowLayers(ShowLayers { range, span: SPAN })),
        (number(), option::of(expr()), option::of(number())).prop_map(|(layer, filter, limit)| {
            Statement::ShowFeatures(ShowFeatures {
                layer,
                filter,
                limit,
                span: SPAN,
            })
        }),
        any::<bool>().prop_map(|with_examples| Statement::ShowRelations(ShowRelations {
            with_examples,
            span: SPAN
        })),
        text().prop_map(|name| Statement::ShowRelation(ShowRelation { name, span: SPAN })),
        Just(Statement::ShowModels(ShowModels { span: SPAN })),
    ]
    .boxed()
}

fn create() -> BoxedStrategy<Statement> {
    let list = || vec(text(), 1..4).prop_map(|items| TextList { items, span: SPAN });
    (text(), list(), option::of(list()), option::of(text()))
        .prop_map(|(name, templates, answers, answer_type)| {
            Statement::CreateRelation(CreateRelation {
                name,
                templates,
                answers,
                answer_type,
                span: SPAN,
            })
        })
        .boxed()
}

pub(crate) fn statement() -> BoxedStrategy<Statement> {
    let infer =
        (text(), option::of(number()), option::of(number())).prop_map(|(prompt, top, generate)| {
            Statement::Infer(Infer {
                prompt,
                top,
                generate,
                span: SPAN,
            })
        });
    let plain = prop_oneof![
        text().prop_map(|path| Statement::Use(Use { path, span: SPAN })),
        Just(Statement::Stats(Stats { span: SPAN })),
        show(),
        describe(),
        walk(),
        infer,
        select(),
        create(),
        text().prop_map(|name| Statement::DropRelation(DropRelation { name, span: SPAN })),
    ];
    (plain, any::<bool>())
        .prop_map(|(plain, explain)| {
            if explain {
                Statement::Explain(Explain {
                    statement: Box::new(plain),
                    span: SPAN,
                })
            } else {
                plain
            }
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn printed_trees_read_back_equal(statements in vec(statement(), 0..4)) {
        let printed: Vec<String> = statements.iter().map(Statement::to_string).collect();
        let text = printed.join(";\n");
        let read = parse(&text).map_err(|error| TestCaseError::fail(error.render(&text)))?;
        prop_assert_eq!(&read, &statements);
        for (statement, printed) in read.iter().zip(&printed) {
            let span = statement.span();
            prop_assert_eq!(&text[span.start..span.end], printed);
        }
    }
}
