use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::{GetResult, ObjectStore, ObjectStoreExt as _};
use sha2::Digest as _;

use crate::staging::{self, sync_dir};
use crate::{BlobReader, BlobWriter, Digest, Error};

/// The longest URL of a store, in bytes.
pub const URL_BYTES_MAX: usize = 4096;

/// A stored blob.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobRef {
    /// 64 lower-case hex digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// A handle; clones share one store. Its async methods need a tokio runtime.
#[derive(Debug, Clone)]
pub struct BlobStore {
    pub(crate) root: Arc<Path>,
    reads: Arc<dyn ObjectStore>,
}

impl BlobStore {
    /// Opens the store at `file:///absolute/directory`, creating the directory if needed, and
    /// removes what killed writers left. Blocks on the disk.
    pub fn open(url: &str) -> Result<Self, Error> {
        let root = local_root(url)?;
        staging::prepare(&root)?;
        let swept = staging::sweep(&root)?;
        if swept > 0 {
            tracing::info!(root = %root.display(), swept, "removed unfinished blobs of ended writers");
        }
        let reads = LocalFileSystem::new_with_prefix(&root).map_err(Error::Open)?;
        Ok(Self { root: root.into(), reads: Arc::new(reads) })
    }

    /// Opens a store that is there, to read from it: nothing is created and nothing is removed.
    /// Blocks on the disk.
    pub fn open_existing(url: &str) -> Result<Self, Error> {
        let root = local_root(url)?;
        let reads = LocalFileSystem::new_with_prefix(&root).map_err(Error::Open)?;
        Ok(Self { root: root.into(), reads: Arc::new(reads) })
    }

    /// Stores `bytes`. Durable when it returns; a no-op if the store has them.
    pub async fn put(&self, bytes: Bytes) -> Result<BlobRef, Error> {
        let mut writer = self.writer();
        writer.write(&bytes).await?;
        writer.finish().await
    }

    /// A blob written piece by piece, of unknown length.
    pub fn writer(&self) -> BlobWriter {
        BlobWriter::new(self.clone())
    }

    /// The whole blob, if it has at most `bytes_max` bytes, checked against its digest.
    pub async fn get(&self, sha256: &str, bytes_max: u64) -> Result<Bytes, Error> {
        let digest: Digest = sha256.parse()?;
        let found = self.read(&digest).await?;
        let size = found.meta.size;
        let too_large = || Error::TooLarge { sha256: sha256.to_owned(), size, bytes_max };
        let capacity = usize::try_from(size).map_err(|_| too_large())?;
        if size > bytes_max {
            return Err(too_large());
        }
        let read = |source| Error::Read { sha256: sha256.to_owned(), source };
        let mut bytes = BytesMut::with_capacity(capacity);
        let mut stream = found.into_stream();
        while let Some(part) = stream.try_next().await.map_err(read)? {
            // A file that grew since it was opened is not the blob.
            if bytes.len() + part.len() > capacity {
                break;
            }
            bytes.extend_from_slice(&part);
        }
        let bytes = bytes.freeze();
        check(&digest, &Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// A reader of the blob in pieces. The blob is read once to check its digest before the first
    /// piece is served, and checked again while it is.
    pub async fn open_reader(&self, sha256: &str) -> Result<BlobReader, Error> {
        let digest: Digest = sha256.parse()?;
        let mut stream = self.read(&digest).await?.into_stream();
        let mut hasher = sha2::Sha256::new();
        let read = |source| Error::Read { sha256: sha256.to_owned(), source };
        while let Some(part) = stream.try_next().await.map_err(read)? {
            hasher.update(&part);
        }
        check(&digest, &Digest::finished(hasher))?;
        let found = self.read(&digest).await?;
        Ok(BlobReader::new(digest, found.meta.size, found.into_stream()))
    }

    /// Where the blob lies, if this store is a local directory and has it: to mount it or to read
    /// it at random. The bytes are *not* checked.
    pub fn local_path(&self, sha256: &str) -> Result<Option<PathBuf>, Error> {
        let path = self.root.join(sha256.parse::<Digest>()?.location());
        Ok(path.is_file().then_some(path))
    }

    pub async fn contains(&self, sha256: &str) -> Result<bool, Error> {
        Ok(self.size(sha256).await?.is_some())
    }

    /// Bytes of the blob; none if the store has no such blob.
    pub async fn size(&self, sha256: &str) -> Result<Option<u64>, Error> {
        let digest: Digest = sha256.parse()?;
        match self.reads.head(&digest.location().into()).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Read { sha256: digest.to_string(), source }),
        }
    }

    /// Whether a blob of that size is there, durably. Another writer may have renamed it into
    /// place a moment ago, so the directory is synced here too.
    pub(crate) fn has_durably(&self, digest: &Digest, size: u64) -> Result<bool, Error> {
        let path = self.root.join(digest.location());
        // Another size is damage: the new bytes replace it.
        let present = std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == size);
        if present && let Some(parent) = path.parent() {
            sync_dir(parent)?;
        }
        Ok(present)
    }

    async fn read(&self, digest: &Digest) -> Result<GetResult, Error> {
        self.reads.get(&digest.location().into()).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => Error::NotFound { sha256: digest.to_string() },
            source => Error::Read { sha256: digest.to_string(), source },
        })
    }
}

pub(crate) fn check(expected: &Digest, found: &Digest) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::ChunkCorrupt { sha256: expected.to_string(), found: found.to_string() })
}

fn local_root(url: &str) -> Result<PathBuf, Error> {
    let bad =
        || Error::BadUrl { shown: url.chars().take(200).collect::<String>().escape_default().to_string() };
    let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
    if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric()) || url.len() > URL_BYTES_MAX {
        return Err(bad());
    }
    if scheme != "file" {
        return Err(Error::NotAvailableYet { scheme: scheme.to_owned() });
    }
    let path = Path::new(rest);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && plain && !rest.contains('\0') { Ok(path.to_owned()) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_other_than_absolute_directories_are_refused_by_name() {
        for url in ["s3://bucket/prefix", "gs://b", "http://host/x"] {
            assert!(matches!(local_root(url), Err(Error::NotAvailableYet { .. })), "{url}");
        }
        for url in ["", "/tmp/x", "file://relative/x", "file:///a/../b", "://x", "fi le:///x", "file:///a\0b"]
        {
            assert!(matches!(local_root(url), Err(Error::BadUrl { .. })), "{url}");
        }
        assert_eq!(local_root("file:///a/b c").unwrap(), Path::new("/a/b c"));
    }
}
