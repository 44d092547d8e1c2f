//! Registries: one client for all of them, with a bound on pulls at once and a pace for each host.
//!
//! Plain HTTP goes to loopback only. What a registry answers is bounded and checked by digest; a
//! download that is cut goes on where it stopped.

mod credentials;
mod pace;
mod session;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use reqwest::redirect::{self, Attempt};
use reqwest::{Method, StatusCode, Url};
use rollout::image::{DEFAULT_REGISTRY, Digest, RegistryRef, Version};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use super::manifest::ACCEPTED;
use super::retry::Tries;
use super::{Error, ImageLayer, Kind, MANIFEST_BYTES_MAX, Source, digest_of};
use credentials::Credentials;
use pace::Pace;
use session::{Ask, Failure, Tokens};

pub use credentials::docker_config;

/// Layers that one client pulls at once.
pub const PULLS_MAX: usize = 4;
/// Manifests asked of one registry in a minute: each counts as a pull where pulls are counted.
pub const MANIFESTS_PER_MINUTE_MAX: usize = 90;
const REDIRECTS_MAX: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Without a byte for so long, a connection counts as cut.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// For one layer with all its tries: a trickle must not keep a turn for ever.
const LAYER_TIMEOUT: Duration = Duration::from_secs(3600);
/// A try that brought so many bytes is no failed try.
const PROGRESS_BYTES: u64 = 64 << 10;
const DOCKER_HUB: &str = "registry-1.docker.io";

/// Asks registries; cheap to clone.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Made when first needed: it reads the machine's certificates.
    secure: OnceLock<Result<reqwest::Client, String>>,
    loopback: OnceLock<Result<reqwest::Client, String>>,
    credentials: Credentials,
    tokens: Mutex<Tokens>,
    pulls: Semaphore,
    pace: Pace,
}

impl Client {
    /// `docker_config`: a file with credentials, as `docker login` writes it; see [`docker_config`].
    pub fn new(docker_config: Option<PathBuf>) -> Self {
        Self(Arc::new(Inner {
            secure: OnceLock::new(),
            loopback: OnceLock::new(),
            credentials: Credentials::new(docker_config),
            tokens: Mutex::default(),
            pulls: Semaphore::new(PULLS_MAX),
            pace: Pace::new(MANIFESTS_PER_MINUTE_MAX, Duration::from_secs(60)),
        }))
    }

    /// The digest a reference means now.
    ///
    /// # Errors
    /// The registry does not know it, or gives no answer.
    pub async fn resolve(&self, reference: &RegistryRef) -> Result<Digest, Error> {
        let tag = match &reference.version {
            Version::Digest(digest) => return Ok(*digest),
            Version::Tag(tag) => tag,
        };
        let repository = self.repository(reference);
        let place = format!("manifests/{tag}");
        let asked = repository.ask(&Ask { method: Method::HEAD, accept: ACCEPTED, from: 0 }, &place).await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) if error.is_passing() => return Err(error),
            // An answer without a body says little: the same question once more, for its words.
            Err(_) => return Ok(digest_of(&repository.small(&place, ACCEPTED).await?)),
        };
        let header = answer.headers().get("docker-content-digest").and_then(|digest| digest.to_str().ok());
        if let Some(digest) = header.and_then(|digest| digest.parse().ok()) {
            return Ok(digest);
        }
        Ok(digest_of(&repository.small(&place, ACCEPTED).await?))
    }

    /// One repository, as a source of its blobs.
    pub fn repository(&self, reference: &RegistryRef) -> Repository {
        Repository {
            client: self.clone(),
            host: reference.host.clone(),
            repository: reference.repository.clone(),
        }
    }

    fn transport(&self, host: &str) -> Result<&reqwest::Client, String> {
        let is_loopback = is_loopback(host);
        let place = if is_loopback { &self.0.loopback } else { &self.0.secure };
        place.get_or_init(|| transport(is_loopback)).as_ref().map_err(Clone::clone)
    }
}

fn transport(is_loopback: bool) -> Result<reqwest::Client, String> {
    // An error says that somebody installed one before: theirs is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let redirects = redirect::Policy::custom(move |attempt: Attempt<'_>| {
        let url = attempt.url();
        let to_loopback = url.host_str().is_some_and(is_loopback_name);
        if attempt.previous().len() > REDIRECTS_MAX {
            attempt.error(format!("more than {REDIRECTS_MAX} redirects (REDIRECTS_MAX)"))
        } else if to_loopback != is_loopback || (url.scheme() != "https" && !to_loopback) {
            let url = rollout::text::shown(url.as_str(), 120);
            attempt.error(format!("it redirects to {url}, where it may not lead"))
        } else {
            attempt.follow()
        }
    });
    let builder = reqwest::Client::builder()
        .user_agent(concat!("rollyard/", env!("CARGO_PKG_VERSION")))
        .redirect(redirects)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT);
    let builder = if is_loopback { builder.no_proxy() } else { builder.https_only(true) };
    builder.build().map_err(|error| session::chain(&error))
}

/// Whether a registry, as a reference names it, is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    is_loopback_name(name)
}

fn is_loopback_name(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// One repository of a registry.
#[derive(Debug, Clone)]
pub struct Repository {
    client: Client,
    host: String,
    repository: String,
}

impl Repository {
    fn url(&self, place: &str) -> Result<Url, Error> {
        let host = if self.host == DEFAULT_REGISTRY { DOCKER_HUB } else { &self.host };
        let scheme = if is_loopback(&self.host) { "http" } else { "https" };
        let url = format!("{scheme}://{host}/v2/{}/{place}", self.repository);
        Url::parse(&url).map_err(|error| Error::format(url, error.to_string()))
    }

    /// An answer that is a success, in as many tries as it takes.
    async fn ask(&self, ask: &Ask<'_>, place: &str) -> Result<reqwest::Response, Error> {
        let mut tries = Tries::default();
        loop {
            match self.try_once(ask, place).await? {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.wait(&mut tries, &failure, place).await?,
            }
        }
    }

    async fn try_once(
        &self,
        ask: &Ask<'_>,
        place: &str,
    ) -> Result<Result<reqwest::Response, Failure>, Error> {
        let url = self.url(place)?;
        let transport = match self.client.transport(&self.host) {
            Ok(transport) => transport,
            Err(problem) => return Ok(Err(Failure::later(problem))),
        };
        let Inner { credentials, tokens, .. } = &*self.client.0;
        let session = session::Session {
            transport,
            host: &self.host,
            repository: &self.repository,
            credentials,
            tokens,
        };
        match session.send(ask, url).await {
            Err(Failure::No { status, answer }) => {
                let what = format!("{}/{place}", self.repository);
                if status == StatusCode::NOT_FOUND.as_u16() {
                    let place = format!("registry {} ({answer})", self.host);
                    return Err(Error::NotFound { what, place });
                }
                Err(Error::Refused { host: self.host.clone(), what, status, answer })
            }
            other => Ok(other),
        }
    }

    /// Before the next try, if there is one.
    async fn wait(&self, tries: &mut Tries, failure: &Failure, place: &str) -> Result<(), Error> {
        let (after, problem) = match failure {
            Failure::Later { after, problem } => (*after, problem.clone()),
            Failure::No { status, answer } => (None, format!("{status} {answer}")),
        };
        match tries.next(after) {
            Some(wait) => {
                tracing::info!(host = self.host, place, problem, ?wait, "asking a registry again");
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => {
                let what = format!("{}/{place}", self.repository);
                Err(Error::GaveUp { host: self.host.clone(), what, tries: tries.made(), problem })
            }
        }
    }

    async fn small(&self, place: &str, accept: &str) -> Result<Vec<u8>, Error> {
        let mut tries = Tries::default();
        'again: loop {
            let ask = Ask { method: Method::GET, accept, from: 0 };
            let mut answer = match self.try_once(&ask, place).await? {
                Ok(answer) => answer,
                Err(failure) => {
                    self.wait(&mut tries, &failure, place).await?;
                    continue;
                }
            };
            let mut bytes = Vec::new();
            loop {
                match answer.chunk().await {
                    Ok(None) => return Ok(bytes),
                    Ok(Some(part)) => bytes.extend_from_slice(&part),
                    Err(error) => {
                        self.wait(&mut tries, &Failure::cut(&error), place).await?;
                        continue 'again;
                    }
                }
                if bytes.len() as u64 > MANIFEST_BYTES_MAX {
                    let bound = "bytes of a manifest (MANIFEST_BYTES_MAX)";
                    return Err(Error::bound(place, bound, MANIFEST_BYTES_MAX));
                }
            }
        }
    }

    async fn download(&self, layer: &ImageLayer, into: &Path) -> Result<(), Error> {
        let place = format!("blobs/{}", layer.blob);
        let wrote = |source| Error::io("write", into)(source);
        let mut file = tokio::fs::File::create(into).await.map_err(wrote)?;
        let (mut at, mut hash, mut tries) = (0u64, Sha256::new(), Tries::default());
        'again: while at < layer.size || layer.size == 0 {
            let began = at;
            let ask = Ask { method: Method::GET, accept: "*/*", from: at };
            let mut answer = match self.try_once(&ask, &place).await? {
                Ok(answer) => answer,
                Err(failure) => {
                    self.wait(&mut tries, &failure, &place).await?;
                    continue;
                }
            };
            if at > 0 && !session::goes_on_at(&answer, at) {
                // This registry knows no ranges: from the start.
                (at, hash) = (0, Sha256::new());
                file.set_len(0).await.map_err(wrote)?;
                file.rewind().await.map_err(wrote)?;
            }
            loop {
                let failure = match answer.chunk().await {
                    Ok(Some(part)) => {
                        at += part.len() as u64;
                        if at > layer.size {
                            let bound = "bytes its manifest says";
                            return Err(Error::bound(layer.blob, bound, layer.size));
                        }
                        hash.update(&part);
                        file.write_all(&part).await.map_err(wrote)?;
                        continue;
                    }
                    Ok(None) if at == layer.size => break 'again,
                    Ok(None) => Failure::later(format!("it ended after {at} of {} bytes", layer.size)),
                    Err(error) => Failure::cut(&error),
                };
                if at >= began + PROGRESS_BYTES {
                    tries.progressed();
                }
                self.wait(&mut tries, &failure, &place).await?;
                continue 'again;
            }
        }
        file.flush().await.map_err(wrote)?;
        let found = Digest::from_bytes(hash.finalize().into());
        if found == layer.blob { Ok(()) } else { Err(Error::WrongDigest { expected: layer.blob, found }) }
    }
}

impl Source for Repository {
    async fn document(&self, digest: &Digest, kind: Kind) -> Result<Vec<u8>, Error> {
        match kind {
            Kind::Manifest => {
                self.client.0.pace.turn(&self.host).await;
                self.small(&format!("manifests/{digest}"), ACCEPTED).await
            }
            Kind::Config => self.small(&format!("blobs/{digest}"), "*/*").await,
        }
    }

    async fn layer(&self, layer: &ImageLayer, into: &Path) -> Result<(), Error> {
        let turn = self.client.0.pulls.acquire().await;
        let _turn = turn.map_err(|error| Error::format(layer.blob, error.to_string()))?;
        let downloaded = match tokio::time::timeout(LAYER_TIMEOUT, self.download(layer, into)).await {
            Ok(downloaded) => downloaded,
            Err(_) => Err(Error::GaveUp {
                host: self.host.clone(),
                what: format!("{}/blobs/{}", self.repository, layer.blob),
                tries: 1,
                problem: format!("not whole after {LAYER_TIMEOUT:?} (LAYER_TIMEOUT)"),
            }),
        };
        if downloaded.is_err()
            && let Err(error) = tokio::fs::remove_file(into).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::error!(path = %into.display(), %error, "a half pulled layer was not removed");
        }
        downloaded
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_only() {
        let client = Client::new(None);
        let url = |text: &str| {
            let rollout::image::ImageRef::Registry(reference) = text.parse().unwrap() else {
                panic!("{text}")
            };
            client.repository(&reference).url("x").unwrap().to_string()
        };
        assert_eq!(url("127.0.0.1:5000/a"), "http://127.0.0.1:5000/v2/a/x");
        assert_eq!(url("localhost:5000/a"), "http://localhost:5000/v2/a/x");
        assert_eq!(url("[::1]:5000/a"), "http://[::1]:5000/v2/a/x");
        assert_eq!(url("debian"), "https://registry-1.docker.io/v2/library/debian/x");
        assert_eq!(url("10.0.0.1:5000/a"), "https://10.0.0.1:5000/v2/a/x");
        assert_eq!(url("localhost.example/a"), "https://localhost.example/v2/a/x");
    }
}
