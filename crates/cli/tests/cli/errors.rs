//! What cannot be done: exit codes, messages, hints, the JSON form.

use std::fs;

use crate::support::{larql, model, reference};

#[test]
fn errors_go_to_stderr_with_a_hint() {
    let ran = larql(["show", "no such model"]).run();
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit 1
    --- stdout
    --- stderr
    error: no such model: no such file or folder
    hint: MODEL is a local path, or org/repo or hf://org/repo on the Hugging Face Hub
    ");
    let ran = larql(["run", "s3://org/name", "x"]).run();
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit 1
    --- stdout
    --- stderr
    error: s3://org/name: no such file or folder
    hint: `s3:` addresses are not opened here; give the path of a local file or folder
    ");
    let ran = larql(["lql", "SELECT * FORM edges", "--vindex", model()]).run();
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit 1
    --- stdout
    --- stderr
    error: line 1, column 10: expected `FROM`, got `FORM`
      SELECT * FORM edges
               ^~~~
    hint: did you mean `FROM`?
    ");
    let ran = larql(["run", model(), "x", "--temp", "-1"]).run();
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit 1
    --- stdout
    --- stderr
    error: temperature is -1, expected a number from 0
    ");
}

#[test]
fn quiet_keeps_the_error_and_drops_the_hint() {
    let ran = larql(["run", "s3://org/name", "x", "--quiet"]).run();
    assert_eq!(ran.stderr, "error: s3://org/name: no such file or folder\n");
}

#[test]
fn every_error_has_a_stable_kind_in_json() {
    let empty = tempfile::tempdir().unwrap();
    let nothing = empty.path().to_str().unwrap();
    let file = empty.path().join("file.txt");
    fs::write(&file, "not a model").unwrap();
    let out = empty.path().join("x.vindex");
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let llama = reference("llama");
    let cases: &[(&str, &[&str])] = &[
        ("not_found", &["show", "nowhere"]),
        ("not_found", &["extract", "nowhere", "-o", out]),
        ("not_found", &["verify", "nowhere"]),
        ("not_a_vindex", &["verify", model()]),
        ("not_a_model", &["show", nothing]),
        ("not_a_model", &["show", file]),
        ("no_tokenizer", &["run", &llama, "x"]),
        ("usage", &["run", model()]),
        ("usage", &["bake", model()]),
        ("usage", &["run", model(), "x", "--temp", "warm"]),
        ("usage", &["logits", model(), "x", "--top", "0"]),
        ("sampling_option", &["run", model(), "x", "--top-p", "1.5"]),
        ("sampling_option", &["run", model(), "x", "--temp", "nan"]),
        ("sampling_option", &["run", model(), "x", "--top-k", "0"]),
        ("escape", &["run", model(), "\\q", "-e"]),
        ("threads", &["show", model(), "--threads", "4096"]),
        ("no_chat_template", &["chat", model()]),
        ("parse", &["lql", "SELECT", "--vindex", model()]),
        ("input", &["lql", "-f", "no such file"]),
        ("query", &["lql", "STATS"]),
    ];
    for (kind, args) in cases {
        let ran = larql(args.iter().chain(&["--format", "json"])).run();
        assert_eq!(
            (ran.code, ran.error()["kind"].as_str().unwrap()),
            (1, *kind),
            "{args:?}: {ran:?}"
        );
        assert!(
            ran.stdout.is_empty() || args[0] == "lql",
            "{args:?}: {ran:?}"
        );
        let message = ran.error()["message"].as_str().unwrap().to_owned();
        assert!(!message.is_empty() && !message.ends_with('.'), "{message}");
    }
    assert!(!std::path::Path::new(out).exists());
}

#[test]
fn a_number_out_of_range_is_told_its_range() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["run", model(), "x", "--seed", "-1"],
            "'-1' for '--seed <S>': expected a whole number from 0 to 18446744073709551615",
        ),
        (
            &["run", model(), "x", "-n", "-1"],
            "'-1' for '--max-tokens <N>': expected a whole number from 0",
        ),
        (
            &["logits", model(), "x", "--top", "-1"],
            "'-1' for '--top <K>': expected a whole number from 1",
        ),
        (
            &["bench", model(), "--tg", "0"],
            "'0' for '--tg <N>': expected a whole number from 1",
        ),
        (
            &["show", model(), "--threads", "-2"],
            "'-2' for '--threads <N>': expected a whole number from 0",
        ),
        (
            &["run", model(), "x", "--temp", "warm"],
            "'warm' for '--temp <T>': expected a number",
        ),
    ];
    for (args, message) in cases {
        let ran = larql(args.iter().chain(&["--format", "json"])).run();
        let error = ran.error();
        assert_eq!(
            (ran.code, error["message"].as_str()),
            (1, Some(&*format!("invalid value {message}"))),
            "{args:?}"
        );
    }
}

#[test]
fn an_option_for_the_model_is_answered_with_where_it_stands() {
    for args in [
        &["repl", "--vindex", model()][..],
        &["show", "--model", model()],
    ] {
        let tip = format!(
            "the model is named without `{}`, as the first argument",
            args[1]
        );
        let ran = larql(args).run();
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains(&format!("tip: {tip}\n")), "{ran:?}");
        let ran = larql(args.iter().chain(&["--format", "json"])).run();
        assert_eq!(ran.error()["hint"], *tip);
    }
}

#[test]
fn a_kind_of_files_given_as_format_is_answered_with_the_option_for_it() {
    let tip = "`larql export MODEL --to gguf -o OUT` writes such files; `--format` is the form of what is printed";
    let ran = larql(["export", model(), "--format", "gguf"]).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains(&format!("tip: {tip}\n")), "{ran:?}");
    let ran = larql(["show", model(), "--format", "yaml"]).run();
    assert!(!ran.stderr.contains("--to"), "{ran:?}");
}

#[test]
fn what_would_work_is_a_hint_and_no_repetition() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let error = larql(["show", path, "--format", "json"]).run().error();
    let (message, hint) = (
        error["message"].as_str().unwrap(),
        error["hint"].as_str().unwrap(),
    );
    assert!(
        message.contains("not a model") && hint.contains("config.json itself"),
        "{error}"
    );
    fs::copy(
        format!("{}/model.safetensors", reference("llama")),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    fs::write(
        dir.path().join("config.json"),
        "{\"model_type\": \"mamba\"}",
    )
    .unwrap();
    let error = larql(["show", path, "--format", "json"]).run().error();
    assert_eq!(error["kind"], "unknown_model_type");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .ends_with("unknown model type `mamba`"),
        "{error}"
    );
    let hint = error["hint"].as_str().unwrap();
    assert!(
        hint.starts_with("known: ") && hint.contains("llama"),
        "{error}"
    );
    let golden = format!("{}/golden.safetensors", reference("qwen2"));
    let args = [
        "parity",
        &reference("gemma"),
        "--golden",
        &golden,
        "--format",
        "json",
    ];
    let error = larql(args).run().error();
    assert!(
        error["hint"].as_str().unwrap().contains("one checkpoint"),
        "{error}"
    );
}

#[test]
fn verify_of_a_model_that_is_no_vindex_says_what_makes_one() {
    let ran = larql(["verify", model(), "--format", "json"]).run();
    let hint = ran.error()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("`larql extract SRC -o OUT`"), "{hint}");
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_by_number() {
    let long = "France ".repeat(600);
    let ran = larql(["run", model(), &long, "--format", "json"]).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str()),
        (1, Some("context_full")),
        "{ran:?}"
    );
    assert!(ran.error()["message"].as_str().unwrap().contains("512"));
}

#[test]
fn csv_is_refused_where_there_is_none() {
    let ran = larql(["show", model(), "--format", "csv"]).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(
        ran.stderr,
        "error: `--format csv` is for `lql` and `repl`\nhint: use `--format json`\n"
    );
}

#[test]
fn usage_errors_of_the_command_line_exit_with_1() {
    for args in [
        &["run"][..],
        &["--nothing"],
        &["extract", "x"],
        &["lql", "STATS", "-f", "x"],
        &[],
    ] {
        let ran = larql(args).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{args:?}");
        assert!(ran.stderr.contains("Usage:"), "{args:?}: {}", ran.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_configuration_that_is_a_pipe_is_not_called_missing() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    let made = std::process::Command::new("mkfifo").arg(&config).status();
    assert!(made.unwrap().success());
    fs::write(dir.path().join("model.safetensors"), b"").unwrap();
    let ran = larql(["show", dir.path().to_str().unwrap(), "--format", "json"]).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(
        ran.error()["message"],
        format!("{}: not a regular file", config.display())
    );
}

#[test]
fn a_wrong_arithmetic_of_the_environment_stops_only_what_computes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (made, small) = (path("made.vindex"), path("small.gguf"));
    fs::write(path("text"), "The capital of France is Paris.").unwrap();
    let (text, golden) = (path("text"), reference("llama") + "/golden.safetensors");
    let run = |args: &[&str]| larql(args).env("LARQL_CPU_ARITHMETIC", "int3").run();
    for args in [
        &["show", model()][..],
        &["tokenize", model(), "Paris"],
        &["extract", model(), "-o", &made],
        &["verify", &made],
        &["quantize", model(), "q8_0", "-o", &small],
        &["run", model(), "Paris", "-n", "1", "--profile", "exact"],
        &["markdown-help"],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    for args in [
        &["run", model(), "Paris"][..],
        &["chat", model()],
        &["logits", model(), "Paris"],
        &["lql", "SHOW MODELS"],
        &["repl"],
        &["demo"],
        &["bench", model()],
        &["score", model(), "--file", &text],
        &["parity", &reference("llama"), "--golden", &golden],
    ] {
        let ran = run(args);
        assert_eq!(
            (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
            (
                1,
                "",
                "error: LARQL_CPU_ARITHMETIC is `int3`, expected exact, fast or asym16\n"
            ),
            "{args:?}"
        );
    }
}
