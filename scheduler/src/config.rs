//! Settings of one scheduler.

use std::path::PathBuf;
use std::time::Duration;

use rollout::{Millis, Name};

use crate::clock::ScheduleClock;
use crate::store::CommitHook;

/// [`Config::client_stall`] unless it is set.
const CLIENT_STALL_MAX: Duration = Duration::from_secs(30);
/// [`Config::reader_stall`] unless it is set.
const READER_STALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone)]
pub struct Config {
    /// Where the database, the lock and, by default, the blobs are.
    pub data_dir: PathBuf,
    /// Object-store URL of the blobs; none: `file://<data_dir>/blobs`.
    pub blobs: Option<String>,
    /// The yard's name, for people.
    pub yard: Name,
    /// How long a node's lease lives without a heartbeat.
    pub lease_ttl: Millis,
    /// Added to the lease here and taken off it by executors.
    pub lease_margin: Millis,
    /// What an attempt may take beyond the times of its step before it is told to stop again, and
    /// then before it is given up.
    pub overdue_margin: Millis,
    /// How often the books are checked against themselves and against the lease rows.
    pub reconcile_every: Duration,
    /// How long a client may send nothing of a request it began.
    pub client_stall: Duration,
    /// How long the reader of a log or the follower of a job may take nothing. Long: it may be a
    /// pager, and its place is one of a bounded number.
    pub reader_stall: Duration,
    /// A clock for tests.
    #[doc(hidden)]
    pub schedule_clock: ScheduleClock,
    /// How often what nobody needs is collected.
    pub collect_every: Duration,
    /// How long a blob stays that nobody names: until then its job may still be submitted.
    pub blob_grace: Duration,
    /// Faults for tests.
    #[doc(hidden)]
    pub commit_hook: Option<CommitHook>,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>, yard: Name) -> Self {
        let core = scheduler_core::Config::default();
        Self {
            data_dir: data_dir.into(),
            blobs: None,
            yard,
            lease_ttl: core.lease_ttl,
            lease_margin: core.lease_margin,
            overdue_margin: core.overdue_margin,
            reconcile_every: Duration::from_secs(5),
            client_stall: CLIENT_STALL_MAX,
            reader_stall: READER_STALL_MAX,
            schedule_clock: ScheduleClock::default(),
            collect_every: Duration::from_secs(3_600),
            blob_grace: Duration::from_secs(24 * 3_600),
            commit_hook: None,
        }
    }
}
