//! Rollouts and their steps.

use rollout::plan::Per;
use rollout::state::StepState;
use rollout::{RolloutId, StepIndex};
use rollout_wire::{to_wire, v1};

use super::{ApiError, JobsService, job_id, page};
use crate::jobs::JobFacts;
use crate::store::{AttemptRow, RolloutRow};

pub(super) async fn list(
    service: &JobsService,
    request: &v1::ListRolloutsRequest,
) -> Result<v1::ListRolloutsReply, ApiError> {
    let job = job_id(&request.job)?;
    let size = page::size(request.page_size)?;
    let after = match request.page_token.as_str() {
        "" => None,
        token => {
            let after: RolloutId = token.parse().map_err(|_| page::bad_token())?;
            Some(after).filter(|after| after.group.job == job).ok_or_else(page::bad_token)?.into()
        }
    };
    let facts = service.jobs.get(job).await?.ok_or_else(|| ApiError::not_found("job", &request.job))?;
    let rows = service.reads.rollouts(job, after, size).await?;
    let last = rows.last().filter(|_| rows.len() == size as usize);
    let next_page_token = last.map(|row| row.rollout.to_string()).unwrap_or_default();
    let mut rollouts = Vec::with_capacity(rows.len());
    let mut task: Option<(u32, String)> = None;
    for row in rows {
        let index = row.rollout.group.index;
        let task_id = match &task {
            Some((known, id)) if *known == index => id.clone(),
            _ => facts.clone().task_id(index).await?,
        };
        task = Some((index, task_id.clone()));
        rollouts.push(message(row, task_id));
    }
    Ok(v1::ListRolloutsReply { rollouts, next_page_token })
}

fn message(row: RolloutRow, task_id: String) -> v1::Rollout {
    let status = match row.status {
        Some(status) => status.as_str(),
        None if row.begun => "running",
        None => "waiting",
    };
    #[allow(clippy::cast_possible_truncation)]
    let reward = row.reward.map(|value| value as f32);
    v1::Rollout {
        id: row.rollout.to_string(),
        task_id,
        status: status.to_owned(),
        stop_reason: row.stop_reason,
        failure: row.failure.as_ref().map(to_wire::failure),
        reward,
        created_at_us: Some(row.created_at.0),
        finished_at_us: row.ended_at.map(|at| at.0),
        superseded: row.superseded,
    }
}

pub(super) async fn steps(service: &JobsService, text: &str) -> Result<v1::ListStepsReply, ApiError> {
    let rollout: RolloutId = text.parse().map_err(|_| ApiError::not_found("rollout", text))?;
    let facts = service.jobs.get(rollout.group.job).await?.ok_or_else(|| no_job(rollout))?;
    let found = service.reads.rollout_row(rollout).await?;
    let found = found.ok_or_else(|| no_rollout(text, rollout, &facts))?;
    let ended = found.status;
    let mut attempts = service.reads.attempts(rollout).await?;
    let mut states = service.reads.step_states(rollout).await?;
    // What its group ran once is shown with every rollout.
    if !rollout.is_shared() && facts.plan.steps.iter().any(|step| step.per == Per::Group) {
        let shared = RolloutId::shared(rollout.group);
        attempts.extend(service.reads.attempts(shared).await?);
        states.extend(service.reads.step_states(shared).await?);
    }
    let mut steps = Vec::new();
    for index in facts.plan.step_indices() {
        let step = facts.plan.step(index);
        if rollout.is_shared() && step.per == Per::Rollout {
            continue;
        }
        let of_step: Vec<&AttemptRow> = attempts.iter().filter(|row| row.attempt.step == index).collect();
        let row = |state: &str| v1::StepRow {
            step: step.name.to_string(),
            kind: step.kind.as_str().to_owned(),
            per: step.per.as_str().to_owned(),
            state: state.to_owned(),
            ..v1::StepRow::default()
        };
        if of_step.is_empty() {
            let implied = if ended.is_some() { StepState::Skipped } else { StepState::Waiting };
            steps.push(row(states.get(&index).copied().unwrap_or(implied).as_str()));
        }
        steps.extend(of_step.into_iter().map(|attempt| attempt_row(row(""), attempt)));
    }
    let task_id = facts.clone().task_id(rollout.group.index).await?;
    Ok(v1::ListStepsReply { steps, rollout: Some(message(found, task_id)) })
}

fn attempt_row(row: v1::StepRow, attempt: &AttemptRow) -> v1::StepRow {
    let state = match &attempt.outcome {
        None => StepState::Running,
        Some(outcome) if outcome.parked.is_some() => StepState::Parked,
        Some(outcome) if outcome.failure.is_none() => StepState::Succeeded,
        Some(_) => StepState::Failed,
    };
    v1::StepRow {
        state: state.as_str().to_owned(),
        attempt: Some(attempt.attempt.attempt),
        generation: attempt.generation.0,
        node: attempt.node.to_string(),
        // Whose claim it is concerns its node alone.
        outcome: attempt.outcome.as_deref().map(|o| v1::Outcome { parked: None, ..to_wire::outcome(o) }),
        placed_at_us: Some(attempt.placed_at.0),
        started_at_us: attempt.started_at.map(|at| at.0),
        ended_at_us: attempt.ended_at.map(|at| at.0),
        ..row
    }
}

pub(super) fn no_job(rollout: RolloutId) -> ApiError {
    ApiError::not_found("job", &rollout.group.job.to_string())
}

/// What a caller is told of a rollout that is not there, and may only not be there yet.
pub(super) fn no_rollout(text: &str, rollout: RolloutId, facts: &JobFacts) -> ApiError {
    let (job, groups, size) = (rollout.group.job, facts.groups(), facts.plan.group.size);
    let not_found = ApiError::not_found("rollout", text);
    if u64::from(rollout.group.index) >= groups || rollout.sample >= size {
        let (group, sample) = (groups.saturating_sub(1), size.saturating_sub(1));
        return not_found
            .hint(format!("the rollouts of this job are {job}-g0-s0 to {job}-g{group}-s{sample}"));
    }
    not_found.hint(format!(
        "a rollout exists once its group is admitted; `rollyard explain {job}` says what that waits for"
    ))
}

/// The step of that name, of a rollout that exists.
pub(super) fn step_index(plan: &rollout::plan::JobPlan, name: &str) -> Result<StepIndex, ApiError> {
    let found = plan.step_indices().find(|&index| plan.step(index).name.as_str() == name);
    found.ok_or_else(|| {
        let names: Vec<_> = plan.steps.iter().map(|step| step.name.as_str()).collect();
        ApiError::not_found("step", name).hint(format!("the steps of this job are: {}", names.join(", ")))
    })
}
