//! Who may read, what is not there, and what must not be believed.

use std::net::TcpListener;

use larql_hub::{Hub, HubError, Token};

use crate::server::{Fault, Host, tag};
use crate::{Setup, names, noise, setup};

fn publish(setup: &Setup) -> Vec<u8> {
    let weights = noise(21, 20_011);
    setup.server.publish(
        "org/name",
        "main",
        &[("config.json", b"{}"), ("model.safetensors", &weights)],
    );
    weights
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let mut setup = setup();
    let weights = publish(&setup);
    setup.server.protect("org/name", "hf_secret");
    let error = setup.fetch("org/name").unwrap_err();
    assert!(
        matches!(
            &error,
            HubError::Unauthorized {
                has_token: false,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "org/name: the hub does not show it without a token"
    );
    assert!(error.hint().unwrap().contains("HF_TOKEN") && error.is_request());

    setup.token("hf_wrong");
    let error = setup.fetch("org/name").unwrap_err();
    assert_eq!(
        error.to_string(),
        "org/name: the hub does not show it to this token"
    );
    assert!(!format!("{error:?} {:?}", setup.config).contains("hf_wrong"));

    setup.token(" hf_secret\n");
    setup.server.take_log();
    let folder = setup.fetch("org/name").unwrap();
    let content = std::fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(content, weights);
    let log = setup.server.take_log();
    assert!(log.iter().any(|seen| seen.host == Host::Storage));
    for seen in log {
        let expected = (seen.host == Host::Hub).then(|| "Bearer hf_secret".to_owned());
        assert_eq!(seen.authorization, expected, "{}", seen.path);
    }
}

#[test]
fn a_blank_token_is_not_sent() {
    let mut setup = setup();
    publish(&setup);
    setup.token(" \n ");
    setup.fetch("org/name").unwrap();
    let log = setup.server.take_log();
    assert!(
        log.len() > 3 && log.iter().all(|seen| seen.authorization.is_none()),
        "{log:?}"
    );
}

#[test]
fn what_is_not_there_is_named() {
    let setup = setup();
    publish(&setup);
    setup
        .server
        .publish("org/gated", "main", &[("config.json", b"{}")]);
    setup.server.gate("org/gated");
    setup.server.publish(
        "org/bin",
        "main",
        &[("config.json", b"{}"), ("pytorch_model.bin", b"x")],
    );
    let url = &setup.server.url;
    for (model, expected) in [
        (
            "org/nothing",
            format!("org/nothing: no such model on {url}"),
        ),
        ("org/name@v9", "org/name: no revision `v9`".to_owned()),
        (
            "org/name/x.gguf",
            "org/name: no file `x.gguf` at revision `main`".to_owned(),
        ),
        (
            "org/gated",
            "org/gated: access has to be granted by its owner (status 403)".to_owned(),
        ),
        (
            "org/bin",
            "org/bin: no model that can be opened: no safetensors and no `.gguf` file".to_owned(),
        ),
    ] {
        let error = setup.fetch(model).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert!(error.is_request(), "{error}");
        assert_eq!(setup.headers(model).unwrap_err().to_string(), expected);
    }
    assert_eq!(names(&setup.config.cache_dir), Vec::<String>::new());
}

#[test]
fn a_hostile_name_creates_nothing() {
    for name in ["../../evil.gguf", "/tmp/evil.gguf", "a/../../../evil.gguf"] {
        let setup = setup();
        setup
            .server
            .publish("org/name", "main", &[(name, &noise(22, 15_000))]);
        for result in [setup.fetch("org/name"), setup.headers("org/name")] {
            let error = result.unwrap_err();
            assert!(
                matches!(&error, HubError::UnsafeName { name: got, .. } if got == name),
                "{error}"
            );
        }
        assert_eq!(names(setup.dir.path()), Vec::<String>::new());
        let log = setup.server.take_log();
        assert!(
            log.iter().all(|seen| seen.path.starts_with("/api/")),
            "{log:?}"
        );
    }
}

/// What is too large shows before a byte of it is asked for.
#[test]
fn an_absurd_length_is_refused_before_anything_comes() {
    for (file, length, limit) in [
        ("config.json", 1_u64 << 40, 16_u64 << 20),
        ("config.json", (16 << 20) + 1, 16 << 20),
        ("tokenizer.json", 1 << 40, 256 << 20),
        ("model.safetensors", 1 << 62, 1 << 42),
    ] {
        let setup = setup();
        setup.server.publish(
            "org/name",
            "main",
            &[
                ("config.json", b"{}"),
                ("model.safetensors", &noise(23, 20_011)),
                ("tokenizer.json", b"{}"),
            ],
        );
        setup.server.fail(file, &[Fault::Announce(length)]);
        let error = setup.fetch("org/name").unwrap_err();
        let expected = format!("{file}: announced length: {length} bytes, the limit is {limit}");
        assert_eq!(error.to_string(), expected);
        let log = setup.server.take_log();
        let is_of_file = |path: &str| path.contains("/resolve/");
        assert!(
            log.iter()
                .all(|seen| seen.method == "HEAD" || !is_of_file(&seen.path)),
            "{log:?}"
        );
    }
}

#[test]
fn headers_of_a_file_of_absurd_length_are_refused() {
    let setup = setup();
    publish(&setup);
    let length = 1 << 62;
    setup
        .server
        .fail("model.safetensors", &[Fault::Announce(length)]);
    let error = setup.headers("org/name").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "model.safetensors: announced length: {length} bytes, the limit is {}",
            1_u64 << 42
        )
    );
}

/// The tag of a small file is its SHA-1 as git has it.
#[test]
fn a_small_file_of_the_right_size_and_other_bytes_is_not_kept() {
    let setup = setup();
    publish(&setup);
    let wrong = |error: HubError| {
        let message = error.to_string();
        assert!(
            matches!(
                &error,
                HubError::WrongHash { file, expected, .. }
                    if file == "config.json" && *expected == tag(b"{}")
            ),
            "{message}"
        );
        assert!(
            message.starts_with("config.json: SHA-1 as a git blob is ")
                && message.ends_with("; nothing of it was kept"),
            "{message}"
        );
    };
    setup.server.fail("config.json", &[Fault::Flip]);
    wrong(setup.headers("org/name").unwrap_err());
    setup.server.fail("config.json", &[Fault::Flip]);
    wrong(setup.fetch("org/name").unwrap_err());
    let blobs = setup.repo("org/name").join("blobs");
    assert_eq!(names(&blobs), Vec::<String>::new());
    let folder = setup.fetch("org/name").unwrap();
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
}

#[test]
fn a_hub_that_is_not_there_is_told_at_once() {
    let mut setup = setup();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    setup.config.endpoint = format!("http://{address}/");
    let error = setup.fetch("org/name").unwrap_err();
    let HubError::Unreachable { url, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        url,
        &format!("http://{address}/api/models/org/name/revision/main")
    );
    assert!(!error.is_request());
    assert!(error.hint().unwrap().contains("HF_HUB_OFFLINE"));
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let setup = setup();
    for endpoint in ["", "hub", "ftp://hub", "http://", "http://hub/?x=1"] {
        let mut config = setup.config.clone();
        config.endpoint = endpoint.to_owned();
        let error = Hub::new(config).unwrap_err();
        assert!(
            matches!(error, HubError::BadEndpoint { .. }),
            "{endpoint}: {error}"
        );
    }
    let mut config = setup.config.clone();
    config.token = Token::new("hf_a\r\nx-injected: 1");
    let error = Hub::new(config).unwrap_err();
    assert!(matches!(error, HubError::BadToken), "{error}");
    assert!(!error.to_string().contains("injected"));
}
