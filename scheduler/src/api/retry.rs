//! Failed rollouts run again.

use rollout::{GroupId, JobId, RolloutId};
use rollout_wire::v1;
use scheduler_core::retry::RetryScope;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::jobs::{committed, get};
use super::submit::{KEY_BYTES_MAX, check_key};
use super::{ApiCode, ApiError, JobsService};
use crate::inbox::Input;
use crate::retry::{CANDIDATES_MAX, Of, Retry, RetryRefused};

pub(super) async fn retry(
    service: &JobsService,
    request: v1::RetryRequest,
) -> Result<v1::RetryReply, ApiError> {
    let (job, of) = target(&request.target)?;
    check_key(&request.idempotency_key, KEY_BYTES_MAX)?;
    let not_found = || ApiError::not_found("job, group or rollout", &request.target);
    if !exists(service, job, of).await? {
        return Err(not_found());
    }
    if service.reads.sandbox(job).await?.is_some() {
        let message = format!("{job} is the sandbox of a client, which does not run again");
        return Err(ApiError::new(ApiCode::RetryNothing, message).hint("create another"));
    }
    let scope = RetryScope { all_failed: request.all_failed, cancelled: request.cancelled };
    let asked = serde_json::json!([request.target, request.all_failed, request.cancelled]).to_string();
    let (reply, answer) = oneshot::channel();
    let retry = Retry {
        job,
        of,
        scope,
        key: request.idempotency_key.clone(),
        request_hash: hex::encode(Sha256::digest(asked.as_bytes())),
        reply,
    };
    service.inbox.send(Input::Retry(Box::new(retry))).await?;
    let answered = match committed(service, answer).await? {
        Ok(answered) => answered,
        Err(RetryRefused::NoJob) => return Err(not_found()),
        Err(refused) => return Err(told(refused, &request)),
    };
    let job = Some(get(service, &job.to_string()).await?);
    Ok(v1::RetryReply { job, ..answered })
}

fn target(text: &str) -> Result<(JobId, Of), ApiError> {
    if let Ok(rollout) = text.parse::<RolloutId>() {
        return Ok((rollout.group.job, Of::Rollout(rollout)));
    }
    if let Ok(group) = text.parse::<GroupId>() {
        return Ok((group.job, Of::Group(group.index)));
    }
    let job = text.parse().map_err(|_| ApiError::not_found("job, group or rollout", text))?;
    Ok((job, Of::Job))
}

async fn exists(service: &JobsService, job: JobId, of: Of) -> Result<bool, ApiError> {
    Ok(match of {
        Of::Job => service.reads.job_state(job).await?.is_some(),
        Of::Group(index) => service.reads.rollout(RolloutId::shared(GroupId { job, index })).await?.is_some(),
        Of::Rollout(rollout) => service.reads.rollout(rollout).await?.is_some(),
    })
}

fn told(refused: RetryRefused, request: &v1::RetryRequest) -> ApiError {
    let target = &request.target;
    match refused {
        RetryRefused::NoJob => ApiError::not_found("job", target),
        RetryRefused::KeyInUse => {
            let message = "the idempotency key was used for another request to run rollouts again";
            ApiError::new(ApiCode::IdempotencyRequestMismatch, message).hint("take a new key")
        }
        RetryRefused::Cancelled => {
            let message = format!("the job of {target} was cancelled, and is not run again as it is");
            ApiError::new(ApiCode::RetryCancelled, message)
                .hint("wait until it has ended, then ask with --cancelled: the job goes on then")
        }
        RetryRefused::Ending => {
            ApiError::new(ApiCode::StoreBusy, format!("the job of {target} is just ending"))
                .hint("ask again with the same idempotency key: it is never done twice")
        }
        RetryRefused::TooMany => {
            let message =
                format!("more than {CANDIDATES_MAX} rollouts of {target} failed (RETRY_MEMBERS_MAX)");
            ApiError::new(ApiCode::RetryTooMany, message).hint("ask group by group")
        }
        RetryRefused::Nothing(reply) => {
            let reasons = reply.not_retried.iter();
            let reasons: Vec<String> = reasons.map(|r| format!("{} {}", r.rollouts, r.why)).collect();
            let why = match reasons.is_empty() {
                true => "every ended rollout has a valid reward, or was replaced".to_owned(),
                false => reasons.join("; "),
            };
            ApiError::new(ApiCode::RetryNothing, format!("nothing of {target} is to be run again: {why}"))
        }
        RetryRefused::Store(error) => error.into(),
    }
}
