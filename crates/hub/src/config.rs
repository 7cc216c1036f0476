//! Where the hub is, where the cache is, and as whom to ask.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Pause before a transfer that was cut is tried again; it doubles with every failure.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What a [`crate::Hub`] works with.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The folder with `models--org--repo` in it.
    pub cache_dir: PathBuf,
    /// Address of the hub, without a path or with one.
    pub endpoint: String,
    /// As whom to ask.
    pub token: Option<Token>,
    /// Proxy for encrypted connections.
    pub https_proxy: Option<String>,
    /// Whether to answer from the cache alone.
    pub offline: bool,
    /// Pause before the first retry, as [`RETRY_PAUSE`].
    pub retry_pause: Duration,
}

/// A secret that is sent to the hub and to nobody else; its debug form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token without the space around it; nothing if there is nothing else.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The token in a file, as the login of the Python client leaves it; nothing if there is no file.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn from_file(path: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self::new(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_token_is_none_and_no_token_is_shown() {
        assert_eq!(Token::new(""), None);
        assert_eq!(Token::new(" \n\t"), None);
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.secret(), "hf_secret");
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_token_file_may_be_absent_or_blank() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert_eq!(Token::from_file(&path).unwrap(), None);
        fs::write(&path, "\n").unwrap();
        assert_eq!(Token::from_file(&path).unwrap(), None);
        fs::write(&path, "hf_x\n").unwrap();
        assert_eq!(Token::from_file(&path).unwrap(), Token::new("hf_x"));
    }
}
