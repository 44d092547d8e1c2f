//! `--output json`: one document a command, on standard output. ASCII only: a string from outside
//! cannot move the cursor of the terminal that shows it.

use std::io;

use executor::doctor::Report;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter};

use super::Output;
use crate::commands::matrix::CellJob;
use crate::spec::{DryRun, Finding};
use crate::summary::Summary;
use crate::view::{
    Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Copied, Explanation, Exported, FiredSchedule,
    ImageRow, ImageUsage, Job, Killed, Lifecycle, Node, Retried, Rollout, RolloutSteps, Sandbox, Schedule,
    Scheduled, Submitted,
};

#[derive(Debug)]
pub struct Json;

/// Escapes everything that is not printable ASCII.
struct Ascii<F>(F);

impl<F: Formatter> Formatter for Ascii<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        for c in text.chars() {
            if c == ' ' || c.is_ascii_graphic() {
                to.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
    fn write_char_escape<W: ?Sized + io::Write>(&mut self, to: &mut W, escape: CharEscape) -> io::Result<()> {
        self.0.write_char_escape(to, escape)
    }
    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_array(to)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array(to)
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(to, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array_value(to)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}

fn written(value: &impl Serialize, formatter: impl Formatter) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Ascii(formatter));
    // Views are plain structs with text keys, and the sink is memory: neither can fail.
    value.serialize(&mut serializer).expect("a view is always JSON");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("ASCII")
}

/// On one line.
pub fn line(value: &impl Serialize) -> String {
    written(value, serde_json::ser::CompactFormatter)
}

fn document(value: &(impl Serialize + ?Sized)) -> String {
    written(&value, PrettyFormatter::new())
}

impl Output for Json {
    fn jobs(&self, jobs: &[Job]) -> String {
        document(jobs)
    }
    fn job(&self, job: &Job) -> String {
        document(job)
    }
    fn rollouts(&self, rollouts: &[Rollout]) -> String {
        document(rollouts)
    }
    fn steps(&self, steps: &RolloutSteps) -> String {
        document(steps)
    }
    fn nodes(&self, nodes: &[Node]) -> String {
        document(nodes)
    }
    fn checkpoints(&self, checkpoints: &[Checkpoint]) -> String {
        document(checkpoints)
    }
    fn checkpoint(&self, checkpoint: &CheckpointDetail) -> String {
        document(checkpoint)
    }
    fn checkpoint_diff(&self, diff: &CheckpointDiff) -> String {
        document(diff)
    }
    fn collected(&self, collected: &Collected) -> String {
        document(collected)
    }
    fn sandboxes(&self, sandboxes: &[Sandbox]) -> String {
        document(sandboxes)
    }
    fn sandbox(&self, sandbox: &Sandbox) -> String {
        document(sandbox)
    }
    fn made(&self, sandboxes: &[Sandbox]) -> String {
        document(sandboxes)
    }
    fn killed(&self, killed: &Killed) -> String {
        document(killed)
    }
    fn lifecycle(&self, lifecycle: &Lifecycle) -> String {
        document(lifecycle)
    }
    fn copied(&self, copied: &Copied) -> String {
        document(copied)
    }
    fn checkpoint_taken(&self, id: &str) -> String {
        document(&serde_json::json!({ "id": id }))
    }
    fn retried(&self, retried: &Retried) -> String {
        document(retried)
    }
    fn exported(&self, exported: &[Exported]) -> String {
        document(exported)
    }
    fn images(&self, images: &[ImageRow]) -> String {
        document(images)
    }
    fn image_usage(&self, usage: &ImageUsage) -> String {
        document(usage)
    }
    fn explanation(&self, explanation: &Explanation) -> String {
        document(explanation)
    }
    fn submitted(&self, submitted: &Submitted) -> String {
        document(submitted)
    }
    fn scheduled(&self, scheduled: &Scheduled) -> String {
        document(scheduled)
    }
    fn schedules(&self, schedules: &[Schedule]) -> String {
        document(schedules)
    }
    fn schedule(&self, schedule: &Schedule) -> String {
        document(schedule)
    }
    fn fired_schedule(&self, fired: &FiredSchedule) -> String {
        document(fired)
    }
    fn removed_schedule(&self, id: &str) -> String {
        document(&serde_json::json!({ "id": id }))
    }
    fn cells(&self, cells: &[CellJob]) -> String {
        document(cells)
    }
    fn summary(&self, summary: &Summary) -> String {
        document(summary)
    }
    fn findings(&self, findings: &[Finding], _rendered: &str) -> String {
        document(findings)
    }
    fn dry_run(&self, dry_run: &DryRun) -> String {
        document(dry_run)
    }
    fn doctor(&self, report: &Report) -> String {
        document(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_ascii_and_survives() {
        let text = "a\u{1b}[2J \u{9b}\u{202e}\u{7f} \u{1f600} \"\\\n";
        let json = line(&text);
        assert!(json.trim_end().bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
    }
}
