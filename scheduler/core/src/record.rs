//! What the core wants stored. One batch of records is one transaction.

use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::failure::{Failure, Status};
use rollout::outcome::{Outcome, Reward};
use rollout::result_key::ResultName;
use rollout::state::{GroupClosedAs, JobState, StepState};
use rollout::{
    AttemptId, FailureCode, Generation, GroupId, IncarnationId, JobId, NodeId, RolloutId, StepIndex,
    Timestamp,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// `cancel_code` is set from `Cancelling` on, `hold` while `Held`.
    JobState {
        job: JobId,
        state: JobState,
        reason: String,
        hold: Option<Hold>,
        cancel_code: Option<FailureCode>,
        /// Why rows of closed groups cannot be written in this life of the scheduler.
        unrecorded: Option<String>,
    },
    /// Groups `first..first + count` were admitted; the job's cursor stands behind them.
    GroupsAdmitted {
        job: JobId,
        first: u32,
        count: u32,
    },
    /// Commit before command: an attempt exists from here on.
    AttemptPlaced {
        attempt: AttemptId,
        generation: Generation,
        node: NodeId,
        incarnation: IncarnationId,
        /// Continues in the sandbox of this attempt.
        continue_from: Option<AttemptId>,
        /// What its new sandbox starts with.
        base: Option<CheckpointId>,
    },
    AttemptStarted {
        attempt: AttemptId,
        generation: Generation,
        started_at: Timestamp,
    },
    /// The accepted end of an attempt, from its node or (`node_lost`, `cancelled` before any
    /// report) from the core.
    AttemptEnded {
        attempt: AttemptId,
        generation: Generation,
        outcome: Box<Outcome>,
        kept: bool,
    },
    /// A placement that the node refused, or handed back as it stopped in order: not an attempt, its
    /// row goes.
    AttemptWithdrawn {
        attempt: AttemptId,
        generation: Generation,
    },
    /// The workspace of an attempt was saved; `ordinal` counts those of one attempt from 0.
    CheckpointTaken {
        attempt: AttemptId,
        ordinal: u32,
        kind: CheckpointKind,
        checkpoint: Arc<Checkpoint>,
    },
    /// Nothing starts from this checkpoint any more: it was superseded, or is not what it was.
    CheckpointRemoved {
        attempt: AttemptId,
        ordinal: u32,
        why: String,
    },
    /// What this attempt left is found by all steps with this name for their result.
    ResultStored {
        name: ResultName,
        attempt: AttemptId,
        checkpoint: Arc<Checkpoint>,
    },
    /// Nobody finds it any more: it is bad, or there are too many.
    ResultDropped {
        name: ResultName,
        why: String,
    },
    /// A step is complete with what is stored under its key.
    ResultUsed {
        rollout: RolloutId,
        step: StepIndex,
        name: ResultName,
        checkpoint: Arc<Checkpoint>,
    },
    /// Nothing starts from what this step found: it is bad, or replaced.
    ResultUnused {
        rollout: RolloutId,
        step: StepIndex,
    },
    /// A step's state, when no attempt record implies it (`Waiting` after a chain restart,
    /// `Skipped`, `Cancelled`, `Succeeded` and `Failed` when the step is closed for good).
    StepState {
        rollout: RolloutId,
        step: StepIndex,
        state: StepState,
    },
    /// What a step has to go by beside its attempts, when it changes.
    StepBooks {
        rollout: RolloutId,
        step: StepIndex,
        books: StepBooks,
    },
    /// The `number`-th final end of a step in its job, as the breaker counts it.
    BreakerEnd {
        job: JobId,
        end: BreakerEnd,
    },
    /// This rollout begins in the place of the one of the round before, which is superseded.
    RolloutRefilled {
        rollout: RolloutId,
    },
    /// It is to be run again, as soon as there is room.
    RetryAsked {
        rollout: RolloutId,
    },
    /// It is not asked for any more: another took its place, or nothing is to be done.
    RetrySettled {
        rollout: RolloutId,
    },
    /// A sealed group is open again; it will close under another seq.
    GroupReopened {
        group: GroupId,
    },
    RolloutEnded {
        rollout: RolloutId,
        end: RolloutEnd,
    },
    GroupClosed {
        group: GroupId,
        seq: i64,
        closed_as: GroupClosedAs,
        valid: u32,
    },
    /// A node's lease, of its current incarnation. One row per node.
    Lease {
        node: NodeId,
        incarnation: IncarnationId,
        state: LeaseState,
    },
    /// A late or foreign report changed nothing.
    Fenced {
        node: NodeId,
        incarnation: IncarnationId,
        generation: Generation,
        attempt: AttemptId,
    },
}

/// Why a job is held, which says what lifts the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// No attached node can or will ever hold a step; lifted when one attaches.
    NoNode,
    /// A step fails in bulk.
    Breaker,
    /// Nothing is left but closed groups whose rows cannot be written; lifted by a restart, which
    /// tries again.
    Unrecorded,
}

impl Hold {
    pub const ALL: [Self; 3] = [Self::NoNode, Self::Breaker, Self::Unrecorded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoNode => "no_node",
            Self::Breaker => "breaker",
            Self::Unrecorded => "unrecorded",
        }
    }
}

/// Of a step that waits or has waited without an attempt to show for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepBooks {
    /// Workspaces to go on from that this step found gone or bad.
    pub chain_breaks: u32,
    /// Placements that nodes refused.
    pub refusals: u32,
    /// Until when it waits, on the wall: the boot clock may be another one after a restart.
    pub not_before: Option<Timestamp>,
    /// It takes a new sandbox where it was to go on in a live one.
    pub anew: bool,
}

/// When a checkpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointKind {
    /// As the step ended.
    After,
    /// While it ran.
    Every,
}

impl CheckpointKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::After => "after",
            Self::Every => "every",
        }
    }
}

/// Only the last [`BREAKER_WINDOW`](crate::config::BREAKER_WINDOW) of a step matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerEnd {
    pub step: StepIndex,
    /// Counts from 0.
    pub number: u64,
    /// None for an end that does not count against the job.
    pub code: Option<FailureCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    Alive,
    Lost,
}

/// The end of a rollout, once for all.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutEnd {
    pub status: Status,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    /// None iff not valid.
    pub reward: Option<Reward>,
}
