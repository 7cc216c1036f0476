//! Models of the Hugging Face Hub, fetched into the cache that its other clients share.
//!
//! Useful for: turning `hf://org/repo` into a local path that can be opened, and looking at the headers of a model
//! without its weights. Not useful for: opening a model, publishing one, or data sets.
//!
//! The one idea: a file of the cache is complete and verified, or it is not there. A transfer goes to a partial file
//! that a later run continues, is compared with the size and the SHA-256 that the hub announces, and is then renamed.
//! Names, addresses and folders are those of the crate `hf-hub`, so the cache is the one of the Python client; only the
//! transfer itself is done here, because it has to resume and verify.
//!
//! Nothing here reads the environment or prints: [`HubConfig`] says where and as whom, a callback is told the progress
//! and can end the work.
//!
//! ```
//! use larql_hub::ModelRef;
//!
//! let model = ModelRef::parse("hf://google/gemma-3-270m@main")?;
//! assert_eq!((model.repo(), model.revision()), ("google/gemma-3-270m", "main"));
//! # Ok::<(), larql_hub::HubError>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod client;
mod config;
mod content_hash;
mod error;
mod gguf;
mod headers;
mod hub;
mod names;
mod reference;
mod select;
mod transfer;

pub use config::{DEFAULT_ENDPOINT, HubConfig, RETRY_PAUSE, Token};
pub use error::HubError;
pub use hub::{Hub, Progress, ProgressFn};
pub use reference::ModelRef;
