//! The books of one incarnation: which attempts it holds, in what state, and what follows from
//! each event. Pure: events in, [`Action`]s out; the agent does them.
//!
//! ```text
//!  start ──admitted──> Preparing ──spawned──> Running ──exited──> Collecting
//!    │                     │                     │                    │
//!    └─refused─> (gone)    └─────────────────────┴───── ended ────────┤
//!                                                                     v
//!                       (gone) <──acked, no sandbox── Ended ──acked, sandbox kept──> Kept
//!                                                       │                             │
//!                                                       └──── continued, released ────┴──> (gone)
//! ```
//! An `Ended` attempt is told again after every attach until it is acknowledged. Of one attempt,
//! only the largest generation counts: a newer start kills what an older one left and begins
//! when that is gone.

use rollout::checkpoint::Checkpoint;
use rollout::failure::FailureCode;
use rollout::outcome::{Outcome, Parked};
use rollout::plan::ResolvedStep;
use rollout::{AttemptId, Bytes, Generation, Timestamp};

mod admission;
mod book;
#[cfg(test)]
mod tests;

pub use book::Book;

/// An attempt to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub attempt: AttemptId,
    pub generation: Generation,
    pub step: ResolvedStep,
    /// Go on in the sandbox this attempt left.
    pub continue_from: Option<AttemptId>,
    /// Keep the sandbox if the step ends well enough for another to go on in it.
    pub keep: bool,
    pub inputs: Vec<Input>,
    /// What a new sandbox starts with; none: the image as it is.
    pub base: Option<Checkpoint>,
    /// A session that was parked at `base` goes on.
    pub parked: Option<Parked>,
}

/// A blob placed in the sandbox before the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub path: String,
    /// It holds files and directories that go below `path`.
    pub tree: bool,
    pub sha256: String,
    pub size: Bytes,
}

/// Which attempt, in which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub attempt: AttemptId,
    pub generation: Generation,
}

/// An order to end an attempt, whatever it is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub code: FailureCode,
    pub reason: String,
    /// Store what it wrote so far. Not when the node is in a hurry.
    pub should_store: bool,
}

/// How far an attempt that runs has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Preparing,
    Running { started_at: Timestamp },
    Collecting { started_at: Timestamp },
}

/// What an executor that was killed held of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Adopted {
    Running {
        started_at: Timestamp,
    },
    /// Not acknowledged, as far as is known.
    Ended {
        outcome: Box<Outcome>,
        kept: bool,
        has_sandbox: bool,
    },
    /// Acknowledged; the sandbox waits.
    Kept,
}

/// What a runner tells on its way.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    Phase(Phase),
    /// The workspace was saved, and the step runs on.
    Saved(Box<Checkpoint>),
}

/// How a runner finished.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    Ended {
        outcome: Box<Outcome>,
        kept: bool,
    },
    /// Nothing happened.
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub class: RefusalClass,
    /// Names the limit, its value and the use.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalClass {
    Busy,
    NeverFits,
    Unhealthy,
    SandboxGone,
    /// A layer to start from cannot be fetched, or is not what it claims to be.
    CheckpointBad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldPhase {
    Running,
    Ended,
    Kept,
}

/// What the agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Start a runner; hand it the kept sandbox of `sandbox_of`.
    Launch {
        order: Box<Order>,
        sandbox_of: Option<AttemptId>,
    },
    /// Tell the runner to end.
    Interrupt {
        at: At,
        kill: Kill,
    },
    /// Destroy the kept sandbox of this attempt.
    Destroy {
        attempt: AttemptId,
    },
    /// Remove the captured output of this attempt from the node.
    Discard {
        at: At,
    },
    Report(Report),
}

/// What the scheduler is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    Started {
        at: At,
        started_at: Timestamp,
    },
    Ended {
        at: At,
        outcome: Box<Outcome>,
        kept: bool,
    },
    Refused {
        at: At,
        refusal: Refusal,
    },
    /// Saved while the step runs on.
    Checkpoint {
        at: At,
        checkpoint: Box<Checkpoint>,
    },
}
