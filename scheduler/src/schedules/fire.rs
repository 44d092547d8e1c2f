//! One fire: what becomes of it, and its job.

use std::sync::Arc;

use blobs::BlobStore;
use rollout::JobId;
use scheduler_core::cadence::{Decision, WAITING_FIRES_MAX, decide};
use tokio::sync::oneshot;

use super::{FiredAs, Keeper};
use crate::api::submit::{Asked, new_job};
use crate::api::{ApiCode, ApiError};
use crate::error::Error;
use crate::inbox::{Fired, Input, Stopping, Submission, SubmitRefused};
use crate::jobs::JobFacts;
use crate::store::{Fire, NewJob, Reads, ScheduleChange, ScheduleRow};

impl Keeper {
    /// Whether the job of the last fire has not ended.
    pub(super) async fn runs(&self, row: &ScheduleRow) -> Result<bool, ApiError> {
        let Some(job) = row.last_job else { return Ok(false) };
        let state = self.jobs.reads().job_state(job).await?;
        Ok(state.is_some_and(|state| !state.is_final()))
    }

    /// Decides a fire and stores what became of it; `row` has what is stored with it. None: no job can
    /// be made of it, which is counted and said.
    pub(super) async fn fire(&mut self, row: ScheduleRow, fire: &Fire) -> Result<Option<FiredAs>, ApiError> {
        let runs = self.runs(&row).await?;
        let former = row.last_job.filter(|_| runs);
        match decide(row.plan.overlap, runs, usize::from(row.waiting.is_some())) {
            Decision::Start => self.start(row, fire, None).await,
            Decision::Replace => self.start(row, fire, former).await,
            Decision::Wait => {
                let waiting = Some(fire.clone());
                self.update(ScheduleRow { waiting, ..row }).await?;
                Ok(Some(FiredAs::Waits))
            }
            Decision::Skip => self.skip(row, fire, "the job of the fire before runs").await,
            Decision::Full => {
                let why = format!("{WAITING_FIRES_MAX} fire waits already (WAITING_FIRES_MAX)");
                self.skip(row, fire, &why).await
            }
        }
    }

    async fn skip(
        &mut self,
        mut row: ScheduleRow,
        fire: &Fire,
        why: &str,
    ) -> Result<Option<FiredAs>, ApiError> {
        row.skipped = row.skipped.saturating_add(1);
        row.problem = format!("the fire of {} was left out: {why}", row.plan.local(fire.at));
        tracing::info!(schedule = %row.schedule, name = row.name, problem = row.problem, "a fire was left out");
        self.update(row).await?;
        Ok(Some(FiredAs::Skipped))
    }

    /// Starts the job of a fire, and cancels `former` in the same commit.
    pub(super) async fn start(
        &mut self,
        mut row: ScheduleRow,
        fire: &Fire,
        former: Option<JobId>,
    ) -> Result<Option<FiredAs>, ApiError> {
        row.waiting = row.waiting.filter(|waiting| waiting != fire);
        let (new_job, facts) = match self.job_of(&row, fire).await {
            Ok(made) => made,
            // Nothing is decided: the fire stays due.
            Err(error) if error.code == ApiCode::StoreFailed => return Err(error),
            Err(error) => {
                row.failed = row.failed.saturating_add(1);
                row.problem = format!(
                    "no job can be made of the fire of {}: {}",
                    row.plan.local(fire.at),
                    error.message
                );
                tracing::warn!(schedule = %row.schedule, name = row.name, problem = row.problem, "a fire failed");
                self.update(row).await?;
                return Ok(None);
            }
        };
        let job = new_job.job;
        row.fired = row.fired.saturating_add(1);
        row.last_job = Some(job);
        row.last_fire_at = Some(fire.at);
        row.problem.clear();
        let reason = format!("replaced by job {job}, which schedule {} fired", row.schedule);
        let fired = Fired {
            change: ScheduleChange::Update(Box::new(row.clone())),
            replaces: former.map(|former| (former, reason)),
        };
        let plan = facts.plan.clone();
        self.jobs.insert(facts);
        let (reply, answer) = oneshot::channel();
        let submission = Submission { new_job, plan, resume: false, fired: Some(fired), reply };
        self.inbox.send(Input::Submit(Box::new(submission))).await?;
        match answer.await.map_err(|_| Stopping)? {
            Ok(submitted) if submitted.job == job => {
                tracing::info!(schedule = %row.schedule, name = row.name, %job, "schedule fired");
                self.rows.insert(row.schedule, row);
            }
            // Stored before, under the same key.
            Ok(submitted) => {
                row.last_job = Some(submitted.job);
                self.update(row).await?;
                return Ok(Some(FiredAs::Started(submitted.job)));
            }
            Err(SubmitRefused::Store(error)) => return Err(error.into()),
            Err(SubmitRefused::KeyInUse { job: owner } | SubmitRefused::FileChanged { job: owner, .. }) => {
                let mut row = self.row(row.schedule)?;
                row.cursor_at = row.cursor_at.max(fire.at);
                row.waiting = row.waiting.filter(|waiting| waiting != fire);
                row.failed = row.failed.saturating_add(1);
                row.problem = format!("the key `{}` of the fire is that of job {owner}", fire.key);
                tracing::warn!(schedule = %row.schedule, problem = row.problem, "a fire failed");
                self.update(row).await?;
                return Ok(None);
            }
        }
        Ok(Some(FiredAs::Started(job)))
    }

    /// The job of a fire, over the files that came with the submit.
    async fn job_of(&self, row: &ScheduleRow, fire: &Fire) -> Result<(NewJob, Arc<JobFacts>), ApiError> {
        scheduled_job(self.jobs.reads(), &self.blobs, row, fire.key.clone()).await
    }
}

/// A job of a schedule, over the files that came with its submit. Nothing is stored of it.
pub(crate) async fn scheduled_job(
    reads: &Reads,
    blobs: &BlobStore,
    row: &ScheduleRow,
    idempotency_key: String,
) -> Result<(NewJob, Arc<JobFacts>), ApiError> {
    let document = reads.schedule_document(row.schedule).await?;
    let (document, source_name) =
        document.ok_or_else(|| ApiError::not_found("schedule", &row.schedule.to_string()))?;
    let files = reads.schedule_files(row.schedule).await?;
    let checking = (document.clone(), source_name.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let checked = rollout::spec::check(&checking.0, &checking.1);
        checked.plan.clone().ok_or_else(|| checked.render(&checking.0))
    });
    let checked = checked.await.map_err(|error| Error::Panicked { task: error.to_string() })?;
    let plan = checked.map_err(|problem| ApiError::new(ApiCode::SpecInvalid, problem))?;
    let asked = Asked {
        document,
        source_name,
        table_root: row.table_root.clone(),
        idempotency_key,
        request_hash: row.request_hash.clone(),
        files,
        sandbox: None,
    };
    // Its images name themselves: none was registered by tag.
    let (job, facts, _) = new_job(blobs, plan, asked).await?;
    Ok((job, Arc::new(facts)))
}
