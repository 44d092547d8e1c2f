//! Ending sandboxes of clients, by name or by labels: to a fixed point, and past those that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use rollout::state::JobState;
use rollout::text::{shown, shown_line};
use rollout::{FailureCode, JobId, StepIndex};
use rollout_wire::v1;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::view::name;
use super::{Refused, SandboxesService, bounded, check_labels, sandbox_id};
use crate::api::{ApiCode, ApiError, jobs};
use crate::inbox::Input;
use crate::store::{SandboxRow, only_rollout};

/// Names of one call.
pub const KILL_NAMES_MAX: usize = 1_000;
/// Sandboxes that one call by labels ends.
pub const KILLED_MAX: usize = 100_000;
/// Read, and told to end, together.
const PAGE: u32 = 1_000;
const AT_ONCE: usize = 256;
const REASON_BYTES_MAX: usize = 1_024;
/// How long a call waits for the ends it asked for; they come all the same.
const ENDS_WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn kill(
    service: &SandboxesService,
    request: v1::KillSandboxesRequest,
) -> Result<v1::KillSandboxesReply, Refused> {
    bounded("reason", &request.reason, REASON_BYTES_MAX)?;
    if request.sandboxes.is_empty() == request.labels.is_empty() {
        let problem = "names, or else labels: one of them, and not empty";
        return Err(ApiError::bad_request("sandboxes", problem).into());
    }
    if request.sandboxes.len() > KILL_NAMES_MAX {
        let problem = format!("{} names, at most {KILL_NAMES_MAX} (KILL_NAMES_MAX)", request.sandboxes.len());
        return Err(ApiError::bad_request("sandboxes", problem).into());
    }
    check_labels(&request.labels)?;
    let _place = service.waits()?;
    let reason = match request.reason.as_str() {
        "" => "ended by a caller".to_owned(),
        reason => shown_line(reason, REASON_BYTES_MAX),
    };
    let mut killing = Killing { service, reason, killed: BTreeMap::new(), failed: Vec::new() };
    if request.labels.is_empty() {
        let names: BTreeSet<String> = request.sandboxes.into_iter().collect();
        killing.named(names).await;
    } else {
        killing.labelled(&request.labels).await?;
    }
    let Killing { killed, failed, .. } = killing;
    let until = Instant::now() + ENDS_WAIT_MAX;
    let ends = stream::iter(killed.keys().copied()).map(|job| ended(service, job, until));
    ends.buffer_unordered(AT_ONCE).for_each(async |()| {}).await;
    Ok(v1::KillSandboxesReply { killed: killed.into_values().collect(), failed })
}

struct Killing<'a> {
    service: &'a SandboxesService,
    reason: String,
    /// Those this call ended, by their names.
    killed: BTreeMap<JobId, String>,
    failed: Vec<v1::KillFailure>,
}

impl Killing<'_> {
    async fn named(&mut self, names: BTreeSet<String>) {
        let (service, reason) = (self.service, self.reason.clone());
        let one = async |text: String| {
            let killed = match find(service, &text).await {
                Ok(row) => kill_one(service, &row, &reason).await.map(|killed| (row, killed)),
                Err(error) => Err(error),
            };
            (text, killed)
        };
        let mut ends = stream::iter(names).map(one).buffer_unordered(AT_ONCE);
        while let Some((text, killed)) = ends.next().await {
            match killed {
                Ok((row, true)) => drop(self.killed.insert(row.job, name(&row))),
                Ok((_, false)) => {}
                Err(error) => self.failed.push(failure(text, &error)),
            }
        }
    }

    /// Until there is none that has the labels and was not told to end. What is created meanwhile with
    /// these labels ends, too.
    async fn labelled(&mut self, labels: &BTreeMap<String, String>) -> Result<(), ApiError> {
        let mut tried: BTreeSet<JobId> = BTreeSet::new();
        loop {
            let (mut before, mut found) = (None, false);
            loop {
                let rows = self.service.jobs.reads.sandboxes(labels, false, before, PAGE).await?;
                before = rows.last().map(|row| (row.created_at, row.job));
                let is_full = rows.len() == PAGE as usize;
                let fresh: Vec<SandboxRow> = rows.into_iter().filter(|row| tried.insert(row.job)).collect();
                found |= !fresh.is_empty();
                if tried.len() > KILLED_MAX {
                    let message = format!("more than {KILLED_MAX} sandboxes have these labels (KILLED_MAX)");
                    return Err(ApiError::new(ApiCode::TooManySandboxCalls, message)
                        .hint("those looked at so far are ended: ask again for the others"));
                }
                self.all(fresh).await;
                if !is_full {
                    break;
                }
            }
            if !found {
                return Ok(());
            }
        }
    }

    async fn all(&mut self, rows: Vec<SandboxRow>) {
        let (service, reason) = (self.service, self.reason.clone());
        let one = async |row: SandboxRow| (kill_one(service, &row, &reason).await, row);
        let mut ends = stream::iter(rows).map(one).buffer_unordered(AT_ONCE);
        while let Some((killed, row)) = ends.next().await {
            match killed {
                Ok(true) => drop(self.killed.insert(row.job, name(&row))),
                Ok(false) => {}
                Err(error) => self.failed.push(failure(name(&row), &error)),
            }
        }
    }
}

fn failure(sandbox: String, error: &ApiError) -> v1::KillFailure {
    v1::KillFailure { sandbox, code: error.code.as_str().to_owned(), message: error.message.clone() }
}

async fn find(service: &SandboxesService, text: &str) -> Result<SandboxRow, ApiError> {
    let id = sandbox_id(text)?;
    let none = || ApiError::not_found("sandbox", text);
    let job = id.rollout.group.job;
    match service.jobs.reads.sandbox(job).await? {
        Some(row) if id.rollout == only_rollout(job) && id.step == StepIndex(0) => Ok(row),
        Some(_) => Err(none()),
        None if service.jobs.reads.job_state(job).await?.is_some() => {
            let message = format!("`{}` is of a job, not of a client", shown(text, 80));
            Err(ApiError::new(ApiCode::BadRequest, message)
                .hint(format!("`rollyard cancel {job}` ends the job; its driver finishes a session")))
        }
        None => Err(none()),
    }
}

/// True if this call ends it; one that ends already is not touched.
async fn kill_one(service: &SandboxesService, row: &SandboxRow, reason: &str) -> Result<bool, ApiError> {
    if row.state.is_final() || row.state == JobState::Cancelling {
        return Ok(false);
    }
    let (done, stored) = oneshot::channel();
    let cancel =
        Input::Cancel { job: row.job, code: FailureCode::Cancelled, reason: reason.to_owned(), done };
    service.jobs.inbox.send(cancel).await?;
    jobs::committed(&service.jobs, stored).await
}

/// Returns when the job has ended, or at `until`, or when it cannot be told.
async fn ended(service: &SandboxesService, job: JobId, until: Instant) {
    let listening = service.news.of(job);
    loop {
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        let state = service.jobs.reads.job_state(job).await;
        if !matches!(state, Ok(Some(state)) if !state.is_final()) {
            return;
        }
        tokio::select! {
            () = service.jobs.stop.cancelled() => return,
            () = tokio::time::sleep_until(until) => return,
            () = heard => {}
        }
    }
}
