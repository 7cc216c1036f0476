//! `larql pack`: the same answers, said where they come from, and nothing left where it fails.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{copy_of_model, larql, larql_in_shell, model, reference, vindex};

const PROMPT: &str = "The capital of France is";

fn names(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn run(path: &str) -> Value {
    larql(["run", path, PROMPT, "-n", "5", "--format", "json"]).json()
}

#[test]
fn a_packed_vindex_answers_as_before_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let before = run(&out);
    assert_eq!(before["tiles"], "memory");
    let made = larql(["pack", &out, "--format", "json"]).json();
    let pack = Path::new(&out).join("tiles.pack");
    assert_eq!(made["path"], pack.to_str().unwrap());
    assert_eq!(made["bytes"], pack.metadata().unwrap().len());
    assert_eq!(
        (&made["written"], &made["replaced"]),
        (&true.into(), &Value::Null)
    );
    // Four layers of four attention and three FFN matrices, and the embedding.
    assert_eq!(made["matrices"], 4 * 7 + 1);
    assert!(made["seconds"].as_f64().unwrap() > 0.0);

    let after = run(&out);
    assert_eq!(after["tiles"], "pack");
    assert_eq!(after["tokens"], before["tokens"]);
    let ran = larql(["run", &out, PROMPT, "-n", "2"]).run();
    assert!(
        ran.stderr.contains(", weights mapped from tiles.pack, "),
        "{ran:?}"
    );
    let bench = ["bench", &out, "--pp", "4", "--tg", "2", "--repeats", "1"];
    let measured = larql(bench.iter().chain(&["--format", "json"])).json();
    assert_eq!(measured["tiles"], "pack");
    let ran = larql(bench).run();
    assert!(
        ran.stderr.contains(", weights mapped from tiles.pack, "),
        "{ran:?}"
    );
    let shown = larql(["show", &out, "--format", "json"]).json();
    let pack_shown = &shown["vindex"]["pack"];
    assert_eq!(pack_shown["bytes"], made["bytes"]);
    assert_eq!(
        (&pack_shown["matrices"], &pack_shown["problem"]),
        (&made["matrices"], &Value::Null)
    );
    let ran = larql(["show", &out]).run();
    assert!(
        ran.stdout.contains("29 matrices as they are computed with"),
        "{ran:?}"
    );

    let again = larql(["pack", &out, "--format", "json"]).json();
    assert_eq!(
        (&again["written"], &again["bytes"]),
        (&false.into(), &made["bytes"])
    );
    let verified = larql(["verify", &out, "--format", "json"]).json();
    let checks = verified["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "tiles.pack");
    assert_eq!(check.unwrap()["ok"], true);

    fs::remove_file(pack).unwrap();
    assert_eq!(run(&out)["tiles"], "memory");
    let shown = larql(["show", &out, "--format", "json"]).json();
    assert_eq!(shown["vindex"]["pack"], Value::Null);
}

#[test]
fn a_pack_that_does_not_fit_stops_a_run_and_not_the_look_at_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    larql(["pack", &out, "--quiet"]).run();
    let pack = Path::new(&out).join("tiles.pack");
    let other = dir.path().join("other.vindex");
    let other = other.to_str().unwrap();
    let ran = larql(["extract", &reference("llama"), "-o", other, "--quiet"]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    fs::copy(&pack, Path::new(other).join("tiles.pack")).unwrap();

    let ran = larql(["bench", other, "--format", "json"]).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    let error = ran.error();
    assert_eq!(error["kind"], "pack_model");
    let text = error["message"].as_str().unwrap();
    assert!(
        text.contains("tiles.pack: tiles of the model with digest "),
        "{text}"
    );
    assert_eq!(
        error["hint"],
        format!("delete it, nothing is lost, or run `larql pack {other}` to make it again")
    );
    let shown = larql(["show", other, "--format", "json"]).json();
    let pack_shown = &shown["vindex"]["pack"];
    let problem = pack_shown["problem"].as_str().unwrap();
    assert!(text.ends_with(problem), "{problem}");
    assert_eq!(
        (&pack_shown["matrices"], &pack_shown["hint"]),
        (&Value::Null, &error["hint"])
    );
    let ran = larql(["verify", other, "--format", "json"]).run();
    assert!(ran.code == 1 && ran.stdout.contains(problem), "{ran:?}");
    let verified: Value = serde_json::from_str(&ran.stdout).unwrap();
    for check in verified["checks"].as_array().unwrap() {
        let hint = match check["name"] == "tiles.pack" {
            true => &error["hint"],
            false => &Value::Null,
        };
        assert_eq!(&check["hint"], hint, "{check}");
    }
    let hint = format!("hint: tiles.pack: {}\n", error["hint"].as_str().unwrap());
    for command in ["show", "verify"] {
        let ran = larql([command, other]).run();
        assert!(ran.stderr.ends_with(&hint), "{ran:?}");
        let quiet = larql([command, other, "--quiet"]).run();
        assert_eq!(quiet.stderr, "", "{quiet:?}");
    }

    let made = larql(["pack", other, "--format", "json"]).json();
    assert_eq!(
        (&made["written"], &made["replaced"]),
        (&true.into(), &problem.into())
    );
    assert_eq!(larql(["verify", other, "--quiet"]).run().code, 0);

    // Damage that only a whole look finds: `verify` names the matrix, and `pack` mends it.
    let mut bytes = fs::read(&pack).unwrap();
    bytes[4096] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let ran = larql(["verify", &out, "--quiet"]).run();
    assert!(
        ran.code == 1 && ran.stdout.contains("`token_embedding`: digest "),
        "{ran:?}"
    );
    let made = larql(["pack", &out, "--format", "json"]).json();
    let replaced = made["replaced"].as_str().unwrap();
    assert!(replaced.starts_with("`token_embedding`: digest "), "{made}");
    assert_eq!(larql(["verify", &out, "--quiet"]).run().code, 0);
}

#[test]
fn every_command_that_runs_says_where_the_weights_are() {
    let model = copy_of_model();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("v").to_str().unwrap().to_owned();
    let source = model.path().to_str().unwrap();
    assert_eq!(larql(["extract", source, "-o", &out]).run().code, 0);
    let commands: [(&[&str], &str); 3] = [
        (&["chat", &out, "-n", "2"], ""),
        (&["logits", &out, PROMPT], ", 6 prompt tokens"),
        (
            &["score", &out, "-f", "-", "--against", "fast"],
            ", bytes 0..",
        ),
    ];
    for place in ["memory", "pack"] {
        let mapped = match place {
            "pack" => ", weights mapped from tiles.pack",
            _ => "",
        };
        for (args, rest) in commands {
            let made = larql(args.iter().chain(&["--format", "json"]))
                .stdin(PROMPT)
                .json();
            assert_eq!(made["tiles"], place, "{made}");
            let ran = larql(args).stdin(PROMPT).run();
            let profile = made["profile"].as_str().unwrap();
            let note = format!("note: profile {profile}{mapped}{rest}");
            assert!(
                (ran.stderr.lines()).any(|line| line.starts_with(&note)),
                "{note}: {ran:?}"
            );
            if args[0] == "score" {
                assert_eq!(made["against"]["tiles"], place, "{made}");
                let note = format!(" with profile fast{mapped}\n");
                assert!(ran.stderr.contains(&note), "{note}: {ran:?}");
            }
        }
        larql(["pack", &out, "--quiet"]).run();
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_and_replaced_unless_it_is_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let pack = Path::new(&out).join("tiles.pack");
    let refused = |kind: &str, hint: &str, args: &[&str]| {
        let ran = larql(args.iter().chain(&["--format", "json"])).run();
        let error = ran.error();
        assert_eq!(
            (ran.code, ran.stdout.as_str(), &error["kind"]),
            (1, "", &kind.into())
        );
        let got = error["hint"].as_str().unwrap();
        assert!(got.starts_with(hint), "{got}");
    };
    fs::create_dir(&pack).unwrap();
    let hint = "move it away or delete it: ";
    refused("pack_folder", hint, &["run", &out, PROMPT]);
    refused("pack_folder", hint, &["pack", &out]);
    let shown = larql(["show", &out, "--format", "json"]).json();
    let shown = &shown["vindex"]["pack"];
    assert_eq!(
        (&shown["problem"], &shown["bytes"]),
        (&"a folder, expected a file".into(), &Value::Null)
    );
    assert_eq!(larql(["verify", &out]).run().code, 1);
    fs::remove_dir(&pack).unwrap();

    let target = dir.path().join("gone");
    std::os::unix::fs::symlink(&target, &pack).unwrap();
    let hint = "delete it, nothing is lost, or run ";
    refused("pack_broken_link", hint, &["run", &out, PROMPT]);
    let made = larql(["pack", &out, "--format", "json"]).json();
    assert_eq!(
        made["replaced"],
        "a symbolic link to a file that is not there"
    );
    assert!(pack.symlink_metadata().unwrap().is_file() && !target.exists());
    assert_eq!(run(&out)["tiles"], "pack");
}

#[test]
fn only_a_vindex_has_room_for_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let gguf = dir.path().join("a.gguf");
    fs::copy(Path::new(&out).join("weights.gguf"), &gguf).unwrap();
    for other in [gguf.to_str().unwrap(), model()] {
        let ran = larql(["pack", other, "--format", "json"]).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        let error = ran.error();
        assert_eq!(error["kind"], "not_a_vindex");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(other), "{message}");
        let hint = error["hint"].as_str().unwrap();
        let extract = format!("`larql extract {other} -o OUT`");
        assert!(hint.contains(&extract), "{hint}");
    }
    let ran = larql(["pack", "nowhere", "--format", "json"]).run();
    assert_eq!(
        (ran.code, ran.error()["kind"].as_str()),
        (1, Some("not_found"))
    );
    let ran = larql(["pack", &out, "--quiet"]).run();
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
}

/// A full disk, as the limit on the size of files plays it.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = vindex(&dir);
    let before = names(&out);
    let ran = larql_in_shell("ulimit -f 100", ["pack", &out, "--format", "json"]).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("tiles.pack: cannot write"), "{message}");
    assert_eq!(names(&out), before);
}
