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
    run(
        &mut session,
        "CREATE RELATION made TEMPLATES (\"{e} is made of\")",
    )
    .unwrap();
    let text: String = STATEMENTS
        .iter()
        .map(|text| format!("{text}\n{}\n", plan(&session, text)))
        .collect();
    insta::assert_snapshot!(text, @r###"
USE "there"
1. open there [headers]
2. forget the model before [none]
STATS
1. list facts about the model [headers]
SHOW LAYERS 1-2
1. list layers 1-2 [headers]
SHOW MODELS
1. list the models in $MODELS [headers of each]
SHOW RELATIONS WITH EXAMPLES
1. list relations with examples [none]
SHOW RELATION capital
1. show relation capital [none]
CREATE RELATION built TEMPLATES ("{e} is built of")
1. keep relation built [a small write]
DROP RELATION made
1. forget relation made [a small write]
DESCRIBE "France" RELATIONS (capital, made) TOP 2 LAYERS 1-3
1. ask about "France": capital, made [5 prompts]
2. take the 2 best answers of each [none]
3. attribute them to features and heads of layers 1-3 [one pass over down and o]
4. show normal [none]
DESCRIBE "France" RELATION made TOP 1 BRIEF
1. ask about "France": made [1 prompt]
2. take the best answer of each [none]
3. show brief [none]
INFER "The capital of France is" GENERATE 8
1. run the prompt [1 forward pass of 6 tokens]
2. take the 5 likeliest next tokens [none]
3. continue with at most 8 tokens [7 forward passes of 5 tokens]
WALK "The capital of France is" POSITION 3 AT LAYER 2
1. run the prompt and observe position 3 of layer 2 [1 forward pass of 6 tokens]
2. take the 10 features of each layer that contribute most [one read of down per layer]
SHOW FEATURES 3
1. take the features of layer 3 [768 rows]
2. order by layer, feature [none]
3. cut to 20 rows [none]
4. compute tokens of the rows left [the unembedding once per batch]
5. show layer, feature, ffn, expert, neuron, gate_norm, up_norm, down_norm, token, token_score, tokens [none]
SELECT layer, feature FROM FEATURES WHERE layer != 2 AND gate_norm > 1.5 LIMIT 3
1. take the features of layers 0-1, layer 3 [2304 rows]
2. keep layer != 2 AND gate_norm > 1.5 [one read for gate_norm]
3. order by layer, feature [none]
4. cut to 3 rows [none]
5. show layer, feature [none]
SELECT * FROM FEATURES NEAREST TO "France" WHERE layer = 1 AND token LIKE "par%" ORDER BY token_score DESC
1. take the features of layer 1 [768 rows]
2. compare gate rows with token 1012 of "France" [one read of gate]
3. keep layer = 1 [none]
4. compute tokens of every row left [the unembedding once per batch]
5. keep token LIKE "par%" [none]
6. order by token_score DESC, layer, feature [none]
7. cut to 20 rows [none]
8. show layer, feature, ffn, expert, neuron, gate_norm, up_norm, down_norm, token, token_score, tokens, gate_dot, cosine [none]
SELECT target, prob FROM EDGES WHERE entity IN ("France", "Japan") AND relation LIKE "cap%" AND (rank <= 4 OR prob > 0.5) AND rank < 9 ORDER BY prob DESC
1. ask about "France", "Japan": capital [8 prompts]
2. take the 8 best answers of each [none]
3. keep entity IN ("France", "Japan") AND relation LIKE "cap%" AND (rank <= 4 OR prob > 0.5) AND rank < 9 [none]
4. order by prob DESC, entity, relation, rank as asked [none]
5. cut to 20 rows [none]
6. show target, prob [none]
SELECT feature FROM FEATURES WHERE NOT feature IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10) AND token IS NOT NULL AND up_norm NOT BETWEEN -1 AND 2.5
1. take the features of layers 0-3 [3072 rows]
2. keep NOT (feature IN (1, 2, 3, 4, 5, 6, 7, 8, and 2 more)) AND up_norm NOT BETWEEN -1 AND 2.5 [one read for up_norm]
3. compute tokens of every row left [the unembedding once per batch]
4. keep token IS NOT NULL [none]
5. order by layer, feature [none]
6. cut to 20 rows [none]
7. show feature [none]
EXPLAIN STATS
1. list facts about the model [headers]
"###);
}

const STATEMENTS: &[&str] = &[
    "USE \"there\"",
    "STATS",
    "SHOW LAYERS 1-2",
    "SHOW MODELS",
    "SHOW RELATIONS WITH EXAMPLES",
    "SHOW RELATION capital",
    "CREATE RELATION built TEMPLATES (\"{e} is built of\")",
    "DROP RELATION made",
    "DESCRIBE \"France\" RELATIONS (capital, made) TOP 2 LAYERS 1-3",
    "DESCRIBE \"France\" RELATION made TOP 1 BRIEF",
    "INFER \"The capital of France is\" GENERATE 8",
    "WALK \"The capital of France is\" POSITION 3 AT LAYER 2",
    "SHOW FEATURES 3",
    "SELECT layer, feature FROM FEATURES WHERE layer != 2 AND gate_norm > 1.5 LIMIT 3",
    "SELECT * FROM FEATURES NEAREST TO \"France\" WHERE layer = 1 AND token LIKE \"par%\" ORDER BY token_score DESC",
    "SELECT target, prob FROM EDGES WHERE entity IN (\"France\", \"Japan\") AND relation LIKE \"cap%\" \
     AND (rank <= 4 OR prob > 0.5) AND rank < 9 ORDER BY prob DESC",
    "SELECT feature FROM FEATURES WHERE NOT feature IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10) AND token IS NOT NULL \
     AND up_norm NOT BETWEEN -1 AND 2.5",
    "EXPLAIN STATS",
];
