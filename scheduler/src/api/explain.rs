//! `Explain`: why is it not running, from the code that decides.

use rollout::failure::{Failure, Status};
use rollout::plan::Per;
use rollout::state::JobState;
use rollout::{JobId, RolloutId};
use rollout_wire::v1;
use scheduler_core::ExplainTarget;

use super::rollouts::{no_job, no_rollout, step_index};
use super::{ApiError, JobsService, end_of_sandbox, memory};

pub(super) async fn explain(service: &JobsService, text: &str) -> Result<v1::ExplainReply, ApiError> {
    let target = target(service, text).await?;
    let explanation = service.ask(move |cluster, now| cluster.explain(now, target)).await?.flatten();
    let mut lines = service.health.now().sentences();
    let mut facts = match explanation {
        Some(explanation) => {
            let facts: Vec<_> = explanation.facts.iter().map(|fact| serde_json::json!(fact)).collect();
            lines.extend(explanation.lines);
            facts
        }
        None => {
            if service.read_only && !is_final(service, target).await? {
                lines.push(
                    "No yard is running here, so nothing goes on until the same `rollyard run`, or `rollyard dev`, \
                     does; this is what is stored."
                        .to_owned(),
                );
            }
            let line = stored(service, target).await?;
            let fact = serde_json::json!({ "code": "final", "text": line });
            lines.push(line);
            vec![fact]
        }
    };
    for (line, fact) in held_memory(service, target).await? {
        lines.push(line);
        facts.push(fact);
    }
    let lines: Vec<String> = lines.iter().map(|line| sentence(line)).collect();
    let json = serde_json::json!({ "lines": lines, "facts": facts }).to_string();
    Ok(v1::ExplainReply { lines, json })
}

/// What there is to say of the memory of a job or a step.
async fn held_memory(
    service: &JobsService,
    target: ExplainTarget,
) -> Result<Vec<(String, serde_json::Value)>, ApiError> {
    let step = match target {
        ExplainTarget::Job(_) => None,
        ExplainTarget::Step(_, step) => Some(step),
        ExplainTarget::Rollout(_) => return Ok(Vec::new()),
    };
    let memory = memory::of_job(service, job_of(target)).await?.unwrap_or_default();
    let step = match step {
        Some(step) if !memory.steps.is_empty() => {
            let plan = service.jobs.plan(job_of(target)).await?;
            let Some(plan) = plan else { return Ok(Vec::new()) };
            Some(plan.step(step).name.to_string())
        }
        Some(_) => return Ok(Vec::new()),
        None => None,
    };
    Ok(memory::explained(memory, step.as_deref()))
}

/// Begins with a capital, unless with a code, and ends with a full stop: whoever said it.
fn sentence(line: &str) -> String {
    let code = line.split(' ').next().is_some_and(|word| word.contains('_'));
    let mut characters = line.chars();
    let mut out = match characters.next() {
        Some(first) if !code => first.to_ascii_uppercase().to_string() + characters.as_str(),
        _ => line.to_owned(),
    };
    if !out.ends_with(['.', '!', '?']) {
        out.push('.');
    }
    out
}

async fn is_final(service: &JobsService, target: ExplainTarget) -> Result<bool, ApiError> {
    Ok(service.reads.job_state(job_of(target)).await?.is_none_or(JobState::is_final))
}

const fn job_of(target: ExplainTarget) -> JobId {
    match target {
        ExplainTarget::Job(job) => job,
        ExplainTarget::Rollout(rollout) | ExplainTarget::Step(rollout, _) => rollout.group.job,
    }
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
    let id: RolloutId = rollout.parse().map_err(|_| {
        ApiError::not_found("job or rollout", text).hint("name a job, a rollout, or rollout/step")
    })?;
    let facts = service.jobs.get(id.group.job).await?.ok_or_else(|| no_job(id))?;
    service.reads.rollout(id).await?.ok_or_else(|| no_rollout(rollout, id, &facts))?;
    let rollout = id;
    match step {
        Some(step) => Ok(ExplainTarget::Step(rollout, step_index(&facts.plan, step)?)),
        None => Ok(ExplainTarget::Rollout(rollout)),
    }
}

/// What the store says of something the core has no part in any more.
async fn stored(service: &JobsService, target: ExplainTarget) -> Result<String, ApiError> {
    let sandbox = service.reads.sandbox(job_of(target)).await?;
    if let Some(end) = sandbox.and_then(|row| end_of_sandbox(&row)) {
        return Ok(format!("The sandbox has ended ({}): {}.", end.cause, end.message));
    }
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
    let Some(status) = service.reads.rollout(rollout).await?.flatten() else {
        return Ok("The rollout has not ended.".to_owned());
    };
    let facts = service.jobs.get(rollout.group.job).await?;
    let facts = facts.ok_or_else(|| ApiError::not_found("job", &rollout.group.job.to_string()))?;
    // What its group ran once for all is its own, too.
    let mut attempts = Vec::new();
    if !rollout.is_shared() && facts.plan.steps.iter().any(|step| step.per == Per::Group) {
        attempts = service.reads.attempts(RolloutId::shared(rollout.group)).await?;
    }
    attempts.extend(service.reads.attempts(rollout).await?);
    let name = |step| facts.plan.step(step).name.to_string();
    let why = attempts.iter().rev().find_map(|row| {
        let failure = row.outcome.as_ref()?.failure.as_ref()?;
        Some((row.attempt.step, words(failure)))
    });
    let why = why.filter(|_| status != Status::Completed);
    let because = why.map_or(String::new(), |(step, words)| format!(": step `{}`: {words}", name(step)));
    let whole = format!("rollout ended as {}{because}; its rows are sealed", status.as_str());
    let ExplainTarget::Step(_, step) = target else {
        return Ok(format!("The {whole}."));
    };
    let last = attempts.iter().rev().find(|row| row.attempt.step == step);
    let step = name(step);
    Ok(match last.map(|row| row.outcome.as_ref().and_then(|outcome| outcome.failure.as_ref())) {
        None => format!("Step `{step}` was never started: the {whole}."),
        Some(None) => format!("Step `{step}` ended well; the {whole}."),
        Some(Some(failure)) => {
            format!("Step `{step}` failed: {}; its rows are sealed.", words(failure))
        }
    })
}

fn words(failure: &Failure) -> String {
    let advice = failure.code.advice().map_or(String::new(), |advice| format!("; {advice}"));
    format!("{} ({}{advice})", failure.code, failure.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_sentence_whoever_says_it() {
        for (line, expected) in [
            ("step `a` waits for `b`", "Step `a` waits for `b`."),
            ("The job is finished.", "The job is finished."),
            ("too_big_for_yard: step `a` asks cpu 9", "too_big_for_yard: step `a` asks cpu 9."),
            ("3 steps run", "3 steps run."),
        ] {
            assert_eq!(sentence(line), expected);
        }
    }
}
