//! What steps start from, and what runs once a group. One rule, one case.

use rollout::failure::Status;
use rollout::plan::{JobPlan, Keep, Origin, Per, StepKind};
use rollout::state::GroupClosedAs;
use rollout::{Domain, FailureCode, IncarnationId, Millis, StepIndex};
use scheduler_core::event::{Held, HeldPhase, RefusalClass};
use scheduler_core::record::CheckpointKind;
use scheduler_core::{Event, ExplainTarget, Record};

use crate::builders::*;

fn steps(yard: &Yard) -> Vec<u8> {
    yard.starts().iter().map(|s| s.attempt.step.0).collect()
}

/// `forked`, set up, with its agents started.
fn set_up(size: u32) -> (Yard, Started, Vec<Started>) {
    let mut yard = Yard::with(forked(size), 1);
    yard.attach("n1", 1, 64_000);
    let setup = yard.starts();
    assert_eq!(setup.len(), 1, "once, however many members there are");
    assert!(setup[0].attempt.rollout.is_shared());
    yard.end_saved(&setup[0], None, None);
    let agents = yard.starts();
    (yard, setup[0].clone(), agents)
}

#[test]
fn a_group_is_set_up_once_and_forked_into_its_members() {
    let (mut yard, setup, agents) = set_up(8);
    let base = Some(workspace_of(setup.attempt).id());
    assert_eq!(agents.len(), 8);
    assert!(
        agents.iter().all(|a| a.attempt.step == StepIndex(1) && a.base == base && a.continue_from.is_none())
    );
    for agent in &agents {
        yard.end(agent, None, None);
        let grade = yard.starts().remove(0);
        assert_eq!(grade.base, base, "what the agent started from, not what it left");
        yard.end(&grade, None, Some(1.0));
    }
    let setups = yard.stored.attempts.keys().filter(|a| a.step == StepIndex(0)).count();
    assert_eq!((setups, yard.ends().len()), (1, 8), "a set-up is no rollout");
    assert!(yard.stored.ends.keys().all(|rollout| !rollout.is_shared()));
}

#[test]
fn groups_are_set_up_as_often_as_there_are_groups() {
    let mut yard = Yard::with(forked(3), 4);
    yard.attach("n1", 1, 64_000);
    while let Some(started) = yard.open().first().cloned() {
        let reward = (started.attempt.step == StepIndex(2)).then_some(1.0);
        yard.end_saved(&started, None, reward);
    }
    let setups = yard.stored.attempts.keys().filter(|a| a.step == StepIndex(0)).count();
    assert_eq!((setups, yard.ends().len()), (4, 12));
}

#[test]
fn a_set_up_that_fails_ends_the_whole_group_with_its_failure() {
    let mut yard = Yard::with(forked(3), 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::SetupFailed), None);
    assert!(yard.starts().is_empty(), "the spec is at fault: nothing is tried again");
    let ends = yard.ends();
    assert_eq!(ends.len(), 3);
    for end in ends {
        let failure = end.failure.as_ref().unwrap();
        assert_eq!(
            (end.status, failure.code, failure.domain),
            (Status::Failed, FailureCode::SetupFailed, Domain::Task)
        );
    }
}

#[test]
fn a_set_up_on_a_node_that_is_lost_runs_again_and_its_members_wait() {
    let mut yard = Yard::with(forked(2), 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    yard.attach("n1", 2, 8000);
    yard.later(Millis(2_000));
    let again = yard.starts().remove(0);
    assert_eq!((again.attempt.rollout, again.attempt.attempt), (setup.attempt.rollout, 1));
    let explained = yard
        .cluster
        .explain(yard.now, ExplainTarget::Rollout(rollout::RolloutId { sample: 1, ..setup.attempt.rollout }));
    assert!(explained.unwrap().lines.contains(&"step `agent` waits for `setup`".to_owned()));
    yard.end_saved(&again, None, None);
    assert_eq!(steps(&yard), [1, 1]);
}

#[test]
fn a_job_that_is_cancelled_waits_for_its_set_up_to_stop() {
    let mut yard = Yard::with(forked(2), 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() });
    assert!(yard.ends().is_empty(), "the group still holds a sandbox");
    yard.end(&setup, Some(FailureCode::Cancelled), None);
    assert!(yard.ends().iter().all(|end| end.status == Status::Cancelled) && yard.ends().len() == 2);
    let closed = |r: &Record| matches!(r, Record::GroupClosed { closed_as: GroupClosedAs::Cancelled, .. });
    assert!(yard.records.iter().any(closed));
}

#[test]
fn a_lost_chain_goes_on_from_what_its_last_finished_step_left() {
    let mut yard = Yard::with(saved_chain(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    assert_eq!((b.continue_from, b.base), (Some(a.attempt), None), "it goes on in the live sandbox");
    yard.attach("n1", 2, 8000);
    yard.later(Millis(2_000));
    let again = yard.starts().remove(0);
    let base = Some(workspace_of(a.attempt).id());
    assert_eq!((again.attempt.step, again.continue_from, again.base), (StepIndex(1), None, base));
    assert_eq!(yard.stored.attempts.keys().filter(|x| x.step == StepIndex(0)).count(), 1, "a has finished");
}

#[test]
fn a_kept_sandbox_that_is_lost_between_steps_costs_no_retry() {
    let mut plan = saved_chain(1);
    plan.steps[1].retry.limit = 0;
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    yard.refuse(&b, RefusalClass::SandboxGone, "no such sandbox");
    yard.later(Millis(1_000));
    let b = yard.starts().remove(0);
    assert_eq!((b.attempt.attempt, b.base), (0, Some(workspace_of(a.attempt).id())));
    yard.restart();
    yard.attach("n1", 1, 8000);
    let b = yard.starts().remove(0);
    assert_eq!(b.base, Some(workspace_of(a.attempt).id()), "told again, with what it starts from");
    yard.end_saved(&b, None, None);
    assert_eq!(steps(&yard), [2]);
}

#[test]
fn what_a_chain_waits_to_start_anew_with_outlives_a_restart() {
    let mut yard = Yard::with(saved_chain(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    yard.refuse(&b, RefusalClass::SandboxGone, "no such sandbox");
    yard.restart();
    assert!(yard.cluster.nodes().iter().all(|n| n.sandboxes == 0), "nothing is kept any more");
    yard.attach("n1", 1, 8000);
    yard.later(Millis(1_000));
    assert_eq!(yard.starts()[0].base, Some(workspace_of(a.attempt).id()));
}

#[test]
fn a_grader_that_works_from_the_agent_is_graded_again_from_what_the_agent_left() {
    for live in [false, true] {
        let plan = if live { graded_there(1) } else { saved_chain(1) };
        let mut yard = Yard::with(plan, 1);
        yard.attach("n1", 1, 8000);
        let a = yard.starts().remove(0);
        yard.end_saved(&a, None, None);
        let b = yard.starts().remove(0);
        yard.end_saved(&b, None, None);
        let first = yard.starts().remove(0);
        assert_eq!(first.continue_from.is_some(), live);
        yard.end(&first, Some(FailureCode::RewardBad), None);
        let second = yard.starts().remove(0);
        assert_eq!((second.attempt.step, second.continue_from), (StepIndex(2), None));
        assert_eq!(second.base, Some(workspace_of(b.attempt).id()));
        yard.end(&second, None, Some(1.0));
        assert_eq!(yard.ends()[0].reward.as_ref().map(|r| r.value), Some(1.0));
        assert_eq!(yard.stored.attempts.len(), 4, "neither a nor the agent ran again");
    }
}

#[test]
fn an_agent_that_failed_is_graded_in_its_sandbox_if_what_it_left_is_saved_too() {
    for is_lost in [false, true] {
        let mut yard = Yard::with(graded_there(1), 1);
        yard.attach("n1", 1, 8000);
        let a = yard.starts().remove(0);
        yard.end_saved(&a, None, None);
        let b = yard.starts().remove(0);
        yard.end_saved(&b, Some(FailureCode::AgentExit), None);
        let mut grade = yard.starts().remove(0);
        assert_eq!((grade.continue_from, grade.base), (Some(b.attempt), None));
        if is_lost {
            yard.refuse(&grade, RefusalClass::SandboxGone, "no such sandbox");
            yard.later(Millis(1_000));
            grade = yard.starts().remove(0);
            assert_eq!((grade.continue_from, grade.base), (None, Some(workspace_of(b.attempt).id())));
        }
        yard.end(&grade, None, Some(0.5));
        assert_eq!(yard.ends()[0].reward.as_ref().map(|r| r.value), Some(0.5));
        assert!(yard.cluster.nodes().iter().all(|n| n.sandboxes == 0));
    }
    // Nothing to start from if it were lost: not kept, not graded, and never run again.
    let mut yard = Yard::with(graded_there(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    yard.end(&b, Some(FailureCode::AgentExit), None);
    assert!(yard.starts().is_empty());
    assert_eq!(yard.ends().len(), 1);
    assert!(yard.cluster.nodes().iter().all(|n| n.sandboxes == 0));
}

#[test]
fn a_sandbox_kept_after_a_failure_outlives_a_restart_of_the_scheduler() {
    let mut yard = Yard::with(graded_there(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    yard.end_saved(&b, Some(FailureCode::AgentExit), None);
    let grade = yard.starts().remove(0);
    yard.refuse(&grade, RefusalClass::Busy, "not now");
    yard.restart();
    let left = Held { attempt: b.attempt, generation: b.fence.generation, phase: HeldPhase::Kept };
    yard.event(Event::NodeAttached {
        node: node("n1"),
        incarnation: IncarnationId::from_bits(1),
        capacity: capacity(8000),
        held: vec![left],
    });
    yard.later(Millis(10_000));
    let grade = yard.starts().remove(0);
    assert_eq!(grade.continue_from, Some(b.attempt));
    yard.end(&grade, None, Some(1.0));
    assert_eq!(yard.ends()[0].reward.as_ref().map(|r| r.value), Some(1.0));
}

#[test]
fn an_agent_that_failed_is_graded_from_what_it_saved_and_never_runs_again_for_it() {
    for saves in [true, false] {
        let mut yard = Yard::with(saved_chain(1), 1);
        yard.attach("n1", 1, 8000);
        let a = yard.starts().remove(0);
        yard.end_saved(&a, None, None);
        let b = yard.starts().remove(0);
        match saves {
            true => yard.end_saved(&b, Some(FailureCode::OomGuest), None),
            false => yard.end(&b, Some(FailureCode::OomGuest), None),
        }
        let reward = if saves {
            let grade = yard.starts().remove(0);
            assert_eq!(grade.base, Some(workspace_of(b.attempt).id()));
            yard.end(&grade, None, Some(0.5));
            Some(0.5)
        } else {
            assert!(yard.starts().is_empty());
            None
        };
        let end = yard.ends()[0];
        assert_eq!(end.reward.as_ref().map(|r| r.value), reward);
        assert_eq!(end.failure.as_ref().unwrap().code, FailureCode::OomGuest);
    }
}

/// An agent that saves its workspace while it runs, and whose own state is in there.
fn resuming(keep: Keep) -> JobPlan {
    let mut plan = saved_chain(1);
    plan.steps[1].origin = Origin::Checkpoint(StepIndex(0));
    plan.steps[1].resume = true;
    plan.steps[1].checkpoint.every = Some(Millis(1_000));
    plan.steps[1].checkpoint.keep = keep;
    plan
}

fn take(yard: &mut Yard, started: &Started, number: u32) -> rollout::checkpoint::CheckpointId {
    let name = rollout::AttemptId { attempt: 100 + number, ..started.attempt };
    let checkpoint = Box::new(workspace_of(name));
    let id = checkpoint.id();
    let (at, attempt) = (started.fence.clone(), started.attempt);
    yard.event(Event::CheckpointTaken { at, attempt, checkpoint });
    id
}

#[test]
fn an_agent_that_resumes_restarts_from_its_last_checkpoint_and_others_from_their_input() {
    for resume in [true, false] {
        let mut plan = resuming(Keep::Last);
        plan.steps[1].resume = resume;
        let mut yard = Yard::with(plan, 1);
        yard.attach("n1", 1, 8000);
        let a = yard.starts().remove(0);
        yard.end_saved(&a, None, None);
        let b = yard.starts().remove(0);
        let input = b.base;
        take(&mut yard, &b, 0);
        let last = take(&mut yard, &b, 1);
        yard.restart();
        yard.attach("n1", 2, 8000);
        yard.later(Millis(2_000));
        let again = yard.starts().remove(0);
        assert_eq!(again.attempt.attempt, 1);
        assert_eq!(again.base, if resume { Some(last) } else { input });
    }
}

#[test]
fn checkpoints_taken_on_the_way_are_kept_as_the_spec_says() {
    for (keep, while_running, at_the_end) in [(Keep::Last, 1, 0), (Keep::Newest(2), 2, 2), (Keep::All, 4, 4)]
    {
        let mut yard = Yard::with(resuming(keep), 1);
        yard.attach("n1", 1, 8000);
        let a = yard.starts().remove(0);
        yard.end_saved(&a, None, None);
        let b = yard.starts().remove(0);
        for number in 0..4 {
            take(&mut yard, &b, number);
        }
        let every = |yard: &Yard| {
            yard.stored.checkpoints.values().filter(|c| c.kind == CheckpointKind::Every).count()
        };
        assert_eq!(every(&yard), while_running, "{keep:?}");
        yard.end_saved(&b, None, None);
        assert_eq!(every(&yard), at_the_end, "{keep:?}");
        yard.restart();
        yard.check();
    }
}

#[test]
fn a_checkpoint_nobody_asked_for_or_from_an_older_attempt_changes_nothing() {
    let mut yard = Yard::with(resuming(Keep::Last), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    take(&mut yard, &a, 0);
    assert_eq!((yard.stored.checkpoints.len(), yard.cluster.fenced_count()), (0, 1));
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    yard.attach("n1", 2, 8000);
    take(&mut yard, &b, 0);
    assert_eq!((yard.stored.checkpoints.len(), yard.cluster.fenced_count()), (1, 2));
}

#[test]
fn a_step_whose_workspace_was_to_be_saved_and_is_not_has_not_succeeded() {
    let mut yard = Yard::with(saved_chain(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end(&a, None, None);
    assert!(yard.starts().is_empty());
    let stored = &yard.stored.attempts[&a.attempt];
    let failure = stored.outcome.as_ref().unwrap().failure.clone().unwrap();
    assert_eq!((failure.code, failure.domain), (FailureCode::StorageFailed, Domain::Storage));
    yard.later(Millis(2_000));
    assert_eq!(yard.starts()[0].attempt.attempt, 1, "it is tried again");
}

#[test]
fn a_bad_checkpoint_is_dropped_with_the_reason_and_its_maker_runs_again() {
    let (mut yard, setup, agents) = set_up(2);
    yard.refuse(&agents[0], RefusalClass::CheckpointBad, "layer sha256:ab is not what it claims");
    let why = yard.records.iter().find_map(|r| match r {
        Record::CheckpointRemoved { attempt, why, .. } if *attempt == setup.attempt => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("node n1 refused it: layer sha256:ab is not what it claims"));
    yard.restart();
    yard.attach("n1", 1, 64_000);
    yard.later(Millis(1_000));
    let started = yard.starts();
    let setup_again = started.iter().find(|s| s.attempt.rollout.is_shared()).unwrap().clone();
    assert_eq!(setup_again.attempt.attempt, 1);
    // The other was placed with the same one, and says so late: that is gone already.
    let other = agents[1].clone();
    yard.refuse(&other, RefusalClass::CheckpointBad, "layer sha256:ab is not what it claims");
    yard.later(Millis(10_000));
    assert!(yard.starts().is_empty(), "both wait for the second set-up, and there is no third");
    yard.end_saved(&setup_again, None, None);
    let agents = yard.starts();
    assert_eq!(agents.len(), 2);
    assert!(agents.iter().all(|a| a.base == Some(workspace_of(setup_again.attempt).id())));
}

#[test]
fn checkpoints_that_stay_bad_end_the_rollout_in_the_storage_domain() {
    let (mut yard, _, agents) = set_up(1);
    let mut agent = agents[0].clone();
    for _ in 0..2 {
        yard.refuse(&agent, RefusalClass::CheckpointBad, "gone");
        yard.later(Millis(10_000));
        let setup = yard.starts().remove(0);
        yard.end_saved(&setup, None, None);
        agent = yard.open().remove(0);
    }
    yard.refuse(&agent, RefusalClass::CheckpointBad, "gone");
    let end = yard.ends()[0];
    let failure = end.failure.as_ref().unwrap();
    assert_eq!((failure.code, failure.domain), (FailureCode::StorageFailed, Domain::Storage));
    assert!(failure.message.contains("the checkpoint to start from is bad: gone"), "{}", failure.message);
}

#[test]
fn a_bad_checkpoint_of_the_agent_itself_falls_back_to_the_one_before() {
    let mut plan = resuming(Keep::Newest(2));
    plan.steps[1].retry.limit = 3;
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end_saved(&a, None, None);
    let b = yard.starts().remove(0);
    let (first, second) = (take(&mut yard, &b, 0), take(&mut yard, &b, 1));
    yard.end(&b, Some(FailureCode::StorageFailed), None);
    for base in [Some(second), Some(first), b.base] {
        yard.later(Millis(10_000));
        let again = yard.starts().remove(0);
        assert_eq!((again.attempt.attempt, again.base), (1, base));
        if base != b.base {
            yard.refuse(&again, RefusalClass::CheckpointBad, "torn");
        }
    }
}

#[test]
fn an_attempt_a_node_lost_is_told_again_with_the_workspace_it_was_given() {
    let (mut yard, setup, agents) = set_up(2);
    let held =
        |s: &Started| Held { attempt: s.attempt, generation: s.fence.generation, phase: HeldPhase::Running };
    for _ in 0..2 {
        let (node, incarnation) = (node("n1"), IncarnationId::from_bits(1));
        yard.event(Event::Held { node, incarnation, held: vec![held(&agents[0])] });
    }
    let again = yard.starts();
    assert_eq!(again.len(), 1);
    assert_eq!(
        (again[0].attempt, again[0].base),
        (agents[1].attempt, Some(workspace_of(setup.attempt).id()))
    );
}

#[test]
fn group_steps_may_be_a_chain_of_their_own() {
    let mut plan = forked(2);
    let mut second = step("second", StepKind::Run, &[0]);
    second.per = Per::Group;
    second.origin = Origin::Live(StepIndex(0));
    second.checkpoint.after = true;
    plan.steps.insert(1, second);
    plan.steps[2].needs = vec![StepIndex(1)];
    plan.steps[2].origin = Origin::Checkpoint(StepIndex(1));
    plan.steps[3].needs = vec![StepIndex(2)];
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    assert!(first.keep);
    yard.end_saved(&first, None, None);
    let second = yard.starts().remove(0);
    assert_eq!(second.continue_from, Some(first.attempt));
    yard.end_saved(&second, None, None);
    assert_eq!(steps(&yard), [2, 2]);
    assert!(yard.starts().iter().all(|s| s.base == Some(workspace_of(second.attempt).id())));
}
