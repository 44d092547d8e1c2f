use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use arrow::error::ArrowError;
use rollout::JobId;

use crate::schema::Table;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The record of a group says two things that cannot both be true.
    #[error("group {group} (seq {seq}) contradicts itself: {what}")]
    Contradiction { group: String, seq: i64, what: String },
    #[error("group {group} has {found} {what}, more than {max}")]
    TooMany { group: String, what: &'static str, found: u64, max: u64 },
    #[error("the value {value} does not fit column {column} of table {table}")]
    OutOfRange { table: Table, column: &'static str, value: String },
    #[error("`{value}` is not a value of column {column} of table {table}")]
    UnknownValue { table: Table, column: &'static str, value: String },
    #[error("cannot fetch artifact {sha256}")]
    Fetch {
        sha256: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error("the bytes fetched as artifact {sha256} are not those bytes")]
    FetchedOther { sha256: String },
    /// A row breaks a rule of its table.
    #[error("row {row} of table {table} breaks a rule: {rule}")]
    Rule { table: Table, row: usize, rule: String },
    #[error("cannot build rows of table {table}")]
    Build {
        table: Table,
        #[source]
        source: ArrowError,
    },
    #[error("group {group} belongs to another job than this table, {job}")]
    OtherJob { group: String, job: JobId },
    #[error("seq {seq} was given to both group {first} and group {second}")]
    SeqReused { seq: i64, first: String, second: String },
    /// Seal first: that many bytes or groups wait already.
    #[error("{groups} groups with {bytes} bytes wait to be sealed; the next one is refused")]
    PendingFull { groups: usize, bytes: u64 },
    #[error("another writer has the tables at {} open", path.display())]
    Locked { path: PathBuf },
    /// Nothing was lost: what waits to be sealed still does.
    #[error("no space left to {action} {}", path.display())]
    DiskFull {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("line {line} of {} is not a manifest line: {what}", path.display())]
    ManifestCorrupt { path: PathBuf, line: usize, what: String },
    #[error("the manifest names shard {}, which is not there", path.display())]
    ShardMissing { path: PathBuf },
    #[error("shard {} is damaged: {what}", path.display())]
    ShardCorrupt { path: PathBuf, what: String },
    #[error("cannot decode shard {}", path.display())]
    Decode {
        path: PathBuf,
        #[source]
        source: ArrowError,
    },
    #[error("{} holds schema {found}; this version reads {expected}", path.display())]
    SchemaVersion { path: PathBuf, found: String, expected: String },
    #[error("{} is not a table directory", path.display())]
    NotATable { path: PathBuf },
    #[error("{} has {found} bytes, more than {max}", path.display())]
    FileTooLarge { path: PathBuf, found: u64, max: u64 },
    #[error("{} has more than {max} files", path.display())]
    TooManyFiles { path: PathBuf, max: usize },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            _ => Self::Io { action, path, source },
        }
    }
}
