//! `--speculate` and `--draft` of run and chat: the same text, a report, and refusals by name.
//!
//! How much is drafted depends on the clock, so no number of the report is pinned.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{atlas, larql, model};

const PROMPT: &str = "The capital of France is Paris.\nThe capital of Italy is Rome.\nThe capital of France is Paris.\nThe capital of";

/// A copy of the embedded model with a changed file.
fn changed(file: &str, change: impl FnOnce(&Path)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    change(&dir.path().join(file));
    dir
}

/// The embedded model with two tokens exchanged.
fn exchanged() -> TempDir {
    changed("tokenizer.json", |path| {
        let text = fs::read_to_string(path).unwrap();
        let mut json: Value = serde_json::from_str(&text).unwrap();
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        for id in vocab.values_mut() {
            *id = match id.as_u64().unwrap() {
                300 => 301.into(),
                301 => 300.into(),
                id => id.into(),
            };
        }
        fs::write(path, json.to_string()).unwrap();
    })
}

fn run(extra: &[&str]) -> Value {
    let mut args = vec!["run", model(), PROMPT, "-n", "24", "--format", "json"];
    args.extend(extra);
    larql(args).json()
}

fn assert_report(report: &Value, source: &str) {
    assert_eq!(report["source"], source, "{report}");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert!(count("accepted") <= count("drafted"), "{report}");
    assert!(report["turned_off"].is_boolean(), "{report}");
    assert!(count("times_turned_off") <= count("passes"), "{report}");
    let share = count("accepted") as f64 / count("drafted") as f64;
    let expected = if count("drafted") == 0 {
        Value::Null
    } else {
        json!(share)
    };
    assert_eq!(report["acceptance"], expected, "{report}");
}

#[test]
fn the_text_is_the_same_with_drafts_and_the_report_says_what_became_of_them() {
    for sampling in [&["--temp", "0"][..], &["--temp", "1.5", "--seed", "7"]] {
        let plain = run(sampling);
        assert_eq!(plain["speculation"], Value::Null);
        for (option, value, source) in [
            ("--speculate", "lookup", "lookup"),
            ("--draft", model(), "draft"),
        ] {
            let made = run(&[sampling, &[option, value]].concat());
            assert_eq!(made["tokens"], plain["tokens"], "{option}");
            assert_eq!(made["text"], plain["text"], "{option}");
            assert_report(&made["speculation"], source);
        }
    }
}

#[test]
fn a_note_tells_what_became_of_the_drafts() {
    let told = |extra: &[&str]| {
        let mut args = vec!["run", model(), PROMPT, "-n", "12"];
        args.extend(extra);
        larql(args).run()
    };
    let (plain, with) = (told(&[]), told(&["--speculate", "lookup"]));
    assert_eq!(plain.stdout, with.stdout);
    assert!(!plain.stderr.contains("drafted"), "{}", plain.stderr);
    let line = with.stderr.lines().last().unwrap();
    assert!(line.starts_with("note: lookup: "), "{line}");
    assert!(
        line.contains(" drafted tokens accepted") && line.contains(" passes"),
        "{line}"
    );
}

#[test]
fn chat_answers_the_same_with_drafts() {
    let dir = changed("chat_template.jinja", |path| {
        fs::write(path, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    });
    let model = dir.path().to_str().unwrap();
    let lines =
        "The capital of France is\nThe capital of Italy is\n/clear\nThe capital of Spain is\n";
    let chat = |extra: &[&str]| {
        let mut args = vec!["chat", model, "-n", "6", "--format", "json", "--quiet"];
        args.extend(extra);
        let ran = larql(args).stdin(lines).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        let answers = ran.stdout.lines().map(serde_json::from_str);
        answers.collect::<Result<Vec<Value>, _>>().unwrap()
    };
    let plain = chat(&[]);
    assert_eq!(plain.len(), 3);
    for (option, value, source) in [
        ("--speculate", "lookup", "lookup"),
        ("--draft", model, "draft"),
    ] {
        let answers = chat(&[option, value]);
        for (with, plain) in answers.iter().zip(&plain) {
            assert_eq!(with["tokens"], plain["tokens"], "{option}");
            assert_eq!(plain["speculation"], Value::Null);
            assert_report(&with["speculation"], source);
        }
    }
}

#[test]
fn drafts_that_cannot_be_are_refused_by_name() {
    let other = exchanged();
    let other = other.path().to_str().unwrap();
    let refused = |extra: &[&str]| {
        let mut args = vec!["run", model(), PROMPT, "--format", "json", "--quiet"];
        args.extend(extra);
        let ran = larql(args).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        ran.error()
    };
    let error = refused(&["--draft", other]);
    assert_eq!(error["kind"], "unequal_tokenizers");
    let message = error["message"].as_str().unwrap();
    let expected = format!(
        "{other} cannot draft for {}: the tokenizers differ, token 300 is ",
        model()
    );
    assert!(message.starts_with(&expected), "{message}");
    assert!(error["hint"].is_string());
    let both = refused(&["--draft", other, "--speculate", "lookup"]);
    assert!(
        both["message"].as_str().unwrap().contains("--speculate"),
        "{both}"
    );
    let unknown = refused(&["--speculate", "magic"]);
    assert!(
        unknown["message"].as_str().unwrap().contains("magic"),
        "{unknown}"
    );
    let absent = refused(&["--draft", "no-such-model.gguf"]);
    assert_eq!(absent["kind"], "not_found", "{absent}");
}
