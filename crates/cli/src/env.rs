//! Every environment variable that `larql` looks at.
//!
//! Nothing else reads the environment. Options win over variables; [`VARIABLES`] is the table that the documentation is
//! made from.

use std::ffi::OsString;
use std::path::PathBuf;

use larql_hub::Token;

/// Threads when `--threads` is absent.
const THREADS: &str = "LARQL_THREADS";
/// Arithmetic when `--profile` is absent.
const CPU_ARITHMETIC: &str = "LARQL_CPU_ARITHMETIC";
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
/// As whom to ask the Hugging Face Hub.
const HF_TOKEN: &str = "HF_TOKEN";
/// Folder of the hub's clients.
const HF_HOME: &str = "HF_HOME";
/// Their cache.
const HF_HUB_CACHE: &str = "HF_HUB_CACHE";
/// Address of the hub.
const HF_ENDPOINT: &str = "HF_ENDPOINT";
/// Answers from the cache alone.
const HF_HUB_OFFLINE: &str = "HF_HUB_OFFLINE";
/// Base of caches on Unix.
const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
/// The user's folder on Windows.
const USERPROFILE: &str = "USERPROFILE";
/// Proxy for encrypted connections.
const HTTPS_PROXY: &str = "HTTPS_PROXY";

/// Name and meaning of each variable.
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    (
        THREADS,
        "Threads that compute, when `--threads` is absent; 0 is what the process may use",
    ),
    (
        CPU_ARITHMETIC,
        "Arithmetic of runs, when `--profile` is absent: `exact`, `fast` or `asym16`; every command has its own when both are",
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
    (
        HF_TOKEN,
        "Token for private and gated models of the Hugging Face Hub; blank is none, and then the file `token` in `HF_HOME` is read",
    ),
    (
        HF_HUB_CACHE,
        "Folder of fetched models, shared with the hub's other clients; `hub` in `HF_HOME` when absent",
    ),
    (
        HF_HOME,
        "Folder of the hub's clients; `huggingface` in `XDG_CACHE_HOME` or in `.cache` of the user's folder when absent",
    ),
    (
        HF_ENDPOINT,
        "Address of the hub; `https://huggingface.co` when absent",
    ),
    (
        HF_HUB_OFFLINE,
        "If it is `1`, `true`, `yes` or `on`, models of the hub are taken from the cache alone",
    ),
    (XDG_CACHE_HOME, "Base of `HF_HOME`"),
    (
        USERPROFILE,
        "The user's folder on Windows, where `HOME` is absent",
    ),
    (HTTPS_PROXY, "Proxy for connections to the hub"),
];

/// What the environment asks for.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// `LARQL_THREADS` as written, to be checked where it is used.
    pub(crate) threads: Option<OsString>,
    /// `LARQL_CPU_ARITHMETIC` as written, to be checked where it is used.
    pub(crate) arithmetic: Option<OsString>,
    /// The history file, if one is to be kept.
    pub(crate) history: Option<PathBuf>,
    /// The folder of `SHOW MODELS`.
    pub(crate) models_dir: Option<PathBuf>,
    /// Whether color is unwanted.
    pub(crate) no_color: bool,
    /// The Hugging Face Hub.
    pub(crate) hub: HubEnvironment,
}

/// What the environment says about the Hugging Face Hub.
#[derive(Debug, Clone)]
pub(crate) struct HubEnvironment {
    /// Folder of fetched models; absent without any folder of the user.
    pub(crate) cache_dir: Option<PathBuf>,
    /// File that a login leaves its token in.
    pub(crate) token_file: Option<PathBuf>,
    /// As whom to ask.
    pub(crate) token: Option<Token>,
    /// Address of the hub.
    pub(crate) endpoint: Option<OsString>,
    /// Proxy for encrypted connections.
    pub(crate) https_proxy: Option<OsString>,
    /// Whether to answer from the cache alone.
    pub(crate) offline: bool,
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
            arithmetic: filled(CPU_ARITHMETIC),
            history,
            models_dir: filled(MODELS).map(PathBuf::from),
            no_color: filled(NO_COLOR).is_some(),
            hub: HubEnvironment::from_lookup(lookup),
        }
    }
}

impl HubEnvironment {
    fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let filled = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let home = filled(HF_HOME).map(PathBuf::from).or_else(|| {
            filled(XDG_CACHE_HOME)
                .map(PathBuf::from)
                .or_else(|| {
                    let user = filled(HOME).or_else(|| filled(USERPROFILE))?;
                    Some(PathBuf::from(user).join(".cache"))
                })
                .map(|base| base.join("huggingface"))
        });
        let cache_dir = filled(HF_HUB_CACHE).map(PathBuf::from);
        let offline = filled(HF_HUB_OFFLINE).map(|value| value.to_string_lossy().to_lowercase());
        Self {
            cache_dir: cache_dir.or_else(|| Some(home.as_ref()?.join("hub"))),
            token_file: home.map(|home| home.join("token")),
            token: filled(HF_TOKEN).and_then(|token| Token::new(&token.to_string_lossy())),
            endpoint: filled(HF_ENDPOINT)
                .filter(|value| !value.to_string_lossy().trim().is_empty()),
            https_proxy: filled(HTTPS_PROXY),
            offline: matches!(offline.as_deref(), Some("1" | "true" | "yes" | "on")),
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
    fn the_cache_of_the_hub_follows_the_most_specific_variable() {
        let at = |set: &[(&str, &str)]| read(set).hub.cache_dir;
        assert_eq!(at(&[]), None);
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            at(&[(USERPROFILE, "/u")]),
            path("/u/.cache/huggingface/hub")
        );
        let home = (HOME, "/h");
        assert_eq!(at(&[home]), path("/h/.cache/huggingface/hub"));
        let xdg = (XDG_CACHE_HOME, "/x");
        assert_eq!(at(&[home, xdg]), path("/x/huggingface/hub"));
        assert_eq!(at(&[home, xdg, (HF_HOME, "/hf")]), path("/hf/hub"));
        let all = [home, xdg, (HF_HOME, "/hf"), (HF_HUB_CACHE, "/c")];
        assert_eq!(at(&all), path("/c"));
        assert_eq!(read(&all).hub.token_file, path("/hf/token"));
    }

    #[test]
    fn blank_settings_of_the_hub_are_absent() {
        let hub = read(&[(HF_TOKEN, " \n"), (HF_ENDPOINT, " "), (HF_HUB_OFFLINE, "0")]).hub;
        assert!(hub.token.is_none() && hub.endpoint.is_none() && !hub.offline);
        let hub = read(&[
            (HF_TOKEN, "hf_x "),
            (HF_ENDPOINT, "http://h"),
            (HF_HUB_OFFLINE, "TRUE"),
        ])
        .hub;
        assert_eq!(hub.token, Token::new("hf_x"));
        assert!(hub.endpoint.is_some() && hub.offline);
    }

    #[test]
    fn the_table_names_every_variable_once() {
        let mut names: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        let all = [
            THREADS,
            CPU_ARITHMETIC,
            HISTORY,
            MODELS,
            NO_COLOR,
            XDG_STATE_HOME,
            HOME,
            LOCALAPPDATA,
            HF_TOKEN,
            HF_HOME,
            HF_HUB_CACHE,
            HF_ENDPOINT,
            HF_HUB_OFFLINE,
            XDG_CACHE_HOME,
            USERPROFILE,
            HTTPS_PROXY,
        ];
        assert_eq!(names.len(), all.len());
        names.retain(|name| !all.contains(name));
        assert_eq!(names, Vec::<&str>::new());
    }
}
