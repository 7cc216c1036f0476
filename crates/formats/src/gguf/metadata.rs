//! [`Metadata`]: the ordered key-value section, with getters that never guess.
//!
//! A getter answers `Ok(None)` for an absent key and an error for a key of another type: the
//! string `"true"` is no bool, an array is no scalar, a float is no integer. Integers convert
//! between widths when the value fits, because writers disagree about widths.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::value::{Array, StringArray, Value};
use crate::error::{Error, MEMORY};

/// Keys and values in file order; no key appears twice.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// For messages.
    origin: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No keys; for writers.
    pub fn new() -> Metadata {
        Metadata::of_file(Path::new(MEMORY))
    }

    pub(crate) fn of_file(origin: &Path) -> Metadata {
        Metadata {
            origin: origin.to_path_buf(),
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Appends a key.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`].
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Result<(), Error> {
        let key = key.into();
        if self.index.contains_key(&key) {
            return Err(Error::DuplicateKey {
                path: self.origin.clone(),
                key,
            });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// Replaces the value of a key in its place, or appends the key.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.index.get(&key) {
            Some(idx) => self.entries[*idx].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// Removes a key and returns its value. Linear in the number of keys.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let idx = self.index.remove(key)?;
        for other in self.index.values_mut().filter(|other| **other > idx) {
            *other -= 1;
        }
        Some(self.entries.remove(idx).1)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|idx| &self.entries[*idx].1)
    }

    /// The error for a key that the caller needs and that is absent.
    pub fn missing(&self, key: &str) -> Error {
        Error::MissingKey {
            path: self.origin.clone(),
            key: key.to_owned(),
        }
    }

    /// An integer of any width that fits.
    ///
    /// # Errors
    /// [`Error::KeyType`] or [`Error::KeyRange`]; so for all getters.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "u32")
    }

    /// As [`Metadata::u32`].
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "i32")
    }

    /// As [`Metadata::u32`].
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "u64")
    }

    /// As [`Metadata::u32`].
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn i64(&self, key: &str) -> Result<Option<i64>, Error> {
        self.integer(key, "i64")
    }

    /// An f32, or an f64 rounded to f32.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(x)) => Ok(Some(*x)),
            Some(Value::F64(x)) => {
                let narrow = *x as f32;
                if narrow.is_finite() == x.is_finite() {
                    Ok(Some(narrow))
                } else {
                    Err(self.out_of_range(key, "f32", x.to_string()))
                }
            }
            Some(value) => Err(self.wrong_type(key, "f32", value)),
        }
    }

    /// An f64, or an f32 widened.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(x)) => Ok(Some(f64::from(*x))),
            Some(Value::F64(x)) => Ok(Some(*x)),
            Some(value) => Err(self.wrong_type(key, "f64", value)),
        }
    }

    /// A bool, stored as one.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(x)) => Ok(Some(*x)),
            Some(value) => Err(self.wrong_type(key, "a bool", value)),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(x)) => Ok(Some(x)),
            Some(value) => Err(self.wrong_type(key, "a string", value)),
        }
    }

    /// An array of strings.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn strings(&self, key: &str) -> Result<Option<&StringArray>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Strings(x))) => Ok(Some(x)),
            Some(value) => Err(self.wrong_type(key, "an array of strings", value)),
        }
    }

    /// An array of integers of any width that fit; so for the next three.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.integers(key, "an array of u32", "u32")
    }

    /// As [`Metadata::u32s`].
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.integers(key, "an array of i32", "i32")
    }

    /// As [`Metadata::u32s`].
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, Error> {
        self.integers(key, "an array of u64", "u64")
    }

    /// An array of f32.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(x))) => Ok(Some(x)),
            Some(value) => Err(self.wrong_type(key, "an array of f32", value)),
        }
    }

    /// An array of bools.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(x))) => Ok(Some(x)),
            Some(value) => Err(self.wrong_type(key, "an array of bools", value)),
        }
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Some(wide) = value.as_integer() else {
            return Err(self.wrong_type(key, expected, value));
        };
        T::try_from(wide)
            .map(Some)
            .map_err(|_| self.out_of_range(key, expected, wide.to_string()))
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
        element: &'static str,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wide = if let Value::Array(array) = value {
            array.integers()
        } else {
            None
        };
        let Some(wide) = wide else {
            return Err(self.wrong_type(key, expected, value));
        };
        wide.enumerate()
            .map(|(idx, x)| {
                T::try_from(x).map_err(|_| {
                    self.out_of_range(&format!("{key}[{idx}]"), element, x.to_string())
                })
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn wrong_type(&self, key: &str, expected: &'static str, found: &Value) -> Error {
        Error::KeyType {
            path: self.origin.clone(),
            key: key.to_owned(),
            expected,
            found: found.type_name().to_owned(),
        }
    }

    fn out_of_range(&self, key: &str, expected: &'static str, value: String) -> Error {
        Error::KeyRange {
            path: self.origin.clone(),
            key: key.to_owned(),
            expected,
            value,
        }
    }
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata::new()
    }
}

/// Same keys in the same order with the same values, wherever they came from.
impl PartialEq for Metadata {
    fn eq(&self, other: &Metadata) -> bool {
        self.entries == other.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new();
        for (key, value) in [
            ("big", Value::U64(1 << 32)),
            ("minus", Value::I8(-3)),
            ("small", Value::I64(7)),
            ("half", Value::F32(0.5)),
            ("wide", Value::F64(1e300)),
            ("yes", Value::String("true".into())),
            ("rows", Value::Array(Array::I64(vec![5, -1]))),
            (
                "names",
                Value::Array(Array::Strings(["a"].into_iter().collect())),
            ),
        ] {
            m.insert(key, value).unwrap();
        }
        m
    }

    #[test]
    fn integers_convert_when_they_fit() {
        let m = sample();
        assert_eq!(m.u32("small").unwrap(), Some(7));
        assert_eq!(m.u64("big").unwrap(), Some(1 << 32));
        assert_eq!(m.i32("minus").unwrap(), Some(-3));
        assert_eq!(m.i32s("rows").unwrap(), Some(vec![5, -1]));
        assert_eq!(m.u32("absent").unwrap(), None);
        assert_eq!(m.f64("half").unwrap(), Some(0.5));
    }

    #[test]
    fn nothing_is_guessed() {
        let m = sample();
        let cases: [(Error, &str); 9] = [
            (
                m.u32("big").unwrap_err(),
                "key `big` is 4294967296, which is no u32",
            ),
            (
                m.u64("minus").unwrap_err(),
                "key `minus` is -3, which is no u64",
            ),
            (
                m.u32("half").unwrap_err(),
                "key `half` is f32, expected u32",
            ),
            (
                m.f32("small").unwrap_err(),
                "key `small` is i64, expected f32",
            ),
            (
                m.bool("yes").unwrap_err(),
                "key `yes` is a string, expected a bool",
            ),
            (
                m.u32("rows").unwrap_err(),
                "key `rows` is an array of i64, expected u32",
            ),
            (
                m.u32s("rows").unwrap_err(),
                "key `rows[1]` is -1, which is no u32",
            ),
            (
                m.f32s("names").unwrap_err(),
                "key `names` is an array of strings, expected an array of f32",
            ),
            (m.missing("n"), "key `n` is missing"),
        ];
        for (error, expected) in cases {
            assert_eq!(error.to_string(), format!("(memory): {expected}"));
        }
        let wide = m.f32("wide").unwrap_err().to_string();
        assert!(wide.ends_with("which is no f32"), "{wide}");
    }

    #[test]
    fn set_keeps_the_place_and_remove_keeps_the_order() {
        let mut m = sample();
        m.set("minus", Value::U8(9));
        assert_eq!(m.iter().nth(1), Some(("minus", &Value::U8(9))));
        assert_eq!(m.remove("big"), Some(Value::U64(1 << 32)));
        assert_eq!(m.get("small"), Some(&Value::I64(7)));
        assert_eq!(m.iter().next(), Some(("minus", &Value::U8(9))));
        let again = m.insert("small", Value::Bool(true)).unwrap_err();
        assert_eq!(again.to_string(), "(memory): key `small` appears twice");
    }
}
