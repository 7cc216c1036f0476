//! A hub on this machine: the few addresses that clients use, a second host as storage, a log, and faults on demand.
//!
//! It speaks HTTP/1.1 with one request per connection. Files larger than [`LARGE_BYTES`] lie in the storage, to which
//! the hub redirects, and have their SHA-256 as tag, as on the real hub.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Files from this size on are large ones.
pub(crate) const LARGE_BYTES: usize = 10_000;

/// A running hub; its threads end with the process.
pub(crate) struct Server {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

/// Which host was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Hub,
    Storage,
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) host: Host,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) sent_bytes: usize,
}

/// What goes wrong with the next request for the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// One byte is another one.
    Flip,
    /// 416, whatever the range.
    NoSuchRange,
    /// The range is ignored.
    IgnoreRange,
    /// The body goes on after the end of the file.
    Longer,
    /// This status and nothing else.
    Status(u16),
    /// The file is said to have this many bytes.
    Announce(u64),
    /// The question before the transfer is answered as for other content.
    HeadOf(Vec<u8>),
}

#[derive(Default)]
struct State {
    repos: BTreeMap<String, Repo>,
    moved: BTreeMap<String, String>,
    faults: BTreeMap<String, Vec<Fault>>,
    log: Vec<Seen>,
    storage: String,
}

#[derive(Default)]
struct Repo {
    token: Option<String>,
    is_gated: bool,
    refs: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

/// A reply: status, headers, the whole body, how much of it is sent.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    sent: usize,
    /// What is said of the body's length, if it is not true.
    announced: Option<u64>,
}

impl Server {
    /// Starts both hosts.
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let storage = serve(Host::Storage, &state);
        let url = serve(Host::Hub, &state);
        state.lock().unwrap().storage = storage;
        Self { url, state }
    }

    /// Publishes files as a commit and points a revision at it; the commit is returned.
    pub(crate) fn publish(&self, repo: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        let files: BTreeMap<String, Vec<u8>> = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
            .collect();
        let mut hash = Sha256::new();
        for (name, bytes) in &files {
            hash.update(name);
            hash.update(bytes);
        }
        let commit = hex(&hash.finalize())[..40].to_owned();
        let mut state = self.state.lock().unwrap();
        let repo = state.repos.entry(repo.to_owned()).or_default();
        repo.commits.insert(commit.clone(), files);
        repo.refs.insert(revision.to_owned(), commit.clone());
        commit
    }

    /// Shows a repository only to this token.
    pub(crate) fn protect(&self, repo: &str, token: &str) {
        let mut state = self.state.lock().unwrap();
        state.repos.get_mut(repo).unwrap().token = Some(token.to_owned());
    }

    /// Lets the owner of a repository decide who reads it.
    pub(crate) fn gate(&self, repo: &str) {
        let mut state = self.state.lock().unwrap();
        state.repos.get_mut(repo).unwrap().is_gated = true;
    }

    /// Redirects an old name of a repository.
    pub(crate) fn rename(&self, old: &str, new: &str) {
        let mut state = self.state.lock().unwrap();
        state.moved.insert(old.to_owned(), new.to_owned());
    }

    /// Faults of the next requests for a file, one each.
    pub(crate) fn fail(&self, file: &str, faults: &[Fault]) {
        let mut state = self.state.lock().unwrap();
        state.faults.insert(file.to_owned(), faults.to_vec());
    }

    /// What was asked since the last call.
    pub(crate) fn take_log(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

fn serve(host: Host, state: &Arc<Mutex<State>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                // A client may go whenever it likes.
                let _ = answer(host, &state, stream);
            });
        }
    });
    url
}

fn answer(host: Host, state: &Mutex<State>, mut stream: TcpStream) -> std::io::Result<()> {
    let Some(request) = read_request(&stream)? else {
        return Ok(());
    };
    let answer = {
        let mut state = state.lock().unwrap();
        let mut answer = reply(host, &mut state, &request);
        if request.method == "HEAD" {
            answer.sent = 0;
        }
        state.log.push(Seen {
            host,
            method: request.method.clone(),
            path: request.path.clone(),
            range: request.headers.get("range").cloned(),
            authorization: request.headers.get("authorization").cloned(),
            sent_bytes: answer.sent,
        });
        answer
    };
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let length = answer.announced.unwrap_or(answer.body.len() as u64);
    let _ = write!(head, "content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer.body[..answer.sent])?;
    stream.flush()
}

fn read_request(stream: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(None);
    };
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        match line.split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => break,
        }
    }
    Ok(Some(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
    }))
}

fn reply(host: Host, state: &mut State, request: &Request) -> Answer {
    let path = request.path.split('?').next().unwrap();
    let parts: Vec<String> = path
        .trim_start_matches('/')
        .split('/')
        .map(decoded)
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (host, parts.as_slice()) {
        (Host::Hub, ["api", "models", org, name, "revision", revision]) => {
            let repo = format!("{org}/{name}");
            if let Some(to) = state.moved.get(&repo) {
                return Answer::redirect(307, path.replace(&repo, to));
            }
            listing(state, request, &repo, revision)
        }
        (Host::Hub, [org, name, "resolve", revision, file @ ..]) => {
            let repo = format!("{org}/{name}");
            if let Some(to) = state.moved.get(&repo) {
                return Answer::redirect(307, path.replace(&repo, to));
            }
            resolve(state, request, &repo, revision, &file.join("/"))
        }
        (Host::Storage, [org, name, commit, file @ ..]) => {
            let (repo, file) = (format!("{org}/{name}"), file.join("/"));
            let bytes = state.repos[&repo].commits[*commit][&file].clone();
            let storage_tag = "\"a tag of the storage's own\"".to_owned();
            content(state, request, &file, bytes, vec![("etag", storage_tag)])
        }
        _ => Answer::status(404),
    }
}

/// The repository if this request may see it.
fn seen<'a>(state: &'a State, request: &Request, repo: &str) -> Result<&'a Repo, Answer> {
    let Some(found) = state.repos.get(repo) else {
        return Err(Answer::code(404, "RepoNotFound"));
    };
    let authorization = request.headers.get("authorization");
    match &found.token {
        Some(token) if authorization != Some(&format!("Bearer {token}")) => {
            Err(Answer::status(401))
        }
        _ if found.is_gated => Err(Answer::code(403, "GatedRepo")),
        _ => Ok(found),
    }
}

fn listing(state: &State, request: &Request, name: &str, revision: &str) -> Answer {
    let repo = match seen(state, request, name) {
        Ok(repo) => repo,
        Err(answer) => return answer,
    };
    let Some(commit) = commit_of(repo, revision) else {
        return Answer::code(404, "RevisionNotFound");
    };
    let siblings: Vec<String> = repo.commits[commit]
        .keys()
        .map(|file| format!("{{\"rfilename\":{}}}", quoted(file)))
        .collect();
    let body = format!(
        "{{\"id\":{},\"sha\":\"{commit}\",\"siblings\":[{}]}}",
        quoted(name),
        siblings.join(",")
    );
    Answer::body(body.into_bytes(), vec![])
}

fn resolve(state: &mut State, request: &Request, name: &str, revision: &str, file: &str) -> Answer {
    let repo = match seen(state, request, name) {
        Ok(repo) => repo,
        Err(answer) => return answer,
    };
    let Some(commit) = commit_of(repo, revision).cloned() else {
        return Answer::code(404, "RevisionNotFound");
    };
    let Some(mut bytes) = repo.commits[&commit].get(file).cloned() else {
        return Answer::code(404, "EntryNotFound");
    };
    if request.method == "HEAD"
        && let Some(Fault::HeadOf(other)) = state.faults.get(file).and_then(|list| list.first())
    {
        bytes.clone_from(other);
        state.faults.get_mut(file).unwrap().remove(0);
    }
    let announced = match state.faults.get(file).and_then(|list| list.first()) {
        Some(Fault::Announce(n)) => Some(*n),
        _ => None,
    };
    let tag = tag(&bytes);
    let commit_header = ("x-repo-commit", commit.clone());
    if bytes.len() < LARGE_BYTES {
        let headers = vec![commit_header, ("etag", format!("\"{tag}\""))];
        let mut answer = content(state, request, file, bytes, headers);
        answer.announced = announced;
        return answer;
    }
    let to = format!("{}/{name}/{commit}/{file}?signature=secret", state.storage);
    let mut answer = Answer::redirect(302, to.replace(' ', "%20"));
    answer.headers.extend([
        commit_header,
        ("etag", "\"of the redirect\"".to_owned()),
        ("x-linked-etag", format!("\"{tag}\"")),
        (
            "x-linked-size",
            announced.unwrap_or(bytes.len() as u64).to_string(),
        ),
    ]);
    answer
}

/// Bytes, whole or a range, with the next fault of the file.
fn content(
    state: &mut State,
    request: &Request,
    file: &str,
    mut bytes: Vec<u8>,
    headers: Vec<(&'static str, String)>,
) -> Answer {
    let faults = state.faults.entry(file.to_owned()).or_default();
    let fault = (request.method == "GET" && !faults.is_empty()).then(|| faults.remove(0));
    let range = request.headers.get("range").map(|range| {
        let (start, end) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        (start.parse::<usize>().unwrap(), end.parse::<usize>().ok())
    });
    let total = bytes.len();
    let said = match fault {
        Some(Fault::Announce(n)) => n,
        _ => total as u64,
    };
    match &fault {
        Some(Fault::Flip) => bytes[total / 2] ^= 1,
        Some(Fault::Longer) => bytes.push(0),
        Some(Fault::Status(status)) => return Answer::status(*status),
        Some(Fault::NoSuchRange) => return Answer::status(416),
        _ => {}
    }
    let mut answer = match range {
        Some((start, _)) if start >= total => return Answer::status(416),
        Some((start, end)) if fault != Some(Fault::IgnoreRange) => {
            let end = end.map_or(total, |last| (last + 1).min(total));
            let mut answer = Answer::body(bytes[start..end].to_vec(), headers);
            answer.status = 206;
            let range = format!("bytes {start}-{}/{said}", end - 1);
            answer.headers.push(("content-range", range));
            answer
        }
        Some(_) | None => Answer::body(bytes, headers),
    };
    if let Some(Fault::Cut(n)) = fault {
        answer.sent = n.min(answer.body.len());
    }
    answer
}

fn commit_of<'a>(repo: &'a Repo, revision: &str) -> Option<&'a String> {
    let by_name = repo.refs.get(revision);
    by_name.or_else(|| repo.commits.keys().find(|commit| *commit == revision))
}

impl Answer {
    fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            sent: 0,
            announced: None,
        }
    }

    fn code(status: u16, code: &str) -> Self {
        let mut answer = Self::status(status);
        answer.headers.push(("x-error-code", code.to_owned()));
        answer
    }

    fn redirect(status: u16, to: String) -> Self {
        let mut answer = Self::status(status);
        answer.headers.push(("location", to));
        answer
    }

    fn body(body: Vec<u8>, headers: Vec<(&'static str, String)>) -> Self {
        Self {
            status: 200,
            headers,
            sent: body.len(),
            body,
            announced: None,
        }
    }
}

/// The tag of a file: its SHA-256 if it is a large one, else the name that git gives it.
pub(crate) fn tag(bytes: &[u8]) -> String {
    if bytes.len() < LARGE_BYTES {
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", bytes.len()));
        hash.update(bytes);
        hex(&hash.finalize())
    } else {
        hex(&Sha256::digest(bytes))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_default())
}

fn decoded(part: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            let digits = std::str::from_utf8(&digits).unwrap();
            out.push(u8::from_str_radix(digits, 16).unwrap());
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).unwrap()
}
