//! Schedules for people.

use rollout::Timestamp;
use rollout::text::shown;

use super::human::{count, grid_in, length};
use super::report::label;
use super::table::{SENTENCE_CHARS_MAX, Table};
use crate::view::Schedule;

/// The most characters of a name, a zone or a fire time.
const WORD_CHARS_MAX: usize = 64;

pub fn list(table: &Table, schedules: &[Schedule]) -> String {
    let row = |schedule: &Schedule| {
        let dash = || "-".to_owned();
        vec![
            schedule.id.clone(),
            schedule.name.clone(),
            if schedule.enabled { "enabled" } else { "disabled" }.to_owned(),
            schedule.cron.clone(),
            schedule.next.first().filter(|_| schedule.enabled).cloned().unwrap_or_else(dash),
            schedule.timezone.clone(),
            schedule.overlap.clone(),
            count(schedule.fired),
            count(schedule.skipped.saturating_add(schedule.missed).saturating_add(schedule.failed)),
            schedule.last_job.clone().unwrap_or_else(dash),
        ]
    };
    let rows: Vec<_> = schedules.iter().map(row).collect();
    let heads =
        ["SCHEDULE", "NAME", "STATE", "CRON", "NEXT", "ZONE", "OVERLAP", ">FIRED", ">DROPPED", "LAST JOB"];
    grid_in(table.columns, "", &heads, &rows)
}

pub fn one(table: &Table, schedule: &Schedule) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| label(table.columns, &mut out, name, text);
    let word = |text: &str| shown(text, WORD_CHARS_MAX);
    line("schedule", &format!("{}  {}", word(&schedule.name), word(&schedule.id)));
    if let Some(project) = &schedule.project {
        line("project", &shown(project, SENTENCE_CHARS_MAX));
    }
    line("state", if schedule.enabled { "enabled" } else { "disabled" });
    line("cron", &format!("{}  {}", shown(&schedule.cron, SENTENCE_CHARS_MAX), word(&schedule.timezone)));
    let next: Vec<String> = schedule.next.iter().map(|next| word(next)).collect();
    let next = if next.is_empty() { "never".to_owned() } else { next.join(", ") };
    line("next", &if schedule.enabled { next } else { format!("none while disabled; else {next}") });
    let catch_up = if schedule.catch_up { "caught up" } else { "dropped" };
    line("overlap", &format!("{}; missed fire times are {catch_up}", word(&schedule.overlap)));
    line(
        "fires",
        &format!(
            "{} started a job, {} left out, {} missed, {} failed",
            count(schedule.fired),
            count(schedule.skipped),
            count(schedule.missed),
            count(schedule.failed)
        ),
    );
    if let (Some(job), Some(at)) = (&schedule.last_job, schedule.last_fire_at_us) {
        let age = length(table.now.since(Timestamp(at)).0);
        line("last", &format!("job {}, {age} ago", word(job)));
    }
    if schedule.waiting_at_us.is_some() {
        line("waits", "a fire waits for the end of that job");
    }
    if !schedule.problem.is_empty() {
        line("problem", &shown(&schedule.problem, SENTENCE_CHARS_MAX));
    }
    out
}
