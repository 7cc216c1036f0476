//! Metadata values: scalars, strings and typed arrays.
//!
//! Arrays keep the element type of the file, so that a file can be written back as it was.
//! String arrays are one buffer with offsets: a vocabulary of 262 144 tokens is two allocations.

use std::ops::Index;
use std::sync::Arc;

/// A metadata value, of the type that the file states.
#[expect(missing_docs, reason = "the variants are the types of the format")]
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array; all elements have one type.
#[expect(missing_docs, reason = "the variants are the types of the format")]
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Strings(StringArray),
    /// Arrays of arrays.
    Nested(Vec<Array>),
}

impl Value {
    /// The name of the type, as messages say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "a bool",
            Value::String(_) => "a string",
            Value::Array(array) => array.type_name(),
        }
    }

    /// The value of an integer of any width; `None` for everything else.
    pub fn as_integer(&self) -> Option<i128> {
        match self {
            Value::U8(x) => Some(i128::from(*x)),
            Value::I8(x) => Some(i128::from(*x)),
            Value::U16(x) => Some(i128::from(*x)),
            Value::I16(x) => Some(i128::from(*x)),
            Value::U32(x) => Some(i128::from(*x)),
            Value::I32(x) => Some(i128::from(*x)),
            Value::U64(x) => Some(i128::from(*x)),
            Value::I64(x) => Some(i128::from(*x)),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                None
            }
        }
    }

    /// The number of the type in the file.
    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(x) => x.len(),
            Array::I8(x) => x.len(),
            Array::U16(x) => x.len(),
            Array::I16(x) => x.len(),
            Array::U32(x) => x.len(),
            Array::I32(x) => x.len(),
            Array::U64(x) => x.len(),
            Array::I64(x) => x.len(),
            Array::F32(x) => x.len(),
            Array::F64(x) => x.len(),
            Array::Bool(x) => x.len(),
            Array::Strings(x) => x.len(),
            Array::Nested(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the type, as messages say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "an array of u8",
            Array::I8(_) => "an array of i8",
            Array::U16(_) => "an array of u16",
            Array::I16(_) => "an array of i16",
            Array::U32(_) => "an array of u32",
            Array::I32(_) => "an array of i32",
            Array::U64(_) => "an array of u64",
            Array::I64(_) => "an array of i64",
            Array::F32(_) => "an array of f32",
            Array::F64(_) => "an array of f64",
            Array::Bool(_) => "an array of bools",
            Array::Strings(_) => "an array of strings",
            Array::Nested(_) => "an array of arrays",
        }
    }

    /// The elements of an integer array of any width; `None` for everything else.
    pub(crate) fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        fn widen<'a, T: Copy + Into<i128>>(
            values: &'a [T],
        ) -> Option<Box<dyn Iterator<Item = i128> + 'a>> {
            Some(Box::new(values.iter().map(|x| (*x).into())))
        }
        match self {
            Array::U8(x) => widen(x),
            Array::I8(x) => widen(x),
            Array::U16(x) => widen(x),
            Array::I16(x) => widen(x),
            Array::U32(x) => widen(x),
            Array::I32(x) => widen(x),
            Array::U64(x) => widen(x),
            Array::I64(x) => widen(x),
            Array::F32(_)
            | Array::F64(_)
            | Array::Bool(_)
            | Array::Strings(_)
            | Array::Nested(_) => None,
        }
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::Strings(_) => 8,
            Array::Nested(_) => 9,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }
}

/// Many strings in one allocation, which clones share until one of them is added to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray(Arc<Strings>);

/// A text, and where each string in it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl StringArray {
    /// No strings.
    pub fn new() -> StringArray {
        StringArray::default()
    }

    pub(crate) fn with_capacity(n_strings: usize) -> StringArray {
        StringArray(Arc::new(Strings {
            text: String::new(),
            ends: Vec::with_capacity(n_strings),
        }))
    }

    /// Appends a string.
    pub fn push(&mut self, string: &str) {
        let Strings { text, ends } = Arc::make_mut(&mut self.0);
        text.push_str(string);
        ends.push(text.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// String `idx`, if there are so many.
    pub fn get(&self, idx: usize) -> Option<&str> {
        let Strings { text, ends } = &*self.0;
        let end = *ends.get(idx)?;
        let start = match idx.checked_sub(1) {
            Some(previous) => ends[previous],
            None => 0,
        };
        Some(&text[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|idx| &self[idx])
    }
}

impl Index<usize> for StringArray {
    type Output = str;

    fn index(&self, idx: usize) -> &str {
        match self.get(idx) {
            Some(string) => string,
            None => panic!("string {idx} of {}", self.len()),
        }
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let mut array = StringArray::new();
        for string in strings {
            array.push(string.as_ref());
        }
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_string_arrays_share_until_one_is_added_to() {
        let array: StringArray = ["a", "bc"].into_iter().collect();
        let mut longer = array.clone();
        assert!(std::ptr::eq(&array[1], &longer[1]));
        longer.push("d");
        assert_eq!(longer.iter().collect::<Vec<_>>(), ["a", "bc", "d"]);
        assert_eq!(array.iter().collect::<Vec<_>>(), ["a", "bc"]);
    }

    #[test]
    fn string_arrays_keep_empty_strings_apart() {
        let array: StringArray = ["", "ab", "", "\u{e9}", ""].into_iter().collect();
        assert_eq!(array.len(), 5);
        assert_eq!(
            array.iter().collect::<Vec<_>>(),
            ["", "ab", "", "\u{e9}", ""]
        );
        assert_eq!(array.get(3), Some("\u{e9}"));
        assert_eq!(array.get(5), None);
        let other: StringArray = ["", "a", "b", "\u{e9}", ""].into_iter().collect();
        assert_ne!(array, other, "same text, other boundaries");
    }
}
