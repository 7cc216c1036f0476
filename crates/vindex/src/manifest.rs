//! `vindex.json`: what a vindex is, in one file that is read completely before anything else.
//!
//! Reading is strict: the text must say exactly what this version would write, whatever the white space and the order
//! of keys. So a key that is missing, added or spelled in another type is found by its place, even where the types
//! would have let it pass. `docs/vindex-format.md` describes every field.

use std::fmt;
use std::path::Path;

use larql_models::ModelSpec;
use larql_models::tokenizer::SpecialTokens;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::{HEX_CHARS, hash_bytes};
use crate::error::VindexError;

/// The version of the format that is written and read.
pub const FORMAT_VERSION: u32 = 1;

/// Name of the manifest.
pub(crate) const MANIFEST: &str = "vindex.json";
/// Name of the weights.
pub(crate) const WEIGHTS: &str = "weights.gguf";
/// Name of a tokenizer that is not part of the weights.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Name of the source's tensors that nothing else could be made of again.
pub(crate) const KEPT: &str = "source.safetensors";

/// Files that the manifest lists, in their order.
const LISTED: [&str; 3] = [WEIGHTS, TOKENIZER, KEPT];

/// Files of a folder of safetensors that are kept in full at level `all`.
pub(crate) const SOURCE_TEXTS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// Larger than a spec of 4096 layers with a chat template and the texts of the source.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 32 << 20;
/// More layers than any model has; the readers of checkpoints have the same limit.
const LAYERS_MAX: usize = 4096;
/// Shards of the largest checkpoints number some hundreds.
const SOURCE_FILES_MAX: usize = 4096;
/// What file systems allow in a name.
const NAME_BYTES_MAX: usize = 255;

/// What is inside, in rising order; each level holds all that the one before it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Embeddings, norms and FFNs: features can be looked up, the model cannot be run.
    Browse,
    /// Attention too: the model runs.
    Inference,
    /// And what it takes to write the source's files again.
    All,
}

impl Level {
    /// Every level, in rising order.
    pub const ALL: [Self; 3] = [Self::Browse, Self::Inference, Self::All];

    /// Its name in manifests and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Browse => "browse",
            Self::Inference => "inference",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The whole of `vindex.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The program that wrote it.
    pub created_by: CreatedBy,
    /// Identifies the model: SHA-256 over spec, weights and tokenizer; see [`Manifest::compute_digest`].
    pub digest: String,
    /// What is inside.
    pub level: Level,
    /// Every immutable file of the directory but the manifest itself.
    pub files: Vec<FileEntry>,
    /// Where the tokenizer is; `None` if the source had none.
    pub tokenizer: Option<TokenizerEntry>,
    /// Where the model came from.
    pub source: Source,
    /// Tensors of the source that were left out or are carried without use, and why.
    pub ignored: Vec<Ignored>,
    /// Things a user should know about how the source was read.
    pub notes: Vec<String>,
    /// The model as plain data; what `weights.gguf` says about itself does not count.
    pub spec: ModelSpec,
    /// SHA-256 of this text with 64 zeros in this place: nothing in the manifest changes unnoticed.
    pub checksum: String,
}

/// The program that wrote a vindex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreatedBy {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// A file by name, size and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// A plain name, never a path.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// Where the tokenizer is and which ids are special.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerEntry {
    /// Which file holds the vocabulary.
    pub place: TokenizerPlace,
    /// The special ids.
    pub special: SpecialTokens,
    /// The source of the chat template.
    pub chat_template: Option<String>,
}

/// Which file holds the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenizerPlace {
    /// The metadata of the weights.
    #[serde(rename = "weights.gguf")]
    Weights,
    /// A file of its own.
    #[serde(rename = "tokenizer.json")]
    File,
}

/// Where a model came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What kind of files.
    pub kind: SourceKind,
    /// Name of the file or folder, without the path to it.
    pub name: String,
    /// The files that were read for weights, with their digests.
    pub files: Vec<SourceFile>,
    /// Files of the source in full, at level `all`: `config.json` and its neighbors, byte for byte.
    pub texts: Vec<TextFile>,
    /// Names and types of the source's tensors in their order, at level `all` and where they differ from the weights'.
    pub tensors: Vec<SourceTensor>,
}

impl Source {
    /// The text of a file that is kept in full.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts
            .iter()
            .find(|file| file.name == name)
            .map(|file| file.text.as_str())
    }

    fn check_files(&self) -> Result<(), (String, String)> {
        check_names("source.files", self.files.iter().map(|file| &*file.name))?;
        for (i, file) in self.files.iter().enumerate() {
            let at = |field: &str| format!("source.files[{i}].{field}");
            match (&file.digest, self.kind) {
                (SourceDigest::Whole { sha256 }, SourceKind::Gguf | SourceKind::HuggingFace) => {
                    check_digest(&at("sha256"), sha256)?;
                }
                (
                    SourceDigest::Parts {
                        header_sha256,
                        changed_sha256,
                    },
                    SourceKind::HuggingFace,
                ) => {
                    check_digest(&at("header_sha256"), header_sha256)?;
                    if let Some(changed_sha256) = changed_sha256 {
                        check_digest(&at("changed_sha256"), changed_sha256)?;
                    }
                }
                (SourceDigest::Parts { .. }, SourceKind::Gguf) => {
                    let problem = "stated of a GGUF file, which has `sha256`".to_owned();
                    return Err((at("header_sha256"), problem));
                }
            }
        }
        Ok(())
    }
}

/// A file of the source by name, size and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SourceFileText")]
pub struct SourceFile {
    /// A plain name, never a path.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What its bytes are.
    #[serde(flatten)]
    pub digest: SourceDigest,
}

/// What determines the bytes of a file of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SourceDigest {
    /// A digest of all of them: files of GGUF sources, and all files in vindexes of version 0.1.0.
    Whole {
        /// Lower-case hexadecimal, as all digests are.
        sha256: String,
    },
    /// Digests of what the listed files of the vindex do not hold. The tensors that they hold as they were are under the
    /// digests of those files, so that together these determine every byte, and each byte is hashed once.
    Parts {
        /// Of the header of a file of safetensors, with its length before it.
        header_sha256: String,
        /// Of the other tensors, in the order of their bytes in the file; `None` if there are none.
        changed_sha256: Option<String>,
    },
}

impl fmt::Display for SourceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole { sha256 } => write!(f, "sha256 {sha256}"),
            Self::Parts {
                header_sha256,
                changed_sha256,
            } => {
                let changed = changed_sha256.as_deref().unwrap_or("none");
                write!(f, "header_sha256 {header_sha256} changed_sha256 {changed}")
            }
        }
    }
}

/// The keys of a [`SourceFile`], of which only some go together.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceFileText {
    name: String,
    size: u64,
    sha256: Option<String>,
    header_sha256: Option<String>,
    changed_sha256: Option<String>,
}

impl TryFrom<SourceFileText> for SourceFile {
    type Error = String;

    fn try_from(text: SourceFileText) -> Result<Self, String> {
        let SourceFileText { name, size, .. } = text;
        let digest = match (text.sha256, text.header_sha256, text.changed_sha256) {
            (Some(sha256), None, None) => SourceDigest::Whole { sha256 },
            (None, Some(header_sha256), changed_sha256) => SourceDigest::Parts {
                header_sha256,
                changed_sha256,
            },
            (Some(_), _, _) => {
                return Err(format!(
                    "{name:?} has a digest of the whole and digests of parts"
                ));
            }
            (None, None, _) => {
                return Err(format!("{name:?} has neither sha256 nor header_sha256"));
            }
        };
        Ok(Self { name, size, digest })
    }
}

/// What kind of files a model came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A GGUF file, possibly split.
    Gguf,
    /// A folder with `config.json` and safetensors.
    HuggingFace,
}

/// A small file in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextFile {
    /// A plain name.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// A tensor as the source calls and stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceTensor {
    /// Its name.
    pub name: String,
    /// Name of its stored type.
    pub dtype: String,
    /// Its shape there, outermost first; absent in vindexes of version 0.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<u64>,
    /// Which of [`Source::files`] has it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file: u32,
    /// Where its bytes are now.
    #[serde(default, skip_serializing_if = "TensorPlace::is_weights")]
    pub place: TensorPlace,
}

/// Where the bytes of a source's tensor are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorPlace {
    /// In `weights.gguf`, as they were: in one piece, or in a piece for each matrix where the tensor holds several.
    #[default]
    Weights,
    /// Made of what `weights.gguf` holds: rows were moved, values converted or encoded anew.
    Changed,
    /// In `source.safetensors`, as they were.
    Kept,
}

impl TensorPlace {
    fn is_weights(&self) -> bool {
        *self == Self::Weights
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A tensor that the forward pass does not use, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    /// Its name in the source.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Just enough to tell versions apart.
#[derive(Deserialize)]
struct VersionProbe {
    format_version: u64,
}

impl Manifest {
    /// The text of the file.
    pub fn encode(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("a manifest has string keys only and no type that refuses to be written");
        text.push('\n');
        text
    }

    /// Reads the text of the file that lies at `path`.
    ///
    /// # Errors
    /// [`VindexError::Version`] for another version, [`VindexError::Manifest`] with the field for anything else.
    pub fn decode(text: &[u8], path: &Path) -> Result<Self, VindexError> {
        let fail = |field: Option<String>, problem: String| VindexError::Manifest {
            path: path.to_owned(),
            field,
            problem,
        };
        let json: Value = serde_json::from_slice(text)
            .map_err(|error| fail(None, format!("not valid JSON: {error}")))?;
        if !json.is_object() {
            return Err(fail(None, "not a JSON object".to_owned()));
        }
        let probe = VersionProbe::deserialize(&json)
            .map_err(|error| fail(Some("format_version".to_owned()), error.to_string()))?;
        if probe.format_version != u64::from(FORMAT_VERSION) {
            return Err(VindexError::Version {
                path: path.to_owned(),
                got: probe.format_version,
            });
        }
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|error| fail(guilty_field(&json), error.to_string()))?;
        let canonical: Value = serde_json::from_str(&manifest.encode())
            .map_err(|error| fail(None, format!("cannot be written again: {error}")))?;
        if let Some((field, problem)) = first_difference("", &json, &canonical) {
            return Err(fail(Some(field), problem));
        }
        manifest
            .check()
            .map_err(|(field, problem)| fail(Some(field), problem))?;
        Ok(manifest)
    }

    /// The digest that identifies the model: everything that changes what it answers, nothing that only tells where it
    /// came from.
    pub fn compute_digest(&self) -> String {
        let spec = serde_json::to_string(&self.spec).expect("a spec has string keys only");
        let tokenizer = serde_json::to_string(&self.tokenizer).expect("a tokenizer entry too");
        let files: Vec<String> = self
            .files
            .iter()
            .map(|file| format!("{} {}", file.name, file.sha256))
            .collect();
        let text = format!(
            "vindex {FORMAT_VERSION}\nspec {spec}\ntokenizer {tokenizer}\n{}\n",
            files.join("\n")
        );
        hash_bytes(text.as_bytes())
    }

    /// What [`Self::checksum`] must be.
    fn compute_checksum(&self) -> String {
        let blank = Self {
            checksum: "0".repeat(HEX_CHARS),
            ..self.clone()
        };
        hash_bytes(blank.encode().as_bytes())
    }

    /// Sets the two digests, after which the manifest must not change.
    pub fn seal(&mut self) {
        self.digest = self.compute_digest();
        self.checksum = self.compute_checksum();
    }

    /// A listed file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// What the types cannot express; the field and what is wrong with it.
    fn check(&self) -> Result<(), (String, String)> {
        let wrong = |field: &str, problem: String| Err((field.to_owned(), problem));
        check_digest("digest", &self.digest)?;
        check_digest("checksum", &self.checksum)?;
        if self.spec.layers.is_empty() || self.spec.layers.len() > LAYERS_MAX {
            let n = self.spec.layers.len();
            return wrong(
                "spec.layers",
                format!("{n} layers, expected 1 to {LAYERS_MAX}"),
            );
        }
        if self.files.len() > LISTED.len() {
            return wrong(
                "files",
                format!("{} entries, at most {}", self.files.len(), LISTED.len()),
            );
        }
        check_files("files", &self.files)?;
        for (i, file) in self.files.iter().enumerate() {
            if !LISTED.contains(&file.name.as_str()) {
                let expected = LISTED.join(" or ");
                return wrong(
                    &format!("files[{i}].name"),
                    format!("`{}`, expected {expected}", file.name),
                );
            }
        }
        if self.file(WEIGHTS).is_none() {
            return wrong("files", format!("{WEIGHTS} is not listed"));
        }
        let place = self.tokenizer.as_ref().map(|tokenizer| tokenizer.place);
        match (place, self.file(TOKENIZER).is_some()) {
            (Some(TokenizerPlace::File), true) | (Some(TokenizerPlace::Weights) | None, false) => {}
            (Some(TokenizerPlace::File), false) => {
                return wrong(
                    "tokenizer.place",
                    format!("{TOKENIZER}, which `files` does not list"),
                );
            }
            (Some(TokenizerPlace::Weights) | None, true) => {
                return wrong(
                    "files",
                    format!("{TOKENIZER} is listed, but `tokenizer` does not use it"),
                );
            }
        }
        if self.source.files.len() > SOURCE_FILES_MAX {
            let n = self.source.files.len();
            return wrong(
                "source.files",
                format!("{n} entries, at most {SOURCE_FILES_MAX}"),
            );
        }
        self.source.check_files()?;
        for (i, file) in self.source.files.iter().enumerate() {
            if SOURCE_TEXTS.contains(&file.name.as_str()) || file.name == TOKENIZER {
                return wrong(
                    &format!("source.files[{i}].name"),
                    format!("`{}`, which is not a file of weights", file.name),
                );
            }
        }
        for (i, text) in self.source.texts.iter().enumerate() {
            if !SOURCE_TEXTS.contains(&text.name.as_str()) {
                let problem = format!(
                    "{:?}, expected one of {}",
                    text.name,
                    SOURCE_TEXTS.join(", ")
                );
                return wrong(&format!("source.texts[{i}].name"), problem);
            }
        }
        let expected = self.compute_digest();
        if self.digest != expected {
            return wrong(
                "digest",
                format!(
                    "{}, but spec, files and tokenizer give {expected}",
                    self.digest
                ),
            );
        }
        let expected = self.compute_checksum();
        if self.checksum != expected {
            return wrong(
                "checksum",
                format!("{}, but the text gives {expected}", self.checksum),
            );
        }
        Ok(())
    }
}

fn check_files(at: &str, files: &[FileEntry]) -> Result<(), (String, String)> {
    check_names(at, files.iter().map(|file| &*file.name))?;
    for (i, file) in files.iter().enumerate() {
        check_digest(&format!("{at}[{i}].sha256"), &file.sha256)?;
    }
    Ok(())
}

/// Plain names, each once.
fn check_names<'a>(
    at: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), (String, String)> {
    for (i, name) in names.clone().enumerate() {
        check_name(&format!("{at}[{i}].name"), name)?;
        if names.clone().take(i).any(|earlier| earlier == name) {
            return Err((
                format!("{at}[{i}].name"),
                format!("`{name}` is listed twice"),
            ));
        }
    }
    Ok(())
}

/// A name that stays inside its directory.
fn check_name(at: &str, name: &str) -> Result<(), (String, String)> {
    let plain = !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(['/', '\0']);
    if plain {
        Ok(())
    } else {
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        Err((at.to_owned(), format!("{shown:?} is not a plain file name")))
    }
}

fn check_digest(at: &str, digest: &str) -> Result<(), (String, String)> {
    let sound = digest.len() == HEX_CHARS
        && digest
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if sound {
        Ok(())
    } else {
        let problem = format!("not {HEX_CHARS} lower-case hexadecimal digits");
        Err((at.to_owned(), problem))
    }
}

/// The top-level field whose value does not have its type.
fn guilty_field(json: &Value) -> Option<String> {
    fn is<T: for<'de> Deserialize<'de>>(json: &Value) -> bool {
        T::deserialize(json).is_ok()
    }
    type FieldCheck = (&'static str, fn(&Value) -> bool);
    const FIELDS: [FieldCheck; 11] = [
        ("format_version", is::<u32>),
        ("created_by", is::<CreatedBy>),
        ("digest", is::<String>),
        ("level", is::<Level>),
        ("files", is::<Vec<FileEntry>>),
        ("tokenizer", is::<Option<TokenizerEntry>>),
        ("source", is::<Source>),
        ("ignored", is::<Vec<Ignored>>),
        ("notes", is::<Vec<String>>),
        ("spec", is::<ModelSpec>),
        ("checksum", is::<String>),
    ];
    FIELDS
        .iter()
        .find(|(field, is)| json.get(field).is_some_and(|value| !is(value)))
        .map(|(field, _)| (*field).to_owned())
}

/// Where the text says something else than what was understood.
fn first_difference(at: &str, text: &Value, understood: &Value) -> Option<(String, String)> {
    let below = |key: &str| {
        if at.is_empty() {
            key.to_owned()
        } else {
            format!("{at}.{key}")
        }
    };
    match (text, understood) {
        (Value::Object(a), Value::Object(b)) => {
            if let Some(key) = a.keys().find(|key| !b.contains_key(*key)) {
                return Some((below(key), "not a field of this version".to_owned()));
            }
            if let Some(key) = b.keys().find(|key| !a.contains_key(*key)) {
                return Some((below(key), "missing".to_owned()));
            }
            a.iter()
                .find_map(|(key, value)| first_difference(&below(key), value, &b[key]))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (a, b))| first_difference(&format!("{at}[{i}]"), a, b)),
        (a, b) if a == b => None,
        (a, b) => Some((
            at.to_owned(),
            format!("{a} is not exactly representable, nearest {b}"),
        )),
    }
}
