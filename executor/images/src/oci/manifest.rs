//! The documents of an image, as far as a sandbox needs them.

use std::fmt;

use rollout::image::Digest;
use serde::Deserialize;

use super::{ENV_BYTES_MAX, Error, IMAGE_LAYERS_MAX, INDEX_MANIFESTS_MAX, ImageLayer, LAYER_BYTES_MAX};

/// The name of an image within a layout.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Media types that are asked of a registry.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What a manifest or an index says of something else.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl Descriptor {
    pub(super) fn name(&self) -> Option<&str> {
        self.annotations.as_ref()?.get(REF_NAME).map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// This machine's.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// 64-bit ARM has one variant that runs everywhere, and it need not be named.
    fn runs(&self, offered: &Self) -> bool {
        let variant = |platform: &Self| match (platform.architecture.as_str(), platform.variant.as_deref()) {
            ("arm64", Some("v8")) | (_, Some("") | None) => None,
            (_, Some(variant)) => Some(variant.to_owned()),
        };
        self.os == offered.os
            && self.architecture == offered.architecture
            && variant(offered).is_none_or(|offered| Some(offered) == variant(self))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

#[derive(Debug)]
pub(super) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Parts),
}

#[derive(Debug, Deserialize)]
pub(super) struct Parts {
    pub config: Descriptor,
    #[serde(default)]
    pub layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    schema_version: Option<u32>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

pub(super) fn parse(what: &Digest, bytes: &[u8]) -> Result<Document, Error> {
    let written: Written =
        serde_json::from_slice(bytes).map_err(|error| Error::format(what, error.to_string()))?;
    if written.schema_version != Some(2) {
        return Err(Error::format(what, "its schema is not version 2, the only one that is read"));
    }
    match (written.manifests, written.config) {
        (Some(manifests), None) => index(what, manifests).map(Document::Index),
        (None, Some(config)) => Ok(Document::Manifest(Parts { config, layers: written.layers })),
        _ => Err(Error::format(what, "it is neither a manifest nor an index of manifests")),
    }
}

pub(super) fn index(what: impl fmt::Display, manifests: Vec<Descriptor>) -> Result<Vec<Descriptor>, Error> {
    if manifests.len() > INDEX_MANIFESTS_MAX {
        let bound = "manifests of an index (INDEX_MANIFESTS_MAX)";
        return Err(Error::bound(what, bound, INDEX_MANIFESTS_MAX as u64));
    }
    Ok(manifests)
}

/// The first of an index that runs here. One without a platform is taken if it is the only one.
pub(super) fn choose<'a>(
    what: &Digest,
    index: &'a [Descriptor],
    platform: &Platform,
) -> Result<&'a Descriptor, Error> {
    let fits =
        |descriptor: &&Descriptor| descriptor.platform.as_ref().is_some_and(|offered| platform.runs(offered));
    if let Some(found) = index.iter().find(fits) {
        return Ok(found);
    }
    if let [only] = index
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let offered = index.iter().take(16).map(|descriptor| {
        descriptor.platform.as_ref().map_or_else(|| "one without a platform".to_owned(), Platform::to_string)
    });
    let offered = offered.collect::<Vec<_>>().join(", ");
    Err(Error::NoPlatform { image: what.to_string(), wanted: platform.to_string(), offered })
}

/// What an image says of the processes in it. Its entry point and command mean nothing here: a step
/// has its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Names and values.
    pub env: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct WrittenConfig {
    #[serde(default)]
    config: Option<Process>,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    #[serde(default)]
    env: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

pub(super) fn parse_config(what: &Digest, bytes: &[u8]) -> Result<(Config, Vec<Digest>), Error> {
    let written: WrittenConfig =
        serde_json::from_slice(bytes).map_err(|error| Error::format(what, error.to_string()))?;
    let lines = written.config.and_then(|process| process.env).unwrap_or_default();
    if lines.iter().map(String::len).sum::<usize>() > ENV_BYTES_MAX {
        return Err(Error::bound(what, "bytes of environment (ENV_BYTES_MAX)", ENV_BYTES_MAX as u64));
    }
    let pair = |line: &String| {
        let (name, value) = line.split_once('=')?;
        let is_good = !name.is_empty() && !line.contains('\0');
        is_good.then(|| (name.to_owned(), value.to_owned()))
    };
    let env = lines.iter().map(|line| {
        pair(line).ok_or_else(|| Error::format(what, "its environment holds what is no `NAME=value`"))
    });
    Ok((Config { env: env.collect::<Result<_, _>>()? }, written.rootfs.diff_ids))
}

/// The layers of a manifest with the digests of their tars.
pub(super) fn layers(what: &Digest, parts: &Parts, diff_ids: &[Digest]) -> Result<Vec<ImageLayer>, Error> {
    let count = parts.layers.len();
    if count > IMAGE_LAYERS_MAX {
        return Err(Error::bound(what, "layers of an image (IMAGE_LAYERS_MAX)", IMAGE_LAYERS_MAX as u64));
    }
    if count != diff_ids.len() {
        let problem = format!("it has {count} layers, and its configuration has {} diff_ids", diff_ids.len());
        return Err(Error::format(what, problem));
    }
    if count == 0 {
        return Err(Error::format(what, "it has no layer"));
    }
    let layer = |(descriptor, diff_id): (&Descriptor, &Digest)| {
        let Descriptor { media_type, digest, size, .. } = descriptor;
        let is_tar = media_type.ends_with("tar")
            || media_type.ends_with("tar+gzip")
            || media_type.ends_with("tar+zstd")
            || media_type.ends_with("tar.gzip")
            || media_type.ends_with("tar.zstd");
        let is_elsewhere = media_type.contains("nondistributable") || media_type.contains("foreign");
        if !is_tar || is_elsewhere {
            let media_type = rollout::text::shown(media_type, 120);
            return Err(Error::format(digest, format!("a layer of type `{media_type}` is not read")));
        }
        if *size > LAYER_BYTES_MAX {
            return Err(Error::bound(digest, "bytes of a layer (LAYER_BYTES_MAX)", LAYER_BYTES_MAX));
        }
        Ok(ImageLayer { diff_id: *diff_id, blob: *digest, size: *size })
    };
    parts.layers.iter().zip(diff_ids).map(layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(os: &str, architecture: &str, variant: Option<&str>) -> Descriptor {
        let platform = Platform {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        };
        let digest = Digest::from_bytes([architecture.len().try_into().unwrap_or(0); 32]);
        Descriptor { media_type: String::new(), digest, size: 0, platform: Some(platform), annotations: None }
    }

    #[test]
    fn an_index_is_chosen_from_by_platform_and_says_what_it_has() {
        let index = [
            offered("windows", "amd64", None),
            offered("linux", "arm", Some("v7")),
            offered("linux", "arm64", Some("v8")),
            offered("linux", "amd64", Some("v3")),
            offered("linux", "amd64", None),
        ];
        let what = Digest::from_bytes([1; 32]);
        let wanted = |architecture: &str| Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        };
        assert_eq!(choose(&what, &index, &wanted("amd64")).unwrap(), &index[4]);
        assert_eq!(choose(&what, &index, &wanted("arm64")).unwrap(), &index[2]);
        let refused = choose(&what, &index, &wanted("riscv64")).unwrap_err().to_string();
        assert!(refused.contains("linux/riscv64") && refused.contains("linux/arm/v7"), "{refused}");
    }

    #[test]
    fn documents_that_are_no_image_are_refused() {
        let what = Digest::from_bytes([1; 32]);
        for (text, words) in [
            ("{}", "version 2"),
            (r#"{"schemaVersion":1}"#, "version 2"),
            (r#"{"schemaVersion":2}"#, "neither"),
            ("[", "EOF"),
            (r#"{"schemaVersion":2,"config":{"digest":"sha512:00"}}"#, "sha256"),
        ] {
            let refused = parse(&what, text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(words), "{text}: {refused}");
        }
        let many: Vec<_> = (0..=INDEX_MANIFESTS_MAX).map(|_| offered("linux", "amd64", None)).collect();
        assert!(index("x", many).unwrap_err().to_string().contains("INDEX_MANIFESTS_MAX"));
    }
}
