//! The only place that reads clocks. The driver reads them once a pass.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use rollout::{BootTime, Timestamp};

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
