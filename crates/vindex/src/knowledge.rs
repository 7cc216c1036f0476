//! [`KnowledgeDb`]: relations, their templates and their answers, in `knowledge.db`.
//!
//! This is the user's data: it changes after extraction, no digest covers it, and a file that cannot be read is an
//! error, never a reason to start again. Each change is one transaction. The file appears with the first change.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use crate::error::VindexError;
use crate::sqlite::{self, Access, table_error};

/// Name of the file in a vindex.
pub(crate) const KNOWLEDGE: &str = "knowledge.db";

const VERSION: i64 = 1;

/// Longer names, templates and answers are pasted text.
const TEXT_BYTES_MAX: usize = 4096;
/// More templates than anyone runs per question.
const TEMPLATES_MAX: usize = 256;
/// All tokens of the largest vocabularies in use.
const ANSWERS_MAX: usize = 1 << 18;

const SCHEMA: &str = "
    CREATE TABLE relations (
        name TEXT PRIMARY KEY COLLATE NOCASE,
        answer_type TEXT,
        origin TEXT NOT NULL CHECK (origin IN ('user', 'shipped'))
    );
    CREATE TABLE templates (
        relation TEXT NOT NULL COLLATE NOCASE REFERENCES relations(name) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        template TEXT NOT NULL,
        PRIMARY KEY (relation, position)
    ) WITHOUT ROWID;
    CREATE TABLE answers (
        relation TEXT NOT NULL COLLATE NOCASE REFERENCES relations(name) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        answer TEXT NOT NULL,
        PRIMARY KEY (relation, position)
    ) WITHOUT ROWID;
";

/// Who defined a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationOrigin {
    /// The user.
    User,
    /// This program.
    Shipped,
}

impl RelationOrigin {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Shipped => "shipped",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::User, Self::Shipped]
            .into_iter()
            .find(|origin| origin.name() == name)
    }
}

/// A relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationRow {
    /// Its name; two that differ only in the case of ASCII letters are the same.
    pub name: String,
    /// Prompts with a place for the entity, in order.
    pub templates: Vec<String>,
    /// Answers among which the model is asked to choose, in order; empty if any will do.
    pub answers: Vec<String>,
    /// What kind of thing an answer is.
    pub answer_type: Option<String>,
    /// Who defined it.
    pub origin: RelationOrigin,
}

/// The relations of one vindex.
#[derive(Debug)]
pub struct KnowledgeDb {
    path: PathBuf,
    /// `None` as long as there is no file.
    connection: Option<Connection>,
}

impl KnowledgeDb {
    /// Opens the file, if there is one.
    pub(crate) fn open(path: &Path) -> Result<Self, VindexError> {
        let mut db = Self {
            path: path.to_owned(),
            connection: None,
        };
        if path.exists() {
            let connection = sqlite::open(path, Access::Write).map_err(db.failed("opening"))?;
            db.connection = Some(db.prepare(connection)?);
        }
        Ok(db)
    }

    fn prepare(&self, connection: Connection) -> Result<Connection, VindexError> {
        let failed = self.failed("opening");
        connection
            .execute_batch("PRAGMA foreign_keys = ON")
            .map_err(&failed)?;
        let n_tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
            .map_err(&failed)?;
        let version = sqlite::version(&connection).map_err(&failed)?;
        match (n_tables, version) {
            (_, VERSION) => Ok(connection),
            (0, 0) => {
                let sql = format!("BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT");
                connection
                    .execute_batch(&sql)
                    .map_err(self.failed("making the tables"))?;
                Ok(connection)
            }
            (_, got) => Err(VindexError::TableVersion {
                path: self.path.clone(),
                got,
                known: VERSION,
            }),
        }
    }

    fn writable(&mut self) -> Result<&mut Connection, VindexError> {
        if self.connection.is_none() {
            let connection =
                sqlite::open(&self.path, Access::Create).map_err(self.failed("creating"))?;
            self.connection = Some(self.prepare(connection)?);
        }
        Ok(self.connection.as_mut().expect("it was opened above"))
    }

    /// Every relation, by name.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub fn relations(&self) -> Result<Vec<RelationRow>, VindexError> {
        let Some(connection) = &self.connection else {
            return Ok(vec![]);
        };
        read(connection).map_err(self.failed("reading relations"))
    }

    /// One relation.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub fn relation(&self, name: &str) -> Result<Option<RelationRow>, VindexError> {
        let all = self.relations()?;
        Ok(all
            .into_iter()
            .find(|relation| relation.name.eq_ignore_ascii_case(name)))
    }

    /// Adds a relation.
    ///
    /// # Errors
    /// [`VindexError::RelationExists`], [`VindexError::BadRelation`], or if the tables cannot be written.
    pub fn create_relation(&mut self, relation: &RelationRow) -> Result<(), VindexError> {
        check(relation)?;
        if self.relation(&relation.name)?.is_some() {
            return Err(VindexError::RelationExists {
                name: relation.name.clone(),
            });
        }
        let failed = self.failed("storing a relation");
        insert(self.writable()?, relation).map_err(failed)
    }

    /// Removes a relation with its templates and answers.
    ///
    /// # Errors
    /// [`VindexError::NoSuchRelation`], or if the tables cannot be written.
    pub fn drop_relation(&mut self, name: &str) -> Result<(), VindexError> {
        let failed = self.failed("removing a relation");
        let n_removed = match &self.connection {
            None => 0,
            Some(connection) => connection
                .execute("DELETE FROM relations WHERE name = ?1", [name])
                .map_err(failed)?,
        };
        match n_removed {
            0 => Err(VindexError::NoSuchRelation {
                name: name.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Runs a query of the caller's own on the tables `relations`, `templates` and `answers`; `None` if there are none.
    ///
    /// # Errors
    /// What the query fails with.
    pub fn with_connection<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<Option<T>, VindexError> {
        self.connection
            .as_ref()
            .map(query)
            .transpose()
            .map_err(self.failed("a query"))
    }

    fn failed(&self, action: &'static str) -> impl Fn(rusqlite::Error) -> VindexError + use<> {
        table_error(&self.path, action)
    }
}

/// Whether the file at `path` is sound; `None` if there is no file.
pub(crate) fn check_file(path: &Path) -> Option<Result<String, String>> {
    if !path.exists() {
        return None;
    }
    let checked = KnowledgeDb::open(path).and_then(|db| {
        let sound = db.with_connection(|connection| {
            connection.query_row("PRAGMA integrity_check(1)", [], |row| {
                row.get::<_, String>(0)
            })
        })?;
        Ok((sound, db.relations()?.len()))
    });
    Some(match checked {
        Ok((Some(sound), n)) if sound == "ok" => Ok(format!("{n} relations")),
        Ok((damage, _)) => Err(format!("damaged ({})", damage.unwrap_or_default())),
        Err(error) => Err(error.to_string()),
    })
}

fn check(relation: &RelationRow) -> Result<(), VindexError> {
    let RelationRow {
        name,
        templates,
        answers,
        answer_type,
        origin: _,
    } = relation;
    let bad = |problem: String| {
        Err(VindexError::BadRelation {
            name: name.chars().take(TEXT_BYTES_MAX).collect(),
            problem,
        })
    };
    if name.trim().is_empty() {
        return bad("a name must not be empty".to_owned());
    }
    for (what, n, max) in [
        ("templates", templates.len(), TEMPLATES_MAX),
        ("answers", answers.len(), ANSWERS_MAX),
    ] {
        if n > max {
            return bad(format!("{n} {what}, at most {max}"));
        }
    }
    let texts = templates
        .iter()
        .chain(answers)
        .chain(answer_type)
        .chain([name]);
    for text in texts {
        if text.len() > TEXT_BYTES_MAX {
            let n = text.len();
            return bad(format!("a text of {n} bytes, at most {TEXT_BYTES_MAX}"));
        }
        if text.contains('\0') {
            return bad("a text with a zero byte".to_owned());
        }
    }
    Ok(())
}

fn insert(connection: &mut Connection, relation: &RelationRow) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    transaction.execute(
        "INSERT INTO relations (name, answer_type, origin) VALUES (?1, ?2, ?3)",
        params![relation.name, relation.answer_type, relation.origin.name()],
    )?;
    for (sql, texts) in [
        (
            "INSERT INTO templates VALUES (?1, ?2, ?3)",
            &relation.templates,
        ),
        ("INSERT INTO answers VALUES (?1, ?2, ?3)", &relation.answers),
    ] {
        let mut statement = transaction.prepare(sql)?;
        for (position, text) in (0u32..).zip(texts) {
            statement.execute(params![relation.name, position, text])?;
        }
    }
    transaction.commit()
}

fn read(connection: &Connection) -> Result<Vec<RelationRow>, rusqlite::Error> {
    let mut relations = connection
        .prepare("SELECT name, answer_type, origin FROM relations ORDER BY name")?
        .query_map([], |row| {
            let origin: String = row.get(2)?;
            Ok(RelationRow {
                name: row.get(0)?,
                templates: vec![],
                answers: vec![],
                answer_type: row.get(1)?,
                origin: RelationOrigin::named(&origin)
                    .expect("the table's own check allows no other origin"),
            })
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let mut templates = connection
        .prepare("SELECT template FROM templates WHERE relation = ?1 ORDER BY position")?;
    let mut answers =
        connection.prepare("SELECT answer FROM answers WHERE relation = ?1 ORDER BY position")?;
    for relation in &mut relations {
        relation.templates = templates
            .query_map([&relation.name], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        relation.answers = answers
            .query_map([&relation.name], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
    }
    Ok(relations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(name: &str) -> RelationRow {
        RelationRow {
            name: name.to_owned(),
            templates: vec![
                "The capital of {} is".to_owned(),
                "{}'s capital is".to_owned(),
            ],
            answers: vec![
                "Paris".to_owned(),
                "T\u{14d}ky\u{14d}; DROP TABLE relations".to_owned(),
            ],
            answer_type: Some("city".to_owned()),
            origin: RelationOrigin::User,
        }
    }

    #[test]
    fn relations_persist_and_can_be_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KNOWLEDGE);
        let mut db = KnowledgeDb::open(&path).unwrap();
        assert_eq!(db.relations().unwrap(), []);
        assert!(!path.exists(), "reading creates no file");
        db.create_relation(&relation("capital")).unwrap();
        let bare = RelationRow {
            templates: vec![],
            answers: vec![],
            answer_type: None,
            origin: RelationOrigin::Shipped,
            name: "border'); --".to_owned(),
        };
        db.create_relation(&bare).unwrap();
        drop(db);
        let mut db = KnowledgeDb::open(&path).unwrap();
        assert_eq!(db.relations().unwrap(), [bare.clone(), relation("capital")]);
        let found = db.create_relation(&relation("CAPITAL")).unwrap_err();
        assert_eq!(found.to_string(), "relation `CAPITAL` exists already");
        db.drop_relation("Capital").unwrap();
        let left: i64 = db
            .with_connection(|sql| {
                sql.query_row(
                    "SELECT (SELECT count(*) FROM templates) + (SELECT count(*) FROM answers)",
                    [],
                    |row| row.get(0),
                )
            })
            .unwrap()
            .unwrap();
        assert_eq!(left, 0, "templates and answers go with their relation");
        assert_eq!(db.relations().unwrap(), [bare]);
        assert_eq!(
            db.drop_relation("capital").unwrap_err().to_string(),
            "no relation `capital`"
        );
    }

    #[test]
    fn what_cannot_be_stored_is_refused_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KNOWLEDGE);
        let mut db = KnowledgeDb::open(&path).unwrap();
        let mut many = relation("r");
        many.templates = vec!["t {}".to_owned(); 257];
        let mut long = relation("r");
        long.answers.push("x".repeat(4097));
        let mut zero = relation("r");
        zero.answer_type = Some("a\0b".to_owned());
        for (relation, expected) in [
            (relation(" "), "relation ` `: a name must not be empty"),
            (many, "relation `r`: 257 templates, at most 256"),
            (long, "relation `r`: a text of 4097 bytes, at most 4096"),
            (zero, "relation `r`: a text with a zero byte"),
        ] {
            assert_eq!(
                db.create_relation(&relation).unwrap_err().to_string(),
                expected
            );
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KNOWLEDGE);
        let junk = [7u8; 300];
        std::fs::write(&path, junk).unwrap();
        let found = KnowledgeDb::open(&path).unwrap_err().to_string();
        assert_eq!(
            found,
            format!("{}: opening failed: file is not a database", path.display())
        );
        assert_eq!(std::fs::read(&path).unwrap(), junk);
        std::fs::remove_file(&path).unwrap();
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE x (y); PRAGMA user_version = 3")
            .unwrap();
        let found = KnowledgeDb::open(&path).unwrap_err().to_string();
        assert_eq!(
            found,
            format!(
                "{}: table version 3, this program reads version 1",
                path.display()
            )
        );
    }
}
