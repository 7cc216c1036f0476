//! [`HubError`]: what can be wrong with an address, a repository, a transfer or the cache.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a model cannot be fetched.
#[derive(Debug, Error)]
pub enum HubError {
    /// The text is no address of a model.
    #[error("`{text}`: {reason}")]
    BadReference {
        /// As given.
        text: String,
        /// What was expected.
        reason: &'static str,
    },
    /// The configured hub cannot be one.
    #[error("the address of the hub is `{endpoint}`, expected http://HOST or https://HOST")]
    BadEndpoint {
        /// As given.
        endpoint: String,
    },
    /// The configured proxy cannot be one.
    #[error("the proxy is `{proxy}`, expected an address such as http://HOST:PORT")]
    BadProxy {
        /// As given.
        proxy: String,
    },
    /// The token cannot be sent.
    #[error("the token of the hub contains characters that no token has")]
    BadToken,
    /// The hub wants to know who asks, or does not believe it.
    #[error("{repo}: the hub does not show it {}", if *has_token { "to this token" } else { "without a token" })]
    Unauthorized {
        /// The repository.
        repo: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The owner decides who may read it.
    #[error("{repo}: access has to be granted by its owner (status {status})")]
    Gated {
        /// The repository.
        repo: String,
        /// Status of the reply.
        status: u16,
    },
    /// No such repository.
    #[error("{repo}: no such model on {endpoint}")]
    RepoNotFound {
        /// As asked for.
        repo: String,
        /// The hub that was asked.
        endpoint: String,
    },
    /// No such branch, tag or commit.
    #[error("{repo}: no revision `{revision}`")]
    RevisionNotFound {
        /// The repository.
        repo: String,
        /// As asked for.
        revision: String,
    },
    /// No such file.
    #[error("{repo}: no file `{file}` at revision `{revision}`")]
    FileNotFound {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// As asked for, or as another file of the model names it.
        file: String,
    },
    /// Nothing in it can be opened as a model.
    #[error("{repo}: no model that can be opened: {reason}")]
    NoModel {
        /// The repository.
        repo: String,
        /// What is missing.
        reason: &'static str,
    },
    /// It holds several models.
    #[error("{repo}: several models, name one of them: {}", files.join(", "))]
    SeveralModels {
        /// The repository.
        repo: String,
        /// Each model's file.
        files: Vec<String>,
    },
    /// A name that must not become a path.
    #[error("{repo}: the file name `{}` leaves the folder it belongs to", name.escape_debug())]
    UnsafeName {
        /// The repository.
        repo: String,
        /// As the hub gave it.
        name: String,
    },
    /// The hub answered something that it should not.
    #[error("{url}: {what}")]
    BadReply {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// JSON from the hub cannot be read.
    #[error("{what} cannot be read")]
    Json {
        /// Which text.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A status that means nothing in particular.
    #[error("{url}: status {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// Status of the reply.
        status: u16,
    },
    /// No connection, or one that broke before it said anything.
    #[error("{url}: cannot be reached")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// The transfer broke off too often.
    #[error(
        "{file}: the transfer broke off {attempts} times, {got} of {expected} bytes are here: {reason}"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are in the cache.
        got: u64,
        /// Bytes of the file.
        expected: u64,
        /// How often it was tried.
        attempts: u32,
        /// The last reason.
        reason: String,
    },
    /// More or fewer bytes than announced.
    #[error("{file}: {got} bytes came, expected {expected}; nothing of it was kept")]
    WrongSize {
        /// The file.
        file: String,
        /// As announced.
        expected: u64,
        /// As received.
        got: u64,
    },
    /// Other bytes than announced.
    #[error("{file}: {hash} is {got}, expected {expected}; nothing of it was kept")]
    WrongHash {
        /// The file.
        file: String,
        /// Which hash the hub announces.
        hash: &'static str,
        /// As announced.
        expected: String,
        /// Of what was received.
        got: String,
    },
    /// The file became another one again and again while it was transferred.
    #[error("{file}: changes on the hub while it is fetched")]
    Changing {
        /// The file.
        file: String,
    },
    /// Larger than anything that is meant to be read.
    #[error("{what}: {got} bytes, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        got: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// Offline, and the cache does not have it.
    #[error("{model}: {missing} is not in the cache {}", cache.display())]
    NotCached {
        /// The model.
        model: String,
        /// What is missing.
        missing: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The cache cannot be read or written.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The user ended it; what came so far is kept.
    #[error("interrupted; what was fetched is kept for the next time")]
    Interrupted,
}

impl HubError {
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unauthorized {
                has_token: false, ..
            } => Some(
                "check the name; for a private or gated model set HF_TOKEN to a token from the hub's settings"
                    .to_owned(),
            ),
            Self::Unauthorized {
                has_token: true, ..
            } => Some("check the name, and that HF_TOKEN is valid and may read this model".to_owned()),
            Self::Gated { repo, .. } => Some(format!(
                "ask for access on the page of {repo}, and set HF_TOKEN to a token of that account"
            )),
            Self::RepoNotFound { .. } => {
                Some("the name is org/repo as in the address of the model's page".to_owned())
            }
            Self::RevisionNotFound { .. } => {
                Some("a revision is a branch, a tag or a commit of 40 digits".to_owned())
            }
            Self::SeveralModels { repo, files } => files
                .first()
                .map(|file| format!("for example hf://{repo}/{file}")),
            Self::Unreachable { .. } => Some(
                "with HF_HUB_OFFLINE=1 only the cache is used; HF_ENDPOINT names another hub"
                    .to_owned(),
            ),
            Self::Cut { .. } => {
                Some("run the command again: it continues where the transfer broke off".to_owned())
            }
            Self::WrongSize { .. } | Self::WrongHash { .. } | Self::Changing { .. } => {
                Some("run the command again; if it stays so, the file on the hub is damaged".to_owned())
            }
            Self::NotCached { .. } => {
                Some("run the command once without HF_HUB_OFFLINE".to_owned())
            }
            Self::NoModel { .. } => Some(
                "a model is config.json with safetensors, or a `.gguf` file".to_owned(),
            ),
            Self::BadReference { .. } => {
                Some("an address is hf://org/repo[@revision][/file.gguf]".to_owned())
            }
            Self::BadEndpoint { .. }
            | Self::BadProxy { .. }
            | Self::BadToken
            | Self::FileNotFound { .. }
            | Self::UnsafeName { .. }
            | Self::BadReply { .. }
            | Self::Json { .. }
            | Self::Status { .. }
            | Self::TooLarge { .. }
            | Self::Io { .. }
            | Self::Interrupted => None,
        }
    }

    /// Whether another request would fare better, rather than another try.
    pub fn is_request(&self) -> bool {
        match self {
            Self::BadReference { .. }
            | Self::BadEndpoint { .. }
            | Self::BadProxy { .. }
            | Self::BadToken
            | Self::Unauthorized { .. }
            | Self::Gated { .. }
            | Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::FileNotFound { .. }
            | Self::NoModel { .. }
            | Self::SeveralModels { .. }
            | Self::UnsafeName { .. }
            | Self::NotCached { .. }
            | Self::TooLarge { .. }
            | Self::Interrupted => true,
            Self::BadReply { .. }
            | Self::Json { .. }
            | Self::Status { .. }
            | Self::Unreachable { .. }
            | Self::Cut { .. }
            | Self::WrongSize { .. }
            | Self::WrongHash { .. }
            | Self::Changing { .. } => false,
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::NotFound
            ),
        }
    }
}
