//! Why rows were not written, and whether it is worth trying again.

use std::path::PathBuf;

use rollout::{GroupId, JobId};

use crate::error::Error;
use crate::inbox::Stopping;
use crate::rows::RowsError;

#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Store(#[from] Error),
    #[error("cannot write the tables of job {job} at {}", root.display())]
    Tables { job: JobId, root: PathBuf, source: datasets::Error },
    #[error("cannot read the row of group {group}")]
    Row { group: GroupId, source: RowsError },
    #[error("job {job} is not stored")]
    NoJob { job: JobId },
    #[error("a blocking task ended by a panic")]
    Panicked(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

impl RecordError {
    /// The same rows and the same files give the same error: trying again is of no use.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Store(error) => error.is_permanent(),
            Self::Row { source, .. } => source.is_permanent(),
            Self::Tables { source, .. } => tables_permanent(source),
            Self::NoJob { .. } | Self::Panicked(_) | Self::Stopping(_) => false,
        }
    }

    /// Sealing what waits makes room for the group.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Tables { source: datasets::Error::PendingFull { .. }, .. })
    }
}

fn tables_permanent(error: &datasets::Error) -> bool {
    use datasets::Error as E;
    // A new kind of error counts as one that may pass: trying too often loses nothing.
    matches!(
        error,
        E::Contradiction { .. }
            | E::TooMany { .. }
            | E::OutOfRange { .. }
            | E::UnknownValue { .. }
            | E::FetchedOther { .. }
            | E::Rule { .. }
            | E::Build { .. }
            | E::OtherJob { .. }
            | E::SeqReused { .. }
            | E::ManifestCorrupt { .. }
            | E::ShardMissing { .. }
            | E::ShardCorrupt { .. }
            | E::Decode { .. }
            | E::SchemaVersion { .. }
            | E::NotATable { .. }
            | E::FileTooLarge { .. }
            | E::TooManyFiles { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_the_rows_say_is_permanent_and_what_a_disk_says_is_not() {
        let job = JobId::from_bits(1);
        let group = GroupId { job, index: 0 };
        let tables = |source| RecordError::Tables { job, root: PathBuf::from("/t"), source };
        let contradiction =
            datasets::Error::Contradiction { group: group.to_string(), seq: 0, what: "x".to_owned() };
        let missing = RowsError::BlobMissing { path: "rows.jsonl".to_owned(), sha256: "0".to_owned() };
        let full = datasets::Error::DiskFull {
            action: "write",
            path: PathBuf::from("/t"),
            source: io::ErrorKind::StorageFull.into(),
        };
        let pending = datasets::Error::PendingFull { groups: 1, bytes: 1 };
        let locked = datasets::Error::Locked { path: PathBuf::from("/t") };
        assert!(tables(contradiction).is_permanent());
        assert!(RecordError::Row { group, source: missing }.is_permanent());
        assert!(!tables(full).is_permanent() && !tables(locked).is_permanent());
        let pending = tables(pending);
        assert!(pending.is_full() && !pending.is_permanent());
    }
}
