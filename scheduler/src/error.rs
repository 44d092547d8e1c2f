//! Why the scheduler cannot start or has to stop.

use std::io;
use std::path::PathBuf;

use rollout::JobId;

/// Variant = what failed, fields = on what, `source` = why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{address}` is not an address: {problem}")]
    BadAddress { address: String, problem: String },
    #[error("refusing to listen on `{address}`: it is not a loopback address")]
    ListenNotLoopback { address: String },
    #[error("cannot listen on `{address}`")]
    Listen { address: String, source: io::Error },
    #[error("cannot use the data directory {}", path.display())]
    DataDir { path: PathBuf, source: io::Error },
    #[error("the data directory {} is in use by process {holder}", path.display())]
    DataDirLocked { path: PathBuf, holder: String },
    #[error("{} is not a database of Rollyard, or is damaged: {problem}", path.display())]
    DatabaseCorrupt { path: PathBuf, problem: String },
    #[error("{} was written by a newer version (schema {found}, this version knows {known})", path.display())]
    DatabaseTooNew { path: PathBuf, found: i64, known: i64 },
    #[error("{} was written by an older version (schema {found}, this version reads {known})", path.display())]
    DatabaseTooOld { path: PathBuf, found: i64, known: i64 },
    #[error("the store has no room: {doing}")]
    StoreFull { doing: &'static str, source: sqlx::Error },
    #[error("the store failed: {doing}")]
    Store { doing: &'static str, source: sqlx::Error },
    #[error("row {row} of table `{table}`, column `{column}` contradicts its type: {problem}")]
    Row { table: &'static str, column: &'static str, row: String, problem: String },
    #[error("another scheduler took over the store (epoch {mine} was ours, {found} is current)")]
    EpochLost { mine: u64, found: u64 },
    #[error("the store contradicts the state in memory: {problem}")]
    StoreDiverged { problem: String },
    #[error("job {job}: its stored spec is not valid for this version: {problem}")]
    StoredSpec { job: JobId, problem: String },
    #[error("job {job}: its task rows cannot be read")]
    Rows { job: JobId, source: Box<crate::rows::RowsError> },
    #[error("cannot use the blob store {url}")]
    Blobs { url: String, source: Box<blobs::Error> },
    #[error("the blobs of the yard in {} are at {kept}, not at {asked}", data_dir.display())]
    BlobsElsewhere { data_dir: PathBuf, kept: String, asked: String },
    #[error("the server stopped")]
    Serve { source: tonic::transport::Error },
    #[error("a task of the scheduler ended by a panic: {task}")]
    Panicked { task: String },
}

impl Error {
    /// The stable code, as in docs/errors.md.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadAddress { .. } => "bad_address",
            Self::ListenNotLoopback { .. } => "listen_not_loopback",
            Self::Listen { .. } => "listen_failed",
            Self::DataDir { .. } => "data_dir_failed",
            Self::DataDirLocked { .. } => "data_dir_locked",
            Self::DatabaseCorrupt { .. } => "database_corrupt",
            Self::DatabaseTooNew { .. } => "database_too_new",
            Self::DatabaseTooOld { .. } => "database_too_old",
            Self::StoreFull { .. } => "store_full",
            Self::Store { .. } => "store_failed",
            Self::Row { .. } => "row_contradicts_type",
            Self::EpochLost { .. } => "epoch_lost",
            Self::StoreDiverged { .. } => "store_diverged",
            Self::StoredSpec { .. } => "stored_spec_invalid",
            Self::Rows { .. } => "rows_unreadable",
            Self::Blobs { .. } => "blobs_failed",
            Self::BlobsElsewhere { .. } => "blobs_elsewhere",
            Self::Serve { .. } => "serve_failed",
            Self::Panicked { .. } => "internal",
        }
    }

    /// Every code of [`Error::code`].
    pub const CODES: [&'static str; 19] = [
        "bad_address",
        "listen_not_loopback",
        "listen_failed",
        "data_dir_failed",
        "data_dir_locked",
        "database_corrupt",
        "database_too_new",
        "database_too_old",
        "store_full",
        "store_failed",
        "row_contradicts_type",
        "epoch_lost",
        "store_diverged",
        "stored_spec_invalid",
        "rows_unreadable",
        "blobs_failed",
        "blobs_elsewhere",
        "serve_failed",
        "internal",
    ];

    /// Trying the same again gives the same answer: what is stored is the cause, not how it is
    /// reached.
    pub(crate) const fn is_permanent(&self) -> bool {
        match self {
            Self::Row { .. } | Self::StoredSpec { .. } | Self::Panicked { .. } => true,
            Self::Rows { source, .. } => source.is_permanent(),
            _ => false,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Blobs { source, .. } if matches!(**source, blobs::Error::Claimed { .. }) => {
                "give each yard a place of its own; if that yard is gone for good, remove the object `owner` there"
            }
            Self::BadAddress { .. } => "write unix:/path/to/socket, or an IP address with a port",
            Self::ListenNotLoopback { .. } => {
                "there is no TLS yet: listen on a Unix socket (unix:/path) or on 127.0.0.1 or [::1]"
            }
            Self::DataDir { .. } => {
                "make it a directory that this user can write to, or choose another data directory"
            }
            Self::DataDirLocked { .. } => "stop that process, or choose another data directory",
            Self::BlobsElsewhere { .. } => {
                "leave --blobs out, or begin with an empty data directory: stored blobs are not moved"
            }
            Self::DatabaseCorrupt { .. } => {
                "move the file and its -wal and -shm companions aside and start again; nothing was deleted or changed"
            }
            Self::DatabaseTooNew { .. } => "start the version that wrote it, or a later one",
            Self::DatabaseTooOld { .. } => "start a yard on it once: it brings the database up to date",
            Self::StoreFull { .. } => "free space on the file system of the data directory",
            Self::Store { .. } => {
                "look at the disk, the owner and the permissions of the data directory; the database may be sound"
            }
            Self::EpochLost { .. } => "only one scheduler may own a data directory; this one has stopped",
            Self::Row { .. } | Self::StoreDiverged { .. } | Self::StoredSpec { .. } => {
                "keep the data directory as it is and report this"
            }
            _ => return None,
        })
    }
}
