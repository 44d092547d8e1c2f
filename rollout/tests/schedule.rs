//! Fire times against tables of changes of the clocks, and against a minute-by-minute scan.

use std::collections::BTreeSet;

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Timelike};
use proptest::prelude::*;
use rollout::Timestamp;
use rollout::schedule::{Overlap, SchedulePlan};

fn plan(cron: &str, zone: &str) -> SchedulePlan {
    SchedulePlan {
        cron: cron.parse().unwrap_or_else(|problem| panic!("{cron}: {problem}")),
        timezone: zone.parse().unwrap_or_else(|_| panic!("{zone}")),
        enabled: true,
        overlap: Overlap::Skip,
        catch_up: false,
    }
}

/// `2026-03-29T00:59:00Z`.
fn at(text: &str) -> Timestamp {
    Timestamp(DateTime::parse_from_rfc3339(text).unwrap_or_else(|e| panic!("{text}: {e}")).timestamp_micros())
}

fn shown(at: Timestamp) -> String {
    DateTime::from_timestamp_micros(at.0).expect("a time").format("%m-%dT%H:%MZ").to_string()
}

#[test]
fn skipped_times_fire_after_the_change_and_repeated_ones_once() {
    for (zone, cron, after, expected) in [
        // 02:00 CET is 03:00 CEST on 2026-03-29.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-28T00:00:00Z",
            ["03-28T01:30Z", "03-29T01:00Z", "03-30T00:30Z"],
        ),
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-03-29T00:00:00Z",
            ["03-29T00:30Z", "03-29T01:00Z", "03-29T01:30Z"],
        ),
        (
            "Europe/Berlin",
            "0,30 2-3 * * *",
            "2026-03-29T00:00:00Z",
            ["03-29T01:00Z", "03-29T01:30Z", "03-30T00:00Z"],
        ),
        // 03:00 CEST is 02:00 CET on 2026-10-25.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T00:00:00Z",
            ["10-24T00:30Z", "10-25T00:30Z", "10-26T01:30Z"],
        ),
        (
            "Europe/Berlin",
            "0 * * * *",
            "2026-10-25T00:00:00Z",
            ["10-25T02:00Z", "10-25T03:00Z", "10-25T04:00Z"],
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-25T01:15:00Z",
            ["10-26T01:30Z", "10-27T01:30Z", "10-28T01:30Z"],
        ),
        // 02:00 EST is 03:00 EDT on 2026-03-08, 02:00 EDT is 01:00 EST on 2026-11-01.
        (
            "America/New_York",
            "15 2 * * *",
            "2026-03-07T12:00:00Z",
            ["03-08T07:00Z", "03-09T06:15Z", "03-10T06:15Z"],
        ),
        (
            "America/New_York",
            "15 1 * * *",
            "2026-10-31T12:00:00Z",
            ["11-01T05:15Z", "11-02T06:15Z", "11-03T06:15Z"],
        ),
        (
            "America/New_York",
            "59 1 * * *",
            "2026-11-01T06:30:00Z",
            ["11-02T06:59Z", "11-03T06:59Z", "11-04T06:59Z"],
        ),
        // 02:00 +10:30 is 02:30 +11 on 2026-10-04, 02:00 +11 is 01:30 +10:30 on 2026-04-05.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-02T20:00:00Z",
            ["10-03T15:30Z", "10-04T15:15Z", "10-05T15:15Z"],
        ),
        (
            "Australia/Lord_Howe",
            "*/15 2 * * *",
            "2026-10-03T15:00:00Z",
            ["10-03T15:30Z", "10-03T15:45Z", "10-04T15:00Z"],
        ),
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "2026-04-04T00:00:00Z",
            ["04-04T14:45Z", "04-05T15:15Z", "04-06T15:15Z"],
        ),
        // Samoa had no 2011-12-30.
        (
            "Pacific/Apia",
            "0 12 30 * *",
            "2011-12-01T00:00:00Z",
            ["12-30T10:00Z", "01-29T22:00Z", "03-29T22:00Z"],
        ),
        ("UTC", "0 2 * * *", "2026-12-01T02:00:00Z", ["12-02T02:00Z", "12-03T02:00Z", "12-04T02:00Z"]),
        ("UTC", "0 0 29 2 */7", "2026-01-01T00:00:00Z", ["02-29T00:00Z", "02-29T00:00Z", "02-29T00:00Z"]),
    ] {
        let fires: Vec<String> = plan(cron, zone).fires(at(after)).take(3).map(shown).collect();
        assert_eq!(fires, expected, "{cron} in {zone} after {after}");
    }
}

#[test]
fn a_fire_time_is_written_as_its_zone_shows_it() {
    let berlin = plan("30 2 * * *", "Europe/Berlin");
    let fires = berlin.fires(at("2026-03-28T00:00:00Z")).take(3);
    let local: Vec<String> = fires.map(|at| berlin.local(at)).collect();
    assert_eq!(local, ["2026-03-28 02:30", "2026-03-29 03:00", "2026-03-30 02:30"]);
    let off = SchedulePlan { enabled: false, ..berlin };
    assert_eq!(
        off.describe(at("2026-03-28T00:00:00Z")).to_string(),
        "disabled; next 2026-03-28 02:30, 2026-03-29 03:00, 2026-03-30 02:30 Europe/Berlin"
    );
}

#[test]
fn the_ends_of_the_calendar_have_no_next_fire() {
    let daily = plan("0 2 * * *", "Europe/Berlin");
    for end in [i64::MIN, i64::MAX] {
        assert_eq!(daily.next_after(Timestamp(end)), None);
    }
}

const MINUTE_US: i64 = 60_000_000;

/// Every UTC minute of a window, one by one: one fires if the clock shows a local minute of the line
/// for the first time, or has just jumped over one.
fn scan(plan: &SchedulePlan, after: Timestamp, minutes: i64) -> Vec<Timestamp> {
    let local = |minute: i64| -> NaiveDateTime {
        plan.timezone.timestamp_opt(minute * 60, 0).single().expect("an instant").naive_local()
    };
    let fits = |local: NaiveDateTime| {
        plan.cron.takes_day(local.date()) && plan.cron.takes_minute(local.hour(), local.minute())
    };
    let first = after.0.div_euclid(MINUTE_US);
    // Enough before the window to know which local minutes are repetitions.
    let mut before = local(first - 3_000);
    let mut seen = BTreeSet::from([before]);
    let mut fires = Vec::new();
    for minute in first - 2_999..=first + minutes {
        let now = local(minute);
        let mut jumped = before + TimeDelta::minutes(1);
        let mut fire = seen.insert(now) && fits(now);
        while jumped < now {
            fire |= fits(jumped);
            jumped += TimeDelta::minutes(1);
        }
        let at = Timestamp(minute * MINUTE_US);
        if fire && at > after {
            fires.push(at);
        }
        before = now;
    }
    fires
}

fn cron_lines() -> impl Strategy<Value = String> {
    let minute =
        prop_oneof![Just("*".to_owned()), (0..60u32).prop_map(|n| n.to_string()), Just("*/15".into())];
    let hour = prop_oneof![
        Just("*".to_owned()),
        (0..4u32).prop_map(|n| n.to_string()),
        (0..12u32, 12..24u32).prop_map(|(a, b)| format!("{a}-{b}/2")),
    ];
    let day = prop_oneof![3 => Just("*".to_owned()), 1 => (1..=28u32).prop_map(|n| format!("{n},*/9"))];
    let weekday = prop_oneof![3 => Just("*".to_owned()), 1 => (0..=7u32).prop_map(|n| n.to_string())];
    (minute, hour, day, weekday).prop_map(|(m, h, d, w)| format!("{m} {h} {d} * {w}"))
}

/// Around changes of the clocks, and anywhere.
fn windows() -> impl Strategy<Value = (&'static str, i64)> {
    let changes = prop_oneof![
        Just(("Europe/Berlin", "2026-03-29T01:00:00Z")),
        Just(("Europe/Berlin", "2026-10-25T01:00:00Z")),
        Just(("America/New_York", "2026-03-08T07:00:00Z")),
        Just(("America/New_York", "2026-11-01T06:00:00Z")),
        Just(("Australia/Lord_Howe", "2026-10-03T15:30:00Z")),
        Just(("Australia/Lord_Howe", "2026-04-04T15:00:00Z")),
        Just(("Pacific/Apia", "2011-12-30T10:00:00Z")),
        // At midnight, local time: the day before is repeated in part.
        Just(("America/Sao_Paulo", "2018-02-18T02:00:00Z")),
        Just(("America/Sao_Paulo", "2018-11-04T03:00:00Z")),
    ];
    let zones =
        prop_oneof![Just("UTC"), Just("Asia/Kathmandu"), Just("Europe/Berlin"), Just("America/Santiago")];
    prop_oneof![
        3 => (changes, -2_000 * MINUTE_US..500 * MINUTE_US).prop_map(|((zone, change), us)| (zone, at(change).0 + us)),
        1 => (zones, 1_100_000_000_000_000..2_000_000_000_000_000i64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn fires_are_those_of_a_scan_of_every_minute(cron in cron_lines(), (zone, after) in windows()) {
        let plan = plan(&cron, zone);
        let after = Timestamp(after);
        let end = Timestamp((after.0.div_euclid(MINUTE_US) + 2_500) * MINUTE_US);
        let fires: Vec<Timestamp> = plan.fires(after).take_while(|at| *at <= end).collect();
        prop_assert_eq!(fires, scan(&plan, after, 2_500));
    }
}
