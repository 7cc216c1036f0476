//! `config.json` of a model that came from elsewhere: only keys that the spec states, in the spelling of its class.
//!
//! The family writes them ([`crate::families`]); what it writes, it reads back as the same spec, or the export is refused.

use larql_formats::Dtype;
use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::families;
use crate::to_hf::{FloatType, HfPlan};
use crate::tokenizer::HfTokenizerFolder;

/// The configuration of a checkpoint whose matrices are written in `float`.
///
/// # Errors
/// If the family has no writer, or its configuration would be read as another model.
pub fn config(checkpoint: &Checkpoint, float: FloatType) -> Result<Map<String, Value>, ModelError> {
    let (spec, origin) = (checkpoint.spec(), checkpoint.origin().display().to_string());
    let mut config = families::to_config(&origin, spec)?;
    // Without this the class looks for experts under other names, finds none, and goes on with random ones.
    let plan = HfPlan::of_family(checkpoint, float)?;
    if plan.tensors().any(|tensor| tensor.dtype == Dtype::U8) {
        let packed = json!({"quant_method": "mxfp4"});
        config.insert("quantization_config".to_owned(), packed);
    }
    // The class need not be that of the family whose GGUF files the reader takes them for.
    let model_type = config
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let class = families::by_model_type(&origin, model_type)?;
    let difference = match (class.from_config)(&RawConfig::new("config.json", &config)) {
        Ok(back) => families::first_difference(spec, &back),
        Err(refusal) => Some(refusal.to_string()),
    };
    if let Some(difference) = difference {
        return Err(ModelError::NoConfig {
            origin,
            family: spec.family.clone(),
            difference,
        });
    }
    config.insert("dtype".to_owned(), float.name().into());
    Ok(config)
}

/// Adds the ids that a class takes from its configuration.
pub fn add_tokens(config: &mut Map<String, Value>, tokenizer: &HfTokenizerFolder) {
    if let Some(bos) = tokenizer.bos {
        config.insert("bos_token_id".to_owned(), bos.into());
    }
    if let Some(pad) = tokenizer.pad {
        config.insert("pad_token_id".to_owned(), pad.into());
    }
    match tokenizer.eos.as_slice() {
        [] => {}
        [one] => {
            config.insert("eos_token_id".to_owned(), (*one).into());
        }
        many => {
            config.insert("eos_token_id".to_owned(), many.into());
        }
    }
}

/// `generation_config.json`: the ids that generation takes from it. Empty where the vocabulary has none of them.
pub fn generation(tokenizer: &HfTokenizerFolder) -> Map<String, Value> {
    let mut config = Map::new();
    let ids = [
        ("bos_token_id", tokenizer.bos),
        ("pad_token_id", tokenizer.pad),
    ];
    for (key, id) in ids {
        if let Some(id) = id {
            config.insert(key.to_owned(), id.into());
        }
    }
    if !tokenizer.eos.is_empty() {
        config.insert("eos_token_id".to_owned(), tokenizer.eos.clone().into());
    }
    config
}
