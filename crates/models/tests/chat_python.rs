//! Templates with the constructs of published ones, against what Python's jinja2 made of them.
//!
//! `data/chat.json` was written by `apply_chat_template`'s own environment (transformers 5.24, jinja2 3.1.6). An entry has
//! the text, or Python's error where it refused.
#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use larql_models::chat::{ChatError, ChatTemplate, GenerationPrompt, Message};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recorded {
    templates: Vec<Case>,
    expressions: Vec<Expression>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Expression {
    expression: String,
    text: Option<String>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("data/chat.json")).unwrap()
}

#[test]
fn templates_render_as_python_renders_them() {
    let cases = recorded().templates;
    assert_eq!(cases.len(), 24);
    for case in cases {
        let template = ChatTemplate::new(&case.template, "<s>", "</s>").unwrap();
        let prompt = if case.add_generation_prompt {
            GenerationPrompt::Add
        } else {
            GenerationPrompt::Omit
        };
        match (template.render(&case.messages, prompt), case.text) {
            (Ok(text), expected) => assert_eq!(Some(text), expected, "{}", case.name),
            // What a template raises is shown in its own words.
            (Err(error), None) => {
                assert!(matches!(error, ChatError::Raised { .. }), "{}", case.name);
                assert_eq!(Some(error.to_string()), case.error, "{}", case.name);
            }
            (Err(error), Some(_)) => panic!("{}: {error:?}", case.name),
        }
    }
}

#[test]
fn expressions_mean_what_they_mean_in_python() {
    let cases = recorded().expressions;
    assert_eq!(cases.len(), 75);
    let messages: Vec<Message> = [("user", "Hi"), ("assistant", "yo"), ("user", "q")]
        .map(|(role, content)| Message {
            role: role.into(),
            content: content.into(),
        })
        .into();
    let mut refused = 0;
    for case in cases {
        let source = format!("{{{{ {} }}}}", case.expression);
        let rendered = ChatTemplate::new(&source, "", "")
            .and_then(|template| template.render(&messages, GenerationPrompt::Omit));
        refused += usize::from(case.text.is_none());
        assert_eq!(rendered.ok(), case.text, "{}", case.expression);
    }
    assert_eq!(refused, 8);
}
