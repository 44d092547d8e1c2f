//! A closed group, as the recorder takes it: everything its rows say, in domain types.

use rollout::checkpoint::CheckpointId;
use rollout::failure::{Failure, Status};
use rollout::outcome::{Outcome, Reward};
use rollout::plan::{Split, StepKind};
use rollout::state::GroupClosedAs;
use rollout::{GroupId, Millis, Name, NodeId, RolloutId, Timestamp};

/// One group becomes exactly one record batch in every table.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRecord {
    pub group: GroupId,
    /// One number per group, strictly increasing within the job, given when the group closes.
    pub seq: i64,
    /// The seq it closed under before, if it was open again since: all its rows are here anew.
    pub replaces: Option<i64>,
    pub task_id: String,
    pub split: Split,
    pub epoch: u32,
    pub group_size: u32,
    /// Members with a valid reward at close.
    pub group_valid: u32,
    pub closed_as: GroupClosedAs,
    pub provenance: Provenance,
    /// The task columns named by `output.columns`, as one JSON object; none if none are named.
    pub task_row: Option<String>,
    pub members: Vec<MemberRecord>,
    /// Every attempt of the steps that the group ran once, oldest first. They are of no rollout.
    pub shared: Vec<StepRecord>,
}

/// The same for every row of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    pub spec_hash: String,
    /// `sha256:<hex>` of the row's canonical JSON.
    pub task_hash: String,
    /// Of the built-in empty rules while jobs have none.
    pub rules_hash: String,
    pub yard_id: String,
    pub executor_version: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MemberRecord {
    pub rollout: RolloutId,
    pub superseded: bool,
    pub status: Status,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    /// None iff the reward is not valid.
    pub reward: Option<Reward>,
    /// Admission, first start of a command, end. A rollout cancelled before start has all three
    /// equal.
    pub created_at: Timestamp,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// Every attempt of every step, oldest first.
    pub steps: Vec<StepRecord>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    pub step_name: Name,
    pub kind: StepKind,
    pub attempt: u32,
    /// None where nothing ran: the result was stored under the step's key.
    pub node: Option<NodeId>,
    /// From ready to taken by the node.
    pub queue: Option<Millis>,
    /// What its new sandbox started with; none for the image as it is, or a live sandbox.
    pub base: Option<CheckpointId>,
    pub outcome: Outcome,
}
