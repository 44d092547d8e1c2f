//! One request with what it takes to be let in: nothing, a token, or a name and password.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderMap, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;

use super::credentials::{Credentials, Login};
use super::{is_loopback, is_loopback_name, lock};
use crate::oci::retry::retry_after;

/// Of what a registry says, this many characters are told.
const ANSWER_CHARS_MAX: usize = 300;
/// Bytes that are read of an answer that is no success, and of a token's.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Tokens kept; past it all are asked for anew.
const TOKENS_MAX: usize = 1024;
/// One token is not used for longer than this, whatever it says.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(240);

/// By host and repository.
pub(super) type Tokens = BTreeMap<(String, String), (String, tokio::time::Instant)>;

#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub method: Method,
    pub accept: &'a str,
    /// The first byte wanted.
    pub from: u64,
}

/// Why there is no answer that can be used.
#[derive(Debug)]
pub(super) enum Failure {
    /// Trying again may help; after so long, if it was said.
    Later {
        after: Option<Duration>,
        problem: String,
    },
    No {
        status: u16,
        answer: String,
    },
}

impl Failure {
    pub fn later(problem: String) -> Self {
        Self::Later { after: None, problem }
    }

    pub fn cut(error: &reqwest::Error) -> Self {
        Self::later(chain(error))
    }
}

pub(super) struct Session<'a> {
    pub transport: &'a reqwest::Client,
    pub host: &'a str,
    pub repository: &'a str,
    pub credentials: &'a Credentials,
    pub tokens: &'a Mutex<Tokens>,
}

impl Session<'_> {
    pub async fn send(&self, ask: &Ask<'_>, url: Url) -> Result<Response, Failure> {
        let known = self.known_token();
        let was_known = known.is_some();
        let answer = self.send_with(ask, url.clone(), known).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return checked(answer).await;
        }
        if was_known {
            lock(self.tokens).remove(&self.key());
        }
        let Some(authorization) = self.authorization(answer.headers()).await? else {
            return checked(answer).await;
        };
        checked(self.send_with(ask, url, Some(authorization)).await?).await
    }

    async fn send_with(&self, ask: &Ask<'_>, url: Url, auth: Option<String>) -> Result<Response, Failure> {
        let mut request = self.transport.request(ask.method.clone(), url).header(ACCEPT, ask.accept);
        if let Some(auth) = auth {
            request = request.header(AUTHORIZATION, auth);
        }
        if ask.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", ask.from));
        }
        request.send().await.map_err(|error| {
            // A redirect that is not followed is an answer, and will be the same.
            if error.is_redirect() {
                Failure::No { status: 302, answer: chain(&error) }
            } else {
                Failure::cut(&error)
            }
        })
    }

    fn key(&self) -> (String, String) {
        (self.host.to_owned(), self.repository.to_owned())
    }

    fn known_token(&self) -> Option<String> {
        let tokens = lock(self.tokens);
        let (token, until) = tokens.get(&self.key())?;
        (*until > tokio::time::Instant::now()).then(|| token.clone())
    }

    /// What a refusal asks for; none if there is nothing to offer.
    async fn authorization(&self, headers: &HeaderMap) -> Result<Option<String>, Failure> {
        let login = self.credentials.find(self.host).map_err(Failure::later)?;
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        for challenge in challenges {
            let Some((scheme, rest)) = challenge.split_once(' ') else { continue };
            if scheme.eq_ignore_ascii_case("bearer") {
                return self.token(&parameters(rest), login.as_ref()).await.map(Some);
            }
            if scheme.eq_ignore_ascii_case("basic") {
                return Ok(login.as_ref().map(basic));
            }
        }
        Ok(None)
    }

    async fn token(&self, said: &BTreeMap<String, String>, login: Option<&Login>) -> Result<String, Failure> {
        let no = |answer: String| Failure::No { status: StatusCode::UNAUTHORIZED.as_u16(), answer };
        let realm = said.get("realm").and_then(|realm| Url::parse(realm).ok());
        let mut realm = realm.ok_or_else(|| no("it asks for a token of no usable realm".to_owned()))?;
        let is_here = realm.host_str().is_some_and(is_loopback_name);
        if is_here != is_loopback(self.host) || (realm.scheme() != "https" && !is_here) {
            let realm = rollout::text::shown(realm.as_str(), 120);
            return Err(no(format!("it asks for a token of {realm}, where no password is sent")));
        }
        if let Some(service) = said.get("service") {
            realm.query_pairs_mut().append_pair("service", service);
        }
        let scope = format!("repository:{}:pull", self.repository);
        realm.query_pairs_mut().append_pair("scope", &scope);
        let mut request = self.transport.get(realm);
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, basic(login));
        }
        let answer = request.send().await.map_err(|error| Failure::cut(&error))?;
        let mut answer = checked(answer).await?;
        let bytes = start_of(&mut answer).await;
        let token: Token =
            serde_json::from_slice(&bytes).map_err(|_| no("its token makes no sense".to_owned()))?;
        let text = token.token.or(token.access_token).filter(|token| !token.is_empty());
        let text = text.ok_or_else(|| no("it gave an empty token".to_owned()))?;
        let authorization = format!("Bearer {text}");
        // A little less than it says: a request takes time.
        let age = Duration::from_secs(token.expires_in.unwrap_or(60) * 3 / 4).min(TOKEN_AGE_MAX);
        let mut tokens = lock(self.tokens);
        if tokens.len() >= TOKENS_MAX {
            tokens.clear();
        }
        tokens.insert(self.key(), (authorization.clone(), tokio::time::Instant::now() + age));
        Ok(authorization)
    }
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<u64>,
}

fn basic(login: &Login) -> String {
    use base64::Engine as _;
    let pair = format!("{}:{}", login.user, login.password);
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// `realm="...",service="..."`
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start();
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').map_or((after, ""), |(value, rest)| (value, rest)),
        };
        found.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    found
}

/// Whether what follows is what was asked for: the rest, from byte `at`.
pub(super) fn goes_on_at(answer: &Response, at: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let first = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok());
    answer.status() == StatusCode::PARTIAL_CONTENT && first == Some(at)
}

async fn checked(mut answer: Response) -> Result<Response, Failure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let after = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok());
    let after = after.and_then(|after| retry_after(after, SystemTime::now()));
    let mut text = told(&start_of(&mut answer).await);
    if text.is_empty() {
        // As the answer to a HEAD is.
        status.canonical_reason().unwrap_or_default().clone_into(&mut text);
    }
    if status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    {
        return Err(Failure::Later { after, problem: format!("{} {text}", status.as_u16()) });
    }
    Err(Failure::No { status: status.as_u16(), answer: text })
}

async fn start_of(answer: &mut Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(part)) = answer.chunk().await {
        bytes.extend_from_slice(&part);
        if bytes.len() > ANSWER_BYTES_MAX {
            bytes.truncate(ANSWER_BYTES_MAX);
            break;
        }
    }
    bytes
}

/// The messages of an answer, else its start.
fn told(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<Problem>,
    }
    #[derive(Deserialize)]
    struct Problem {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let text = match serde_json::from_slice::<Answer>(bytes) {
        Ok(answer) => {
            let each = answer.errors.iter().map(|Problem { code, message }| format!("{code}: {message}"));
            each.collect::<Vec<_>>().join("; ")
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    };
    rollout::text::shown(text.trim(), ANSWER_CHARS_MAX)
}

/// An error and its causes on one line.
pub(super) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    rollout::text::shown(&text, 2 * ANSWER_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let found = parameters(r#"realm="https://a/token",service="a b",scope="x:y,z", error=e"#);
        let get = |key: &str| found.get(key).map(String::as_str);
        assert_eq!(get("realm"), Some("https://a/token"));
        assert_eq!((get("service"), get("scope"), get("error")), (Some("a b"), Some("x:y,z"), Some("e")));
        assert!(parameters("nonsense").is_empty());
    }

    #[test]
    fn a_registrys_answer_is_told_in_its_words() {
        let json = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{}}]}"#;
        assert_eq!(told(json), "MANIFEST_UNKNOWN: manifest unknown");
        assert_eq!(told(b" gone away \n"), "gone away");
        assert!(told(&[b'x'; 5000]).len() < 1000);
    }
}
