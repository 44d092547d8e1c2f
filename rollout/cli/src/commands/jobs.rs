//! `ps`, `show`, `explain`, `cancel`, `nodes`: one question, one answer.

use rollout::{GroupId, JobId, Name, RolloutId, SandboxId};
use rollout_wire::v1::{CancelRequest, ExplainRequest, ListNodesRequest, RetryRequest, StepRow};

use super::Context;
use super::specs::fresh_key;
use crate::args::{Cancel, Explain, OutputFormat, Ps, Retry, Show};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::view;

/// What the positional argument of a command names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Job(JobId),
    Rollout(RolloutId),
    Step(RolloutId, Name),
}

impl Target {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = || Error::BadTarget {
            text: rollout::text::shown(text, 80),
            expected: "a job (j and 13 characters), a rollout (JOB-gN-sN) or ROLLOUT/STEP",
        };
        if let Some((rollout, step)) = text.split_once('/') {
            return match (rollout.parse(), step.parse()) {
                (Ok(rollout), Ok(step)) => Ok(Self::Step(rollout, step)),
                _ => Err(bad()),
            };
        }
        // As `sandbox ls` prints it.
        let sandbox = text.contains('@').then(|| text.parse::<SandboxId>().ok()).flatten();
        if let Some(id) = sandbox {
            return Ok(Self::Rollout(id.rollout));
        }
        let job = text.parse().map(Self::Job);
        job.or_else(|_| text.parse().map(Self::Rollout)).map_err(|_| bad())
    }
}

fn job_id(text: &str) -> Result<JobId, Error> {
    text.parse().map_err(|_| Error::BadTarget {
        text: rollout::text::shown(text, 80),
        expected: "a job (j and 13 characters)",
    })
}

pub async fn ps(context: &Context, args: &Ps) -> Result<ExitStatus, Error> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let job = args.job.as_deref().map(job_id).transpose()?;
    let question = async |client: &Client| match job {
        Some(job) => {
            let (rollouts, more) = client.list_rollouts(&job.to_string(), limit).await?;
            let rollouts: Vec<_> = rollouts.into_iter().map(view::Rollout::from).collect();
            let open = rollouts.iter().any(|rollout| rollout.finished_at_us.is_none());
            Ok((context.output.rollouts(&rollouts), more, open))
        }
        None => {
            let (jobs, more) = client.list_jobs(args.unfinished, limit).await?;
            let runs = client.yard_runs();
            let jobs: Vec<_> = jobs.into_iter().map(|job| view::Job::told(job, runs)).collect();
            let open = jobs.iter().any(|job| !job.is_final());
            Ok((context.output.jobs(&jobs), more, open))
        }
    };
    let (text, more, _) = context.ask(question, |(_, _, open)| *open).await?;
    Context::print(&text)?;
    if more {
        context.talk.say(&format!("there are more; see them with --limit above {limit}"));
    }
    Ok(ExitStatus::Success)
}

pub async fn show(context: &Context, args: &Show) -> Result<ExitStatus, Error> {
    let text = match Target::parse(&args.id)? {
        Target::Job(job) => {
            let question = async |client: &Client| {
                Ok(view::Job::told(client.get(&job.to_string()).await?, client.yard_runs()))
            };
            context.output.job(&context.ask(question, |job| !job.is_final()).await?)
        }
        Target::Rollout(rollout) => context.output.steps(&steps(context, rollout, None).await?),
        Target::Step(rollout, step) => context.output.steps(&steps(context, rollout, Some(step)).await?),
    };
    Context::print(&text)?;
    Ok(ExitStatus::Success)
}

/// All attempts of a rollout, or those of one step.
async fn steps(
    context: &Context,
    rollout: RolloutId,
    step: Option<Name>,
) -> Result<view::RolloutSteps, Error> {
    let id = rollout.to_string();
    let question = async |client: &Client| client.list_steps(&id).await;
    let (rows, head) = context.ask(question, |(_, head)| head.finished_at_us.is_none()).await?;
    let wanted = |row: &&StepRow| step.as_ref().is_none_or(|step| row.step == step.as_str());
    let steps: Vec<_> = rows.iter().filter(wanted).cloned().map(view::Step::from).collect();
    match step {
        Some(step) if steps.is_empty() => Err(no_step(&rollout, step.as_str(), &rows)),
        _ => Ok(view::RolloutSteps::new(head.into(), steps)),
    }
}

pub fn no_step(rollout: &RolloutId, step: &str, rows: &[StepRow]) -> Error {
    let nearest = rollout::text::nearest(step, rows.iter().map(|row| row.step.as_str())).map(str::to_owned);
    Error::NoStep { rollout: rollout.to_string(), step: step.to_owned(), nearest }
}

pub async fn explain(context: &Context, args: &Explain) -> Result<ExitStatus, Error> {
    let target = match Target::parse(&args.target)? {
        Target::Rollout(rollout) => rollout.to_string(),
        Target::Job(_) | Target::Step(..) => args.target.clone(),
    };
    let request = ExplainRequest { target: target.clone() };
    let question = async |client: &Client| client.done(client.jobs().explain(request).await);
    // The answer has the sentence that no yard runs, where that is a reason.
    let reply = context.ask(question, |_| false).await?;
    let detail = if reply.json.is_empty() {
        serde_json::Value::Null
    } else {
        serde_json::from_str(&reply.json).map_err(|source| Error::BadAnswer {
            problem: format!("the explanation is not JSON: {source}"),
        })?
    };
    let explanation = view::Explanation { target, lines: reply.lines, detail };
    Context::print(&context.output.explanation(&explanation))?;
    Ok(ExitStatus::Success)
}

pub async fn cancel(context: &Context, args: &Cancel) -> Result<ExitStatus, Error> {
    let id = job_id(&args.job)?.to_string();
    let before = context.ask(async |client| client.get(&id).await, |_| false).await.map(view::Job::from)?;
    if before.is_final() {
        if context.format == OutputFormat::Table {
            let state = rollout::text::shown(&before.state, 64);
            context.talk.say(&format!("job {id} is {state} already: there was nothing to cancel"));
        }
        Context::print(&context.output.job(&before))?;
        return Ok(ExitStatus::Success);
    }
    let request = CancelRequest { job: id, reason: args.reason.clone() };
    let job = context.tell(async |client| client.done(client.jobs().cancel(request).await)).await?;
    Context::print(&context.output.job(&job.into()))?;
    Ok(ExitStatus::Success)
}

pub async fn retry(context: &Context, args: &Retry) -> Result<ExitStatus, Error> {
    let is_known = args.target.parse::<JobId>().is_ok()
        || args.target.parse::<GroupId>().is_ok()
        || args.target.parse::<RolloutId>().is_ok();
    if !is_known {
        return Err(Error::BadTarget {
            text: rollout::text::shown(&args.target, 80),
            expected: "a job (j and 13 characters), a group (JOB-gN) or a rollout (JOB-gN-sN)",
        });
    }
    let request = RetryRequest {
        target: args.target.clone(),
        all_failed: args.all_failed,
        cancelled: args.cancelled,
        idempotency_key: args.idempotency_key.clone().unwrap_or_else(fresh_key),
    };
    let reply = context.tell(async |client| client.done(client.jobs().retry(request).await)).await?;
    let retried = view::Retried::new(&args.target, reply);
    Context::print(&context.output.retried(&retried))?;
    Ok(ExitStatus::Success)
}

pub async fn nodes(context: &Context) -> Result<ExitStatus, Error> {
    let question = async |client: &Client| client.done(client.jobs().list_nodes(ListNodesRequest {}).await);
    let reply = context.ask(question, |reply| !reply.nodes.is_empty()).await?;
    let nodes: Vec<_> = reply.nodes.into_iter().map(view::Node::from).collect();
    Context::print(&context.output.nodes(&nodes))?;
    Ok(ExitStatus::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_job_a_rollout_or_a_step() {
        let job = "j0000000000007";
        assert!(matches!(Target::parse(job), Ok(Target::Job(_))));
        assert!(matches!(Target::parse(&format!("{job}-g0-s1")), Ok(Target::Rollout(_))));
        let Ok(Target::Step(rollout, step)) = Target::parse(&format!("{job}-g0-s1-r2/grade")) else {
            panic!("not a step");
        };
        assert_eq!((rollout.refill, step.as_str()), (2, "grade"));
    }

    #[test]
    fn a_sandbox_stands_for_its_rollout() {
        let job = "j0000000000007";
        for text in [format!("{job}-g0-s1@node-a"), format!("{job}-g0-s1.1@node-a")] {
            let Ok(Target::Rollout(rollout)) = Target::parse(&text) else { panic!("{text}: no rollout") };
            assert_eq!(rollout.to_string(), format!("{job}-g0-s1"));
        }
        assert!(Target::parse("@node-a").is_err() && Target::parse(&format!("{job}@node-a")).is_err());
    }

    #[test]
    fn anything_else_is_refused_before_the_yard_is_asked() {
        for text in ["", "j1", "j0000000000007-g0", "j0000000000007/grade", "j0000000000007-g0-s1/", "a/b/c"]
        {
            assert_eq!(Target::parse(text).expect_err(text).exit(), ExitStatus::BadInput, "{text}");
        }
    }
}
