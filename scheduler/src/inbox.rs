//! What reaches the driver. One bounded queue; heartbeats do not use it (see `link`).

use std::fmt;
use std::sync::Arc;

use rollout::plan::JobPlan;
use rollout::{FailureCode, GroupId, IncarnationId, JobId, NodeId};
use scheduler_core::{Cluster, Event, Now, Record};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::error::Error;
use crate::store::{NewJob, ScheduleChange, ShardRow};

/// Inputs that may wait. Senders past it wait in turn.
pub const INBOX_MAX: usize = 16_384;
/// Inputs of one pass, and so of one commit.
pub const PASS_INPUTS_MAX: usize = 4_096;

/// What is stored, for watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commits {
    /// Of the last commit.
    pub seq: u64,
    /// Jobs that ended since the scheduler started.
    pub jobs_ended: u64,
}

/// Tells connections of one node apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

pub enum Input {
    Event(Event),
    /// What an attached executor holds. No other list of its session comes in until this one is
    /// taken.
    Held {
        node: NodeId,
        event: Event,
        turn: OwnedSemaphorePermit,
    },
    /// What a node said of its work.
    Reported(Reported),
    /// An executor's hello; commands go to this session from here on.
    Attached {
        session: SessionId,
        event: Event,
    },
    /// A session ended, and no other of the same incarnation may have begun since.
    Detached {
        session: SessionId,
        node: NodeId,
        incarnation: IncarnationId,
    },
    Submit(Box<Submission>),
    Retry(Box<crate::retry::Retry>),
    Cancel {
        job: JobId,
        code: FailureCode,
        reason: String,
        /// Whether this cancelled it: it had not ended, and nobody had before.
        done: oneshot::Sender<bool>,
    },
    /// The recorder sealed these groups; answered once the catalogue has their shards.
    Sealed {
        groups: Vec<GroupId>,
        shards: Vec<ShardRow>,
        done: oneshot::Sender<()>,
    },
    /// Schedules that were submitted, switched, removed or left out; answered after the commit.
    Schedule {
        change: ScheduleChange,
        done: oneshot::Sender<()>,
    },
    /// Checkpoints that no open group has, and so the core does not know, are removed from the books.
    RemoveCheckpoints {
        records: Vec<Record>,
        done: oneshot::Sender<()>,
    },
    /// A question to the core, answered between two passes.
    Ask(Question),
}

/// A report, and its part of the bytes its node may have waiting.
pub struct Reported {
    pub event: Event,
    pub bytes: OwnedSemaphorePermit,
}

pub type Question = Box<dyn FnOnce(&Cluster, Now) + Send>;

pub struct Submission {
    pub new_job: NewJob,
    pub plan: Arc<JobPlan>,
    /// An unfinished job of the same spec and table root is as good.
    pub resume: bool,
    /// Of a job that a schedule fired.
    pub fired: Option<Fired>,
    pub reply: oneshot::Sender<Result<Submitted, SubmitRefused>>,
}

/// What is stored with the job of a fire.
pub struct Fired {
    pub change: ScheduleChange,
    /// The job it takes the place of, and why.
    pub replaces: Option<(JobId, String)>,
}

/// Stored, or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    pub job: JobId,
    /// An unfinished job goes on.
    pub resumed: bool,
}

#[derive(Debug)]
pub enum SubmitRefused {
    /// The key belongs to another request.
    KeyInUse {
        job: JobId,
    },
    /// The unfinished job began with another content of this file.
    FileChanged {
        job: JobId,
        path: String,
    },
    Store(Error),
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) | Self::Reported(Reported { event, .. }) => {
                f.debug_tuple("Event").field(event).finish()
            }
            Self::Held { event, .. } => f.debug_tuple("Held").field(event).finish(),
            Self::Attached { session, .. } => f.debug_tuple("Attached").field(session).finish(),
            Self::Detached { session, .. } => f.debug_tuple("Detached").field(session).finish(),
            Self::Submit(submission) => f.debug_tuple("Submit").field(&submission.new_job.job).finish(),
            Self::Retry(retry) => f.debug_tuple("Retry").field(&retry.job).finish(),
            Self::Cancel { job, .. } => f.debug_tuple("Cancel").field(job).finish(),
            Self::Sealed { groups, .. } => f.debug_tuple("Sealed").field(&groups.len()).finish(),
            Self::Schedule { change, .. } => f.debug_tuple("Schedule").field(change).finish(),
            Self::RemoveCheckpoints { records, .. } => {
                f.debug_tuple("RemoveCheckpoints").field(&records.len()).finish()
            }
            Self::Ask(_) => f.write_str("Ask"),
        }
    }
}

/// The sending half.
#[derive(Debug, Clone)]
pub struct Inbox(mpsc::Sender<Input>);

/// The driver has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the scheduler is stopping")]
pub struct Stopping;

impl Inbox {
    pub fn new() -> (Self, mpsc::Receiver<Input>) {
        let (sender, receiver) = mpsc::channel(INBOX_MAX);
        (Self(sender), receiver)
    }

    pub async fn send(&self, input: Input) -> Result<(), Stopping> {
        self.0.send(input).await.map_err(|_| Stopping)
    }

    /// Asks the core and waits for its answer.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Cluster, Now) -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let (reply, answer) = oneshot::channel();
        let ask = Box::new(move |cluster: &Cluster, now: Now| {
            // The asker may be gone; its question is then nobody's.
            let _ = reply.send(question(cluster, now));
        });
        self.send(Input::Ask(ask)).await?;
        answer.await.map_err(|_| Stopping)
    }
}
