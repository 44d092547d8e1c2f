//! The stored state of the unfinished jobs, as the core takes it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::TryStreamExt;
use rollout::plan::JobPlan;
use rollout::result_key::ResultName;
use rollout::state::{JobState, StepState};
use rollout::{AttemptId, FailureCode, Generation, GroupId, JobId, NodeId, RolloutId, StepIndex, Timestamp};
use scheduler_core::event::ExpandedGroup;
use scheduler_core::record::{BreakerEnd, CheckpointKind, RolloutEnd, StepBooks};
use scheduler_core::snapshot::{
    AttemptSnapshot, CheckpointSnapshot, GroupSnapshot, JobSnapshot, NodeSnapshot, ResultSnapshot,
    RolloutSnapshot,
};
use scheduler_core::totals::{Totals, is_success};
use sqlx::sqlite::SqliteRow;

use super::read::{self, JobRow};
use super::{Reads, failed, row, statement};
use crate::error::Error;

const CHECKPOINT_KINDS: [CheckpointKind; 2] = [CheckpointKind::After, CheckpointKind::Every];

impl Reads {
    /// The live window of a job. `expand` says again what the row of an admitted group asks for:
    /// that is a function of the row and never stored.
    pub async fn job_snapshot(
        &self,
        job: &JobRow,
        plan: Arc<JobPlan>,
        mut expand: impl FnMut(u32) -> Result<ExpandedGroup, Error>,
    ) -> Result<JobSnapshot, Error> {
        let mut rollouts = self.open_rollouts(job.job, None).await?;
        let totals = self.totals(job, success_at(&plan)).await?;
        let sealed = self.open(statement!("common/count_sealed"), job.job, None).await?;
        let sealed =
            sealed.first().map(|row| row::unsigned(row, "groups", "sealed", &job.job)).transpose()?;
        let mut groups = Vec::new();
        for row in self.open(statement!("common/open_groups"), job.job, None).await? {
            let group = row::group(&row, "groups", job.job)?;
            groups.push(GroupSnapshot {
                index: group.index,
                expanded: expand(group.index)?,
                closed: read::closed(&row, &group)?,
                rollouts: rollouts.remove(&group).unwrap_or_default().into_values().collect(),
            });
        }
        if (job.state == JobState::Held) != job.hold.is_some() {
            let problem = format!("{:?} of a job that is {}", job.hold, job.state.as_str());
            return Err(row::wrong("jobs", "hold", &job.job, problem));
        }
        Ok(JobSnapshot {
            job: job.job,
            plan,
            state: job.state,
            reason: job.reason.clone(),
            hold: job.hold,
            unrecorded: job.unrecorded.is_some(),
            cancel_code: job.cancel_code.unwrap_or(FailureCode::Cancelled),
            groups_total: job.groups_total,
            next_group: job.next_group,
            next_seq: job.next_seq,
            created_at: job.created_at,
            groups,
            groups_sealed: sealed.unwrap_or(0),
            retries: self.open_retries(job.job).await?,
            breaker_ends: self.breaker_ends(job).await?,
            totals,
        })
    }

    /// A group that is sealed, as it was when it closed; none if there is no such group.
    pub async fn sealed_group(
        &self,
        group: GroupId,
        expanded: ExpandedGroup,
    ) -> Result<Option<GroupSnapshot>, Error> {
        let found = self.open_rollouts(group.job, Some(group.index)).await?.remove(&group);
        Ok(found.map(|rollouts| GroupSnapshot {
            index: group.index,
            expanded,
            closed: None,
            rollouts: rollouts.into_values().collect(),
        }))
    }

    async fn open_retries(&self, job: JobId) -> Result<Vec<RolloutId>, Error> {
        let read = |row: &SqliteRow| row::rollout(row, "retries", row::group(row, "retries", job)?);
        let rows = sqlx::query(statement!("common/open_retries"))
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading what is to be run again"))?;
        rows.iter().map(read).collect()
    }

    /// Of the groups that are not sealed, or of one.
    async fn open_rollouts(
        &self,
        job: JobId,
        only: Option<u32>,
    ) -> Result<BTreeMap<GroupId, BTreeMap<RolloutId, RolloutSnapshot>>, Error> {
        let mut groups: BTreeMap<GroupId, BTreeMap<RolloutId, RolloutSnapshot>> = BTreeMap::new();
        for row in self.open(statement!("common/open_groups"), job, only).await? {
            let group = row::group(&row, "groups", job)?;
            let shared = RolloutId::shared(group);
            groups.entry(group).or_default().insert(shared, empty(shared, None));
        }
        for row in self.open(statement!("common/open_rollouts"), job, only).await? {
            let group = row::group(&row, "rollouts", job)?;
            let rollout = row::rollout(&row, "rollouts", group)?;
            let snapshot = empty(rollout, rollout_end(&row, rollout)?);
            groups.entry(group).or_default().insert(rollout, snapshot);
        }
        let mut of = |table, group: GroupId, rollout, use_it: &mut dyn FnMut(&mut RolloutSnapshot)| {
            let found = groups.get_mut(&group).and_then(|members| members.get_mut(&rollout));
            found.map(use_it).ok_or_else(|| row::wrong(table, "sample", &rollout, "no such rollout"))
        };
        for row in self.open(statement!("common/open_step_states"), job, only).await? {
            let group = row::group(&row, "step_states", job)?;
            let rollout = row::rollout(&row, "step_states", group)?;
            let step = StepIndex(row::unsigned(&row, "step_states", "step", &rollout)?);
            let text = row::text(&row, "step_states", "state", &rollout)?;
            let state =
                row::word("step_states", "state", &rollout, text, &read::STEP_STATES, StepState::as_str)?;
            of("step_states", group, rollout, &mut |r| r.steps.push((step, state)))?;
        }
        for row in self.open(statement!("common/open_withdrawn"), job, only).await? {
            let group = row::group(&row, "withdrawn", job)?;
            let rollout = row::rollout(&row, "withdrawn", group)?;
            let step = StepIndex(row::unsigned(&row, "withdrawn", "step", &rollout)?);
            let generation = Generation(row::unsigned(&row, "withdrawn", "generation", &rollout)?);
            of("withdrawn", group, rollout, &mut |r| r.generations.push((step, generation)))?;
        }
        for row in self.open(statement!("common/open_step_books"), job, only).await? {
            let group = row::group(&row, "step_books", job)?;
            let rollout = row::rollout(&row, "step_books", group)?;
            let step = StepIndex(row::unsigned(&row, "step_books", "step", &rollout)?);
            let not_before = row::optional_signed(&row, "step_books", "not_before", &rollout)?;
            let books = StepBooks {
                chain_breaks: row::unsigned(&row, "step_books", "chain_breaks", &rollout)?,
                refusals: row::unsigned(&row, "step_books", "refusals", &rollout)?,
                not_before: not_before.map(Timestamp),
                anew: row::signed(&row, "step_books", "anew", &rollout)? != 0,
            };
            of("step_books", group, rollout, &mut |r| r.books.push((step, books)))?;
        }
        for row in self.open(statement!("common/open_checkpoints"), job, only).await? {
            let group = row::group(&row, "checkpoints", job)?;
            let rollout = row::rollout(&row, "checkpoints", group)?;
            let snapshot = checkpoint(&row, rollout)?;
            of("checkpoints", group, rollout, &mut |r| r.checkpoints.push(snapshot.clone()))?;
        }
        for row in self.open(statement!("common/open_results_used"), job, only).await? {
            let group = row::group(&row, "results_used", job)?;
            let rollout = row::rollout(&row, "results_used", group)?;
            let step = StepIndex(row::unsigned(&row, "results_used", "step", &rollout)?);
            let found = Arc::new(row::checkpoint(&row, "results_used", &rollout)?);
            of("results_used", group, rollout, &mut |r| r.results.push((step, found.clone())))?;
        }
        for row in self.open(statement!("common/open_attempts"), job, only).await? {
            let group = row::group(&row, "attempts", job)?;
            let rollout = row::rollout(&row, "attempts", group)?;
            let snapshot = attempt(&row, rollout)?;
            of("attempts", group, rollout, &mut |r| r.attempts.push(snapshot.clone()))?;
        }
        Ok(groups)
    }

    /// Oldest first, by step.
    async fn breaker_ends(&self, job: &JobRow) -> Result<Vec<BreakerEnd>, Error> {
        let read = |row: &SqliteRow| {
            let code = row::optional_text(row, "breaker_ends", "code", &job.job)?;
            let code = code.map(|code| code.parse()).transpose();
            Ok(BreakerEnd {
                step: StepIndex(row::unsigned(row, "breaker_ends", "step", &job.job)?),
                number: row::unsigned(row, "breaker_ends", "end_number", &job.job)?,
                code: code.map_err(|e| row::wrong("breaker_ends", "code", &job.job, e))?,
            })
        };
        self.open(statement!("common/breaker_ends"), job.job, None).await?.iter().map(read).collect()
    }

    /// Sums over every ended rollout and closed group, read in a stream: there may be millions.
    async fn totals(&self, job: &JobRow, success_at: f64) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        let mut current: Option<GroupSum> = None;
        let mut rows = sqlx::query(statement!("common/job_ends")).bind(job.job.to_string()).fetch(&self.pool);
        while let Some(row) = rows.try_next().await.map_err(failed("summing up a job"))? {
            let group = row::group(&row, "groups", job.job)?;
            let closed = row::optional_signed(&row, "groups", "closed_seq", &group)?.is_some();
            if current.as_ref().is_none_or(|sum| sum.group != group) {
                let next = GroupSum { group, closed, valid: 0, successes: 0 };
                if let Some(done) = current.replace(next) {
                    done.add_to(&mut totals);
                }
            }
            if row::optional_text(&row, "rollouts", "status", &group)?.is_none() {
                continue;
            }
            let rollout = row::rollout(&row, "rollouts", group)?;
            if row::optional_signed(&row, "rollouts", "superseded_at", &rollout)?.is_some() {
                totals.rollouts_superseded += 1;
                continue;
            }
            if let (Some(end), Some(sum)) = (rollout_end(&row, rollout)?, current.as_mut()) {
                totals.add_rollout(rollout, &end, success_at);
                sum.valid += u32::from(end.reward.is_some());
                sum.successes += u32::from(is_success(&end, success_at));
            }
        }
        if let Some(done) = current {
            done.add_to(&mut totals);
        }
        Ok(totals)
    }

    async fn open(&self, text: &'static str, job: JobId, only: Option<u32>) -> Result<Vec<SqliteRow>, Error> {
        let rows = sqlx::query(text).bind(job.to_string()).bind(only).fetch_all(&self.pool).await;
        rows.map_err(failed("restoring a job"))
    }

    /// What is stored under the keys of results, oldest first: at most
    /// [`RESULTS_MAX`](scheduler_core::config::RESULTS_MAX).
    pub async fn result_snapshots(&self) -> Result<Vec<ResultSnapshot>, Error> {
        let rows = sqlx::query(statement!("common/results")).fetch_all(&self.pool).await;
        let read = |row: &SqliteRow| {
            let key = row::text(row, "results", "result_key", &"unknown")?.to_owned();
            let project = row::text(row, "results", "project", &key)?.to_owned();
            let checkpoint = Arc::new(row::checkpoint(row, "results", &key)?);
            Ok(ResultSnapshot { name: ResultName { project, key }, checkpoint })
        };
        rows.map_err(failed("reading the stored results"))?.iter().map(read).collect()
    }

    pub async fn node_snapshots(&self) -> Result<Vec<NodeSnapshot>, Error> {
        let rows = self.nodes().await?.into_iter();
        Ok(rows
            .map(|row| NodeSnapshot { node: row.node, incarnation: row.incarnation, lease: row.lease })
            .collect())
    }
}

struct GroupSum {
    group: GroupId,
    closed: bool,
    valid: u32,
    successes: u32,
}

impl GroupSum {
    fn add_to(&self, totals: &mut Totals) {
        if self.closed {
            totals.add_group(self.valid, self.successes);
        }
    }
}

/// The success mark of the last grader, whose reward is the rollout's.
pub(crate) fn success_at(plan: &JobPlan) -> f64 {
    let grader = plan.steps.iter().rev().find_map(|step| step.grader.as_ref());
    grader.map_or(1.0, rollout::plan::GraderPlan::success_at)
}

pub(super) fn rollout_end(row: &SqliteRow, rollout: RolloutId) -> Result<Option<RolloutEnd>, Error> {
    let Some(status) = read::status(row, &rollout)? else { return Ok(None) };
    Ok(Some(RolloutEnd {
        status,
        stop_reason: row::optional_text(row, "rollouts", "stop_reason", &rollout)?,
        failure: row::failure(row, &rollout)?,
        reward: row::reward(row, &rollout)?,
    }))
}

fn empty(rollout: RolloutId, end: Option<RolloutEnd>) -> RolloutSnapshot {
    let (steps, attempts, generations) = (Vec::new(), Vec::new(), Vec::new());
    let (books, checkpoints, results) = (Vec::new(), Vec::new(), Vec::new());
    RolloutSnapshot { rollout, end, steps, attempts, generations, books, checkpoints, results }
}

fn checkpoint(row: &SqliteRow, rollout: RolloutId) -> Result<CheckpointSnapshot, Error> {
    let attempt = row::attempt_in(row, "checkpoints", rollout)?;
    let kind = row::text(row, "checkpoints", "kind", &attempt)?;
    Ok(CheckpointSnapshot {
        attempt,
        ordinal: row::unsigned(row, "checkpoints", "ordinal", &attempt)?,
        kind: row::word("checkpoints", "kind", &attempt, kind, &CHECKPOINT_KINDS, CheckpointKind::as_str)?,
        checkpoint: Arc::new(row::checkpoint(row, "checkpoints", &attempt)?),
    })
}

fn attempt(row: &SqliteRow, rollout: RolloutId) -> Result<AttemptSnapshot, Error> {
    let attempt = row::attempt(row, rollout)?;
    let number = |column| row::optional_signed(row, "attempts", column, &attempt);
    let continue_from = match (number("continue_step")?, number("continue_attempt")?) {
        (None, None) => None,
        (Some(step), Some(from)) => {
            let bad = |_| row::wrong("attempts", "continue_step", &attempt, "out of range");
            Some(AttemptId {
                rollout,
                step: StepIndex(u8::try_from(step).map_err(bad)?),
                attempt: u32::try_from(from).map_err(bad)?,
            })
        }
        _ => return Err(row::wrong("attempts", "continue_attempt", &attempt, "half a reference")),
    };
    Ok(AttemptSnapshot {
        attempt,
        generation: Generation(row::unsigned(row, "attempts", "generation", &attempt)?),
        node: NodeId(row::parsed(row, "attempts", "node", &attempt)?),
        incarnation: row::parsed(row, "attempts", "incarnation", &attempt)?,
        continue_from,
        base: row::base(row, &attempt)?,
        started: number("started_at")?.is_some(),
        outcome: row::outcome(row, &attempt)?,
        kept: row::signed(row, "attempts", "kept", &attempt)? != 0,
    })
}
