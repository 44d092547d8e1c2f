//! Names and passwords for registries, from the file that `docker login` writes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rollout::image::DEFAULT_REGISTRY;
use serde::Deserialize;

const FILE_BYTES_MAX: u64 = 1 << 20;
/// Under what name Docker keeps the login of its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Where Docker keeps logins: `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`.
pub fn docker_config() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))?;
    Some(dir.join("config.json"))
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}, ...)", self.user)
    }
}

/// Read anew at each use: somebody may log in meanwhile.
#[derive(Debug)]
pub(super) struct Credentials {
    file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(default)]
    auth: Option<String>,
}

impl Credentials {
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// The login for `host`; none if there is no file, or none for it.
    pub fn find(&self, host: &str) -> Result<Option<Login>, String> {
        let Some(path) = &self.file else { return Ok(None) };
        let said = |problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
        let mut text = String::new();
        match fs::File::open(path) {
            Ok(file) => _ = file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| said(&e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(said(&error)),
        }
        // The file holds secrets: what serde would quote of it stays out of messages.
        let file: File = serde_json::from_str(&text).map_err(|_| said(&"it is no docker configuration"))?;
        let key = if host == DEFAULT_REGISTRY { DOCKER_HUB_KEY } else { host };
        let found = file.auths.get(key).or_else(|| file.auths.get(&format!("https://{host}")));
        let Some(auth) = found.and_then(|auth| auth.auth.as_deref()).filter(|auth| !auth.is_empty()) else {
            return Ok(None);
        };
        let bytes = STANDARD.decode(auth).map_err(|_| said(&"an `auth` is not base64"))?;
        let pair = String::from_utf8(bytes).map_err(|_| said(&"an `auth` is not text"))?;
        let (user, password) =
            pair.split_once(':').ok_or_else(|| said(&"an `auth` is no `user:password`"))?;
        Ok(Some(Login { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_found_by_its_host_and_never_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let auth = STANDARD.encode("me:sec:ret");
        let text = format!(
            r#"{{"auths":{{"a.b:5000":{{"auth":"{auth}"}},"{DOCKER_HUB_KEY}":{{"auth":"{auth}"}},"empty":{{}}}},"credsStore":"x"}}"#
        );
        fs::write(&path, text).unwrap();
        let credentials = Credentials::new(Some(path.clone()));
        let login = credentials.find("a.b:5000").unwrap().unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("me", "sec:ret"));
        assert!(!format!("{login:?}").contains("sec"));
        assert!(credentials.find("docker.io").unwrap().is_some());
        assert_eq!(credentials.find("empty").unwrap(), None);
        assert_eq!(credentials.find("other").unwrap(), None);
        fs::write(&path, r#"{"auths": secret"#).unwrap();
        assert!(!credentials.find("x").unwrap_err().contains("secret"));
        assert_eq!(Credentials::new(Some(dir.path().join("none"))).find("x"), Ok(None));
    }
}
