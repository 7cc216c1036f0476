//! What the JSON files beside a tokenizer.json say about special tokens and the chat template.

use serde::Deserialize;
use serde_json::Value;

use super::error::TokenizerError;
use super::handle::TokenizerWarning;
use super::post_processor;
use super::special::SpecialTokens;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Classes, with or without `Fast`, that build their post-processor anew from `add_bos_token` and `add_eos_token`: published
/// files rely on it where tokenizer.json says otherwise. All other classes run tokenizer.json as it is.
const REBUILDING: [&str; 4] = [
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "CohereTokenizer",
];

/// The parsed files beside a tokenizer.json; a file that does not exist is `None`.
#[derive(Debug, Clone)]
pub struct HfTokenizerConfig {
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Value>,
    /// `generation_config.json`.
    pub generation_config: Option<Value>,
    /// `config.json`.
    pub config: Option<Value>,
    /// The text of `chat_template.jinja`; wins over the template in `tokenizer_config.json`.
    pub chat_template: Option<String>,
}

/// The parts of tokenizer.json that are read twice: here, and by the pipeline.
#[derive(Debug, Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    pub(super) added_tokens: Vec<DeclaredToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    /// Our own addition: present if the vocabulary is a SentencePiece one with scores.
    #[serde(default)]
    pub(super) sentencepiece: Option<super::spm_json::ScoreSection>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeclaredToken {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
}

/// Resolves the special tokens, with what the user must know; `id_of` looks a marker up in the vocabulary.
pub(super) fn special_tokens(
    head: &Head,
    cfg: &HfTokenizerConfig,
    n_vocab: usize,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<(SpecialTokens, Vec<TokenizerWarning>), TokenizerError> {
    let named = |key: &str| named_token(cfg, key, id_of);
    let around = post_processor::around(&head.post_processor)?;
    for (what, ids) in [("begins", &around.before), ("ends", &around.after)] {
        let what = format!("tokenizer.json: an id with which the post_processor {what} a text");
        check_ids(&what, ids, n_vocab)?;
    }
    let declared_bos = declared_ids(cfg, "bos_token_id")?.first().copied();
    let bos = named("bos_token")?
        .or(declared_bos)
        .or_else(|| around.before.last().copied());
    let mut eos: Vec<u32> = named("eos_token")?.into_iter().collect();
    eos.extend(checked_ids(cfg, "eos_token_id", n_vocab)?);
    if eos.is_empty() {
        eos.clone_from(&around.after);
    }
    check_ending(&around.after, &eos)?;
    let unk = named("unk_token")?;
    let declared_pad = checked_ids(cfg, "pad_token_id", n_vocab)?.first().copied();
    let pad = named("pad_token")?.or(declared_pad);
    let mut warnings = Vec::new();
    let add_bos = switch(
        cfg,
        "add_bos_token",
        !around.before.is_empty(),
        &mut warnings,
    )?;
    let add_eos = switch(
        cfg,
        "add_eos_token",
        !around.after.is_empty(),
        &mut warnings,
    )?;
    if add_eos {
        warnings.push(TokenizerWarning::EndLeftOut);
    }
    let prefix = match (add_bos, around.before.is_empty()) {
        (false, _) => Vec::new(),
        (true, false) => around.before,
        (true, true) => vec![bos.ok_or(TokenizerError::MissingBos)?],
    };
    for (what, id) in [("bos", bos), ("unk", unk)] {
        check_ids(what, id.as_slice(), n_vocab)?;
    }
    let special = SpecialTokens {
        bos,
        eos,
        unk,
        pad,
        add_bos,
        add_eos,
        prefix,
    };
    Ok((special.normalize(), warnings))
}

/// A prompt is to be continued, so what ends a text is left out of it; that is right only for ids that end.
fn check_ending(after: &[u32], eos: &[u32]) -> Result<(), TokenizerError> {
    match after.iter().find(|id| !eos.contains(id)) {
        None => Ok(()),
        Some(id) => Err(TokenizerError::PostProcessor {
            key: "single",
            found: format!("a template with id {id} after the text"),
            expected: "nothing there but the ids that end generation (eos_token, eos_token_id)",
        }),
    }
}

/// What `key` switches: as tokenizer.json has it, but in the classes that follow the key.
fn switch(
    cfg: &HfTokenizerConfig,
    key: &'static str,
    by_file: bool,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<bool, TokenizerError> {
    let Some(stated) = flag(cfg, key)?.filter(|stated| *stated != by_file) else {
        return Ok(by_file);
    };
    let class = tokenizer_class(cfg).map(str::to_owned);
    let follows_key = class.as_deref().is_some_and(|class| {
        let class = class.strip_suffix("Fast").unwrap_or(class);
        REBUILDING.contains(&class)
    });
    warnings.push(TokenizerWarning::SwitchMismatch {
        key,
        stated,
        class,
        follows_key,
    });
    Ok(if follows_key { stated } else { by_file })
}

pub(super) fn check_ids(what: &str, ids: &[u32], n_vocab: usize) -> Result<(), TokenizerError> {
    match ids.iter().find(|id| **id as usize >= n_vocab) {
        None => Ok(()),
        Some(&id) => Err(TokenizerError::IdOutOfRange {
            what: what.to_owned(),
            id,
            n_vocab,
        }),
    }
}

/// The chat template: a text, or a list of named ones of which `default` counts.
pub(super) fn chat_template(cfg: &HfTokenizerConfig) -> Result<Option<String>, TokenizerError> {
    if let Some(text) = &cfg.chat_template {
        return Ok(Some(text.clone()));
    }
    let wrong = || TokenizerError::ConfigValue {
        file: TOKENIZER_CONFIG,
        key: "chat_template".to_owned(),
        expected: "a string, or a list of {name, template} with the name `default`",
    };
    match tokenizer_config(cfg, "chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => list
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(|text| Some(text.to_owned()))
            .ok_or_else(wrong),
        Some(_) => Err(wrong()),
    }
}

pub(super) fn tokenizer_class(cfg: &HfTokenizerConfig) -> Option<&str> {
    tokenizer_config(cfg, "tokenizer_class")?.as_str()
}

fn tokenizer_config<'a>(cfg: &'a HfTokenizerConfig, key: &str) -> Option<&'a Value> {
    cfg.tokenizer_config.as_ref()?.get(key)
}

fn flag(cfg: &HfTokenizerConfig, key: &str) -> Result<Option<bool>, TokenizerError> {
    match tokenizer_config(cfg, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(TokenizerError::ConfigValue {
            file: TOKENIZER_CONFIG,
            key: key.to_owned(),
            expected: "true or false",
        }),
    }
}

/// A token that `tokenizer_config.json` names by its text, alone or as an added-token object.
pub(super) fn named_token(
    cfg: &HfTokenizerConfig,
    key: &str,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, TokenizerError> {
    let text = match tokenizer_config(cfg, key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => Some(text.as_str()),
        Some(other) => other.get("content").and_then(Value::as_str),
    };
    let text = text.ok_or_else(|| TokenizerError::ConfigValue {
        file: TOKENIZER_CONFIG,
        key: key.to_owned(),
        expected: "a string or an object with `content`",
    })?;
    let id = id_of(text).ok_or_else(|| TokenizerError::UnknownPiece {
        what: format!("{TOKENIZER_CONFIG}: {key}"),
        piece: text.to_owned(),
    })?;
    Ok(Some(id))
}

/// A value of a key, with the file it stands in.
struct Declared {
    file: &'static str,
    id: u32,
}

/// The ids under `key` in generation_config.json, then in config.json and its `text_config`.
fn declared(cfg: &HfTokenizerConfig, key: &str) -> Result<Vec<Declared>, TokenizerError> {
    let mut ids = Vec::new();
    let text_config = cfg.config.as_ref().and_then(|c| c.get("text_config"));
    for (file, root) in [
        ("generation_config.json", cfg.generation_config.as_ref()),
        ("config.json", cfg.config.as_ref()),
        ("config.json", text_config),
    ] {
        let value = root.and_then(|r| r.get(key)).unwrap_or(&Value::Null);
        let list = match value {
            Value::Null => continue,
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        for entry in list {
            let id = entry.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| TokenizerError::ConfigValue {
                file,
                key: key.to_owned(),
                expected: "a token id or a list of token ids",
            })?;
            ids.push(Declared { file, id });
        }
    }
    Ok(ids)
}

fn declared_ids(cfg: &HfTokenizerConfig, key: &str) -> Result<Vec<u32>, TokenizerError> {
    Ok(declared(cfg, key)?.iter().map(|one| one.id).collect())
}

/// As [`declared_ids`], for ids that only come out of a model: they need no text, but a row of the vocabulary or, where that
/// is larger, of the embedding.
fn checked_ids(
    cfg: &HfTokenizerConfig,
    key: &str,
    n_vocab: usize,
) -> Result<Vec<u32>, TokenizerError> {
    let root = cfg.config.as_ref();
    let rows = [root, root.and_then(|c| c.get("text_config"))]
        .into_iter()
        .flatten()
        .filter_map(|config| config.get("vocab_size")?.as_u64())
        .filter_map(|rows| usize::try_from(rows).ok())
        .max();
    let n_ids = n_vocab.max(rows.unwrap_or(0));
    let declared = declared(cfg, key)?;
    for one in &declared {
        check_ids(&format!("{}: {key}", one.file), &[one.id], n_ids)?;
    }
    Ok(declared.iter().map(|one| one.id).collect())
}
