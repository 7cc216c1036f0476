//! `SHOW RELATIONS`, `SHOW RELATION`, `CREATE RELATION` and `DROP RELATION`.

use larql_vindex::{RelationOrigin, RelationRow};

use crate::database::Database;
use crate::error::DbError;
use crate::relations::{Origin, Relation, Relations};
use crate::rows::{Cell, Rows};
use crate::session::Session;

/// Examples shown of a relation.
const EXAMPLES_SHOWN: usize = 3;

/// The relations of a model: the shipped ones and those that its vindex keeps.
pub(crate) fn of_database(db: &Database) -> Result<Relations, DbError> {
    let Some(vindex) = db.vindex() else {
        return Ok(Relations::shipped());
    };
    let mut relations = Relations::shipped();
    for RelationRow {
        name,
        templates,
        answers,
        answer_type,
        origin,
    } in vindex.knowledge()?.relations()?
    {
        match origin {
            RelationOrigin::User => {
                relations.add(Relation {
                    name,
                    templates,
                    answers,
                    answer_type,
                    examples: vec![],
                    origin: Origin::User,
                });
            }
            RelationOrigin::Shipped => {}
        }
    }
    Ok(relations)
}

pub(super) fn list(relations: &Relations, with_examples: bool) -> Rows {
    let mut columns = vec!["relation", "templates", "answers", "type", "origin"];
    if with_examples {
        columns.extend(["template", "examples"]);
    }
    let mut rows = Rows::new(&columns);
    for relation in relations.iter() {
        let mut row: Vec<Cell> = vec![
            relation.name.as_str().into(),
            relation.templates.len().into(),
            relation.answers.len().into(),
            relation.answer_type.clone().into(),
            relation.origin.name().into(),
        ];
        if with_examples {
            row.push(relation.templates.first().cloned().into());
            let examples = examples(relation);
            row.push(if examples.is_empty() {
                Cell::Null
            } else {
                examples.join(", ").into()
            });
        }
        rows.push(row);
    }
    rows
}

/// Known pairs, or the first answers where there are none.
fn examples(relation: &Relation) -> Vec<String> {
    if relation.examples.is_empty() {
        return relation
            .answers
            .iter()
            .take(EXAMPLES_SHOWN)
            .cloned()
            .collect();
    }
    let pairs = relation.examples.iter().take(EXAMPLES_SHOWN);
    pairs
        .map(|(entity, answer)| format!("{entity}: {answer}"))
        .collect()
}

pub(super) fn one(relation: &Relation) -> Rows {
    let mut rows = Rows::new(&["relation", "part", "text"]);
    let mut push = |part: &str, text: &str| {
        rows.push(vec![
            relation.name.as_str().into(),
            part.into(),
            text.into(),
        ])
    };
    if let Some(answer_type) = &relation.answer_type {
        push("type", answer_type);
    }
    relation
        .templates
        .iter()
        .for_each(|template| push("template", template));
    relation
        .answers
        .iter()
        .for_each(|answer| push("answer", answer));
    rows
}

pub(super) fn create(session: &mut Session, relation: &Relation) -> Result<Rows, DbError> {
    let open = session.open.as_mut().ok_or(DbError::NoModel)?;
    if let Some(vindex) = open.database.vindex() {
        let Relation {
            name,
            templates,
            answers,
            answer_type,
            examples: _,
            origin: _,
        } = relation.clone();
        vindex.knowledge()?.create_relation(&RelationRow {
            name,
            templates,
            answers,
            answer_type,
            origin: RelationOrigin::User,
        })?;
    }
    open.relations.add(relation.clone());
    let mut rows = one(relation);
    if open.database.vindex().is_none() {
        rows.note(format!(
            "{} is no vindex: the relation lasts as long as this session",
            open.database.name()
        ));
    }
    Ok(rows)
}

pub(super) fn remove(session: &mut Session, name: &str) -> Result<Rows, DbError> {
    let open = session.open.as_mut().ok_or(DbError::NoModel)?;
    if let Some(vindex) = open.database.vindex() {
        vindex.knowledge()?.drop_relation(name)?;
    }
    open.relations.remove(name);
    let mut rows = Rows::new(&["dropped"]);
    rows.push(vec![name.into()]);
    Ok(rows)
}
