//! The store: SQLite, one writer, group commit.
//!
//! Stored: jobs as submitted, admitted groups, ends of rollouts, attempts with their outcomes and
//! generations, what steps held in memory, node leases, the shard catalogue. Hot: one transaction per pass of the driver.
//! Never stored: ready queues, heartbeats, load, sums, blobs.
//!
//! Only this module and its children know SQL. One statement per file in `queries/`; a bulk write
//! is one statement over a JSON array.

mod checkpoints;
mod fold;
mod garbage;
mod groups;
mod memory;
mod open;
mod read;
mod restore;
mod retries;
mod row;
mod sandboxes;
mod schedules;
mod writer;

use std::time::Duration;

use sqlx::SqlitePool;

pub use checkpoints::{CheckpointRow, Of, Taken, UserRow};
pub use fold::{Batch, NewJob, NewSandbox, PinnedImage, ShardRow, StoredFile};
pub use garbage::{Marked, Root};
pub use groups::{ClosedGroup, EndedAttempt, GroupRows, MemberRow};
pub use open::{DATABASE_FILE, open, open_read_only};
pub use read::{AttemptRow, Failures, JobCounts, JobRow, NodeRow, RolloutRow};
pub use sandboxes::{JobKind, SandboxRow, only_rollout};
pub use schedules::{Fire, NewSchedule, ScheduleChange, ScheduleRow};

pub(crate) use restore::success_at;
pub use writer::{CommitError, CommitHook, CommitPoint, InjectedFault, Writer};

/// Read connections at once.
const READERS_MAX: u32 = 4;
/// How long a reader waits for a connection, or SQLite for its lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads of the stored state; cheap to clone.
#[derive(Debug, Clone)]
pub struct Reads {
    pool: SqlitePool,
}

/// The text of a statement by its path below `queries/`.
macro_rules! statement {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/queries/", $path, ".sql"))
    };
}
pub(crate) use statement;

pub(crate) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> crate::Error {
    move |source| match primary_code(&source) {
        Some(SQLITE_FULL) => crate::Error::StoreFull { doing, source },
        _ => crate::Error::Store { doing, source },
    }
}

const SQLITE_CORRUPT: i64 = 11;
const SQLITE_FULL: i64 = 13;
const SQLITE_NOTADB: i64 = 26;

/// SQLite's own code of an error: the low byte of the extended one.
fn primary_code(error: &sqlx::Error) -> Option<i64> {
    let code = error.as_database_error()?.code()?.parse::<i64>().ok()?;
    Some(code & 0xff)
}
