//! Images in a blob store, each of their parts under its digest.

use std::path::Path;

use blobs::BlobStore;
use rollout::image::Digest;
use tokio::io::AsyncWriteExt as _;

use super::{Error, ImageLayer, Kind, MANIFEST_BYTES_MAX, Source};

/// A blob store as a source of images. It checks what it hands out itself.
#[derive(Debug, Clone)]
pub struct Stored(pub BlobStore);

fn failed(digest: &Digest, error: blobs::Error) -> Error {
    match error {
        blobs::Error::NotFound { .. } => {
            Error::NotFound { what: digest.to_string(), place: "the blob store".to_owned() }
        }
        blobs::Error::ChunkCorrupt { found, .. } => match format!("sha256:{found}").parse() {
            Ok(found) => Error::WrongDigest { expected: *digest, found },
            Err(_) => Error::format(digest, format!("the blob store has other bytes: {found}")),
        },
        error @ blobs::Error::TooLarge { .. } => Error::format(digest, error.to_string()),
        error => Error::Store { what: digest.to_string(), source: Box::new(error) },
    }
}

impl Source for Stored {
    async fn document(&self, digest: &Digest, _: Kind) -> Result<Vec<u8>, Error> {
        let bytes = self.0.get(&digest.hex(), MANIFEST_BYTES_MAX).await;
        bytes.map(|bytes| bytes.to_vec()).map_err(|error| failed(digest, error))
    }

    async fn layer(&self, layer: &ImageLayer, into: &Path) -> Result<(), Error> {
        let read = |error| failed(&layer.blob, error);
        let wrote = |source| Error::io("write", into)(source);
        let mut reader = self.0.open_to_end(&layer.blob.hex()).await.map_err(read)?;
        let mut file = tokio::fs::File::create(into).await.map_err(wrote)?;
        while let Some(part) = reader.next().await.map_err(read)? {
            file.write_all(&part).await.map_err(wrote)?;
        }
        file.flush().await.map_err(wrote)
    }
}
