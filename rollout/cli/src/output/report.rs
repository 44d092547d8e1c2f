//! The parts of a report on a job: labelled lines and small tables.

use std::fmt::Write as _;

use rollout::text::{shown, shown_line};

use super::human::{count, figure, grid, grid_in, length, plural, size, wrapped};
use super::table::SENTENCE_CHARS_MAX;
use crate::summary::{Detail, Summary};
use crate::view::{FailureCount, Rewards, StepMemory};

/// The width of the labels at the left.
const LABEL: usize = 10;

/// `text` may have several lines; they are indented below the first, as is what `columns` (0: no
/// bound) does not hold.
pub fn label(columns: usize, out: &mut String, name: &str, text: &str) {
    for (at, line) in wrapped(text, columns.saturating_sub(LABEL)).iter().enumerate() {
        let name = if at == 0 { name } else { "" };
        _ = writeln!(out, "{}", format!("{name:<LABEL$}{line}").trim_end());
    }
}

pub fn rewards(columns: usize, out: &mut String, rewards: &Rewards) {
    let Some(mean) = rewards.mean else {
        return label(columns, out, "rewards", "none");
    };
    let successes = plural(rewards.successes, "success").replace("successs", "successes");
    label(
        columns,
        out,
        "rewards",
        &format!("mean {} over {}, {successes}", figure(mean), count(rewards.count)),
    );
    if !rewards.pass_at_k.is_empty() {
        let rows: Vec<_> = rewards
            .pass_at_k
            .iter()
            .map(|p| vec![p.k.to_string(), format!("{:.3}", p.value), count(p.groups)])
            .collect();
        let table = grid("", &[">K", ">PASS@K", ">GROUPS"], &rows);
        label(0, out, "pass@k", &table);
    }
}

pub fn failures(columns: usize, out: &mut String, failures: &[FailureCount], program: &str) {
    if failures.is_empty() {
        return label(columns, out, "failures", "none");
    }
    label(columns, out, "failures", &plural(failures.iter().map(|f| f.rollouts).sum(), "rollout"));
    let rows: Vec<_> = failures
        .iter()
        .map(|f| vec![f.domain.clone(), f.code.clone(), count(f.rollouts), f.words()])
        .collect();
    out.push_str(&grid_in(columns, "  ", &["DOMAIN", "CODE", ">ROLLOUTS", "FOR EXAMPLE"], &rows));
    out.push_str("  look closer:\n");
    for failure in failures {
        let command = format!("{program} show {}", failure.example_rollout);
        _ = writeln!(out, "  {:<20}{}", shown(&failure.code, 32), shown(&command, 300));
    }
}

/// What steps held, each with what to change.
pub fn memory(columns: usize, out: &mut String, steps: &[StepMemory]) {
    let tell = |step: &StepMemory| {
        let told = shown_line(&format!("{}: {}", step.step, step.told), SENTENCE_CHARS_MAX);
        let advice = step.advice.iter().map(|advice| shown_line(&advice.told, SENTENCE_CHARS_MAX));
        std::iter::once(told).chain(advice).collect::<Vec<_>>()
    };
    let lines: Vec<String> = steps.iter().flat_map(tell).collect();
    label(columns, out, "memory", &lines.join("\n"));
}

pub fn clean(columns: usize, out: &mut String, detail: &Detail) {
    let mut parts: Vec<String> = detail
        .clean_rewards
        .iter()
        .map(|c| format!("{} x {}", count(c.rollouts), figure(c.reward.into())))
        .collect();
    if detail.clean_rewards_other > 0 {
        parts.push(format!("{} lower", count(detail.clean_rewards_other)));
    }
    if !parts.is_empty() {
        label(columns, out, "clean", &format!("rewards of rollouts without a failure: {}", parts.join(", ")));
    }
}

pub fn remarks(columns: usize, out: &mut String, detail: &Detail, program: &str) {
    let mut notes = vec![plural(detail.attempts, "attempt")];
    if detail.retries > 0 {
        notes[0] += &format!(", {} of them retries", count(detail.retries));
    }
    if let Some(peak) = detail.memory_peak_bytes {
        notes[0] += &format!("; largest memory peak {}", size(peak));
    }
    if let Some(example) = &detail.capture_truncated_example {
        notes.push(format!(
            "capture_truncated: {} wrote more than is kept, which is no failure ({} show {})",
            plural(detail.capture_truncated, "rollout"),
            program,
            shown(example, 64)
        ));
    }
    label(columns, out, "notes", &notes.join("\n"));
}

pub fn time(summary: &Summary) -> String {
    let mut text = format!("wall {}", length(summary.wall_ms));
    if let Some(cpu) = summary.detail.as_ref().and_then(|detail| detail.cpu_ms) {
        text += &format!(", CPU {} in sandboxes", length(cpu));
    }
    if let Some(cpu) = summary.yard_cpu_ms {
        text += &format!(", {} in the yard itself", length(cpu));
    }
    text
}
