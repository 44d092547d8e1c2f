//! `CollectGarbage`.

use std::time::Duration;

use rollout_wire::v1;

use super::{ApiCode, ApiError, JobsService};
use crate::garbage::{CollectError, Sum};
use crate::health::chain;

pub(super) async fn collect(
    service: &JobsService,
    request: &v1::CollectGarbageRequest,
) -> Result<v1::CollectGarbageReply, ApiError> {
    let collector = service.collector()?;
    let grace = request.grace_ms.map(Duration::from_millis);
    if let Some(grace) = grace.filter(|grace| *grace < service.blobs.grace_min()) {
        let least = service.blobs.grace_min().as_secs();
        let problem = format!("{} s, and blobs in a bucket stay at least {least} s", grace.as_secs());
        return Err(ApiError::bad_request("grace_ms", problem));
    }
    let collected = tokio::select! {
        collected = collector.collect(request.dry_run, grace) => collected,
        () = service.stop.cancelled() => return Err(ApiError::from(crate::inbox::Stopping)),
    };
    let collected = collected.map_err(failed)?;
    Ok(v1::CollectGarbageReply {
        dry_run: request.dry_run,
        expired_checkpoints: collected.expired,
        layers: Some(message(collected.layers)),
        unnamed: Some(message(collected.unnamed)),
        kept: Some(message(collected.kept)),
    })
}

fn message(sum: Sum) -> v1::BlobSum {
    v1::BlobSum { blobs: sum.blobs, bytes: sum.bytes }
}

fn failed(error: CollectError) -> ApiError {
    match error {
        CollectError::Busy => ApiError::new(ApiCode::CollectionRuns, error.to_string())
            .hint("wait for it to end; a yard also collects by itself"),
        CollectError::Stopping(stopping) => stopping.into(),
        CollectError::Books(error) => error.into(),
        error @ CollectError::Schedule { .. } => ApiError::new(ApiCode::StoreFailed, error.to_string())
            .hint("nothing was removed; see the schedules by `rollyard schedule ls`"),
        error @ CollectError::Blobs(_) => ApiError::new(ApiCode::StoreFailed, chain(&error)),
    }
}
