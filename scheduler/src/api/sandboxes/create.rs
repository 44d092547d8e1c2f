//! Creating a sandbox: a job like any other, and a call that waits until it is ready.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use prost::Message as _;
use rollout::checkpoint::Checkpoint;
use rollout::plan::SESSION_IDLE_TIMEOUT;
use rollout::state::JobState;
use rollout::{FailureCode, JobId, Millis};
use rollout_wire::v1;
use scheduler_core::HoldCode;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::document::{self, START_TIMEOUT, TIMEOUT, Written};
use super::ending;
use super::view::{message, name};
use super::{Refused, SandboxesService, bounded};
use crate::api::submit::{Asked, KEY_BYTES_MAX, check_key, key_in_use, new_job};
use crate::api::{ApiCode, ApiError, blob, images, jobs};
use crate::clock;
use crate::inbox::{Input, Submission, SubmitRefused};
use crate::store::{NewSandbox, SandboxRow};

/// Beyond its start timeout, for the end of it to be stored.
const START_SLACK: Duration = Duration::from_secs(30);
/// Rows of one checkpoint that are looked at: all have the same files.
const CHECKPOINT_ROWS_MAX: u32 = 16;
/// Blobs of what it starts with that are looked for at once.
const RENEWED_AT_ONCE: usize = 16;
/// Bytes of an image, a user, a folder or a project.
const TEXT_BYTES_MAX: usize = 4096;

pub(super) async fn create(
    service: &SandboxesService,
    request: v1::CreateSandboxRequest,
) -> Result<v1::Sandbox, Refused> {
    check_key(&request.idempotency_key, KEY_BYTES_MAX)?;
    for (field, text) in [
        ("image", &request.image),
        ("user", &request.user),
        ("workdir", &request.workdir),
        ("project", &request.project),
        ("checkpoint", &request.checkpoint),
    ] {
        bounded(field, text, TEXT_BYTES_MAX)?;
    }
    let _place = service.waits()?;
    let request_hash = request_hash(&request);
    if let Some(job) = owner(service, &request.idempotency_key, &request_hash).await? {
        return Ok(ready(service, job, true).await?);
    }
    let start = start(service, &request).await?;
    let image = start.as_ref().map(|(_, image)| image.as_str());
    let step = document::of_request(&request, image);
    let wanted = Wanted {
        step,
        labels: request.labels.clone(),
        project: request.project.clone(),
        key: request.idempotency_key,
        request_hash,
        start_timeout: request.start_timeout_ms.map_or(START_TIMEOUT, Millis),
        timeout: request.timeout_ms.map_or(TIMEOUT, Millis),
        idle_timeout: request.idle_timeout_ms.map_or(SESSION_IDLE_TIMEOUT, Millis),
        base: start.map(|(base, _)| base),
    };
    let (job, adopted) = submit(service, wanted).await?;
    Ok(ready(service, job, adopted).await?)
}

/// Over everything but the key.
fn request_hash(request: &v1::CreateSandboxRequest) -> String {
    let keyless = v1::CreateSandboxRequest { idempotency_key: String::new(), ..request.clone() };
    let mut hasher = Sha256::new();
    hasher.update("create sandbox\0");
    hasher.update(keyless.encode_to_vec());
    hex::encode(hasher.finalize())
}

/// The job of a key that was used for the same request.
pub(super) async fn owner(
    service: &SandboxesService,
    key: &str,
    request_hash: &str,
) -> Result<Option<JobId>, ApiError> {
    match service.jobs.reads.job_by_key(key).await? {
        None => Ok(None),
        Some(row) if row.request_hash == request_hash => Ok(Some(row.job)),
        Some(row) => Err(key_in_use(key, format_args!("job {}", row.job))),
    }
}

/// What it starts with, and the image that lies below.
async fn start(
    service: &SandboxesService,
    request: &v1::CreateSandboxRequest,
) -> Result<Option<(Checkpoint, String)>, ApiError> {
    if request.checkpoint.is_empty() {
        return Ok(None);
    }
    let none =
        || ApiError::not_found("checkpoint", &request.checkpoint).hint("`rollyard checkpoint ls` lists them");
    let id = request.checkpoint.parse().map_err(|_| none())?;
    let rows = service.jobs.reads.checkpoint(id, CHECKPOINT_ROWS_MAX).await?;
    let row = rows.into_iter().find(|row| row.removed.is_none()).ok_or_else(none)?;
    let facts = service.jobs.jobs.get(row.taken.attempt.rollout.group.job).await?.ok_or_else(none)?;
    let made_by = row.taken.attempt;
    let resolved = tokio::task::spawn_blocking(move || facts.resolve(made_by)).await;
    let resolved = resolved.map_err(|error| ApiError::new(ApiCode::StoreFailed, error.to_string()))?;
    let resolved = resolved.map_err(|failure| ApiError::new(ApiCode::StoreFailed, failure.message))?;
    Ok(Some((row.checkpoint, resolved.image)))
}

/// A sandbox that is to be.
pub(super) struct Wanted {
    pub step: Map<String, Value>,
    pub labels: std::collections::BTreeMap<String, String>,
    pub project: String,
    pub key: String,
    pub request_hash: String,
    pub start_timeout: Millis,
    pub timeout: Millis,
    pub idle_timeout: Millis,
    pub base: Option<Checkpoint>,
}

/// Its job, stored; and whether it was there already.
pub(super) async fn submit(service: &SandboxesService, wanted: Wanted) -> Result<(JobId, bool), ApiError> {
    let Wanted { step, labels, project, key, request_hash, start_timeout, timeout, idle_timeout, base } =
        wanted;
    let sandbox = NewSandbox {
        image: String::new(),
        labels: labels.clone(),
        start_timeout,
        timeout,
        idle_timeout,
        base: base.clone(),
    };
    let turn = service.jobs.limits.check().await;
    let written = tokio::task::spawn_blocking(move || document::written(step, &labels, &project)).await;
    drop(turn);
    let written = written.map_err(|error| ApiError::new(ApiCode::StoreFailed, error.to_string()))?;
    let Written { document, plan } = written?;
    // From here on until the job is stored, none of its blobs is collected.
    let _submitting = service.jobs.collector()?.submitting().await;
    if let Some(base) = &base {
        renew(service, base).await?;
    }
    let asked = Asked {
        document,
        source_name: "sandbox".to_owned(),
        table_root: String::new(),
        idempotency_key: key.clone(),
        request_hash,
        files: Vec::new(),
        sandbox: Some(sandbox),
    };
    let (mut new_job, mut facts, named) = new_job(&service.jobs.blobs, plan, asked).await?;
    let image = named.first().cloned().unwrap_or_default();
    new_job.images = images::pin(&service.jobs, named, &[]).await?;
    let pins = new_job.images.iter().map(|image| (image.reference.clone(), image.pinned.clone()));
    facts.images = pins.collect();
    facts.base = base.map(Arc::new);
    if let Some(sandbox) = &mut new_job.sandbox {
        sandbox.image = facts.images.get(&image).cloned().unwrap_or(image);
    }
    let (job, plan) = (new_job.job, facts.plan.clone());
    service.jobs.jobs.insert(Arc::new(facts));
    let (reply, answer) = oneshot::channel();
    let submission = Submission { new_job, plan, resume: false, fired: None, reply };
    service.jobs.inbox.send(Input::Submit(Box::new(submission))).await?;
    match jobs::committed(&service.jobs, answer).await? {
        Ok(submitted) => Ok((submitted.job, submitted.job != job)),
        Err(SubmitRefused::KeyInUse { job } | SubmitRefused::FileChanged { job, .. }) => {
            Err(key_in_use(&key, format_args!("job {job}")))
        }
        Err(SubmitRefused::Store(error)) => Err(error.into()),
    }
}

/// What it starts with is there, and stays until the job is stored.
async fn renew(service: &SandboxesService, base: &Checkpoint) -> Result<(), ApiError> {
    let renewed = stream::iter(base.layers.clone()).map(async |layer| {
        match service.jobs.blobs.renew(&layer.blob).await.map_err(blob::failed)? {
            Some(_) => Ok(()),
            None => {
                let message = format!("blob {} of the checkpoint is not in the store any more", layer.blob);
                Err(ApiError::new(ApiCode::BlobMissing, message).hint("start from another checkpoint"))
            }
        }
    });
    renewed.buffer_unordered(RENEWED_AT_ONCE).try_collect().await
}

/// Waits until the sandbox is ready, or is over before that.
pub(super) async fn ready(
    service: &SandboxesService,
    job: JobId,
    adopted: bool,
) -> Result<v1::Sandbox, ApiError> {
    let listening = service.news.of(job);
    loop {
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        let row = service.jobs.reads.sandbox(job).await?;
        let row = row.ok_or_else(|| ApiError::not_found("sandbox", &job.to_string()))?;
        if row.started_at.is_some() {
            listening.pass_on();
            return Ok(message(&row, adopted));
        }
        if row.state.is_final() {
            listening.pass_on();
            return Err(never_ready(&row));
        }
        if row.state == JobState::Held {
            return Err(nowhere(service, &row).await?);
        }
        let waited = Duration::from_millis(clock::wall().since(row.created_at).0);
        let left = (Duration::from_millis(row.start_timeout.0) + START_SLACK).saturating_sub(waited);
        tokio::select! {
            () = service.jobs.stop.cancelled() => return Err(crate::inbox::Stopping.into()),
            () = heard => {}
            () = tokio::time::sleep(left) => {
                let message = format!("sandbox {} is not ready and its end is not stored", name(&row));
                return Err(ApiError::new(ApiCode::StoreBusy, message)
                    .hint("ask again with the same idempotency key: it is never created twice"));
            }
        }
    }
}

/// Why a sandbox ended before it was ready.
fn never_ready(row: &SandboxRow) -> ApiError {
    let name = name(row);
    let Some(failure) = &row.failure else {
        return ApiError::new(
            ApiCode::SandboxNotStarted,
            format!("sandbox {name} ended before it was ready"),
        );
    };
    let words = rollout::text::shown(&failure.message, 2_000);
    let refused = if failure.code == FailureCode::QueueDeadline {
        let message = format!("sandbox {name} was given up: {words}");
        ApiError::new(ApiCode::SandboxStartTimeout, message)
    } else {
        let message = format!("sandbox {name} ended before it was ready: {} ({words})", failure.code);
        ApiError::new(ApiCode::SandboxNotStarted, message)
    };
    match ending::advice(failure.code) {
        "" => refused,
        advice => refused.hint(advice),
    }
}

/// No node may ever hold it: it does not wait for one.
async fn nowhere(service: &SandboxesService, row: &SandboxRow) -> Result<ApiError, ApiError> {
    let (done, stored) = oneshot::channel();
    let (job, code, reason) = (row.job, FailureCode::Cancelled, row.reason.clone());
    service.jobs.inbox.send(Input::Cancel { job, code, reason, done }).await?;
    jobs::committed(&service.jobs, stored).await?;
    let message = format!("sandbox {}: {}", name(row), row.reason);
    let code = match row.reason.split(':').next() {
        Some(code) if code == HoldCode::TooBigForYard.as_str() => ApiCode::TooBigForYard,
        Some(code) if code == HoldCode::RefusedByEveryNode.as_str() => ApiCode::RefusedByEveryNode,
        _ => ApiCode::SandboxNotStarted,
    };
    Ok(ApiError::new(code, message).hint("another request may fit: it is not tried again"))
}
