//! One file from the hub into the cache: resumed, verified, complete or absent.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode, header};

use crate::cache::{RepoCache, io_error, make_folder};
use crate::client::{Client, Failure, Reply, Span, Subject, bad_reply};
use crate::content_hash::ContentHash;
use crate::error::HubError;
use crate::hub::{Progress, ProgressFn};
use crate::names::is_safe_etag;
use crate::select::bytes_max;

/// Tries in a row without progress before a transfer is given up.
pub(crate) const ATTEMPTS_MAX: u32 = 6;
/// A try that brings this much is progress: the tries before it no longer count.
const PROGRESS_BYTES: u64 = 8 << 20;
/// How often a file may become another one while it is fetched.
const CHANGES_MAX: u32 = 3;
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A pause is taken in pieces, so that it can be interrupted.
const PAUSE_PIECE: Duration = Duration::from_millis(50);
/// Bytes between two looks at progress and interruption.
const CHUNK_BYTES: usize = 128 << 10;

/// What the hub says about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Its name in the repository.
    pub(crate) file: String,
    /// What names its content in the cache.
    pub(crate) etag: String,
    /// Its size.
    pub(crate) size: u64,
}

impl Remote {
    /// The hash of nothing yet, of the kind that the hub announces.
    fn hash(&self) -> ContentHash {
        ContentHash::of(&self.etag, self.size)
    }
}

/// Bytes of all files together, as they come.
pub(crate) struct Meter<'a> {
    progress: &'a mut ProgressFn<'a>,
    base: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(progress: &'a mut ProgressFn<'a>, total: u64) -> Self {
        Self {
            progress,
            base: 0,
            total,
        }
    }

    /// Shows how much of the present file is here.
    pub(crate) fn show(&mut self, file: &str, of_file: u64) -> Result<(), HubError> {
        let progress = Progress {
            file,
            done: self.base + of_file,
            total: self.total,
        };
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(HubError::Interrupted),
        }
    }

    /// The present file is here.
    pub(crate) fn finish_file(&mut self, size: u64) {
        self.base += size;
    }
}

/// Where files come from and go to.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cache: &'a RepoCache,
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) commit: &'a str,
    pub(crate) retry_pause: Duration,
}

/// How one try ended.
enum Tried {
    /// All bytes are here and right.
    Whole,
    /// The connection broke; `gained` bytes came before.
    Broken { gained: u64, reason: String },
    /// The hub now has another file under this name.
    Changed,
    /// Bytes of an earlier run were wrong and are gone.
    Stale,
}

impl<'a> Route<'a> {
    /// What a request about a file is about.
    pub(crate) fn about<'b>(&self, file: &'b str) -> Subject<'b>
    where
        'a: 'b,
    {
        Subject {
            repo: self.repo,
            revision: self.revision,
            file: Some(file),
        }
    }

    /// Address of a file.
    pub(crate) fn url(&self, file: &str) -> String {
        self.client.file_url(self.repo, self.commit, file)
    }

    /// Asks the hub about a file.
    pub(crate) fn remote(
        &self,
        file: &str,
        wait: &mut dyn FnMut() -> Result<(), HubError>,
    ) -> Result<Remote, HubError> {
        let url = self.url(file);
        let reply = retrying(self.retry_pause, wait, || {
            self.client.head(&url, self.about(file))
        })?;
        let etag = etag(&reply.hub).ok_or_else(|| bad_reply(&url, "no usable entity tag"))?;
        let linked = number(&reply.hub, "x-linked-size");
        let size = linked.or_else(|| number(&reply.hub, "content-length"));
        let size = size.ok_or_else(|| bad_reply(&url, "no size"))?;
        check_size(file, size)?;
        Ok(Remote {
            file: file.to_owned(),
            etag,
            size,
        })
    }

    /// Fetches a file into the snapshot, unless its content is in the cache already.
    pub(crate) fn fetch(&self, remote: &Remote, meter: &mut Meter<'_>) -> Result<(), HubError> {
        let mut remote = remote.clone();
        for _ in 0..CHANGES_MAX {
            let lock = self.cache.lock(&remote.etag, &mut || {
                thread::sleep(PAUSE_PIECE);
                meter.show(&remote.file, 0)
            })?;
            let blob = self.cache.blob(&remote.etag);
            let is_here = fs::metadata(&blob).is_ok_and(|found| found.len() == remote.size);
            if is_here || self.transfer(&remote, meter)? {
                self.cache.link(&remote.etag, self.commit, &remote.file)?;
                meter.finish_file(remote.size);
                return Ok(());
            }
            drop(lock);
            let _ = fs::remove_file(self.cache.partial(&remote.etag));
            remote = self.remote(&remote.file, &mut || meter.show(&remote.file, 0))?;
        }
        Err(HubError::Changing { file: remote.file })
    }

    /// Tries until the blob is complete; `false` if the hub has another file by now.
    fn transfer(&self, remote: &Remote, meter: &mut Meter<'_>) -> Result<bool, HubError> {
        let partial = self.cache.partial(&remote.etag);
        make_folder(partial.parent().expect("a partial file lies in `blobs`"))?;
        if matches!(remote.hash(), ContentHash::Unknown) && partial.exists() {
            // Nothing could tell whether what an earlier run left is the start of this file.
            fs::remove_file(&partial).map_err(io_error(&partial, "remove it"))?;
        }
        let (mut attempts, mut tries, mut pause) = (0, 0, self.retry_pause);
        loop {
            tries += 1;
            let reason = match self.attempt(remote, &partial, meter)? {
                Tried::Whole => break,
                Tried::Changed => return Ok(false),
                Tried::Stale => continue,
                Tried::Broken { gained, reason } => {
                    if gained >= PROGRESS_BYTES {
                        (attempts, pause) = (0, self.retry_pause);
                    }
                    reason
                }
            };
            attempts += 1;
            let got = fs::metadata(&partial).map_or(0, |found| found.len());
            if attempts >= ATTEMPTS_MAX {
                return Err(HubError::Cut {
                    file: remote.file.clone(),
                    got,
                    expected: remote.size,
                    attempts: tries,
                    reason,
                });
            }
            rest(&mut pause, &mut || meter.show(&remote.file, got))?;
        }
        let blob = self.cache.blob(&remote.etag);
        fs::rename(&partial, &blob).map_err(io_error(&blob, "create it"))?;
        Ok(true)
    }

    /// One request for what is missing.
    fn attempt(
        &self,
        remote: &Remote,
        partial: &Path,
        meter: &mut Meter<'_>,
    ) -> Result<Tried, HubError> {
        let mut sink = Sink::open(partial, remote, meter)?;
        let resumed_at = sink.len;
        if sink.len < remote.size {
            let span = match sink.len {
                0 => Span::Whole,
                len => Span::From(len),
            };
            let url = self.url(&remote.file);
            let reply = match self.client.get(&url, span, self.about(&remote.file)) {
                Ok(reply) => reply,
                // It was there when what we have came.
                Err(Failure::Final(error @ HubError::Unreachable { .. })) if resumed_at > 0 => {
                    return Ok(broken(0, &error));
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Temporary(error)) => return Ok(broken(0, &error)),
            };
            if etag(&reply.hub).is_some_and(|etag| etag != remote.etag) {
                return Ok(Tried::Changed);
            }
            if let Some(tried) = sink.place(&reply, remote)? {
                return Ok(tried);
            }
            if let Some(tried) = sink.receive(reply, remote, meter)? {
                return Ok(tried);
            }
        }
        sink.check(remote, resumed_at > 0)
    }
}

/// The partial file of a transfer, with the hash of what it has.
struct Sink<'a> {
    path: &'a Path,
    file: File,
    len: u64,
    hash: ContentHash,
}

impl<'a> Sink<'a> {
    /// Opens what there is, and hashes it.
    fn open(path: &'a Path, remote: &Remote, meter: &mut Meter<'_>) -> Result<Self, HubError> {
        let failed = |action| io_error(path, action);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("open it"))?;
        let mut sink_len = 0;
        let mut hash = remote.hash();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n = file.read(&mut chunk).map_err(failed("read it"))?;
            if n == 0 {
                break;
            }
            hash.update(&chunk[..n]);
            sink_len += n as u64;
            meter.show(&remote.file, sink_len.min(remote.size))?;
        }
        let mut sink = Self {
            path,
            file,
            len: sink_len,
            hash,
        };
        if sink.len > remote.size {
            sink.restart(remote)?;
        }
        Ok(sink)
    }

    fn restart(&mut self, remote: &Remote) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(io_error(self.path, "empty it"))?;
        self.len = 0;
        self.hash = remote.hash();
        Ok(())
    }

    /// Makes sure that the reply goes on where the file ends.
    fn place(&mut self, reply: &Reply, remote: &Remote) -> Result<Option<Tried>, HubError> {
        let status = reply.response.status();
        let headers = reply.response.headers();
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            self.restart(remote)?;
            let reason = "the hub has no such range".to_owned();
            return Ok(Some(Tried::Broken { gained: 0, reason }));
        }
        if status == StatusCode::PARTIAL_CONTENT {
            let range = content_range(headers);
            if range.is_none_or(|(start, _)| start != self.len) {
                self.restart(remote)?;
                let reason = "the hub sent another range".to_owned();
                return Ok(Some(Tried::Broken { gained: 0, reason }));
            }
            return match range.and_then(|(_, total)| total) {
                Some(total) if total != remote.size => Err(self.wrong_size(remote, total)),
                Some(_) | None => Ok(None),
            };
        }
        if self.len > 0 {
            // The whole file comes, although a part was asked for.
            self.restart(remote)?;
        }
        match number(headers, "content-length") {
            Some(total) if total != remote.size => Err(self.wrong_size(remote, total)),
            Some(_) | None => Ok(None),
        }
    }

    /// Writes the body until it ends or breaks.
    fn receive(
        &mut self,
        reply: Reply,
        remote: &Remote,
        meter: &mut Meter<'_>,
    ) -> Result<Option<Tried>, HubError> {
        let begin = self.len;
        let mut body = reply.response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            meter.show(&remote.file, self.len)?;
            let n = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let gained = self.len - begin;
                    let reason = error.to_string();
                    return Ok(Some(Tried::Broken { gained, reason }));
                }
            };
            if self.len + n as u64 > remote.size {
                return Err(self.wrong_size(remote, self.len + n as u64));
            }
            self.file
                .write_all(&chunk[..n])
                .map_err(io_error(self.path, "write it"))?;
            self.hash.update(&chunk[..n]);
            self.len += n as u64;
        }
        if self.len < remote.size {
            let gained = self.len - begin;
            let reason = "the connection was closed".to_owned();
            return Ok(Some(Tried::Broken { gained, reason }));
        }
        Ok(None)
    }

    /// Compares a whole file with what was announced; one that is wrong does not stay.
    fn check(self, remote: &Remote, is_resumed: bool) -> Result<Tried, HubError> {
        let got = match self.hash.digits() {
            Some(got) if got != remote.etag => got,
            Some(_) | None => return self.keep(),
        };
        fs::remove_file(self.path).map_err(io_error(self.path, "remove it"))?;
        if is_resumed {
            return Ok(Tried::Stale);
        }
        Err(HubError::WrongHash {
            file: remote.file.clone(),
            hash: self.hash.name(),
            expected: remote.etag.clone(),
            got,
        })
    }

    fn keep(self) -> Result<Tried, HubError> {
        // The rename must not reach the disk before the content.
        self.file
            .sync_data()
            .map_err(io_error(self.path, "write it"))?;
        Ok(Tried::Whole)
    }

    fn wrong_size(&self, remote: &Remote, got: u64) -> HubError {
        let _ = fs::remove_file(self.path);
        HubError::WrongSize {
            file: remote.file.clone(),
            expected: remote.size,
            got,
        }
    }
}

fn broken(gained: u64, error: &HubError) -> Tried {
    let reason = match error {
        HubError::Unreachable { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    Tried::Broken { gained, reason }
}

/// Repeats a request whose failure may pass.
pub(crate) fn retrying<T>(
    pause: Duration,
    wait: &mut dyn FnMut() -> Result<(), HubError>,
    mut request: impl FnMut() -> Result<T, Failure>,
) -> Result<T, HubError> {
    let mut pause = pause;
    for _ in 1..ATTEMPTS_MAX {
        match request() {
            Ok(reply) => return Ok(reply),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Temporary(_)) => rest(&mut pause, wait)?,
        }
    }
    request().map_err(Failure::into_error)
}

/// Waits before another try, and longer before the next.
fn rest(
    pause: &mut Duration,
    wait: &mut dyn FnMut() -> Result<(), HubError>,
) -> Result<(), HubError> {
    let mut left = *pause;
    wait()?;
    while !left.is_zero() {
        let piece = left.min(PAUSE_PIECE);
        thread::sleep(piece);
        left -= piece;
        wait()?;
    }
    *pause = (*pause * 2).min(PAUSE_MAX);
    Ok(())
}

/// What names a file's content: the hub's own tag before the one of a storage.
pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    let value = headers
        .get("x-linked-etag")
        .or_else(|| headers.get(header::ETAG))?;
    let tag = value.to_str().ok()?.trim();
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    is_safe_etag(tag).then(|| tag.to_owned())
}

/// Refuses a length that no such file has, before anything of it is asked for.
pub(crate) fn check_size(file: &str, size: u64) -> Result<(), HubError> {
    let limit = bytes_max(file);
    if size > limit {
        return Err(HubError::TooLarge {
            what: format!("{file}: announced length"),
            got: size,
            limit,
        });
    }
    Ok(())
}

/// A header that is a number.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// `bytes START-END/TOTAL` as start and total.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let value = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    match total.trim() {
        "*" => Some((start, None)),
        total => Some((start, Some(total.parse().ok()?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    header::HeaderName::from_static(name),
                    value.parse().unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn tags_lose_their_quotes_and_must_be_names() {
        let of = |list: &[(&'static str, &str)]| etag(&headers(list));
        assert_eq!(of(&[("etag", "\"abc\"")]).as_deref(), Some("abc"));
        assert_eq!(of(&[("etag", "W/\"abc\"")]).as_deref(), Some("abc"));
        assert_eq!(
            of(&[("etag", "\"storage\""), ("x-linked-etag", "\"linked\"")]).as_deref(),
            Some("linked")
        );
        assert_eq!(of(&[("etag", "\"../../x\"")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn ranges_are_read_with_and_without_a_total() {
        let of = |value: &str| content_range(&headers(&[("content-range", value)]));
        assert_eq!(of("bytes 7-99/100"), Some((7, Some(100))));
        assert_eq!(of("bytes 7-99/*"), Some((7, None)));
        assert_eq!(of("bytes */100"), None);
        assert_eq!(of("7-99/100"), None);
    }
}
