//! Sandboxes that clients created, as jobs of their own.

use std::collections::BTreeMap;

use prost::Message;
use rollout::checkpoint::Checkpoint;
use rollout::failure::Failure;
use rollout::state::JobState;
use rollout::{GroupId, JobId, Millis, NodeId, RolloutId, Timestamp};
use rollout_wire::{from_wire, v1};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::read::JOB_STATES;
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// What a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// What was submitted.
    Rollouts,
    /// The sandbox of a client.
    Sandbox,
}

impl JobKind {
    pub const ALL: [Self; 2] = [Self::Rollouts, Self::Sandbox];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rollouts => "rollouts",
            Self::Sandbox => "sandbox",
        }
    }
}

/// A sandbox of a client as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub job: JobId,
    pub state: JobState,
    /// Why the job is held or was cancelled.
    pub reason: String,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub image: String,
    pub labels: BTreeMap<String, String>,
    pub start_timeout: Millis,
    pub timeout: Millis,
    /// None: it was created before this was stored.
    pub idle_timeout: Option<Millis>,
    /// Where it was placed.
    pub node: Option<NodeId>,
    /// When it was ready.
    pub started_at: Option<Timestamp>,
    pub failure: Option<Failure>,
    /// It ended at its `timeout`, or for want of calls.
    pub timed_out: bool,
    pub silent: bool,
}

impl SandboxRow {
    /// Its one rollout.
    pub const fn rollout(&self) -> RolloutId {
        only_rollout(self.job)
    }
}

/// The rollout of a job that is a sandbox.
pub const fn only_rollout(job: JobId) -> RolloutId {
    RolloutId { group: GroupId { job, index: 0 }, sample: 0, refill: 0 }
}

fn sandbox(row: &SqliteRow) -> Result<SandboxRow, Error> {
    let job: JobId = row::parsed(row, "jobs", "job", &"unknown")?;
    let state = row::text(row, "jobs", "state", &job)?;
    let labels = row::text(row, "sandboxes", "labels", &job)?;
    let millis =
        |column| Ok::<_, Error>(Millis(row::unsigned::<u64>(row, "sandboxes", column, &job)? / 1_000));
    let node = row::optional_text(row, "attempts", "node", &job)?;
    let node = node.map(|node| node.parse().map_err(|e| row::wrong("attempts", "node", &job, e)));
    let idle_timeout = row::optional_signed(row, "sandboxes", "idle_timeout", &job)?;
    let outcome = row::outcome(row, &job)?;
    Ok(SandboxRow {
        job,
        state: row::word("jobs", "state", &job, state, &JOB_STATES, JobState::as_str)?,
        reason: row::text(row, "jobs", "reason", &job)?.to_owned(),
        created_at: Timestamp(row::signed(row, "jobs", "created_at", &job)?),
        finished_at: row::optional_signed(row, "jobs", "finished_at", &job)?.map(Timestamp),
        image: row::text(row, "sandboxes", "image", &job)?.to_owned(),
        labels: serde_json::from_str(labels).map_err(|e| row::wrong("sandboxes", "labels", &job, e))?,
        start_timeout: millis("start_timeout")?,
        timeout: millis("timeout")?,
        idle_timeout: idle_timeout.map(|micros| Millis(micros.unsigned_abs() / 1_000)),
        node: node.transpose()?.map(NodeId),
        started_at: row::optional_signed(row, "attempts", "started_at", &job)?.map(Timestamp),
        failure: row::failure(row, &job)?,
        timed_out: outcome.as_ref().is_some_and(|outcome| outcome.timed_out),
        silent: outcome.as_ref().is_some_and(|outcome| outcome.silent),
    })
}

impl Reads {
    pub async fn sandbox(&self, job: JobId) -> Result<Option<SandboxRow>, Error> {
        let found = sqlx::query(statement!("common/find_sandbox"))
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding a sandbox"))?;
        found.as_ref().map(sandbox).transpose()
    }

    /// Those that have all of `labels`, newest first, older than `before`.
    pub async fn sandboxes(
        &self,
        labels: &BTreeMap<String, String>,
        ended_too: bool,
        before: Option<(Timestamp, JobId)>,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, Error> {
        let (created_at, job) = before.map_or((i64::MAX, String::new()), |(at, job)| (at.0, job.to_string()));
        let text = match ended_too {
            true => statement!("sqlite/list_sandboxes"),
            false => statement!("sqlite/list_live_sandboxes"),
        };
        let rows = sqlx::query(text)
            .bind(created_at)
            .bind(job)
            .bind(serde_json::json!(labels).to_string())
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("listing sandboxes"))?;
        rows.iter().map(sandbox).collect()
    }

    /// What a sandbox started with beside its image.
    pub async fn sandbox_base(&self, job: JobId) -> Result<Option<Checkpoint>, Error> {
        let found = sqlx::query(statement!("common/sandbox_base"))
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("reading what a sandbox starts with"))?;
        let Some(found) = found else { return Ok(None) };
        let bytes: &[u8] = found.try_get("base").map_err(|e| row::wrong("sandboxes", "base", &job, e))?;
        let message = v1::Checkpoint::decode(bytes).map_err(|e| row::wrong("sandboxes", "base", &job, e))?;
        let base = from_wire::checkpoint("base", &message);
        Ok(Some(base.map_err(|e| row::wrong("sandboxes", "base", &job, e))?))
    }
}
