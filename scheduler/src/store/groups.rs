//! What the recorder reads: closed groups that are not sealed, and their members.

use std::collections::BTreeMap;

use rollout::checkpoint::CheckpointId;
use rollout::failure::{Failure, Status};
use rollout::outcome::{Outcome, Reward, Times};
use rollout::state::GroupClosedAs;
use rollout::{AttemptId, GroupId, JobId, NodeId, RolloutId, StepIndex, Timestamp};
use sqlx::sqlite::SqliteRow;

use super::read::{closed, status};
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// A closed group whose rows are not in a sealed shard yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedGroup {
    pub group: GroupId,
    pub seq: i64,
    pub closed_as: GroupClosedAs,
    pub valid: u32,
    pub admitted_at: Timestamp,
    /// The seq it had closed under before, if it was open again since.
    pub replaces: Option<i64>,
}

/// What the recorder needs of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRows {
    pub members: Vec<MemberRow>,
    /// Ended attempts of the steps that the group runs once, oldest first.
    pub shared: Vec<EndedAttempt>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EndedAttempt {
    /// One that never was, where a step found its result under its key.
    pub attempt: AttemptId,
    /// None if it found its result.
    pub node: Option<NodeId>,
    /// What its new sandbox started with.
    pub base: Option<CheckpointId>,
    pub outcome: Box<Outcome>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MemberRow {
    pub rollout: RolloutId,
    /// A refill replaced it.
    pub superseded: bool,
    pub created_at: Timestamp,
    pub ended_at: Timestamp,
    pub status: Status,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    pub reward: Option<Reward>,
    /// Ended attempts, oldest first.
    pub attempts: Vec<EndedAttempt>,
}

impl Reads {
    pub async fn jobs_to_record(&self) -> Result<Vec<JobId>, Error> {
        let rows = sqlx::query(statement!("common/jobs_to_record")).fetch_all(&self.pool).await;
        let rows = rows.map_err(failed("finding closed groups"))?;
        rows.iter().map(|row| row::parsed(row, "groups", "job", &"unknown")).collect()
    }

    /// Closed groups, and admitted ones.
    pub async fn closed_of_admitted(&self, job: JobId) -> Result<(u64, u64), Error> {
        let row = sqlx::query(statement!("common/count_groups"))
            .bind(job.to_string())
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting closed groups"))?;
        Ok((row::unsigned(&row, "groups", "closed", &job)?, row::unsigned(&row, "groups", "admitted", &job)?))
    }

    /// In the order of their `seq`, those behind `after_seq`.
    pub async fn closed_groups(
        &self,
        job: JobId,
        after_seq: i64,
        limit: u32,
    ) -> Result<Vec<ClosedGroup>, Error> {
        let rows = sqlx::query(statement!("common/closed_groups"))
            .bind(job.to_string())
            .bind(after_seq)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading closed groups"))?;
        let read = |row: &SqliteRow| {
            let group = row::group(row, "groups", job)?;
            let (seq, closed_as) =
                closed(row, &group)?.ok_or_else(|| row::wrong("groups", "closed_seq", &group, "missing"))?;
            Ok(ClosedGroup {
                group,
                seq,
                closed_as,
                valid: row::unsigned(row, "groups", "closed_valid", &group)?,
                admitted_at: Timestamp(row::signed(row, "groups", "admitted_at", &group)?),
                replaces: row::optional_signed(row, "groups", "replaces_seq", &group)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The ended members of a closed group, with their ended attempts.
    pub async fn group_rows(&self, group: GroupId) -> Result<GroupRows, Error> {
        let doing = || failed("reading a closed group");
        let rollouts = sqlx::query(statement!("common/group_rollouts"))
            .bind(group.job.to_string())
            .bind(group.index)
            .fetch_all(&self.pool)
            .await
            .map_err(doing())?;
        let attempts = sqlx::query(statement!("common/group_attempts"))
            .bind(group.job.to_string())
            .bind(group.index)
            .fetch_all(&self.pool)
            .await
            .map_err(doing())?;
        let used = sqlx::query(statement!("common/group_results_used"))
            .bind(group.job.to_string())
            .bind(group.index)
            .fetch_all(&self.pool)
            .await
            .map_err(doing())?;
        let mut by_rollout: BTreeMap<RolloutId, Vec<_>> = BTreeMap::new();
        for row in &attempts {
            let rollout = row::rollout(row, "attempts", group)?;
            let attempt = row::attempt(row, rollout)?;
            let node = Some(NodeId(row::parsed(row, "attempts", "node", &attempt)?));
            if let Some(outcome) = row::outcome(row, &attempt)? {
                let base = row::base(row, &attempt)?;
                by_rollout.entry(rollout).or_default().push(EndedAttempt { attempt, node, base, outcome });
            }
        }
        for row in &used {
            let rollout = row::rollout(row, "results_used", group)?;
            let found = found_result(row, rollout)?;
            let attempts = by_rollout.entry(rollout).or_default();
            insert_in_order(attempts, found);
        }
        let member = |row: &SqliteRow| {
            let rollout = row::rollout(row, "rollouts", group)?;
            let status = status(row, &rollout)?;
            Ok(MemberRow {
                rollout,
                superseded: row::optional_signed(row, "rollouts", "superseded_at", &rollout)?.is_some(),
                created_at: Timestamp(row::signed(row, "rollouts", "created_at", &rollout)?),
                ended_at: Timestamp(row::signed(row, "rollouts", "ended_at", &rollout)?),
                status: status
                    .ok_or_else(|| row::wrong("rollouts", "status", &rollout, "missing in a closed group"))?,
                stop_reason: row::optional_text(row, "rollouts", "stop_reason", &rollout)?,
                failure: row::failure(row, &rollout)?,
                reward: row::reward(row, &rollout)?,
                attempts: by_rollout.remove(&rollout).unwrap_or_default(),
            })
        };
        let members = rollouts.iter().map(member).collect::<Result<_, Error>>()?;
        let shared = by_rollout.remove(&RolloutId::shared(group)).unwrap_or_default();
        Ok(GroupRows { members, shared })
    }
}

/// A step that is complete with what was stored under its key: nothing ran, nothing was measured.
fn found_result(row: &SqliteRow, rollout: RolloutId) -> Result<EndedAttempt, Error> {
    let step = StepIndex(row::unsigned(row, "results_used", "step", &rollout)?);
    let checkpoint = row::checkpoint(row, "results_used", &rollout)?;
    let used_at = Timestamp(row::signed(row, "results_used", "used_at", &rollout)?);
    let outcome = Outcome::found(checkpoint, Times::at(used_at));
    let attempt = AttemptId { rollout, step, attempt: 0 };
    Ok(EndedAttempt { attempt, node: None, base: None, outcome: Box::new(outcome) })
}

/// Before the steps that may work from it, and numbered behind the attempts of its own.
fn insert_in_order(attempts: &mut Vec<EndedAttempt>, mut found: EndedAttempt) {
    let step = found.attempt.step;
    let own = attempts.iter().filter(|ended| ended.attempt.step == step).map(|ended| ended.attempt.attempt);
    found.attempt.attempt = own.max().map_or(0, |last| last + 1);
    let behind = attempts.iter().position(|ended| ended.attempt.step > step);
    attempts.insert(behind.unwrap_or(attempts.len()), found);
}
