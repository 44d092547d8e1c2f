//! A start as the executor gets it: the step with every lookup done, and its inputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout::checkpoint::Checkpoint;
use rollout::failure::Failure;
use rollout::outcome::{Outcome, Parked, Times};
use rollout::plan::ResolvedStep;
use rollout::{AttemptId, FailureCode, JobId, RolloutId, StepIndex};
use rollout_wire::{to_wire, v1};
use scheduler_core::Event;
use scheduler_core::command::{Command, Target};
use scheduler_core::event::Fence;

use super::Outgoing;
use crate::clock;
use crate::jobs::{JobFacts, Jobs};

/// Resolves starts; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Starts {
    jobs: Jobs,
}

#[derive(Debug, Clone)]
pub(super) struct StartOrder {
    to: Target,
    attempt: AttemptId,
    continue_from: Option<AttemptId>,
    keep: bool,
    base: Option<Box<Checkpoint>>,
    parked: Option<Box<Parked>>,
}

impl StartOrder {
    pub(super) fn of(outgoing: &Outgoing) -> Option<Self> {
        match outgoing {
            Outgoing::Core(Command::Start { to, attempt, continue_from, keep, base, parked }) => Some(Self {
                to: to.clone(),
                attempt: *attempt,
                continue_from: *continue_from,
                keep: *keep,
                base: base.clone(),
                parked: parked.clone(),
            }),
            _ => None,
        }
    }
}

impl Starts {
    pub(crate) fn new(jobs: Jobs) -> Self {
        Self { jobs }
    }

    /// One answer per order, in their order.
    pub(super) async fn resolve(&self, orders: &[StartOrder]) -> Vec<Result<v1::StartAttempt, Failure>> {
        let mut facts: BTreeMap<JobId, Result<Arc<JobFacts>, Failure>> = BTreeMap::new();
        for order in orders {
            let job = order.attempt.rollout.group.job;
            if let std::collections::btree_map::Entry::Vacant(entry) = facts.entry(job) {
                entry.insert(self.facts(job).await);
            }
        }
        let mut asked: Vec<(RolloutId, StepIndex)> = Vec::new();
        for order in orders {
            let rollout = order.attempt.rollout;
            if let Some(Ok(facts)) = facts.get(&rollout.group.job) {
                let step = facts.plan.step(order.attempt.step);
                asked.extend(
                    step.inputs.iter().map(|input| (facts.plan.runner(rollout, input.step), input.step)),
                );
            }
        }
        asked.sort_unstable();
        asked.dedup();
        let outcomes = match self.outcomes(&asked).await {
            Ok(outcomes) => outcomes,
            Err(failure) => return orders.iter().map(|_| Err(failure.clone())).collect(),
        };
        let outcome = |key: (RolloutId, StepIndex)| outcomes[asked.binary_search(&key).ok()?].as_deref();
        let steps = resolved(&facts, orders).await;
        let each = orders.iter().zip(steps).map(|(order, step)| {
            let mut step = step?;
            let rollout = order.attempt.rollout;
            for (name, value) in who(order.attempt, step.name.as_str()) {
                step.env.entry(name.to_owned()).or_insert(value);
            }
            let inputs = match facts.get(&rollout.group.job) {
                Some(Ok(facts)) => {
                    inputs(facts, order.attempt, |step| outcome((facts.plan.runner(rollout, step), step)))
                }
                _ => Vec::new(),
            };
            Ok(v1::StartAttempt {
                attempt: Some(to_wire::attempt(order.attempt)),
                generation: order.to.generation.0,
                step: Some(to_wire::step(&step)),
                continue_from: order.continue_from.map(to_wire::attempt),
                keep: order.keep,
                inputs,
                base: order.base.as_deref().map(to_wire::checkpoint),
                parked: order.parked.as_deref().map(to_wire::parked),
            })
        });
        each.collect()
    }

    async fn facts(&self, job: JobId) -> Result<Arc<JobFacts>, Failure> {
        match self.jobs.get(job).await {
            Ok(Some(facts)) => Ok(facts),
            Ok(None) => Err(Failure::new(FailureCode::NotFound, format!("job {job} is not stored"))),
            Err(error) => Err(storage(&error)),
        }
    }

    async fn outcomes(&self, asked: &[(RolloutId, StepIndex)]) -> Result<Vec<Option<Box<Outcome>>>, Failure> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        self.jobs.reads().latest_outcomes(asked).await.map_err(|error| storage(&error))
    }
}

/// Who it is, for programs in the sandbox; what the spec sets under these names wins.
fn who(attempt: AttemptId, step: &str) -> [(&'static str, String); 5] {
    let rollout = attempt.rollout;
    [
        ("ROLLYARD_JOB", rollout.group.job.to_string()),
        ("ROLLYARD_GROUP", rollout.group.to_string()),
        ("ROLLYARD_ROLLOUT", rollout.to_string()),
        ("ROLLYARD_STEP", step.to_owned()),
        ("ROLLYARD_ATTEMPT", attempt.attempt.to_string()),
    ]
}

fn storage(error: &crate::Error) -> Failure {
    Failure::new(FailureCode::StorageFailed, error.to_string())
}

/// The steps of the orders. Rows are read from files, so this leaves the async threads.
async fn resolved(
    facts: &BTreeMap<JobId, Result<Arc<JobFacts>, Failure>>,
    orders: &[StartOrder],
) -> Vec<Result<ResolvedStep, Failure>> {
    let work: Vec<_> = orders
        .iter()
        .map(|order| {
            let job = order.attempt.rollout.group.job;
            let lost = || Err(Failure::new(FailureCode::NotFound, format!("job {job} is not stored")));
            (facts.get(&job).cloned().unwrap_or_else(lost), order.attempt)
        })
        .collect();
    let count = work.len();
    let resolve = move || {
        let one = |(facts, attempt): (Result<Arc<JobFacts>, Failure>, AttemptId)| {
            facts.and_then(|facts| facts.resolve(attempt))
        };
        work.into_iter().map(one).collect()
    };
    tokio::task::spawn_blocking(resolve).await.unwrap_or_else(|error| {
        let failure = Failure::new(FailureCode::Unclassified, format!("resolving the step: {error}"));
        vec![Err(failure); count]
    })
}

/// The declared inputs whose outputs exist; a missing one stays absent.
fn inputs<'a>(
    facts: &JobFacts,
    attempt: AttemptId,
    outcome: impl Fn(StepIndex) -> Option<&'a Outcome>,
) -> Vec<v1::Input> {
    let input = |input: &rollout::plan::InputPlan| {
        let artifacts = &outcome(input.step)?.artifacts;
        let artifact = artifacts.iter().find(|artifact| artifact.name == input.output.as_str())?;
        let outputs = &facts.plan.step(input.step).outputs;
        let declared = outputs.iter().find(|declared| declared.name == input.output);
        Some(v1::Input {
            path: input.path.clone(),
            sha256: artifact.sha256.clone(),
            size: artifact.size.0,
            tree: declared.is_some_and(|declared| declared.source.is_tree()),
        })
    };
    facts.plan.step(attempt.step).inputs.iter().filter_map(input).collect()
}

/// The end of an attempt that could not even be sent.
pub(super) fn never_started(to: Target, attempt: AttemptId, failure: Failure) -> Event {
    Event::AttemptEnded {
        at: Fence { node: to.node, incarnation: to.incarnation, generation: to.generation },
        attempt,
        outcome: Box::new(unmeasured(failure)),
        kept: false,
    }
}

/// An end of which nothing is known but why.
pub(super) fn unmeasured(failure: Failure) -> Outcome {
    Outcome::unmeasured(failure, Times::at(clock::wall()))
}
