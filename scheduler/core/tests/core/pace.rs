//! Starts wait for the creation credit of their node; the books do not.

use std::collections::BTreeSet;

use rollout::plan::StepKind;
use rollout::{FailureCode, GroupId, IncarnationId, JobId, Millis, RolloutId};
use scheduler_core::event::{CreationCredit, Held, HeldPhase, Measured, RefusalClass};
use scheduler_core::explain::Target as ExplainTarget;
use scheduler_core::{Command, Event};

use crate::builders::*;

/// The default of the floor, which is above what these yards have in flight, is not what is tested.
fn paced(groups: u32, burst: u32, per_s_milli: u64) -> Yard {
    let mut yard = Yard::new();
    yard.cluster = scheduler_core::Cluster::new(config());
    yard.attach("n1", 1, 100_000);
    beat(&mut yard, burst, per_s_milli);
    yard.submit(JOB, plan(1, vec![step("only", StepKind::Run, &[])]), groups);
    yard
}

fn config() -> scheduler_core::Config {
    scheduler_core::Config { in_flight_min: 0, ..scheduler_core::Config::default() }
}

fn beat(yard: &mut Yard, burst: u32, per_s_milli: u64) {
    let credit = CreationCredit { burst, per_s_milli };
    let measured = Measured { credit, ..Measured::default() };
    yard.event(Event::Heartbeat { node: node("n1"), incarnation: IncarnationId::from_bits(1), measured });
}

fn wake_in(yard: &mut Yard) -> u64 {
    yard.cluster.plan(yard.now).wake_at.unwrap().since(yard.now.boot).0
}

#[test]
fn all_are_placed_at_once_and_sent_as_there_is_credit() {
    let mut yard = paced(10, 4, 10_000);
    assert_eq!(yard.open().len(), 10, "the ledger holds them all");
    assert_eq!(yard.starts().len(), 4);
    assert_eq!(wake_in(&mut yard), 100);
    yard.later(Millis(100));
    assert_eq!(yard.starts().len(), 1);
    yard.later(Millis(300));
    assert_eq!(yard.starts().len(), 3);
    // The node says it is not measured any more.
    beat(&mut yard, 0, 0);
    assert_eq!(yard.starts().len(), 2);
}

#[test]
fn what_is_not_sent_is_not_missed_on_its_node_nor_late() {
    let mut yard = paced(3, 1, 1);
    let sent = yard.starts();
    for _ in 0..3 {
        let held = vec![Held {
            attempt: sent[0].attempt,
            generation: sent[0].fence.generation,
            phase: HeldPhase::Running,
        }];
        let incarnation = IncarnationId::from_bits(1);
        yard.event(Event::Held { node: node("n1"), incarnation, held });
        assert!(yard.commands.is_empty(), "{:?}", yard.commands);
    }
    assert_eq!(yard.cluster.lost_count(), 0);
    // Long after all its times would have passed, it has all of them.
    for _ in 0..100 {
        yard.later(Millis(5_000));
        beat(&mut yard, 0, 1);
    }
    let never = yard.open().into_iter().filter(|open| open.attempt != sent[0].attempt).count();
    assert_eq!(never, 2);
    beat(&mut yard, 64, 1_000);
    assert_eq!(yard.starts().len(), 2);
}

#[test]
fn what_is_cancelled_before_it_is_sent_never_is() {
    let mut yard = paced(6, 2, 1_000);
    let sent: BTreeSet<_> = yard.starts().into_iter().map(|started| started.attempt).collect();
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() });
    let killed: BTreeSet<_> = yard
        .commands
        .iter()
        .filter_map(|c| if let Command::Kill { attempt, .. } = c { Some(*attempt) } else { None })
        .collect();
    assert_eq!(killed, sent, "only what the node knows is to be killed there");
    assert_eq!(yard.ends().len(), 4, "the others have ended");
    yard.later(Millis(9_000));
    assert!(yard.starts().is_empty());
    let open = yard.open();
    assert_eq!(open.len(), 2);
    for started in open {
        yard.end(&started, Some(FailureCode::Cancelled), None);
    }
    assert_eq!(yard.ends().len(), 6);
}

#[test]
fn a_burst_does_not_stand_before_another_job() {
    let mut yard = paced(50, 1, 1_000);
    yard.submit(JobId::from_bits(2), plan(1, vec![step("only", StepKind::Run, &[])]), 1);
    yard.later(Millis(1_000));
    let jobs: Vec<_> = yard.starts().iter().map(|s| s.attempt.rollout.group.job.bits()).collect();
    assert_eq!(jobs, [2]);
}

#[test]
fn a_node_that_is_lost_takes_its_queue_along() {
    let mut yard = paced(5, 1, 1_000);
    let first = yard.starts();
    yard.attach("n1", 2, 100_000);
    let again = yard.stored.attempts.values().filter(|a| a.outcome.is_none()).count();
    assert_eq!((first.len(), again), (1, 0), "they back off");
    yard.later(Millis(1_000));
    assert_eq!(yard.starts().len(), 5, "the new life has not measured");
}

#[test]
fn what_was_never_sent_does_not_fail_with_its_node() {
    let mut yard = Yard::new();
    yard.cluster = scheduler_core::Cluster::new(config());
    yard.attach("n1", 1, 100_000);
    beat(&mut yard, 1, 1_000);
    let mut steps = vec![step("only", StepKind::Run, &[])];
    steps[0].retry.limit = 0;
    yard.submit(JOB, plan(1, steps), 20);
    let sent = yard.starts();
    yard.attach("n1", 2, 100_000);
    assert_eq!((sent.len(), yard.ends().len()), (1, 1), "only what the node knew has failed");
    let group = GroupId { job: JOB, index: 5 };
    let rollout = RolloutId { group, sample: 0, refill: 0 };
    let open = yard.cluster.explain(yard.now, ExplainTarget::Rollout(rollout)).unwrap();
    assert!(!open.lines[0].contains("refused it"), "{:?}", open.lines);
    yard.later(Millis(1_000));
    assert_eq!(yard.starts().len(), 19);
    assert!(yard.starts().iter().all(|started| started.attempt.attempt == 0));
}

#[test]
fn what_was_placed_over_a_checkpoint_that_is_gone_was_refused_by_nobody() {
    let mut yard = Yard::new();
    yard.cluster = scheduler_core::Cluster::new(config());
    yard.attach("n1", 1, 100_000);
    yard.submit(JOB, forked(2), 1);
    let setup = yard.starts().remove(0);
    yard.end_saved(&setup, None, None);
    let agents = yard.starts();
    beat(&mut yard, 0, 1);
    yard.end(&agents[0], None, None);
    assert!(yard.starts().is_empty(), "its grader waits for credit");
    yard.refuse(&agents[1], RefusalClass::CheckpointBad, "damaged");
    beat(&mut yard, 5, 1_000);
    let target = ExplainTarget::Rollout(agents[0].attempt.rollout);
    let lines = yard.cluster.explain(yard.now, target).unwrap().lines;
    let told = |words: &str| lines.iter().any(|line| line.contains(words));
    assert!(told("what it was to start from is gone"), "{lines:?}");
    assert!(!told("refused it: what"), "{lines:?}");
}

#[test]
fn a_step_that_goes_on_in_its_sandbox_waits_for_no_credit() {
    let mut yard = Yard::new();
    yard.cluster = scheduler_core::Cluster::new(config());
    yard.attach("n1", 1, 100_000);
    beat(&mut yard, 1, 1);
    yard.submit(JOB, chained(1), 1);
    let started = yard.starts();
    yard.end(&started[0], None, None);
    assert_eq!(yard.starts()[0].continue_from, Some(started[0].attempt));
}

#[test]
fn a_node_at_rest_is_kept_busy_and_another_job_waits_for_no_more() {
    let least = scheduler_core::config::CREATIONS_IN_FLIGHT_MIN;
    let mut yard = Yard::new();
    yard.cluster = scheduler_core::Cluster::new(scheduler_core::Config::default());
    yard.attach("n1", 1, 100_000);
    // It made one sandbox, in its own time.
    beat(&mut yard, 1, 1);
    yard.submit(JOB, plan(1, vec![step("only", StepKind::Run, &[])]), 200);
    let sent = yard.starts();
    assert_eq!(sent.len(), least);
    let other = JobId::from_bits(2);
    yard.submit(other, plan(1, vec![step("only", StepKind::Run, &[])]), 1);
    assert!(yard.starts().is_empty());
    let mut jobs = Vec::new();
    for started in &sent[..2] {
        yard.end(started, None, None);
        jobs.extend(yard.starts().iter().map(|started| started.attempt.rollout.group.job));
    }
    assert!(jobs.len() == 2 && jobs.contains(&other), "{jobs:?}");
}

#[test]
fn explain_names_the_node_and_its_rate() {
    let mut yard = paced(3, 1, 2_500);
    let open = yard.open();
    let target = ExplainTarget::Rollout(open[2].attempt.rollout);
    let explained = yard.cluster.explain(yard.now, target).unwrap();
    assert_eq!(explained.facts[0].code, "waits_for_credit");
    assert_eq!(
        explained.lines,
        ["step `only` waits for creation credit of node n1: 2.5/s, as it measured; 1 other waits with it"]
    );
    yard.later(Millis(400));
    yard.later(Millis(400));
    let explained = yard.cluster.explain(yard.now, target).unwrap();
    assert_eq!(explained.lines, ["step `only` starts on node n1"]);
}
