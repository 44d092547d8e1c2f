//! Forks: the files of a sandbox are saved on its node, and others begin with them.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rollout::checkpoint::Checkpoint;
use rollout::plan::{ResolvedStep, SESSION_IDLE_TIMEOUT};
use rollout::{AttemptId, Millis, SandboxId};
use rollout_wire::{from_wire, v1};
use sha2::{Digest, Sha256};

use super::create::{Wanted, owner, ready, submit};
use super::{Refused, SandboxesService, check_labels, client, document, sandbox_id};
use crate::api::submit::{KEY_BYTES_MAX, check_key};
use crate::api::{ApiCode, ApiError, job_id};
use crate::forward::ask;

pub const FORKS_MAX: u32 = 64;
/// Bytes of what is put behind the key of each fork.
const SUFFIX_BYTES_MAX: usize = 3;

pub(super) async fn fork(
    service: &SandboxesService,
    request: v1::ForkSandboxRequest,
) -> Result<v1::ForkSandboxReply, Refused> {
    let id = sandbox_id(&request.sandbox)?;
    check_key(&request.idempotency_key, KEY_BYTES_MAX - SUFFIX_BYTES_MAX)?;
    check_labels(&request.labels)?;
    if !(1..=FORKS_MAX).contains(&request.count) {
        let problem = format!("{} is not between 1 and {FORKS_MAX} (FORKS_MAX)", request.count);
        return Err(ApiError::bad_request("count", problem).into());
    }
    let _place = service.waits()?;
    let hash = request_hash(&id, &request);
    let step = step(service, &id, &request.sandbox).await?;
    // A repeated call makes what is missing of the same checkpoint.
    let first = owner(service, &key(&request, 0), &hash).await?;
    let known = match first {
        Some(job) => service.jobs.reads.sandbox_base(job).await?,
        None => None,
    };
    let saved = match known {
        Some(base) => base,
        None => save(service, &id).await?,
    };
    let project = service.jobs.jobs.get(id.rollout.group.job).await?;
    let project = project.and_then(|facts| facts.plan.project.clone()).unwrap_or_default();
    let one = |index, base| {
        let (step, hash) = (&step, hash.clone());
        let (labels, project, key) = (request.labels.clone(), project.clone(), key(&request, index));
        async move {
            let (job, adopted) = match owner(service, &key, &hash).await? {
                Some(job) => (job, true),
                None => submit(service, wanted(step, labels, project, key, hash, base)).await?,
            };
            ready(service, job, adopted).await
        }
    };
    // The first is stored before the others: a repeated call finds the checkpoint by it, and of calls at
    // once with one key, each takes that of the one which stored it.
    let mut sandboxes = vec![one(0, saved).await?];
    let first = job_id(&sandboxes[0].job)?;
    let base = service.jobs.reads.sandbox_base(first).await?.ok_or_else(|| {
        ApiError::new(ApiCode::StoreFailed, format!("job {first} of a fork has no checkpoint to begin with"))
    })?;
    let others = stream::iter(1..request.count).map(|index| one(index, base.clone()));
    sandboxes.extend(others.buffered(FORKS_MAX as usize).try_collect::<Vec<_>>().await?);
    Ok(v1::ForkSandboxReply { sandboxes, checkpoint: base.id().to_string() })
}

fn key(request: &v1::ForkSandboxRequest, index: u32) -> String {
    format!("{}-{index}", request.idempotency_key)
}

/// Not over the checkpoint: a repeated call would take another.
fn request_hash(id: &SandboxId, request: &v1::ForkSandboxRequest) -> String {
    let id = SandboxId { node: None, ..id.clone() };
    let asked = serde_json::json!(["fork sandbox", id.to_string(), request.count, request.labels]);
    hex::encode(Sha256::digest(asked.to_string().as_bytes()))
}

fn wanted(
    step: &ResolvedStep,
    labels: BTreeMap<String, String>,
    project: String,
    key: String,
    request_hash: String,
    base: Checkpoint,
) -> Wanted {
    let (start_timeout, timeout): (Millis, Millis) = (step.start_timeout, step.timeout);
    let idle_timeout = step.work.session().map_or(SESSION_IDLE_TIMEOUT, |session| session.idle_timeout);
    let (step, base) = (document::of_fork(step), Some(base));
    Wanted { step, labels, project, key, request_hash, start_timeout, timeout, idle_timeout, base }
}

/// The step whose sandbox it is.
async fn step(service: &SandboxesService, id: &SandboxId, text: &str) -> Result<ResolvedStep, ApiError> {
    let none = || ApiError::not_found("sandbox", text);
    let facts = service.jobs.jobs.get(id.rollout.group.job).await?.ok_or_else(none)?;
    let planned = facts.plan.steps.get(usize::from(id.step.0)).ok_or_else(none)?;
    planned.work.session().ok_or_else(none)?;
    service.jobs.reads.rollout(id.rollout).await?.ok_or_else(none)?;
    let attempt = AttemptId { rollout: id.rollout, step: id.step, attempt: 0 };
    let resolved = tokio::task::spawn_blocking(move || facts.resolve(attempt)).await;
    let resolved = resolved.map_err(|error| ApiError::new(ApiCode::StoreFailed, error.to_string()))?;
    resolved.map_err(|failure| ApiError::new(ApiCode::StoreFailed, failure.message))
}

/// Saves its files where it runs; one that is parked is brought back first.
async fn save(service: &SandboxesService, id: &SandboxId) -> Result<Checkpoint, Refused> {
    let asked = ask(service, id, async |channel, sandbox| {
        let request = v1::TakeCheckpointRequest { sandbox, claim: String::new() };
        client(channel).take_checkpoint(request).await.map(tonic::Response::into_inner)
    });
    let (node, taken) = asked.await?;
    let checkpoint = from_wire::required("checkpoint", taken.checkpoint.as_ref());
    let checkpoint = checkpoint.and_then(|checkpoint| from_wire::checkpoint("checkpoint", checkpoint));
    let checkpoint = checkpoint.map_err(|problem| {
        let message = format!("node {node} saved sandbox {id} as what cannot be: {problem}");
        ApiError::new(ApiCode::NodeLost, message)
    })?;
    Ok(checkpoint)
}
