//! `Explain`: why is it not running, from the code that decides.

use rollout::state::JobState;
use rollout::{JobId, RolloutId};
use rollout_wire::v1;
use scheduler_core::ExplainTarget;

use super::rollouts::step_index;
use super::{ApiError, JobsService};

pub(super) async fn explain(service: &JobsService, text: &str) -> Result<v1::ExplainReply, ApiError> {
    let target = target(service, text).await?;
    let explanation = service.ask(move |cluster, now| cluster.explain(now, target)).await?.flatten();
    let mut lines = service.health.now().sentences();
    let facts = match explanation {
        Some(explanation) => {
            let facts: Vec<_> = explanation.facts.iter().map(|fact| serde_json::json!(fact)).collect();
            lines.extend(explanation.lines);
            serde_json::Value::Array(facts)
        }
        None => {
            if service.read_only && !is_final(service, target).await? {
                lines.push("No yard is running here, so nothing goes on; this is what is stored.".to_owned());
            }
            let line = stored(service, target).await?;
            let facts = serde_json::json!([{ "code": "final", "text": line }]);
            lines.push(line);
            facts
        }
    };
    let json = serde_json::json!({ "lines": lines, "facts": facts }).to_string();
    Ok(v1::ExplainReply { lines, json })
}

async fn is_final(service: &JobsService, target: ExplainTarget) -> Result<bool, ApiError> {
    let job = match target {
        ExplainTarget::Job(job) => job,
        ExplainTarget::Rollout(rollout) | ExplainTarget::Step(rollout, _) => rollout.group.job,
    };
    Ok(service.reads.job_state(job).await?.is_none_or(JobState::is_final))
}

/// A job, a rollout, or `rollout/step`, that exists.
async fn target(service: &JobsService, text: &str) -> Result<ExplainTarget, ApiError> {
    if let Ok(job) = text.parse::<JobId>() {
        service.reads.job(job).await?.ok_or_else(|| ApiError::not_found("job", text))?;
        return Ok(ExplainTarget::Job(job));
    }
    let (rollout, step) = match text.split_once('/') {
        Some((rollout, step)) => (rollout, Some(step)),
        None => (text, None),
    };
    let not_found = || {
        ApiError::not_found("job or rollout", text)
            .hint("name a job, a rollout, or rollout/step; a rollout exists once its group is admitted")
    };
    let rollout: RolloutId = rollout.parse().map_err(|_| not_found())?;
    service.reads.rollout(rollout).await?.ok_or_else(not_found)?;
    let facts = service.jobs.get(rollout.group.job).await?.ok_or_else(not_found)?;
    match step {
        Some(step) => Ok(ExplainTarget::Step(rollout, step_index(&facts.plan, step)?)),
        None => Ok(ExplainTarget::Rollout(rollout)),
    }
}

/// What the store says of something the core has no part in any more.
async fn stored(service: &JobsService, target: ExplainTarget) -> Result<String, ApiError> {
    let rollout = match target {
        ExplainTarget::Job(job) => {
            let row = service.reads.job(job).await?;
            let row = row.ok_or_else(|| ApiError::not_found("job", &job.to_string()))?;
            let why = Some(row.told()).filter(|told| !told.is_empty());
            let why = why.map_or(String::new(), |told| format!(": {told}"));
            return Ok(format!("The job is {}{why}.", row.state.as_str()));
        }
        ExplainTarget::Rollout(rollout) | ExplainTarget::Step(rollout, _) => rollout,
    };
    let status = service.reads.rollout(rollout).await?.flatten();
    Ok(match status {
        Some(status) => format!("The rollout ended as {} and its rows are sealed.", status.as_str()),
        None => "The rollout has not ended.".to_owned(),
    })
}
