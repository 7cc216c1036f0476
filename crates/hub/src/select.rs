//! Which files of a repository make the model that was asked for.
//!
//! Decided by names alone, as opening a folder does: a checkpoint is `config.json` with its safetensors, else there has
//! to be one `.gguf` model. Two candidates are an error that lists both.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::error::HubError;
use crate::names::is_safe_file;
use crate::reference::ModelRef;

/// What a checkpoint is recognized by.
pub(crate) const CONFIG: &str = "config.json";
/// Names the files that hold the weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// What is read beside the weights, if it is there.
const COMPANIONS: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// Most shards of a split GGUF; the number has five digits, and more than these would be a mistake.
const SHARDS_MAX: u32 = 10_000;

/// Largest `config.json`.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Largest index of safetensors, as for the header of one of them.
pub(crate) const INDEX_BYTES_MAX: u64 = 100_000_000;
/// Largest of the other files beside the weights: what a reader of them takes. Tokenizers come near 64 MiB.
const COMPANION_BYTES_MAX: u64 = 256 << 20;
/// Largest file of weights: 4 TiB, a hundred times what the hub takes.
const WEIGHTS_BYTES_MAX: u64 = 1 << 42;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// A checkpoint folder.
    Folder {
        /// Configuration, index, tokenizer.
        small: Vec<String>,
        /// Safetensors.
        weights: Vec<String>,
    },
    /// A GGUF and its shards; the first is the one to open.
    Gguf(Vec<String>),
}

#[derive(Deserialize)]
struct IndexJson {
    weight_map: BTreeMap<String, String>,
}

impl Selection {
    /// Every file, small ones first, so that what is wrong with them shows before gigabytes have come.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        let (small, weights): (&[String], &[String]) = match self {
            Self::Folder { small, weights } => (small, weights),
            Self::Gguf(files) => (&[], files),
        };
        small.iter().chain(weights).map(String::as_str)
    }
}

/// The largest length that a file of this name may have.
pub(crate) fn bytes_max(file: &str) -> u64 {
    let has_end = |end: &str| file.to_ascii_lowercase().ends_with(end);
    match file {
        CONFIG => CONFIG_BYTES_MAX,
        INDEX => INDEX_BYTES_MAX,
        _ if has_end(".safetensors") || has_end(".gguf") => WEIGHTS_BYTES_MAX,
        _ => COMPANION_BYTES_MAX,
    }
}

/// Picks the files of a model; `index` is asked for the bytes of the index if there is one.
pub(crate) fn select(
    model: &ModelRef,
    names: &[String],
    index: &mut dyn FnMut() -> Result<Vec<u8>, HubError>,
) -> Result<Selection, HubError> {
    let selection = match model.file() {
        Some(file) => Selection::Gguf(gguf_files(model, names, file)?),
        None => whole(model, names, index)?,
    };
    let unsafe_name = selection.files().find(|name| !is_safe_file(name));
    match unsafe_name.map(str::to_owned) {
        None => Ok(selection),
        Some(name) => Err(HubError::UnsafeName {
            repo: model.repo().to_owned(),
            name,
        }),
    }
}

fn whole(
    model: &ModelRef,
    names: &[String],
    index: &mut dyn FnMut() -> Result<Vec<u8>, HubError>,
) -> Result<Selection, HubError> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let no_model = |reason| HubError::NoModel {
        repo: model.repo().to_owned(),
        reason,
    };
    let loose: Vec<&String> = names
        .iter()
        .filter(|name| name.ends_with(".safetensors") && !name.contains('/'))
        .collect();
    if has(CONFIG) && (has(INDEX) || !loose.is_empty()) {
        let weights = if has(INDEX) {
            shards(model, names, &index()?)?
        } else if has(SINGLE) {
            vec![SINGLE.to_owned()]
        } else if let [one] = loose.as_slice() {
            vec![(*one).clone()]
        } else {
            return Err(no_model(
                "several safetensors files, and no index that says which belong together",
            ));
        };
        let small = [CONFIG, INDEX]
            .into_iter()
            .chain(COMPANIONS.iter().copied());
        return Ok(Selection::Folder {
            small: small.filter(|name| has(name)).map(str::to_owned).collect(),
            weights,
        });
    }
    let ggufs: BTreeSet<String> = names
        .iter()
        .filter(|name| name.ends_with(".gguf"))
        .map(|name| first_shard(name))
        .collect();
    let mut ggufs = ggufs.into_iter();
    match (ggufs.next(), ggufs.len()) {
        (Some(one), 0) => Ok(Selection::Gguf(gguf_files(model, names, &one)?)),
        (Some(first), _) => Err(HubError::SeveralModels {
            repo: model.repo().to_owned(),
            files: std::iter::once(first).chain(ggufs).collect(),
        }),
        (None, _) if has(CONFIG) => Err(no_model("no safetensors and no `.gguf` file")),
        (None, _) if !loose.is_empty() => Err(no_model("no config.json beside the safetensors")),
        (None, _) => Err(no_model("no config.json and no `.gguf` file")),
    }
}

/// The safetensors that an index names.
fn shards(model: &ModelRef, names: &[String], json: &[u8]) -> Result<Vec<String>, HubError> {
    let index: IndexJson = serde_json::from_slice(json).map_err(|source| HubError::Json {
        what: format!("{}: {INDEX}", model.repo()),
        source,
    })?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    if shards.is_empty() {
        return Err(HubError::NoModel {
            repo: model.repo().to_owned(),
            reason: "the index of the safetensors names no file",
        });
    }
    for shard in &shards {
        if !is_safe_file(shard) {
            return Err(HubError::UnsafeName {
                repo: model.repo().to_owned(),
                name: shard.clone(),
            });
        }
        listed(model, names, shard)?;
    }
    Ok(shards.into_iter().collect())
}

/// A GGUF with all its shards, in order.
fn gguf_files(model: &ModelRef, names: &[String], file: &str) -> Result<Vec<String>, HubError> {
    let files = match shard_name(file) {
        None => vec![file.to_owned()],
        Some((stem, _, n_shards)) => (1..=n_shards)
            .map(|idx| shard(stem, idx, n_shards))
            .collect(),
    };
    for file in &files {
        listed(model, names, file)?;
    }
    Ok(files)
}

fn listed(model: &ModelRef, names: &[String], file: &str) -> Result<(), HubError> {
    if names.iter().any(|name| name == file) {
        return Ok(());
    }
    Err(HubError::FileNotFound {
        repo: model.repo().to_owned(),
        revision: model.revision().to_owned(),
        file: file.to_owned(),
    })
}

/// The shard that stands for all of a GGUF.
fn first_shard(name: &str) -> String {
    match shard_name(name) {
        None => name.to_owned(),
        Some((stem, _, n_shards)) => shard(stem, 1, n_shards),
    }
}

fn shard(stem: &str, idx: u32, n_shards: u32) -> String {
    format!("{stem}-{idx:05}-of-{n_shards:05}.gguf")
}

/// `STEM-00002-of-00003.gguf` as its stem and numbers.
fn shard_name(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, n_shards) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, idx) = rest.rsplit_once('-')?;
    let number = |digits: &str| -> Option<u32> {
        let is_plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| digits.parse().ok()).flatten()
    };
    let (idx, n_shards) = (number(idx)?, number(n_shards)?);
    (n_shards <= SHARDS_MAX && (1..=n_shards).contains(&idx)).then_some((stem, idx, n_shards))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(model: &str, names: &[&str], index: &str) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let model = ModelRef::parse(model).unwrap();
        select(&model, &names, &mut || Ok(index.as_bytes().to_vec()))
            .map(|selection| selection.files().map(str::to_owned).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_index_decides_which_weights_are_taken() {
        let names = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "m-2.safetensors",
            "m-1.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
        ];
        let index = r#"{"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}"#;
        assert_eq!(
            pick("a/b", &names, index).unwrap(),
            [
                "config.json",
                "model.safetensors.index.json",
                "tokenizer.json",
                "m-1.safetensors",
                "m-2.safetensors"
            ]
        );
        let missing = r#"{"weight_map":{"a":"m-3.safetensors"}}"#;
        let error = pick("a/b", &names, missing).unwrap_err();
        assert_eq!(error, "a/b: no file `m-3.safetensors` at revision `main`");
        for bad in [
            r#"{"weight_map":{"a":"../x.safetensors"}}"#,
            r#"{"weight_map":{"a":"/etc/x.safetensors"}}"#,
        ] {
            let error = pick("a/b", &names, bad).unwrap_err();
            assert!(error.contains("leaves the folder"), "{error}");
        }
        assert!(
            pick("a/b", &names, "{}")
                .unwrap_err()
                .contains("cannot be read")
        );
        assert!(
            pick("a/b", &names, r#"{"weight_map":{}}"#)
                .unwrap_err()
                .contains("names no file")
        );
    }

    #[test]
    fn without_an_index_there_is_one_file() {
        let with = |weights: &[&str]| {
            let names: Vec<&str> = weights.iter().copied().chain(["config.json"]).collect();
            pick("a/b", &names, "")
        };
        assert_eq!(
            with(&["model.safetensors", "other.safetensors"]).unwrap(),
            ["config.json", "model.safetensors"]
        );
        assert_eq!(
            with(&["x.safetensors"]).unwrap(),
            ["config.json", "x.safetensors"]
        );
        assert!(
            with(&["x.safetensors", "y.safetensors"])
                .unwrap_err()
                .contains("several")
        );
        assert!(
            with(&["d/model.safetensors"])
                .unwrap_err()
                .contains("no safetensors")
        );
        assert!(
            with(&["pytorch_model.bin"])
                .unwrap_err()
                .contains("no safetensors")
        );
        assert!(
            pick("a/b", &["adapter_model.safetensors"], "")
                .unwrap_err()
                .contains("no config")
        );
        assert!(
            pick("a/b", &["README.md"], "")
                .unwrap_err()
                .contains("no config.json and no")
        );
    }

    #[test]
    fn a_gguf_is_the_only_one_or_named() {
        let names = [
            "m-Q4_0.gguf",
            "m-Q8_0.gguf",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
        ];
        assert_eq!(
            pick("a/b", &names, "").unwrap_err(),
            "a/b: several models, name one of them: big-00001-of-00002.gguf, m-Q4_0.gguf, m-Q8_0.gguf"
        );
        assert_eq!(
            pick("hf://a/b/m-Q8_0.gguf", &names, "").unwrap(),
            ["m-Q8_0.gguf"]
        );
        assert_eq!(pick("a/b", &names[2..], "").unwrap(), names[2..]);
        assert_eq!(
            pick("a/b/big-00002-of-00002.gguf", &names, "").unwrap(),
            names[2..]
        );
        assert_eq!(
            pick("a/b", &names[3..], "").unwrap_err(),
            "a/b: no file `big-00001-of-00002.gguf` at revision `main`"
        );
        assert_eq!(
            pick("hf://a/b@v1/x.gguf", &names, "").unwrap_err(),
            "a/b: no file `x.gguf` at revision `v1`"
        );
        let mixed = ["config.json", "model.safetensors", "m.gguf"];
        assert_eq!(
            pick("a/b", &mixed, "").unwrap(),
            ["config.json", "model.safetensors"]
        );
        assert_eq!(pick("a/b/m.gguf", &mixed, "").unwrap(), ["m.gguf"]);
    }

    #[test]
    fn a_hostile_name_is_refused_when_it_would_be_taken() {
        for name in [
            "../x.gguf",
            "/x.gguf",
            "a/../../x.gguf",
            "c:x.gguf",
            "a\\x.gguf",
        ] {
            let error = pick("a/b", &[name], "").unwrap_err();
            assert!(error.contains("leaves the folder"), "{error}");
        }
    }
}
