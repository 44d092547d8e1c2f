use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A store this version cannot open; the code of docs/errors.md is `not_available_yet`.
    #[error("not_available_yet: blob stores at {scheme}:// URLs; use file:///absolute/directory")]
    NotAvailableYet { scheme: String },
    #[error("`{shown}` is not the URL of a blob store: expected file:///absolute/directory")]
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
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read blob {sha256}")]
    Read {
        sha256: String,
        #[source]
        source: object_store::Error,
    },
    #[error("cannot open the directory of the blob store")]
    Open(#[source] object_store::Error),
    #[error("the runtime ended while a blob was written")]
    Runtime(#[source] tokio::task::JoinError),
}

impl Error {
    /// The disk or the quota of the store is full: freeing space and trying again is enough.
    pub fn disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}
