//! The stored state of the unfinished jobs, as the store reads it back. Restart = restore from
//! this. Everything else in the core (ready queues, sums, indexes) is derived.

use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::outcome::Outcome;
use rollout::plan::JobPlan;
use rollout::result_key::ResultName;
use rollout::state::{GroupClosedAs, JobState, StepState};
use rollout::{
    AttemptId, FailureCode, Generation, IncarnationId, JobId, NodeId, RolloutId, StepIndex, Timestamp,
};

use crate::event::ExpandedGroup;
use crate::record::{BreakerEnd, CheckpointKind, Hold, LeaseState, RolloutEnd, StepBooks};
use crate::totals::Totals;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Stored under a key, oldest first.
    pub results: Vec<ResultSnapshot>,
    pub jobs: Vec<JobSnapshot>,
    pub nodes: Vec<NodeSnapshot>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResultSnapshot {
    pub name: ResultName,
    pub checkpoint: Arc<Checkpoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobSnapshot {
    pub job: JobId,
    pub plan: Arc<JobPlan>,
    pub state: JobState,
    pub reason: String,
    /// Why it is held, if it is.
    pub hold: Option<Hold>,
    /// Rows of it could not be written.
    pub unrecorded: bool,
    /// Why a job that is cancelling was cancelled (`cancelled` or `job_timeout`).
    pub cancel_code: FailureCode,
    pub groups_total: u32,
    /// Groups below this were admitted.
    pub next_group: u32,
    /// The next `seq` to give.
    pub next_seq: i64,
    pub created_at: Timestamp,
    /// Groups admitted and not sealed; sealed ones are only counted.
    pub groups: Vec<GroupSnapshot>,
    pub groups_sealed: u32,
    /// Rollouts that wait to be run again.
    pub retries: Vec<RolloutId>,
    /// The last final ends of each step, oldest first.
    pub breaker_ends: Vec<BreakerEnd>,
    /// Sums over every ended rollout and closed group, sealed ones included.
    pub totals: Totals,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GroupSnapshot {
    pub index: u32,
    pub expanded: ExpandedGroup,
    /// Closed under this seq, not sealed yet.
    pub closed: Option<(i64, GroupClosedAs)>,
    /// Replaced ones too; and, under [`RolloutId::shared`], what the steps did that the group runs
    /// once.
    pub rollouts: Vec<RolloutSnapshot>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RolloutSnapshot {
    pub rollout: RolloutId,
    pub end: Option<RolloutEnd>,
    /// Explicit states (records `StepState`); a step without one is derived from its attempts.
    pub steps: Vec<(StepIndex, StepState)>,
    /// All of them, oldest first.
    pub attempts: Vec<AttemptSnapshot>,
    /// Generations given to attempts that were withdrawn: the next one is above these too.
    pub generations: Vec<(StepIndex, Generation)>,
    pub books: Vec<(StepIndex, StepBooks)>,
    /// Those that are not removed, in the order they were taken.
    pub checkpoints: Vec<CheckpointSnapshot>,
    /// What steps found under their keys.
    pub results: Vec<(StepIndex, Arc<Checkpoint>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointSnapshot {
    pub attempt: AttemptId,
    pub ordinal: u32,
    pub kind: CheckpointKind,
    pub checkpoint: Arc<Checkpoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttemptSnapshot {
    pub attempt: AttemptId,
    pub generation: Generation,
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub continue_from: Option<AttemptId>,
    pub base: Option<CheckpointId>,
    /// Its sandbox was ready.
    pub started: bool,
    /// None while it is placed or running.
    pub outcome: Option<Box<Outcome>>,
    pub kept: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSnapshot {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub lease: LeaseState,
}
