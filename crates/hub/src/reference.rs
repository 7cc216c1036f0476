//! [`ModelRef`]: `hf://org/repo[@revision][/file.gguf]` as a value.

use std::fmt;

use crate::error::HubError;
use crate::names::is_safe_file;

/// What an address of the hub begins with.
const SCHEME: &str = "hf://";
/// The revision when none is named.
const DEFAULT_REVISION: &str = "main";
/// The hub's own limit on the name of an account or a repository.
const NAME_BYTES_MAX: usize = 96;
/// Longest revision; branches are short.
const REVISION_BYTES_MAX: usize = 256;
/// Endings of local files and folders: a name with one of them is a path that does not exist, not a repository.
const LOCAL_ENDINGS: &[&str] = &[".gguf", ".safetensors", ".vindex", ".json"];

/// A model on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    repo: String,
    revision: Option<String>,
    file: Option<String>,
}

impl ModelRef {
    /// Whether a text is meant as an address of the hub, right or wrong.
    pub fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads an address, with `hf://` before it or without.
    ///
    /// A revision ends at the next `/`; `refs/pr/N` and `refs/convert/NAME` are taken whole, and in others `%2F` stands
    /// for the slash.
    ///
    /// # Errors
    /// Says which part is wrong.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = |reason: &'static str| HubError::BadReference {
            text: text.to_owned(),
            reason,
        };
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (org, rest) = rest
            .split_once('/')
            .ok_or_else(|| wrong("expected org/repo"))?;
        let end = rest.find(['@', '/']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        if !is_repo_part(org) || !is_repo_part(name) {
            return Err(wrong(
                "org and repo consist of letters, digits, `-`, `_` and `.`",
            ));
        }
        let (revision, rest) = match rest.strip_prefix('@') {
            None => (None, rest),
            Some(rest) => {
                let (revision, rest) = split_revision(rest);
                if !is_revision(&revision) {
                    return Err(wrong("after `@` a branch, tag or commit is expected"));
                }
                (Some(revision), rest)
            }
        };
        let file = rest.strip_prefix('/').map(str::to_owned);
        if let Some(file) = &file {
            if !is_safe_file(file) {
                return Err(wrong("the file name leaves the repository"));
            }
            if !file.ends_with(".gguf") {
                return Err(wrong("the only files that can be named are `.gguf`"));
            }
        }
        Ok(Self {
            repo: format!("{org}/{name}"),
            revision,
            file,
        })
    }

    /// Reads `org/repo[@revision][/file.gguf]` without a scheme; nothing if the text is a local path by its looks.
    ///
    /// Whether such a path exists is for the caller to find out first.
    pub fn from_bare(text: &str) -> Option<Self> {
        if Self::has_scheme(text) || text.ends_with('/') {
            return None;
        }
        let model = Self::parse(text).ok()?;
        let is_local = LOCAL_ENDINGS
            .iter()
            .any(|ending| model.repo.to_ascii_lowercase().ends_with(ending));
        (!is_local).then_some(model)
    }

    /// `org/repo`
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Branch, tag or commit; `main` when none was named.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// The `.gguf` file that was named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        if let Some(revision) = &self.revision {
            let encoded = if revision.starts_with("refs/") {
                revision.clone()
            } else {
                revision.replace('/', "%2F")
            };
            write!(f, "@{encoded}")?;
        }
        match &self.file {
            Some(file) => write!(f, "/{file}"),
            None => Ok(()),
        }
    }
}

/// The revision at the start of a text, and what follows it.
fn split_revision(text: &str) -> (String, &str) {
    let takes_three = text.starts_with("refs/pr/") || text.starts_with("refs/convert/");
    let n_slashes = if takes_three { 2 } else { 0 };
    let end = text
        .match_indices('/')
        .nth(n_slashes)
        .map_or(text.len(), |(at, _)| at);
    let (revision, rest) = text.split_at(end);
    let decoded = revision.replace("%2F", "/").replace("%2f", "/");
    (decoded, rest)
}

fn is_repo_part(part: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&part.len())
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && !part.contains("--")
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A revision becomes a path in the cache and a part of an address.
fn is_revision(text: &str) -> bool {
    text.len() <= REVISION_BYTES_MAX
        && is_safe_file(text)
        && text.bytes().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+' | b'=')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String, Option<String>) {
        let model = ModelRef::parse(text).unwrap();
        let file = model.file().map(str::to_owned);
        (model.repo().to_owned(), model.revision().to_owned(), file)
    }

    #[test]
    fn every_part_is_found() {
        let of = |repo: &str, revision: &str, file: Option<&str>| {
            (
                repo.to_owned(),
                revision.to_owned(),
                file.map(str::to_owned),
            )
        };
        assert_eq!(
            parts("hf://google/gemma-3"),
            of("google/gemma-3", "main", None)
        );
        assert_eq!(parts("hf://a/b/"), of("a/b", "main", None));
        assert_eq!(parts("a/b@v1.0"), of("a/b", "v1.0", None));
        assert_eq!(
            parts("hf://a/b/Q4/m.gguf"),
            of("a/b", "main", Some("Q4/m.gguf"))
        );
        assert_eq!(
            parts("hf://a/b@refs/pr/7/m.gguf"),
            of("a/b", "refs/pr/7", Some("m.gguf"))
        );
        assert_eq!(
            parts("hf://a/b@feature%2Fx/m.gguf"),
            of("a/b", "feature/x", Some("m.gguf"))
        );
    }

    #[test]
    fn what_is_printed_is_read_again() {
        for text in [
            "hf://a/b",
            "hf://a/b@v1",
            "hf://a/b@refs/pr/7/m.gguf",
            "hf://a/b@x%2Fy/d/m.gguf",
        ] {
            assert_eq!(ModelRef::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        for (text, reason) in [
            ("hf://", "expected org/repo"),
            ("hf://gemma", "expected org/repo"),
            ("hf:///x", "org and repo consist"),
            ("hf://../x", "org and repo consist"),
            ("hf://a/b c", "org and repo consist"),
            ("hf://a/b@", "after `@`"),
            ("hf://a/b@../../x", "after `@`"),
            ("hf://a/b@x%2F..%2Fy", "after `@`"),
            ("hf://a/b/../m.gguf", "leaves the repository"),
            ("hf://a/b//etc/m.gguf", "leaves the repository"),
            ("hf://a/b/model.safetensors", "`.gguf`"),
        ] {
            let error = ModelRef::parse(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_local_path_is_no_bare_reference() {
        for text in [
            "model",
            "./a/b",
            "../a/b",
            "/a/b",
            "~/a/b",
            "a/b/",
            "a/b/c",
            "models/x.gguf",
            "out/x.vindex",
            "a\\b",
            "C:/x",
            "hf://a/b",
            "a b/c",
        ] {
            assert_eq!(ModelRef::from_bare(text), None, "{text}");
        }
        for text in ["a/b", "a/b@v1", "a/b/m.gguf", "a/b-GGUF"] {
            assert!(ModelRef::from_bare(text).is_some(), "{text}");
        }
    }
}
