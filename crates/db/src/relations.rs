//! Relations: how a fact about an entity is asked for, and what its answers can be.
//!
//! A relation is text: templates with a place for the entity, whose end is where the answer follows. It says nothing about
//! where a model keeps the fact. Shipped relations come with the program; a user's own are kept with the model.

use serde::{Deserialize, Serialize};

/// Where a template has the entity.
pub const ENTITY_PLACE: &str = "{e}";
/// Longest name: it is a column of a table on a screen.
pub const NAME_BYTES_MAX: usize = 64;
/// Most templates of a relation: each is a forward pass per question.
pub const TEMPLATES_MAX: usize = 32;
/// Most answers of a relation: each is scored under each template.
pub const ANSWERS_MAX: usize = 4096;
/// Longest template or answer.
pub const TEXT_BYTES_MAX: usize = 1024;

const SHIPPED: &str = include_str!("../data/relations.json");

/// One relation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Relation {
    /// Its name.
    pub name: String,
    /// Prompts; each contains [`ENTITY_PLACE`] exactly once and ends where the answer follows.
    pub templates: Vec<String>,
    /// Answers that can occur; empty if any text can.
    pub answers: Vec<String>,
    /// What kind of thing an answer is.
    pub answer_type: Option<String>,
    /// True pairs of entity and answer, to show what is meant; a user's relation has none.
    pub examples: Vec<(String, String)>,
    /// Who made it.
    pub origin: Origin,
}

/// Who made a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It comes with the program.
    Shipped,
    /// `CREATE RELATION` made it.
    User,
}

impl Origin {
    /// The word in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::User => "user",
        }
    }
}

impl Relation {
    /// The prompt of a template for an entity.
    pub fn prompt(template: &str, entity: &str) -> String {
        template.replacen(ENTITY_PLACE, entity, 1)
    }
}

/// The relations that a model can be asked: shipped ones first, then a user's in the order of their making.
#[derive(Debug, Clone)]
pub struct Relations {
    shipped: Vec<Relation>,
    user: Vec<Relation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShippedFile {
    relations: Vec<ShippedRelation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShippedRelation {
    name: String,
    #[serde(rename = "type")]
    answer_type: Option<String>,
    templates: Vec<String>,
    #[serde(default)]
    answers: Vec<String>,
    #[serde(default)]
    examples: Vec<(String, String)>,
}

impl Relations {
    /// The shipped ones alone.
    pub fn shipped() -> Self {
        let file: ShippedFile =
            serde_json::from_str(SHIPPED).expect("a test reads the shipped table");
        let shipped = file
            .relations
            .into_iter()
            .map(|relation| Relation {
                name: relation.name,
                templates: relation.templates,
                answers: relation.answers,
                answer_type: relation.answer_type,
                examples: relation.examples,
                origin: Origin::Shipped,
            })
            .collect();
        Self {
            shipped,
            user: Vec::new(),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Relation> {
        self.shipped.iter().chain(&self.user)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|relation| relation.name.as_str())
    }

    /// One by its name, in any case of ASCII letters.
    pub fn find(&self, name: &str) -> Option<&Relation> {
        self.iter()
            .find(|relation| relation.name.eq_ignore_ascii_case(name))
    }

    /// Adds one that a user made; a shipped one of that name, which came later then, gives way.
    pub(crate) fn add(&mut self, relation: Relation) {
        self.shipped
            .retain(|shipped| !shipped.name.eq_ignore_ascii_case(&relation.name));
        self.user.push(relation);
    }

    /// Forgets one that a user made.
    pub(crate) fn remove(&mut self, name: &str) {
        self.user
            .retain(|relation| !relation.name.eq_ignore_ascii_case(name));
    }
}

/// What is wrong with a name, if anything.
pub(crate) fn name_fault(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        return Some("a relation needs a name".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!(
            "the name has {} bytes, at most {NAME_BYTES_MAX} are allowed",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Some("a name has no control characters and no space around it".to_owned());
    }
    None
}

/// What is wrong with an answer or a type, if anything.
pub(crate) fn text_fault(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("empty text".to_owned());
    }
    if text.len() > TEXT_BYTES_MAX {
        return Some(format!(
            "the text has {} bytes, at most {TEXT_BYTES_MAX} are allowed",
            text.len()
        ));
    }
    if text.trim() != text {
        return Some(
            "the text has white space around it, which would become part of its tokens".to_owned(),
        );
    }
    None
}

/// What is wrong with a template, if anything.
pub(crate) fn template_fault(template: &str) -> Option<String> {
    match template.matches(ENTITY_PLACE).count() {
        0 => Some(format!(
            "a template has {ENTITY_PLACE} where the entity goes, this one has none"
        )),
        1 => text_fault(template),
        n => Some(format!(
            "a template has {ENTITY_PLACE} once, this one has it {n} times"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_shipped_table_obeys_the_rules_of_create_relation() {
        let relations = Relations::shipped();
        let names: BTreeSet<&str> = relations.names().collect();
        assert_eq!(names.len(), relations.iter().count(), "names are unique");
        assert!(names.contains("capital"));
        for relation in relations.iter() {
            assert_eq!(name_fault(&relation.name), None);
            assert!(
                !relation.templates.is_empty() && relation.templates.len() <= TEMPLATES_MAX,
                "{}",
                relation.name
            );
            assert!(relation.answers.len() <= ANSWERS_MAX, "{}", relation.name);
            for template in &relation.templates {
                assert_eq!(
                    template_fault(template),
                    None,
                    "{}: {template}",
                    relation.name
                );
            }
            for (entity, answer) in &relation.examples {
                assert!(
                    !entity.is_empty() && !answer.is_empty(),
                    "{}",
                    relation.name
                );
                assert!(
                    relation.answers.is_empty() || relation.answers.contains(answer),
                    "{}: {answer}",
                    relation.name
                );
            }
            for answer in &relation.answers {
                assert_eq!(text_fault(answer), None, "{}: {answer}", relation.name);
            }
        }
    }

    #[test]
    fn a_prompt_has_the_entity_in_its_place_and_nothing_else_changes() {
        assert_eq!(
            Relation::prompt("The capital of {e} is", "{e}"),
            "The capital of {e} is"
        );
        assert_eq!(
            Relation::prompt("{e}'s capital is", "C\u{f4}te d'Ivoire"),
            "C\u{f4}te d'Ivoire's capital is"
        );
    }

    #[test]
    fn templates_are_refused_for_what_is_wrong_with_them() {
        assert_eq!(
            template_fault("The capital of France is").as_deref(),
            Some("a template has {e} where the entity goes, this one has none")
        );
        assert_eq!(
            template_fault("{e} and {e} are").as_deref(),
            Some("a template has {e} once, this one has it 2 times")
        );
        assert_eq!(
            template_fault("The capital of {e} is ").as_deref(),
            Some("the text has white space around it, which would become part of its tokens")
        );
        assert_eq!(template_fault("The capital of {e} is"), None);
    }
}
