//! Sessions: who drives them is not known here; how they end, what they start from and where they are.

use std::sync::Arc;

use rollout::failure::Status;
use rollout::plan::StepKind;
use rollout::state::JobState;
use rollout::{AttemptId, FailureCode, JobId, Millis, RolloutId, StepIndex, Timestamp};
use scheduler_core::event::RefusalClass;
use scheduler_core::sessions::{How, LiveSession, Tried, Whereabouts, goes_on_from, has_ended};
use scheduler_core::{Event, Record};

use crate::builders::*;

fn begin(yard: &mut Yard, started: &Started) {
    let (at, attempt) = (started.fence.clone(), started.attempt);
    yard.event(Event::AttemptStarted { at, attempt, started_at: Timestamp(5) });
}

fn first() -> RolloutId {
    RolloutId { group: JOB_GROUP, sample: 0, refill: 0 }
}

/// One session whose sandbox is ready.
fn talking(takes_reward: bool) -> (Yard, Started) {
    let mut yard = Yard::with(plan(1, vec![session("talk", &[], takes_reward)]), 1);
    yard.attach("n1", 1, 8000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    (yard, talk)
}

#[test]
fn the_reward_a_driver_gives_is_that_of_the_rollout() {
    let (mut yard, talk) = talking(true);
    let mut finished = outcome(None, Some(0.25));
    finished.actions = Some(5);
    yard.end_with(&talk, finished);
    let end = yard.ends()[0];
    assert_eq!((end.status, end.reward.as_ref().map(|r| r.value)), (Status::Completed, Some(0.25)));
    assert!(yard.records.iter().any(|r| matches!(r, Record::GroupClosed { valid: 1, .. })));
}

#[test]
fn a_driver_need_not_give_a_reward() {
    let (mut yard, talk) = talking(true);
    yard.end(&talk, None, None);
    let end = yard.ends()[0];
    assert_eq!((end.status, end.reward.as_ref(), end.failure.as_ref()), (Status::Completed, None, None));
}

#[test]
fn a_reward_counts_only_beside_what_leaves_a_valid_one() {
    for (code, status, reward) in [
        (FailureCode::OutputMissing, Status::Completed, Some(0.5)),
        (FailureCode::StepExit, Status::Failed, None),
    ] {
        let (mut yard, talk) = talking(true);
        yard.end(&talk, Some(code), Some(0.5));
        let end = yard.ends()[0];
        assert_eq!((end.status, end.reward.as_ref().map(|r| r.value)), (status, reward), "{code}");
    }
}

#[test]
fn what_no_session_can_end_with_is_not_taken() {
    let reward = |takes_reward, reward: Option<f32>, actions| {
        let (mut yard, talk) = talking(takes_reward);
        let mut told = outcome(None, reward);
        told.actions = actions;
        yard.end_with(&talk, told);
        let end = yard.ends()[0].clone();
        end.failure.map(|failure| (failure.code, failure.message))
    };
    assert_eq!(reward(true, Some(1.0), Some(5)), None);
    for (takes_reward, given, actions, words) in [
        (false, Some(1.0), None, "no grader and no session that takes one"),
        (true, None, Some(6), "6 actions, above its max_actions"),
    ] {
        let (code, message) = reward(takes_reward, given, actions).unwrap();
        assert_eq!(code, FailureCode::OutcomeUnknown);
        assert!(message.contains(words), "{message}");
    }
    let mut yard = Yard::with(plan(1, vec![step("work", StepKind::Run, &[])]), 1);
    yard.attach("n1", 1, 8000);
    let work = yard.starts().remove(0);
    let mut told = outcome(None, None);
    told.actions = Some(0);
    yard.end_with(&work, told);
    assert_eq!(yard.ends()[0].failure.as_ref().map(|f| f.code), Some(FailureCode::OutcomeUnknown));
}

#[test]
fn rewards_of_earlier_sessions_are_components_of_the_last() {
    let steps = vec![session("ask", &[], true), session("pause", &[0], true), session("judge", &[1], true)];
    let mut yard = Yard::with(plan(1, steps), 1);
    yard.attach("n1", 1, 8000);
    for reward in [Some(0.5), None, Some(1.0)] {
        let next = yard.starts().remove(0);
        yard.end(&next, None, reward);
    }
    let reward = yard.ends()[0].reward.clone().unwrap();
    assert_eq!((reward.value, reward.components), (1.0, vec![("ask".to_owned(), 0.5)]));
}

#[test]
fn a_lost_driver_costs_a_try_and_a_graded_session_goes_on() {
    let (mut yard, mut talk) = talking(true);
    for tries in 1.. {
        yard.end(&talk, Some(FailureCode::DriverLost), None);
        if !yard.ends().is_empty() {
            assert_eq!(tries, 1 + 2, "`retry.limit` is 2");
            break;
        }
        yard.later(Millis(2_000));
        talk = yard.starts().remove(0);
    }
    assert_eq!(yard.ends()[0].status, Status::Aborted);

    let steps = vec![session("talk", &[], false), step("grade", StepKind::Grader, &[0])];
    let mut yard = Yard::with(plan(1, steps), 1);
    yard.attach("n1", 1, 8000);
    let talk = yard.starts().remove(0);
    yard.end(&talk, Some(FailureCode::MaxActions), None);
    let grade = yard.starts().remove(0);
    yard.end(&grade, None, Some(1.0));
    let end = yard.ends()[0];
    assert_eq!((end.status, end.stop_reason.as_deref()), (Status::Truncated, Some("max_actions")));
    assert_eq!(end.reward.as_ref().map(|r| r.value), Some(1.0));
}

#[test]
fn a_session_is_found_where_it_runs_also_after_a_restart() {
    let mut yard = Yard::with(driven(1), 2);
    let talk = StepIndex(1);
    assert_eq!(yard.cluster.whereabouts(first(), talk), Whereabouts::Waits);
    yard.attach("n1", 1, 8000);
    let setups = yard.starts();
    assert_eq!(yard.cluster.whereabouts(first(), StepIndex(0)), Whereabouts::Starts(node("n1")));
    begin(&mut yard, &setups[0]);
    assert_eq!(yard.cluster.live_sessions(JOB), [], "what sets it up is no session");
    yard.end(&setups[0], None, None);
    let started = yard.starts().remove(0);
    assert_eq!(yard.cluster.whereabouts(first(), talk), Whereabouts::Starts(node("n1")));
    begin(&mut yard, &started);
    let live = LiveSession { rollout: first(), step: talk, attempt: 0, node: node("n1") };
    for restarts in 0..2 {
        assert_eq!(yard.cluster.live_sessions(JOB), vec![live.clone()], "after {restarts} restarts");
        assert_eq!(yard.cluster.whereabouts(first(), talk), Whereabouts::Runs(node("n1")));
        assert!(yard.cluster.has_sessions_left(JOB));
        yard.restart();
    }
    yard.attach("n2", 2, 8000);
    yard.end(&started, None, Some(1.0));
    assert_eq!(yard.cluster.whereabouts(first(), talk), Whereabouts::Over);
    assert!(yard.cluster.has_sessions_left(JOB), "the other group has one");
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() });
    assert!(!yard.cluster.has_sessions_left(JOB));
}

#[test]
fn nothing_is_left_once_the_last_session_ended() {
    let (mut yard, talk) = talking(true);
    assert!(yard.cluster.has_sessions_left(JOB));
    yard.end(&talk, None, Some(1.0));
    assert!(!yard.cluster.has_sessions_left(JOB));
    assert!(!yard.cluster.has_sessions_left(JobId::from_bits(99)));
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    assert!(!yard.cluster.has_sessions_left(JOB), "a job without sessions");
}

#[test]
fn steps_that_work_from_the_image_begin_with_what_was_given() {
    let given = Arc::new(workspace_of(AttemptId { rollout: first(), step: StepIndex(9), attempt: 9 }));
    let mut yard = Yard::new();
    yard.stored.bases.insert(JOB, given.clone());
    yard.submit(JOB, driven(1), 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    assert_eq!((setup.base, setup.continue_from), (Some(given.id()), None));
    yard.end(&setup, None, None);
    let talk = yard.starts().remove(0);
    assert_eq!((talk.base, talk.continue_from), (None, Some(setup.attempt)));
    begin(&mut yard, &talk);
    yard.restart();
    yard.attach("n1", 2, 8000);
    yard.later(Millis(2_000));
    let again = yard.starts().remove(0);
    assert_eq!((again.attempt.step, again.base), (StepIndex(0), Some(given.id())), "the chain starts again");
}

#[test]
fn what_was_given_and_is_bad_ends_the_rollout_in_the_storage_domain() {
    let given = Arc::new(workspace_of(AttemptId { rollout: first(), step: StepIndex(9), attempt: 9 }));
    let mut only = session("sandbox", &[], false);
    only.retry.limit = 0;
    let mut yard = Yard::new();
    yard.stored.bases.insert(JOB, given);
    yard.submit(JOB, plan(1, vec![only]), 1);
    yard.attach("n1", 1, 8000);
    let start = yard.starts().remove(0);
    yard.refuse(&start, RefusalClass::CheckpointBad, "a layer is not there");
    let failure = yard.ends()[0].failure.clone().unwrap();
    assert_eq!(failure.code, FailureCode::StorageFailed);
    assert!(failure.message.contains("a layer is not there"), "{}", failure.message);
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Finished));
}

#[test]
fn a_session_may_be_saved_whenever_somebody_asks() {
    let (mut yard, talk) = talking(true);
    let checkpoint = Box::new(workspace_of(AttemptId { attempt: 77, ..talk.attempt }));
    let (at, attempt) = (talk.fence.clone(), talk.attempt);
    yard.event(Event::CheckpointTaken { at, attempt, checkpoint: checkpoint.clone() });
    let taken = |r: &Record| matches!(r, Record::CheckpointTaken { checkpoint: c, .. } if **c == *checkpoint);
    assert!(yard.records.iter().any(taken));
}

#[test]
fn a_session_goes_on_from_where_it_was_parked_until_one_that_was_ready_ends_otherwise() {
    use How::{NeverReady, Open, Over, Parked};
    let (n1, n2, n3) = (node("n1"), node("n2"), node("n3"));
    for (tried, goes_on) in [
        (&[][..], false),
        (&[(&n1, Open)], false),
        (&[(&n1, Over)], false),
        (&[(&n2, Parked)], false),
        (&[(&n1, Parked)], true),
        (&[(&n1, Parked), (&n2, Open)], true),
        (&[(&n1, Parked), (&n2, Parked)], true),
        (&[(&n1, Parked), (&n2, NeverReady), (&n3, Open)], true),
        (&[(&n1, Parked), (&n2, Parked), (&n3, Open)], true),
        (&[(&n1, Parked), (&n2, Over)], false),
        (&[(&n1, Parked), (&n2, Over), (&n3, Open)], false),
        (&[(&n1, Parked), (&n2, Over), (&n3, Parked)], false),
        (&[(&n1, Parked), (&n2, Over), (&n1, Open)], false),
        (&[(&n1, Parked), (&n2, Over), (&n1, Parked), (&n3, Open)], true),
        (&[(&n1, Over), (&n1, Parked), (&n2, Open)], true),
        (&[(&n2, Parked), (&n1, Open)], false),
    ] {
        let tried: Vec<_> = tried.iter().map(|&(node, how)| Tried { node, how }).collect();
        assert_eq!(goes_on_from(&tried, &n1), goes_on, "{tried:?}");
    }
}

#[test]
fn a_session_has_ended_though_its_step_is_tried_again() {
    use How::{NeverReady, Open, Over, Parked};
    let (n1, n2) = (node("n1"), node("n2"));
    for (tried, has) in [
        (&[][..], false),
        (&[(&n1, Open)], false),
        (&[(&n2, Over)], false),
        (&[(&n1, Over)], true),
        (&[(&n1, NeverReady)], true),
        (&[(&n1, Over), (&n2, Open)], true),
        (&[(&n1, Over), (&n1, Open)], false),
        (&[(&n1, Parked)], false),
        (&[(&n1, Parked), (&n2, Open)], false),
        (&[(&n1, Parked), (&n2, Over), (&n2, Open)], true),
    ] {
        let tried: Vec<_> = tried.iter().map(|&(node, how)| Tried { node, how }).collect();
        assert_eq!(has_ended(&tried, &n1), has, "{tried:?}");
    }
}
