//! [`FeatureTable`]: what each feature writes and how long its vectors are, cached in `features.db`.
//!
//! A cache and nothing more: it is keyed by the digest of the model, and whatever is wrong with it (another model's
//! digest, another version, a damaged file) is answered by starting again, with a note. Where the directory cannot be
//! written, the table lives in memory and begins with what the file on disk holds.
//!
//! The two tables are open to SQL through [`FeatureTable::with_connection`]:
//! `features(layer, feature, gate_norm, down_norm)` and `outputs(layer, feature, rank, token, score)`.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use crate::error::VindexError;
use crate::sqlite::{self, Access, table_error};

/// Name of the file in a vindex.
pub(crate) const FEATURES: &str = "features.db";

const VERSION: i64 = 1;

/// Bytes by which SQLite files that belong to the database differ in name.
const COMPANIONS: [&str; 3] = ["-journal", "-wal", "-shm"];

const SCHEMA: &str = "
    CREATE TABLE model (digest TEXT NOT NULL);
    CREATE TABLE features (
        layer INTEGER NOT NULL,
        feature INTEGER NOT NULL,
        gate_norm REAL NOT NULL,
        down_norm REAL NOT NULL,
        PRIMARY KEY (layer, feature)
    ) WITHOUT ROWID;
    CREATE TABLE outputs (
        layer INTEGER NOT NULL,
        feature INTEGER NOT NULL,
        rank INTEGER NOT NULL,
        token INTEGER NOT NULL,
        score REAL NOT NULL,
        PRIMARY KEY (layer, feature, rank)
    ) WITHOUT ROWID;
";

/// A token that a feature writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutputToken {
    /// Its id.
    pub token: u32,
    /// Product of its unembedding and the feature's down column.
    pub score: f32,
}

/// One feature.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureRow {
    /// Its layer.
    pub layer: u32,
    /// Its index in the layer.
    pub feature: u32,
    /// Length of its gate row (of its up row, where there is no gate).
    pub gate_norm: f32,
    /// Length of its down column.
    pub down_norm: f32,
    /// Tokens it writes, best first.
    pub outputs: Vec<OutputToken>,
}

/// The cache of one vindex.
#[derive(Debug)]
pub struct FeatureTable {
    path: PathBuf,
    connection: Connection,
    in_memory: bool,
    notes: Vec<String>,
}

/// What is in a database file.
enum Found {
    /// Nothing yet.
    New,
    /// This model's features.
    Ours,
    /// Anything else, in words.
    Other(String),
}

impl FeatureTable {
    /// Opens or creates the table at `path` for the model with this digest.
    ///
    /// # Errors
    /// Only if even a table in memory cannot be made.
    pub(crate) fn open(path: &Path, digest: &str) -> Result<Self, VindexError> {
        let mut notes = Vec::new();
        // A second try follows the removal of a file that is no use.
        for _ in 0..2 {
            match Self::on_disk(path, digest) {
                Ok(Ok(connection)) => {
                    return Ok(Self {
                        path: path.to_owned(),
                        connection,
                        in_memory: false,
                        notes,
                    });
                }
                Ok(Err(why)) if discard(path) => {
                    notes.push(format!("{}: {why}; built anew", path.display()));
                }
                Ok(Err(why)) => {
                    notes.push(format!(
                        "{}: {why}, and it cannot be removed",
                        path.display()
                    ));
                    break;
                }
                Err(error) => {
                    notes.push(format!("{}: cannot be written: {error}", path.display()));
                    break;
                }
            }
        }
        notes.push("features are kept in memory and lost at the end".to_owned());
        let connection =
            Self::memory(path, digest).map_err(table_error(path, "making a table in memory"))?;
        Ok(Self {
            path: path.to_owned(),
            connection,
            in_memory: true,
            notes,
        })
    }

    /// The outer error is the surroundings', the inner one says why the content is of no use.
    fn on_disk(path: &Path, digest: &str) -> Result<Result<Connection, String>, rusqlite::Error> {
        let connection = sqlite::open(path, Access::Create)?;
        let opened = (|| {
            match inspect(&connection, digest)? {
                Found::Ours => {}
                Found::New => create(&connection, digest)?,
                Found::Other(why) => return Ok(Err(why)),
            }
            // Fails where the file or its directory is read-only.
            connection
                .execute_batch("BEGIN IMMEDIATE; UPDATE model SET digest = digest; COMMIT")?;
            Ok(Ok(()))
        })();
        match opened {
            Ok(content) => Ok(content.map(|()| connection)),
            Err(error) if sqlite::is_damage(&error) => Ok(Err(format!("damaged ({error})"))),
            Err(error) => Err(error),
        }
    }

    fn memory(path: &Path, digest: &str) -> Result<Connection, rusqlite::Error> {
        let connection = Connection::open_in_memory()?;
        create(&connection, digest)?;
        // What cannot be read is left out: the table fills itself again.
        if let Ok(disk) = sqlite::open(path, Access::Read)
            && let Ok(Found::Ours) = inspect(&disk, digest)
            && copy(&disk, &connection).is_err()
        {
            let empty = Connection::open_in_memory()?;
            create(&empty, digest)?;
            return Ok(empty);
        }
        Ok(connection)
    }

    /// One feature, if it has been computed.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn get(&self, layer: u32, feature: u32) -> Result<Option<FeatureRow>, VindexError> {
        self.read(layer, feature)
            .map_err(self.failed("reading a feature"))
    }

    fn read(&self, layer: u32, feature: u32) -> Result<Option<FeatureRow>, rusqlite::Error> {
        let norms = self
            .connection
            .prepare_cached(
                "SELECT gate_norm, down_norm FROM features WHERE layer = ?1 AND feature = ?2",
            )?
            .query_row([layer, feature], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((gate_norm, down_norm)) = norms else {
            return Ok(None);
        };
        let outputs = self
            .connection
            .prepare_cached(
                "SELECT token, score FROM outputs WHERE layer = ?1 AND feature = ?2 ORDER BY rank",
            )?
            .query_map([layer, feature], |row| {
                Ok(OutputToken {
                    token: row.get(0)?,
                    score: row.get(1)?,
                })
            })?
            .collect::<Result<_, _>>()?;
        Ok(Some(FeatureRow {
            layer,
            feature,
            gate_norm,
            down_norm,
            outputs,
        }))
    }

    /// Stores features, all or none; a feature that is there already is replaced.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn put_many(&mut self, rows: &[FeatureRow]) -> Result<(), VindexError> {
        let failed = self.failed("storing features");
        write(&mut self.connection, rows).map_err(failed)
    }

    /// Features that are stored.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn count(&self) -> Result<u64, VindexError> {
        self.connection
            .query_row("SELECT count(*) FROM features", [], |row| {
                row.get::<_, i64>(0)
            })
            .map(i64::unsigned_abs)
            .map_err(self.failed("counting features"))
    }

    /// Forgets every feature.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn clear(&mut self) -> Result<(), VindexError> {
        self.connection
            .execute_batch("BEGIN; DELETE FROM outputs; DELETE FROM features; COMMIT")
            .map_err(self.failed("clearing features"))
    }

    /// Runs a query of the caller's own on the two tables.
    ///
    /// # Errors
    /// What the query fails with.
    pub fn with_connection<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, VindexError> {
        query(&self.connection).map_err(self.failed("a query"))
    }

    /// The file, whether or not it is in use.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is stored is lost at the end.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// What a user should know about how the table was opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn failed(&self, action: &'static str) -> impl Fn(rusqlite::Error) -> VindexError + use<> {
        table_error(&self.path, action)
    }
}

/// Whether the file at `path` is a sound table for the model with this digest; `Ok(None)` if there is no file.
pub(crate) fn check_file(path: &Path, digest: &str) -> Option<Result<String, String>> {
    if !path.exists() {
        return None;
    }
    let checked = sqlite::open(path, Access::Read).and_then(|connection| {
        let found = inspect(&connection, digest)?;
        let sound: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok((found, sound))
    });
    Some(match checked {
        Ok((Found::Ours, sound)) if sound == "ok" => {
            Ok("cache of this model; its rows are not compared with the weights".to_owned())
        }
        Ok((Found::New, sound)) if sound == "ok" => Ok("empty cache".to_owned()),
        Ok((Found::Other(why), _)) => Err(why),
        Ok((Found::Ours | Found::New, damage)) => Err(format!("damaged ({damage})")),
        Err(error) => Err(format!("damaged ({error})")),
    })
}

fn inspect(connection: &Connection, digest: &str) -> Result<Found, rusqlite::Error> {
    let n_tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    let version = sqlite::version(connection)?;
    if n_tables == 0 && version == 0 {
        return Ok(Found::New);
    }
    if version != VERSION {
        return Ok(Found::Other(format!(
            "table version {version}, expected {VERSION}"
        )));
    }
    let found: String = connection.query_row("SELECT digest FROM model", [], |row| row.get(0))?;
    // Both tables must be there with the columns that are read.
    connection.query_row(
        "SELECT count(*) FROM features f LEFT JOIN outputs o
         ON o.layer = f.layer AND o.feature = f.feature AND o.rank = 0 AND o.token + o.score + f.gate_norm + f.down_norm < 0
         WHERE f.layer < 0",
        [],
        |row| row.get::<_, i64>(0),
    )?;
    if found == digest {
        Ok(Found::Ours)
    } else {
        Ok(Found::Other("features of another model".to_owned()))
    }
}

fn create(connection: &Connection, digest: &str) -> Result<(), rusqlite::Error> {
    connection.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {VERSION};"))?;
    connection.execute("INSERT INTO model (digest) VALUES (?1)", [digest])?;
    connection.execute_batch("COMMIT")
}

fn copy(disk: &Connection, memory: &Connection) -> Result<(), rusqlite::Error> {
    memory.execute_batch("BEGIN")?;
    let mut insert = memory.prepare("INSERT INTO features VALUES (?1, ?2, ?3, ?4)")?;
    let mut select = disk.prepare("SELECT layer, feature, gate_norm, down_norm FROM features")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        insert.execute(params![
            row.get::<_, u32>(0)?,
            row.get::<_, u32>(1)?,
            row.get::<_, f64>(2)?,
            row.get::<_, f64>(3)?
        ])?;
    }
    let mut insert = memory.prepare("INSERT INTO outputs VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut select = disk.prepare("SELECT layer, feature, rank, token, score FROM outputs")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        insert.execute(params![
            row.get::<_, u32>(0)?,
            row.get::<_, u32>(1)?,
            row.get::<_, u32>(2)?,
            row.get::<_, u32>(3)?,
            row.get::<_, f64>(4)?
        ])?;
    }
    memory.execute_batch("COMMIT")
}

fn write(connection: &mut Connection, rows: &[FeatureRow]) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    {
        let mut feature = transaction
            .prepare_cached("INSERT OR REPLACE INTO features VALUES (?1, ?2, ?3, ?4)")?;
        let mut forget =
            transaction.prepare_cached("DELETE FROM outputs WHERE layer = ?1 AND feature = ?2")?;
        let mut output =
            transaction.prepare_cached("INSERT INTO outputs VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for row in rows {
            let FeatureRow {
                layer,
                feature: idx,
                gate_norm,
                down_norm,
                outputs,
            } = row;
            feature.execute(params![layer, idx, gate_norm, down_norm])?;
            forget.execute([layer, idx])?;
            for (rank, OutputToken { token, score }) in (0u32..).zip(outputs) {
                output.execute(params![layer, idx, rank, token, score])?;
            }
        }
    }
    transaction.commit()
}

/// Removes a cache file that is no use, with what SQLite left beside it; whether it is gone.
fn discard(path: &Path) -> bool {
    for suffix in COMPANIONS {
        let mut companion = path.as_os_str().to_owned();
        companion.push(suffix);
        // One that stays behind makes SQLite refuse the new file, which is noticed there.
        let _ = fs::remove_file(companion);
    }
    fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "aa";

    fn row(layer: u32, feature: u32) -> FeatureRow {
        FeatureRow {
            layer,
            feature,
            gate_norm: 0.1 + feature as f32,
            down_norm: 1.0 / 3.0,
            outputs: vec![
                OutputToken {
                    token: 7,
                    score: 1.5e-7,
                },
                OutputToken {
                    token: 262_143,
                    score: -0.3,
                },
            ],
        }
    }

    fn open(path: &Path, digest: &str) -> FeatureTable {
        FeatureTable::open(path, digest).unwrap()
    }

    #[test]
    fn rows_come_back_exactly_and_replace_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FEATURES);
        let mut table = open(&path, DIGEST);
        assert_eq!(table.notes(), [] as [&str; 0]);
        table.put_many(&[row(0, 3), row(17, 2047)]).unwrap();
        let mut shorter = row(0, 3);
        shorter.outputs.truncate(1);
        table.put_many(std::slice::from_ref(&shorter)).unwrap();
        drop(table);
        let mut table = open(&path, DIGEST);
        assert_eq!(table.get(0, 3).unwrap(), Some(shorter));
        assert_eq!(table.get(17, 2047).unwrap(), Some(row(17, 2047)));
        assert_eq!(table.get(17, 3).unwrap(), None);
        assert_eq!(table.count().unwrap(), 2);
        let best: f64 = table
            .with_connection(|sql| {
                sql.query_row(
                    "SELECT max(score) FROM outputs WHERE layer = 17",
                    [],
                    |row| row.get(0),
                )
            })
            .unwrap();
        assert_eq!(best as f32, 1.5e-7);
        table.clear().unwrap();
        assert_eq!(open(&path, DIGEST).count().unwrap(), 0);
    }

    #[test]
    fn a_failed_put_stores_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut table = open(&dir.path().join(FEATURES), DIGEST);
        let mut bad = row(1, 1);
        bad.down_norm = f32::NAN;
        let found = table.put_many(&[row(0, 0), bad]).unwrap_err().to_string();
        assert!(
            found.contains("storing features failed: NOT NULL constraint failed"),
            "{found}"
        );
        assert_eq!(table.count().unwrap(), 0);
    }

    #[test]
    fn the_table_of_another_model_is_built_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FEATURES);
        open(&path, DIGEST).put_many(&[row(0, 0)]).unwrap();
        assert_eq!(
            check_file(&path, "bb").unwrap().unwrap_err(),
            "features of another model"
        );
        let table = open(&path, "bb");
        assert_eq!(table.count().unwrap(), 0);
        let expected = format!("{}: features of another model; built anew", path.display());
        assert_eq!(table.notes(), [expected]);
        assert_eq!(open(&path, "bb").notes(), [] as [&str; 0]);
    }

    #[test]
    fn a_damaged_file_is_built_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FEATURES);
        for (bytes, why) in [
            (
                vec![b'x'; 200],
                Some("damaged (file is not a database); built anew"),
            ),
            (Vec::new(), None),
        ] {
            fs::write(&path, bytes).unwrap();
            let mut table = open(&path, DIGEST);
            let expected = why.map(|why| format!("{}: {why}", path.display()));
            assert_eq!(table.notes(), expected.as_slice());
            table.put_many(&[row(0, 1)]).unwrap();
            drop(table);
            assert_eq!(open(&path, DIGEST).get(0, 1).unwrap(), Some(row(0, 1)));
        }
        Connection::open(&path)
            .unwrap()
            .execute_batch("DROP TABLE outputs")
            .unwrap();
        let table = open(&path, DIGEST);
        assert!(
            table.notes()[0].contains("damaged (no such table"),
            "{:?}",
            table.notes()
        );
        assert_eq!(table.count().unwrap(), 0);
        Connection::open(&path)
            .unwrap()
            .execute_batch("PRAGMA user_version = 9")
            .unwrap();
        let table = open(&path, DIGEST);
        assert!(
            table.notes()[0].contains("table version 9, expected 1"),
            "{:?}",
            table.notes()
        );
    }

    #[test]
    fn what_cannot_be_written_is_kept_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FEATURES);
        fs::create_dir(&path).unwrap();
        let mut table = open(&path, DIGEST);
        assert!(table.is_in_memory());
        assert_eq!(
            table.notes().last().unwrap(),
            "features are kept in memory and lost at the end"
        );
        table.put_many(&[row(4, 4)]).unwrap();
        assert_eq!(table.get(4, 4).unwrap(), Some(row(4, 4)));
        assert!(path.is_dir());
    }

    #[test]
    fn a_table_in_memory_begins_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FEATURES);
        open(&path, DIGEST)
            .put_many(&[row(2, 9), row(3, 1)])
            .unwrap();
        let connection = FeatureTable::memory(&path, DIGEST).unwrap();
        let table = FeatureTable {
            path: path.clone(),
            connection,
            in_memory: true,
            notes: vec![],
        };
        assert_eq!(table.get(2, 9).unwrap(), Some(row(2, 9)));
        assert_eq!(table.count().unwrap(), 2);
    }
}
