use std::fmt;

use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use sha2::Digest as _;

use crate::store::check;
use crate::{Digest, Error};

/// A blob served in pieces. Reading to the end checks the digest once more: a blob that changed
/// after it was opened ends with [`Error::ChunkCorrupt`], never quietly.
pub struct BlobReader {
    digest: Digest,
    size: u64,
    pieces: BoxStream<'static, Result<Bytes, Error>>,
    hasher: Option<sha2::Sha256>,
}

impl BlobReader {
    pub(crate) fn new(digest: Digest, size: u64, pieces: BoxStream<'static, Result<Bytes, Error>>) -> Self {
        Self { digest, size, pieces, hasher: Some(sha2::Sha256::new()) }
    }

    /// Bytes of the blob.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let part = self.pieces.try_next().await?;
        match (&part, &mut self.hasher) {
            (Some(part), Some(hasher)) => hasher.update(part),
            (None, hasher) => {
                if let Some(hasher) = hasher.take() {
                    check(&self.digest, &Digest::finished(hasher))?;
                }
            }
            (Some(_), None) => {}
        }
        Ok(part)
    }
}

impl fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobReader").field("digest", &self.digest).field("size", &self.size).finish()
    }
}
