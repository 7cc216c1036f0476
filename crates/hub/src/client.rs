//! Requests to the hub: addresses, redirects, the token, what a status means.
//!
//! Redirects are followed here and not by the HTTP library, for two reasons: the token must not reach another host than
//! the hub, and what identifies a file stands in the hub's own reply, before it sends the reader elsewhere.

use std::io;
use std::time::Duration;

use hf_hub::{Repo, RepoType};
use ureq::Agent;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use ureq::{Body, Proxy, Timeout};

use crate::config::{HubConfig, Token};
use crate::error::HubError;
use crate::names::encoded;

/// Redirects before the hub is thought to run in circles; storage needs one or two.
const REDIRECTS_MAX: usize = 8;
/// A hub that takes longer to accept a connection is down.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(20);
/// A connection that is silent for longer is dead; the transfer then goes on with another.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Where the hub tells what a failure is about.
const ERROR_CODE: &str = "x-error-code";

/// A connection to one hub.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
}

/// A file's reply, with what the hub itself said about it.
pub(crate) struct Reply {
    /// The address asked first.
    pub(crate) url: String,
    /// Headers of the hub's last reply, whoever sends the bytes.
    pub(crate) hub: HeaderMap,
    /// The reply at the end of all redirects.
    pub(crate) response: Response<Body>,
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another try may succeed.
    Temporary(HubError),
    /// It would not.
    Final(HubError),
}

/// Which bytes are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// All of them.
    Whole,
    /// From here to the end.
    From(u64),
    /// This many from here.
    Part { start: u64, len: u64 },
}

/// What a request is about, for its errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
}

/// Scheme, host and port: what a token may be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Client {
    /// A client for the configured hub; nothing is sent.
    pub(crate) fn new(config: &HubConfig) -> Result<Self, HubError> {
        let endpoint = config.endpoint.trim().trim_end_matches('/').to_owned();
        let bad = || HubError::BadEndpoint {
            endpoint: config.endpoint.clone(),
        };
        let uri: Uri = endpoint.parse().map_err(|_| bad())?;
        let origin = Origin::of(&uri).ok_or_else(bad)?;
        if uri.query().is_some() || origin.host.is_empty() {
            return Err(bad());
        }
        if let Some(token) = &config.token
            && !token.secret().bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(HubError::BadToken);
        }
        let proxy = match &config.https_proxy {
            Some(proxy) if origin.scheme == "https" => {
                Some(Proxy::new(proxy).map_err(|_| HubError::BadProxy {
                    proxy: proxy.clone(),
                })?)
            }
            Some(_) | None => None,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .user_agent(concat!("larql/", env!("CARGO_PKG_VERSION")))
            // Sizes and offsets are those of the file, so nobody may compress it on the way.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX))
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoint,
            origin,
            token: config.token.clone(),
        })
    }

    /// Address of the list of files.
    pub(crate) fn listing_url(&self, repo: &Repo) -> String {
        format!("{}/api/{}", self.endpoint, repo.api_url())
    }

    /// Address of a file at a commit.
    pub(crate) fn file_url(&self, repo: &str, commit: &str, file: &str) -> String {
        let repo = Repo::new(repo.to_owned(), RepoType::Model);
        let (endpoint, path, file) = (&self.endpoint, repo.url(), encoded(file));
        format!("{endpoint}/{path}/resolve/{commit}/{file}")
    }

    /// Asks for the bytes of an address.
    pub(crate) fn get(&self, url: &str, span: Span, about: Subject<'_>) -> Result<Reply, Failure> {
        self.ask(&Method::GET, url, span, about)
    }

    /// Asks what an address holds; a redirect to another host is not followed, because all is said by then.
    pub(crate) fn head(&self, url: &str, about: Subject<'_>) -> Result<Reply, Failure> {
        self.ask(&Method::HEAD, url, Span::Whole, about)
    }

    fn ask(
        &self,
        method: &Method,
        url: &str,
        span: Span,
        about: Subject<'_>,
    ) -> Result<Reply, Failure> {
        let mut at: Uri = url
            .parse()
            .map_err(|_| bad_reply(url, "no valid address"))?;
        let mut hub = HeaderMap::new();
        for _ in 0..=REDIRECTS_MAX {
            let origin = Origin::of(&at).ok_or_else(|| bad_reply(url, "no web address"))?;
            let response = self.send(method, &at, &origin, span)?;
            let is_hub = origin == self.origin;
            if is_hub {
                hub.clone_from(response.headers());
            }
            if !response.status().is_redirection() {
                self.check(&response, url, is_hub, about)?;
                let url = url.to_owned();
                return Ok(Reply { url, hub, response });
            }
            let next = next_address(&at, &response)
                .ok_or_else(|| bad_reply(url, "a redirect that leads nowhere"))?;
            let leaves = Origin::of(&next).as_ref() != Some(&self.origin);
            if origin.scheme == "https" && next.scheme_str() != Some("https") {
                return Err(bad_reply(url, "a redirect from https to an address without").into());
            }
            if *method == Method::HEAD && leaves {
                let url = url.to_owned();
                return Ok(Reply { url, hub, response });
            }
            at = next;
        }
        Err(bad_reply(url, "too many redirects").into())
    }

    fn send(
        &self,
        method: &Method,
        at: &Uri,
        origin: &Origin,
        span: Span,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(method).uri(at);
        match span {
            Span::Whole => {}
            Span::From(start) => request = request.header(header::RANGE, format!("bytes={start}-")),
            Span::Part { start, len } => {
                let last = start + len.max(1) - 1;
                request = request.header(header::RANGE, format!("bytes={start}-{last}"));
            }
        }
        if let Some(token) = self.token.as_ref().filter(|_| *origin == self.origin) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret()));
        }
        let request = request
            .body(())
            .map_err(|_| bad_reply(&at.to_string(), "no valid request"))?;
        self.agent.run(request).map_err(|source| {
            let is_final = match &source {
                ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
                ureq::Error::Io(source) => source.kind() == io::ErrorKind::ConnectionRefused,
                ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => true,
                ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => false,
                _ => true,
            };
            let error = HubError::Unreachable {
                url: without_query(at),
                source: Box::new(source),
            };
            if is_final {
                Failure::Final(error)
            } else {
                Failure::Temporary(error)
            }
        })
    }

    /// Turns a status that is no success into what it means; 416 is left to the caller, who knows what was asked for.
    fn check(
        &self,
        response: &Response<Body>,
        url: &str,
        is_hub: bool,
        about: Subject<'_>,
    ) -> Result<(), Failure> {
        let status = response.status();
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(());
        }
        let plain = || HubError::Status {
            url: url.to_owned(),
            status: status.as_u16(),
        };
        if matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504) {
            return Err(Failure::Temporary(plain()));
        }
        if !is_hub {
            // Addresses of the storage expire, so a refusal of theirs says nothing about the model.
            return Err(Failure::Temporary(plain()));
        }
        let code = response.headers().get(ERROR_CODE);
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or("");
        let repo = about.repo.to_owned();
        Err(Failure::Final(match (status.as_u16(), code) {
            (401 | 403, "GatedRepo") | (403, _) => HubError::Gated {
                repo,
                status: status.as_u16(),
            },
            (401, _) => HubError::Unauthorized {
                repo,
                has_token: self.token.is_some(),
            },
            (404, "RevisionNotFound") => HubError::RevisionNotFound {
                repo,
                revision: about.revision.to_owned(),
            },
            (404, code) => match about.file {
                Some(file) if code != "RepoNotFound" => HubError::FileNotFound {
                    repo,
                    revision: about.revision.to_owned(),
                    file: file.to_owned(),
                },
                Some(_) | None => HubError::RepoNotFound {
                    repo,
                    endpoint: self.endpoint.clone(),
                },
            },
            _ => plain(),
        }))
    }
}

impl Failure {
    /// The error, however it came about.
    pub(crate) fn into_error(self) -> HubError {
        match self {
            Self::Temporary(error) | Self::Final(error) => error,
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        Some(Self {
            host: uri.host()?.to_ascii_lowercase(),
            port: uri.port_u16().unwrap_or(port),
            scheme,
        })
    }
}

/// Where a redirect leads.
fn next_address(at: &Uri, response: &Response<Body>) -> Option<Uri> {
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        let (scheme, authority) = (at.scheme_str()?, at.authority()?);
        return format!("{scheme}://{authority}{location}").parse().ok();
    }
    let next: Uri = location.parse().ok()?;
    Origin::of(&next).map(|_| next)
}

/// Signed addresses of the storage carry secrets in their query.
fn without_query(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split('?').next().unwrap_or_default().to_owned()
}

/// An answer that the hub should not give.
pub(crate) fn bad_reply(url: &str, what: &str) -> HubError {
    HubError::BadReply {
        url: url.to_owned(),
        what: what.to_owned(),
    }
}
