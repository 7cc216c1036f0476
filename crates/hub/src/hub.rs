//! [`Hub`]: a model's address in, a local path out.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hf_hub::api::RepoInfo;
use hf_hub::{Repo, RepoType};

use crate::cache::{RepoCache, io_error};
use crate::client::{Client, Span, Subject, bad_reply};
use crate::config::HubConfig;
use crate::error::HubError;
use crate::headers;
use crate::names::{is_commit, is_safe_file};
use crate::reference::ModelRef;
use crate::select::{CONFIG, INDEX, INDEX_BYTES_MAX, Selection, select};
use crate::transfer::{Meter, Route, retrying};

/// Largest list of files; repositories of 100,000 files stay below it.
const LISTING_BYTES_MAX: u64 = 64 << 20;
/// Folders below a snapshot that a cached file may lie in.
const DEPTH_MAX: usize = 8;

/// How far the files of a model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file that is transferred.
    pub file: &'a str,
    /// Bytes of all files that are here.
    pub done: u64,
    /// Bytes of all files that were missing at the start; 0 while that is not known.
    pub total: u64,
}

/// What is told the progress; it ends the work with [`ControlFlow::Break`].
pub type ProgressFn<'a> = dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a;

/// The hub and the cache.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    client: Client,
}

/// What a repository holds at a commit.
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) names: Vec<String>,
}

impl Hub {
    /// A hub for a configuration; nothing is sent yet.
    ///
    /// # Errors
    /// If an address or the token of the configuration cannot be one.
    pub fn new(config: HubConfig) -> Result<Self, HubError> {
        let client = Client::new(&config)?;
        Ok(Self { config, client })
    }

    /// Makes sure that all files of a model are in the cache, and says where: a folder, or a `.gguf` file.
    ///
    /// A file that is in the cache already is not fetched again; a file whose transfer broke off is continued.
    ///
    /// # Errors
    /// What is wrong with the repository, the transfer or the cache.
    pub fn fetch_model(
        &self,
        model: &ModelRef,
        progress: &mut ProgressFn<'_>,
    ) -> Result<PathBuf, HubError> {
        let cache = self.cache(model);
        if self.config.offline {
            return self.cached(model, &cache);
        }
        let listing = self.listing(model, progress)?;
        let route = self.route(model, &cache, &listing.commit);
        let selection = select(model, &listing.names, &mut || {
            fetch_files(&route, &[INDEX], progress)?;
            read_index(&cache.snapshot(&listing.commit).join(INDEX))
        })?;
        let missing: Vec<&str> = selection
            .files()
            .filter(|file| !cache.has(&listing.commit, file))
            .collect();
        fetch_files(&route, &missing, progress)?;
        cache.write_ref(model.revision(), &listing.commit)?;
        Ok(place(&cache.snapshot(&listing.commit), &selection))
    }

    /// Makes sparse files of a model's headers in `folder` and says what to open there: a folder, or a `.gguf` file.
    ///
    /// The files have their full lengths and only `config.json`, the index and the headers in them: a few kilobytes are
    /// transferred, and none of the weights. Where weights should be there are zeros, so nothing but the shapes, types
    /// and configuration may be used. Two things that opening reads from the weights are transferred as well: the RoPE
    /// divisors of a GGUF, and the first bytes of the embedding and the head, by which a head that is stored although it
    /// is tied shows whether it is another one.
    ///
    /// A model that is wholly in the cache is not looked at again: its place in the cache is returned.
    ///
    /// # Errors
    /// As [`Hub::fetch_model`].
    pub fn fetch_headers(
        &self,
        model: &ModelRef,
        folder: &Path,
        progress: &mut ProgressFn<'_>,
    ) -> Result<PathBuf, HubError> {
        let cache = self.cache(model);
        if self.config.offline {
            return self.cached(model, &cache);
        }
        let listing = self.listing(model, progress)?;
        let route = self.route(model, &cache, &listing.commit);
        let mut index = None;
        let selection = select(model, &listing.names, &mut || {
            let bytes = match cache.has(&listing.commit, INDEX) {
                true => read_index(&cache.snapshot(&listing.commit).join(INDEX))?,
                false => headers::whole(&route, INDEX, INDEX_BYTES_MAX, progress)?,
            };
            index = Some(bytes.clone());
            Ok(bytes)
        })?;
        if selection
            .files()
            .all(|file| cache.has(&listing.commit, file))
        {
            return Ok(place(&cache.snapshot(&listing.commit), &selection));
        }
        let (_, name) = model.repo().split_once('/').unwrap_or(("", model.repo()));
        let folder = folder.join(name);
        headers::write(&route, &selection, index.as_deref(), &folder, progress)?;
        Ok(place(&folder, &selection))
    }

    fn cache(&self, model: &ModelRef) -> RepoCache {
        RepoCache::new(&self.config.cache_dir, model.repo())
    }

    fn route<'a>(
        &'a self,
        model: &'a ModelRef,
        cache: &'a RepoCache,
        commit: &'a str,
    ) -> Route<'a> {
        Route {
            client: &self.client,
            cache,
            repo: model.repo(),
            revision: model.revision(),
            commit,
            retry_pause: self.config.retry_pause,
        }
    }

    /// Asks which commit a revision is and which files it has.
    fn listing(
        &self,
        model: &ModelRef,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Listing, HubError> {
        let (repo, revision) = (model.repo().to_owned(), model.revision().to_owned());
        let url = self
            .client
            .listing_url(&Repo::with_revision(repo, RepoType::Model, revision));
        let about = Subject {
            repo: model.repo(),
            revision: model.revision(),
            file: None,
        };
        let mut meter = Meter::new(progress, 0);
        meter.show(model.repo(), 0)?;
        let mut wait = || meter.show(model.repo(), 0);
        let reply = retrying(self.config.retry_pause, &mut wait, || {
            let reply = self.client.get(&url, Span::Whole, about)?;
            headers::read_body(reply, "the list of files", LISTING_BYTES_MAX)
        })?;
        let info: RepoInfo = serde_json::from_slice(&reply).map_err(|source| HubError::Json {
            what: format!("{}: the list of files", model.repo()),
            source,
        })?;
        if !is_commit(&info.sha) {
            return Err(bad_reply(&url, "the list of files names no commit"));
        }
        Ok(Listing {
            commit: info.sha,
            names: info.siblings.into_iter().map(|one| one.rfilename).collect(),
        })
    }

    /// Answers from the cache alone.
    fn cached(&self, model: &ModelRef, cache: &RepoCache) -> Result<PathBuf, HubError> {
        let missing = |missing: String| HubError::NotCached {
            model: model.to_string(),
            missing,
            cache: self.config.cache_dir.clone(),
        };
        let commit = cache
            .commit_of(model.revision())?
            .ok_or_else(|| missing("it".to_owned()))?;
        let snapshot = cache.snapshot(&commit);
        let mut names = Vec::new();
        list_files(&snapshot, "", DEPTH_MAX, &mut names);
        names.sort();
        let selection = select(model, &names, &mut || read_index(&snapshot.join(INDEX)));
        match selection {
            Ok(selection) => Ok(place(&snapshot, &selection)),
            // What is missing here may well exist on the hub.
            Err(HubError::FileNotFound { file, .. }) => Err(missing(format!("`{file}`"))),
            Err(HubError::NoModel { .. }) if !names.iter().any(|name| name == CONFIG) => {
                Err(missing("the model".to_owned()))
            }
            Err(HubError::NoModel { .. }) => Err(missing("a file of the model".to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// Fetches files into the snapshot under one count of bytes.
fn fetch_files(
    route: &Route<'_>,
    files: &[&str],
    progress: &mut ProgressFn<'_>,
) -> Result<(), HubError> {
    let mut remotes = Vec::with_capacity(files.len());
    for file in files
        .iter()
        .filter(|file| !route.cache.has(route.commit, file))
    {
        let mut meter = Meter::new(progress, 0);
        remotes.push(route.remote(file, &mut || meter.show(file, 0))?);
    }
    let total = remotes
        .iter()
        .fold(0_u64, |sum, remote| sum.saturating_add(remote.size));
    let mut meter = Meter::new(progress, total);
    remotes
        .iter()
        .try_for_each(|remote| route.fetch(remote, &mut meter))
}

/// What to open of a selection that lies in `folder`.
fn place(folder: &Path, selection: &Selection) -> PathBuf {
    match selection {
        Selection::Folder { .. } => folder.to_owned(),
        Selection::Gguf(files) => files
            .first()
            .map_or_else(|| folder.to_owned(), |first| folder.join(first)),
    }
}

fn read_index(path: &Path) -> Result<Vec<u8>, HubError> {
    let size = fs::metadata(path).map_err(io_error(path, "read it"))?.len();
    if size > INDEX_BYTES_MAX {
        return Err(HubError::TooLarge {
            what: path.display().to_string(),
            got: size,
            limit: INDEX_BYTES_MAX,
        });
    }
    fs::read(path).map_err(io_error(path, "read it"))
}

/// Names of the files of a snapshot, as the hub names them; what cannot be read is not there.
fn list_files(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        if path.is_file() && is_safe_file(&name) {
            names.push(name);
        } else if path.is_dir() && depth > 0 {
            list_files(&path, &format!("{name}/"), depth - 1, names);
        }
    }
}
