//! The special ids that the post-processor of a tokenizer.json puts around a text.
//!
//! Only what it does to one text is read: pairs of texts, types of segments and offsets mean nothing to a prompt.

use serde_json::Value;

use super::error::TokenizerError;

/// More ids around a text are no template; those in use put three.
const MAX_AROUND: usize = 64;

/// Ids before and after a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

/// Reads the value of the key `post_processor`.
pub(super) fn around(post_processor: &Value) -> Result<Around, TokenizerError> {
    let around = match post_processor["type"].as_str() {
        None if post_processor.is_null() => Around::default(),
        // It moves offsets only.
        Some("ByteLevel") => Around::default(),
        Some("TemplateProcessing") => template(post_processor)?,
        Some("BertProcessing" | "RobertaProcessing") => Around {
            before: vec![paired_id(post_processor, "cls")?],
            after: vec![paired_id(post_processor, "sep")?],
        },
        Some("Sequence") => {
            let steps = post_processor["processors"].as_array();
            let steps = steps.ok_or_else(|| refused("processors", post_processor, "a list"))?;
            let mut all = Around::default();
            for step in steps {
                // The last step is the outermost.
                let outer = self::around(step)?;
                all.before.splice(0..0, outer.before);
                all.after.extend(outer.after);
            }
            all
        }
        Some(_) | None => {
            let known =
                "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or Sequence";
            return Err(refused("type", post_processor, known));
        }
    };
    let got = around.before.len() + around.after.len();
    if got > MAX_AROUND {
        return Err(TokenizerError::Limit {
            what: "the number of ids that the post_processor adds",
            limit: MAX_AROUND,
            got,
        });
    }
    Ok(around)
}

/// The steps of `single`, each the text or a special token that stands for the ids under its name.
fn template(processor: &Value) -> Result<Around, TokenizerError> {
    let expected = "a list of special tokens and, once, the text A";
    let steps = processor["single"].as_array();
    let steps = steps.ok_or_else(|| refused("single", processor, expected))?;
    let mut around = Around::default();
    let mut text_seen = false;
    for step in steps {
        match (
            step["SpecialToken"]["id"].as_str(),
            step["Sequence"]["id"].as_str(),
        ) {
            (Some(name), None) => {
                let ids = ids_of(processor, name)?;
                match text_seen {
                    false => around.before.extend(ids),
                    true => around.after.extend(ids),
                }
            }
            (None, Some("A")) if !text_seen => text_seen = true,
            (Some(_) | None, Some(_) | None) => {
                return Err(refused("single", processor, expected));
            }
        }
    }
    match text_seen {
        true => Ok(around),
        false => Err(refused("single", processor, expected)),
    }
}

fn ids_of(processor: &Value, name: &str) -> Result<Vec<u32>, TokenizerError> {
    let tokens = &processor["special_tokens"];
    let ids = tokens[name]["ids"].as_array().and_then(|ids| {
        let ids: Option<Vec<u32>> = ids.iter().map(token_id).collect();
        ids.filter(|ids| !ids.is_empty())
    });
    ids.ok_or_else(|| {
        let expected = "`ids`, a list of token ids, for each special token of `single`";
        refused("special_tokens", processor, expected)
    })
}

/// The id of a pair of a text and an id.
fn paired_id(processor: &Value, key: &'static str) -> Result<u32, TokenizerError> {
    token_id(&processor[key][1]).ok_or_else(|| refused(key, processor, "a text and its token id"))
}

fn token_id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn refused(key: &'static str, processor: &Value, expected: &'static str) -> TokenizerError {
    TokenizerError::PostProcessor {
        key,
        found: processor[key].to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn special(name: &str) -> Value {
        json!({ "SpecialToken": { "id": name, "type_id": 0 } })
    }

    fn text(name: &str) -> Value {
        json!({ "Sequence": { "id": name, "type_id": 0 } })
    }

    fn processor(single: &[Value]) -> Value {
        json!({
            "type": "TemplateProcessing",
            "single": single,
            "special_tokens": { "<a>": { "id": "<a>", "ids": [7, 8] }, "<b>": { "id": "<b>", "ids": [9] } },
        })
    }

    #[test]
    fn ids_are_those_of_the_template() {
        let both = processor(&[special("<a>"), text("A"), special("<b>")]);
        let expected = Around {
            before: vec![7, 8],
            after: vec![9],
        };
        assert_eq!(around(&both).expect("a template"), expected);
        let inner = processor(&[special("<b>"), text("A")]);
        let bert = json!({ "type": "BertProcessing", "sep": ["x", 3], "cls": ["y", 4] });
        let steps = json!({ "type": "Sequence", "processors": [inner, { "type": "ByteLevel" }, bert, both] });
        let expected = Around {
            before: vec![7, 8, 4, 9],
            after: vec![3, 9],
        };
        assert_eq!(around(&steps).expect("a sequence"), expected);
        assert_eq!(around(&Value::Null).expect("nothing"), Around::default());
    }

    #[test]
    fn what_is_no_template_is_refused_by_key() {
        let many = vec![special("<a>"); 33];
        let cases = [
            (
                json!({ "type": "Bert" }),
                "type of its post_processor is \"Bert\"",
            ),
            (
                json!({ "single": [] }),
                "type of its post_processor is null",
            ),
            (processor(&[special("<a>")]), "single of its post_processor"),
            (
                processor(&[text("A"), text("A")]),
                "single of its post_processor",
            ),
            (processor(&[text("B")]), "single of its post_processor"),
            (
                processor(&[text("A"), special("<c>")]),
                "special_tokens of its post_processor",
            ),
            (
                json!({ "type": "RobertaProcessing", "cls": ["x", -1] }),
                "cls of its post_processor",
            ),
            (
                processor(&[&many[..], &[text("A")]].concat()),
                "adds is 66, the limit is 64",
            ),
        ];
        for (value, expected) in cases {
            let error = around(&value).expect_err("no template").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
