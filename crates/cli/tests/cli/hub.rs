//! Models of the hub as MODEL, against a server on this machine.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::server::{Fault, Host, Server};
use crate::support::{Larql, atlas, larql, reference};

/// A hub with the embedded model and a tiny one, and an empty cache.
fn hub() -> (Server, TempDir) {
    let server = Server::start();
    let read = |name: &str| fs::read(atlas().join(name)).unwrap();
    let (config, weights) = (read("config.json"), read("model.safetensors"));
    let (tokenizer, settings) = (read("tokenizer.json"), read("tokenizer_config.json"));
    server.publish(
        "larql/atlas",
        "main",
        &[
            ("config.json", &config),
            ("model.safetensors", &weights),
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", &settings),
        ],
    );
    (server, tempfile::tempdir().unwrap())
}

fn on_hub(server: &Server, home: &TempDir, args: &[&str]) -> Larql {
    larql(args)
        .env("HF_ENDPOINT", &server.url)
        .env("HF_HOME", home.path().to_str().unwrap())
}

#[test]
fn a_model_of_the_hub_runs_like_a_local_one() {
    let (server, home) = hub();
    let ask = |model: &str| {
        let args = ["logits", model, "The capital of France is", "--top", "2"];
        let mut answer =
            on_hub(&server, &home, &[&args[..], &["--format", "json"]].concat()).json();
        answer["top"].take()
    };
    let local = ask(atlas().to_str().unwrap());
    assert!(server.take_log().is_empty());
    assert_eq!(ask("hf://larql/atlas"), local);
    let fetched = server.take_log();
    assert!(fetched.iter().any(|seen| seen.host == Host::Storage));
    assert_eq!(ask("larql/atlas@main"), local);
    let again = server.take_log();
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(
        home.path()
            .join("hub/models--larql--atlas/refs/main")
            .is_file()
    );

    let offline = on_hub(&server, &home, &["tokenize", "larql/atlas", "France"])
        .env("HF_HUB_OFFLINE", "1")
        .run();
    assert_eq!(offline.code, 0, "{offline:?}");
    assert!(server.take_log().is_empty());
}

#[test]
fn a_folder_of_that_name_wins_over_the_hub() {
    let (server, home) = hub();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("larql").join("atlas");
    fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = Path::new(&reference("llama")).join(name);
        fs::copy(from, folder.join(name)).unwrap();
    }
    let args = ["show", "larql/atlas", "--format", "json"];
    let shown = on_hub(&server, &home, &args).dir(dir.path()).json();
    assert_eq!(shown["family"], "llama");
    assert!(server.take_log().is_empty());
}

#[test]
fn show_fetches_headers_and_no_weights() {
    let (server, home) = hub();
    let show = |model: &str| on_hub(&server, &home, &["show", model, "--format", "json"]).json();
    let mut local = show(atlas().to_str().unwrap());
    let mut shown = show("hf://larql/atlas");
    assert_eq!(shown["model"].take(), "hf://larql/atlas");
    local["model"].take();
    assert_eq!(shown, local);
    let served: usize = server.take_log().iter().map(|seen| seen.sent_bytes).sum();
    let weights = fs::metadata(atlas().join("model.safetensors"))
        .unwrap()
        .len();
    assert!(
        served < 40_000 && weights > 5_000_000,
        "{served} of {weights}"
    );
    assert!(!home.path().join("hub").exists());
}

#[test]
fn statements_use_models_of_the_hub() {
    let (server, home) = hub();
    let text = "USE \"hf://larql/atlas\"; STATS;";
    let ran = on_hub(&server, &home, &["lql", text]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let args = ["lql", "STATS", "--vindex", "larql/atlas"];
    let ran = on_hub(&server, &home, &args).run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn extract_takes_a_model_of_the_hub() {
    let (server, home) = hub();
    let out = home.path().join("atlas.vindex");
    let args = ["extract", "hf://larql/atlas", "-o", out.to_str().unwrap()];
    let ran = on_hub(&server, &home, &args).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = larql(["verify", out.to_str().unwrap()]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_token_opens_what_is_private() {
    let (server, home) = hub();
    server.protect("larql/atlas", "hf_secret");
    let args = ["tokenize", "hf://larql/atlas", "France", "--format", "json"];
    for token in ["", " \n"] {
        let ran = on_hub(&server, &home, &args).env("HF_TOKEN", token).run();
        assert_eq!(
            (ran.code, ran.error()["kind"].as_str().unwrap()),
            (1, "unauthorized")
        );
        assert!(ran.error()["hint"].as_str().unwrap().contains("HF_TOKEN"));
    }
    let log = server.take_log();
    assert!(
        log.iter().all(|seen| seen.authorization.is_none()),
        "{log:?}"
    );
    let ran = on_hub(&server, &home, &args)
        .env("HF_TOKEN", "hf_secret")
        .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    // A login of the Python client leaves the token in a file.
    fs::remove_dir_all(home.path().join("hub")).unwrap();
    fs::write(home.path().join("token"), "hf_secret\n").unwrap();
    assert_eq!(on_hub(&server, &home, &args).run().code, 0);
}

#[test]
fn errors_of_the_hub_have_kinds_hints_and_codes() {
    let (server, home) = hub();
    server.publish("larql/two", "main", &[("a.gguf", b"x"), ("b.gguf", b"x")]);
    server.publish("larql/evil", "main", &[("../evil.gguf", b"x")]);
    for (code, kind, model) in [
        (1, "repo_not_found", "hf://larql/nothing"),
        (1, "repo_not_found", "larql/nothing"),
        (1, "revision_not_found", "hf://larql/atlas@v9"),
        (1, "file_not_found", "hf://larql/two/c.gguf"),
        (1, "several_models", "hf://larql/two"),
        (1, "unsafe_name", "hf://larql/evil"),
        (1, "bad_reference", "hf://larql"),
        (1, "not_found", "larql/atlas.gguf"),
    ] {
        for command in [&["show", model][..], &["run", model, "x"]] {
            let args = [command, &["--format", "json"]].concat();
            let ran = on_hub(&server, &home, &args).run();
            let error = ran.error();
            let got = (ran.code, error["kind"].as_str().unwrap());
            assert_eq!(got, (code, kind), "{args:?}: {ran:?}");
            assert_eq!(
                error["hint"].is_string(),
                !matches!(kind, "file_not_found" | "unsafe_name"),
                "{ran:?}"
            );
        }
    }
    server.fail("model.safetensors", &[Fault::Flip]);
    let args = ["run", "larql/atlas", "x", "--format", "json"];
    let ran = on_hub(&server, &home, &args).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str().unwrap()),
        (2, "wrong_hash"),
        "{ran:?}"
    );
    let ran = larql(args)
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        .env("HF_HOME", home.path().to_str().unwrap())
        .run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str().unwrap()),
        (2, "unreachable"),
        "{ran:?}"
    );
}

#[test]
fn a_name_without_a_scheme_may_have_been_a_path() {
    let (server, home) = hub();
    let ran = on_hub(&server, &home, &["show", "models/gemma"]).run();
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr
            .contains("models/gemma: no such model on http://"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("hint: there is no local path `models/gemma` either; "),
        "{}",
        ran.stderr
    );
}
