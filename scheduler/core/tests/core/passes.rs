//! What a pass of placement costs: the steps it places, not the steps that wait.

use rollout::plan::{JobPlan, ResourcesPlan, StepKind};
use rollout::state::JobState;
use rollout::{FailureCode, IncarnationId, JobId};
use scheduler_core::Event;

use crate::builders::*;

/// One step of `cpu_milli` in groups of 1,000.
fn wide(cpu_milli: u64) -> JobPlan {
    let mut only = step("only", StepKind::Run, &[]);
    only.resources = ResourcesPlan::Fixed(resources(cpu_milli, 64));
    let mut plan = plan(1_000, vec![only]);
    plan.admission.max_running = 1_000_000;
    plan
}

#[test]
fn a_pass_over_a_hundred_thousand_ready_steps_costs_what_it_places() {
    let mut yard = Yard::with(wide(1_000), 100);
    assert_eq!(yard.cluster.counts(JOB).unwrap().steps_ready, 100_000);
    assert_eq!(yard.looked_at, 2, "without a node, one in each pass that finds some");
    yard.attach("n1", 1, 10_000);
    assert_eq!((yard.starts().len(), yard.looked_at), (10, 11));
    let first = yard.starts().remove(0);
    yard.end(&first, None, None);
    assert_eq!((yard.starts().len(), yard.looked_at), (1, 2));
    let (node, incarnation) = (node("n1"), IncarnationId::from_bits(1));
    yard.event(Event::NodeDetached { node, incarnation });
    assert_eq!((yard.starts().len(), yard.looked_at), (0, 1));
}

#[test]
fn small_steps_behind_a_crowd_of_large_ones_are_found() {
    let mut yard = Yard::new();
    yard.attach("n1", 1, 10_000);
    yard.submit(JobId::from_bits(1), wide(4_000), 10);
    yard.submit(JobId::from_bits(2), wide(1_000), 1);
    let mut jobs: Vec<_> = yard.starts().iter().map(|s| s.attempt.rollout.group.job.bits()).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, [2, 2], "beside two large ones of the first job");
    assert!(yard.looked_at <= 8, "{}", yard.looked_at);
}

#[test]
fn steps_of_a_held_job_are_passed_over_together() {
    let mut yard = Yard::with(wide(8_000), 3);
    yard.attach("small", 1, 4_000);
    assert_eq!(yard.cluster.job_state(JOB), Some(JobState::Held));
    let other = JobId::from_bits(2);
    yard.submit(other, wide(1_000), 1);
    yard.event(Event::JobCancelled { job: other, code: FailureCode::Cancelled, reason: "enough".into() });
    assert!(yard.looked_at <= 4, "{}", yard.looked_at);
}

#[test]
fn every_job_that_fits_no_node_is_held_in_the_same_pass() {
    let mut yard = Yard::new();
    for bits in 1..=3 {
        yard.submit(JobId::from_bits(bits), wide(8_000), 1);
    }
    yard.attach("small", 1, 4_000);
    let states = (1..=3).map(|bits| yard.cluster.job_state(JobId::from_bits(bits)).unwrap());
    assert_eq!(states.collect::<Vec<_>>(), [JobState::Held; 3]);
    assert_eq!(yard.looked_at, 3);
}
