//! What the core wants done, once its records are stored.

use rollout::checkpoint::Checkpoint;
use rollout::outcome::Parked;
use rollout::{AttemptId, FailureCode, Generation, GroupId, IncarnationId, JobId, NodeId};

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Read the rows of groups `first..first + count` and answer with `GroupsExpanded`.
    Expand {
        job: JobId,
        first: u32,
        count: u32,
    },
    Start {
        to: Target,
        attempt: AttemptId,
        /// Continue in the sandbox of this attempt.
        continue_from: Option<AttemptId>,
        /// Keep the sandbox after a successful end for the next step of the chain.
        keep: bool,
        /// The workspace a new sandbox starts with; none: the image as it is.
        base: Option<Box<Checkpoint>>,
        /// A session that was parked goes on.
        parked: Option<Box<Parked>>,
    },
    Kill {
        to: Target,
        attempt: AttemptId,
        code: FailureCode,
        reason: String,
    },
    /// The kept sandbox is not needed any more.
    Release {
        to: Target,
        attempt: AttemptId,
    },
    /// The end is stored (or fenced): the executor may forget it.
    AckEnded {
        to: Target,
        attempt: AttemptId,
    },
    /// Say what digest this image has there: `ImageIdentified`.
    Identify {
        node: NodeId,
        incarnation: IncarnationId,
        image: String,
    },
    /// Read this sealed group and answer with `GroupReopened`.
    Reopen {
        group: GroupId,
    },
    /// Write the rows of this closed group under this `seq`.
    Record {
        group: GroupId,
        seq: i64,
    },
    /// This incarnation is over: close its stream; what it holds kills itself.
    Disconnect {
        node: NodeId,
        incarnation: IncarnationId,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub generation: Generation,
}
