//! Typed rows: what every statement answers with.
//!
//! Printing is the caller's business; a value here is a value, and an absent one is `Null`, never zero.

use serde::Serialize;

/// The answer to one statement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rows {
    /// Names of the columns; units are part of the name where there is one.
    pub columns: Vec<String>,
    /// One value per column.
    pub rows: Vec<Vec<Cell>>,
    /// What a reader must know to understand the rows: profile, restriction, bound.
    pub notes: Vec<String>,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Absent.
    Null,
    /// A whole number.
    Integer(i64),
    /// A finite number.
    Real(f64),
    /// Text.
    Text(String),
}

impl Rows {
    /// No rows yet.
    pub fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has another number of values than there are columns.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "one value per column");
        self.rows.push(row);
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// A number of things, in words: `1 token`, `2 tokens`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Cell {
    fn from(n: u32) -> Self {
        Self::Integer(i64::from(n))
    }
}

impl From<usize> for Cell {
    fn from(n: usize) -> Self {
        Self::Integer(i64::try_from(n).expect("counts here fit i64"))
    }
}

impl From<f64> for Cell {
    /// A number that is not finite has no JSON form and means nothing in a row: it is absent.
    fn from(x: f64) -> Self {
        if x.is_finite() {
            Self::Real(x)
        } else {
            Self::Null
        }
    }
}

impl From<f32> for Cell {
    fn from(x: f32) -> Self {
        // Through the shortest decimal, so that 0.1f32 reads 0.1 and not 0.10000000149.
        x.to_string().parse::<f64>().map_or(Self::Null, Self::from)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
