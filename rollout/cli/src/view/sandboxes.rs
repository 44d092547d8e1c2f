//! Sandboxes, as they are printed.

use std::collections::BTreeMap;

use rollout_wire::v1;
use serde::Serialize;

use super::Failure;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    pub id: String,
    /// waiting, starting, running, paused, parked, ended
    pub state: String,
    /// Null while it waits for room or is parked.
    pub node: Option<String>,
    pub image: String,
    pub labels: BTreeMap<String, String>,
    pub created_at_us: i64,
    pub started_at_us: Option<i64>,
    /// Its absolute deadline.
    pub expires_at_us: Option<i64>,
    /// When it ends if nobody calls it until then; null where nobody said so.
    pub idle_expires_at_us: Option<i64>,
    /// How it ended; null of one that lives.
    pub end: Option<SandboxEnd>,
    /// Of one that ended, and not because it was told to.
    pub failure: Option<Failure>,
    /// It was there already: the key was used before.
    pub adopted: bool,
    pub job: String,
}

impl From<v1::Sandbox> for Sandbox {
    fn from(of: v1::Sandbox) -> Self {
        Self {
            id: of.id,
            state: of.state,
            node: Some(of.node).filter(|node| !node.is_empty()),
            image: of.image,
            labels: of.labels,
            created_at_us: of.created_at_us,
            started_at_us: of.started_at_us,
            expires_at_us: of.expires_at_us,
            idle_expires_at_us: of.idle_expires_at_us,
            end: of.end.map(SandboxEnd::from),
            failure: of.failure.map(Failure::from),
            adopted: of.adopted,
            job: of.job,
        }
    }
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxEnd {
    /// idle_timeout, timeout, killed, finished; else the code of its failure
    pub cause: String,
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
    pub ended_at_us: i64,
}

impl From<v1::SandboxEnd> for SandboxEnd {
    fn from(of: v1::SandboxEnd) -> Self {
        Self { cause: of.cause, message: of.message, hint: of.hint, ended_at_us: of.ended_at_us }
    }
}

/// What a request to end sandboxes came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Killed {
    /// Those it ended: one that had ended is not among them.
    pub killed: Vec<String>,
    pub failed: Vec<KillFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KillFailure {
    pub sandbox: String,
    pub code: String,
    pub message: String,
}

impl From<v1::KillSandboxesReply> for Killed {
    fn from(of: v1::KillSandboxesReply) -> Self {
        let failed = of.failed.into_iter().map(|one| KillFailure {
            sandbox: one.sandbox,
            code: one.code,
            message: one.message,
        });
        Self { killed: of.killed, failed: failed.collect() }
    }
}

/// Where a sandbox is on the idle ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lifecycle {
    pub sandbox: String,
    /// running, frozen, reclaimed, parked
    pub rung: String,
    /// Grows with every change.
    pub version: u64,
    /// Really given back, net of what others share.
    pub reclaimed_bytes: u64,
}

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    pub from: String,
    pub to: String,
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub bytes: u64,
    pub left_out: Vec<LeftOut>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub path: String,
    pub why: String,
}
