//! Streams, forms and texts: help, quiet, broken pipes, color, threads.

use crate::support::{larql, model};

#[test]
fn help_lists_the_commands() {
    let ran = larql(["-h"]).run();
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit 0
    --- stdout
    A transformer as a database: look inside a model, query it, run it on ordinary CPUs

    Usage: larql [OPTIONS] <COMMAND>

    Commands:
      demo      Guided tour on the model that comes with the program
      extract   Make a vindex of a checkpoint; accounts for every tensor, by name in JSON
      export    Write a model as a GGUF file or a Hugging Face folder
      quantize  Write a model as a GGUF file in smaller types
      pack      Keep the weights of a vindex beside them as they are computed with: starts read nothing
                ahead, and a model may be larger than memory
      show      What is inside a model; reads headers only
      verify    Whether a vindex is intact
      run       Continue a prompt
      chat      Chat with the model's own template
      lql       Execute LQL statements
      repl      Type LQL statements
      tokenize  Token ids of a text
      logits    Distribution of the next token
      parity    Compare with a reference run and name the first stage that differs
      bench     Prefill and decode speed beside what this machine can do at most
      score     Bits per token, byte and character of a text, beside another profile or model
      help      Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help (see more with '--help')
      -V, --version  Print version

    Global options:
          --format <FORMAT>  Form of the data on stdout and of errors on stderr; csv is for `lql` and
                             `repl` [default: table] [possible values: table, json, csv]
          --threads <N>      Threads that compute; 0 is what this process may use
          --quiet            Only data and errors: no progress, notes or hints
    --- stderr
    ");
}

#[test]
fn every_command_explains_itself() {
    let all = larql(["--help"]).run().stdout;
    let names = [
        "demo", "extract", "export", "quantize", "show", "verify", "run", "chat", "lql", "repl",
        "tokenize", "logits", "parity", "bench", "score",
    ];
    for name in names {
        assert!(
            all.contains(&format!("\n  {name} ")),
            "{name} is missing in {all}"
        );
        let ran = larql([name, "--help"]).run();
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{name}");
        for option in ["--format", "--threads", "--quiet"] {
            assert!(ran.stdout.contains(option), "{name}: {option}");
        }
    }
    assert!(!all.contains("markdown-help"));
}

#[test]
fn the_reference_page_is_the_committed_one() {
    let page = larql(["markdown-help"]).run();
    assert_eq!(page.code, 0);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let committed = std::fs::read_to_string(path).unwrap().replace("\r\n", "\n");
    assert_eq!(
        page.stdout, committed,
        "write it again: larql markdown-help > docs/cli.md"
    );
}

#[test]
fn a_reader_that_goes_is_no_error() {
    let prompt = "The capital of France is";
    let many = "a b ".repeat(20_000);
    for args in [
        vec!["tokenize", model(), &many],
        vec![
            "logits",
            model(),
            prompt,
            "--top",
            "2583",
            "--format",
            "json",
        ],
        vec!["run", model(), prompt, "-n", "400", "--temp", "9"],
        vec!["markdown-help"],
        vec!["--help"],
    ] {
        let (code, stderr) = larql(&args).run_with_impatient_reader(1);
        let errors = stderr
            .lines()
            .filter(|line| !line.starts_with("note: "))
            .count();
        assert_eq!((code, errors), (0, 0), "{} {stderr}", args[0]);
    }
}

#[test]
fn threads_are_checked_wherever_they_come_from() {
    let prompt = [
        "bench",
        model(),
        "--pp",
        "2",
        "--tg",
        "1",
        "--repeats",
        "1",
        "--format",
        "json",
    ];
    let by_variable = larql(prompt).env("LARQL_THREADS", "2").json();
    assert_eq!(by_variable["threads"], 2);
    let by_option = larql(prompt.iter().chain(&["--threads", "1"]))
        .env("LARQL_THREADS", "2")
        .json();
    assert_eq!(by_option["threads"], 1);
    let wrong = larql(["show", model()]).env("LARQL_THREADS", "two").run();
    assert_eq!(wrong.code, 1);
    assert_eq!(
        wrong.stderr,
        "error: LARQL_THREADS is `two`, expected a whole number from 0\n"
    );
    assert_eq!(larql(["show", model(), "--threads", "0"]).run().code, 0);
    assert_eq!(
        larql(["show", model(), "--threads", "100000"]).run().code,
        1
    );
}

#[test]
fn control_characters_of_a_model_do_not_reach_a_table() {
    let ran = larql(["tokenize", model(), "a\u{1b}[2J\nb", "--no-bos"]).run();
    assert_eq!(ran.code, 0);
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    let whole = larql([
        "tokenize",
        model(),
        "a\u{1b}[2J\nb",
        "--no-bos",
        "--format",
        "json",
    ])
    .json();
    assert!(whole["tokens"].is_array());
}

#[test]
fn the_format_may_stand_before_the_command() {
    let before = larql(["--format", "json", "tokenize", model(), "France"]).json();
    let after = larql(["tokenize", model(), "France", "--format=json"]).json();
    assert_eq!(before, after);
}

/// Presses Ctrl-C once text has come.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_after_what_was_made() {
    let prompt = "The capital of France is";
    let (code, stderr) = larql([
        "run",
        model(),
        prompt,
        "-n",
        "400",
        "--temp",
        "9",
        "--quiet",
    ])
    .run_and_press_ctrl_c();
    assert_eq!((code, stderr.as_str()), (130, "error: interrupted\n"));
}
