//! OCI images: what they are made of, and where they come from.
//!
//! An image is a manifest that names a configuration and layers, each by the digest of its bytes;
//! an index names one manifest for each platform. A [`Source`] hands out bytes by digest: a
//! [`layout::Layout`] on disk, such as the [`library`] of a data directory, a [`registry::Repository`], or whatever else has them. [`resolve`]
//! reads and checks the small parts; [`unpack_layer`] turns a layer into the directory form.
//!
//! Nothing is believed: bytes have the digest they were asked by or are refused, and an unpacked
//! layer has the `diff_id` of the configuration, which the manifest's digest covers.

mod archive;
mod error;
pub mod layout;
pub mod library;
mod manifest;
pub mod registry;
mod retry;
pub mod stored;
mod unpack;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::Path;

use rollout::checkpoint::LayerId;
use rollout::image::Digest;
use sha2::{Digest as _, Sha256};

pub use archive::extract;
pub use error::Error;
pub use manifest::{Config, Descriptor, Platform};
pub use unpack::unpack_layer;

/// Bytes of a manifest, an index or a configuration.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Layers of one image. With those of a checkpoint they lie under one sandbox.
pub const IMAGE_LAYERS_MAX: usize = 96;
/// Bytes of one layer as it is stored and sent.
pub const LAYER_BYTES_MAX: u64 = 16 << 30;
/// Manifests of an index.
pub const INDEX_MANIFESTS_MAX: usize = 1024;
/// Bytes of the environment an image brings.
pub const ENV_BYTES_MAX: usize = 128 << 10;

/// Hands out what has a digest. What it hands out was checked against it.
pub trait Source: Sync {
    /// A small document, of at most [`MANIFEST_BYTES_MAX`].
    fn document(&self, digest: &Digest, kind: Kind) -> impl Future<Output = Result<Vec<u8>, Error>> + Send;

    /// Writes a layer into a new file at `into`. What is there after an error is of no use.
    fn layer(&self, layer: &ImageLayer, into: &Path) -> impl Future<Output = Result<(), Error>> + Send;
}

/// A registry serves them from different places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A manifest or an index.
    Manifest,
    Config,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLayer {
    /// Of its tar.
    pub diff_id: Digest,
    /// Of the tar as it is stored, and its size in bytes.
    pub blob: Digest,
    pub size: u64,
}

impl ImageLayer {
    /// Its name in the layer store. Apart from the ids of packed layers: they hash something else.
    pub fn id(&self) -> LayerId {
        let hash = Sha256::new_with_prefix("rollyard oci layer 1\n").chain_update(self.diff_id.to_string());
        LayerId::from_bytes(hash.finalize().into())
    }
}

/// An image for one platform, with everything but the bytes of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Of its manifest; never of an index.
    pub digest: Digest,
    pub config_digest: Digest,
    /// What the configuration says of processes.
    pub config: Config,
    /// Bottom first.
    pub layers: Vec<ImageLayer>,
    /// All documents on the way, index first, with their digests.
    pub documents: Vec<(Digest, Vec<u8>)>,
}

/// Reads the image that `digest` names: itself a manifest, or an index with one for `platform`.
///
/// # Errors
/// Something is missing, too large, not what its digest says, or no image for this platform.
pub async fn resolve<S: Source>(source: &S, digest: &Digest, platform: &Platform) -> Result<Image, Error> {
    let mut documents = Vec::new();
    let mut wanted = *digest;
    // An index may name indexes; nobody nests them deeper.
    for _ in 0..3 {
        let bytes = checked(source, &wanted, Kind::Manifest).await?;
        let document = manifest::parse(&wanted, &bytes)?;
        documents.push((wanted, bytes));
        let parts = match document {
            manifest::Document::Index(index) => {
                wanted = manifest::choose(digest, &index, platform)?.digest;
                continue;
            }
            manifest::Document::Manifest(parts) => parts,
        };
        let bytes = checked(source, &parts.config.digest, Kind::Config).await?;
        let (config, diff_ids) = manifest::parse_config(&parts.config.digest, &bytes)?;
        documents.push((parts.config.digest, bytes));
        let layers = manifest::layers(&wanted, &parts, &diff_ids)?;
        return Ok(Image { digest: wanted, config_digest: parts.config.digest, config, layers, documents });
    }
    Err(Error::format(digest, "indexes name indexes more than twice"))
}

async fn checked<S: Source>(source: &S, digest: &Digest, kind: Kind) -> Result<Vec<u8>, Error> {
    let bytes = source.document(digest, kind).await?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(Error::bound(digest, "bytes of a manifest (MANIFEST_BYTES_MAX)", MANIFEST_BYTES_MAX));
    }
    let found = digest_of(&bytes);
    if found == *digest { Ok(bytes) } else { Err(Error::WrongDigest { expected: *digest, found }) }
}

/// The digest of some bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}
