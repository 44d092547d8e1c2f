//! `ReadArtifact`: an output that an attempt kept, from the blob store.

use rollout::RolloutId;
use rollout_wire::v1;

use super::outlet::{Gone, Outlet};
use super::rollouts::{no_job, no_rollout, step_index};
use super::{ApiError, JobsService, Stream, blob};

/// Chunks that wait for a slow reader.
const CHUNKS_MAX: usize = 4;
/// Characters of a name of an output in a message.
const NAME_CHARS_MAX: usize = 64;

pub(super) async fn read(
    service: &JobsService,
    request: &v1::ReadArtifactRequest,
) -> Result<Stream<v1::ArtifactChunk>, ApiError> {
    let no_id = |_| ApiError::not_found("rollout", &request.rollout);
    let rollout: RolloutId = request.rollout.parse().map_err(no_id)?;
    let facts = service.jobs.get(rollout.group.job).await?.ok_or_else(|| no_job(rollout))?;
    let found = service.reads.rollout(rollout).await?;
    found.ok_or_else(|| no_rollout(&request.rollout, rollout, &facts))?;
    let step = step_index(&facts.plan, &request.step)?;
    let mut attempts = service.reads.attempts(rollout).await?;
    attempts.retain(|row| {
        row.attempt.step == step && request.attempt.is_none_or(|wanted| row.attempt.attempt == wanted)
    });
    attempts.sort_by_key(|row| std::cmp::Reverse(row.attempt.attempt));
    let kept = || attempts.iter().filter_map(|row| row.outcome.as_ref()).flat_map(|o| &o.artifacts);
    let artifact = kept().find(|artifact| artifact.name == request.name).ok_or_else(|| {
        let mut names: Vec<String> =
            kept().map(|artifact| rollout::text::shown(&artifact.name, NAME_CHARS_MAX)).collect();
        names.sort();
        names.dedup();
        let hint = match (names.as_slice(), attempts.iter().any(|row| row.outcome.is_none())) {
            ([], true) => "outputs are kept as the attempt ends, and it has not".to_owned(),
            ([], false) => format!("no output is kept; `rollyard explain {rollout}` says why"),
            (names, _) => format!("the outputs that are kept: {}", names.join(", ")),
        };
        ApiError::not_found("output", &format!("{}/{} {}", request.rollout, request.step, request.name))
            .hint(hint)
    })?;
    let sha256 = artifact.sha256.clone();
    let (outlet, stream) = Outlet::open(service, CHUNKS_MAX)?;
    service.tasks.spawn(send(service.clone(), outlet, sha256));
    Ok(stream)
}

pub(super) async fn send(service: JobsService, outlet: Outlet<v1::ArtifactChunk>, sha256: String) {
    let chunk = |data: bytes::Bytes| v1::ArtifactChunk { data: data.to_vec() };
    let ended = tokio::select! {
        () = outlet.closed() => Ok(()),
        () = service.stop.cancelled() => Err(ApiError::from(crate::inbox::Stopping)),
        sent = blob::send(&service, &outlet, &sha256, 0, chunk) => match sent {
            Ok(read) => read,
            Err(Gone) => Ok(()),
        },
    };
    outlet.end(&service, ended);
}
