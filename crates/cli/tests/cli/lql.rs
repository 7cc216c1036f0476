//! `lql` and `repl`: texts from everywhere, answers in every form, errors in their place.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Ran, larql, model};

fn lql(text: &str, extra: &[&str]) -> Ran {
    let mut args = vec!["lql", text, "--vindex", model()];
    args.extend(extra);
    larql(args).run()
}

fn answers(text: &str) -> Vec<Value> {
    let ran = lql(text, &["--format", "json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn several_statements_give_one_answer_each() {
    let all = answers(
        ";; STATS; -- a comment\n infer \"The capital of France is\" TOP 2 ;; SHOW LAYERS 1-2",
    );
    assert_eq!(all.len(), 3);
    assert_eq!(
        all[1]["statement"],
        "infer \"The capital of France is\" TOP 2"
    );
    assert_eq!(
        all[1]["columns"],
        json!(["rank", "id", "token", "logit", "prob"])
    );
    assert_eq!(all[1]["rows"][0][2], " Paris");
    assert_eq!(all[1]["rows"].as_array().unwrap().len(), 2);
    assert!(
        all[1]["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.as_str().unwrap().contains("profile exact"))
    );
    assert_eq!(all[2]["rows"].as_array().unwrap().len(), 2);
    assert_eq!(answers(" ; -- nothing"), Vec::<Value>::new());
}

#[test]
fn the_first_error_ends_the_run_and_earlier_answers_stay() {
    let text = "SHOW LAYERS 0-0; SELECT layr FROM FEATURES; STATS";
    let ran = lql(text, &["--format", "json"]);
    assert_eq!(ran.code, 1);
    let kept: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(ran.error()["kind"], "query");
    let table = lql(text, &["--quiet"]);
    assert_eq!(
        (table.code, table.stdout.lines().count()),
        (1, 3),
        "{table:?}"
    );
    assert!(
        table
            .stderr
            .starts_with("error: line 1, column 25: unknown column `layr`"),
        "{}",
        table.stderr
    );
    assert!(
        table.stderr.contains("\n                          ^~~~"),
        "{}",
        table.stderr
    );
}

#[test]
fn a_text_that_cannot_be_parsed_executes_nothing() {
    let ran = lql("SHOW LAYERS; SELECT * FORM FEATURES", &["--format", "json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(
        (&ran.error()["kind"], &ran.error()["hint"]),
        (&json!("parse"), &json!("did you mean `FROM`?"))
    );
}

#[test]
fn files_may_have_a_bom_and_carriage_returns_and_stdin_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        "\u{feff}SHOW LAYERS 0-0;\r\n-- comment\r\nINFER\r\n\"The capital of France is\" TOP 1\r\n";
    let path = dir.path().join("b o\u{e9}m.lql");
    fs::write(&path, text).unwrap();
    let from_file = larql([
        "lql",
        "-f",
        path.to_str().unwrap(),
        "--model",
        model(),
        "--format",
        "json",
    ])
    .json();
    assert_eq!(from_file.as_array().unwrap().len(), 2);
    assert_eq!(from_file[1]["rows"][0][2], " Paris");
    let rest = ["--vindex", model(), "--format", "json"];
    for source in [&["lql", "-"][..], &["lql", "-f", "-"], &["lql"]] {
        let args = source.iter().chain(&rest);
        assert_eq!(larql(args).stdin(text).json(), from_file, "{source:?}");
    }
}

#[test]
fn a_file_that_is_no_text_is_refused_by_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("binary.lql");
    fs::write(&path, b"STATS;\xff").unwrap();
    let ran = larql(["lql", "-f", path.to_str().unwrap()]).run();
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("not UTF-8 at byte 6"), "{}", ran.stderr);
}

#[test]
fn a_use_does_what_the_option_does() {
    let by_use = larql([
        "lql",
        &format!("USE \"{}\"; SHOW LAYERS", model()),
        "--format",
        "json",
    ])
    .json();
    assert_eq!(by_use[1]["rows"], answers("SHOW LAYERS")[0]["rows"]);
}

#[test]
fn csv_has_a_header_and_whole_values() {
    let ran = lql(
        "INFER \"The capital of France is\" TOP 1; SHOW LAYERS 0-0",
        &["--format", "csv"],
    );
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((lines[0], lines[2]), ("rank,id,token,logit,prob", ""));
    assert!(
        lines[1].starts_with("1,1803, Paris,") && lines[3].starts_with("layer,"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.lines().all(|line| line.starts_with("note: ")),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_profile_is_told_and_acts() {
    let with = |profile| {
        let ran = lql(
            "INFER \"The capital of France is\" TOP 3",
            &["--format", "json", "--profile", profile],
        );
        let value: Value = serde_json::from_str(&ran.stdout).unwrap();
        (value[0]["notes"].to_string(), value[0]["rows"].clone())
    };
    let ((exact, exact_rows), (fast, _)) = (with("exact"), with("fast"));
    assert!(
        exact.contains("profile exact") && fast.contains("profile fast"),
        "{exact} {fast}"
    );
    assert_eq!(with("exact").1, exact_rows, "a run repeats bit for bit");
}

#[test]
fn repl_reads_statements_over_lines_and_goes_on_after_errors() {
    let text = "INFER \"The capital\n of France is\" TOP 1;\nSTATS nonsense;\n\\format csv\nSHOW\nLAYERS 0-0;\n\\q\nSTATS;\n";
    let ran = larql(["repl", model(), "--quiet"]).stdin(text).run();
    assert_eq!(ran.code, 1, "one of them failed: {ran:?}");
    assert!(ran.stdout.starts_with("rank"), "{}", ran.stdout);
    assert!(ran.stdout.contains("\nlayer,"), "{}", ran.stdout);
    assert!(
        !ran.stdout.contains("d_model,"),
        "nothing runs after \\q: {}",
        ran.stdout
    );
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
}

#[test]
fn repl_has_help_timing_and_says_what_it_does_not_have() {
    let ran = larql(["repl"])
        .stdin("\\help\n\\help walk\n\\help bake\n\\timing\n\\nothing\n\\format xml\nexit\n")
        .run();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    for text in [
        "WALK \"prompt\"",
        "no statement begins with `bake`",
        "timing is on",
        "unknown command `\\nothing`",
        "unknown format `xml`",
    ] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    let timed = larql(["repl", model()])
        .stdin("\\timing\nSHOW LAYERS;\n")
        .run();
    assert!(
        timed.code == 0 && timed.stderr.contains("\ntime: "),
        "{timed:?}"
    );
    let json = larql(["repl", model(), "--format", "json"])
        .stdin("SHOW LAYERS;\nSHOW LAYERS 1-1")
        .run();
    let values: Vec<Value> = serde_json::Deserializer::from_str(&json.stdout)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(values.len(), 2);
}

#[test]
fn show_models_lists_the_folder_of_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mine")).unwrap();
    for entry in fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(
            entry.path(),
            dir.path().join("mine").join(entry.file_name()),
        )
        .unwrap();
    }
    let listed = larql(["lql", "SHOW MODELS", "--format", "json"])
        .env("LARQL_MODELS", dir.path().to_str().unwrap())
        .json();
    assert!(listed[0]["rows"].to_string().contains("mine"), "{listed}");
    let other = tempfile::tempdir().unwrap();
    let empty = larql(["lql", "SHOW MODELS", "--format", "json"])
        .env("LARQL_MODELS", other.path().to_str().unwrap())
        .json();
    assert_eq!(empty[0]["rows"], json!([]));
}

#[test]
fn a_note_that_holds_for_several_statements_is_told_once() {
    let text = "SHOW FEATURES 1 LIMIT 1; SHOW FEATURES 2 LIMIT 1; INFER \"The\"; INFER \"The\"";
    let ran = lql(text, &[]);
    let about_tokens = "note: tokens are what the down column writes";
    assert_eq!(
        ran.stderr.matches(about_tokens).count(),
        1,
        "{}",
        ran.stderr
    );
    assert_eq!(
        ran.stderr
            .matches("note: profile exact; 2 prompt tokens")
            .count(),
        1
    );
    // For programs every answer has its own.
    for answer in answers(text) {
        assert_eq!(answer["notes"].as_array().unwrap().len(), 1, "{answer}");
    }
    // What is typed later asks anew.
    let typed = larql(["repl", model()])
        .stdin("SHOW FEATURES 1 LIMIT 1;\nSHOW FEATURES 2 LIMIT 1;\n")
        .run();
    assert_eq!(
        typed.stderr.matches(about_tokens).count(),
        2,
        "{}",
        typed.stderr
    );
}

#[test]
fn every_statement_answers_with_valid_json() {
    let statements = [
        "STATS",
        "SHOW LAYERS",
        "SHOW FEATURES 1 LIMIT 2",
        "SHOW RELATIONS",
        "SHOW RELATION capital",
        "DESCRIBE \"France\" RELATION capital",
        "WALK \"The capital of France is\" TOP 2",
        "INFER \"The capital of France is\" GENERATE 2",
        "SELECT layer, feature FROM FEATURES NEAREST TO \"Paris\" AT LAYER 2 LIMIT 2",
        "SELECT target FROM EDGES WHERE entity = \"France\" AND relation = \"capital\" LIMIT 1",
        "EXPLAIN WALK \"x\"",
    ];
    let all = answers(&statements.join(";\n"));
    assert_eq!(all.len(), statements.len());
    for (answer, statement) in all.iter().zip(statements) {
        assert_eq!(answer["statement"], statement);
        let n_columns = answer["columns"].as_array().unwrap().len();
        let rows = answer["rows"].as_array().unwrap();
        assert!(
            !rows.is_empty()
                && rows
                    .iter()
                    .all(|row| row.as_array().unwrap().len() == n_columns),
            "{answer}"
        );
        assert!(answer["notes"].is_array());
    }
}
