//! The headers of a model's files, fetched by ranges into sparse files of the full length.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::Path;

use serde_json::{Map, Value};
use ureq::http::StatusCode;

use crate::cache::{io_error, make_folder};
use crate::client::{Failure, Reply, Span, bad_reply};
use crate::content_hash::ContentHash;
use crate::error::HubError;
use crate::gguf::{Walk, walk};
use crate::hub::ProgressFn;
use crate::select::{CONFIG, CONFIG_BYTES_MAX, INDEX, Selection};
use crate::transfer::{Meter, Route, check_size, content_range, etag, number, retrying};

/// Largest header of a safetensors file, as its specification says.
const SAFETENSORS_HEADER_MAX: u64 = 100_000_000;
/// Largest header of a GGUF; vocabularies of 262,144 tokens take 10 MB.
const GGUF_HEADER_MAX: u64 = 256 << 20;
/// The length that stands before the header of a safetensors file.
const LENGTH_BYTES: u64 = 8;
/// First request for the header of a GGUF; each further one doubles what is there.
const GGUF_FIRST_BYTES: u64 = 16 << 10;
/// Largest single request for the header of a GGUF, so that not much is fetched in vain.
const GGUF_STEP_MAX: u64 = 4 << 20;
/// Largest tensor of RoPE divisors: one value per two dimensions of a head.
const DIVISORS_BYTES_MAX: u64 = 1 << 20;
/// Bytes by which a stored head is compared with the embedding.
const PROBE_BYTES: u64 = 4096;

/// Bytes of a file, and its length.
struct Piece {
    bytes: Vec<u8>,
    total: u64,
}

/// Makes the sparse files of a selection.
pub(crate) fn write(
    route: &Route<'_>,
    selection: &Selection,
    index: Option<&[u8]>,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<(), HubError> {
    make_folder(folder)?;
    match selection {
        Selection::Folder { weights, .. } => {
            let config = whole(route, CONFIG, CONFIG_BYTES_MAX, progress)?;
            sparse(&folder.join(CONFIG), config.len() as u64, &[(0, &config)])?;
            if let Some(index) = index {
                sparse(&folder.join(INDEX), index.len() as u64, &[(0, index)])?;
            }
            for file in weights {
                safetensors(route, file, folder, progress)?;
            }
        }
        Selection::Gguf(files) => {
            for file in files {
                gguf(route, file, folder, progress)?;
            }
        }
    }
    Ok(())
}

fn safetensors(
    route: &Route<'_>,
    file: &str,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<(), HubError> {
    let first = piece(route, file, 0, LENGTH_BYTES, progress)?;
    let total = first.total;
    let wrong = |what: &str| bad_reply(&route.url(file), what);
    let length: [u8; 8] = first
        .bytes
        .try_into()
        .map_err(|_| wrong("too short to be a safetensors file"))?;
    let len = u64::from_le_bytes(length);
    if len > SAFETENSORS_HEADER_MAX {
        return Err(HubError::TooLarge {
            what: format!("{file}: header"),
            got: len,
            limit: SAFETENSORS_HEADER_MAX,
        });
    }
    if LENGTH_BYTES + len > total {
        return Err(wrong("a header that is longer than the file"));
    }
    let header = piece(route, file, LENGTH_BYTES, len, progress)?.bytes;
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    for start in probes(&header) {
        let start = start.saturating_add(LENGTH_BYTES + len);
        if start < total {
            parts.push((
                start,
                piece(route, file, start, PROBE_BYTES, progress)?.bytes,
            ));
        }
    }
    let path = folder.join(file);
    let mut all: Vec<(u64, &[u8])> = vec![(0, &length), (LENGTH_BYTES, &header)];
    all.extend(
        parts
            .iter()
            .map(|(start, bytes)| (*start, bytes.as_slice())),
    );
    sparse(&path, total, &all)
}

/// Where the embedding and a stored head begin, counted from the end of the header. They may lie in different files.
fn probes(header: &[u8]) -> Vec<u64> {
    let Ok(tensors) = serde_json::from_slice::<Map<String, Value>>(header) else {
        // Opening the file will say what is wrong with it.
        return Vec::new();
    };
    let start = |wanted: &dyn Fn(&str) -> bool| {
        let (_, tensor) = tensors.iter().find(|(name, _)| wanted(name))?;
        tensor.get("data_offsets")?.get(0)?.as_u64()
    };
    [
        start(&|name| name == "lm_head.weight"),
        start(&|name| name.ends_with("embed_tokens.weight")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn gguf(
    route: &Route<'_>,
    file: &str,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<(), HubError> {
    let mut head = piece(route, file, 0, GGUF_FIRST_BYTES, progress)?;
    let divisors = loop {
        let have = head.bytes.len() as u64;
        match walk(&head.bytes) {
            Walk::Whole { divisors, .. } => break divisors,
            // Opening the file will say what is wrong with it.
            Walk::Foreign => break None,
            Walk::More if have >= head.total => break None,
            Walk::More if have >= GGUF_HEADER_MAX => {
                return Err(HubError::TooLarge {
                    what: format!("{file}: header"),
                    got: have,
                    limit: GGUF_HEADER_MAX,
                });
            }
            Walk::More => {
                let step = have.clamp(1, GGUF_STEP_MAX);
                let next = piece(route, file, have, step, progress)?;
                head.bytes.extend_from_slice(&next.bytes);
            }
        }
    };
    let have = head.bytes.len() as u64;
    let divisors = match divisors {
        Some((start, len)) if len <= DIVISORS_BYTES_MAX && start + len <= head.total => {
            let is_here = start + len <= have;
            match is_here {
                true => None,
                false => Some((start, piece(route, file, start, len, progress)?.bytes)),
            }
        }
        Some(_) | None => None,
    };
    let path = folder.join(file);
    make_folder(path.parent().expect("a file lies in its folder"))?;
    let mut all: Vec<(u64, &[u8])> = vec![(0, &head.bytes)];
    all.extend(
        divisors
            .iter()
            .map(|(start, bytes)| (*start, bytes.as_slice())),
    );
    sparse(&path, head.total, &all)
}

/// All bytes of a small file.
pub(crate) fn whole(
    route: &Route<'_>,
    file: &str,
    limit: u64,
    progress: &mut ProgressFn<'_>,
) -> Result<Vec<u8>, HubError> {
    let url = route.url(file);
    let mut meter = Meter::new(progress, 0);
    retrying(route.retry_pause, &mut || meter.show(file, 0), || {
        let reply = route.client.get(&url, Span::Whole, route.about(file))?;
        let etag = etag(&reply.hub);
        let bytes = read_body(reply, file, limit)?;
        check_content(file, etag.as_deref(), &bytes)?;
        Ok(bytes)
    })
}

/// Compares a whole file with what its tag announces.
fn check_content(file: &str, etag: Option<&str>, bytes: &[u8]) -> Result<(), HubError> {
    let Some(etag) = etag else {
        return Ok(());
    };
    let mut hash = ContentHash::of(etag, bytes.len() as u64);
    hash.update(bytes);
    match hash.digits() {
        Some(got) if got != etag => Err(HubError::WrongHash {
            file: file.to_owned(),
            hash: hash.name(),
            expected: etag.to_owned(),
            got,
        }),
        Some(_) | None => Ok(()),
    }
}

/// The body of a reply, which must not be longer than `limit`.
pub(crate) fn read_body(reply: Reply, what: &str, limit: u64) -> Result<Vec<u8>, Failure> {
    let announced = number(reply.response.headers(), "content-length");
    let too_large = |got| HubError::TooLarge {
        what: what.to_owned(),
        got,
        limit,
    };
    if let Some(got) = announced.filter(|got| *got > limit) {
        return Err(too_large(got).into());
    }
    let mut bytes = Vec::new();
    let url = reply.url;
    let body = reply.response.into_body().into_reader();
    body.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| cut(&url, &error))?;
    let got = bytes.len() as u64;
    if got > limit {
        return Err(too_large(got).into());
    }
    if announced.is_some_and(|announced| announced != got) {
        return Err(cut(&url, &io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

/// `len` bytes of a file from `start`, fewer where it ends before.
fn piece(
    route: &Route<'_>,
    file: &str,
    start: u64,
    len: u64,
    progress: &mut ProgressFn<'_>,
) -> Result<Piece, HubError> {
    let url = route.url(file);
    let mut meter = Meter::new(progress, 0);
    meter.show(file, 0)?;
    retrying(route.retry_pause, &mut || meter.show(file, 0), || {
        let span = Span::Part { start, len };
        let reply = route.client.get(&url, span, route.about(file))?;
        let piece = read_piece(reply, start, len)?;
        check_size(file, piece.total)?;
        Ok(piece)
    })
}

fn read_piece(reply: Reply, start: u64, len: u64) -> Result<Piece, Failure> {
    let (status, headers) = (reply.response.status(), reply.response.headers());
    let (skip, total) = if status == StatusCode::PARTIAL_CONTENT {
        match content_range(headers) {
            Some((at, Some(total))) if at == start => (0, total),
            Some(_) | None => return Err(bad_reply(&reply.url, "another range came").into()),
        }
    } else if status == StatusCode::OK && start <= SAFETENSORS_HEADER_MAX {
        // Without ranges the start of the file can still be read, and the connection dropped.
        match number(headers, "content-length") {
            Some(total) => (start, total),
            None => return Err(bad_reply(&reply.url, "no size").into()),
        }
    } else {
        return Err(bad_reply(&reply.url, "parts of a file cannot be had").into());
    };
    let wanted = len.min(total.saturating_sub(start));
    let mut body = reply.response.into_body().into_reader();
    let failed = |error: io::Error| cut(&reply.url, &error);
    io::copy(&mut body.by_ref().take(skip), &mut io::sink()).map_err(failed)?;
    let mut bytes = Vec::new();
    body.take(wanted).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 != wanted {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Piece { bytes, total })
}

/// A reply that broke off.
fn cut(url: &str, error: &io::Error) -> Failure {
    Failure::Temporary(bad_reply(url, &format!("the reply broke off: {error}")))
}

/// A file of this length with these bytes in it, and holes elsewhere.
fn sparse(path: &Path, len: u64, parts: &[(u64, &[u8])]) -> Result<(), HubError> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.set_len(len)?;
        for (start, bytes) in parts {
            file.seek(SeekFrom::Start(*start))?;
            file.write_all(bytes)?;
        }
        Ok(())
    };
    write().map_err(io_error(path, "write it"))
}
