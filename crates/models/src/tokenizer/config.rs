//! What the JSON files beside a tokenizer.json say about special tokens and the chat template.

use serde::Deserialize;
use serde_json::Value;

use super::error::TokenizerError;
use super::special::SpecialTokens;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

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

/// Resolves the special tokens; `id_of` looks a marker up in the vocabulary.
pub(super) fn special_tokens(
    head: &Head,
    cfg: &HfTokenizerConfig,
    n_vocab: usize,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<SpecialTokens, TokenizerError> {
    let named = |key: &str| named_token(cfg, key, id_of);
    let template_prefix = template_prefix(&head.post_processor, id_of)?;
    let declared_bos = declared_ids(cfg, "bos_token_id")?.first().copied();
    let bos = named("bos_token")?
        .or(declared_bos)
        .or_else(|| template_prefix.last().copied());
    let mut eos: Vec<u32> = named("eos_token")?.into_iter().collect();
    eos.extend(declared_ids(cfg, "eos_token_id")?);
    let unk = named("unk_token")?;
    let pad = named("pad_token")?.or(declared_ids(cfg, "pad_token_id")?.first().copied());
    let add_bos = flag(cfg, "add_bos_token")?.unwrap_or(!template_prefix.is_empty());
    let add_eos = flag(cfg, "add_eos_token")?.unwrap_or(false);
    let prefix = match (add_bos, template_prefix.is_empty()) {
        (false, _) => Vec::new(),
        (true, false) => template_prefix,
        (true, true) => vec![bos.ok_or(TokenizerError::MissingBos)?],
    };
    for (what, ids) in [
        ("bos", bos.as_slice()),
        ("prefix", prefix.as_slice()),
        ("unk", unk.as_slice()),
    ] {
        check_ids(what, ids, n_vocab)?;
    }
    Ok(SpecialTokens {
        bos,
        eos,
        unk,
        pad,
        add_bos,
        add_eos,
        prefix,
    }
    .normalize())
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

/// The ids under `key` in generation_config.json, then in config.json and its `text_config`.
fn declared_ids(cfg: &HfTokenizerConfig, key: &str) -> Result<Vec<u32>, TokenizerError> {
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
            ids.push(id.ok_or_else(|| TokenizerError::ConfigValue {
                file,
                key: key.to_owned(),
                expected: "a token id or a list of token ids",
            })?);
        }
    }
    Ok(ids)
}

/// The special ids that the post-processor puts before a text.
fn template_prefix(
    post_processor: &Value,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<Vec<u32>, TokenizerError> {
    let lookup = |text: &str| {
        id_of(text).ok_or_else(|| TokenizerError::UnknownPiece {
            what: "tokenizer.json: post_processor".to_owned(),
            piece: text.to_owned(),
        })
    };
    match post_processor["type"].as_str() {
        Some("TemplateProcessing") => {
            let single = post_processor["single"].as_array();
            single
                .into_iter()
                .flatten()
                .map_while(|step| step["SpecialToken"]["id"].as_str())
                .map(lookup)
                .collect()
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            let cls = post_processor["cls"][0].as_str();
            cls.into_iter().map(lookup).collect()
        }
        Some("Sequence") => {
            let steps = post_processor["processors"].as_array();
            let mut prefix = Vec::new();
            for step in steps.into_iter().flatten() {
                // The last step is the outermost.
                prefix.splice(0..0, template_prefix(step, id_of)?);
            }
            Ok(prefix)
        }
        _ => Ok(Vec::new()),
    }
}
