//! Rollouts that somebody wants run again. One rule, one case.

use rollout::state::{GroupClosedAs, JobState};
use rollout::{FailureCode, GroupId, Millis, RolloutId};
use scheduler_core::retry::{NotRetried, RetryScope};
use scheduler_core::{Event, Record};

use crate::builders::*;

/// No refills of its own, no retries of a step.
fn plan_of(size: u32) -> rollout::plan::JobPlan {
    let mut plan = forked(size);
    plan.steps.iter_mut().for_each(|step| step.retry.limit = 0);
    plan
}

fn rollout(sample: u32, refill: u32) -> RolloutId {
    RolloutId { group: JOB_GROUP, sample, refill }
}

/// One group of two: the first member was lost, the second has a reward; sealed, the job has ended.
fn ended(code: FailureCode) -> Yard {
    let mut yard = Yard::with(plan_of(2), 1);
    yard.attach("n1", 1, 64_000);
    let setup = yard.starts().remove(0);
    yard.end_saved(&setup, None, None);
    let agents = yard.starts();
    yard.end(&agents[0], Some(code), None);
    win(&mut yard, &agents[1]);
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Finished));
    yard.cluster.forget(JOB);
    yard
}

fn win(yard: &mut Yard, agent: &Started) {
    yard.end(agent, None, None);
    let grade = yard.starts().remove(0);
    yard.end(&grade, None, Some(1.0));
}

fn closed(yard: &Yard) -> Option<(i64, GroupClosedAs, u32)> {
    yard.records.iter().find_map(|r| match r {
        Record::GroupClosed { seq, closed_as, valid, .. } => Some((*seq, *closed_as, *valid)),
        _ => None,
    })
}

#[test]
fn a_lost_member_of_a_job_that_ended_is_run_again_and_its_group_closes_under_a_new_seq() {
    let mut yard = ended(FailureCode::NodeLost);
    let before = yard.stored.job_snapshot(JOB).unwrap().totals;
    assert_eq!((before.rollouts_valid, before.groups_closed, before.pass_at_k.len()), (1, 1, 1));
    yard.retry(JOB, vec![rollout(0, 0)], false);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Running));
    assert_eq!(yard.cluster.counts(JOB).unwrap().totals, yard.stored.job_snapshot(JOB).unwrap().totals);
    yard.restart();
    yard.attach("n1", 2, 64_000);
    yard.later(Millis(1_000));
    let again = yard.starts();
    assert_eq!(again.len(), 1, "it alone, and no set-up: {again:?}");
    assert_eq!((again[0].attempt.rollout, again[0].base.is_some()), (rollout(0, 1), true));
    win(&mut yard, &again[0]);
    assert_eq!(closed(&yard), Some((1, GroupClosedAs::Full, 2)));
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Finished));
    let totals = yard.stored.job_snapshot(JOB).unwrap().totals;
    assert_eq!((totals.rollouts_valid, totals.rollouts_superseded, totals.groups_closed), (2, 1, 1));
    assert_eq!(totals.pass_at_k.len(), 2);
}

#[test]
fn asking_twice_is_asking_once() {
    let mut yard = ended(FailureCode::NodeLost);
    yard.retry(JOB, vec![rollout(0, 0), rollout(0, 0)], false);
    assert_eq!(yard.stored.refilled.len(), 1);
    yard.retry(JOB, vec![rollout(0, 0)], false);
    yard.later(Millis(1_000));
    assert_eq!((yard.stored.refilled.len(), yard.starts().len()), (1, 1));
    assert!(yard.stored.retries.is_empty());
}

#[test]
fn what_is_asked_for_outlives_a_restart_and_waits_for_room() {
    let mut plan = plan_of(1);
    plan.admission.max_running = 1;
    let mut yard = Yard::with(plan, 3);
    yard.attach("n1", 1, 64_000);
    let fail = |yard: &mut Yard| {
        let setup = yard.open().remove(0);
        yard.end_saved(&setup, None, None);
        let agent = yard.open().remove(0);
        yard.end(&agent, Some(FailureCode::NodeLost), None);
    };
    fail(&mut yard);
    // The rows of the first group are not sealed yet, and the second one runs.
    yard.retry(JOB, vec![rollout(0, 0)], false);
    assert_eq!((yard.stored.retries.len(), yard.stored.refilled.len()), (1, 0));
    yard.restart();
    yard.attach("n1", 1, 64_000);
    assert_eq!(yard.stored.retries.len(), 1);
    yard.event(Event::GroupsSealed { groups: vec![] });
    yard.stored.seal(JOB_GROUP);
    yard.event(Event::GroupsSealed { groups: vec![JOB_GROUP] });
    assert_eq!(yard.stored.refilled.len(), 0, "max_running is 1");
    fail(&mut yard);
    yard.later(Millis(1_000));
    assert_eq!(yard.stored.refilled.len(), 1, "before the third group");
    assert_eq!(yard.cluster.counts(JOB).unwrap().rollouts_admitted, 2);
}

#[test]
fn a_cancel_forgets_what_was_asked_for() {
    let mut yard = ended(FailureCode::NodeLost);
    yard.retry(JOB, vec![rollout(0, 0)], false);
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "no".into() });
    assert_eq!(closed(&yard), Some((1, GroupClosedAs::Cancelled, 1)));
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Cancelled));
    assert!(yard.stored.retries.is_empty());
}

#[test]
fn only_what_has_no_reward_and_is_no_agents_doing_is_run_again() {
    use rollout::failure::{Failure, Status};
    use scheduler_core::record::RolloutEnd;
    let failed = |code: FailureCode| RolloutEnd {
        status: code.consequence().status,
        stop_reason: None,
        failure: Some(Failure::new(code, "it happened")),
        reward: None,
    };
    let (lost, all) = (RetryScope::default(), RetryScope { all_failed: true, cancelled: false });
    let cancelled = RetryScope { all_failed: false, cancelled: true };
    let cases = [
        (FailureCode::NodeLost, Ok(()), Ok(())),
        (FailureCode::StorageFailed, Ok(()), Ok(())),
        (FailureCode::StepExit, Err(NotRetried::Failed), Ok(())),
        (FailureCode::RewardBad, Err(NotRetried::Failed), Ok(())),
        (FailureCode::AgentTimeout, Err(NotRetried::Agent), Err(NotRetried::Agent)),
        (FailureCode::Cancelled, Err(NotRetried::Cancelled), Err(NotRetried::Cancelled)),
        (FailureCode::Straggler, Err(NotRetried::Fine), Err(NotRetried::Fine)),
    ];
    for (code, plain, with_all) in cases {
        assert_eq!((lost.takes(&failed(code)), all.takes(&failed(code))), (plain, with_all), "{code}");
    }
    assert_eq!(cancelled.takes(&failed(FailureCode::Cancelled)), Ok(()));
    let fine = RolloutEnd { status: Status::Completed, stop_reason: None, failure: None, reward: None };
    assert_eq!(all.takes(&fine), Err(NotRetried::Fine));
}

#[test]
fn a_set_up_that_failed_is_tried_again_with_its_members() {
    let mut yard = Yard::with(plan_of(2), 1);
    yard.attach("n1", 1, 64_000);
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::StepExit), None);
    yard.seal_all();
    yard.cluster.forget(JOB);
    yard.retry(JOB, vec![rollout(0, 0), rollout(1, 0)], false);
    yard.later(Millis(1_000));
    let again = yard.starts();
    assert_eq!((again.len(), again[0].attempt.rollout), (1, RolloutId::shared(JOB_GROUP)));
    yard.end_saved(&again[0], None, None);
    assert_eq!(yard.starts().len(), 2);
}

#[test]
fn the_breakers_hold_is_lifted_and_nothing_else_changes() {
    let mut plan = plan_of(1);
    plan.group.on_incomplete = rollout::plan::OnIncomplete::Deliver;
    let mut yard = Yard::with(plan, 40);
    yard.attach("n1", 1, 640_000);
    while yard.cluster.job_state(JOB) == Some(JobState::Running) {
        let open = yard.open();
        yard.end(&open[0], Some(FailureCode::StepExit), None);
    }
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    let first = GroupId { job: JOB, index: 0 };
    yard.stored.seal(first);
    yard.event(Event::GroupsSealed { groups: vec![first] });
    yard.retry(JOB, vec![rollout(0, 0)], false);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held), "without --all-failed");
    yard.retry(JOB, vec![], true);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Running));
    assert!(yard.stored.refilled.contains(&rollout(0, 1)));
}
