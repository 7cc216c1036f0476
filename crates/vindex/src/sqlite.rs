//! Opening the SQLite files beside the weights: versions, timeouts and what counts as damaged.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::VindexError;

/// How long a writer waits for another process's transaction.
const BUSY: Duration = Duration::from_secs(5);

/// Names the database and the action of a failed statement.
pub(crate) fn table_error(
    path: &Path,
    action: &'static str,
) -> impl Fn(rusqlite::Error) -> VindexError + use<> {
    let path = path.to_owned();
    move |source| VindexError::Table {
        path: path.clone(),
        action,
        source,
    }
}

/// Whether a file may be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Open it, and create it if it is not there.
    Create,
    /// Open what is there.
    Write,
    /// Open what is there and change nothing.
    Read,
}

/// Opens a database file; its content is not looked at yet.
pub(crate) fn open(path: &Path, access: Access) -> Result<Connection, rusqlite::Error> {
    // A file name is data here, never a URI with options.
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX
        | match access {
            Access::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// The version that a database states; 0 for a new one.
pub(crate) fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Whether an error says that the file's content, and not its surroundings, is at fault.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            matches!(failure.code, ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
                // A table or column that is not there.
                || failure.extended_code == rusqlite::ffi::SQLITE_ERROR
        }
        rusqlite::Error::QueryReturnedNoRows
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::FromSqlConversionFailure(..) => true,
        _ => false,
    }
}
