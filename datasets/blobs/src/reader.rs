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
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    hasher: Option<sha2::Sha256>,
}

impl BlobReader {
    pub(crate) fn new(
        digest: Digest,
        size: u64,
        stream: BoxStream<'static, object_store::Result<Bytes>>,
    ) -> Self {
        Self { digest, size, stream, hasher: Some(sha2::Sha256::new()) }
    }

    /// Bytes of the blob.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let read = |source| Error::Read { sha256: self.digest.to_string(), source };
        let part = self.stream.try_next().await.map_err(read)?;
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
