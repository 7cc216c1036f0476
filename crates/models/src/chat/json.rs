//! JSON in the layout of Python's `json.dumps`, which the templates were written for.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// The arguments of `json.dumps`.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Spaces per level, each item on a line of its own; otherwise all on one line.
    pub(super) indent: Option<usize>,
    /// Between items, and between a key and its value.
    pub(super) separators: (String, String),
    /// Characters beyond ASCII as escapes.
    pub(super) ensure_ascii: bool,
    /// Keys in alphabetical order.
    pub(super) sort_keys: bool,
}

impl Layout {
    /// The layout without arguments, or with an indent alone.
    pub(super) fn of_indent(indent: Option<usize>) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        Self {
            indent,
            separators: (item.to_owned(), ": ".to_owned()),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// Writes the separators and line breaks of a layout.
struct Python<'a> {
    layout: &'a Layout,
    depth: usize,
    is_empty: bool,
}

impl Python<'_> {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        match self.layout.indent {
            None => Ok(()),
            Some(indent) => write!(out, "\n{:1$}", "", indent * self.depth),
        }
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.layout.separators.0.as_bytes())?;
        }
        self.line(out)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(out)?;
        }
        // The bracket closes an item of the level above.
        self.is_empty = false;
        out.write_all(bracket)
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.layout.separators.1.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }
}

/// `value` as `json.dumps` writes it.
pub(super) fn dumps(value: &impl Serialize, layout: &Layout) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    let formatter = Python {
        layout,
        depth: 0,
        is_empty: true,
    };
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    if layout.sort_keys {
        sorted(serde_json::to_value(value)?).serialize(&mut serializer)?;
    } else {
        value.serialize(&mut serializer)?;
    }
    let text = String::from_utf8(out).expect("the serializer writes UTF-8");
    Ok(if layout.ensure_ascii {
        escaped(&text)
    } else {
        text
    })
}

/// `value` with the keys of all objects in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let in_order: BTreeMap<String, Value> = map
                .into_iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect();
            Value::Object(in_order.into_iter().collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Characters beyond ASCII, which only strings hold, as UTF-16 escapes.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value() -> Value {
        serde_json::from_str(
            "{\"b\": [1, \"<\u{e9}\u{1f60a}>\", [], {}], \"a\": {\"d\": 2, \"c\": []}}",
        )
        .unwrap()
    }

    #[test]
    fn layout_of_python() {
        let one_line = Layout {
            sort_keys: true,
            ..Layout::of_indent(None)
        };
        assert_eq!(
            dumps(&value(), &one_line).unwrap(),
            "{\"a\": {\"c\": [], \"d\": 2}, \"b\": [1, \"<\u{e9}\u{1f60a}>\", [], {}]}"
        );
        let indented = Layout {
            sort_keys: true,
            ..Layout::of_indent(Some(2))
        };
        assert_eq!(
            dumps(&value(), &indented).unwrap(),
            "{\n  \"a\": {\n    \"c\": [],\n    \"d\": 2\n  },\n  \"b\": [\n    1,\n    \"<\u{e9}\u{1f60a}>\",\n    [],\n    {}\n  ]\n}"
        );
    }

    #[test]
    fn ascii_and_separators() {
        let layout = Layout {
            separators: (",".to_owned(), ":".to_owned()),
            ensure_ascii: true,
            sort_keys: true,
            indent: None,
        };
        assert_eq!(
            dumps(&value(), &layout).unwrap(),
            "{\"a\":{\"c\":[],\"d\":2},\"b\":[1,\"<\\u00e9\\ud83d\\ude0a>\",[],{}]}"
        );
    }
}
