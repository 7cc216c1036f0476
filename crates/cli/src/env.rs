//! Every environment variable that `larql` looks at.
//!
//! Nothing else reads the environment. Options win over variables; [`VARIABLES`] is the table that the documentation is
//! made from.

use std::ffi::OsString;
use std::path::PathBuf;

/// Threads when `--threads` is absent.
const THREADS: &str = "LARQL_THREADS";
/// Where `repl` keeps its history.
const HISTORY: &str = "LARQL_HISTORY";
/// The folder that `SHOW MODELS` lists.
const MODELS: &str = "LARQL_MODELS";
/// Turns color off.
const NO_COLOR: &str = "NO_COLOR";
/// Base of state files on Unix.
const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// The user's folder on Unix.
const HOME: &str = "HOME";
/// Base of state files on Windows.
const LOCALAPPDATA: &str = "LOCALAPPDATA";

/// Name and meaning of each variable.
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    (
        THREADS,
        "Threads that compute, when `--threads` is absent; 0 is what the process may use",
    ),
    (
        HISTORY,
        "File that keeps the history of `repl`; empty keeps none",
    ),
    (
        MODELS,
        "Folder whose models `SHOW MODELS` lists; the current folder when absent",
    ),
    (
        NO_COLOR,
        "If it is set and not empty, help and errors have no color",
    ),
    (
        XDG_STATE_HOME,
        "Where the history file lies when `LARQL_HISTORY` is absent: `larql/history` in this folder",
    ),
    (
        HOME,
        "Base of the history file when `XDG_STATE_HOME` is absent too: `.local/state/larql/history`",
    ),
    (LOCALAPPDATA, "The same on Windows: `larql\\history`"),
];

/// What the environment asks for.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// `LARQL_THREADS` as written, to be checked where it is used.
    pub(crate) threads: Option<OsString>,
    /// The history file, if one is to be kept.
    pub(crate) history: Option<PathBuf>,
    /// The folder of `SHOW MODELS`.
    pub(crate) models_dir: Option<PathBuf>,
    /// Whether color is unwanted.
    pub(crate) no_color: bool,
}

impl Environment {
    /// Reads the variables of this process.
    pub(crate) fn read() -> Self {
        Self::from_lookup(&|name| std::env::var_os(name))
    }

    fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let filled = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let history = match lookup(HISTORY) {
            Some(path) if path.is_empty() => None,
            Some(path) => Some(PathBuf::from(path)),
            None => filled(XDG_STATE_HOME)
                .map(PathBuf::from)
                .or_else(|| {
                    filled(HOME).map(|home| PathBuf::from(home).join(".local").join("state"))
                })
                .or_else(|| filled(LOCALAPPDATA).map(PathBuf::from))
                .map(|base| base.join("larql").join("history")),
        };
        Self {
            threads: filled(THREADS),
            history,
            models_dir: filled(MODELS).map(PathBuf::from),
            no_color: filled(NO_COLOR).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Environment {
        Environment::from_lookup(&|name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_history_file_follows_the_most_specific_variable() {
        let at = |set: &[(&str, &str)]| read(set).history;
        assert_eq!(at(&[]), None);
        assert_eq!(
            at(&[(HOME, "/h")]),
            Some(PathBuf::from("/h/.local/state/larql/history"))
        );
        assert_eq!(
            at(&[(HOME, "/h"), (XDG_STATE_HOME, "/s")]),
            Some(PathBuf::from("/s/larql/history"))
        );
        assert_eq!(
            at(&[(HOME, "/h"), (HISTORY, "/mine")]),
            Some(PathBuf::from("/mine"))
        );
        assert_eq!(at(&[(HOME, "/h"), (HISTORY, "")]), None);
    }

    #[test]
    fn an_empty_variable_is_an_absent_one() {
        let empty = read(&[(NO_COLOR, ""), (THREADS, ""), (MODELS, "")]);
        assert!(!empty.no_color && empty.threads.is_none() && empty.models_dir.is_none());
        assert!(read(&[(NO_COLOR, "1")]).no_color);
    }

    #[test]
    fn the_table_names_every_variable_once() {
        let mut names: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        let all = [
            THREADS,
            HISTORY,
            MODELS,
            NO_COLOR,
            XDG_STATE_HOME,
            HOME,
            LOCALAPPDATA,
        ];
        assert_eq!(names.len(), all.len());
        names.retain(|name| !all.contains(name));
        assert_eq!(names, Vec::<&str>::new());
    }
}
