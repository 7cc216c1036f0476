//! The hub against a server on this machine that speaks its protocol.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod fetch;
mod headers;
mod refuse;
mod resume;
mod server;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larql_hub::{Hub, HubConfig, HubError, ModelRef, Token};
use server::Server;
use tempfile::TempDir;

/// A server, a cache, and a client between them.
struct Setup {
    server: Server,
    dir: TempDir,
    config: HubConfig,
}

fn setup() -> Setup {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let config = HubConfig {
        cache_dir: dir.path().join("cache"),
        endpoint: server.url.clone(),
        token: None,
        https_proxy: None,
        offline: false,
        retry_pause: Duration::from_millis(1),
    };
    Setup {
        server,
        dir,
        config,
    }
}

impl Setup {
    fn hub(&self) -> Hub {
        Hub::new(self.config.clone()).unwrap()
    }

    fn token(&mut self, token: &str) {
        self.config.token = Token::new(token);
    }

    fn fetch(&self, model: &str) -> Result<PathBuf, HubError> {
        let model = ModelRef::parse(model).unwrap();
        self.hub()
            .fetch_model(&model, &mut |_| ControlFlow::Continue(()))
    }

    fn headers(&self, model: &str) -> Result<PathBuf, HubError> {
        let (model, dir) = (
            ModelRef::parse(model).unwrap(),
            self.dir.path().join("headers"),
        );
        self.hub()
            .fetch_headers(&model, &dir, &mut |_| ControlFlow::Continue(()))
    }

    /// The folder of a repository in the cache.
    fn repo(&self, repo: &str) -> PathBuf {
        let name = format!("models--{}", repo.replace('/', "--"));
        self.config.cache_dir.join(name)
    }
}

/// Bytes that repeat nowhere within a file of a test.
fn noise(seed: u64, n: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(n);
    for _ in 0..n {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.push((x >> 32) as u8);
    }
    bytes
}

/// Names of a folder's files, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
