//! Sandboxes for people.

use std::fmt::Write as _;

use rollout::Timestamp;
use rollout::text::{shown, shown_line};

use super::human::{count, grid_in, length, plural, size};
use super::report::label;
use super::table::{SENTENCE_CHARS_MAX, Table};
use crate::error::lines;
use crate::view::{Copied, Lifecycle, Sandbox};

/// The most characters of an id, a state or a node.
const WORD_CHARS_MAX: usize = 256;

pub fn list(table: &Table, sandboxes: &[Sandbox]) -> String {
    let row = |sandbox: &Sandbox| {
        vec![
            sandbox.id.clone(),
            state(sandbox),
            sandbox.image.clone(),
            table.age(Some(sandbox.created_at_us)),
            left(table, sandbox),
            labels(sandbox),
        ]
    };
    let rows: Vec<_> = sandboxes.iter().map(row).collect();
    grid_in(table.columns, "", &["SANDBOX", "STATE", "IMAGE", ">AGE", ">LEFT", "LABELS"], &rows)
}

/// Until the first of its deadlines.
fn left(table: &Table, sandbox: &Sandbox) -> String {
    let first = sandbox.expires_at_us.into_iter().chain(sandbox.idle_expires_at_us).min();
    match first {
        Some(at) if sandbox.state != "ended" => until(table, at),
        _ => "-".to_owned(),
    }
}

fn until(table: &Table, at_us: i64) -> String {
    length(Timestamp(at_us).since(table.now).0)
}

/// Until each of its deadlines.
fn both_left(table: &Table, sandbox: &Sandbox) -> String {
    match (sandbox.expires_at_us, sandbox.idle_expires_at_us) {
        (Some(at), Some(idle)) if sandbox.state != "ended" && idle < at => {
            format!("{} without a call, else {}", until(table, idle), until(table, at))
        }
        _ => left(table, sandbox),
    }
}

/// With why it ended.
fn state(sandbox: &Sandbox) -> String {
    match &sandbox.end {
        Some(end) => format!("{}: {}", sandbox.state, end.cause),
        None => sandbox.state.clone(),
    }
}

fn labels(sandbox: &Sandbox) -> String {
    let pairs: Vec<_> = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "-".to_owned() } else { pairs.join(",") }
}

pub fn one(table: &Table, sandbox: &Sandbox) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| label(table.columns, &mut out, name, text);
    line("sandbox", &shown(&sandbox.id, WORD_CHARS_MAX));
    line("state", &shown(&sandbox.state, WORD_CHARS_MAX));
    if let Some(failure) = &sandbox.failure {
        let message = lines(&failure.message).join("\n");
        line("error", &format!("{} ({}): {message}", shown(&failure.code, 64), shown(&failure.domain, 64)));
    }
    if let Some(end) = &sandbox.end {
        // The words of a failure stand above.
        let words = match &sandbox.failure {
            Some(_) => String::new(),
            None => format!(": {}", shown_line(&end.message, SENTENCE_CHARS_MAX)),
        };
        line("why", &format!("{}{words}", shown(&end.cause, WORD_CHARS_MAX)));
        if !end.hint.is_empty() {
            line("hint", &shown_line(&end.hint, SENTENCE_CHARS_MAX));
        }
    }
    let nowhere = match sandbox.state.as_str() {
        "parked" => "parked",
        "ended" => "none",
        _ => "none yet",
    };
    line("node", &shown(sandbox.node.as_deref().unwrap_or(nowhere), WORD_CHARS_MAX));
    line("image", &shown(&sandbox.image, SENTENCE_CHARS_MAX));
    line("labels", &shown_line(&labels(sandbox), SENTENCE_CHARS_MAX));
    line("age", &table.age(Some(sandbox.created_at_us)));
    line("left", &both_left(table, sandbox));
    line("job", &shown(&sandbox.job, WORD_CHARS_MAX));
    out
}

pub fn lifecycle(table: &Table, lifecycle: &Lifecycle) -> String {
    let mut out = String::new();
    label(table.columns, &mut out, "sandbox", &shown(&lifecycle.sandbox, WORD_CHARS_MAX));
    label(table.columns, &mut out, "rung", &shown(&lifecycle.rung, WORD_CHARS_MAX));
    label(table.columns, &mut out, "version", &lifecycle.version.to_string());
    if lifecycle.reclaimed_bytes > 0 {
        label(table.columns, &mut out, "freed", &size(lifecycle.reclaimed_bytes));
    }
    out
}

pub fn copied(table: &Table, copied: &Copied) -> String {
    let mut out = String::new();
    let mut what = format!("{} in {}", size(copied.bytes), plural(copied.files, "file"));
    if copied.directories > 0 {
        _ = write!(
            what,
            ", {} made",
            plural(copied.directories, "directory").replace("directorys", "directories")
        );
    }
    if copied.symlinks > 0 {
        _ = write!(what, ", {}", plural(copied.symlinks, "symbolic link"));
    }
    label(table.columns, &mut out, "copied", &what);
    label(table.columns, &mut out, "to", &shown(&copied.to, SENTENCE_CHARS_MAX));
    if !copied.left_out.is_empty() {
        let rows: Vec<_> =
            copied.left_out.iter().map(|one| vec![one.why.clone(), one.path.clone()]).collect();
        _ = write!(out, "\n{}", grid_in(table.columns, "", &["LEFT OUT", "PATH"], &rows));
        _ = writeln!(out, "\n{} left out", count(copied.left_out.len() as u64));
    }
    out
}
