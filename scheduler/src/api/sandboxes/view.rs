//! Sandboxes as clients see them.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use rollout::outcome::Outcome;
use rollout::plan::Field;
use rollout::state::JobState;
use rollout::{FailureCode, JobId, Millis, NodeId, SandboxId, StepIndex, Timestamp};
use rollout_wire::{to_wire, v1};
use scheduler_core::sessions::Whereabouts;

use super::{Refused, SandboxesService, check_labels, client, ending, sandbox_id};
use crate::api::{ApiCode, ApiError, page};
use crate::jobs::JobFacts;
use crate::store::{SandboxRow, only_rollout};

const ENDED: &str = "ended";
const RUNNING: &str = "running";
const PARKED: &str = "parked";
/// How long a node may take to say how a sandbox is; it is shown as running then.
const STATE_ANSWER_MAX: Duration = Duration::from_secs(1);
/// Sandboxes of one list that nodes are asked about at once.
const ASKED_AT_ONCE_MAX: usize = 64;

pub(super) async fn get(
    service: &SandboxesService,
    request: v1::GetSandboxRequest,
) -> Result<v1::Sandbox, Refused> {
    let id = sandbox_id(&request.sandbox)?;
    let job = id.rollout.group.job;
    if let Some(row) = service.jobs.reads.sandbox(job).await? {
        if id.rollout != only_rollout(job) || id.step != StepIndex(0) {
            return Err(ApiError::not_found("sandbox", &request.sandbox).into());
        }
        return Ok(as_it_is(service, message(&row, false)).await);
    }
    let found = session(service, id, &request.sandbox).await?;
    Ok(as_it_is(service, found).await)
}

pub(super) async fn list(
    service: &SandboxesService,
    request: v1::ListSandboxesRequest,
) -> Result<v1::ListSandboxesReply, Refused> {
    let size = page::size(request.page_size)?;
    check_labels(&request.labels)?;
    let before = match request.page_token.as_str() {
        "" => None,
        token => Some(behind(token).ok_or_else(page::bad_token)?),
    };
    let rows = service.jobs.reads.sandboxes(&request.labels, request.ended_too, before, size).await?;
    let last = rows.last().filter(|_| rows.len() == size as usize);
    let next_page_token = last.map(|row| format!("{}/{}", row.created_at.0, row.job)).unwrap_or_default();
    let shown = |row| as_it_is(service, message(row, false)).boxed();
    let asked: Vec<BoxFuture<'_, v1::Sandbox>> = rows.iter().map(shown).collect();
    let sandboxes = futures::stream::iter(asked).buffered(ASKED_AT_ONCE_MAX).collect().await;
    Ok(v1::ListSandboxesReply { sandboxes, next_page_token })
}

fn behind(token: &str) -> Option<(Timestamp, JobId)> {
    let (at, job) = token.split_once('/')?;
    Some((Timestamp(at.parse().ok()?), job.parse().ok()?))
}

/// With what the books and its node know: whether it is parked or paused, and where it is now.
async fn as_it_is(service: &SandboxesService, shown: v1::Sandbox) -> v1::Sandbox {
    if shown.state != RUNNING {
        return shown;
    }
    if let Ok(id) = sandbox_id(&shown.id) {
        match whereabouts(service, &id).await {
            Ok(Whereabouts::Parked) => {
                let idle_expires_at_us = parked_until(service, &id).await;
                let (state, node) = (PARKED.to_owned(), String::new());
                return v1::Sandbox { state, node, idle_expires_at_us, ..shown };
            }
            Ok(Whereabouts::Thaws) => {
                return v1::Sandbox { state: "starting".to_owned(), node: String::new(), ..shown };
            }
            Ok(Whereabouts::Runs(node)) => return as_its_node_has_it(service, shown, node).await,
            Ok(Whereabouts::Waits | Whereabouts::Starts(_) | Whereabouts::Over) | Err(_) => {}
        }
    }
    shown
}

async fn as_its_node_has_it(service: &SandboxesService, shown: v1::Sandbox, node: NodeId) -> v1::Sandbox {
    let Ok(channel) = service.channels.to(&node) else { return shown };
    let mut client = client(channel);
    let asked = client.get(v1::GetSandboxRequest { sandbox: shown.id.clone() });
    match tokio::time::timeout(STATE_ANSWER_MAX, asked).await {
        Ok(Ok(told)) => {
            let v1::Sandbox { state, idle_expires_at_us, .. } = told.into_inner();
            v1::Sandbox { state, node: node.to_string(), idle_expires_at_us, ..shown }
        }
        Ok(Err(status)) => {
            tracing::debug!(sandbox = shown.id, %status, "a node did not say how a sandbox is");
            shown
        }
        Err(_) => {
            tracing::debug!(sandbox = shown.id, "a node did not say in time how a sandbox is");
            shown
        }
    }
}

pub(super) fn name(row: &SandboxRow) -> String {
    SandboxId { rollout: row.rollout(), step: StepIndex(0), node: row.node.clone() }.to_string()
}

pub(super) fn message(row: &SandboxRow, adopted: bool) -> v1::Sandbox {
    let state = match row {
        SandboxRow { state: JobState::Finished | JobState::Cancelled, .. } => ENDED,
        SandboxRow { started_at: Some(_), .. } => RUNNING,
        SandboxRow { node: Some(_), .. } => "starting",
        _ => "waiting",
    };
    let failure = row.failure.as_ref().filter(|failure| failure.code != FailureCode::Cancelled);
    v1::Sandbox {
        id: name(row),
        state: state.to_owned(),
        node: row.node.as_ref().map(|node| node.to_string()).unwrap_or_default(),
        image: row.image.clone(),
        labels: row.labels.clone(),
        created_at_us: row.created_at.0,
        started_at_us: row.started_at.map(|at| at.0),
        expires_at_us: row.started_at.map(|at| after(at, row.timeout)),
        failure: failure.map(ending::failure),
        adopted,
        job: row.job.to_string(),
        end: ending::of_row(row),
        idle_expires_at_us: None,
    }
}

fn after(at: Timestamp, time: Millis) -> i64 {
    at.0.saturating_add(i64::try_from(time.0.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

/// The sandbox of a session step of a job: of its last try.
async fn session(service: &SandboxesService, id: SandboxId, text: &str) -> Result<v1::Sandbox, ApiError> {
    let none = || ApiError::not_found("sandbox", text);
    let (job, step) = (id.rollout.group.job, id.step);
    let facts = service.jobs.jobs.get(job).await?.ok_or_else(none)?;
    let planned = facts.plan.steps.get(usize::from(step.0)).filter(|step| step.work.session().is_some());
    let planned = planned.ok_or_else(none)?;
    let row = service.jobs.reads.rollout_row(id.rollout).await?.ok_or_else(none)?;
    let attempts = service.jobs.reads.attempts(id.rollout).await?;
    let last = attempts.iter().rfind(|attempt| attempt.attempt.step == step);
    let whereabouts = whereabouts(service, &id).await?;
    let outcome = last.and_then(|last| last.outcome.as_deref());
    let state = match whereabouts {
        Whereabouts::Over => ENDED,
        Whereabouts::Waits => "waiting",
        Whereabouts::Starts(_) | Whereabouts::Thaws => "starting",
        Whereabouts::Parked => PARKED,
        Whereabouts::Runs(_) => RUNNING,
    };
    let node = last.map(|last| last.node.clone());
    let timeout = match planned.timeout {
        Field::Fixed(timeout) => Some(timeout),
        Field::PerRow(_) => None,
    };
    let started_at = last.and_then(|last| last.started_at);
    let failure = outcome.and_then(|outcome: &Outcome| outcome.failure.as_ref()).filter(|_| state == ENDED);
    let ended_at = last.and_then(|last| last.outcome.as_ref()).map(|outcome| outcome.times.ended_at);
    let end = (state == ENDED).then(|| ending::of_session(failure, ended_at));
    Ok(v1::Sandbox {
        state: state.to_owned(),
        node: node.as_ref().filter(|_| state != PARKED).map(|node| node.to_string()).unwrap_or_default(),
        image: image(&facts, &planned.image.to_string()),
        labels: facts.plan.labels.clone(),
        created_at_us: row.created_at.0,
        started_at_us: started_at.map(|at| at.0),
        expires_at_us: started_at.zip(timeout).map(|(at, timeout)| after(at, timeout)),
        failure: failure.map(to_wire::failure),
        adopted: false,
        job: job.to_string(),
        id: SandboxId { node, ..id }.to_string(),
        end,
        idle_expires_at_us: None,
    })
}

/// As it was pinned.
fn image(facts: &JobFacts, text: &str) -> String {
    facts.images.get(text).map_or_else(|| text.to_owned(), Clone::clone)
}

/// When what is parked ends, by the books; none too if they cannot be asked.
async fn parked_until(service: &SandboxesService, id: &SandboxId) -> Option<i64> {
    let (rollout, step) = (id.rollout, id.step);
    let asked = service.jobs.ask(move |cluster, now| cluster.parked_until(now, rollout, step)).await;
    asked.ok().flatten().flatten().map(|at| at.0)
}

/// How it is with what a call was for, by the store.
pub(crate) enum Told {
    /// No client created such a sandbox.
    NotOfClient,
    Lives,
    /// Why the call is refused, with how it ended.
    Ended(ApiError),
}

pub(crate) async fn told(
    service: &SandboxesService,
    id: &SandboxId,
    code: ApiCode,
) -> Result<Told, ApiError> {
    let job = id.rollout.group.job;
    let row = service.jobs.reads.sandbox(job).await?;
    let Some(row) = row.filter(|_| id.rollout == only_rollout(job) && id.step == StepIndex(0)) else {
        return Ok(Told::NotOfClient);
    };
    Ok(match ending::of_row(&row) {
        Some(end) => Told::Ended(ending::refusal(code, &id.to_string(), &end)),
        None => Told::Lives,
    })
}

/// Where the sandbox is, by the books.
pub(crate) async fn whereabouts(service: &SandboxesService, id: &SandboxId) -> Result<Whereabouts, ApiError> {
    let (rollout, step) = (id.rollout, id.step);
    let answer = service.jobs.ask(move |cluster, _| cluster.whereabouts(rollout, step)).await?;
    answer.ok_or_else(|| {
        ApiError::new(ApiCode::StoreBusy, "the store takes no writes, so where the sandbox is cannot be told")
            .hint("name the sandbox with its node, or try again")
    })
}
