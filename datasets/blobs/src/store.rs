use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::{GetResult, GetResultPayload, ObjectStore, ObjectStoreExt as _};
use tokio::io::AsyncWriteExt as _;

use crate::bucket::{self, Bucket, FRESH};
use crate::shelves::{self, Listed};
use crate::staging::{self, sync_dir};
use crate::{BlobReader, BlobWriter, Digest, Error};

/// A piece of a blob of a local store.
const PART_BYTES: usize = 256 << 10;
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
    pub(crate) place: Place,
    reads: Arc<dyn ObjectStore>,
}

/// See [`BlobStore::local_copy`].
#[derive(Debug)]
pub struct LocalCopy {
    path: PathBuf,
    _copy: Option<tempfile::NamedTempFile>,
}

impl LocalCopy {
    /// Good while this is held; a file that is open stays so.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    Local(Arc<Path>),
    Bucket { bucket: Bucket, url: Arc<str> },
}

impl BlobStore {
    /// Opens the store at `file:///absolute/directory`, creating the directory if needed, and
    /// removes what killed writers left; blocks on the disk. Or the one at `s3://bucket/prefix`,
    /// where nothing is asked of the server yet.
    pub fn open(url: &str) -> Result<Self, Error> {
        if let Where::Local(root) = parsed(url)? {
            staging::prepare(&root)?;
            let swept = staging::sweep(&root)?;
            if swept > 0 {
                tracing::info!(root = %root.display(), swept, "removed unfinished blobs of ended writers");
            }
        }
        Self::open_existing(url)
    }

    /// Opens a store that is there, to read from it: nothing is created and nothing is removed.
    /// Blocks on the disk.
    pub fn open_existing(url: &str) -> Result<Self, Error> {
        match parsed(url)? {
            Where::Local(root) => {
                let reads = LocalFileSystem::new_with_prefix(&root).map_err(Error::Open)?;
                Ok(Self { place: Place::Local(root.into()), reads: Arc::new(reads) })
            }
            Where::Bucket { bucket, prefix } => {
                let bucket = Bucket::open(&bucket, &prefix)?;
                let reads = bucket.objects();
                Ok(Self { place: Place::Bucket { bucket, url: url.into() }, reads })
            }
        }
    }

    /// Makes `owner`, an id without line ends, the owner of the store if it has none: the one who may
    /// sweep it.
    ///
    /// # Errors
    /// [`Error::Claimed`] if it belongs to another.
    pub async fn claim(&self, owner: &str) -> Result<(), Error> {
        let found = match &self.place {
            Place::Local(root) => {
                let (root, wanted) = (root.clone(), owner.to_owned());
                blocking(move || shelves::claim(&root, &wanted)).await?
            }
            Place::Bucket { bucket, .. } => bucket.claim(owner).await?,
        };
        if found == owner {
            return Ok(());
        }
        Err(Error::Claimed { owner: found.chars().take(80).collect::<String>().escape_default().to_string() })
    }

    /// Whether a store in a bucket is there: that it has an owner. Any local directory is one.
    ///
    /// # Errors
    /// [`Error::NoStore`], or the server does not answer or refuses these credentials.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.place {
            Place::Local(_) => Ok(()),
            Place::Bucket { bucket, url } => match bucket.owner().await? {
                Some(_) => Ok(()),
                None => Err(Error::NoStore { url: url.to_string() }),
            },
        }
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
        let mut first = self.open_to_end(sha256).await?;
        while first.next().await?.is_some() {}
        self.open_to_end(sha256).await
    }

    /// The same, for whoever uses nothing of it before its end: the digest is checked there alone.
    pub async fn open_to_end(&self, sha256: &str) -> Result<BlobReader, Error> {
        let digest: Digest = sha256.parse()?;
        let found = self.read(&digest).await?;
        let size = found.meta.size;
        let pieces = match found.payload {
            GetResultPayload::File(file, path) => of_file(file, path),
            GetResultPayload::Stream(stream) => {
                let sha256 = sha256.to_owned();
                stream.map_err(move |source| Error::Read { sha256: sha256.clone(), source }).boxed()
            }
        };
        Ok(BlobReader::new(digest, size, pieces))
    }

    /// Where the blob lies, if this store is a local directory and has it: to mount it or to read
    /// it at random. The bytes are *not* checked.
    pub fn local_path(&self, sha256: &str) -> Result<Option<PathBuf>, Error> {
        let digest = sha256.parse::<Digest>()?;
        let Place::Local(root) = &self.place else { return Ok(None) };
        let path = root.join(digest.location());
        Ok(path.is_file().then_some(path))
    }

    /// The blob as a file: its own in a local directory, else a copy that goes with what is returned.
    /// A copy was checked, the store's own file was not. None if there is no such blob.
    pub async fn local_copy(&self, sha256: &str) -> Result<Option<LocalCopy>, Error> {
        if let Place::Local(_) = self.place {
            let path = self.local_path(sha256)?;
            return Ok(path.map(|path| LocalCopy { path, _copy: None }));
        }
        let mut reader = match self.open_to_end(sha256).await {
            Ok(reader) => reader,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let staged = |source| Error::Staged { source };
        let copy = blocking(move || tempfile::NamedTempFile::new().map_err(staged)).await?;
        let mut file = tokio::fs::File::from_std(copy.reopen().map_err(staged)?);
        while let Some(part) = reader.next().await? {
            file.write_all(&part).await.map_err(staged)?;
        }
        file.flush().await.map_err(staged)?;
        Ok(Some(LocalCopy { path: copy.path().to_owned(), _copy: Some(copy) }))
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

    /// The bytes of the blob, which from now on is as young as one that is put now. None if the store
    /// has none, or only one that has to be put again to be young. Whoever is about to name a blob
    /// that somebody else put renews it first: sweeps take no young blob.
    pub async fn renew(&self, sha256: &str) -> Result<Option<u64>, Error> {
        let digest: Digest = sha256.parse()?;
        match &self.place {
            Place::Local(root) => {
                let root = root.clone();
                blocking(move || shelves::renew(&root, &digest)).await
            }
            Place::Bucket { bucket, .. } => bucket.size_if_fresh(&digest).await,
        }
    }

    /// How long after a blob was last put it must stay at least: a bucket is not asked to make it
    /// young again sooner.
    pub const fn grace_min(&self) -> Duration {
        match self.place {
            Place::Local(_) => Duration::ZERO,
            Place::Bucket { .. } => FRESH.saturating_mul(2),
        }
    }

    /// The blobs whose digest begins with `shelf`: one part in 256 of the store.
    ///
    /// # Errors
    /// [`Error::ShelfTooFull`] past [`SHELF_BLOBS_MAX`](crate::SHELF_BLOBS_MAX).
    pub async fn list(&self, shelf: u8) -> Result<Vec<Listed>, Error> {
        match &self.place {
            Place::Local(root) => {
                let root = root.clone();
                blocking(move || shelves::list(&root, shelf)).await
            }
            Place::Bucket { bucket, .. } => bucket.list(shelf).await,
        }
    }

    /// Removes those of `digests` that were not put since `before`; which ones that were. For the
    /// owner of the store alone, one call at a time.
    pub async fn remove(&self, digests: Vec<Digest>, before: SystemTime) -> Result<Vec<Digest>, Error> {
        match &self.place {
            Place::Local(root) => {
                let root = root.clone();
                blocking(move || shelves::remove(&root, &digests, before)).await
            }
            Place::Bucket { bucket, .. } => bucket.remove(&digests, before).await,
        }
    }

    async fn read(&self, digest: &Digest) -> Result<GetResult, Error> {
        self.reads.get(&digest.location().into()).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => Error::NotFound { sha256: digest.to_string() },
            source => Error::Read { sha256: digest.to_string(), source },
        })
    }
}

/// A file in pieces, each read on a thread for that: the store's own reader takes 8 KiB at a time.
fn of_file(file: File, path: PathBuf) -> BoxStream<'static, Result<Bytes, Error>> {
    let begin = (Arc::new(file), 0);
    futures::stream::try_unfold(begin, move |(file, offset)| {
        let path = path.clone();
        blocking(move || {
            let mut part = vec![0; PART_BYTES];
            let read = file.read_at(&mut part, offset);
            part.truncate(read.map_err(|source| Error::Io { action: "read", path, source })?);
            let next = offset + part.len() as u64;
            Ok((!part.is_empty()).then(|| (Bytes::from(part), (file, next))))
        })
    })
    .boxed()
}

pub(crate) fn check(expected: &Digest, found: &Digest) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::ChunkCorrupt { sha256: expected.to_string(), found: found.to_string() })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(Error::Runtime)?
}

/// Whether a blob of that size is there, durably and young. Another writer may have renamed it into
/// place a moment ago, so the directory is synced here too.
pub(crate) fn has_durably(root: &Path, digest: &Digest, size: u64) -> Result<bool, Error> {
    // Another size is damage: the new bytes replace it.
    let present = shelves::renew(root, digest)? == Some(size);
    if present && let Some(parent) = root.join(digest.location()).parent() {
        sync_dir(parent)?;
    }
    Ok(present)
}

#[derive(Debug, PartialEq)]
enum Where {
    Local(PathBuf),
    Bucket { bucket: String, prefix: String },
}

fn parsed(url: &str) -> Result<Where, Error> {
    let bad =
        || Error::BadUrl { shown: url.chars().take(200).collect::<String>().escape_default().to_string() };
    let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
    if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric()) || url.len() > URL_BYTES_MAX {
        return Err(bad());
    }
    match scheme {
        "file" => {
            let path = Path::new(rest);
            let plain =
                path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            let good = path.is_absolute() && plain && !rest.contains('\0');
            good.then(|| Where::Local(path.to_owned())).ok_or_else(bad)
        }
        "s3" => {
            let (bucket, prefix) = bucket::parts(rest).ok_or_else(bad)?;
            Ok(Where::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
        }
        _ => Err(Error::NotAvailableYet { scheme: scheme.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_other_than_absolute_directories_and_buckets_are_refused_by_name() {
        for url in ["gs://b", "http://host/x"] {
            assert!(matches!(parsed(url), Err(Error::NotAvailableYet { .. })), "{url}");
        }
        for url in [
            "",
            "/tmp/x",
            "file://relative/x",
            "file:///a/../b",
            "://x",
            "fi le:///x",
            "file:///a\0b",
            "s3://",
        ] {
            assert!(matches!(parsed(url), Err(Error::BadUrl { .. })), "{url}");
        }
        assert_eq!(parsed("file:///a/b c").unwrap(), Where::Local("/a/b c".into()));
        let bucket = Where::Bucket { bucket: "runs".to_owned(), prefix: "a/b".to_owned() };
        assert_eq!(parsed("s3://runs/a/b").unwrap(), bucket);
    }
}
