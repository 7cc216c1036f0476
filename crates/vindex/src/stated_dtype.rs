//! [`with_dtype()`]: a `config.json` that states another type of its weights, and is the same text otherwise.
//!
//! Loaders convert all weights to the type that the file states, so it has to be that of the tensors beside it. Knows
//! where the classes look for it, and nothing of what else the file says.

use std::ops::Range;

/// The keys under which a configuration states the type of its weights.
const KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// The nested configuration in which the keys count as well.
const NESTED: &str = "text_config";

/// The text with this type where it stated another one, and what it stated; `None` where it stated this one or none.
/// The text has to be JSON.
pub(crate) fn with_dtype(text: &str, dtype: &str) -> Option<(String, String)> {
    let found = stated(text);
    let stated = found
        .iter()
        .map(|range| &text[range.clone()])
        .find(|stated| *stated != dtype)?;
    let mut changed = text.to_owned();
    // From the end, so that the places before it stay where they are.
    for range in found.iter().rev() {
        changed.replace_range(range.clone(), dtype);
    }
    Some((changed, stated.to_owned()))
}

/// An object or a list that is open.
struct Open {
    is_object: bool,
    /// The key whose value comes next or is being read.
    key: Option<String>,
}

/// Where the types stand, without their quotes.
fn stated(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'{' | b'[' => open.push(Open {
                is_object: *byte == b'{',
                key: None,
            }),
            b'}' | b']' => drop(open.pop()),
            b',' => {
                if let Some(inner) = open.last_mut() {
                    inner.key = None;
                }
            }
            b'"' => {
                let range = string(text, at + 1);
                at = range.end;
                let counts = is_of_model(&open);
                if let Some(inner) = open.last_mut().filter(|inner| inner.is_object) {
                    match &inner.key {
                        None => inner.key = Some(text[range].to_owned()),
                        Some(key) if counts && KEYS.contains(&key.as_str()) => found.push(range),
                        Some(_) => {}
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether the innermost object is the configuration or the nested one of the text model.
fn is_of_model(open: &[Open]) -> bool {
    match open {
        [_] => true,
        [outer, _] => outer.key.as_deref() == Some(NESTED),
        _ => false,
    }
}

/// The string that begins here, up to its closing quote.
fn string(text: &str, start: usize) -> Range<usize> {
    let mut end = start;
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(end) {
        match byte {
            b'"' => break,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    start..end.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_types_of_the_model_change() {
        let text = r#"{
  "a\"": "dtype", "list": ["dtype", "bfloat16", {"dtype": "int8"}],
  "torch_dtype" :  "bfloat16",
	"vision_config": {"dtype": "bfloat16"},
  "text_config": {"dtype": "bfloat16", "deep": {"dtype": "bfloat16"}}, "x": "torch_dtype"
}"#;
        let want = text
            .replace(
                r#""torch_dtype" :  "bfloat16""#,
                r#""torch_dtype" :  "float32""#,
            )
            .replace(
                r#""text_config": {"dtype": "bfloat16""#,
                r#""text_config": {"dtype": "float32""#,
            );
        let changed = with_dtype(text, "float32").unwrap();
        assert_eq!(changed, (want.clone(), "bfloat16".to_owned()));
        assert_eq!(with_dtype(&want, "float32"), None);
    }

    #[test]
    fn a_file_without_a_type_stays() {
        for text in [r#"{"torch_dtype": null, "a": "b"}"#, "{}", "[\"dtype\"]"] {
            assert_eq!(with_dtype(text, "float32"), None, "{text}");
        }
    }
}
