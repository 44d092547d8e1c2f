//! What an attempt reports when it ends. Executors make these, the scheduler stores them, the
//! recorder turns them into rows.

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::quantity::Bytes;
use crate::time::{Millis, Timestamp};

/// The end of one attempt. `failure` is none iff the step did what it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub failure: Option<Failure>,
    /// From the kernel; none if the process never ran, was killed by a signal, or its status is
    /// unknown. A missing exit code stays missing.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The kernel killed a process of the sandbox at its memory limit.
    pub oom: bool,
    /// The executor's deadline ended it. Exit code 124 alone is no proof of a timeout.
    pub timed_out: bool,
    /// Of a session: it ended for want of calls.
    #[serde(default)]
    pub silent: bool,
    pub stdout: Captured,
    pub stderr: Captured,
    pub artifacts: Vec<Artifact>,
    /// Only from graders, and sessions of a job without one.
    pub reward: Option<Reward>,
    pub times: Times,
    pub usage: Usage,
    /// Digest of what the sandbox was based on: `host:<hash>`, `dir:<hash>`, `sha256:<hex>`.
    pub image_digest: String,
    /// The workspace as the step left it, stored.
    pub checkpoint: Option<Checkpoint>,
    /// Of a session: recorded actions.
    #[serde(default)]
    pub actions: Option<u64>,
    /// Of a session whose sandbox ended to go on from `checkpoint` at the next call: nothing of it is
    /// over.
    #[serde(default)]
    pub parked: Option<Box<Parked>>,
}

/// What a session has beside its files while it has no sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Of its recorded actions; none: there were none.
    pub log: Option<StoredLog>,
    /// Who drives it.
    pub claim: Option<ParkedClaim>,
    /// How long it had run by then.
    pub ran: Millis,
    /// From then on until its timeout, and until it has been silent for too long. With a start: from when
    /// it is sent, as both go on while it has no sandbox.
    pub time_left: Millis,
    pub idle_left: Millis,
    /// Of its lifecycle.
    pub version: u64,
}

/// An action log as a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLog {
    /// Hex.
    pub sha256: String,
    pub size: Bytes,
}

/// A claim as it was when its session was parked. It lapses `ttl` later, if no call came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedClaim {
    pub driver: String,
    pub token: String,
    pub ttl: Millis,
}

impl Parked {
    /// From then on until it ends without a call.
    pub fn left(&self) -> Millis {
        self.time_left.min(self.idle_left)
    }
}

impl Outcome {
    /// The end of an attempt whose command never ran, or of which nothing but the reason is known.
    pub fn unmeasured(failure: Failure, times: Times) -> Self {
        Self {
            failure: Some(failure),
            exit_code: None,
            signal: None,
            oom: false,
            timed_out: false,
            silent: false,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts: Vec::new(),
            reward: None,
            times,
            usage: Usage::default(),
            image_digest: String::new(),
            checkpoint: None,
            actions: None,
            parked: None,
        }
    }

    /// What a step has that found its result and ran nothing.
    pub fn found(checkpoint: Checkpoint, times: Times) -> Self {
        Self {
            failure: None,
            exit_code: None,
            signal: None,
            oom: false,
            timed_out: false,
            silent: false,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts: Vec::new(),
            reward: None,
            times,
            usage: Usage::default(),
            image_digest: checkpoint.image.clone(),
            checkpoint: Some(checkpoint),
            actions: None,
            parked: None,
        }
    }
}

impl Times {
    /// Of an attempt nobody measured.
    pub fn at(now: Timestamp) -> Self {
        Self { taken_at: now, started_at: None, ended_at: now, boot: None, run: None, checkpoint: None }
    }
}

/// A captured stream, stored as a blob.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Captured {
    /// sha256 of the stored bytes, hex; none if nothing was written.
    pub sha256: Option<String>,
    pub stored: Bytes,
    /// Bytes the process wrote, kept or not.
    pub written: Bytes,
    /// Output past the cap was dropped and counted.
    pub truncated: bool,
}

/// A declared output, stored as a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub name: String,
    pub media_type: String,
    pub size: Bytes,
    /// Hex.
    pub sha256: String,
}

/// A reward the grader gave: finite, inside `range`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    pub value: f32,
    /// The other keys of the reward file, in its order.
    pub components: Vec<(String, f64)>,
}

/// Points in wall time, for columns. Lengths are measured on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Times {
    /// The executor took the attempt.
    pub taken_at: Timestamp,
    /// The sandbox was ready and the command started; none if it never did.
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub boot: Option<Millis>,
    pub run: Option<Millis>,
    /// Packing and storing of checkpoints, all together.
    pub checkpoint: Option<Millis>,
}

/// None = not measured, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu: Option<Millis>,
    /// As the kernel counts it: cached files are part of it.
    pub memory_peak: Option<Bytes>,
    /// Anonymous memory and files in memory alone, the most that was seen: what nobody can drop.
    #[serde(default)]
    pub memory_held_peak: Option<Bytes>,
    pub disk_peak: Option<Bytes>,
}
