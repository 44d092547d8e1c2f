//! `--output quiet`: ids and nothing else, one a line, for scripts.

use executor::doctor::{Report, Status};
use rollout::text::shown;

use super::Output;
use crate::commands::matrix::CellJob;
use crate::spec::{DryRun, Finding};
use crate::summary::Summary;
use crate::view::{
    Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Copied, Explanation, Exported, FiredSchedule,
    ImageRow, ImageUsage, Job, Killed, Lifecycle, Node, Retried, Rollout, RolloutSteps, Sandbox, Schedule,
    Scheduled, Submitted,
};

/// The most characters of an id from outside.
const ID_CHARS_MAX: usize = 256;
/// Of a path: what Linux takes.
const PATH_CHARS_MAX: usize = 4096;

#[derive(Debug)]
pub struct Quiet;

fn column<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    ids.map(|id| shown(id, ID_CHARS_MAX) + "\n").collect()
}

impl Output for Quiet {
    fn jobs(&self, jobs: &[Job]) -> String {
        column(jobs.iter().map(|job| job.id.as_str()))
    }
    /// The state: the one thing a script polls for.
    fn job(&self, job: &Job) -> String {
        column(std::iter::once(job.state.as_str()))
    }
    fn rollouts(&self, rollouts: &[Rollout]) -> String {
        column(rollouts.iter().map(|rollout| rollout.id.as_str()))
    }
    fn steps(&self, steps: &RolloutSteps) -> String {
        column(steps.steps.iter().map(|step| step.step.as_str()))
    }
    fn nodes(&self, nodes: &[Node]) -> String {
        column(nodes.iter().map(|node| node.name.as_str()))
    }
    fn checkpoints(&self, checkpoints: &[Checkpoint]) -> String {
        column(checkpoints.iter().map(|checkpoint| checkpoint.id.as_str()))
    }
    /// Its layers.
    fn checkpoint(&self, checkpoint: &CheckpointDetail) -> String {
        column(checkpoint.layers.iter().map(|layer| layer.id.as_str()))
    }
    fn checkpoint_diff(&self, diff: &CheckpointDiff) -> String {
        diff.changes.iter().map(|change| shown(&change.path, PATH_CHARS_MAX) + "\n").collect()
    }
    /// Bytes that went, or would go.
    fn collected(&self, collected: &Collected) -> String {
        format!("{}\n", collected.layers.bytes + collected.unnamed.bytes)
    }
    fn sandboxes(&self, sandboxes: &[Sandbox]) -> String {
        column(sandboxes.iter().map(|sandbox| sandbox.id.as_str()))
    }
    /// The state: the one thing a script polls for.
    fn sandbox(&self, sandbox: &Sandbox) -> String {
        column(std::iter::once(sandbox.state.as_str()))
    }
    fn made(&self, sandboxes: &[Sandbox]) -> String {
        self.sandboxes(sandboxes)
    }
    fn killed(&self, killed: &Killed) -> String {
        column(killed.killed.iter().map(String::as_str))
    }
    fn lifecycle(&self, lifecycle: &Lifecycle) -> String {
        column(std::iter::once(lifecycle.rung.as_str()))
    }
    /// Bytes.
    fn copied(&self, copied: &Copied) -> String {
        format!("{}\n", copied.bytes)
    }
    fn checkpoint_taken(&self, id: &str) -> String {
        column(std::iter::once(id))
    }
    /// How many are run again.
    fn retried(&self, retried: &Retried) -> String {
        format!("{}\n", retried.retried)
    }
    fn exported(&self, exported: &[Exported]) -> String {
        exported.iter().map(|copy| shown(&copy.path, PATH_CHARS_MAX) + "\n").collect()
    }
    /// What a spec writes to use them.
    fn images(&self, images: &[ImageRow]) -> String {
        images.iter().map(|image| shown(&image.reference, PATH_CHARS_MAX) + "\n").collect()
    }
    /// Bytes.
    fn image_usage(&self, usage: &ImageUsage) -> String {
        format!("{}\n", usage.bytes)
    }
    /// The most important sentence.
    fn explanation(&self, explanation: &Explanation) -> String {
        explanation
            .lines
            .first()
            .map(|line| shown(line, super::table::SENTENCE_CHARS_MAX) + "\n")
            .unwrap_or_default()
    }
    fn submitted(&self, submitted: &Submitted) -> String {
        column(std::iter::once(submitted.job.id.as_str()))
    }
    fn scheduled(&self, scheduled: &Scheduled) -> String {
        column(std::iter::once(scheduled.schedule.id.as_str()))
    }
    fn schedules(&self, schedules: &[Schedule]) -> String {
        column(schedules.iter().map(|schedule| schedule.id.as_str()))
    }
    /// Whether it is enabled: the one thing that is switched.
    fn schedule(&self, schedule: &Schedule) -> String {
        column(std::iter::once(if schedule.enabled { "enabled" } else { "disabled" }))
    }
    /// The job, if one started.
    fn fired_schedule(&self, fired: &FiredSchedule) -> String {
        column(fired.job.as_deref().into_iter())
    }
    fn removed_schedule(&self, id: &str) -> String {
        column(std::iter::once(id))
    }
    fn cells(&self, cells: &[CellJob]) -> String {
        column(cells.iter().filter_map(|cell| cell.job.as_ref()).map(|job| job.id.as_str()))
    }
    fn summary(&self, summary: &Summary) -> String {
        column(std::iter::once(summary.job.id.as_str()))
    }
    fn findings(&self, _findings: &[Finding], _rendered: &str) -> String {
        String::new()
    }
    fn dry_run(&self, _dry_run: &DryRun) -> String {
        String::new()
    }
    /// What does not work.
    fn doctor(&self, report: &Report) -> String {
        let missing = report.checks.iter().filter(|check| check.status == Status::Missing);
        column(missing.map(|check| check.name))
    }
}
