//! The two clocks of the executor. Lengths of time are measured with `tokio::time::Instant`.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use rollout::{BootTime, Millis, Timestamp};
use tokio::time::Instant;

/// Wall time, for columns and people.
pub(crate) fn wall_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// CLOCK_BOOTTIME, for deadlines between processes: it goes on while the machine sleeps. The
/// kernel has had it since 2.6.39; zero (every lease long over) if it ever answers otherwise.
pub(crate) fn boot_now() -> BootTime {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(BootTime(0), |now| {
        let micros = i128::from(now.tv_sec()) * 1_000_000 + i128::from(now.tv_nsec()) / 1000;
        BootTime(u64::try_from(micros).unwrap_or(0))
    })
}

/// When that was, on the other clock. Now, if this clock did not go yet.
pub(crate) fn began_at(boot: BootTime) -> Instant {
    let ago = std::time::Duration::from_micros(boot_now().0.saturating_sub(boot.0));
    let now = Instant::now();
    now.checked_sub(ago).unwrap_or(now)
}

/// The length of time since `began`.
pub(crate) fn elapsed(began: Instant) -> Millis {
    Millis(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
}
