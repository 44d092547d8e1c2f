//! Talking to a yard: its address, the connection, and lists page by page.

use std::fmt;
use std::path::PathBuf;

use rollout_wire::MESSAGE_BYTES_MAX;
use rollout_wire::v1::jobs_client::JobsClient;
use rollout_wire::v1::sandboxes_client::SandboxesClient;
use rollout_wire::v1::{
    GetRequest, Job, ListRequest, ListRolloutsRequest, ListStepsRequest, Rollout, StepRow,
};
use tonic::transport::{Channel, Endpoint};

use crate::error::Error;

/// The longest path a Unix socket may have on Linux, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Rows of one page.
const PAGE_ROWS: u32 = 1000;

/// Where a yard listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YardUrl {
    Unix(PathBuf),
    Http(String),
}

impl YardUrl {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |problem| Error::BadYard { url: text.to_owned(), problem };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(bad("the path of a Unix socket must be absolute"));
            }
            if path.len() > SOCKET_PATH_BYTES_MAX {
                return Err(bad("the path is longer than 107 bytes, the most a Unix socket may have"));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        if text.starts_with("https://") {
            return Err(Error::NoTls { url: text.to_owned() });
        }
        let Some(authority) = text.strip_prefix("http://") else {
            return Err(bad("it starts with neither unix: nor http://"));
        };
        if !is_loopback(authority) {
            return Err(bad("it is not on loopback: there is no TLS yet"));
        }
        match Endpoint::from_shared(text.to_owned()) {
            Ok(_) if !authority.trim_end_matches('/').is_empty() => Ok(Self::Http(text.to_owned())),
            _ => Err(bad("it names no host")),
        }
    }

    /// Whether the yard sees the same files as this process: a Unix socket always leads to this
    /// machine.
    pub const fn on_this_machine(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

/// `127.0.0.1:PORT`, `[::1]:PORT` or `localhost:PORT`.
fn is_loopback(authority: &str) -> bool {
    let host = authority.split('/').next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        // An IPv6 address without a port ends in a bracket.
        Some((host, port)) if !port.ends_with(']') => host,
        _ => host,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl fmt::Display for YardUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(url) => f.write_str(url),
        }
    }
}

/// A connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    url: YardUrl,
    jobs: JobsClient<Channel>,
    sandboxes: SandboxesClient<Channel>,
    yard_runs: bool,
}

impl Client {
    pub async fn connect(url: YardUrl) -> Result<Self, Error> {
        let text = url.to_string();
        let endpoint = Endpoint::from_shared(text.clone())
            .map_err(|_| Error::BadYard { url: text.clone(), problem: "it is not a URL" })?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|source| Error::Unreachable { url: text, source: Box::new(source) })?;
        Ok(Self::over(channel, url, true))
    }

    /// A client over a connection that is there already: to a yard that runs, or to what reads the
    /// books of one that does not.
    pub fn over(channel: Channel, url: YardUrl, yard_runs: bool) -> Self {
        let jobs = JobsClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let sandboxes = SandboxesClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self { url, jobs, sandboxes, yard_runs }
    }

    /// Whether anything moves: if not, states are those the yard left.
    pub const fn yard_runs(&self) -> bool {
        self.yard_runs
    }

    pub const fn url(&self) -> &YardUrl {
        &self.url
    }

    /// The generated client, for a call; [`Client::failed`] makes its status an error.
    pub fn jobs(&self) -> JobsClient<Channel> {
        self.jobs.clone()
    }

    /// The same for sandboxes.
    pub fn sandboxes(&self) -> SandboxesClient<Channel> {
        self.sandboxes.clone()
    }

    #[expect(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
    pub fn failed(&self, status: tonic::Status) -> Error {
        Error::from_status(&status, &self.url.to_string())
    }

    /// Of a call that ended without a word.
    pub fn cut_off(&self, message: &str) -> Error {
        Error::Broken { url: self.url.to_string(), message: message.to_owned() }
    }

    /// The answer of a call, or its status as an error.
    pub fn done<T>(&self, reply: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Error> {
        reply.map(tonic::Response::into_inner).map_err(|status| self.failed(status))
    }

    pub async fn get(&self, job: &str) -> Result<Job, Error> {
        self.done(self.jobs().get(GetRequest { job: job.to_owned() }).await)
    }

    /// Up to `limit` jobs, and whether there are more.
    pub async fn list_jobs(&self, unfinished_only: bool, limit: usize) -> Result<(Vec<Job>, bool), Error> {
        let mut rows = Vec::new();
        let mut page_token = String::new();
        loop {
            let page_size = page(limit, rows.len());
            let request = ListRequest { page_size, page_token, unfinished_only, sandboxes_too: false };
            let reply = self.done(self.jobs().list(request).await)?;
            rows.extend(reply.jobs);
            page_token = reply.next_page_token;
            if page_token.is_empty() || rows.len() >= limit {
                return Ok(cut(rows, limit, !page_token.is_empty()));
            }
        }
    }

    /// Up to `limit` rollouts of a job, and whether there are more.
    pub async fn list_rollouts(&self, job: &str, limit: usize) -> Result<(Vec<Rollout>, bool), Error> {
        let mut rows = Vec::new();
        let mut page_token = String::new();
        loop {
            let page_size = page(limit, rows.len());
            let request = ListRolloutsRequest { job: job.to_owned(), page_size, page_token };
            let reply = self.done(self.jobs().list_rollouts(request).await)?;
            rows.extend(reply.rollouts);
            page_token = reply.next_page_token;
            if page_token.is_empty() || rows.len() >= limit {
                return Ok(cut(rows, limit, !page_token.is_empty()));
            }
        }
    }

    /// The attempts of a rollout, and the rollout.
    pub async fn list_steps(&self, rollout: &str) -> Result<(Vec<StepRow>, Rollout), Error> {
        let request = ListStepsRequest { rollout: rollout.to_owned() };
        let reply = self.done(self.jobs().list_steps(request).await)?;
        let rollout = reply
            .rollout
            .ok_or_else(|| Error::BadAnswer { problem: "steps of a rollout without the rollout".into() })?;
        Ok((reply.steps, rollout))
    }
}

fn page(limit: usize, have: usize) -> u32 {
    u32::try_from(limit - have).unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS)
}

fn cut<T>(mut rows: Vec<T>, limit: usize, more: bool) -> (Vec<T>, bool) {
    let more = more || rows.len() > limit;
    rows.truncate(limit);
    (rows, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yard_is_a_socket_or_plain_http() {
        let unix = Ok::<_, ()>(YardUrl::Unix("/run/y.sock".into()));
        for text in ["unix:/run/y.sock", "unix:///run/y.sock"] {
            assert_eq!(YardUrl::parse(text).map_err(|_| ()), unix, "{text}");
        }
        let http = YardUrl::parse("http://127.0.0.1:7070").expect("parses");
        assert_eq!(http.to_string(), "http://127.0.0.1:7070");
        assert!(!http.on_this_machine());
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        for (text, code) in [
            ("", "bad_yard"),
            ("localhost:7070", "bad_yard"),
            ("unix:y.sock", "bad_yard"),
            ("http://", "bad_yard"),
            ("https://yard.example", "not_available_yet"),
        ] {
            assert_eq!(YardUrl::parse(text).expect_err(text).code(), code, "{text}");
        }
        let long = format!("unix:/{}", "a".repeat(SOCKET_PATH_BYTES_MAX));
        assert_eq!(YardUrl::parse(&long).expect_err("too long").code(), "bad_yard");
    }
}
