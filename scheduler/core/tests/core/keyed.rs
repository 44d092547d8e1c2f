//! Results that groups and jobs share by their key. One rule, one case.

use rollout::state::{JobState, StepState};
use rollout::{FailureCode, JobId, Millis, RolloutId, StepIndex};
use scheduler_core::event::RefusalClass;
use scheduler_core::{Event, ExplainTarget, Record};

use crate::builders::*;

const SETUP: StepIndex = StepIndex(0);
const OTHER: JobId = JobId::from_bits(2);

fn shared(group: u32) -> RolloutId {
    RolloutId::shared(rollout::GroupId { job: JOB, index: group })
}

/// Three groups; the node was asked for the digest and has answered.
fn begun() -> Yard {
    let mut yard = Yard::with(keyed(2), 3);
    yard.attach("n1", 1, 64_000);
    yard.answer(Some("host:0"));
    yard
}

fn names(starts: &[Started]) -> Vec<String> {
    starts.iter().map(|started| format!("{}", started.attempt)).collect()
}

fn explained(yard: &Yard, rollout: RolloutId) -> String {
    yard.cluster.explain(yard.now, ExplainTarget::Step(rollout, SETUP)).unwrap().lines.join("\n")
}

fn used(yard: &Yard) -> usize {
    yard.records.iter().filter(|record| matches!(record, Record::ResultUsed { .. })).count()
}

#[test]
fn one_set_up_serves_every_group_and_the_next_job() {
    let mut yard = begun();
    let setups = yard.starts();
    assert_eq!(setups.len(), 1, "one runs: {:?}", names(&setups));
    assert_eq!(
        explained(&yard, shared(1)),
        format!("step `setup` waits for base/${{image.digest}}, run by {}/setup", shared(0))
    );
    yard.end_saved(&setups[0], None, None);
    assert_eq!(used(&yard), 2, "the others found it");
    let agents = yard.starts();
    assert_eq!(agents.len(), 6);
    assert!(agents.iter().all(|agent| agent.base == Some(workspace_of(setups[0].attempt).id())));
    // While the answer of the node is believed, it is not asked again.
    yard.submit(OTHER, keyed(1), 2);
    assert_eq!((yard.starts().len(), used(&yard)), (2, 2));
    let attempts = yard.stored.attempts.keys().filter(|a| a.step == SETUP).count();
    assert_eq!(attempts, 1, "what is found takes no attempt");
}

#[test]
fn a_node_is_asked_again_when_its_answer_is_old() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.end_saved(&setup, None, None);
    yard.later(Millis(9_000));
    yard.event(Event::Heartbeat {
        node: node("n1"),
        incarnation: setup.fence.incarnation,
        measured: Default::default(),
    });
    yard.later(Millis(2_000));
    yard.submit(OTHER, keyed(1), 1);
    assert!(yard.starts().is_empty());
    let waits = RolloutId::shared(rollout::GroupId { job: OTHER, index: 0 });
    assert_eq!(explained(&yard, waits), "step `setup` waits for the digest of image `host` on node n1");
    // The image is another one by now: so is the key.
    yard.answer(Some("host:1"));
    assert_eq!((yard.starts().len(), used(&yard)), (1, 0));
}

#[test]
fn a_node_without_the_image_is_no_obstacle_and_neither_is_one_that_never_answers() {
    let mut yard = Yard::with(keyed(1), 2);
    yard.attach("n1", 1, 64_000);
    yard.answer(None);
    assert_eq!(yard.starts().len(), 1, "its refusal says the rest");
    let mut yard = Yard::with(keyed(1), 2);
    yard.attach("n1", 1, 64_000);
    for _ in 0..7 {
        yard.later(Millis(9_000));
        let uses = yard.cluster.nodes();
        let (node, incarnation) = (uses[0].node.clone(), uses[0].incarnation);
        let placed = yard.starts().len();
        if placed > 0 {
            return;
        }
        yard.event(Event::Heartbeat { node, incarnation, measured: Default::default() });
    }
    panic!("it still waits: {}", explained(&yard, shared(0)));
}

#[test]
fn a_failure_is_not_shared_and_the_next_one_tries() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::StepExit), None);
    let next = yard.starts();
    assert_eq!(names(&next), [format!("{}", at(1).attempt)]);
    assert_eq!(yard.stored.results.len(), 0);
    yard.end_saved(&next[0], None, None);
    assert_eq!((used(&yard), yard.stored.results.len()), (1, 1));
}

fn at(group: u32) -> Started {
    let attempt = rollout::AttemptId { rollout: shared(group), step: SETUP, attempt: 0 };
    let fence = scheduler_core::event::Fence {
        node: node("n1"),
        incarnation: rollout::IncarnationId::from_bits(1),
        generation: rollout::Generation(1),
    };
    Started { fence, attempt, continue_from: None, keep: false, base: None }
}

#[test]
fn one_that_is_tried_again_keeps_its_key_and_the_others_wait() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::StartFailed), None);
    assert!(yard.starts().is_empty(), "it backs off and the others wait for it");
    yard.later(Millis(1_000));
    let again = yard.starts();
    assert_eq!((again.len(), again[0].attempt.rollout), (1, shared(0)));
}

#[test]
fn results_and_who_makes_them_outlive_a_restart() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.restart();
    let held = scheduler_core::event::Held {
        attempt: setup.attempt,
        generation: setup.fence.generation,
        phase: scheduler_core::event::HeldPhase::Running,
    };
    let attach = |yard: &mut Yard, held| {
        let incarnation = setup.fence.incarnation;
        yard.event(Event::NodeAttached { node: node("n1"), incarnation, capacity: capacity(64_000), held });
    };
    attach(&mut yard, vec![held]);
    assert!(yard.starts().is_empty(), "the one that runs has the key");
    assert!(explained(&yard, shared(2)).contains("run by"), "{}", explained(&yard, shared(2)));
    yard.end_saved(&setup, None, None);
    assert_eq!(used(&yard), 2);
    yard.restart();
    yard.submit(OTHER, keyed(1), 1);
    attach(&mut yard, vec![]);
    yard.answer(Some("host:0"));
    assert_eq!(used(&yard), 1, "of the other job");
    assert!(yard.starts().iter().all(|started| started.attempt.step != SETUP));
}

#[test]
fn a_bad_result_is_dropped_for_all_and_made_again_once() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.end_saved(&setup, None, None);
    let agents = yard.starts();
    // Of a group that found it: the first to meet it drops it for those to come.
    let of = |group: u32| agents.iter().find(move |a| a.attempt.rollout.group.index == group).unwrap();
    yard.refuse(of(1), RefusalClass::CheckpointBad, "a layer is not what it claims to be");
    assert_eq!(yard.stored.results.len(), 0);
    assert!(
        yard.records
            .iter()
            .any(|r| matches!(r, Record::ResultUnused { rollout, .. } if *rollout == shared(1)))
    );
    yard.later(Millis(1_000));
    let again = yard.starts();
    assert_eq!(again.iter().filter(|s| s.attempt.step == SETUP).count(), 1);
    let setup_again = again.into_iter().find(|s| s.attempt.step == SETUP).unwrap();
    assert_eq!(setup_again.attempt.rollout, shared(1));
    // The maker's own group meets it too, and waits for the one that makes it again.
    yard.refuse(of(0), RefusalClass::CheckpointBad, "the same");
    yard.later(Millis(5_000));
    assert!(explained(&yard, shared(0)).contains("waits for base/"), "{}", explained(&yard, shared(0)));
    yard.end_saved(&setup_again, None, None);
    assert_eq!((yard.stored.results.len(), used(&yard)), (1, 1));
}

#[test]
fn a_held_job_leaves_its_keys_to_one_that_runs() {
    let mut yard = Yard::new();
    let mut large = keyed(1);
    large.steps[0].resources = rollout::plan::ResourcesPlan::Fixed(resources(128_000, 64));
    yard.submit(JOB, large, 1);
    yard.attach("n1", 1, 64_000);
    yard.answer(Some("host:0"));
    assert_eq!(yard.cluster.job_state(JOB), Some(JobState::Held));
    yard.submit(OTHER, keyed(1), 1);
    let setup = yard.starts().remove(0);
    assert_eq!(setup.attempt.rollout.group.job, OTHER);
    yard.end_saved(&setup, None, None);
    assert_eq!(used(&yard), 1, "it needs no node for what is there");
}

#[test]
fn a_step_of_each_rollout_may_have_a_key_too() {
    let mut yard = Yard::with(keyed_member(3), 2);
    yard.attach("n1", 1, 64_000);
    yard.answer(Some("host:0"));
    let builds = yard.starts();
    assert_eq!(builds.len(), 1);
    yard.end_saved(&builds[0], None, None);
    assert_eq!((used(&yard), yard.starts().len()), (5, 6));
    let states = yard
        .records
        .iter()
        .filter(|r| matches!(r, Record::StepState { step: SETUP, state: StepState::Succeeded, .. }));
    assert_eq!(states.count(), 6);
}

#[test]
fn a_cancelled_maker_leaves_its_key() {
    let mut yard = begun();
    let setup = yard.starts().remove(0);
    yard.submit(OTHER, keyed(1), 1);
    assert!(yard.starts().is_empty());
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() });
    yard.end(&setup, Some(FailureCode::Cancelled), None);
    assert_eq!(yard.starts()[0].attempt.rollout.group.job, OTHER);
}
