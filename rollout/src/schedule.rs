//! When a schedule fires: a cron line in a time zone.
//!
//! The line speaks of local times. A local time that a change of the clocks skips fires at the
//! first instant after the change, one that is repeated fires at its first pass only.

use std::fmt;

use chrono::{DateTime, Days, MappedLocalTime, NaiveDateTime, TimeDelta, TimeZone, Timelike};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::cron::CronLine;
use crate::time::Timestamp;

/// Fire times that a submit answers with.
pub const NEXT_FIRES: usize = 3;
/// How far ahead a fire time is looked for: a 29 February that is a given weekday may be 40 years away.
const HORIZON_DAYS: u64 = 48 * 366;
/// The longest change of the clocks: a zone that crosses the date line skips a day.
const SKIPPED_MINUTES_MAX: i64 = 26 * 60;

/// `schedule` of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulePlan {
    pub cron: CronLine,
    pub timezone: Tz,
    pub enabled: bool,
    pub overlap: Overlap,
    /// Fire times missed while no scheduler ran are run.
    pub catch_up: bool,
}

/// What happens to a fire while the job of the one before runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is left out.
    Skip,
    /// It waits for the end of that job.
    Queue,
    /// That job is cancelled.
    Replace,
}

impl Overlap {
    pub const ALL: [Self; 3] = [Self::Skip, Self::Queue, Self::Replace];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Replace => "replace",
        }
    }
}

impl SchedulePlan {
    /// The first fire time later than `after`. None: nothing within 48 years, or the end of the calendar.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let local = DateTime::from_timestamp_micros(after.0)?.with_timezone(&self.timezone).naive_local();
        // Local minutes up to this one are over, or they are repeated and have fired.
        let mut first = local.hour() * 60 + local.minute() + 1;
        let mut day = local.date();
        for _ in 0..HORIZON_DAYS {
            if self.cron.takes_day(day) {
                for minute in self.cron.minutes_from(first) {
                    let at = self.instant(day.and_hms_opt(minute / 60, minute % 60, 0)?)?;
                    if at > after {
                        return Some(at);
                    }
                }
            }
            first = 0;
            day = day.checked_add_days(Days::new(1))?;
        }
        None
    }

    /// The fire times later than `after`, earliest first.
    pub fn fires(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_after(after), |at| self.next_after(*at))
    }

    /// A fire time as its zone writes it: `2026-12-01 02:00`.
    pub fn local(&self, at: Timestamp) -> String {
        let at = DateTime::from_timestamp_micros(at.0).unwrap_or_default();
        at.with_timezone(&self.timezone).format("%Y-%m-%d %H:%M").to_string()
    }

    /// When the clocks of the zone first show `local`, or skip it.
    fn instant(&self, local: NaiveDateTime) -> Option<Timestamp> {
        let shown = (0..=SKIPPED_MINUTES_MAX).find_map(|minutes| {
            let local = local.checked_add_signed(TimeDelta::minutes(minutes))?;
            match self.timezone.from_local_datetime(&local) {
                MappedLocalTime::Single(at) => Some(at),
                MappedLocalTime::Ambiguous(one, other) => Some(one.min(other)),
                MappedLocalTime::None => None,
            }
        })?;
        Some(Timestamp(shown.timestamp_micros()))
    }
}

/// A schedule as people read it. Display gives `disabled; next 2026-12-01 02:00, 2026-12-02 02:00 UTC`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleDescription {
    pub cron: String,
    pub timezone: String,
    pub enabled: bool,
    pub overlap: Overlap,
    pub catch_up: bool,
    /// The first [`NEXT_FIRES`], whether it is enabled or not; microseconds since 1970 UTC.
    pub next_at_us: Vec<i64>,
    /// The same, as the clocks of the zone show them.
    pub next: Vec<String>,
}

impl SchedulePlan {
    /// The schedule with its fire times later than `after`.
    pub fn describe(&self, after: Timestamp) -> ScheduleDescription {
        let next: Vec<Timestamp> = self.fires(after).take(NEXT_FIRES).collect();
        ScheduleDescription {
            cron: self.cron.to_string(),
            timezone: self.timezone.name().to_owned(),
            enabled: self.enabled,
            overlap: self.overlap,
            catch_up: self.catch_up,
            next_at_us: next.iter().map(|at| at.0).collect(),
            next: next.iter().map(|at| self.local(*at)).collect(),
        }
    }
}

impl fmt::Display for ScheduleDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.enabled { "enabled" } else { "disabled" };
        match self.next.as_slice() {
            [] => write!(f, "{state}; no fire time"),
            next => write!(f, "{state}; next {} {}", next.join(", "), self.timezone),
        }
    }
}
