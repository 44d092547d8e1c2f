//! What an attached node says it holds, against what is reserved there. One rule, one case.

use rollout::state::JobState;
use rollout::{AttemptId, FailureCode, Generation, IncarnationId, Millis, StepIndex};
use scheduler_core::event::{Held, HeldPhase, RefusalClass};
use scheduler_core::{Command, Event, Record};

use crate::builders::*;

const LIFE: u64 = 1;

fn entry(started: &Started, phase: HeldPhase) -> Held {
    Held { attempt: started.attempt, generation: started.fence.generation, phase }
}

fn running(started: &[Started]) -> Vec<Held> {
    started.iter().map(|s| entry(s, HeldPhase::Running)).collect()
}

impl Yard {
    fn list(&mut self, incarnation: u64, held: Vec<Held>) {
        let incarnation = IncarnationId::from_bits(incarnation);
        self.event(Event::Held { node: node("n1"), incarnation, held });
    }
}

/// A yard of one node that was told to run `chained`, with `a` ended and kept and `b` told to start.
fn on_the_second_step() -> (Yard, Started, Started) {
    let mut yard = Yard::with(chained(1), 1);
    yard.attach("n1", LIFE, 8000);
    let a = yard.starts().remove(0);
    yard.end(&a, None, None);
    let b = yard.starts().remove(0);
    assert_eq!(b.continue_from, Some(a.attempt));
    (yard, a, b)
}

/// The same with `a` kept and no place for `b`: the node refused it once.
fn between_the_steps() -> (Yard, Started) {
    let (mut yard, a, b) = on_the_second_step();
    let (at, attempt, class) = (b.fence.clone(), b.attempt, RefusalClass::Busy);
    yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
    assert!(yard.starts().is_empty(), "it backs off");
    (yard, a)
}

#[test]
fn an_attempt_absent_from_one_list_may_be_on_its_way() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", LIFE, 8000);
    yard.list(LIFE, vec![]);
    assert!(yard.commands.is_empty() && yard.records.is_empty(), "{:?}", yard.commands);
    assert_eq!(yard.cluster.lost_count(), 0);
}

#[test]
fn an_attempt_absent_from_two_lists_in_a_row_is_started_again_under_its_generation() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", LIFE, 8000);
    let started = yard.starts();
    for _ in 0..2 {
        yard.list(LIFE, running(&started[..1]));
    }
    let again = yard.starts();
    assert_eq!(again.len(), 1, "only the one it does not hold");
    assert_eq!((again[0].attempt, &again[0].fence), (started[1].attempt, &started[1].fence));
    assert!(yard.records.is_empty(), "nothing new is granted: {:?}", yard.records);
    assert_eq!(yard.cluster.lost_count(), 1);
    // Told anew, it may be on its way again.
    yard.list(LIFE, running(&started[..1]));
    assert!(yard.starts().is_empty());
    yard.list(LIFE, running(&started[..1]));
    assert_eq!(yard.starts().len(), 1);
}

#[test]
fn a_list_that_has_the_attempt_forgets_that_one_had_it_not() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let started = yard.starts();
    for held in [vec![], running(&started), vec![]] {
        yard.list(LIFE, held);
        assert!(yard.commands.is_empty(), "{:?}", yard.commands);
    }
}

#[test]
fn an_absence_counts_for_one_generation() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let first = yard.starts().remove(0);
    yard.list(LIFE, vec![]);
    let (at, attempt, class) = (first.fence.clone(), first.attempt, RefusalClass::Busy);
    yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
    yard.later(Millis(5_000));
    let second = yard.starts().remove(0);
    assert_eq!(second.attempt, first.attempt);
    yard.list(LIFE, vec![]);
    assert!(yard.commands.is_empty(), "the new start has been missed once: {:?}", yard.commands);
}

#[test]
fn a_hello_counts_at_once_and_clears_what_was_missed_before_it() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    yard.list(LIFE, vec![]);
    yard.attach("n1", LIFE, 8000);
    assert_eq!(yard.starts().len(), 1, "told again with the new link");
    yard.list(LIFE, vec![]);
    assert!(yard.starts().is_empty(), "and may be on its way");
}

#[test]
fn a_list_of_another_life_is_fenced_and_changes_nothing() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let started = yard.starts();
    for count in 1..=2 {
        yard.list(LIFE + 1, running(&started));
        assert!(matches!(yard.records[..], [Record::Fenced { .. }]), "{:?}", yard.records);
        assert!(yard.commands.is_empty(), "{:?}", yard.commands);
        assert_eq!(yard.cluster.fenced_count(), count);
    }
    yard.list(LIFE + 1, vec![]);
    assert_eq!(yard.cluster.fenced_count(), 3, "an empty one as well");
    assert!(yard.commands.is_empty() && yard.records.is_empty());
}

#[test]
fn a_list_of_a_node_that_is_away_waits_for_its_hello() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let incarnation = IncarnationId::from_bits(LIFE);
    yard.event(Event::NodeDetached { node: node("n1"), incarnation });
    for _ in 0..3 {
        yard.list(LIFE, vec![]);
        assert!(yard.commands.is_empty(), "{:?}", yard.commands);
    }
}

#[test]
fn what_is_held_and_not_wanted_goes_at_the_first_list() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let started = yard.starts();
    let stranger = |attempt, phase| Held {
        attempt: AttemptId { attempt, ..started[0].attempt },
        generation: Generation(9),
        phase,
    };
    let mut held = running(&started);
    held.extend([
        stranger(7, HeldPhase::Running),
        stranger(8, HeldPhase::Kept),
        stranger(9, HeldPhase::Ended),
    ]);
    yard.list(LIFE, held);
    assert!(
        matches!(
            &yard.commands[..],
            [
                Command::Kill { attempt: killed, code: FailureCode::LeaseLost, .. },
                Command::Release { attempt: released, .. },
                Command::AckEnded { attempt: acknowledged, to },
            ] if (killed.attempt, released.attempt, acknowledged.attempt) == (7, 8, 9)
                && to.generation == Generation(9)
        ),
        "{:?}",
        yard.commands
    );
}

#[test]
fn an_older_generation_of_what_is_wanted_is_killed() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", LIFE, 8000);
    let first = yard.starts().remove(0);
    let (at, attempt, class) = (first.fence.clone(), first.attempt, RefusalClass::Busy);
    yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
    yard.later(Millis(5_000));
    assert_eq!(yard.starts().len(), 1);
    yard.list(LIFE, vec![entry(&first, HeldPhase::Running)]);
    let killed =
        matches!(&yard.commands[..], [Command::Kill { to, .. }] if to.generation == first.fence.generation);
    assert!(killed, "{:?}", yard.commands);
}

#[test]
fn a_kept_sandbox_that_is_gone_starts_its_chain_again_before_the_next_step_asks_for_it() {
    let (mut yard, a) = between_the_steps();
    yard.list(LIFE, vec![]);
    assert!(yard.commands.is_empty(), "{:?}", yard.commands);
    yard.list(LIFE, vec![]);
    let again = yard.starts().remove(0);
    assert_eq!((again.attempt.step, again.attempt.attempt), (StepIndex(0), 1));
    assert!(again.fence.generation > a.fence.generation);
    assert_eq!(yard.cluster.nodes()[0].sandboxes, 1, "the lost one is off the ledger");
}

#[test]
fn a_kept_sandbox_lost_more_often_than_the_limit_fails_the_step_that_needs_it() {
    let (mut yard, a) = between_the_steps();
    let mut kept = a;
    for _ in 0..3 {
        yard.list(LIFE, vec![]);
        yard.list(LIFE, vec![]);
        let Some(again) = yard.starts().first().cloned() else { break };
        yard.end(&again, None, None);
        let b = yard.starts().remove(0);
        let (at, attempt, class) = (b.fence.clone(), b.attempt, RefusalClass::Busy);
        yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
        assert_eq!(again.attempt.attempt, kept.attempt.attempt + 1);
        kept = again;
    }
    let end = yard.ends()[0];
    assert_eq!((&end.reward, end.failure.as_ref().map(|f| f.code)), (&None, Some(FailureCode::NodeLost)));
    assert_eq!(yard.cluster.nodes()[0].sandboxes, 0);
}

#[test]
fn a_sandbox_whose_next_step_is_on_its_way_is_not_released() {
    let (mut yard, a, b) = on_the_second_step();
    for phase in [HeldPhase::Ended, HeldPhase::Kept] {
        yard.list(LIFE, vec![entry(&a, phase)]);
        let touched = |c: &Command| !matches!(c, Command::Start { .. });
        assert!(!yard.commands.iter().any(touched), "{:?}", yard.commands);
    }
    let again = yard.starts().remove(0);
    assert_eq!((again.attempt, again.continue_from), (b.attempt, Some(a.attempt)), "missed twice");
    // Refused, it leaves the sandbox as it was, and both sides still have it.
    let (at, attempt, class) = (b.fence.clone(), b.attempt, RefusalClass::Busy);
    yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
    yard.later(Millis(5_000));
    assert_eq!(yard.starts()[0].continue_from, Some(a.attempt));
}

#[test]
fn what_a_cancelled_job_lost_has_ended_and_what_it_still_runs_is_told_again_to_stop() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", LIFE, 8000);
    let started = yard.starts();
    let (code, reason) = (FailureCode::Cancelled, "enough".to_owned());
    yard.event(Event::JobCancelled { job: JOB, code, reason });
    yard.list(LIFE, running(&started[..1]));
    assert!(yard.ends().is_empty());
    yard.list(LIFE, running(&started[..1]));
    assert!(yard.starts().is_empty());
    assert!(
        matches!(yard.commands[..], [Command::Kill { attempt, .. }] if attempt == started[0].attempt),
        "{:?}",
        yard.commands
    );
    assert_eq!(yard.ends().len(), 1);
    yard.end(&started[0], Some(FailureCode::Cancelled), None);
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Cancelled));
}
