//! `--output table`: for people, readable without colour.

use std::fmt::Write as _;

use executor::doctor::{Capacity, Check, Report, Status};
use rollout::Timestamp;
use rollout::text::{shown, shown_line};

use super::Output;
use super::human::{cores, count, figure, grid_in, length, plural, size, wrapped};
use super::keeping;
use super::report::{clean, failures, label, memory, remarks, rewards, time};
use super::sandboxes;
use super::schedules;
use crate::commands::matrix::CellJob;
use crate::error::lines;
use crate::spec::{DryRun, Finding};
use crate::summary::{Summary, python};
use crate::view::{
    Artifact, Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Copied, Explanation, Exported,
    Failure, FiredSchedule, ImageRow, ImageUsage, Job, Killed, Lifecycle, Node, Outcome, Retried, Rollout,
    RolloutSteps, Sandbox, Schedule, Scheduled, Step, Submitted,
};

/// The most characters of one sentence of an explanation or a failure.
pub const SENTENCE_CHARS_MAX: usize = 500;
/// The most characters of a line of Python: one holds a path.
const PYTHON_LINE_CHARS_MAX: usize = 8_192;

#[derive(Debug)]
pub struct Table {
    pub now: Timestamp,
    /// How to call this program again for the same yard, such as `rollyard --data-dir DIR`.
    pub program: String,
    /// Of the terminal; 0 for a pipe, where nothing is wrapped.
    pub columns: usize,
}

impl Output for Table {
    fn jobs(&self, jobs: &[Job]) -> String {
        let row = |job: &Job| {
            vec![
                job.id.clone(),
                job.name.clone(),
                job.state_now(),
                format!("{}/{}", count(job.rollouts.ended), count(job.rollouts.total)),
                count(job.rollouts.valid),
                count(job.failed_rollouts()),
                job.rewards.mean.map_or_else(|| "-".to_owned(), figure),
                self.age(Some(job.created_at_us)),
            ]
        };
        let rows: Vec<_> = jobs.iter().map(row).collect();
        grid_in(
            self.columns,
            "",
            &["JOB", "NAME", "STATE", ">ENDED", ">VALID", ">FAILED", ">REWARD", ">AGE"],
            &rows,
        )
    }

    fn cells(&self, cells: &[CellJob]) -> String {
        let row = |cell: &CellJob| {
            let job = cell.job.as_ref();
            let of = |text: fn(&Job) -> String| job.map_or_else(|| "-".to_owned(), text);
            vec![
                shown_line(&cell.cell, SENTENCE_CHARS_MAX),
                of(|job| job.id.clone()),
                of(Job::state_now),
                of(|job| format!("{}/{}", count(job.rollouts.ended), count(job.rollouts.total))),
                of(|job| count(job.rollouts.valid)),
                of(|job| job.rewards.mean.map_or_else(|| "-".to_owned(), figure)),
                cell.error.clone().unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = cells.iter().map(row).collect();
        grid_in(self.columns, "", &["CELL", "JOB", "STATE", ">ENDED", ">VALID", ">REWARD", "ERROR"], &rows)
    }

    fn job(&self, job: &Job) -> String {
        let mut out = String::new();
        label(self.columns, &mut out, "job", &format!("{}  {}", shown(&job.name, 63), shown(&job.id, 64)));
        let mut state = shown(&job.state_now(), 64);
        if let Some(reason) = &job.reason {
            state += &format!(": {}", shown_line(reason, SENTENCE_CHARS_MAX));
        }
        label(self.columns, &mut out, "state", &state);
        // Of a cancelled job it is the reason, which the state has told.
        if let Some(message) = job.failure_message.as_ref().filter(|text| job.reason.as_ref() != Some(text)) {
            label(self.columns, &mut out, "error", &lines(message).join("\n"));
        }
        label(self.columns, &mut out, "spec", &short_hash(&job.spec_hash));
        let groups = &job.groups;
        label(
            self.columns,
            &mut out,
            "groups",
            &format!(
                "{} of {} closed, {} in the tables",
                count(groups.closed),
                count(groups.total),
                count(groups.sealed)
            ),
        );
        label(
            self.columns,
            &mut out,
            "rollouts",
            &format!(
                "{} of {} ended, {} with a valid reward; {} and {} ready",
                count(job.rollouts.ended),
                count(job.rollouts.total),
                count(job.rollouts.valid),
                plural(job.steps_running, "step") + " running",
                count(job.steps_ready)
            ),
        );
        rewards(self.columns, &mut out, &job.rewards);
        failures(self.columns, &mut out, &job.failures, &self.program);
        memory(self.columns, &mut out, job.memory.as_deref().unwrap_or_default());
        label(self.columns, &mut out, "tables", &shown_line(&job.table_root, SENTENCE_CHARS_MAX));
        let ended = job.finished_at_us.map_or_else(String::new, |end| {
            format!(", ended after {}", length(Timestamp(end).since(Timestamp(job.created_at_us)).0))
        });
        label(
            self.columns,
            &mut out,
            "time",
            &format!("submitted {} ago{ended}", self.age(Some(job.created_at_us))),
        );
        out
    }

    fn sandboxes(&self, list: &[Sandbox]) -> String {
        sandboxes::list(self, list)
    }

    fn sandbox(&self, sandbox: &Sandbox) -> String {
        sandboxes::one(self, sandbox)
    }

    /// To be pasted, or caught in a variable.
    fn made(&self, list: &[Sandbox]) -> String {
        list.iter().map(|sandbox| shown(&sandbox.id, 256) + "\n").collect()
    }

    fn killed(&self, killed: &Killed) -> String {
        killed.killed.iter().map(|id| shown(id, 256) + "\n").collect()
    }

    fn lifecycle(&self, lifecycle: &Lifecycle) -> String {
        sandboxes::lifecycle(self, lifecycle)
    }

    fn copied(&self, copied: &Copied) -> String {
        sandboxes::copied(self, copied)
    }

    fn checkpoint_taken(&self, id: &str) -> String {
        shown(id, 80) + "\n"
    }

    fn retried(&self, retried: &Retried) -> String {
        let mut out = String::new();
        label(self.columns, &mut out, "again", &plural(retried.retried, "rollout"));
        for other in &retried.not_retried {
            let why = format!("{} {}", count(other.rollouts), shown_line(&other.why, SENTENCE_CHARS_MAX));
            label(self.columns, &mut out, "not", &why);
        }
        if let Some(job) = &retried.job {
            let state = format!("{} is {}", shown(&job.id, 64), shown(&job.state_now(), 64));
            label(self.columns, &mut out, "job", &state);
        }
        out
    }

    fn rollouts(&self, rollouts: &[Rollout]) -> String {
        let row = |rollout: &Rollout| {
            let failure = rollout.failure.as_ref();
            vec![
                rollout.id.clone(),
                rollout.task_id.clone(),
                match rollout.superseded {
                    true => format!("{}, replaced", rollout.status),
                    false => rollout.status.clone(),
                },
                rollout.reward.map_or_else(|| "-".to_owned(), |reward| figure(reward.into())),
                failure.map_or_else(|| "-".to_owned(), |failure| failure.code.clone()),
                failure.map(Failure::words).unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = rollouts.iter().map(row).collect();
        grid_in(self.columns, "", &["ROLLOUT", "TASK", "STATUS", ">REWARD", "FAILURE", "MESSAGE"], &rows)
    }

    fn steps(&self, steps: &RolloutSteps) -> String {
        let dash = || "-".to_owned();
        let row = |step: &Step| {
            let outcome = step.outcome.as_ref();
            vec![
                if step.of_group() { format!("{} [group]", step.step) } else { step.step.clone() },
                step.kind.clone(),
                step.attempt.map_or_else(dash, |attempt| attempt.to_string()),
                step.state.clone(),
                step.node.clone().unwrap_or_else(dash),
                outcome.and_then(|o| o.run_ms).map_or_else(dash, length),
                outcome.and_then(|o| o.cpu_ms).map_or_else(dash, length),
                outcome.and_then(|o| o.memory_peak_bytes).map_or_else(dash, size),
                outcome.map_or_else(dash, end),
                outcome.and_then(|o| o.reward).map_or_else(dash, |reward| figure(reward.into())),
            ]
        };
        let rows: Vec<_> = steps.steps.iter().map(row).collect();
        let heads = ["STEP", "KIND", ">TRY", "STATE", "NODE", ">RUN", ">CPU", ">MEMORY", "END", ">REWARD"];
        let mut out = self.rollout(steps);
        _ = write!(out, "\n{}", grid_in(self.columns, "", &heads, &rows));
        for step in &steps.steps {
            self.notes(&mut out, step);
        }
        self.artifacts(&mut out, steps);
        if let Some(step) = steps.steps.iter().find(|step| step.outcome.is_some()) {
            let target = format!("{}/{}", steps.rollout, step.step);
            _ = writeln!(out, "\nwhat a step wrote: {} logs {}", self.program, shown(&target, 200));
        }
        out
    }

    fn checkpoints(&self, checkpoints: &[Checkpoint]) -> String {
        keeping::checkpoints(self, checkpoints)
    }

    fn checkpoint(&self, checkpoint: &CheckpointDetail) -> String {
        keeping::checkpoint(self, checkpoint)
    }

    fn checkpoint_diff(&self, diff: &CheckpointDiff) -> String {
        keeping::diff(self, diff)
    }

    fn collected(&self, collected: &Collected) -> String {
        keeping::collected(self, collected)
    }

    fn exported(&self, exported: &[Exported]) -> String {
        let row =
            |copy: &Exported| vec![copy.table.clone(), count(copy.rows), size(copy.bytes), copy.path.clone()];
        let rows: Vec<_> = exported.iter().map(row).collect();
        grid_in(self.columns, "", &["TABLE", ">ROWS", ">SIZE", "PATH"], &rows)
    }

    fn images(&self, images: &[ImageRow]) -> String {
        let row = |image: &ImageRow| {
            vec![image.name.clone(), count(image.layers as u64), size(image.bytes), image.reference.clone()]
        };
        let rows: Vec<_> = images.iter().map(row).collect();
        grid_in(self.columns, "", &["IMAGE", ">LAYERS", ">SIZE", "IN A SPEC"], &rows)
    }

    fn image_usage(&self, usage: &ImageUsage) -> String {
        let row = vec![count(usage.images as u64), count(usage.blobs), size(usage.bytes), usage.path.clone()];
        grid_in(self.columns, "", &[">IMAGES", ">BLOBS", ">SIZE", "PATH"], &[row])
    }

    fn nodes(&self, nodes: &[Node]) -> String {
        let row = |node: &Node| {
            let dash = || "-".to_owned();
            let of = |used: Option<u64>, all: Option<u64>, form: fn(u64) -> String| {
                used.zip(all).map_or_else(dash, |(used, all)| format!("{}/{}", form(used), form(all)))
            };
            let load = |milli: u64| format!("{}.{:02}", milli / 1000, milli % 1000 / 10);
            vec![
                node.name.clone(),
                node.state.clone(),
                of(node.cpu_used_milli, node.cpu_milli, cores),
                of(node.memory_used_bytes, node.memory_bytes, size),
                node.memory_available_bytes.map_or_else(dash, size),
                of(node.disk_used_bytes, node.disk_bytes, size),
                of(node.sandboxes.map(u64::from), node.sandboxes_max.map(u64::from), count),
                node.load_milli.map_or_else(dash, load),
                if node.backends.is_empty() { dash() } else { node.backends.join(",") },
                node.version.clone(),
            ]
        };
        let rows: Vec<_> = nodes.iter().map(row).collect();
        let heads = [
            "NODE",
            "STATE",
            ">CPU",
            ">MEMORY",
            ">FREE",
            ">DISK",
            ">SANDBOXES",
            ">LOAD",
            "BACKENDS",
            "VERSION",
        ];
        grid_in(self.columns, "", &heads, &rows)
    }

    fn explanation(&self, explanation: &Explanation) -> String {
        let sentences = explanation.lines.iter().map(|line| shown_line(line, SENTENCE_CHARS_MAX));
        sentences.map(|line| wrapped(&line, self.columns).join("\n  ") + "\n").collect()
    }

    fn submitted(&self, submitted: &Submitted) -> String {
        shown(&submitted.job.id, 64) + "\n"
    }

    fn scheduled(&self, scheduled: &Scheduled) -> String {
        schedules::one(self, &scheduled.schedule)
    }

    fn schedules(&self, schedules: &[Schedule]) -> String {
        schedules::list(self, schedules)
    }

    fn schedule(&self, schedule: &Schedule) -> String {
        schedules::one(self, schedule)
    }

    fn fired_schedule(&self, fired: &FiredSchedule) -> String {
        fired.job.as_ref().map(|job| shown(job, 64) + "\n").unwrap_or_default()
    }

    fn removed_schedule(&self, id: &str) -> String {
        shown(id, 64) + "\n"
    }

    fn summary(&self, summary: &Summary) -> String {
        let job = &summary.job;
        let mut out = String::new();
        label(
            self.columns,
            &mut out,
            "job",
            &format!("{}  {}  {}", shown(&job.name, 63), shown(&job.id, 64), shown(&job.state, 64)),
        );
        if let Some(reason) = job.reason.as_ref().or(job.failure_message.as_ref()) {
            label(self.columns, &mut out, "why", &lines(reason).join("\n"));
        }
        label(
            self.columns,
            &mut out,
            "rollouts",
            &format!(
                "{} of {} ended in {} of {}; {} with a valid reward",
                count(job.rollouts.ended),
                count(job.rollouts.total),
                plural(job.groups.total, "group"),
                job.group_size,
                count(job.rollouts.valid)
            ),
        );
        rewards(self.columns, &mut out, &job.rewards);
        if let Some(detail) = &summary.detail {
            clean(self.columns, &mut out, detail);
        }
        failures(self.columns, &mut out, &job.failures, &self.program);
        match &summary.detail {
            Some(detail) => remarks(self.columns, &mut out, detail, &self.program),
            None => label(
                self.columns,
                &mut out,
                "note",
                &format!(
                    "per-step figures are left out above {} (SUMMARY_ROLLOUTS_MAX)",
                    plural(crate::summary::SUMMARY_ROLLOUTS_MAX as u64, "rollout")
                ),
            ),
        }
        label(self.columns, &mut out, "time", &time(summary));
        label(self.columns, &mut out, "tables", &shown_line(&job.table_root, SENTENCE_CHARS_MAX));
        if job.groups.sealed > 0 {
            label(
                self.columns,
                &mut out,
                "python",
                "this reads them (`pip install datasets/python` of the repository):",
            );
            // As it is pasted: neither indented nor wrapped.
            for line in python(job) {
                _ = writeln!(out, "{}", shown(&line, PYTHON_LINE_CHARS_MAX));
            }
        }
        out
    }

    fn findings(&self, _findings: &[Finding], rendered: &str) -> String {
        rendered.to_owned()
    }

    fn dry_run(&self, dry_run: &DryRun) -> String {
        let mut out = String::new();
        for line in lines(&dry_run.plan.to_string()) {
            let (name, text) = line.split_once(' ').unwrap_or((&line, ""));
            label(self.columns, &mut out, name, text.trim_start());
        }
        if let Some(schedule) = &dry_run.schedule {
            label(self.columns, &mut out, "schedule", &schedule.to_string());
        }
        out
    }

    fn doctor(&self, report: &Report) -> String {
        let status = |status| match status {
            Status::Works => "yes",
            Status::Limited => "limited",
            Status::Missing => "NO",
        };
        let row = |check: &Check| {
            let mut detail = check.detail.clone();
            if let Some(consequence) = check.consequence {
                detail += &format!("; so {consequence}");
            }
            vec![status(check.status).to_owned(), check.name.to_owned(), detail]
        };
        let rows: Vec<_> = report.checks.iter().map(row).collect();
        let mut out = grid_in(self.columns, "", &["WORKS", "WHAT", "DETAIL"], &rows);
        let row = |c: &Capacity| {
            let numbers = [c.limit, c.reserved, c.each, c.sandboxes].map(count);
            [c.ceiling.to_owned()].into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let rows: Vec<_> = report.capacity.iter().map(row).collect();
        _ = write!(
            out,
            "\n{}",
            grid_in(self.columns, "", &["CEILING", ">LIMIT", ">RESERVED", ">EACH", ">SANDBOXES"], &rows)
        );
        let verdict = if report.container() { "can" } else { "CANNOT" };
        _ = writeln!(out, "\nthis host {verdict} run sandboxes");
        out
    }
}

impl Table {
    /// What does not fit in the row of a step: its failure in full, cut captures, artifacts.
    fn notes(&self, out: &mut String, step: &Step) {
        let Some(outcome) = &step.outcome else { return };
        let who = match step.attempt {
            Some(attempt) if attempt > 0 => format!("{}, attempt {attempt}", step.step),
            _ => step.step.clone(),
        };
        let mut say = |text: String| {
            let text = format!("{}: {text}", shown(&who, 80));
            _ = writeln!(out, "\n{}", wrapped(&text, self.columns.saturating_sub(2)).join("\n  "));
        };
        if let Some(failure) = &outcome.failure {
            let message = lines(&failure.words()).join("\n");
            say(format!("{} ({}): {message}", shown(&failure.code, 64), shown(&failure.domain, 64)));
        }
        for (name, stream) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
            if stream.truncated {
                say(format!(
                    "capture_truncated: {} of {} of {name} kept",
                    size(stream.stored_bytes),
                    size(stream.written_bytes)
                ));
            }
        }
    }

    /// The head of a rollout.
    fn rollout(&self, rollout: &RolloutSteps) -> String {
        let mut out = String::new();
        label(self.columns, &mut out, "rollout", &shown(&rollout.rollout, 80));
        label(self.columns, &mut out, "task", &shown_line(&rollout.task_id, SENTENCE_CHARS_MAX));
        let mut status = shown(&rollout.status, 64);
        if let Some(failure) = &rollout.failure {
            status += &format!(": {} ({})", shown(&failure.code, 64), shown(&failure.domain, 64));
        }
        if rollout.superseded {
            status += "; a refill took its place";
        }
        label(self.columns, &mut out, "status", &status);
        let reward = rollout.reward.map_or_else(|| "none".to_owned(), |reward| figure(reward.into()));
        label(self.columns, &mut out, "reward", &reward);
        out
    }

    /// The outputs that were kept, and how to get one.
    fn artifacts(&self, out: &mut String, steps: &RolloutSteps) {
        let of_step = |step: &Step| {
            let artifacts = step.outcome.iter().flat_map(|outcome| outcome.artifacts.clone());
            let (name, attempt) = (step.step.clone(), step.attempt.unwrap_or(0));
            artifacts.map(move |artifact| (name.clone(), attempt, artifact)).collect::<Vec<_>>()
        };
        let found: Vec<(String, u32, Artifact)> = steps.steps.iter().flat_map(of_step).collect();
        let Some((step, _, artifact)) = found.last() else { return };
        let command = format!("{} artifact {}/{step} {} > FILE", self.program, steps.rollout, artifact.name);
        let row = |(step, attempt, artifact): &(String, u32, Artifact)| {
            vec![
                step.clone(),
                attempt.to_string(),
                artifact.name.clone(),
                size(artifact.size_bytes),
                artifact.sha256.clone(),
            ]
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        let heads = ["STEP", ">TRY", "OUTPUT", ">SIZE", "SHA256"];
        _ = write!(out, "\n{}", grid_in(self.columns, "", &heads, &rows));
        _ = writeln!(out, "\nto get an output: {}", shown(&command, 400));
    }

    pub(super) fn age(&self, at_us: Option<i64>) -> String {
        at_us.map_or_else(|| "-".to_owned(), |at| length(self.now.since(Timestamp(at)).0))
    }
}

/// Enough of a hash to tell it from others; all of it is in JSON.
fn short_hash(hash: &str) -> String {
    const KEPT_CHARS: usize = "sha256:".len() + 12;
    let whole = shown(hash, 80);
    whole
        .get(..KEPT_CHARS)
        .filter(|start| start.len() < whole.len())
        .map_or(whole.clone(), |start| format!("{start}..."))
}

/// How an attempt ended, in a word or two.
fn end(outcome: &Outcome) -> String {
    match (&outcome.failure, outcome.exit_code, outcome.signal) {
        (Some(failure), _, _) => failure.code.clone(),
        (None, Some(code), _) => format!("exit {code}"),
        (None, None, Some(signal)) => format!("signal {signal}"),
        (None, None, None) => "ended".to_owned(),
    }
}
