//! Kinds of layers, as configurations list them.

use serde_json::Value;

use crate::config::RawConfig;
use crate::error::ModelError;

/// One of two words per layer: whether it is the first.
pub(super) fn kinds(
    cfg: &RawConfig<'_>,
    key: &str,
    words: &[&str],
    n_layers: u32,
    (yes, no): (&str, &str),
) -> Result<Vec<bool>, ModelError> {
    if words.len() != n_layers as usize {
        let got = Value::from(format!("{} entries", words.len()));
        return Err(cfg.bad(key, &got, &format!("{n_layers} entries")));
    }
    let kind = |word: &&str| match *word {
        word if word == yes => Ok(true),
        word if word == no => Ok(false),
        other => Err(cfg.bad(key, &Value::from(other), &format!("{yes} or {no}"))),
    };
    words.iter().map(kind).collect()
}
