//! `larql score`: what scripts read, what each option changes, what is refused.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{larql, model, reference};

/// A character of three bytes is at 28; facts of the model, and one that is none.
const TEXT: &str = "The capital of France costs \u{20ac} 1. The capital of France is Paris.\n";

struct Files {
    dir: TempDir,
    text: String,
    empty: String,
    binary: String,
}

fn files() -> Files {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    Files {
        text: file("text", TEXT.as_bytes()),
        empty: file("empty", b""),
        binary: file("binary", b"The \xffcapital"),
        dir,
    }
}

/// The model in a type on which `fast` differs from `exact`.
fn quantized(files: &Files, to: &str) -> String {
    let small = files
        .dir
        .path()
        .join(format!("{to}.gguf"))
        .to_str()
        .unwrap()
        .to_owned();
    let made = larql(["quantize", model(), to, "-o", &small, "--quiet"]).run();
    assert_eq!(made.code, 0, "{made:?}");
    small
}

fn args<'a>(model: &'a str, text: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&["score", model, "--file", text], extra].concat()
}

fn scored(model: &str, text: &str, extra: &[&str]) -> Value {
    larql(args(model, text, &[extra, &["--format", "json"]].concat())).json()
}

#[test]
fn scripts_read_digest_counts_and_bits() {
    let files = files();
    let report = scored(model(), &files.text, &[]);
    // By `sha256sum`, and by counting.
    assert_eq!(
        report["file_sha256"],
        "02f99112b239134432644e45f5221ad77e40bd640c62a2cf7964df316e5af5d7"
    );
    assert_eq!(
        (&report["bytes"], &report["characters"]),
        (&json!(TEXT.len()), &json!(TEXT.chars().count()))
    );
    let ids = larql(["tokenize", model(), TEXT, "--no-bos", "--format", "json"]).json();
    assert_eq!(report["tokens"], ids["ids"].as_array().unwrap().len());
    let number = |field: &str| report[field].as_f64().unwrap();
    for (rate, count) in [
        ("bits_per_token", "tokens"),
        ("bits_per_byte", "bytes"),
        ("bits_per_char", "characters"),
    ] {
        let bits = number(rate) * number(count);
        assert!((bits - number("bits")).abs() < 1e-9 * bits, "{rate}");
    }
    assert_eq!(
        (&report["profile"], &report["window"], &report["against"]),
        (&json!("exact"), &json!(511), &Value::Null)
    );
    let piped = larql(["score", model(), "-f", "-", "--format", "json"])
        .stdin(TEXT)
        .json();
    assert_eq!(piped, report);
}

#[test]
fn every_option_changes_something() {
    let files = files();
    let whole = scored(model(), &files.text, &[]);
    let bits = |extra: &[&str]| {
        scored(model(), &files.text, extra)["bits"]
            .as_f64()
            .unwrap()
    };
    let of_whole = whole["bits"].as_f64().unwrap();
    let small = quantized(&files, "q4_0");
    assert_ne!(
        scored(&small, &files.text, &["--profile", "fast"])["bits"],
        scored(&small, &files.text, &["--profile", "exact"])["bits"]
    );
    let short = bits(&["--window", "7"]);
    assert!(short > of_whole, "a window of 7 has less to go by");
    let first = scored(model(), &files.text, &["--window", "7", "--windows", "2"]);
    assert_eq!(
        (&first["windows"], &first["tokens"]),
        (&json!(2), &json!(14))
    );
    assert!(first["bits"].as_f64().unwrap() < short);
    let part = scored(model(), &files.text, &["--bytes", "31..67"]);
    assert_eq!(
        (&part["byte_range"], &part["bytes"]),
        (&json!([31, 67]), &json!(36))
    );
    assert_eq!(part["file_sha256"], whole["file_sha256"]);
    assert_eq!(
        scored(model(), &files.text, &["--threads", "1"]),
        scored(model(), &files.text, &["--threads", "3"])
    );
}

#[test]
fn against_a_profile_or_a_model() {
    let files = files();
    let small = quantized(&files, "q4_0");
    let fast = scored(
        &small,
        &files.text,
        &["--profile", "fast", "--against", "exact"],
    );
    let against = &fast["against"];
    assert_eq!(
        (&against["profile"], &against["kl_direction"]),
        (&json!("exact"), &json!("KL(against || run)"))
    );
    let exact = scored(&small, &files.text, &[]);
    assert_eq!(against["bits_per_token"], exact["bits_per_token"]);
    let kl = |field: &str| against[field].as_f64().unwrap();
    assert!(
        0.0 < kl("kl_p50") && kl("kl_p50") < kl("kl_p99"),
        "{against}"
    );
    assert!(
        kl("kl_mean") < kl("kl_p99") && kl("kl_p99") <= kl("kl_max"),
        "{against}"
    );
    let n = fast["tokens"].as_f64().unwrap();
    let flips = against["flips"].as_f64().unwrap();
    assert!((kl("top1_agreement") - (1.0 - flips / n)).abs() < 1e-12);

    let itself = scored(model(), &files.text, &["--against", model()]);
    assert_eq!(
        (&itself["against"]["kl_max"], &itself["against"]["flips"]),
        (&json!(0.0), &json!(0))
    );
    let lossy = scored(&small, &files.text, &["--against", model()]);
    assert_eq!(lossy["model"], "q4_0.gguf");
    assert_eq!(lossy["against"]["model"], itself["model"]);
    assert_eq!(lossy["bits_per_token"], exact["bits_per_token"]);
    assert_eq!(lossy["against"]["bits_per_token"], itself["bits_per_token"]);
    assert!(lossy["against"]["kl_mean"].as_f64().unwrap() > kl("kl_mean"));
}

#[test]
fn a_table_names_each_measure_and_the_notes_say_of_what() {
    let files = files();
    let ran = larql(args(
        model(),
        &files.text,
        &["--profile", "fast", "--against", "exact"],
    ))
    .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let measures: Vec<&str> = ran
        .stdout
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        measures,
        [
            "bits_per_token",
            "bits_per_byte",
            "bits_per_char",
            "tokens",
            "bytes",
            "characters",
            "against_bits_per_token",
            "kl_mean",
            "kl_p50",
            "kl_p99",
            "kl_max",
            "top1_agreement",
            "flips"
        ]
    );
    for note in [
        "note: profile fast, bytes 0..67 of the text with sha256 ",
        "note: 1 window of at most 511 tokens, 1 token before each, ",
        "note: kl is KL(against || run) in nats; against is atlas with profile exact",
    ] {
        assert!(ran.stderr.contains(note), "{note}: {}", ran.stderr);
    }
    let quiet = larql(args(model(), &files.text, &["--quiet"])).run();
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

#[test]
fn what_cannot_be_scored_is_refused_with_a_kind() {
    let files = files();
    let narrow = reference("gemma3");
    let text = files.text.as_str();
    let cases: &[(&str, &str, &[&str], &str)] = &[
        (
            "inside_character",
            text,
            &["--bytes", "0..29"],
            "byte 29 is inside a character",
        ),
        (
            "inside_character",
            text,
            &["--bytes", "30..67"],
            "byte 30 is inside a character",
        ),
        (
            "byte_range",
            text,
            &["--bytes", "5..5"],
            "bytes 5..5 are not in it",
        ),
        (
            "byte_range",
            text,
            &["--bytes", "0..68"],
            "an end of at most 67",
        ),
        (
            "usage",
            text,
            &["--bytes", "5"],
            "expected two whole numbers, as in 0..4096",
        ),
        (
            "usage",
            text,
            &["--windows", "0"],
            "expected a whole number from 1",
        ),
        (
            "window_length",
            text,
            &["--window", "1"],
            "a window of 1 token, expected 2 to 511",
        ),
        (
            "window_length",
            text,
            &["--window", "512"],
            "takes 512 positions, 1 of them",
        ),
        (
            "empty_text",
            &files.empty,
            &[],
            "is empty, there is nothing to score",
        ),
        ("not_utf8", &files.binary, &[], "not UTF-8 at byte 4"),
        ("read", "no such file", &[], "no such file: cannot be read"),
        (
            "same_run",
            text,
            &["--against", "exact"],
            "the run is compared with itself",
        ),
        (
            "vocabulary_size",
            text,
            &["--against", &narrow],
            "different vocabularies",
        ),
        (
            "not_found",
            text,
            &["--against", "nowhere"],
            "nowhere: no such file or folder",
        ),
    ];
    for (kind, file, extra, message) in cases {
        let ran = larql(args(
            model(),
            file,
            &[extra, &["--format", "json"][..]].concat(),
        ))
        .run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{kind}: {ran:?}");
        let error = ran.error();
        assert_eq!(error["kind"], *kind, "{error}");
        assert!(
            error["message"].as_str().unwrap().contains(message),
            "{error}"
        );
    }
    let hinted = [
        (["--window", "0"], "`--window 2` is the shortest that works"),
        (["--window", "1"], "`--window 2` is the shortest that works"),
        (
            ["--window", "512"],
            "`--window 511` is the longest that fits",
        ),
        (
            ["--against", "Exact"],
            "the profile is written `--against exact`",
        ),
        (
            ["--against", "ASYM16"],
            "the profile is written `--against asym16`",
        ),
    ];
    for (extra, hint) in hinted {
        let ran = larql(args(model(), text, &extra)).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        let line = format!("hint: {hint}\n");
        assert!(ran.stderr.ends_with(&line), "{hint}: {}", ran.stderr);
    }
    let csv = larql(args(model(), text, &["--format", "csv"])).run();
    assert_eq!((csv.code, csv.stdout.as_str()), (1, ""));
}

#[test]
fn the_arithmetic_comes_from_the_option_or_the_environment() {
    let files = files();
    let small = quantized(&files, "q8_0");
    let with = |extra: &[&str], variable: Option<&str>| {
        let command = args(
            &small,
            &files.text,
            &[extra, &["--format", "json"]].concat(),
        );
        let mut command = larql(command);
        if let Some(variable) = variable {
            command = command.env("LARQL_CPU_ARITHMETIC", variable);
        }
        let report = command.json();
        (report["profile"].clone(), report["bits"].clone())
    };
    let [exact, fast, asym16] =
        ["exact", "fast", "asym16"].map(|profile| with(&["--profile", profile], None));
    assert_eq!(asym16.0, "asym16");
    assert!(asym16.1 != fast.1 && asym16.1 != exact.1, "{asym16:?}");
    assert_eq!(with(&[], None), exact);
    assert_eq!(with(&[], Some(" asym16")), asym16);
    assert_eq!(with(&["--profile", "fast"], Some("asym16")), fast);
    assert_eq!(with(&["--profile", "fast"], Some("int3")), fast);
    let wrong = larql(args(&small, &files.text, &[]))
        .env("LARQL_CPU_ARITHMETIC", "int3")
        .run();
    assert_eq!(
        (wrong.code, wrong.stderr.as_str()),
        (
            1,
            "error: LARQL_CPU_ARITHMETIC is `int3`, expected exact, fast or asym16\n"
        )
    );
}

#[test]
fn a_path_in_the_case_of_no_profile_is_a_model_where_it_exists() {
    let files = files();
    let to = files.dir.path().join("Exact");
    let made = larql(["extract", model(), "-o", to.to_str().unwrap(), "--quiet"]).run();
    assert_eq!(made.code, 0, "{made:?}");
    let extra = ["--against", "Exact", "--format", "json"];
    let report = larql(args(model(), &files.text, &extra))
        .dir(files.dir.path())
        .json();
    assert_eq!(report["against"]["kl_max"], json!(0.0));
}
