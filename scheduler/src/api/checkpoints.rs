//! Checkpoints: what there is, what one is made of, and taking one away.

use rollout::checkpoint::CheckpointId;
use rollout::{AttemptId, RolloutId, StepIndex};
use rollout_wire::{to_wire, v1};

use super::outlet::Outlet;
use super::{ApiCode, ApiError, JobsService, Stream, artifact, page};
use crate::store::{CheckpointRow, Of, Taken};

/// Rows of one checkpoint, and attempts that started from it, that are told.
const TOLD_MAX: u32 = 1_000;
/// Chunks that wait for a slow reader.
const CHUNKS_MAX: usize = 4;
/// Why one was removed, as in `removed_why`.
const BY_HAND: &str = "removed by a user";

pub(super) async fn list(
    service: &JobsService,
    request: &v1::ListCheckpointsRequest,
) -> Result<v1::ListCheckpointsReply, ApiError> {
    let size = page::size(request.page_size)?;
    let after = match request.page_token.as_str() {
        "" => None,
        token => Some(place(token).ok_or_else(page::bad_token)?),
    };
    let of = match request.of.as_str() {
        "" => Of::Yard,
        text => match (text.parse(), text.parse::<RolloutId>()) {
            (Ok(job), _) => Of::Job(job),
            (_, Ok(rollout)) => Of::Rollout(rollout),
            _ => return Err(ApiError::not_found("job or rollout", text)),
        },
    };
    let job = match of {
        Of::Yard => None,
        Of::Job(job) => Some(job),
        Of::Rollout(rollout) => Some(rollout.group.job),
    };
    if let Some(job) = job {
        service.reads.job_state(job).await?.ok_or_else(|| ApiError::not_found("job", &job.to_string()))?;
    }
    if let Of::Rollout(rollout) = of {
        service.reads.rollout(rollout).await?.ok_or_else(|| ApiError::not_found("rollout", &request.of))?;
    }
    let rows = service.reads.checkpoints(of, request.removed_too, after, size).await?;
    let last = rows.last().filter(|_| rows.len() == size as usize);
    let next_page_token = last.map(|row| token(row.taken)).unwrap_or_default();
    let checkpoints = messages(service, &rows).await;
    Ok(v1::ListCheckpointsReply { checkpoints, next_page_token })
}

pub(super) async fn get(service: &JobsService, text: &str) -> Result<v1::GetCheckpointReply, ApiError> {
    let (id, rows) = find(service, text).await?;
    let checkpoint = rows.first().map(|row| to_wire::checkpoint(&row.checkpoint));
    let mut users = Vec::new();
    for user in service.reads.checkpoint_users(id, TOLD_MAX).await? {
        users.push(v1::CheckpointUser {
            rollout: user.attempt.rollout.to_string(),
            step: step_name(service, user.attempt).await,
            attempt: user.attempt.attempt,
            running: user.ended_at.is_none(),
        });
    }
    Ok(v1::GetCheckpointReply {
        id: id.to_string(),
        checkpoint,
        taken: messages(service, &rows).await,
        users,
    })
}

pub(super) async fn read_layer(
    service: &JobsService,
    request: &v1::ReadLayerRequest,
) -> Result<Stream<v1::ArtifactChunk>, ApiError> {
    let (_, rows) = find(service, &request.checkpoint).await?;
    let mut layers = rows.iter().flat_map(|row| &row.checkpoint.layers);
    let layer = layers
        .find(|layer| layer.blob == request.blob_sha256)
        .ok_or_else(|| ApiError::not_found("layer of the checkpoint with the blob", &request.blob_sha256))?;
    let (outlet, stream) = Outlet::open(service, CHUNKS_MAX)?;
    service.tasks.spawn(artifact::send(service.clone(), outlet, layer.blob.clone()));
    Ok(stream)
}

/// Whether an open group has it does not change back: a group that is in the tables stays there. So
/// what is looked at here still holds when the driver removes it.
pub(super) async fn remove(service: &JobsService, text: &str) -> Result<v1::RemoveCheckpointReply, ApiError> {
    let collector = service.collector()?;
    let (id, rows) = find(service, text).await?;
    let in_use = |who: String| {
        ApiError::new(ApiCode::CheckpointInUse, format!("checkpoint {id} is in use: {who}"))
            .hint("wait until the group is in the tables, or cancel its job")
    };
    if let Some(row) = rows.iter().find(|row| row.needed) {
        let rollout = row.taken.attempt.rollout;
        return Err(in_use(format!("the group of {rollout} is open, and a step may start from it")));
    }
    let users = service.reads.checkpoint_users(id, TOLD_MAX).await?;
    if let Some(user) = users.iter().find(|user| user.ended_at.is_none()) {
        let step = step_name(service, user.attempt).await;
        return Err(in_use(format!("{}/{step} runs in a sandbox over it", user.attempt.rollout)));
    }
    let rows: Vec<CheckpointRow> = rows.into_iter().filter(|row| row.removed.is_none()).collect();
    for some in rows.chunks(TOLD_MAX as usize) {
        let taken: Vec<Taken> = some.iter().map(|row| row.taken).collect();
        collector.remove_checkpoints(&taken, BY_HAND).await?;
    }
    let rows = service.reads.checkpoint(id, TOLD_MAX).await?;
    Ok(v1::RemoveCheckpointReply { removed: messages(service, &rows).await })
}

async fn find(service: &JobsService, text: &str) -> Result<(CheckpointId, Vec<CheckpointRow>), ApiError> {
    let none = || ApiError::not_found("checkpoint", text).hint("`rollyard checkpoint ls` lists them");
    let id: CheckpointId = text.parse().map_err(|_| none())?;
    let rows = service.reads.checkpoint(id, TOLD_MAX).await?;
    if rows.is_empty() { Err(none()) } else { Ok((id, rows)) }
}

async fn messages(service: &JobsService, rows: &[CheckpointRow]) -> Vec<v1::StoredCheckpoint> {
    let mut messages = Vec::with_capacity(rows.len());
    for row in rows {
        let Taken { attempt, ordinal } = row.taken;
        let state = match (&row.removed, row.needed) {
            (Some(_), _) => "removed",
            (None, true) => "needed",
            (None, false) => "kept",
        };
        messages.push(v1::StoredCheckpoint {
            id: row.checkpoint.id().to_string(),
            rollout: attempt.rollout.to_string(),
            step: step_name(service, attempt).await,
            attempt: attempt.attempt,
            ordinal,
            kind: row.kind.clone(),
            state: state.to_owned(),
            packed_bytes: row.packed_bytes,
            content_bytes: row.content_bytes,
            depth: u32::try_from(row.checkpoint.layers.len()).unwrap_or(u32::MAX),
            taken_at_us: row.taken_at.0,
            expires_at_us: row.expires_at.map(|at| at.0),
            removed_at_us: row.removed.as_ref().map(|(at, _)| at.0),
            removed_why: row.removed.as_ref().map(|(_, why)| why.clone()).unwrap_or_default(),
        });
    }
    messages
}

/// By its number where the spec of the job cannot be read any more.
async fn step_name(service: &JobsService, attempt: AttemptId) -> String {
    let facts = service.jobs.get(attempt.rollout.group.job).await;
    let facts = facts.ok().flatten().filter(|facts| usize::from(attempt.step.0) < facts.plan.steps.len());
    facts.map_or_else(
        || format!("#{}", attempt.step.0),
        |facts| facts.plan.step(attempt.step).name.to_string(),
    )
}

fn token(taken: Taken) -> String {
    let AttemptId { rollout, step, attempt } = taken.attempt;
    format!("{rollout}/{}/{attempt}/{}", step.0, taken.ordinal)
}

fn place(token: &str) -> Option<Taken> {
    let mut parts = token.split('/');
    let rollout = parts.next()?.parse().ok()?;
    let step = StepIndex(parts.next()?.parse().ok()?);
    let attempt = AttemptId { rollout, step, attempt: parts.next()?.parse().ok()? };
    let ordinal = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(Taken { attempt, ordinal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_the_row_it_stands_behind() {
        let rollout: RolloutId = "j0000000000007-g3-s1-r2".parse().unwrap();
        let attempt = AttemptId { rollout, step: StepIndex(4), attempt: 5 };
        let taken = Taken { attempt, ordinal: 6 };
        assert_eq!(place(&token(taken)), Some(taken));
        for bad in ["", "x/0/0/0", "j0000000000007-g3-s1/0/0", "j0000000000007-g3-s1/0/0/0/0"] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
