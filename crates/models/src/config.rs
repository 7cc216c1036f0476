//! `config.json`, read so that no key goes unnoticed.
//!
//! Each getter marks its key as read; [`RawConfig::finish`] then names every key that is neither read nor known to leave
//! the forward pass alone. `null` counts as absent where a class takes it for that; for other keys it is refused, as
//! transformers would fail or compute something else.

mod harmless;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use self::harmless::{Harm, harm, is_always_harmless};
use crate::error::ModelError;

/// Keys that may be `null` where the class that reads them knows it: it then means what absence means, or says that there is
/// no such thing. A class in which one of them is something else reads it by [`RawConfig::is_null`].
const NULLABLE: &[&str] = &[
    "activation_sparsity_pattern",
    "attention_factor",
    "attn_logit_softcapping",
    "beta_fast",
    "beta_slow",
    "clip_qkv",
    "final_logit_softcapping",
    "layer_types",
    "linear_attn_config",
    "mlp_layer_types",
    "mlp_only_layers",
    "mscale",
    "mscale_all_dim",
    "n_inner",
    "no_rope_layers",
    "num_global_key_value_heads",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
    "sliding_window",
    "text_config",
    "use_bidirectional_attention",
];

/// Keys that say nothing to most families, but how far positions reach to those that read them.
const CONTEXT: &[&str] = &["max_position_embeddings", "model_max_length"];

/// One JSON object of a configuration, with the keys read so far.
#[derive(Debug)]
pub(crate) struct RawConfig<'a> {
    origin: String,
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
    /// Keys that were taken for absent because they are `null`.
    nulls: RefCell<BTreeSet<String>>,
}

impl<'a> RawConfig<'a> {
    /// Wraps an object; `origin` names the file in errors.
    pub(crate) fn new(origin: &str, map: &'a Map<String, Value>) -> Self {
        Self {
            origin: origin.to_owned(),
            prefix: String::new(),
            map,
            read: RefCell::default(),
            nulls: RefCell::default(),
        }
    }

    /// The value of a key; `null` is absent, and refused in the end unless it may be.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        let is_new = self.read.borrow_mut().insert(key.to_owned());
        let value = self.map.get(key)?;
        if value.is_null() && is_new && !NULLABLE.contains(&key) {
            self.nulls.borrow_mut().insert(key.to_owned());
        }
        Some(value).filter(|value| !value.is_null())
    }

    /// Whether a key says `null` where that is not the same as no key; the caller knows what it stands for.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.ignore(key);
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Every key with its value, nulls left out, without marking any as read.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let entries = self.map.iter().filter(|(_, value)| !value.is_null());
        entries.map(|(key, value)| (key.as_str(), value))
    }

    /// The entries that may change the forward pass, if only of a family that reads them.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let harmless = |key: &str| is_always_harmless(key) && !CONTEXT.contains(&key);
        self.entries().filter(move |(key, _)| !harmless(key))
    }

    /// A nested object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<RawConfig<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(RawConfig {
                origin: self.origin.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map,
                read: RefCell::default(),
                nulls: RefCell::default(),
            })),
            Some(other) => Err(self.bad(key, other, "an object")),
        }
    }

    /// A whole number that fits u32.
    pub(crate) fn opt_u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.get(key)
            .map(|v| {
                v.as_u64()
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| self.bad(key, v, "a whole number below 4294967296"))
            })
            .transpose()
    }

    /// A whole number above zero.
    pub(crate) fn u32(&self, key: &str) -> Result<u32, ModelError> {
        let value = self.opt_u32(key)?.ok_or_else(|| self.missing(key))?;
        if value == 0 {
            Err(self.bad(key, &Value::from(0), "a number above 0"))
        } else {
            Ok(value)
        }
    }

    /// A whole number above zero, that of the class where no key states it.
    pub(crate) fn u32_or(&self, key: &str, class_value: u32) -> Result<u32, ModelError> {
        match self.opt_u32(key)? {
            Some(0) => Err(self.bad(key, &Value::from(0), "a number above 0")),
            stated => Ok(stated.unwrap_or(class_value)),
        }
    }

    /// A window of attention; one of no position is no window anybody means.
    pub(crate) fn opt_window(
        &self,
        key: &str,
        class_window: Option<u32>,
    ) -> Result<Option<u32>, ModelError> {
        match self.opt_u32(key)? {
            Some(0) => Err(self.bad(key, &Value::from(0), "a number above 0 or null")),
            None if self.is_null(key) => Ok(None),
            stated => Ok(stated.or(class_window)),
        }
    }

    /// As [`Self::opt_window`] in a class with windowed layers, which has to have a window.
    pub(crate) fn window(&self, key: &str, class_window: u32) -> Result<u32, ModelError> {
        let window = self.opt_window(key, Some(class_window))?;
        window.ok_or_else(|| self.bad(key, &Value::Null, "a number above 0, or no key"))
    }

    /// A finite number.
    pub(crate) fn opt_f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.get(key)
            .map(|v| {
                v.as_f64()
                    .filter(|x| x.is_finite())
                    .ok_or_else(|| self.bad(key, v, "a finite number"))
            })
            .transpose()
    }

    /// A finite number above zero that stays one in f32, in which models compute.
    pub(crate) fn opt_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.opt_f64(key)? {
            Some(x) if x as f32 <= 0.0 => Err(self.bad(key, &Value::from(x), "a number above 0")),
            Some(x) if !(x as f32).is_finite() => {
                let expected = format!("a number up to {:e}", f32::MAX);
                Err(self.bad(key, &Value::from(x), &expected))
            }
            other => Ok(other),
        }
    }

    /// A finite number above zero that must be there.
    pub(crate) fn positive(&self, key: &str) -> Result<f64, ModelError> {
        self.opt_positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A truth value, or the documented default of the class.
    pub(crate) fn bool_or(&self, key: &str, class_default: bool) -> Result<bool, ModelError> {
        self.get(key).map_or(Ok(class_default), |v| {
            v.as_bool().ok_or_else(|| self.bad(key, v, "true or false"))
        })
    }

    /// A string.
    pub(crate) fn opt_str(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.get(key)
            .map(|v| v.as_str().ok_or_else(|| self.bad(key, v, "a string")))
            .transpose()
    }

    /// A list of strings.
    pub(crate) fn opt_strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
            .map(Some)
            .ok_or_else(|| self.bad(key, value, "a list of strings"))
    }

    /// Refuses any value but `false` or absence: the switch changes the forward pass in a way that is not built.
    pub(crate) fn must_be_off(&self, key: &str) -> Result<(), ModelError> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(other) => Err(self.bad(key, other, "false or absent")),
        }
    }

    /// Refuses any value but this one or absence: others change the forward pass in a way that is not built.
    pub(crate) fn must_be(&self, key: &str, expected: &Value) -> Result<(), ModelError> {
        match self.get(key) {
            None => Ok(()),
            Some(got) if got == expected => Ok(()),
            Some(got) if got.is_number() && got.as_f64() == expected.as_f64() => Ok(()),
            Some(got) => Err(self.bad(key, got, &format!("{expected} or absent"))),
        }
    }

    /// Marks a key as understood without using it.
    pub(crate) fn ignore(&self, key: &str) {
        self.read.borrow_mut().insert(key.to_owned());
        self.nulls.borrow_mut().remove(key);
    }

    /// Names every key that was neither read nor is harmless, or a key that must not be `null`.
    pub(crate) fn finish(&self) -> Result<(), ModelError> {
        if let Some(key) = self.nulls.borrow().first() {
            return Err(self.bad(key, &Value::Null, "a value, or no key"));
        }
        let read = self.read.borrow();
        let mut keys = Vec::new();
        for (key, value) in self.map {
            if value.is_null() || read.contains(key) {
                continue;
            }
            match harm(key, value) {
                Harm::Harmless => {}
                Harm::UnlessItSays(expected) => return Err(self.bad(key, value, expected)),
                Harm::Unknown => keys.push(format!("{}{key}", self.prefix)),
            }
        }
        if keys.is_empty() {
            Ok(())
        } else {
            Err(ModelError::UnknownKeys {
                origin: self.origin.clone(),
                keys,
            })
        }
    }

    /// The error for an absent key.
    pub(crate) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey {
            origin: self.origin.clone(),
            key: format!("{}{key}", self.prefix),
        }
    }

    /// The error for a value that cannot be used.
    pub(crate) fn bad(&self, key: &str, got: &Value, expected: &str) -> ModelError {
        ModelError::BadKey {
            origin: self.origin.clone(),
            key: format!("{}{key}", self.prefix),
            got: got.to_string(),
            expected: expected.to_owned(),
        }
    }
}
