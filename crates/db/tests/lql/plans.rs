//! Every kind of plan in words, and what binding costs.

use larql_db::Session;
use larql_lql::parse;

use super::script::{atlas_session, placed, run};

fn plan(session: &Session, text: &str) -> String {
    let statements = parse(text).unwrap();
    placed(
        &session
            .plan(&statements[0])
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .to_string(),
    )
}

#[test]
fn each_kind_of_plan_reads_as_it_runs() {
    let mut session = atlas_session();
    insta::assert_snapshot!(plan(&session, "USE \"there\""), @"");
    insta::assert_snapshot!(plan(&session, "STATS"), @"");
    insta::assert_snapshot!(plan(&session, "SHOW LAYERS 1-2"), @"");
    insta::assert_snapshot!(plan(&session, "SHOW MODELS"), @"");
    insta::assert_snapshot!(plan(&session, "SHOW RELATIONS WITH EXAMPLES"), @"");
    insta::assert_snapshot!(plan(&session, "SHOW RELATION capital"), @"");
    insta::assert_snapshot!(plan(&session, "CREATE RELATION made TEMPLATES (\"{e} is made of\")"), @"");
    run(
        &mut session,
        "CREATE RELATION made TEMPLATES (\"{e} is made of\")",
    )
    .unwrap();
    insta::assert_snapshot!(plan(&session, "DROP RELATION made"), @"");
    insta::assert_snapshot!(plan(&session, "DESCRIBE \"France\" RELATIONS (capital, made) TOP 2 LAYERS 1-3"), @"");
    insta::assert_snapshot!(plan(&session, "DESCRIBE \"France\" RELATION made BRIEF"), @"");
    insta::assert_snapshot!(plan(&session, "INFER \"The capital of France is\" GENERATE 8"), @"");
    insta::assert_snapshot!(plan(&session, "WALK \"The capital of France is\" POSITION 3 AT LAYER 2"), @"");
    insta::assert_snapshot!(plan(&session, "SELECT layer, feature FROM FEATURES WHERE layer != 2 AND gate_norm > 1.5 LIMIT 3"), @"");
    insta::assert_snapshot!(
        plan(&session, "SELECT * FROM FEATURES NEAREST TO \"France\" WHERE layer = 1 AND token LIKE \"%par%\" ORDER BY token_score DESC"),
        @""
    );
    insta::assert_snapshot!(plan(&session, "SHOW FEATURES 3"), @"");
    insta::assert_snapshot!(
        plan(&session, "SELECT target, prob FROM EDGES WHERE entity IN (\"France\", \"Japan\") AND relation LIKE \"cap%\" AND (rank <= 4 OR prob > 0.5) AND rank < 9 ORDER BY prob DESC"),
        @""
    );
    insta::assert_snapshot!(plan(&session, "EXPLAIN STATS"), @"");
}
