//! Whole models: which files come, where they lie, and when nothing is asked again.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use larql_hub::{HubError, ModelRef};

use crate::server::{Host, tag};
use crate::{Setup, names, noise, setup};

const INDEX: &[u8] =
    br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;

/// A sharded checkpoint with files that are not part of it; the weights are returned.
fn publish(setup: &Setup, repo: &str) -> (String, Vec<u8>, Vec<u8>) {
    let (one, two) = (noise(1, 70_001), noise(2, 300_007));
    let commit = setup.server.publish(
        repo,
        "main",
        &[
            ("README.md", b"text"),
            ("config.json", b"{}"),
            ("consolidated.safetensors", &noise(3, 20_000)),
            ("model-00001-of-00002.safetensors", &one),
            ("model-00002-of-00002.safetensors", &two),
            ("model.safetensors.index.json", INDEX),
            ("tokenizer.json", b"{\"t\":1}"),
            ("tokenizer.model", b"proto"),
        ],
    );
    (commit, one, two)
}

#[test]
fn a_model_lies_in_the_cache_as_other_clients_expect_it() {
    let setup = setup();
    let (commit, one, two) = publish(&setup, "org/name");
    let folder = setup.fetch("hf://org/name").unwrap();
    let repo = setup.repo("org/name");
    assert_eq!(folder, repo.join("snapshots").join(&commit));
    assert_eq!(
        names(&folder),
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    let second = folder.join("model-00002-of-00002.safetensors");
    assert_eq!(fs::read(&second).unwrap(), two);
    assert_eq!(
        fs::read(folder.join("model-00001-of-00002.safetensors")).unwrap(),
        one
    );
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"{}");
    let main = fs::read_to_string(repo.join("refs/main")).unwrap();
    assert_eq!(main, commit);
    let mut blobs = [
        tag(b"{}"),
        tag(b"{\"t\":1}"),
        tag(INDEX),
        tag(&one),
        tag(&two),
    ];
    blobs.sort();
    assert_eq!(names(&repo.join("blobs")), blobs);
    #[cfg(unix)]
    assert_eq!(
        fs::read_link(&second).unwrap(),
        Path::new("../../blobs").join(tag(&two))
    );
}

#[test]
fn a_second_run_downloads_nothing_and_offline_asks_nothing() {
    let mut setup = setup();
    publish(&setup, "org/name");
    let folder = setup.fetch("org/name").unwrap();
    setup.server.take_log();
    assert_eq!(setup.fetch("org/name").unwrap(), folder);
    let log = setup.server.take_log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(log[0].path, "/api/models/org/name/revision/main");

    setup.config.offline = true;
    assert_eq!(setup.fetch("org/name").unwrap(), folder);
    assert_eq!(setup.headers("org/name").unwrap(), folder);
    assert_eq!(setup.server.take_log(), []);

    let shard = folder.join("model-00002-of-00002.safetensors");
    fs::remove_file(shard).unwrap();
    let error = setup.fetch("org/name").unwrap_err();
    let HubError::NotCached { missing, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(missing, "`model-00002-of-00002.safetensors`");
    for unknown in ["org/other", "org/name@v2"] {
        let error = setup.fetch(unknown).unwrap_err();
        assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    }
    assert_eq!(setup.server.take_log(), []);
}

#[test]
fn a_cache_that_has_everything_is_not_written() {
    let setup = setup();
    publish(&setup, "org/name");
    let folder = setup.fetch("org/name").unwrap();
    let repo = setup.repo("org/name");
    let before: Vec<_> = ["refs", "blobs", "snapshots"]
        .iter()
        .map(|part| fs::metadata(repo.join(part)).unwrap().modified().unwrap())
        .collect();
    assert_eq!(setup.fetch("org/name").unwrap(), folder);
    let after: Vec<_> = ["refs", "blobs", "snapshots"]
        .iter()
        .map(|part| fs::metadata(repo.join(part)).unwrap().modified().unwrap())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn a_missing_file_alone_is_fetched() {
    let setup = setup();
    let (_, one, _) = publish(&setup, "org/name");
    let folder = setup.fetch("org/name").unwrap();
    let repo = setup.repo("org/name");
    fs::remove_file(repo.join("blobs").join(tag(&one))).unwrap();
    setup.server.take_log();
    setup.fetch("org/name").unwrap();
    let log = setup.server.take_log();
    let fetched: Vec<_> = log
        .iter()
        .filter(|seen| seen.host == Host::Storage)
        .collect();
    assert_eq!(fetched.len(), 1, "{log:?}");
    assert_eq!(fetched[0].sent_bytes, one.len());
    assert_eq!(
        fs::read(folder.join("model-00001-of-00002.safetensors")).unwrap(),
        one
    );
}

#[test]
fn content_that_another_commit_has_is_not_fetched_again() {
    let setup = setup();
    let weights = noise(4, 50_003);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &weights)];
    let first = setup.server.publish("org/name", "main", &files);
    setup.fetch("org/name").unwrap();
    let files = [("config.json", &b"{\"v\":2}"[..]), files[1]];
    let second = setup.server.publish("org/name", "main", &files);
    setup.server.take_log();
    let folder = setup.fetch("org/name").unwrap();
    assert!(folder.ends_with(&second) && first != second);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights);
    let log = setup.server.take_log();
    assert!(log.iter().all(|seen| seen.host == Host::Hub), "{log:?}");
    let refs = fs::read_to_string(setup.repo("org/name").join("refs/main")).unwrap();
    assert_eq!(refs, second);
}

#[test]
fn a_revision_is_a_branch_a_tag_or_a_commit() {
    let setup = setup();
    let config = |text: &'static str| {
        [
            ("config.json", text.as_bytes()),
            ("model.safetensors", &b"w"[..]),
        ]
    };
    setup.server.publish("org/name", "main", &config("main"));
    let v1 = setup.server.publish("org/name", "v1", &config("v1"));
    let pr = setup.server.publish("org/name", "refs/pr/7", &config("pr"));
    let read = |model: &str| {
        let folder = setup.fetch(model).unwrap();
        fs::read_to_string(folder.join("config.json")).unwrap()
    };
    assert_eq!(read("hf://org/name"), "main");
    assert_eq!(read("hf://org/name@v1"), "v1");
    assert_eq!(read("hf://org/name@refs/pr/7"), "pr");
    assert_eq!(read(&format!("hf://org/name@{v1}")), "v1");
    let refs = setup.repo("org/name").join("refs");
    assert_eq!(fs::read_to_string(refs.join("refs/pr/7")).unwrap(), pr);
    assert_eq!(names(&refs), ["main", "refs", "v1"]);
    let error = setup.fetch("hf://org/name@v9").unwrap_err();
    assert_eq!(error.to_string(), "org/name: no revision `v9`");
}

#[test]
fn a_gguf_comes_with_its_shards_and_nothing_else() {
    let setup = setup();
    let shards: Vec<Vec<u8>> = (5..8)
        .map(|seed| noise(seed, 12_000 + seed as usize))
        .collect();
    setup.server.publish(
        "org/name",
        "main",
        &[
            ("Q4 K/m-00001-of-00003.gguf", &shards[0]),
            ("Q4 K/m-00002-of-00003.gguf", &shards[1]),
            ("Q4 K/m-00003-of-00003.gguf", &shards[2]),
            ("m-Q8_0.gguf", &noise(9, 11_000)),
        ],
    );
    let path = setup
        .fetch("hf://org/name/Q4 K/m-00002-of-00003.gguf")
        .unwrap();
    assert!(path.ends_with("Q4 K/m-00001-of-00003.gguf"), "{path:?}");
    let folder = path.parent().unwrap();
    assert_eq!(names(folder).len(), 3);
    assert_eq!(names(folder.parent().unwrap()), ["Q4 K"]);
    for (idx, shard) in shards.iter().enumerate() {
        let name = format!("m-{:05}-of-00003.gguf", idx + 1);
        assert_eq!(&fs::read(folder.join(name)).unwrap(), shard);
    }
    let error = setup.fetch("org/name").unwrap_err();
    assert_eq!(
        error.to_string(),
        "org/name: several models, name one of them: Q4 K/m-00001-of-00003.gguf, m-Q8_0.gguf"
    );
}

#[test]
fn a_renamed_repository_is_found_under_its_old_name() {
    let setup = setup();
    let weights = noise(6, 33_333);
    setup.server.publish(
        "new-org/name",
        "main",
        &[("config.json", b"{}"), ("model.safetensors", &weights)],
    );
    setup.server.rename("org/old", "new-org/name");
    let folder = setup.fetch("org/old").unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights);
}

#[test]
fn progress_counts_the_bytes_of_all_files() {
    let setup = setup();
    let (_, one, two) = publish(&setup, "org/name");
    let all = (one.len() + two.len() + b"{}".len() + b"{\"t\":1}".len()) as u64;
    let (model, mut seen) = (ModelRef::parse("org/name").unwrap(), Vec::new());
    setup
        .hub()
        .fetch_model(&model, &mut |progress| {
            // The index is fetched first, because it says which files there are.
            if progress.total > INDEX.len() as u64 {
                seen.push((progress.done, progress.total));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.iter().all(|(_, total)| *total == all), "{seen:?}");
    assert!(seen.is_sorted_by_key(|(done, _)| *done), "{seen:?}");
    assert_eq!(seen.last().unwrap().0, all);
    assert!(seen.len() > 5, "{seen:?}");
}

#[test]
fn two_at_once_fetch_a_file_once() {
    let setup = setup();
    let weights = noise(8, 2_000_003);
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &weights)];
    setup.server.publish("org/name", "main", &files);
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| setup.fetch("org/name").unwrap()))
            .collect();
        for run in runs {
            let folder = run.join().unwrap();
            assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights);
        }
    });
    let log = setup.server.take_log();
    let sent = log.iter().filter(|seen| seen.host == Host::Storage).count();
    assert_eq!(sent, 1, "{log:?}");
}
