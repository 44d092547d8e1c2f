//! Settings and bounds of the core.

use rollout::plan::AFTER_WORK_MAX;
use rollout::{BootTime, Millis, Timestamp};

/// Both clocks, read once a pass by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    pub boot: BootTime,
    pub wall: Timestamp,
}

impl Now {
    /// When the wall shows what `boot` will be; times that have passed are now.
    pub(crate) fn wall_at(self, boot: BootTime) -> Timestamp {
        let ahead = i64::try_from(boot.0.saturating_sub(self.boot.0)).unwrap_or(i64::MAX);
        Timestamp(self.wall.0.saturating_add(ahead))
    }

    /// The other way round.
    pub(crate) fn boot_at(self, wall: Timestamp) -> BootTime {
        let ahead = u64::try_from(wall.0.saturating_sub(self.wall.0)).unwrap_or(0);
        BootTime(self.boot.0.saturating_add(ahead))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How long a node's lease lives without a report.
    pub lease_ttl: Millis,
    /// Added on the scheduler's side, subtracted on the executor's: the executor has killed its
    /// sandboxes before the scheduler starts others.
    pub lease_margin: Millis,
    /// What an attempt may take beyond the times of its step before it is told to stop again, and
    /// then before it is given up.
    pub overdue_margin: Millis,
    /// A node is left with no fewer creations in flight while starts wait for its credit.
    pub in_flight_min: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease_ttl: Millis(10_000),
            lease_margin: Millis(2_000),
            overdue_margin: OVERDUE_MARGIN,
            in_flight_min: CREATIONS_IN_FLIGHT_MIN,
        }
    }
}

/// [`Config::overdue_margin`] unless a test sets it: longer than storing what an attempt made may take.
pub const OVERDUE_MARGIN: Millis = Millis(AFTER_WORK_MAX.0 + 120_000);
/// [`Config::in_flight_min`] unless a test sets it: a rate that was measured while there was little to
/// do may be low. So many keep a node busy from one report to the next, and another job waits no longer
/// than they take.
pub const CREATIONS_IN_FLIGHT_MIN: usize = 64;
/// Groups asked for in one `Expand`.
pub const EXPAND_GROUPS_MAX: u32 = 64;
/// Groups of one job admitted and not sealed: bounds what the recorder may lag behind.
pub const UNSEALED_GROUPS_MAX: usize = 4_096;
/// Placements in one pass; the rest follows in the next, at once.
pub const PLACEMENTS_PER_PASS_MAX: usize = 1_024;
/// First wait after a node refused for lack of room; doubles to [`REFUSAL_BACKOFF_MAX`].
pub const REFUSAL_BACKOFF: Millis = Millis(100);
pub const REFUSAL_BACKOFF_MAX: Millis = Millis(5_000);
/// How long a parked session that is called waits for room; then it is parked again, until the next call.
/// A little more than a caller is kept waiting, who is told what it waits for.
pub const THAW_WAIT_MAX: Millis = Millis(65_000);
/// Results kept under a key; past it the oldest is forgotten, and made again when it is asked for.
pub const RESULTS_MAX: usize = 65_536;
/// Images of one node whose digests are known or asked for.
pub const IMAGES_KNOWN_MAX: usize = 4_096;
/// How long a node may take to say what an image is there; then it counts as one that has it not.
pub const IMAGE_ANSWER_MAX: Millis = Millis(60_000);
/// How long its answer is believed: a tree under `dir:` may be replaced.
pub const IMAGE_FRESH: Millis = Millis(10_000);
/// Rollouts of one job that wait to be run again.
pub const RETRY_MEMBERS_MAX: usize = 65_536;
/// Ends of a step that the breaker looks back on.
pub const BREAKER_WINDOW: usize = 32;
/// The longest example message kept per kind of failure, in bytes.
pub const EXAMPLE_BYTES_MAX: usize = 512;
