//! JSON objects in which no key appears twice.
//!
//! `serde_json` keeps the last of two equal keys, Python too; a file that says a thing twice leaves open which one its
//! author meant. Keys are compared as they read, whatever escapes spell them. Nothing here knows what keys mean.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a whole text as one object.
///
/// # Errors
/// What `serde_json` says, and `key ... appears twice` with its place.
pub(crate) fn object(text: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::from_slice::<Strict>(text)?.0 {
        Value::Object(map) => Ok(map),
        // The message for another type is that of the ordinary reader.
        other => Map::deserialize(other),
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Seed.deserialize(deserializer).map(Self)
    }
}

struct Seed;

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = seq.next_element_seed(Self)? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{key}` appears twice")));
            }
            all.insert(key, map.next_value_seed(Self)?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_repetition_reads_as_usual() {
        let text = r#"{"a": [1, -2, 3.5, 1e300, true, null, "x\u0041"], "b": {"a": {}}, "": 18446744073709551615}"#;
        let usual: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(object(text.as_bytes()).unwrap(), usual);
    }

    #[test]
    fn a_key_that_appears_twice_is_refused_at_any_depth() {
        for (text, place) in [
            (
                r#"{"a": 1, "b": 2, "a": 1}"#,
                "key `a` appears twice at line 1 column 20",
            ),
            (
                "{\"a\": 1,\n\"\\u0061\": 2}",
                "key `a` appears twice at line 2 column 8",
            ),
            (
                r#"{"x": [{"y": {"k": 1, "k": 2}}]}"#,
                "key `k` appears twice at line 1 column 25",
            ),
        ] {
            let found = object(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(found, place);
        }
    }

    #[test]
    fn another_type_and_a_broken_text_are_named_as_usual() {
        for text in ["[1]", "3", "{\"a\": }", "{} x", ""] {
            let usual = serde_json::from_str::<Map<String, Value>>(text).unwrap_err();
            let found = object(text.as_bytes()).unwrap_err();
            assert_eq!(found.classify(), usual.classify(), "{text}");
        }
    }
}
