//! Checkpoint folders: which files are opened, and what an index may not say.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::path::Path;

use larql_formats::safetensors::Checkpoint;

mod support;

use support::safetensors::file;

const INDEX: &str = "model.safetensors.index.json";

/// A file of I8 vectors, three values each, that are told apart by `mark`.
fn write(folder: &Path, name: &str, tensors: &[&str], mark: u8) {
    let mut header = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    for (i, tensor) in tensors.iter().enumerate() {
        let (begin, end) = (3 * i, 3 * i + 3);
        header +=
            &format!(r#","{tensor}":{{"dtype":"I8","shape":[3],"data_offsets":[{begin},{end}]}}"#);
    }
    header.push('}');
    let mut bytes = file(header, 0);
    bytes.extend((0..3 * tensors.len()).map(|i| mark + i as u8));
    fs::write(folder.join(name), bytes).unwrap();
}

fn open_error(path: &Path) -> String {
    let error = Checkpoint::open(path).unwrap_err();
    support::chain(&error)
}

/// Every tensor of [`with_index`] where it is.
const ALL: &str =
    r#"{"c":"s2.safetensors","e":"s2.safetensors","a":"s1.safetensors","b":"s1.safetensors"}"#;

fn with_index(weight_map: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "s1.safetensors", &["a", "b"], 10);
    write(dir.path(), "s2.safetensors", &["c", "e"], 100);
    fs::write(
        dir.path().join(INDEX),
        format!(r#"{{"metadata":{{"total_size":9}},"weight_map":{weight_map}}}"#),
    )
    .unwrap();
    dir
}

#[test]
fn shards_are_opened_by_their_index() {
    let dir = with_index(ALL);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let names: Vec<_> = checkpoint.tensors().iter().map(|t| &*t.name).collect();
    assert_eq!(names, ["a", "b", "c", "e"]);
    assert_eq!(&*checkpoint.data("b").unwrap(), [13, 14, 15]);
    assert_eq!(&*checkpoint.data("c").unwrap(), [100, 101, 102]);
    assert_eq!(checkpoint.metadata()["format"], "pt");
    let second = dir.path().join("s2.safetensors");
    assert_eq!(checkpoint.paths()[1], second);
    assert_eq!(checkpoint.tensor("c").unwrap().shape, [3]);
    assert_eq!(
        checkpoint.data("d").unwrap_err().to_string(),
        format!("{}: no tensor `d`", dir.path().display())
    );
}

#[test]
fn a_tensor_that_the_index_does_not_name_is_refused_with_its_shard() {
    let dir = with_index(r#"{"c":"s2.safetensors","a":"s1.safetensors"}"#);
    assert_eq!(
        open_error(dir.path()),
        format!(
            "{}: 2 tensors of the shards are not in the index: `b` (s1.safetensors), `e` (s2.safetensors)",
            dir.path().join(INDEX).display()
        )
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused_whichever_of_them_the_index_names() {
    for named in ["s1.safetensors", "s2.safetensors"] {
        let dir = with_index(&ALL.replace(r#""b":"s1.safetensors""#, &format!(r#""b":"{named}""#)));
        write(dir.path(), "s2.safetensors", &["c", "b", "e"], 100);
        let other = ["s1.safetensors", "s2.safetensors"].into_iter();
        let other = other.filter(|shard| *shard != named).collect::<String>();
        assert_eq!(
            open_error(dir.path()),
            format!(
                "{}: tensor `b` is in two shards, {named} and {other}",
                dir.path().join(INDEX).display()
            )
        );
    }
}

#[test]
fn an_index_that_promises_too_much_is_refused_with_all_names() {
    let s1 = r#""s1.safetensors""#;
    let cases = [
        (
            r#"{"a":"s1.safetensors","gone":"s3.safetensors","too":"s3.safetensors"}"#.to_owned(),
            "shard s3.safetensors is missing; the index has 2 tensors in it",
        ),
        (
            format!(r#"{{"x":{s1},"a":{s1},"w":{s1},"c":{s1}}}"#),
            "3 tensors of the index are not in their shards: `c` (s1.safetensors), `w` (s1.safetensors), `x` (s1.safetensors)",
        ),
        (
            r#"{"a":"../s1.safetensors"}"#.to_owned(),
            "tensor `a` is in shard `../s1.safetensors`, which is not a plain file name",
        ),
        (
            r#"{"a":"/etc/passwd"}"#.to_owned(),
            "tensor `a` is in shard `/etc/passwd`, which is not a plain file name",
        ),
        (
            r#"{"a":".."}"#.to_owned(),
            "tensor `a` is in shard `..`, which is not a plain file name",
        ),
        (
            format!(r#"{{"a":{s1},"a":"s2.safetensors"}}"#),
            "tensor `a` appears twice",
        ),
        (
            r#"{"a":7}"#.to_owned(),
            "not the index of a sharded checkpoint: invalid type: integer `7`, expected a string at line 1 column 48",
        ),
    ];
    for (weight_map, expected) in cases {
        let dir = with_index(&weight_map);
        let path = dir.path().join(INDEX);
        assert_eq!(
            open_error(dir.path()),
            format!("{}: {expected}", path.display())
        );
    }
}

#[test]
fn many_missing_tensors_are_counted() {
    let names = (0..20).map(|i| format!(r#""t{i:02}":"s1.safetensors""#));
    let dir = with_index(&format!("{{{}}}", names.collect::<Vec<_>>().join(",")));
    let message = open_error(dir.path());
    assert!(message.contains("20 tensors of the index"), "{message}");
    assert!(
        message.ends_with("`t07` (s1.safetensors) and 12 more"),
        "{message}"
    );
}

#[test]
fn one_file_is_found_and_two_are_ambiguous() {
    let dir = tempfile::tempdir().unwrap();
    let at = |text: &str| format!("{}: {text}", dir.path().display());
    assert_eq!(
        open_error(dir.path()),
        at("no safetensors weights: neither model.safetensors nor model.safetensors.index.json")
    );
    write(dir.path(), "other.safetensors", &["a"], 1);
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let found = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(&*found.data("a").unwrap(), [1, 2, 3]);
    assert_eq!(found.path(), dir.path());

    write(dir.path(), "adapter.safetensors", &["a"], 2);
    assert_eq!(
        open_error(dir.path()),
        at("which weights? found adapter.safetensors and other.safetensors")
    );

    write(dir.path(), "model.safetensors", &["a"], 3);
    let found = Checkpoint::open(dir.path().join("")).unwrap();
    assert_eq!(&*found.data("a").unwrap(), [3, 4, 5]);
    let file = dir.path().join("adapter.safetensors");
    let found = Checkpoint::open(&file).unwrap();
    assert_eq!(&*found.data("a").unwrap(), [2, 3, 4]);

    fs::write(dir.path().join(INDEX), "{}").unwrap();
    assert_eq!(
        open_error(dir.path()),
        at("which weights? found model.safetensors and model.safetensors.index.json")
    );
}

#[test]
fn a_damaged_shard_is_named() {
    let dir = with_index(ALL);
    let path = dir.path().join("s2.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let message = open_error(dir.path());
    assert!(
        message.starts_with(&format!(
            "{}: tensor `e` lies outside the file: offset 3",
            path.display()
        )),
        "{message}"
    );
}
