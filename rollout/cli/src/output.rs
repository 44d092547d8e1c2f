//! The one place that knows how data looks: three renderers behind one trait. They return text
//! and do no input or output, so that each is a table of snapshots.

pub mod human;
pub mod json;
mod keeping;
pub mod quiet;
mod report;
mod sandboxes;
mod schedules;
pub mod table;

use executor::doctor::Report;
use rollout::Timestamp;

use crate::args::OutputFormat;
use crate::commands::matrix::CellJob;
use crate::spec::{DryRun, Finding};
use crate::summary::Summary;
use crate::view::{
    Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Copied, Explanation, Exported, FiredSchedule,
    ImageRow, ImageUsage, Job, Killed, Lifecycle, Node, Retried, Rollout, RolloutSteps, Sandbox, Schedule,
    Scheduled, Submitted,
};

/// Renders what a command found. The text ends with a line end, or is empty.
pub trait Output: std::fmt::Debug + Send + Sync {
    fn jobs(&self, jobs: &[Job]) -> String;
    fn job(&self, job: &Job) -> String;
    fn rollouts(&self, rollouts: &[Rollout]) -> String;
    fn steps(&self, steps: &RolloutSteps) -> String;
    fn nodes(&self, nodes: &[Node]) -> String;
    fn checkpoints(&self, checkpoints: &[Checkpoint]) -> String;
    fn checkpoint(&self, checkpoint: &CheckpointDetail) -> String;
    fn checkpoint_diff(&self, diff: &CheckpointDiff) -> String;
    fn collected(&self, collected: &Collected) -> String;
    fn sandboxes(&self, sandboxes: &[Sandbox]) -> String;
    fn sandbox(&self, sandbox: &Sandbox) -> String;
    /// What `sandbox create` and `fork` made.
    fn made(&self, sandboxes: &[Sandbox]) -> String;
    fn killed(&self, killed: &Killed) -> String;
    fn lifecycle(&self, lifecycle: &Lifecycle) -> String;
    fn copied(&self, copied: &Copied) -> String;
    fn checkpoint_taken(&self, id: &str) -> String;
    fn retried(&self, retried: &Retried) -> String;
    fn exported(&self, exported: &[Exported]) -> String;
    fn images(&self, images: &[ImageRow]) -> String;
    fn image_usage(&self, usage: &ImageUsage) -> String;
    fn explanation(&self, explanation: &Explanation) -> String;
    fn submitted(&self, submitted: &Submitted) -> String;
    fn scheduled(&self, scheduled: &Scheduled) -> String;
    fn schedules(&self, schedules: &[Schedule]) -> String;
    fn schedule(&self, schedule: &Schedule) -> String;
    fn fired_schedule(&self, fired: &FiredSchedule) -> String;
    fn removed_schedule(&self, id: &str) -> String;
    /// The jobs of a matrix.
    fn cells(&self, cells: &[CellJob]) -> String;
    fn summary(&self, summary: &Summary) -> String;
    /// Findings of a spec without errors, or with. `rendered` is the form for people.
    fn findings(&self, findings: &[Finding], rendered: &str) -> String;
    fn dry_run(&self, dry_run: &DryRun) -> String;
    fn doctor(&self, report: &Report) -> String;
}

/// `now` is what ages are counted from.
pub fn renderer(format: OutputFormat, now: Timestamp, program: String) -> Box<dyn Output> {
    match format {
        OutputFormat::Table => Box::new(table::Table { now, program, columns: terminal_columns() }),
        OutputFormat::Json => Box::new(json::Json),
        OutputFormat::Quiet => Box::new(quiet::Quiet),
    }
}

/// Of standard output; 0 if it is no terminal.
fn terminal_columns() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map_or(0, |(width, _)| usize::from(width.0))
}

#[cfg(test)]
pub mod fixtures;
#[cfg(test)]
mod tests;
