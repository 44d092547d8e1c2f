//! Due, missed and overlapping fires.

use rollout::Timestamp;
use rollout::schedule::{Overlap, SchedulePlan};
use scheduler_core::cadence::{
    Decision, LATE_MAX_US, MISSED_COUNT_MAX, Missed, WAITING_FIRES_MAX, decide, due,
};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
/// 2026-03-28T00:00:00Z, the day before the clocks of Berlin go forward.
const START: i64 = 1_774_656_000 * SECOND;

fn plan(cron: &str, zone: &str, overlap: Overlap, catch_up: bool) -> SchedulePlan {
    SchedulePlan {
        cron: cron.parse().expect("a cron line"),
        timezone: zone.parse().expect("a time zone"),
        enabled: true,
        overlap,
        catch_up,
    }
}

fn at(us: i64) -> Timestamp {
    Timestamp(START + us)
}

fn hours(run: &[Timestamp]) -> Vec<i64> {
    run.iter().map(|at| (at.0 - START) / HOUR).collect()
}

#[test]
fn a_fire_that_comes_due_while_the_scheduler_runs_is_run_once() {
    let hourly = plan("0 * * * *", "UTC", Overlap::Skip, false);
    let before = due(&hourly, at(0), at(HOUR - 1), at(0));
    assert_eq!((before.run, before.missed), (vec![], Missed::default()));
    let on_time = due(&hourly, before.cursor, at(HOUR), at(0));
    assert_eq!((hours(&on_time.run), on_time.missed), (vec![1], Missed::default()));
    let again = due(&hourly, on_time.cursor, at(HOUR + 1), at(0));
    assert!(again.run.is_empty(), "{again:?}");
    // The clock is set back: what was decided stays decided.
    let back = due(&hourly, again.cursor, at(HOUR / 2), at(0));
    assert_eq!((back.run, back.cursor), (vec![], again.cursor));
}

#[test]
fn fires_missed_while_no_scheduler_ran_are_dropped_and_counted_or_caught_up() {
    for (overlap, catch_up, run, missed) in [
        (Overlap::Skip, false, vec![], 9),
        (Overlap::Queue, false, vec![], 9),
        (Overlap::Skip, true, vec![9], 8),
        (Overlap::Replace, true, vec![9], 8),
        (Overlap::Queue, true, vec![8, 9], 7),
    ] {
        let hourly = plan("0 * * * *", "UTC", overlap, catch_up);
        let up = at(9 * HOUR + LATE_MAX_US + 1);
        let due = due(&hourly, at(0), up, up);
        assert_eq!((hours(&due.run), due.missed.count), (run, missed), "{overlap:?} {catch_up}");
        assert_eq!((due.missed.at_least, due.cursor), (false, up));
    }
}

#[test]
fn a_scheduler_that_is_started_again_at_once_loses_no_fire() {
    let hourly = plan("0 * * * *", "UTC", Overlap::Skip, false);
    let up = at(HOUR + LATE_MAX_US - 1);
    let due = due(&hourly, at(0), up, up);
    assert_eq!((hours(&due.run), due.missed.count), (vec![1], 0));
}

#[test]
fn fires_that_come_due_together_while_it_runs_are_the_latest_and_the_rest_is_counted() {
    let hourly = plan("0 * * * *", "UTC", Overlap::Queue, false);
    let due = due(&hourly, at(0), at(5 * HOUR), at(0));
    assert_eq!((hours(&due.run), due.missed.count), (vec![4, 5], 3));
}

#[test]
fn a_clock_that_jumps_by_years_costs_a_bounded_count() {
    let minutely = plan("* * * * *", "Europe/Berlin", Overlap::Replace, true);
    let now = at(3 * 365 * DAY);
    let due = due(&minutely, at(0), now, at(0));
    assert_eq!(due.run, [now]);
    assert_eq!(due.missed, Missed { count: MISSED_COUNT_MAX - 1, at_least: true });
}

#[test]
fn a_fire_time_that_the_clocks_skip_or_repeat_is_due_once() {
    let nightly = plan("30 2 * * *", "Europe/Berlin", Overlap::Skip, false);
    let mut cursor = at(0);
    let mut fires = Vec::new();
    // Each quarter of an hour over a year with both changes.
    for quarter in 0..365 * 24 * 4 {
        let due = due(&nightly, cursor, at(quarter * HOUR / 4), at(0));
        assert_eq!(due.missed.count, 0);
        cursor = due.cursor;
        fires.extend(due.run);
    }
    assert_eq!(fires.len(), 365);
    // 02:30 does not exist on 29 March: 03:00 CEST is 01:00 UTC.
    assert_eq!(fires[1], at(DAY + HOUR));
    let shortest = fires.windows(2).map(|pair| pair[1].0 - pair[0].0).min();
    assert_eq!(shortest, Some(23 * HOUR + HOUR / 2));
}

#[test]
fn what_becomes_of_a_fire_follows_from_overlap_and_what_runs() {
    for (overlap, runs, waiting, expected) in [
        (Overlap::Skip, false, 0, Decision::Start),
        (Overlap::Queue, false, 0, Decision::Start),
        (Overlap::Replace, false, 0, Decision::Start),
        (Overlap::Skip, true, 0, Decision::Skip),
        (Overlap::Replace, true, 0, Decision::Replace),
        (Overlap::Queue, true, 0, Decision::Wait),
        (Overlap::Queue, true, WAITING_FIRES_MAX, Decision::Full),
        // The job has just ended and the waiting fire is next.
        (Overlap::Queue, false, WAITING_FIRES_MAX, Decision::Full),
    ] {
        assert_eq!(decide(overlap, runs, waiting), expected, "{overlap:?} {runs} {waiting}");
    }
}
