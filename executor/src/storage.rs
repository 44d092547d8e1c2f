//! The yard's blob store as attempts use it: files in, files out, every failure a
//! `storage_failed` that says on what.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use blobs::{BlobRef, BlobStore};
use rollout::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const COPY_BYTES: usize = 256 << 10;

/// A blob or a file of this node that cannot be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("captured output {}", path.display())]
    Capture {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {action} {what}")]
    Blob {
        action: &'static str,
        what: String,
        #[source]
        source: Box<blobs::Error>,
    },
    #[error("cannot {action} {what}")]
    File {
        action: &'static str,
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("blob {sha256} has {found} bytes, not {expected}")]
    Size { sha256: String, found: u64, expected: u64 },
    #[error("not done after {after}")]
    TimedOut { after: rollout::Millis },
}

impl StorageError {
    pub(crate) fn capture(path: &Path, source: io::Error) -> Self {
        Self::Capture { path: path.to_owned(), source }
    }
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[derive(Debug, Clone)]
pub(crate) struct Storage {
    blobs: BlobStore,
}

impl Storage {
    pub(crate) async fn open(url: &str) -> Result<Self, StorageError> {
        let owned = url.to_owned();
        let opened = tokio::task::spawn_blocking(move || BlobStore::open(&owned)).await;
        let failed = |source| StorageError::Blob {
            action: "open the blob store",
            what: url.to_owned(),
            source: Box::new(source),
        };
        let blobs = opened.map_err(blobs::Error::Runtime).and_then(|opened| opened).map_err(failed)?;
        blobs.check().await.map_err(failed)?;
        Ok(Self { blobs })
    }

    pub(crate) fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// Whether the blob is there; if so nobody collects it for a while.
    pub(crate) async fn renew(&self, sha256: &str) -> Result<bool, StorageError> {
        let renewed = self.blobs.renew(sha256).await;
        let failed = |source| StorageError::Blob {
            action: "renew",
            what: sha256.to_owned(),
            source: Box::new(source),
        };
        renewed.map(|size| size.is_some()).map_err(failed)
    }

    pub(crate) async fn put_file(&self, path: &Path) -> Result<BlobRef, StorageError> {
        let what = path.display().to_string();
        let opened = tokio::fs::File::open(path).await;
        let file =
            opened.map_err(|source| StorageError::File { action: "open", what: what.clone(), source })?;
        match self.put(file, u64::MAX, &what).await? {
            Put::Stored(blob) => Ok(blob),
            Put::TooLarge => Err(StorageError::File {
                action: "read",
                what,
                source: io::Error::from(io::ErrorKind::FileTooLarge),
            }),
        }
    }

    /// Stores what is in `file`, unless it has more than `bytes_max` bytes. A file that grows is
    /// not followed past the bound.
    pub(crate) async fn put_open_file(
        &self,
        file: File,
        bytes_max: u64,
        what: &str,
    ) -> Result<Put, StorageError> {
        self.put(tokio::fs::File::from_std(file), bytes_max, what).await
    }

    async fn put(&self, mut file: tokio::fs::File, bytes_max: u64, what: &str) -> Result<Put, StorageError> {
        let failed =
            |source| StorageError::Blob { action: "store", what: what.to_owned(), source: Box::new(source) };
        let mut writer = self.blobs.writer();
        let mut buffer = vec![0; COPY_BYTES];
        let mut size = 0u64;
        loop {
            let read = file.read(&mut buffer).await;
            let read =
                read.map_err(|source| StorageError::File { action: "read", what: what.to_owned(), source })?;
            if read == 0 {
                return Ok(Put::Stored(writer.finish().await.map_err(failed)?));
            }
            size = size.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
            if size > bytes_max {
                return Ok(Put::TooLarge);
            }
            writer.write(&buffer[..read]).await.map_err(failed)?;
        }
    }

    /// Copies a blob into a new file at `path`, opened at its start, checked by then. `size`: refuse any other.
    pub(crate) async fn fetch(
        &self,
        sha256: &str,
        size: Option<Bytes>,
        path: &Path,
    ) -> Result<File, StorageError> {
        let failed = |source| StorageError::Blob {
            action: "fetch",
            what: format!("blob {sha256}"),
            source: Box::new(source),
        };
        let wrote = |source| StorageError::File { action: "write", what: path.display().to_string(), source };
        let mut reader = self.blobs.open_to_end(sha256).await.map_err(failed)?;
        if let Some(expected) = size
            && reader.size() != expected.0
        {
            let (sha256, found) = (sha256.to_owned(), reader.size());
            return Err(StorageError::Size { sha256, found, expected: expected.0 });
        }
        let mut file = tokio::fs::File::create(path).await.map_err(wrote)?;
        while let Some(part) = reader.next().await.map_err(failed)? {
            file.write_all(&part).await.map_err(wrote)?;
        }
        file.flush().await.map_err(wrote)?;
        drop(file);
        File::open(path).map_err(wrote)
    }
}

#[derive(Debug)]
pub(crate) enum Put {
    Stored(BlobRef),
    TooLarge,
}
