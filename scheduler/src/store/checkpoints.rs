//! Stored checkpoints as people see them.

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::{AttemptId, JobId, RolloutId, Timestamp};
use sqlx::sqlite::SqliteRow;

use super::{Reads, failed, row, statement};
use crate::error::Error;

/// Which checkpoints are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Yard,
    Job(JobId),
    Rollout(RolloutId),
}

/// A checkpoint by the attempt it was taken of, and its number there from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    pub attempt: AttemptId,
    pub ordinal: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointRow {
    pub taken: Taken,
    pub checkpoint: Checkpoint,
    /// `after` or `every`.
    pub kind: String,
    pub packed_bytes: u64,
    pub content_bytes: u64,
    pub taken_at: Timestamp,
    pub removed: Option<(Timestamp, String)>,
    /// When it goes; none while its group or its job is open, and once it is removed.
    pub expires_at: Option<Timestamp>,
    /// Its group is open: a step may start from it.
    pub needed: bool,
}

/// An attempt that started from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRow {
    pub attempt: AttemptId,
    pub ended_at: Option<Timestamp>,
}

pub(super) fn attempt(row: &SqliteRow, table: &'static str) -> Result<AttemptId, Error> {
    let job: JobId = row::parsed(row, table, "job", &"unknown")?;
    let rollout = row::rollout(row, table, row::group(row, table, job)?)?;
    row::attempt_in(row, table, rollout)
}

pub(super) fn taken(row: &SqliteRow) -> Result<Taken, Error> {
    let attempt = attempt(row, "checkpoints")?;
    Ok(Taken { attempt, ordinal: row::unsigned(row, "checkpoints", "ordinal", &attempt)? })
}

fn checkpoint(row: &SqliteRow) -> Result<CheckpointRow, Error> {
    let taken = taken(row)?;
    let at = &taken.attempt;
    let time = |column| Ok::<_, Error>(row::optional_signed(row, "checkpoints", column, at)?.map(Timestamp));
    let removed = match time("removed_at")? {
        Some(removed_at) => Some((removed_at, row::text(row, "checkpoints", "removed_why", at)?.to_owned())),
        None => None,
    };
    Ok(CheckpointRow {
        taken,
        checkpoint: row::checkpoint(row, "checkpoints", at)?,
        kind: row::text(row, "checkpoints", "kind", at)?.to_owned(),
        packed_bytes: row::unsigned(row, "checkpoints", "packed_bytes", at)?,
        content_bytes: row::unsigned(row, "checkpoints", "content_bytes", at)?,
        taken_at: Timestamp(row::signed(row, "checkpoints", "taken_at", at)?),
        removed,
        expires_at: time("expires_at")?,
        needed: row::signed(row, "checkpoints", "needed", at)? != 0,
    })
}

impl Reads {
    /// In order of jobs and rollouts, those behind `after`.
    pub async fn checkpoints(
        &self,
        of: Of,
        removed_too: bool,
        after: Option<Taken>,
        limit: u32,
    ) -> Result<Vec<CheckpointRow>, Error> {
        let (job, rollout) = match of {
            Of::Yard => (None, None),
            Of::Job(job) => (Some(job), None),
            Of::Rollout(rollout) => (Some(rollout.group.job), Some(rollout)),
        };
        let place = after.map(|taken| {
            let AttemptId { rollout, step, attempt } = taken.attempt;
            [
                i64::from(rollout.group.index),
                i64::from(rollout.sample),
                i64::from(rollout.refill),
                i64::from(step.0),
                i64::from(attempt),
                i64::from(taken.ordinal),
            ]
        });
        let mut query = sqlx::query(statement!("common/list_checkpoints"))
            .bind(after.map(|taken| taken.attempt.rollout.group.job.to_string()).unwrap_or_default());
        for number in place.unwrap_or([-1; 6]) {
            query = query.bind(number);
        }
        let rows = query
            .bind(job.map(|job| job.to_string()))
            .bind(rollout.map(|rollout| i64::from(rollout.group.index)))
            .bind(rollout.map(|rollout| i64::from(rollout.sample)))
            .bind(rollout.map(|rollout| i64::from(rollout.refill)))
            .bind(removed_too)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("listing checkpoints"))?;
        rows.iter().map(checkpoint).collect()
    }

    /// Every row of that id: rollouts that came to the same workspace share it.
    pub async fn checkpoint(&self, id: CheckpointId, limit: u32) -> Result<Vec<CheckpointRow>, Error> {
        let rows = sqlx::query(statement!("common/find_checkpoint"))
            .bind(id.to_string())
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("finding a checkpoint"))?;
        rows.iter().map(checkpoint).collect()
    }

    /// Who started from it, those that run first.
    pub async fn checkpoint_users(&self, id: CheckpointId, limit: u32) -> Result<Vec<UserRow>, Error> {
        let rows = sqlx::query(statement!("common/checkpoint_users"))
            .bind(id.to_string())
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("finding who works from a checkpoint"))?;
        let user = |row: &SqliteRow| {
            let attempt = attempt(row, "attempts")?;
            let ended_at = row::optional_signed(row, "attempts", "ended_at", &attempt)?.map(Timestamp);
            Ok(UserRow { attempt, ended_at })
        };
        rows.iter().map(user).collect()
    }
}
