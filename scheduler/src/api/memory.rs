//! What the attempts of steps held in memory, beside what their steps ask for.

use rollout::plan::JobPlan;
use rollout::{JobId, StepIndex};
use rollout_wire::v1;
use scheduler_core::memory::{Asked, HeldMemory, advise, told};
use serde_json::{Value, json};

use super::{ApiError, JobsService};
use crate::error::Error;

/// Of all steps of a job. None if its spec cannot be read by this version: it has no names and no requests.
pub(super) async fn of_job(service: &JobsService, job: JobId) -> Result<Option<v1::JobMemory>, ApiError> {
    let held = service.reads.step_memory(job).await?;
    if held.is_empty() {
        return Ok(Some(v1::JobMemory::default()));
    }
    let plan = match service.jobs.plan(job).await {
        Ok(Some(plan)) => plan,
        Ok(None) => return Err(ApiError::not_found("job", &job.to_string())),
        Err(error @ Error::StoredSpec { .. }) => {
            let problem = crate::health::chain(&error);
            tracing::warn!(%job, problem, "what its steps held in memory is not told");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let steps = held.iter().filter_map(|(&step, held)| of_step(&plan, step, held)).collect();
    Ok(Some(v1::JobMemory { steps }))
}

/// None without an attempt, and for a step that the plan has not.
fn of_step(plan: &JobPlan, step: StepIndex, held: &HeldMemory) -> Option<v1::StepMemory> {
    let name = plan.steps.get(usize::from(step.0))?.name.as_str();
    let asked = Asked::of(plan, step);
    // What a client asks for its sandbox is in no spec.
    let advised = asked.as_ref().filter(|_| !plan.is_sandbox());
    let advice = advised.and_then(|asked| Some((asked, advise(asked, held)?)));
    Some(v1::StepMemory {
        step: name.to_owned(),
        attempts: held.attempts(),
        request_bytes: asked.map(|asked| asked.own.request.memory.0),
        kept_bytes: asked.map(|asked| asked.sandbox.charge().memory.0),
        held_most_bytes: held.most()?.0,
        held_p95_bytes: held.p95()?.0,
        kernel_peak_bytes: held.kernel_peak().map(|peak| peak.0),
        told: told(asked.as_ref(), held)?,
        advice: advice.map(|(asked, advice)| v1::MemoryAdvice {
            code: advice.code.as_str().to_owned(),
            field: advice.field.to_owned(),
            suggested_bytes: advice.suggested.0,
            told: advice.told(name, asked, held),
        }),
    })
}

/// For `explain`: of one step what it holds and what is advised, of a whole job what is advised.
pub(super) fn explained(memory: v1::JobMemory, step: Option<&str>) -> Vec<(String, Value)> {
    let mut facts = Vec::new();
    for one in memory.steps {
        if step.is_some_and(|step| step != one.step) {
            continue;
        }
        let mut fact = |code: &str, text: String| {
            let fact = json!({
                "code": code,
                "step": one.step,
                "node": null,
                "resource": "memory",
                "text": text,
                "attempts": one.attempts,
                "request_bytes": one.request_bytes,
                "kept_bytes": one.kept_bytes,
                "held_most_bytes": one.held_most_bytes,
                "held_p95_bytes": one.held_p95_bytes,
                "kernel_peak_bytes": one.kernel_peak_bytes,
                "field": one.advice.as_ref().map(|advice| advice.field.as_str()),
                "suggested_bytes": one.advice.as_ref().map(|advice| advice.suggested_bytes),
            });
            facts.push((text, fact));
        };
        if step.is_some() {
            fact("held_memory", format!("memory of step `{}`: {}", one.step, one.told));
        }
        if let Some(advice) = &one.advice {
            fact(&advice.code, advice.told.clone());
        }
    }
    facts
}
