//! Reads for clients, the recorder and the link.

use std::collections::BTreeMap;

use rollout::failure::{Failure, Status};
use rollout::outcome::Outcome;
use rollout::state::{GroupClosedAs, JobState, StepState};
use rollout::{
    AttemptId, FailureCode, Generation, GroupId, IncarnationId, JobId, NodeId, RolloutId, StepIndex,
    Timestamp,
};
use rollout_wire::v1;
use scheduler_core::explain::missing_rows;
use scheduler_core::record::{Hold, LeaseState};
use serde_json::json;
use sqlx::sqlite::SqliteRow;

use super::fold::{StoredFile, lease_word};
use super::sandboxes::JobKind;
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// A job as stored.
#[derive(Debug, Clone)]
pub struct JobRow {
    pub job: JobId,
    pub kind: JobKind,
    pub name: String,
    pub spec_hash: String,
    pub table_root: String,
    pub request_hash: String,
    pub groups_total: u32,
    /// Members that start with a group.
    pub group_size: u32,
    pub state: JobState,
    /// The job's own; [`told`](Self::told) is what people read.
    pub reason: String,
    /// Why it is held, if it is.
    pub hold: Option<Hold>,
    /// Why rows of closed groups cannot be written.
    pub unrecorded: Option<String>,
    /// Why it was cancelled.
    pub cancel_code: Option<FailureCode>,
    pub next_group: u32,
    pub next_seq: i64,
    pub created_at: Timestamp,
    /// When it was last made to run again, having ended.
    pub retried_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Of a job that has ended: its counts, rewards and failures.
    pub sums: Option<Box<v1::Job>>,
}

/// Sums over the stored rollouts of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobCounts {
    pub groups_closed: u64,
    pub groups_sealed: u64,
    pub admitted: u64,
    pub ended: u64,
    /// Replaced by a refill; in no other sum.
    pub superseded: u64,
    pub valid: u64,
    pub reward_sum: f64,
    pub successes: u64,
    /// Closed groups by (valid members, successes).
    pub groups: Vec<(u64, u64, u64)>,
    pub failures: Vec<Failures>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failures {
    pub domain: String,
    pub code: String,
    pub rollouts: u64,
    pub example: String,
    pub example_rollout: RolloutId,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RolloutRow {
    pub rollout: RolloutId,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub status: Option<Status>,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    pub reward: Option<f64>,
    /// Some step was placed.
    pub begun: bool,
    /// A refill replaced it.
    pub superseded: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    pub attempt: AttemptId,
    pub generation: Generation,
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub placed_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub outcome: Option<Box<Outcome>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub lease: LeaseState,
    pub version: String,
}

pub(super) const JOB_STATES: [JobState; 5] =
    [JobState::Running, JobState::Held, JobState::Cancelling, JobState::Finished, JobState::Cancelled];
pub(super) const STATUSES: [Status; 5] =
    [Status::Completed, Status::Truncated, Status::Aborted, Status::Failed, Status::Cancelled];
pub(super) const CLOSED_AS: [GroupClosedAs; 4] =
    [GroupClosedAs::Full, GroupClosedAs::Short, GroupClosedAs::Dropped, GroupClosedAs::Cancelled];
pub(super) const STEP_STATES: [StepState; 9] = [
    StepState::Waiting,
    StepState::Ready,
    StepState::Backoff,
    StepState::Running,
    StepState::Succeeded,
    StepState::Failed,
    StepState::Skipped,
    StepState::Cancelled,
    StepState::Parked,
];
const LEASE_STATES: [LeaseState; 2] = [LeaseState::Alive, LeaseState::Lost];

pub(super) fn status(row: &SqliteRow, at: &RolloutId) -> Result<Option<Status>, Error> {
    let text = row::optional_text(row, "rollouts", "status", at)?;
    text.map(|text| row::word("rollouts", "status", at, &text, &STATUSES, Status::as_str)).transpose()
}

pub(super) fn closed(row: &SqliteRow, at: &GroupId) -> Result<Option<(i64, GroupClosedAs)>, Error> {
    let Some(seq) = row::optional_signed(row, "groups", "closed_seq", at)? else { return Ok(None) };
    let text = row::text(row, "groups", "closed_as", at)?;
    let closed_as = row::word("groups", "closed_as", at, text, &CLOSED_AS, GroupClosedAs::as_str)?;
    Ok(Some((seq, closed_as)))
}

impl JobRow {
    /// Its reason, and what it says of rows that cannot be written.
    pub fn told(&self) -> String {
        let missing = self.unrecorded.as_deref().map(missing_rows);
        let own = Some(self.reason.clone()).filter(|own| !own.is_empty());
        own.into_iter().chain(missing).collect::<Vec<_>>().join("; ")
    }
}

fn job_row(row: &SqliteRow) -> Result<JobRow, Error> {
    let job: JobId = row::parsed(row, "jobs", "job", &"unknown")?;
    let text = |column| row::text(row, "jobs", column, &job).map(str::to_owned);
    Ok(JobRow {
        job,
        kind: row::word("jobs", "kind", &job, &text("kind")?, &JobKind::ALL, JobKind::as_str)?,
        name: text("name")?,
        spec_hash: text("spec_hash")?,
        table_root: text("table_root")?,
        request_hash: text("request_hash")?,
        groups_total: row::unsigned(row, "jobs", "groups_total", &job)?,
        group_size: row::unsigned(row, "jobs", "group_size", &job)?,
        state: row::word("jobs", "state", &job, &text("state")?, &JOB_STATES, JobState::as_str)?,
        reason: text("reason")?,
        hold: row::optional_text(row, "jobs", "hold", &job)?
            .map(|hold| row::word("jobs", "hold", &job, &hold, &Hold::ALL, Hold::as_str))
            .transpose()?,
        unrecorded: row::optional_text(row, "jobs", "unrecorded", &job)?,
        cancel_code: row::optional_text(row, "jobs", "cancel_code", &job)?
            .map(|code| code.parse().map_err(|e| row::wrong("jobs", "cancel_code", &job, e)))
            .transpose()?,
        next_group: row::unsigned(row, "jobs", "next_group", &job)?,
        next_seq: row::signed(row, "jobs", "next_seq", &job)?,
        created_at: Timestamp(row::signed(row, "jobs", "created_at", &job)?),
        retried_at: row::optional_signed(row, "jobs", "retried_at", &job)?.map(Timestamp),
        finished_at: row::optional_signed(row, "jobs", "finished_at", &job)?.map(Timestamp),
        sums: row::sums(row, &job)?,
    })
}

impl Reads {
    pub async fn job(&self, job: JobId) -> Result<Option<JobRow>, Error> {
        let found = sqlx::query(statement!("common/find_job"))
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding a job"))?;
        found.as_ref().map(job_row).transpose()
    }

    /// The state alone: a job's document may be large, and this is asked often.
    pub async fn job_state(&self, job: JobId) -> Result<Option<JobState>, Error> {
        let found = sqlx::query(statement!("common/job_state"))
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding the state of a job"))?;
        let state = |row: &SqliteRow| {
            row::word(
                "jobs",
                "state",
                &job,
                row::text(row, "jobs", "state", &job)?,
                &JOB_STATES,
                JobState::as_str,
            )
        };
        found.as_ref().map(state).transpose()
    }

    /// The spec as submitted, and the name it came under.
    pub async fn document(&self, job: JobId) -> Result<Option<(String, String)>, Error> {
        let found = sqlx::query(statement!("common/job_document"))
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("reading the spec of a job"))?;
        let read = |row: &SqliteRow| {
            let text = |column| row::text(row, "jobs", column, &job).map(str::to_owned);
            Ok((text("document")?, text("source_name")?))
        };
        found.as_ref().map(read).transpose()
    }

    pub async fn job_by_key(&self, idempotency_key: &str) -> Result<Option<JobRow>, Error> {
        let found = sqlx::query(statement!("common/find_job_by_key"))
            .bind(idempotency_key)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding a job by its key"))?;
        found.as_ref().map(job_row).transpose()
    }

    pub async fn unfinished_job(&self, spec_hash: &str, table_root: &str) -> Result<Option<JobRow>, Error> {
        let found = sqlx::query(statement!("common/find_unfinished_job"))
            .bind(spec_hash)
            .bind(table_root)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding an unfinished job"))?;
        found.as_ref().map(job_row).transpose()
    }

    pub async fn unfinished_jobs(&self) -> Result<Vec<JobRow>, Error> {
        let rows = sqlx::query(statement!("common/unfinished_jobs")).fetch_all(&self.pool).await;
        rows.map_err(failed("listing unfinished jobs"))?.iter().map(job_row).collect()
    }

    /// Newest first, those older than `before`; `sandboxes_too`: those of clients as well.
    pub async fn jobs(
        &self,
        before: Option<(Timestamp, JobId)>,
        unfinished_only: bool,
        sandboxes_too: bool,
        limit: u32,
    ) -> Result<Vec<JobRow>, Error> {
        let (created_at, job) = before.map_or((i64::MAX, String::new()), |(at, job)| (at.0, job.to_string()));
        let text = match (unfinished_only, sandboxes_too) {
            (true, false) => statement!("common/list_unfinished_jobs"),
            (false, false) => statement!("common/list_jobs"),
            (true, true) => statement!("common/list_all_unfinished_jobs"),
            (false, true) => statement!("common/list_all_jobs"),
        };
        let rows = sqlx::query(text).bind(created_at).bind(job).bind(limit).fetch_all(&self.pool).await;
        rows.map_err(failed("listing jobs"))?.iter().map(job_row).collect()
    }

    pub async fn files(&self, job: JobId) -> Result<Vec<StoredFile>, Error> {
        let rows = sqlx::query(statement!("common/job_files"))
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading client files"))?;
        let file = |row: &SqliteRow| {
            Ok(StoredFile {
                path: row::text(row, "files", "path", &job)?.to_owned(),
                sha256: row::text(row, "files", "sha256", &job)?.to_owned(),
                size: row::unsigned(row, "files", "size", &job)?,
            })
        };
        rows.iter().map(file).collect()
    }

    /// The pinned images of a job, by their references.
    pub async fn images(&self, job: JobId) -> Result<BTreeMap<String, String>, Error> {
        let rows = sqlx::query(statement!("common/job_images"))
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading images"))?;
        let image = |row: &SqliteRow| {
            let text = |column| row::text(row, "images", column, &job).map(str::to_owned);
            Ok((text("reference")?, text("pinned")?))
        };
        rows.iter().map(image).collect()
    }

    /// Sums over the job's rollouts; rewards at or above `success_at` are successes.
    pub async fn counts(&self, job: JobId, success_at: f64) -> Result<JobCounts, Error> {
        let text = job.to_string();
        let doing = || failed("counting rollouts");
        let groups = sqlx::query(statement!("common/count_groups")).bind(&text).fetch_one(&self.pool).await;
        let groups = groups.map_err(doing())?;
        let sums = sqlx::query(statement!("common/count_rollouts"))
            .bind(&text)
            .bind(success_at)
            .fetch_one(&self.pool)
            .await
            .map_err(doing())?;
        let per_group = sqlx::query(statement!("common/group_successes"))
            .bind(&text)
            .bind(success_at)
            .fetch_all(&self.pool)
            .await
            .map_err(doing())?;
        let failures =
            sqlx::query(statement!("common/count_failures")).bind(&text).fetch_all(&self.pool).await;
        let mut by_code: BTreeMap<(String, String), Failures> = BTreeMap::new();
        for row in failures.map_err(doing())? {
            let group = row::group(&row, "rollouts", job)?;
            let example_rollout = row::rollout(&row, "rollouts", group)?;
            let column = |c| row::text(&row, "rollouts", c, &example_rollout).map(str::to_owned);
            let failures = Failures {
                domain: column("failure_domain")?,
                code: column("failure_code")?,
                rollouts: row::unsigned(&row, "rollouts", "rollouts_count", &example_rollout)?,
                example: column("failure_message")?,
                example_rollout,
            };
            // Several members of the first group may share the failure: the first is the example.
            by_code.entry((failures.domain.clone(), failures.code.clone())).or_insert(failures);
        }
        let mut failures: Vec<_> = by_code.into_values().collect();
        failures.sort_by_key(|f| std::cmp::Reverse(f.rollouts));
        Ok(JobCounts {
            groups_closed: row::unsigned(&groups, "groups", "closed", &job)?,
            groups_sealed: row::unsigned(&groups, "groups", "sealed", &job)?,
            admitted: row::unsigned(&sums, "rollouts", "admitted", &job)?,
            ended: row::unsigned(&sums, "rollouts", "ended", &job)?,
            superseded: row::unsigned(&sums, "rollouts", "superseded", &job)?,
            valid: row::unsigned(&sums, "rollouts", "valid", &job)?,
            reward_sum: sqlx::Row::try_get(&sums, "reward_sum")
                .map_err(|e| row::wrong("rollouts", "reward_sum", &job, e))?,
            successes: row::unsigned(&sums, "rollouts", "successes", &job)?,
            groups: per_group
                .iter()
                .map(|row| {
                    Ok((
                        row::unsigned(row, "rollouts", "valid", &job)?,
                        row::unsigned(row, "rollouts", "successes", &job)?,
                        row::unsigned(row, "rollouts", "groups_count", &job)?,
                    ))
                })
                .collect::<Result<_, Error>>()?,
            failures,
        })
    }

    /// In order of admission, those behind `after`.
    pub async fn rollouts(
        &self,
        job: JobId,
        after: Option<RolloutId>,
        limit: u32,
    ) -> Result<Vec<RolloutRow>, Error> {
        let place = |r: RolloutId| (i64::from(r.group.index), i64::from(r.sample), i64::from(r.refill));
        self.rollouts_after(job, after.map_or((-1, -1, -1), place), limit).await
    }

    pub async fn rollout_row(&self, rollout: RolloutId) -> Result<Option<RolloutRow>, Error> {
        let before =
            (i64::from(rollout.group.index), i64::from(rollout.sample), i64::from(rollout.refill) - 1);
        let next = self.rollouts_after(rollout.group.job, before, 1).await?;
        Ok(next.into_iter().find(|row| row.rollout == rollout))
    }

    async fn rollouts_after(
        &self,
        job: JobId,
        (group, sample, refill): (i64, i64, i64),
        limit: u32,
    ) -> Result<Vec<RolloutRow>, Error> {
        let rows = sqlx::query(statement!("common/list_rollouts"))
            .bind(job.to_string())
            .bind(group)
            .bind(sample)
            .bind(refill)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("listing rollouts"))?;
        let read = |row: &SqliteRow| {
            let rollout = row::rollout(row, "rollouts", row::group(row, "rollouts", job)?)?;
            Ok(RolloutRow {
                rollout,
                created_at: Timestamp(row::signed(row, "rollouts", "created_at", &rollout)?),
                ended_at: row::optional_signed(row, "rollouts", "ended_at", &rollout)?.map(Timestamp),
                status: status(row, &rollout)?,
                stop_reason: row::optional_text(row, "rollouts", "stop_reason", &rollout)?,
                failure: row::failure(row, &rollout)?,
                reward: sqlx::Row::try_get(row, "reward_value")
                    .map_err(|e| row::wrong("rollouts", "reward_value", &rollout, e))?,
                begun: row::signed(row, "rollouts", "begun", &rollout)? != 0,
                superseded: row::optional_signed(row, "rollouts", "superseded_at", &rollout)?.is_some(),
            })
        };
        rows.iter().map(read).collect()
    }

    /// Whether the rollout was admitted, and its status if it ended. What stands for all rollouts of a
    /// group has no status.
    pub async fn rollout(&self, rollout: RolloutId) -> Result<Option<Option<Status>>, Error> {
        if rollout.is_shared() {
            let found = sqlx::query(statement!("common/find_group"))
                .bind(rollout.group.job.to_string())
                .bind(rollout.group.index)
                .fetch_optional(&self.pool)
                .await
                .map_err(failed("finding a group"))?;
            return Ok(found.map(|_| None));
        }
        let found = self
            .of_rollout(statement!("common/find_rollout"), rollout)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding a rollout"))?;
        found.map(|row| status(&row, &rollout)).transpose()
    }

    /// Oldest placement first.
    pub async fn attempts(&self, rollout: RolloutId) -> Result<Vec<AttemptRow>, Error> {
        let rows = self
            .of_rollout(statement!("common/rollout_attempts"), rollout)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading attempts"))?;
        let read = |row: &SqliteRow| {
            let attempt = row::attempt(row, rollout)?;
            let at = |column| row::optional_signed(row, "attempts", column, &attempt);
            Ok(AttemptRow {
                attempt,
                generation: Generation(row::unsigned(row, "attempts", "generation", &attempt)?),
                node: NodeId(row::parsed(row, "attempts", "node", &attempt)?),
                incarnation: row::parsed(row, "attempts", "incarnation", &attempt)?,
                placed_at: Timestamp(row::signed(row, "attempts", "placed_at", &attempt)?),
                started_at: at("started_at")?.map(Timestamp),
                ended_at: at("ended_at")?.map(Timestamp),
                outcome: row::outcome(row, &attempt)?,
            })
        };
        rows.iter().map(read).collect()
    }

    pub async fn step_states(&self, rollout: RolloutId) -> Result<BTreeMap<StepIndex, StepState>, Error> {
        let rows = self
            .of_rollout(statement!("common/rollout_step_states"), rollout)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading step states"))?;
        let read = |row: &SqliteRow| {
            let step = StepIndex(row::unsigned(row, "step_states", "step", &rollout)?);
            let text = row::text(row, "step_states", "state", &rollout)?;
            Ok((step, row::word("step_states", "state", &rollout, text, &STEP_STATES, StepState::as_str)?))
        };
        rows.iter().map(read).collect()
    }

    fn of_rollout(
        &self,
        text: &'static str,
        rollout: RolloutId,
    ) -> sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
        sqlx::query(text)
            .bind(rollout.group.job.to_string())
            .bind(rollout.group.index)
            .bind(rollout.sample)
            .bind(rollout.refill)
    }

    /// The last reported outcome of each asked step of a rollout; none where it never ended.
    pub async fn latest_outcomes(
        &self,
        asked: &[(RolloutId, StepIndex)],
    ) -> Result<Vec<Option<Box<Outcome>>>, Error> {
        let keys: Vec<_> = asked
            .iter()
            .map(|(r, step)| json!([r.group.job.to_string(), r.group.index, r.sample, r.refill, step.0]))
            .collect();
        let rows = sqlx::query(statement!("sqlite/latest_outcomes"))
            .bind(serde_json::Value::from(keys).to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading outcomes"))?;
        let mut latest = vec![None; asked.len()];
        for row in &rows {
            let index: usize = row::unsigned(row, "attempts", "asked", &"asked")?;
            if let Some(slot) = latest.get_mut(index) {
                *slot = row::outcome(row, &asked[index].0)?;
            }
        }
        Ok(latest)
    }

    pub async fn nodes(&self) -> Result<Vec<NodeRow>, Error> {
        let rows = sqlx::query(statement!("common/list_nodes")).fetch_all(&self.pool).await;
        let rows = rows.map_err(failed("reading leases"))?;
        let read = |row: &SqliteRow| {
            let node: NodeId = NodeId(row::parsed(row, "nodes", "node", &"unknown")?);
            let lease = row::text(row, "nodes", "lease", &node)?;
            Ok(NodeRow {
                incarnation: row::parsed(row, "nodes", "incarnation", &node)?,
                lease: row::word("nodes", "lease", &node, lease, &LEASE_STATES, lease_word)?,
                version: row::text(row, "nodes", "version", &node)?.to_owned(),
                node,
            })
        };
        rows.iter().map(read).collect()
    }
}
