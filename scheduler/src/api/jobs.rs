//! Jobs as clients see them: get, list, watch, cancel.

use std::time::Duration;

use rollout::state::JobState;
use rollout::{FailureCode, JobId, Timestamp};
use rollout_wire::v1;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::outlet::Outlet;
use super::{ApiCode, ApiError, COMMIT_WAIT, JobsService, Stream, job_id, memory, page};
use crate::inbox::{Commits, Input};
use crate::store::JobRow;
use crate::sums;

/// A watcher is told at most this often.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// States of a watched job that wait for a slow watcher.
const WATCH_MESSAGES_MAX: usize = 4;
/// Bytes of a reason to cancel.
const REASON_BYTES_MAX: usize = 1024;

pub(super) async fn get(service: &JobsService, job: &str) -> Result<v1::Job, ApiError> {
    let id = job_id(job)?;
    let row = service.reads.job(id).await?.ok_or_else(|| ApiError::not_found("job", job))?;
    message(service, row).await
}

/// With what is told of one job at a time only.
pub(super) async fn get_whole(service: &JobsService, job: &str) -> Result<v1::Job, ApiError> {
    let memory = memory::of_job(service, job_id(job)?).await?;
    Ok(v1::Job { memory, ..get(service, job).await? })
}

pub(super) async fn list(
    service: &JobsService,
    request: &v1::ListRequest,
) -> Result<v1::ListReply, ApiError> {
    let size = page::size(request.page_size)?;
    let before = match request.page_token.as_str() {
        "" => None,
        token => Some(parse_token(token).ok_or_else(page::bad_token)?),
    };
    let rows = service.reads.jobs(before, request.unfinished_only, request.sandboxes_too, size).await?;
    let full = rows.len() == size as usize;
    let last = rows.last().filter(|_| full);
    let next_page_token = last.map(|row| format!("{}/{}", row.created_at.0, row.job)).unwrap_or_default();
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        jobs.push(message(service, row).await?);
    }
    Ok(v1::ListReply { jobs, next_page_token })
}

fn parse_token(token: &str) -> Option<(Timestamp, JobId)> {
    let (at, job) = token.split_once('/')?;
    Some((Timestamp(at.parse().ok()?), job.parse().ok()?))
}

pub(super) async fn watch(service: &JobsService, job: &str) -> Result<Stream<v1::Job>, ApiError> {
    let id = job_id(job)?;
    // Before the first answer is made: what is stored meanwhile is told after it.
    let commits = service.commits.clone();
    let first = get(service, job).await?;
    let (outlet, stream) = Outlet::open(service, WATCH_MESSAGES_MAX)?;
    let watching = Watching { service: service.clone(), job: id, commits };
    service.tasks.spawn(watching.run(first, outlet));
    Ok(stream)
}

struct Watching {
    service: JobsService,
    job: JobId,
    commits: watch::Receiver<Commits>,
}

impl Watching {
    async fn run(self, first: v1::Job, outlet: Outlet<v1::Job>) {
        let service = self.service.clone();
        let watched = tokio::select! {
            () = outlet.closed() => Ok(()),
            () = service.stop.cancelled() => Err(ApiError::from(crate::inbox::Stopping)),
            watched = self.watch(first, &outlet) => watched,
        };
        outlet.end(&service, watched);
    }

    /// Until the job is final, or the watcher is gone.
    async fn watch(mut self, first: v1::Job, outlet: &Outlet<v1::Job>) -> Result<(), ApiError> {
        let mut shown = first.clone();
        let mut next = Some(first);
        loop {
            if let Some(job) = next.take() {
                shown = job.clone();
                let is_final = job.finished_at_us.is_some();
                if outlet.send(job).await.is_err() || is_final {
                    return Ok(());
                }
            }
            if !self.due().await? {
                return Ok(());
            }
            let job = message(&self.service, self.row().await?).await?;
            next = Some(job).filter(|job| *job != shown);
        }
    }

    /// Waits until there may be something to tell: an end at once, any other change when it is
    /// due. Commits that end no job cost a watcher nothing. False when there are no more commits.
    async fn due(&mut self) -> Result<bool, ApiError> {
        let before = *self.commits.borrow();
        let due_at = Instant::now() + WATCH_INTERVAL;
        let mut ended = before.jobs_ended;
        loop {
            let is_due = tokio::select! {
                () = tokio::time::sleep_until(due_at) => true,
                changed = self.commits.changed() => {
                    if changed.is_err() {
                        return Ok(false);
                    }
                    false
                }
            };
            let commits = *self.commits.borrow_and_update();
            if is_due {
                return Ok(true);
            }
            if commits.jobs_ended != ended {
                ended = commits.jobs_ended;
                if self.state().await?.is_final() {
                    return Ok(true);
                }
            }
        }
    }

    async fn state(&self) -> Result<JobState, ApiError> {
        let state = self.service.reads.job_state(self.job).await?;
        state.ok_or_else(|| ApiError::not_found("job", &self.job.to_string()))
    }

    async fn row(&self) -> Result<JobRow, ApiError> {
        let row = self.service.reads.job(self.job).await?;
        row.ok_or_else(|| ApiError::not_found("job", &self.job.to_string()))
    }
}

pub(super) async fn cancel(service: &JobsService, request: v1::CancelRequest) -> Result<v1::Job, ApiError> {
    let job = job_id(&request.job)?;
    if request.reason.len() > REASON_BYTES_MAX {
        return Err(ApiError::bad_request("reason", format!("at most {REASON_BYTES_MAX} bytes")));
    }
    let row = service.reads.job(job).await?.ok_or_else(|| ApiError::not_found("job", &request.job))?;
    // Cancelling what has ended changes nothing and is no error.
    if !row.state.is_final() {
        let reason = match request.reason.as_str() {
            "" => "cancelled by a caller".to_owned(),
            reason => rollout::text::shown_line(reason, REASON_BYTES_MAX),
        };
        let (done, stored) = oneshot::channel();
        service.inbox.send(Input::Cancel { job, code: FailureCode::Cancelled, reason, done }).await?;
        committed(service, stored).await?;
    }
    get(service, &request.job).await
}

/// Waits for the commit that answers, for a bounded time.
pub(super) async fn committed<T>(service: &JobsService, answer: oneshot::Receiver<T>) -> Result<T, ApiError> {
    match tokio::time::timeout(COMMIT_WAIT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(crate::inbox::Stopping.into()),
        Err(_) => {
            let trouble = service.health.now().sentences().join(" ");
            let message = format!("the change is not stored after {} s. {trouble}", COMMIT_WAIT.as_secs());
            Err(ApiError::new(ApiCode::StoreBusy, message.trim_end().to_owned())
                .hint("ask again with the same idempotency key: it is never done twice"))
        }
    }
}

/// A job with its sums: stored with it once it has ended, from the core while it runs.
pub(super) async fn message(service: &JobsService, row: JobRow) -> Result<v1::Job, ApiError> {
    let job = row.job;
    if let Some(sums) = row.sums.clone() {
        return Ok(with_sums(row, *sums));
    }
    if !row.state.is_final()
        && let Some(counts) = service.ask(move |cluster, _| cluster.counts(job)).await?.flatten()
    {
        return Ok(with_sums(row, sums::of_core(counts)));
    }
    let facts = service.jobs.of(&row).await?;
    let counts = service.counts.get(&service.reads, job, facts.success_at(), row.state.is_final()).await?;
    let sums = sums::of_store(&row, &counts);
    Ok(with_sums(row, sums))
}

fn with_sums(row: JobRow, sums: v1::Job) -> v1::Job {
    v1::Job { counts: sums.counts, rewards: sums.rewards, failures: sums.failures, ..head(row) }
}

fn head(row: JobRow) -> v1::Job {
    v1::Job {
        reason: row.told(),
        id: row.job.to_string(),
        name: row.name,
        state: row.state.as_str().to_owned(),
        spec_hash: row.spec_hash,
        table_root: row.table_root,
        created_at_us: row.created_at.0,
        finished_at_us: row.finished_at.map(|at| at.0),
        // Why the whole job ended early, if it did.
        failure_message: (row.state == JobState::Cancelled).then(|| row.reason.clone()),
        group_size: row.group_size,
        ..v1::Job::default()
    }
}
