//! Every clause of every statement changes some rows.
//!
//! How: each line of the table has a statement with a clause and the same statement without it (or with another value of
//! it); both run on Atlas and must answer differently. [`clauses_of`] takes every node of the tree apart without `..`, so a
//! clause added to the language does not compile until it has a name here, and a name without a line fails the test.

use std::collections::BTreeSet;

use larql_lql::ast::*;
use larql_lql::parse;

use super::script::{atlas_session, lines, run};

const WALK: &str = "WALK \"The capital of France is\"";
const EDGES: &str = "SELECT * FROM EDGES WHERE entity = \"France\" AND relation = \"capital\"";

/// Clause, a statement with it, the same without it or with another value.
const TABLE: &[(&str, &str, &str)] = &[
    ("SHOW LAYERS range", "SHOW LAYERS 1-2", "SHOW LAYERS"),
    ("SHOW FEATURES layer", "SHOW FEATURES 1", "SHOW FEATURES 2"),
    (
        "SHOW FEATURES WHERE",
        "SHOW FEATURES 1 WHERE feature > 700",
        "SHOW FEATURES 1",
    ),
    (
        "SHOW FEATURES LIMIT",
        "SHOW FEATURES 1 LIMIT 3",
        "SHOW FEATURES 1",
    ),
    (
        "SHOW RELATIONS WITH EXAMPLES",
        "SHOW RELATIONS WITH EXAMPLES",
        "SHOW RELATIONS",
    ),
    (
        "SHOW RELATION name",
        "SHOW RELATION capital",
        "SHOW RELATION language",
    ),
    (
        "DESCRIBE entity",
        "DESCRIBE \"France\" RELATION capital BRIEF",
        "DESCRIBE \"Japan\" RELATION capital BRIEF",
    ),
    (
        "DESCRIBE RELATIONS",
        "DESCRIBE \"France\" RELATIONS (capital, language) BRIEF",
        "DESCRIBE \"France\" RELATION capital BRIEF",
    ),
    (
        "DESCRIBE layers",
        "DESCRIBE \"France\" RELATION capital AT LAYER 0",
        "DESCRIBE \"France\" RELATION capital",
    ),
    (
        "DESCRIBE TOP",
        "DESCRIBE \"France\" RELATION capital TOP 1 BRIEF",
        "DESCRIBE \"France\" RELATION capital BRIEF",
    ),
    (
        "DESCRIBE BRIEF",
        "DESCRIBE \"France\" RELATION capital BRIEF",
        "DESCRIBE \"France\" RELATION capital",
    ),
    (
        "DESCRIBE VERBOSE",
        "DESCRIBE \"France\" RELATION capital VERBOSE",
        "DESCRIBE \"France\" RELATION capital",
    ),
    (
        "WALK prompt",
        "WALK \"The capital of France is\"",
        "WALK \"The capital of Japan is\"",
    ),
    ("WALK TOP", "WALK \"The capital of France is\" TOP 2", WALK),
    (
        "WALK layers",
        "WALK \"The capital of France is\" LAYERS 1-2",
        WALK,
    ),
    (
        "WALK POSITION",
        "WALK \"The capital of France is\" POSITION 3",
        WALK,
    ),
    (
        "INFER prompt",
        "INFER \"The capital of France is\"",
        "INFER \"The capital of Japan is\"",
    ),
    (
        "INFER TOP",
        "INFER \"The capital of France is\" TOP 2",
        "INFER \"The capital of France is\"",
    ),
    (
        "INFER GENERATE",
        "INFER \"The capital of France is\" GENERATE 4",
        "INFER \"The capital of France is\"",
    ),
    (
        "SELECT columns",
        "SELECT layer, feature FROM FEATURES",
        "SELECT * FROM FEATURES",
    ),
    (
        "FROM",
        "SELECT * FROM EDGES WHERE entity = \"France\" AND relation = \"capital\"",
        "SELECT * FROM FEATURES",
    ),
    (
        "NEAREST TO text",
        "SELECT layer, feature FROM FEATURES NEAREST TO \"France\"",
        "SELECT layer, feature FROM FEATURES",
    ),
    (
        "NEAREST TO layer",
        "SELECT layer, feature FROM FEATURES NEAREST TO \"France\" AT LAYER 2",
        "SELECT layer, feature FROM FEATURES NEAREST TO \"France\"",
    ),
    (
        "SELECT WHERE",
        "SELECT * FROM FEATURES WHERE layer = 2",
        "SELECT * FROM FEATURES",
    ),
    (
        "SELECT ORDER BY",
        "SELECT layer, feature FROM FEATURES ORDER BY gate_norm",
        "SELECT layer, feature FROM FEATURES",
    ),
    (
        "ORDER BY DESC",
        "SELECT layer, feature FROM FEATURES ORDER BY gate_norm DESC",
        "SELECT layer, feature FROM FEATURES ORDER BY gate_norm ASC",
    ),
    (
        "SELECT LIMIT",
        "SELECT * FROM FEATURES LIMIT 3",
        "SELECT * FROM FEATURES",
    ),
    ("EXPLAIN", "EXPLAIN SHOW LAYERS", "SHOW LAYERS"),
    (
        "CREATE RELATION name",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\"); SHOW RELATIONS",
        "CREATE RELATION built TEMPLATES (\"{e} is made of\"); SHOW RELATIONS",
    ),
    (
        "CREATE RELATION TEMPLATES",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\", \"{e} consists of\"); SHOW RELATION made",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\"); SHOW RELATION made",
    ),
    (
        "CREATE RELATION ANSWERS",
        "CREATE RELATION head TEMPLATES (\"The capital of {e} is\") ANSWERS (\"Rome\", \"Oslo\"); \
         DESCRIBE \"France\" RELATION head BRIEF",
        "CREATE RELATION head TEMPLATES (\"The capital of {e} is\"); DESCRIBE \"France\" RELATION head BRIEF",
    ),
    (
        "CREATE RELATION TYPE",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\") TYPE \"material\"; SHOW RELATION made",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\"); SHOW RELATION made",
    ),
    (
        "DROP RELATION name",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\"); DROP RELATION made; SHOW RELATIONS",
        "CREATE RELATION made TEMPLATES (\"{e} is made of\"); SHOW RELATIONS",
    ),
    (
        "WHERE AND",
        "SELECT * FROM FEATURES WHERE layer = 2 AND feature > 9",
        "SELECT * FROM FEATURES WHERE layer = 2",
    ),
    (
        "WHERE OR",
        "SELECT * FROM FEATURES WHERE feature = 2 OR feature > 760",
        "SELECT * FROM FEATURES WHERE feature = 2",
    ),
    (
        "WHERE NOT",
        "SELECT * FROM FEATURES WHERE NOT layer = 0",
        "SELECT * FROM FEATURES WHERE layer = 0",
    ),
    (
        "WHERE =",
        "SELECT * FROM FEATURES WHERE feature = 5",
        "SELECT * FROM FEATURES WHERE feature = 6",
    ),
    (
        "WHERE !=",
        "SELECT * FROM FEATURES WHERE feature != 0",
        "SELECT * FROM FEATURES",
    ),
    (
        "WHERE <",
        "SELECT * FROM FEATURES WHERE feature < 3",
        "SELECT * FROM FEATURES WHERE feature <= 3",
    ),
    (
        "WHERE <=",
        "SELECT * FROM FEATURES WHERE feature <= 3",
        "SELECT * FROM FEATURES WHERE feature < 3",
    ),
    (
        "WHERE >",
        "SELECT * FROM FEATURES WHERE feature > 3",
        "SELECT * FROM FEATURES WHERE feature >= 3",
    ),
    (
        "WHERE >=",
        "SELECT * FROM FEATURES WHERE feature >= 3",
        "SELECT * FROM FEATURES WHERE feature > 3",
    ),
    (
        "WHERE LIKE",
        "SELECT * FROM FEATURES WHERE layer = 1 AND token LIKE \"P%\"",
        "SELECT * FROM FEATURES WHERE layer = 1 AND token NOT LIKE \"P%\"",
    ),
    (
        "WHERE IN",
        "SELECT * FROM FEATURES WHERE feature IN (3, 5)",
        "SELECT * FROM FEATURES WHERE feature NOT IN (3, 5)",
    ),
    (
        "WHERE BETWEEN",
        "SELECT * FROM FEATURES WHERE feature BETWEEN 3 AND 5",
        "SELECT * FROM FEATURES WHERE feature NOT BETWEEN 3 AND 5",
    ),
    (
        "WHERE IS NULL",
        "SELECT * FROM FEATURES WHERE gate_norm IS NULL",
        "SELECT * FROM FEATURES WHERE gate_norm IS NOT NULL",
    ),
    (
        "EDGES rank",
        "SELECT * FROM EDGES WHERE entity = \"France\" AND relation = \"capital\" AND rank = 1",
        EDGES,
    ),
];

/// Clauses whose effect other tests show: `USE` replaces the model, `STATS` has none of its own.
const ELSEWHERE: &[&str] = &["USE path", "EDGES rank"];

#[test]
fn every_clause_has_a_case_and_changes_rows() {
    let mut covered = BTreeSet::new();
    for (clause, with, without) in TABLE {
        let found: BTreeSet<&str> = parse(with).unwrap().iter().flat_map(clauses_of).collect();
        assert!(
            found.contains(clause) || ELSEWHERE.contains(clause),
            "`{with}` has no {clause}, it has {found:?}"
        );
        covered.insert(*clause);
        let answer = |text: &str| {
            let mut session = atlas_session();
            let rows = run(&mut session, text).unwrap_or_else(|error| panic!("{text}: {error}"));
            lines(&rows)
                .into_iter()
                .filter(|line| !line.starts_with("--"))
                .collect::<Vec<_>>()
        };
        assert_ne!(answer(with), answer(without), "{clause}");
    }
    for clause in ALL.iter().filter(|clause| !ELSEWHERE.contains(clause)) {
        assert!(covered.contains(clause), "{clause} has no case");
    }
    let seen: BTreeSet<&str> = TABLE
        .iter()
        .flat_map(|(_, with, _)| parse(with).unwrap())
        .flat_map(|s| clauses_of(&s))
        .collect();
    for clause in &seen {
        assert!(ALL.contains(clause), "{clause} is not listed");
    }
}

/// Every clause kind that [`clauses_of`] can name.
const ALL: &[&str] = &[
    "USE path",
    "SHOW LAYERS range",
    "SHOW FEATURES layer",
    "SHOW FEATURES WHERE",
    "SHOW FEATURES LIMIT",
    "SHOW RELATIONS WITH EXAMPLES",
    "SHOW RELATION name",
    "DESCRIBE entity",
    "DESCRIBE RELATIONS",
    "DESCRIBE layers",
    "DESCRIBE TOP",
    "DESCRIBE BRIEF",
    "DESCRIBE VERBOSE",
    "WALK prompt",
    "WALK TOP",
    "WALK layers",
    "WALK POSITION",
    "INFER prompt",
    "INFER TOP",
    "INFER GENERATE",
    "SELECT columns",
    "FROM",
    "NEAREST TO text",
    "NEAREST TO layer",
    "SELECT WHERE",
    "SELECT ORDER BY",
    "ORDER BY DESC",
    "SELECT LIMIT",
    "EXPLAIN",
    "CREATE RELATION name",
    "CREATE RELATION TEMPLATES",
    "CREATE RELATION ANSWERS",
    "CREATE RELATION TYPE",
    "DROP RELATION name",
    "WHERE AND",
    "WHERE OR",
    "WHERE NOT",
    "WHERE =",
    "WHERE !=",
    "WHERE <",
    "WHERE <=",
    "WHERE >",
    "WHERE >=",
    "WHERE LIKE",
    "WHERE IN",
    "WHERE BETWEEN",
    "WHERE IS NULL",
];

fn present<T>(clause: &Option<T>, name: &'static str) -> Vec<&'static str> {
    if clause.is_some() { vec![name] } else { vec![] }
}

/// The clauses that a statement has.
fn clauses_of(statement: &Statement) -> Vec<&'static str> {
    match statement {
        Statement::Use(Use { path: _, span: _ }) => vec!["USE path"],
        Statement::Stats(Stats { span: _ }) | Statement::ShowModels(ShowModels { span: _ }) => {
            vec![]
        }
        Statement::ShowLayers(ShowLayers { range, span: _ }) => present(range, "SHOW LAYERS range"),
        Statement::ShowFeatures(ShowFeatures {
            layer: _,
            filter,
            limit,
            span: _,
        }) => [
            vec!["SHOW FEATURES layer"],
            present(filter, "SHOW FEATURES WHERE"),
            filter.as_ref().map(of_expr).unwrap_or_default(),
            present(limit, "SHOW FEATURES LIMIT"),
        ]
        .concat(),
        Statement::ShowRelations(ShowRelations {
            with_examples,
            span: _,
        }) => {
            if *with_examples {
                vec!["SHOW RELATIONS WITH EXAMPLES"]
            } else {
                vec![]
            }
        }
        Statement::ShowRelation(ShowRelation { name: _, span: _ }) => vec!["SHOW RELATION name"],
        Statement::Describe(Describe {
            entity: _,
            relations,
            layers,
            top,
            detail,
            span: _,
        }) => [
            vec!["DESCRIBE entity"],
            present(relations, "DESCRIBE RELATIONS"),
            present(layers, "DESCRIBE layers"),
            present(top, "DESCRIBE TOP"),
            match detail.as_ref().map(|Detail { level, span: _ }| level) {
                None => vec![],
                Some(DetailLevel::Brief) => vec!["DESCRIBE BRIEF"],
                Some(DetailLevel::Verbose) => vec!["DESCRIBE VERBOSE"],
            },
        ]
        .concat(),
        Statement::Walk(Walk {
            prompt: _,
            top,
            layers,
            position,
            span: _,
        }) => [
            vec!["WALK prompt"],
            present(top, "WALK TOP"),
            present(layers, "WALK layers"),
            present(position, "WALK POSITION"),
        ]
        .concat(),
        Statement::Infer(Infer {
            prompt: _,
            top,
            generate,
            span: _,
        }) => [
            vec!["INFER prompt"],
            present(top, "INFER TOP"),
            present(generate, "INFER GENERATE"),
        ]
        .concat(),
        Statement::Select(node) => of_select(node),
        Statement::Explain(Explain {
            statement: _,
            span: _,
        }) => vec!["EXPLAIN"],
        Statement::CreateRelation(CreateRelation {
            name: _,
            templates: _,
            answers,
            answer_type,
            span: _,
        }) => [
            vec!["CREATE RELATION name", "CREATE RELATION TEMPLATES"],
            present(answers, "CREATE RELATION ANSWERS"),
            present(answer_type, "CREATE RELATION TYPE"),
        ]
        .concat(),
        Statement::DropRelation(DropRelation { name: _, span: _ }) => vec!["DROP RELATION name"],
    }
}

fn of_select(
    Select {
        columns,
        source,
        nearest,
        filter,
        order_by,
        limit,
        span: _,
    }: &Select,
) -> Vec<&'static str> {
    let Source {
        kind: SourceKind::Edges | SourceKind::Features,
        span: _,
    } = source;
    let mut clauses = vec!["FROM"];
    match columns {
        Columns::All { span: _ } => {}
        Columns::Named { names: _, span: _ } => clauses.push("SELECT columns"),
    }
    if let Some(Nearest {
        text: _,
        layer,
        span: _,
    }) = nearest
    {
        clauses.push("NEAREST TO text");
        clauses.extend(present(layer, "NEAREST TO layer"));
    }
    clauses.extend(present(filter, "SELECT WHERE"));
    clauses.extend(filter.as_ref().map(of_expr).unwrap_or_default());
    for OrderKey {
        column: _,
        direction,
        span: _,
    } in order_by
    {
        clauses.push("SELECT ORDER BY");
        match direction {
            Direction::Ascending => {}
            Direction::Descending => clauses.push("ORDER BY DESC"),
        }
    }
    clauses.extend(present(limit, "SELECT LIMIT"));
    clauses
}

fn of_expr(expr: &Expr) -> Vec<&'static str> {
    let several =
        |name, terms: &[Expr]| [vec![name], terms.iter().flat_map(of_expr).collect()].concat();
    match expr {
        Expr::And { terms, span: _ } => several("WHERE AND", terms),
        Expr::Or { terms, span: _ } => several("WHERE OR", terms),
        Expr::Not { inner, span: _ } => several("WHERE NOT", std::slice::from_ref(inner)),
        Expr::Compare {
            left: _,
            op,
            right: _,
            span: _,
        } => vec![match op {
            CompareOp::Eq => "WHERE =",
            CompareOp::Ne => "WHERE !=",
            CompareOp::Lt => "WHERE <",
            CompareOp::Le => "WHERE <=",
            CompareOp::Gt => "WHERE >",
            CompareOp::Ge => "WHERE >=",
        }],
        Expr::Like {
            column: _,
            negated: _,
            pattern: _,
            span: _,
        } => vec!["WHERE LIKE"],
        Expr::In {
            column: _,
            negated: _,
            items: _,
            span: _,
        } => vec!["WHERE IN"],
        Expr::Between {
            column: _,
            negated: _,
            low: _,
            high: _,
            span: _,
        } => vec!["WHERE BETWEEN"],
        Expr::IsNull {
            column: _,
            negated: _,
            span: _,
        } => vec!["WHERE IS NULL"],
    }
}
