//! An OCI layout: a directory with an index and blobs under their digests.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rollout::image::{Digest, Pick};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::manifest::{Descriptor, index};
use super::{Error, ImageLayer, Kind, MANIFEST_BYTES_MAX, Source};

pub(super) const LAYOUT_FILE: &str = "oci-layout";
pub(super) const INDEX_FILE: &str = "index.json";
pub(super) const BLOBS_DIR: &str = "blobs/sha256";
const COPY_BYTES: usize = 256 << 10;

#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    image_layout_version: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

impl Layout {
    /// # Errors
    /// There is no layout of version 1 at `root`.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let path = root.join(LAYOUT_FILE);
        let bytes = read_small(&path)?;
        let marker: Marker = serde_json::from_slice(&bytes)
            .map_err(|error| Error::format(path.display(), error.to_string()))?;
        if !marker.image_layout_version.starts_with("1.") {
            let version = rollout::text::shown(&marker.image_layout_version, 40);
            return Err(Error::format(
                path.display(),
                format!("it is a layout of version `{version}`, not 1"),
            ));
        }
        Ok(Self { root: root.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Where a blob lies, or would.
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join(BLOBS_DIR).join(digest.hex())
    }

    /// What the index names: tag, if it has one, and digest.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn images(&self) -> Result<Vec<(Option<String>, Descriptor)>, Error> {
        let path = self.root.join(INDEX_FILE);
        let bytes = read_small(&path)?;
        let found: Index = serde_json::from_slice(&bytes)
            .map_err(|error| Error::format(path.display(), error.to_string()))?;
        let named = index(path.display(), found.manifests)?.into_iter();
        Ok(named.map(|image| (image.name().map(str::to_owned), image)).collect())
    }

    /// The manifest or index that `pick` means.
    ///
    /// # Errors
    /// None has that name, or several could be meant.
    pub fn pick(&self, pick: &Pick) -> Result<Digest, Error> {
        let images = self.images()?;
        let place = || self.root.display().to_string();
        let found = match pick {
            Pick::Digest(digest) => return Ok(*digest),
            // A full reference is a name too: its last part counts.
            Pick::Tag(tag) => images.iter().find(|(name, _)| {
                name.as_deref().is_some_and(|name| {
                    name == tag || name.rsplit_once(':').is_some_and(|(_, last)| last == tag)
                })
            }),
            Pick::Only => {
                let distinct = |(_, image): &(Option<String>, Descriptor)| image.digest;
                if images.windows(2).any(|pair| distinct(&pair[0]) != distinct(&pair[1])) {
                    let names = images.iter().take(16).map(|(name, image)| {
                        name.as_deref()
                            .map_or_else(|| image.digest.to_string(), |name| rollout::text::shown(name, 80))
                    });
                    let tags = names.collect::<Vec<_>>().join(", ");
                    return Err(Error::Ambiguous { path: place(), tags });
                }
                images.first()
            }
        };
        let what = match pick {
            Pick::Tag(tag) => format!("an image named `{tag}`"),
            Pick::Only | Pick::Digest(_) => "an image".to_owned(),
        };
        found.map(|(_, image)| image.digest).ok_or_else(|| Error::NotFound { what, place: place() })
    }

    fn open_blob(&self, digest: &Digest) -> Result<File, Error> {
        let path = self.blob(digest);
        // Neither a link that leads out, nor a FIFO that makes its reader wait, nor a device without end.
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => {
                Error::NotFound { what: digest.to_string(), place: self.root.display().to_string() }
            }
            _ => Error::Io { action: "open", path: path.display().to_string(), source },
        })?;
        let found = file.metadata().map_err(Error::io("read", &path))?;
        if !found.is_file() {
            return Err(Error::format(path.display(), "it is no file"));
        }
        Ok(file)
    }

    /// Checks that a blob is there, whole, and what it is called; its size.
    ///
    /// # Errors
    /// It is missing, or has other bytes.
    pub fn check(&self, digest: &Digest) -> Result<u64, Error> {
        let path = self.blob(digest);
        let mut file = self.open_blob(digest)?;
        let mut hash = Sha256::new();
        let size = io::copy(&mut file, &mut hash).map_err(Error::io("read", &path))?;
        let found = Digest::from_bytes(hash.finalize().into());
        if found == *digest { Ok(size) } else { Err(Error::WrongDigest { expected: *digest, found }) }
    }

    fn copy(&self, layer: &ImageLayer, into: &Path) -> Result<(), Error> {
        let mut from = self.open_blob(&layer.blob)?;
        let size = from.metadata().map_err(Error::io("read", &self.blob(&layer.blob)))?.len();
        if size != layer.size {
            let problem = format!("it has {size} bytes, and the manifest says {}", layer.size);
            return Err(Error::format(self.blob(&layer.blob).display(), problem));
        }
        let mut to = File::create(into).map_err(Error::io("create", into))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let read = from.read(&mut buffer).map_err(Error::io("read", &self.blob(&layer.blob)))?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            io::Write::write_all(&mut to, &buffer[..read]).map_err(Error::io("write", into))?;
        }
        let found = Digest::from_bytes(hash.finalize().into());
        if found == layer.blob { Ok(()) } else { Err(Error::WrongDigest { expected: layer.blob, found }) }
    }
}

impl Source for Layout {
    async fn document(&self, digest: &Digest, _: Kind) -> Result<Vec<u8>, Error> {
        let (layout, digest) = (self.clone(), *digest);
        blocking(move || {
            layout.open_blob(&digest)?;
            read_small(&layout.blob(&digest))
        })
        .await
    }

    async fn layer(&self, layer: &ImageLayer, into: &Path) -> Result<(), Error> {
        let (layout, layer, into) = (self.clone(), layer.clone(), into.to_owned());
        blocking(move || layout.copy(&layer, &into)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::format("a layout", error.to_string())),
    }
}

fn read_small(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let found = fs::symlink_metadata(path).map_err(Error::io("read", path))?;
    if !found.is_file() {
        return Err(Error::format(path.display(), "it is no file"));
    }
    let file = File::open(path).map_err(Error::io("read", path))?;
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        let bound = "bytes of a manifest (MANIFEST_BYTES_MAX)";
        return Err(Error::bound(path.display(), bound, MANIFEST_BYTES_MAX));
    }
    Ok(bytes)
}
