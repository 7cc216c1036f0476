//! Commands around vindexes: extract, verify, show, and the demo.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{larql, model, reference, vindex};

const PROMPT: &str = "The capital of France is";

#[test]
fn extract_accounts_for_every_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("with space.vindex");
    let out = out.to_str().unwrap();
    let made = larql(["extract", model(), "-o", out, "--format", "json"]).json();
    let ignored = made["ignored"].as_array().unwrap().len() as u64;
    assert_eq!(
        made["source_tensors"].as_u64().unwrap(),
        made["used"].as_u64().unwrap() + ignored
    );
    assert_eq!(
        (&made["level"], &made["weights"]),
        (&json!("all"), &json!("written"))
    );
    assert!(made["bytes_written"].as_u64() > made["stored_types"]["BF16"].as_u64());
    let shown = larql(["show", out, "--format", "json"]).json();
    assert_eq!(shown["kind"], "vindex");
    assert_eq!(shown["vindex"]["digest"], made["digest"]);
    let again = larql(["extract", model(), "-o", out, "--format", "json"]).run();
    assert_eq!(
        (again.code, again.error()["kind"].as_str()),
        (1, Some("exists"))
    );
}

/// What went in has the types of the source, what is held those of the vindex.
#[test]
fn the_types_of_the_source_and_of_the_vindex_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let quantized = |out: &str, format: &str| {
        let args = ["extract", model(), "-o", out, "--quant", "q8_0"];
        larql(args.iter().chain(&["--format", format])).run()
    };
    let (first, second) = (out("first"), out("second"));
    let made: Value = serde_json::from_str(&quantized(&first, "json").stdout).unwrap();
    assert!(made["stored_types"]["BF16"].is_u64(), "{made}");
    assert!(made["stored_types"]["Q8_0"].is_null(), "{made}");
    let held = made["held_types"].as_object().unwrap();
    let shown = larql(["show", &first, "--format", "json"]).json();
    let shown = shown["stored_types"].as_object().unwrap();
    assert!(held.contains_key("Q8_0"), "{made}");
    assert!(held.keys().eq(shown.keys()), "{made}");
    for (name, bytes) in held {
        assert_eq!(*bytes, shown[name]["bytes"], "{name}");
    }
    let told = quantized(&second, "table").stdout;
    assert!(told.contains("used of the source, as BF16 "), "{told}");
    assert!(told.contains("held by the vindex, as Q8_0 "), "{told}");
    assert!(!told.contains("held by the vindex, as BF16 "), "{told}");
}

#[test]
fn a_vindex_gives_the_answers_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let logits =
        |model: &str| larql(["logits", model, PROMPT, "--format", "json"]).json()["top"].clone();
    assert_eq!(logits(&out), logits(model()));
    let ids = |model: &str| larql(["tokenize", model, PROMPT, "--format", "json"]).json();
    assert_eq!(ids(&out), ids(model()));
    let run = larql(["run", &out, PROMPT, "-n", "5", "--quiet"]).run();
    assert_eq!(run.stdout, " Paris.\n");
}

#[test]
fn a_gguf_source_is_linked() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let gguf = dir.path().join("atlas.gguf");
    fs::copy(Path::new(&out).join("weights.gguf"), &gguf).unwrap();
    let second = dir.path().join("second.vindex");
    let args = [
        "extract",
        gguf.to_str().unwrap(),
        "-o",
        second.to_str().unwrap(),
        "--format",
        "json",
    ];
    let made = larql(args).json();
    assert_eq!(made["weights"], "linked");
    assert!(made["bytes_written"].as_u64().unwrap() < 1 << 20, "{made}");
}

#[test]
fn a_level_says_what_a_statement_needs() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("browse.vindex");
    let out = out.to_str().unwrap();
    let made = larql([
        "extract",
        model(),
        "-o",
        out,
        "--level",
        "browse",
        "--format",
        "json",
    ])
    .json();
    assert_eq!(made["level"], "browse");
    let ran = larql(["run", out, PROMPT, "--format", "json"]).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str()),
        (1, Some("needs_level")),
        "{ran:?}"
    );
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("needs level inference, this vindex has browse"),
        "{message}"
    );
    let hint = ran.error()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("--level inference"), "{hint}");
    assert_eq!(larql(["verify", out, "--quiet"]).run().code, 0);
}

#[test]
fn features_are_filled_ahead_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("filled.vindex");
    let made = larql([
        "extract",
        model(),
        "-o",
        out.to_str().unwrap(),
        "--features",
        "--format",
        "json",
    ])
    .json();
    assert_eq!(made["features"], 3072);
    assert!(out.join("features.db").exists());
    let bare = vindex(&dir);
    assert!(!Path::new(&bare).join("features.db").exists());
    let ran = larql(["verify", out.to_str().unwrap()]).run();
    assert!(
        ran.code == 0 && ran.stdout.contains("features.db"),
        "{ran:?}"
    );
}

#[test]
fn verify_finds_one_flipped_bit() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let report = larql(["verify", &out, "--format", "json"]).json();
    assert_eq!(report["ok"], true);
    let table = larql(["verify", &out]).run();
    assert_eq!(table.stdout.lines().last(), Some("the vindex is intact"));
    assert!(
        report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["ok"] == true),
        "{report}"
    );
    let weights = Path::new(&out).join("weights.gguf");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 1000;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let ran = larql(["verify", &out, "--format", "json"]).run();
    assert_eq!(ran.code, 1);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["ok"], false);
    let failed: Vec<&Value> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .collect();
    assert_eq!(
        (failed.len(), &failed[0]["name"]),
        (1, &json!("weights.gguf"))
    );
    let table = larql(["verify", &out]).run();
    let last = table.stdout.lines().last().unwrap();
    assert!(
        table.code == 1 && last.starts_with("1 of ") && last.ends_with(" checks failed"),
        "{table:?}"
    );
}

#[test]
fn a_checkpoint_without_a_tokenizer_is_extracted_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("llama.vindex");
    let out = out.to_str().unwrap();
    let made = larql([
        "extract",
        &reference("llama"),
        "-o",
        out,
        "--format",
        "json",
    ])
    .json();
    assert!(made["notes"].to_string().contains("no tokenizer"), "{made}");
    let ran = larql(["run", out, "x", "--format", "json"]).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str()),
        (1, Some("no_tokenizer")),
        "{ran:?}"
    );
    let golden = format!("{}/golden.safetensors", reference("llama"));
    let parity = larql(["parity", out, "--golden", &golden, "--format", "json"]).json();
    assert_eq!(parity["first_divergence"], Value::Null);
}

#[test]
fn a_vindex_is_no_source() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let second = dir.path().join("second").to_str().unwrap().to_owned();
    let ran = larql(["extract", &out, "-o", &second, "--format", "json"]).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str()),
        (1, Some("already_a_vindex"))
    );
}

#[test]
fn the_demo_shows_real_answers_and_keeps_what_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept.vindex");
    let steps = larql(["demo", "--format", "json", "--keep", kept.to_str().unwrap()]).json();
    let steps = steps.as_array().unwrap();
    assert!(steps.len() >= 9);
    assert!(
        steps
            .iter()
            .all(|step| !step["rows"].as_array().unwrap().is_empty()),
        "{steps:?}"
    );
    let infer = steps.iter().find(|step| step["title"] == "Infer").unwrap();
    assert_eq!(infer["rows"][0][2], " Paris");
    for title in ["Extract", "Show", "Verify"] {
        let step = steps.iter().find(|step| step["title"] == title).unwrap();
        let command = step["command"].as_str().unwrap();
        assert!(command.ends_with(kept.to_str().unwrap()), "{command}");
    }
    assert_eq!(
        larql(["verify", kept.to_str().unwrap(), "--quiet"])
            .run()
            .code,
        0
    );
    let again = larql(["demo", "--keep", kept.to_str().unwrap()]).run();
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
}

#[test]
fn a_quiet_demo_is_the_tour_without_what_to_do_next() {
    let dir = tempfile::tempdir().unwrap();
    let tour = |name: &str, extra: &[&str]| {
        let kept = dir.path().join(name);
        let args = ["demo", "--keep", kept.to_str().unwrap()];
        let ran = larql(args.iter().chain(extra)).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    };
    let (told, quiet) = (tour("a.vindex", &[]), tour("b.vindex", &["--quiet"]));
    let next = "With a model of your own:";
    assert!(told.stderr.contains(next), "{}", told.stderr);
    assert!(told.stderr.contains("The vindex of this tour is "));
    assert_eq!(quiet.stderr, "");
    for tour in [&told.stdout, &quiet.stdout] {
        assert!(!tour.contains(next) && tour.contains("Paris"), "{tour}");
    }
    assert_eq!(told.stdout.lines().count(), quiet.stdout.lines().count());
}
