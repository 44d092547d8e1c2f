//! When a schedule's jobs start: which fire times are due, which were missed, and what happens to a
//! fire while the job of the one before runs.

use std::collections::VecDeque;

use rollout::Timestamp;
use rollout::schedule::{Overlap, SchedulePlan};

/// Fires of one schedule that wait for the end of its job.
pub const WAITING_FIRES_MAX: usize = 1;
/// Missed fire times that are counted one by one; past it they are "at least" so many.
pub const MISSED_COUNT_MAX: u64 = 10_000;
/// A fire time this long before the scheduler started, in microseconds, is late and not missed: a
/// scheduler that is started again at once loses none.
pub const LATE_MAX_US: i64 = 60_000_000;

/// Looking back for the latest fire times, in microseconds: an hour, a day, a month, a year, all.
const LOOK_BACK_US: [i64; 5] =
    [3_600_000_000, 86_400_000_000, 31 * 86_400_000_000, 366 * 86_400_000_000, i64::MAX];

/// What is due of one schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Fire times to run, earliest first; no more than can run or wait.
    pub run: Vec<Timestamp>,
    pub missed: Missed,
    /// Everything up to here is decided.
    pub cursor: Timestamp,
}

/// Fire times that are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missed {
    pub count: u64,
    /// There are more: counting ended at [`MISSED_COUNT_MAX`].
    pub at_least: bool,
}

/// What becomes of a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Start,
    /// The job of the fire before runs, and this one is left out.
    Skip,
    /// It starts when that job has ended.
    Wait,
    /// [`WAITING_FIRES_MAX`] fires wait already, and this one is left out.
    Full,
    /// That job is cancelled, and this one starts.
    Replace,
}

/// What is due at `now`, after everything up to `cursor` was decided. Fire times before `up_since`,
/// when no scheduler ran, are dropped unless the schedule catches up. Those that come due together
/// count as if each met the job of the one before: only the latest can have an effect.
pub fn due(plan: &SchedulePlan, cursor: Timestamp, now: Timestamp, up_since: Timestamp) -> Due {
    let in_time = Timestamp(up_since.0.saturating_sub(LATE_MAX_US)).max(cursor);
    let from = if plan.catch_up { cursor } else { in_time };
    let runs_max = match plan.overlap {
        Overlap::Skip | Overlap::Replace => 1,
        Overlap::Queue => 1 + WAITING_FIRES_MAX,
    };
    let run = latest(plan, from, now, runs_max);
    let due = until(plan, cursor, now).take(usize::try_from(MISSED_COUNT_MAX).unwrap_or(usize::MAX)).count();
    let due = due as u64;
    let missed = Missed { count: due.saturating_sub(run.len() as u64), at_least: due == MISSED_COUNT_MAX };
    Due { run, missed, cursor: cursor.max(now) }
}

fn until(plan: &SchedulePlan, from: Timestamp, now: Timestamp) -> impl Iterator<Item = Timestamp> {
    plan.fires(from).take_while(move |at| *at <= now)
}

/// The last `count` fire times after `from`, up to `now`.
fn latest(plan: &SchedulePlan, from: Timestamp, now: Timestamp, count: usize) -> Vec<Timestamp> {
    for span in LOOK_BACK_US {
        let start = Timestamp(now.0.saturating_sub(span)).max(from);
        let mut last = VecDeque::with_capacity(count + 1);
        for at in until(plan, start, now) {
            last.push_back(at);
            if last.len() > count {
                last.pop_front();
            }
        }
        if last.len() == count || start == from {
            return last.into();
        }
    }
    Vec::new()
}

/// What becomes of a fire, by whether the job of the one before runs and how many fires wait.
pub const fn decide(overlap: Overlap, runs: bool, waiting: usize) -> Decision {
    match overlap {
        _ if !runs && waiting == 0 => Decision::Start,
        Overlap::Skip => Decision::Skip,
        Overlap::Replace => Decision::Replace,
        Overlap::Queue if waiting < WAITING_FIRES_MAX => Decision::Wait,
        Overlap::Queue => Decision::Full,
    }
}
