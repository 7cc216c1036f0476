//! Transfers that break, stall, lie or change.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use larql_hub::{HubError, ModelRef};

use crate::server::{Fault, Host, tag};
use crate::{Setup, names, noise, setup};

const WEIGHTS: &str = "model.safetensors";

fn published(n: usize) -> (Setup, Vec<u8>) {
    let (setup, weights) = (setup(), noise(11, n));
    setup.server.publish(
        "org/name",
        "main",
        &[("config.json", b"{}"), (WEIGHTS, &weights)],
    );
    (setup, weights)
}

impl Setup {
    fn partial(&self, bytes: &[u8]) -> PathBuf {
        let name = format!("{}.incomplete", tag(bytes));
        self.repo("org/name").join("blobs").join(name)
    }

    /// Ranges that the storage was asked for.
    fn ranges(&self) -> Vec<Option<String>> {
        let log = self.server.take_log();
        log.into_iter()
            .filter(|seen| seen.host == Host::Storage)
            .map(|seen| seen.range)
            .collect()
    }

    fn weights(&self) -> Vec<u8> {
        let folder = self.fetch("org/name").unwrap();
        fs::read(folder.join(WEIGHTS)).unwrap()
    }
}

#[test]
fn a_cut_connection_is_continued() {
    let (setup, weights) = published(400_009);
    setup.server.fail(
        WEIGHTS,
        &[Fault::Cut(150_001), Fault::Cut(7), Fault::Status(503)],
    );
    assert_eq!(setup.weights(), weights);
    let from = |n: u64| Some(format!("bytes={n}-"));
    assert_eq!(
        setup.ranges(),
        [None, from(150_001), from(150_008), from(150_008)]
    );
    assert!(!setup.partial(&weights).exists());
}

#[test]
fn what_came_before_a_final_cut_is_kept_for_the_next_run() {
    let (setup, weights) = published(400_009);
    let mut faults = vec![Fault::Cut(123_457)];
    faults.extend(vec![Fault::Cut(0); 20]);
    setup.server.fail(WEIGHTS, &faults);
    let error = setup.fetch("org/name").unwrap_err();
    let HubError::Cut {
        file,
        got,
        expected,
        attempts,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (file.as_str(), *got, *expected),
        (WEIGHTS, 123_457, 400_009)
    );
    assert_eq!(*attempts as usize, setup.ranges().len());
    assert_eq!(*attempts, 6);
    assert_eq!(
        fs::read(setup.partial(&weights)).unwrap(),
        weights[..123_457]
    );
    let snapshots = setup.repo("org/name").join("snapshots");
    let commit = names(&snapshots).remove(0);
    assert_eq!(names(&snapshots.join(commit)), ["config.json"]);
    assert!(!setup.repo("org/name").join("refs").exists());

    setup.server.fail(WEIGHTS, &[]);
    assert_eq!(setup.weights(), weights);
    assert_eq!(setup.ranges(), [Some("bytes=123457-".to_owned())]);
    assert!(!setup.partial(&weights).exists());
}

#[test]
fn a_small_file_that_was_cut_starts_over() {
    // It has no hash, so a later run could not tell whether a part of it is right.
    let setup = setup();
    let config = noise(12, 5_000);
    setup.server.publish(
        "org/name",
        "main",
        &[("config.json", &config), (WEIGHTS, b"w")],
    );
    fs::create_dir_all(setup.partial(&config).parent().unwrap()).unwrap();
    fs::write(setup.partial(&config), vec![7; 1_000]).unwrap();
    setup.server.fail("config.json", &[Fault::Cut(2_000)]);
    let folder = setup.fetch("org/name").unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), config);
}

#[test]
fn wrong_content_is_an_error_and_does_not_stay() {
    let (setup, weights) = published(50_021);
    setup.server.fail(WEIGHTS, &[Fault::Flip]);
    let error = setup.fetch("org/name").unwrap_err();
    let HubError::WrongHash {
        file,
        hash: "SHA-256",
        expected,
        got,
    } = &error
    else {
        panic!("{error}");
    };
    let mut flipped = weights.clone();
    flipped[50_021 / 2] ^= 1;
    assert_eq!(file, WEIGHTS);
    assert_eq!((expected, got), (&tag(&weights), &tag(&flipped)));
    let blobs = names(&setup.repo("org/name").join("blobs"));
    assert_eq!(blobs, [tag(b"{}")]);
    assert_eq!(setup.weights(), weights);
}

#[test]
fn a_wrong_length_is_an_error_and_does_not_stay() {
    let (setup, weights) = published(50_021);
    setup.server.fail(WEIGHTS, &[Fault::Longer]);
    let error = setup.fetch("org/name").unwrap_err();
    assert_eq!(
        error.to_string(),
        "model.safetensors: 50022 bytes came, expected 50021; nothing of it was kept"
    );
    let blobs = names(&setup.repo("org/name").join("blobs"));
    assert_eq!(blobs, [tag(b"{}")]);
    assert_eq!(setup.weights(), weights);
}

#[test]
fn a_part_that_is_wrong_is_fetched_again_once() {
    let (setup, weights) = published(60_013);
    let partial = setup.partial(&weights);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, vec![1; 20_000]).unwrap();
    assert_eq!(setup.weights(), weights);
    assert_eq!(setup.ranges(), [Some("bytes=20000-".to_owned()), None]);
}

#[test]
fn a_part_that_is_whole_or_too_long_is_looked_at_first() {
    let (setup, weights) = published(60_013);
    let partial = setup.partial(&weights);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, &weights).unwrap();
    assert_eq!(setup.weights(), weights);
    assert_eq!(setup.ranges(), []);

    fs::remove_dir_all(setup.repo("org/name")).unwrap();
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, vec![1; 70_000]).unwrap();
    assert_eq!(setup.weights(), weights);
    assert_eq!(setup.ranges(), [None]);
}

#[test]
fn a_range_that_is_refused_or_ignored_starts_over() {
    for fault in [Fault::NoSuchRange, Fault::IgnoreRange] {
        let (setup, weights) = published(80_021);
        setup
            .server
            .fail(WEIGHTS, &[Fault::Cut(30_000), fault.clone()]);
        assert_eq!(setup.weights(), weights, "{fault:?}");
        let mut ranges = vec![None, Some("bytes=30000-".to_owned())];
        if fault == Fault::NoSuchRange {
            ranges.push(None);
        }
        assert_eq!(setup.ranges(), ranges, "{fault:?}");
    }
}

#[test]
fn a_file_that_changes_before_its_transfer_is_asked_about_again() {
    let (setup, weights) = published(70_001);
    let other = noise(13, 90_001);
    setup.server.fail(WEIGHTS, &[Fault::HeadOf(other.clone())]);
    // What an earlier run left of the other content must not be continued.
    fs::create_dir_all(setup.partial(&other).parent().unwrap()).unwrap();
    fs::write(setup.partial(&other), &other[..40_000]).unwrap();
    assert_eq!(setup.weights(), weights);
    assert!(!setup.partial(&other).exists());

    fs::remove_dir_all(setup.repo("org/name")).unwrap();
    setup
        .server
        .fail(WEIGHTS, &vec![Fault::HeadOf(other.clone()); 8]);
    let error = setup.fetch("org/name").unwrap_err();
    assert!(
        matches!(&error, HubError::Changing { file } if file == WEIGHTS),
        "{error}"
    );
}

#[test]
fn new_content_under_an_old_name_is_not_appended_to_a_part() {
    let (setup, weights) = published(70_001);
    let mut faults = vec![Fault::Cut(30_000)];
    faults.extend(vec![Fault::Cut(0); 20]);
    setup.server.fail(WEIGHTS, &faults);
    setup.fetch("org/name").unwrap_err();
    assert!(setup.partial(&weights).exists());
    setup.server.fail(WEIGHTS, &[]);
    setup.ranges();
    let newer = noise(14, 70_001);
    setup.server.publish(
        "org/name",
        "main",
        &[("config.json", b"{}"), (WEIGHTS, &newer)],
    );
    assert_eq!(setup.weights(), newer);
    assert_eq!(setup.ranges(), [None]);
}

#[test]
fn an_interruption_keeps_what_came() {
    let (setup, weights) = published(1_000_003);
    let model = ModelRef::parse("org/name").unwrap();
    let error = setup
        .hub()
        .fetch_model(&model, &mut |progress| {
            if progress.done > 300_000 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap_err();
    assert!(matches!(error, HubError::Interrupted), "{error}");
    let kept = fs::read(setup.partial(&weights)).unwrap();
    assert!(kept.len() > 250_000 && kept.len() < weights.len());
    assert_eq!(kept, weights[..kept.len()]);
    setup.ranges();
    assert_eq!(setup.weights(), weights);
    assert_eq!(setup.ranges(), [Some(format!("bytes={}-", kept.len()))]);
}
