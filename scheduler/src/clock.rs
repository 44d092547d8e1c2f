//! The only place that reads clocks. The driver reads them once a pass.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use rollout::{BootTime, Timestamp};
use tokio::sync::watch;

/// Time since boot, for deadlines. It goes on while the machine sleeps and never jumps.
pub fn boot() -> BootTime {
    // CLOCK_BOOTTIME exists on every Linux this builds for; the call has no other failure.
    let read = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    BootTime(u64::try_from(read.as_micros()).unwrap_or(u64::MAX))
}

/// Wall time, for rows and people.
pub fn wall() -> Timestamp {
    let read = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(read.as_micros()).unwrap_or(i64::MAX))
}

/// The longest sleep of a schedule: the wall clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// What schedules go by: the wall clock, or in tests one that is set by hand.
#[derive(Debug, Clone, Default)]
pub enum ScheduleClock {
    #[default]
    Wall,
    #[doc(hidden)]
    Set(watch::Receiver<Timestamp>),
}

impl ScheduleClock {
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Wall => wall(),
            Self::Set(set) => *set.borrow(),
        }
    }

    /// Until `at`, or earlier; none: until it is time to look at the clock again.
    pub(crate) async fn sleep_until(&mut self, at: Option<Timestamp>) {
        match self {
            Self::Wall => {
                let left = at.map_or(i64::MAX, |at| at.0.saturating_sub(wall().0));
                let left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
                tokio::time::sleep(left.min(SLEEP_MAX)).await;
            }
            // Whoever set it may be gone, and it stands still then.
            Self::Set(set) => {
                if set.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}
