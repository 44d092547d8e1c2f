//! What the shell tells the core.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollout::checkpoint::Checkpoint;
use rollout::outcome::Outcome;
use rollout::plan::JobPlan;
use rollout::quantity::Request;
use rollout::result_key::ResultKey;
use rollout::{
    AttemptId, BackendKind, Bytes, FailureCode, Generation, GroupId, IncarnationId, JobId, Millis, NodeId,
    Resources, RolloutId, StepIndex, Timestamp,
};

use crate::snapshot::{GroupSnapshot, JobSnapshot};

/// Something that happened. Late, duplicate and stale events are normal: they have a name
/// (`Record::Fenced`), are counted, and change nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    JobSubmitted {
        job: JobId,
        plan: Arc<JobPlan>,
        /// Groups the job expands to: rows x epochs.
        groups_total: u32,
        created_at: Timestamp,
    },
    /// Cancelled by a caller, or by the job's own `timeout`.
    JobCancelled {
        job: JobId,
        code: FailureCode,
        reason: String,
    },
    /// Answer to [`Command::Expand`](crate::Command::Expand): groups `first..first + groups.len()`.
    GroupsExpanded {
        job: JobId,
        first: u32,
        groups: Vec<ExpandedGroup>,
    },
    /// An executor said hello. A new incarnation of a known node ends the old one.
    NodeAttached {
        node: NodeId,
        incarnation: IncarnationId,
        capacity: Capacity,
        held: Vec<Held>,
    },
    /// Its stream broke; its lease goes on until the deadline.
    NodeDetached {
        node: NodeId,
        incarnation: IncarnationId,
    },
    /// Everything an attached node holds, in order with its other reports.
    Held {
        node: NodeId,
        incarnation: IncarnationId,
        held: Vec<Held>,
    },
    Heartbeat {
        node: NodeId,
        incarnation: IncarnationId,
        measured: Measured,
    },
    /// The lease row of this incarnation is not in the store (found by reconcile): as if the
    /// lease had ended.
    LeaseMissing {
        node: NodeId,
        incarnation: IncarnationId,
    },
    AttemptStarted {
        at: Fence,
        attempt: AttemptId,
        started_at: Timestamp,
    },
    AttemptEnded {
        at: Fence,
        attempt: AttemptId,
        outcome: Box<Outcome>,
        kept: bool,
    },
    AttemptRefused {
        at: Fence,
        attempt: AttemptId,
        class: RefusalClass,
        message: String,
    },
    /// The workspace was saved while its step runs on.
    CheckpointTaken {
        at: Fence,
        attempt: AttemptId,
        checkpoint: Box<Checkpoint>,
    },
    /// Somebody calls a session that may be parked.
    Thaw {
        rollout: RolloutId,
        step: StepIndex,
    },
    /// Answer to [`Command::Identify`](crate::Command::Identify): the digest of an image on a node;
    /// none if it is not there.
    ImageIdentified {
        node: NodeId,
        incarnation: IncarnationId,
        image: String,
        digest: Option<String>,
    },
    /// Somebody wants these rollouts run again. `reopened` is their job as it is stored, if it had
    /// ended; `lift` ends a hold by the breaker.
    RetryAsked {
        job: JobId,
        reopened: Option<Box<JobSnapshot>>,
        rollouts: Vec<RolloutId>,
        lift: bool,
    },
    /// Answer to [`Command::Reopen`](crate::Command::Reopen); none if the group cannot be read.
    GroupReopened {
        group: GroupId,
        stored: Option<Box<GroupSnapshot>>,
    },
    /// The recorder sealed the rows of these groups.
    GroupsSealed {
        groups: Vec<GroupId>,
    },
    /// Rows of closed groups of the job cannot be written. It stays unfinished for the next start
    /// to try again, unless it is cancelled.
    GroupsUnrecorded {
        job: JobId,
        problem: String,
        /// Nothing else of the job is left.
        last: bool,
    },
}

/// Who speaks: reports of another incarnation or an older generation are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub generation: Generation,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExpandedGroup {
    /// Per step, in plan order, where a quantity was looked up in the row; none: as in the plan.
    pub resources: Option<Vec<Resources>>,
    /// Per step, in plan order, `start_timeout`, `timeout` and `grace` together, where one was looked
    /// up in the row; none: as in the plan.
    pub spans: Option<Vec<Millis>>,
    /// The row cannot be run (a looked-up quantity is bad): every member ends with this.
    pub broken: Option<rollout::failure::Failure>,
    /// Of the steps that have a key.
    pub keys: Vec<StepKeys>,
    /// What steps that work from their image start with instead of the image as it is.
    pub base: Option<Arc<Checkpoint>>,
}

/// The keys of a step's result: one for all samples, or one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepKeys {
    pub step: StepIndex,
    pub keys: Vec<Arc<ResultKey>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// What can be packed.
    pub total: Request,
    /// Sandboxes at once.
    pub sandboxes: u32,
    /// The largest `limit.disk` the node can enforce.
    pub disk_limit_max: Bytes,
    /// What makes its sandboxes.
    pub backends: BTreeSet<BackendKind>,
}

/// What the node measured now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    pub memory_available: Bytes,
    pub disk_available: Bytes,
    pub load_milli: u64,
    pub sandboxes: u32,
    /// Attempts held.
    pub held: u32,
    pub credit: CreationCredit,
}

/// How many sandboxes a node can make, as it measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreationCredit {
    /// At once, out of what is ready.
    pub burst: u32,
    /// After that, in 1,000 seconds; 0: not known, and the node is not paced.
    pub per_s_milli: u64,
}

/// An attempt an executor holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub attempt: AttemptId,
    pub generation: Generation,
    pub phase: HeldPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldPhase {
    Running,
    /// Ended, not acknowledged: its `AttemptEnded` was sent, or follows a hello.
    Ended,
    /// Ended and acknowledged; the sandbox waits for the next step of the chain.
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalClass {
    Busy,
    NeverFits,
    Unhealthy,
    SandboxGone,
    /// A layer to start from cannot be fetched there, or is not what it claims to be.
    CheckpointBad,
}
