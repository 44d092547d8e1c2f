//! What a sandbox can start from, as a spec names it.
//!
//! ```
//! use rollout::image::ImageRef;
//! let image: ImageRef = "debian:12".parse().unwrap();
//! assert_eq!(image.to_string(), "docker.io/library/debian:12");
//! ```

use std::fmt;
use std::str::FromStr;

use crate::checkpoint::digest_id;
use crate::ids::ParseIdError;

/// Bytes of a whole reference.
pub const REFERENCE_BYTES_MAX: usize = 4096;
/// Bytes of a repository, as registries bound it.
const REPOSITORY_BYTES_MAX: usize = 255;
/// Bytes of a registry's name and port.
const HOST_BYTES_MAX: usize = 260;
/// Bytes of a tag.
const TAG_BYTES_MAX: usize = 128;
/// The registry of references that name none.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// Where that registry keeps what has no owner.
const DEFAULT_OWNER: &str = "library";
const DEFAULT_TAG: &str = "latest";

const LAYOUT: &str = "oci-layout:";
const ARCHIVE: &str = "oci-archive:";
const STORED: &str = "stored:";
const DIRECTORY: &str = "dir:";

digest_id!(
    /// Names an OCI manifest, configuration or layer by the sha256 of its bytes.
    Digest, "digest"
);

/// What stands at the bottom of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageRef {
    /// The machine's own /usr over a skeleton.
    Host,
    /// A tree on the node.
    Directory(String),
    /// An OCI layout on the machine of the client.
    Layout {
        path: String,
        pick: Pick,
    },
    /// The same in a tar file.
    Archive {
        path: String,
    },
    Registry(RegistryRef),
    /// In the yard's blob store, by the digest of its manifest or index.
    Stored(Digest),
}

/// Which image of a layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pick {
    /// There is but one.
    Only,
    Tag(String),
    Digest(Digest),
}

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistryRef {
    /// Name or address, and a port if one was written.
    pub host: String,
    pub repository: String,
    pub version: Version,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Tag(String),
    Digest(Digest),
}

/// Why a text names no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no image: {problem}")]
pub struct ImageRefError {
    /// At most 80 characters of what was given.
    pub text: String,
    pub problem: &'static str,
}

impl ImageRef {
    /// What it names can change while its text stays: it is pinned to a digest before it is used.
    pub const fn needs_pin(&self) -> bool {
        match self {
            Self::Host | Self::Directory(_) | Self::Stored(_) => false,
            Self::Layout { .. } | Self::Archive { .. } => true,
            Self::Registry(registry) => matches!(registry.version, Version::Tag(_)),
        }
    }

    /// It lies on the machine of the client, who has to hand it in.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Layout { .. } | Self::Archive { .. })
    }
}

impl RegistryRef {
    /// The same image by its digest.
    pub fn pinned(&self, digest: Digest) -> Self {
        Self { version: Version::Digest(digest), ..self.clone() }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Directory(path) => write!(f, "{DIRECTORY}{path}"),
            Self::Layout { path, pick: Pick::Only } => write!(f, "{LAYOUT}{path}"),
            Self::Layout { path, pick: Pick::Tag(tag) } => write!(f, "{LAYOUT}{path}:{tag}"),
            Self::Layout { path, pick: Pick::Digest(digest) } => write!(f, "{LAYOUT}{path}@{digest}"),
            Self::Archive { path } => write!(f, "{ARCHIVE}{path}"),
            Self::Registry(registry) => registry.fmt(f),
            Self::Stored(digest) => write!(f, "{STORED}{digest}"),
        }
    }
}

impl fmt::Display for RegistryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, repository, version } = self;
        match version {
            Version::Tag(tag) => write!(f, "{host}/{repository}:{tag}"),
            Version::Digest(digest) => write!(f, "{host}/{repository}@{digest}"),
        }
    }
}

impl FromStr for ImageRef {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        parse(text).map_err(|problem| ImageRefError { text: crate::text::shown(text, 80), problem })
    }
}

fn parse(text: &str) -> Result<ImageRef, &'static str> {
    if text.len() > REFERENCE_BYTES_MAX {
        return Err("it is longer than 4096 bytes");
    }
    if text == "host" {
        return Ok(ImageRef::Host);
    }
    if let Some(path) = text.strip_prefix(DIRECTORY) {
        return Ok(ImageRef::Directory(path.to_owned()));
    }
    if let Some(rest) = text.strip_prefix(LAYOUT) {
        return layout(rest);
    }
    if let Some(path) = text.strip_prefix(ARCHIVE) {
        return some_path(path).map(|path| ImageRef::Archive { path });
    }
    if let Some(rest) = text.strip_prefix(STORED) {
        return digest(rest).map(ImageRef::Stored);
    }
    registry(text).map(ImageRef::Registry)
}

fn some_path(path: &str) -> Result<String, &'static str> {
    if path.is_empty() { Err("there is no path") } else { Ok(path.to_owned()) }
}

fn digest(text: &str) -> Result<Digest, &'static str> {
    text.parse().map_err(|_| "a digest is `sha256:` and 64 hexadecimal digits")
}

fn layout(text: &str) -> Result<ImageRef, &'static str> {
    if let Some((path, found)) = text.rsplit_once('@') {
        return Ok(ImageRef::Layout { path: some_path(path)?, pick: Pick::Digest(digest(found)?) });
    }
    match text.rsplit_once(':') {
        Some((path, found)) if !found.contains('/') => {
            Ok(ImageRef::Layout { path: some_path(path)?, pick: Pick::Tag(tag(found)?) })
        }
        _ => Ok(ImageRef::Layout { path: some_path(text)?, pick: Pick::Only }),
    }
}

fn tag(text: &str) -> Result<String, &'static str> {
    let good = (1..=TAG_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
        && !text.starts_with(['.', '-']);
    if good {
        Ok(text.to_owned())
    } else {
        Err("a tag is 1 to 128 of A-Z a-z 0-9 _ . -, not starting with . or -")
    }
}

fn registry(text: &str) -> Result<RegistryRef, &'static str> {
    if text.contains("://") {
        return Err("a reference has no scheme: write `registry.example/name:tag`");
    }
    let (name, by_digest) = match text.split_once('@') {
        Some((name, found)) => (name, Some(digest(found)?)),
        None => (text, None),
    };
    let (host, rest) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let (repository, written) = match rest.rsplit_once(':') {
        Some((repository, found)) => (repository, Some(tag(found)?)),
        None => (rest, None),
    };
    check_host(host)?;
    let host = if host == "index.docker.io" { DEFAULT_REGISTRY } else { host };
    let repository = match host {
        DEFAULT_REGISTRY if !repository.contains('/') => format!("{DEFAULT_OWNER}/{repository}"),
        _ => repository.to_owned(),
    };
    check_repository(&repository)?;
    let version = match (by_digest, written) {
        (Some(digest), _) => Version::Digest(digest),
        (None, Some(tag)) => Version::Tag(tag),
        (None, None) => Version::Tag(DEFAULT_TAG.to_owned()),
    };
    Ok(RegistryRef { host: host.to_owned(), repository, version })
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    let is_address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    let good_name = is_address
        || (!name.is_empty()
            && name.bytes().all(plain)
            && !name.starts_with(['.', '-'])
            && !name.contains(".."));
    let good_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host.len() <= HOST_BYTES_MAX && good_name && good_port {
        Ok(())
    } else {
        Err("the registry is not a host name or address, with a port if needed")
    }
}

/// Parts of a-z 0-9, within a part separated by `.`, `_`, `__` or dashes.
fn check_repository(repository: &str) -> Result<(), &'static str> {
    let part = |part: &str| {
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = part.as_bytes();
        let separated = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        bytes.first().is_some_and(&alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && separated
                .into_iter()
                .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
    };
    if repository.len() <= REPOSITORY_BYTES_MAX && repository.split('/').all(part) {
        Ok(())
    } else {
        Err("a repository is parts of a-z 0-9 with . _ - between them, at most 255 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "9f2c41d07c1c4ee7f3a0c3a2b1e6f5d4c3b2a190817263544536271809abcdef";

    #[test]
    fn references_get_their_registry_owner_and_tag() {
        for (text, full) in [
            ("host", "host"),
            ("dir:/srv/x", "dir:/srv/x"),
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("index.docker.io/me/x", "docker.io/me/x:latest"),
            ("me/x_y__z/a-b.c:V1", "docker.io/me/x_y__z/a-b.c:V1"),
            ("localhost/x", "localhost/x:latest"),
            ("127.0.0.1:5000/x:1", "127.0.0.1:5000/x:1"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("ghcr.io/a/b:tag", "ghcr.io/a/b:tag"),
            ("oci-layout:./images/a:b/c", "oci-layout:./images/a:b/c"),
            ("oci-layout:/i:tag", "oci-layout:/i:tag"),
            ("oci-archive:/i.tar", "oci-archive:/i.tar"),
        ] {
            let image: ImageRef = text.parse().unwrap();
            assert_eq!(image.to_string(), full);
            assert_eq!(full.parse::<ImageRef>().unwrap(), image, "the full form names the same");
        }
        let both = format!("ghcr.io/a/b:tag@sha256:{HEX}").parse::<ImageRef>().unwrap();
        assert_eq!(both.to_string(), format!("ghcr.io/a/b@sha256:{HEX}"), "the digest wins");
        assert!(!both.needs_pin());
        let layout = format!("oci-layout:/i@sha256:{HEX}").parse::<ImageRef>().unwrap();
        assert!(layout.needs_pin() && layout.is_local());
        let stored = format!("stored:sha256:{HEX}");
        assert_eq!(stored.parse::<ImageRef>().unwrap().to_string(), stored);
    }

    #[test]
    fn what_names_no_image_is_refused() {
        let long = format!("ghcr.io/{}", "a".repeat(256));
        for text in [
            "",
            "Debian",
            "a//b",
            "a/",
            "/a",
            "a:b:c",
            "a@sha256:12",
            "a:",
            "a:.x",
            "-a.b/x",
            "a..b/x",
            "a.b:0/x",
            "a.b:99999/x",
            "https://ghcr.io/x",
            "oci-layout:",
            "oci-layout:@",
            "oci-archive:",
            "stored:sha256:x",
            "a b",
            "a-",
            "a___b",
            "[::g]/x",
            long.as_str(),
        ] {
            assert!(text.parse::<ImageRef>().is_err(), "{text}");
        }
    }
}
