//! An executor that beats and never ends an attempt. One rule, one case. Steps have 60 s to start,
//! 60 s to run and 1 s of grace; the margin is 32 min.

use rollout::failure::Status;
use rollout::state::JobState;
use rollout::{FailureCode, IncarnationId, Millis};
use scheduler_core::config::OVERDUE_MARGIN;
use scheduler_core::event::{Held, HeldPhase, Measured};
use scheduler_core::{Cluster, Command, Config, Event, ExplainTarget, Record};

use crate::builders::*;

const LIFE: IncarnationId = IncarnationId::from_bits(1);
const SPAN: Millis = Millis(121_000);

impl Yard {
    /// Time passes while `n1` beats.
    fn beating(&mut self, wait: Millis) {
        let (mut records, mut commands) = (vec![], vec![]);
        let mut left = wait.0;
        while left > 0 {
            let beat = left.min(1_000);
            left -= beat;
            self.later(Millis(beat));
            records.append(&mut self.records);
            commands.append(&mut self.commands);
            let measured = Measured::default();
            self.event(Event::Heartbeat { node: node("n1"), incarnation: LIFE, measured });
            records.append(&mut self.records);
            commands.append(&mut self.commands);
        }
        (self.records, self.commands) = (records, commands);
    }

    fn lists(&mut self, held: &[&Started]) {
        let entry = |s: &&Started| Held {
            attempt: s.attempt,
            generation: s.fence.generation,
            phase: HeldPhase::Running,
        };
        let held = held.iter().map(entry).collect();
        self.event(Event::Held { node: node("n1"), incarnation: LIFE, held });
    }

    fn kills(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Kill { .. })).count()
    }
}

/// A yard of one node with room for one, and what it was told to run.
fn one_that_never_ends() -> (Yard, Started) {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 1000);
    let started = yard.starts().remove(0);
    (yard, started)
}

#[test]
fn it_is_told_to_stop_after_a_margin_and_given_up_after_another() {
    let (mut yard, first) = one_that_never_ends();
    yard.beating(Millis(SPAN.0 + OVERDUE_MARGIN.0 - 5_000));
    assert!(yard.commands.is_empty() && yard.records.is_empty(), "{:?}", yard.commands);
    yard.beating(Millis(5_000));
    assert_eq!(yard.kills(), 1);
    assert!(yard.records.is_empty(), "it may end yet: {:?}", yard.records);
    let target = ExplainTarget::Step(first.attempt.rollout, first.attempt.step);
    let explained = yard.cluster.explain(yard.now, target).unwrap();
    assert!(explained.lines[0].contains("is given up in 32m"), "{:?}", explained.lines);
    yard.beating(Millis(OVERDUE_MARGIN.0 - 5_000));
    assert!(yard.commands.is_empty(), "told once: {:?}", yard.commands);
    yard.beating(Millis(5_000));
    let failure = yard.records.iter().find_map(|r| match r {
        Record::AttemptEnded { attempt, outcome, .. } if *attempt == first.attempt => outcome.failure.clone(),
        _ => None,
    });
    let failure = failure.expect("it has ended");
    assert_eq!(failure.code, FailureCode::NodeLost);
    assert!(failure.message.contains("node n1 reports itself but did not end"), "{}", failure.message);
}

#[test]
fn what_was_given_up_stays_charged_until_the_node_has_it_no_more() {
    let (mut yard, first) = one_that_never_ends();
    yard.beating(Millis(SPAN.0 + 2 * OVERDUE_MARGIN.0));
    yard.beating(Millis(10_000));
    assert!(yard.starts().is_empty(), "its place is taken");
    assert_eq!(yard.cluster.nodes()[0].sandboxes, 1);
    yard.lists(&[&first]);
    assert_eq!((yard.kills(), yard.starts().len()), (1, 0), "it is not wanted, and still there");
    yard.end(&first, None, None);
    assert!(matches!(yard.records[..], [Record::Fenced { .. }]), "{:?}", yard.records);
    assert!(yard.starts().is_empty());
    yard.lists(&[]);
    let second = yard.starts().remove(0);
    assert!(second.fence.generation > first.fence.generation);
    assert_eq!(yard.cluster.nodes()[0].sandboxes, 1);
}

#[test]
fn a_lease_that_ends_frees_what_was_given_up() {
    let (mut yard, _) = one_that_never_ends();
    yard.beating(Millis(SPAN.0 + 2 * OVERDUE_MARGIN.0));
    yard.attach("n1", 2, 1000);
    yard.later(Millis(1_000));
    assert_eq!(yard.cluster.nodes()[0].sandboxes, 1);
    let again = yard.stored.attempts.values().filter(|a| a.outcome.is_none()).count();
    assert_eq!(again, 1, "it runs in the new life");
}

#[test]
fn it_is_tried_again_on_another_node() {
    let (mut yard, _) = one_that_never_ends();
    yard.beating(Millis(SPAN.0 + 2 * OVERDUE_MARGIN.0));
    yard.attach("n2", 2, 1000);
    if yard.starts().is_empty() {
        yard.later(Millis(1_000));
    }
    assert_eq!(yard.starts()[0].fence.node, node("n2"));
}

#[test]
fn a_cancelled_job_ends_though_its_node_never_does() {
    let (mut yard, _) = one_that_never_ends();
    let (code, reason) = (FailureCode::Cancelled, "enough".to_owned());
    yard.event(Event::JobCancelled { job: JOB, code, reason });
    assert_eq!(yard.kills(), 1);
    // Its grace and the margin, whatever the step's times are.
    yard.beating(Millis(1_000 + OVERDUE_MARGIN.0));
    assert!(
        matches!(&yard.commands[..], [Command::Kill { code: FailureCode::Cancelled, reason, .. }] if reason == "enough"),
        "{:?}",
        yard.commands
    );
    yard.beating(OVERDUE_MARGIN);
    assert_eq!(yard.ends()[0].status, Status::Cancelled);
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Cancelled));
}

#[test]
fn what_ends_after_it_was_told_again_counts() {
    let (mut yard, first) = one_that_never_ends();
    yard.beating(Millis(SPAN.0 + OVERDUE_MARGIN.0));
    yard.end(&first, None, None);
    assert_eq!(yard.starts().len(), 1, "its grader");
    yard.beating(OVERDUE_MARGIN);
    assert!(yard.records.is_empty(), "{:?}", yard.records);
}

/// A restart cannot know how long the boot clock ran: the attempt gets all of its time again.
#[test]
fn a_restart_gives_it_all_its_time_again() {
    let (mut yard, first) = one_that_never_ends();
    yard.beating(SPAN);
    let (cluster, _) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    yard.cluster = cluster;
    yard.check();
    let held =
        vec![Held { attempt: first.attempt, generation: first.fence.generation, phase: HeldPhase::Running }];
    let (incarnation, capacity) = (LIFE, capacity(1000));
    yard.event(Event::NodeAttached { node: node("n1"), incarnation, capacity, held });
    yard.beating(Millis(SPAN.0 + OVERDUE_MARGIN.0 - 5_000));
    assert_eq!(yard.kills(), 0);
    yard.beating(Millis(5_000));
    assert_eq!(yard.kills(), 1);
}
