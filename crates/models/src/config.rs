//! `config.json`, read so that no key goes unnoticed.
//!
//! Each getter marks its key as read; [`RawConfig::finish`] then names every key that is neither read nor known to leave
//! the forward pass alone. `null` counts as absent, as it does in transformers.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::ModelError;

/// Keys that never change the forward pass.
const INERT: &[&str] = &[
    "_name_or_path",
    "_from_model_config",
    "_attn_implementation_autoset",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "embedding_dropout",
    "eos_token_id",
    "embd_pdrop",
    "gradient_checkpointing",
    "hidden_dropout",
    "initializer_range",
    "id2label",
    "label2id",
    "max_position_embeddings",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// One JSON object of a configuration, with the keys read so far.
#[derive(Debug)]
pub(crate) struct RawConfig<'a> {
    origin: String,
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> RawConfig<'a> {
    /// Wraps an object; `origin` names the file in errors.
    pub(crate) fn new(origin: &str, map: &'a Map<String, Value>) -> Self {
        Self {
            origin: origin.to_owned(),
            prefix: String::new(),
            map,
            read: RefCell::default(),
        }
    }

    /// The value of a key; `null` is absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether a key says `null` where the class takes another value for granted.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.read.borrow_mut().insert(key.to_owned());
        self.map.get(key).is_some_and(Value::is_null)
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

    /// A window of attention; one of no position is no window anybody means.
    pub(crate) fn opt_window(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.opt_u32(key)? {
            Some(0) => Err(self.bad(key, &Value::from(0), "a number above 0 or null")),
            other => Ok(other),
        }
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

    /// A finite number above zero.
    pub(crate) fn opt_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.opt_f64(key)? {
            Some(x) if x <= 0.0 => Err(self.bad(key, &Value::from(x), "a number above 0")),
            other => Ok(other),
        }
    }

    /// A finite number above zero that must be there.
    pub(crate) fn positive(&self, key: &str) -> Result<f64, ModelError> {
        self.opt_positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A truth value, or the documented default of the class.
    pub(crate) fn bool_or(&self, key: &str, class_default: bool) -> Result<bool, ModelError> {
        // Everywhere else `null` is absent; here transformers takes it for false.
        if class_default && self.map.get(key).is_some_and(Value::is_null) {
            self.ignore(key);
            return Err(self.bad(key, &Value::Null, "true or false"));
        }
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
    }

    /// Names every key that was neither read nor is inert.
    pub(crate) fn finish(&self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let keys: Vec<String> = self
            .map
            .iter()
            .filter(|(key, value)| {
                !value.is_null() && !read.contains(*key) && !INERT.contains(&key.as_str())
            })
            .map(|(key, _)| format!("{}{key}", self.prefix))
            .collect();
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
