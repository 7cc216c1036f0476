//! JSON in the layout of Python's `json.dumps`, which the templates were written for.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `{"a": 1, "b": [2, 3]}`: one space after commas and colons.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// `value` on one line, or with `indent` spaces per level.
pub(super) fn dumps(
    value: &impl Serialize,
    indent: Option<usize>,
) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine))?,
        Some(indent) => {
            let spaces = vec![b' '; indent];
            let formatter = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
        }
    }
    Ok(String::from_utf8(out).expect("the serializer writes UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_python() {
        let value = serde_json::json!({"b": [1, "<\u{e9}>"], "a": {}});
        assert_eq!(
            dumps(&value, None).unwrap(),
            "{\"b\": [1, \"<\u{e9}>\"], \"a\": {}}"
        );
        assert_eq!(
            dumps(&value, Some(2)).unwrap(),
            "{\n  \"b\": [\n    1,\n    \"<\u{e9}>\"\n  ],\n  \"a\": {}\n}"
        );
    }
}
