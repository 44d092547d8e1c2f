use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A store this version cannot open; the code of docs/errors.md is `not_available_yet`.
    #[error(
        "not_available_yet: blob stores at {scheme}:// URLs; use file:///absolute/directory or s3://bucket/prefix"
    )]
    NotAvailableYet { scheme: String },
    #[error(
        "`{shown}` is not the URL of a blob store: expected file:///absolute/directory or s3://bucket/prefix"
    )]
    BadUrl { shown: String },
    #[error("`{shown}` is not a sha256: expected 64 of 0-9 a-f")]
    BadDigest { shown: String },
    #[error("blob {sha256} is not in the store")]
    NotFound { sha256: String },
    /// The stored bytes are not those the digest names; the code is `chunk_corrupt`.
    #[error("chunk_corrupt: the bytes stored as blob {sha256} have sha256 {found}")]
    ChunkCorrupt { sha256: String, found: String },
    #[error("blob {sha256} has {size} bytes, more than the {bytes_max} asked for")]
    TooLarge { sha256: String, size: u64, bytes_max: u64 },
    /// Nothing of them was kept.
    #[error("the bytes written have sha256 {found}, not {expected}")]
    OtherBytes { expected: String, found: String },
    #[error("a blob holds at most {bytes_max} bytes")]
    BlobTooLarge { bytes_max: u64 },
    /// A write failed half way; what was written is gone.
    #[error("the blob writer failed before and takes no more bytes")]
    WriterFailed,
    /// More blobs than one sweep can look at.
    #[error("shelf {shelf} of the blob store has more than {blobs_max} blobs (SHELF_BLOBS_MAX)")]
    ShelfTooFull { shelf: String, blobs_max: usize },
    /// Another yard keeps its blobs there and would lose them to the sweeps of this one.
    #[error("the blob store belongs to yard {owner}")]
    Claimed { owner: String },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {action} {what}")]
    Bucket {
        action: &'static str,
        what: String,
        #[source]
        source: object_store::Error,
    },
    /// Of a blob that waits to be put into a bucket.
    #[error("cannot use a temporary file")]
    Staged {
        #[source]
        source: io::Error,
    },
    /// A sweep has had it in hand for too long, such as one that was killed; the next start of the
    /// scheduler ends it.
    #[error("blob {sha256} is in the hands of a sweep of the store that does not end")]
    Swept { sha256: String },
    /// Nobody has made a store there: it is another place than the scheduler's.
    #[error("there is no blob store at {url}")]
    NoStore { url: String },
    #[error("cannot read blob {sha256}")]
    Read {
        sha256: String,
        #[source]
        source: object_store::Error,
    },
    #[error("cannot open the blob store")]
    Open(#[source] object_store::Error),
    #[error("the runtime ended while a blob was written")]
    Runtime(#[source] tokio::task::JoinError),
}

impl Error {
    /// The disk or the quota of the store is full: freeing space and trying again is enough.
    pub fn disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let full = |source: &io::Error| matches!(source.kind(), StorageFull | QuotaExceeded);
        matches!(self, Self::Io { source, .. } | Self::Staged { source } if full(source))
    }
}
