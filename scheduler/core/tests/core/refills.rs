//! Groups that lose members: refilled, delivered, dropped; and groups that start with more than they
//! ask for. One rule, one case.

use rollout::failure::Status;
use rollout::plan::{JobPlan, OnIncomplete};
use rollout::state::GroupClosedAs;
use rollout::{FailureCode, Millis, RolloutId, StepIndex};
use scheduler_core::{Event, ExplainTarget, Record};

use crate::builders::*;

/// `forked`, refilled, without retries of a step.
fn refilled(size: u32) -> JobPlan {
    let mut plan = forked(size);
    plan.group.on_incomplete = OnIncomplete::Refill;
    plan.group.min_valid = size.saturating_sub(1).max(1);
    plan.steps.iter_mut().for_each(|step| step.retry.limit = 0);
    plan
}

fn set_up(plan: JobPlan) -> (Yard, Vec<Started>) {
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 64_000);
    let setup = yard.starts().remove(0);
    yard.end_saved(&setup, None, None);
    let agents = yard.starts();
    (yard, agents)
}

/// The agent does well, and is graded.
fn win(yard: &mut Yard, agent: &Started) {
    yard.end(agent, None, None);
    let grade = yard.starts().remove(0);
    assert_eq!(grade.attempt.step, StepIndex(2));
    yard.end(&grade, None, Some(1.0));
}

fn closed(yard: &Yard) -> Option<(GroupClosedAs, u32)> {
    yard.records.iter().find_map(|r| match r {
        Record::GroupClosed { closed_as, valid, .. } => Some((*closed_as, *valid)),
        _ => None,
    })
}

fn refills(yard: &Yard) -> Vec<(u32, u32)> {
    yard.stored.refilled.iter().map(|r| (r.sample, r.refill)).collect()
}

#[test]
fn a_refill_replaces_the_missing_member_alone_and_forks_it_from_the_set_up_there_was() {
    let (mut yard, agents) = set_up(refilled(8));
    yard.end(&agents[3], Some(FailureCode::NodeLost), None);
    for agent in agents.iter().filter(|a| a.attempt.rollout.sample != 3) {
        assert_eq!(refills(&yard), [], "in rounds: while others run, nothing is replaced");
        win(&mut yard, agent);
    }
    assert_eq!((refills(&yard), closed(&yard)), (vec![(3, 1)], None));
    assert!(yard.starts().is_empty(), "it backs off");
    yard.restart();
    yard.attach("n1", 1, 64_000);
    yard.later(Millis(1_000));
    let again = yard.open();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].attempt.rollout, RolloutId { refill: 1, ..agents[3].attempt.rollout });
    assert_eq!((again[0].attempt.attempt, again[0].base), (0, agents[3].base));
    win(&mut yard, &again[0]);
    assert_eq!(closed(&yard), Some((GroupClosedAs::Full, 8)));
    let attempts = |step| yard.stored.attempts.keys().filter(|a| a.step == StepIndex(step)).count();
    assert_eq!((attempts(0), attempts(1)), (1, 9), "one set-up, nine agents");
    let totals = yard.cluster.counts(JOB).unwrap().totals;
    assert_eq!((totals.rollouts_ended, totals.rollouts_superseded, totals.rollouts_valid), (8, 1, 8));
    assert!(totals.failures.is_empty());
}

#[test]
fn a_member_that_stays_invalid_leaves_a_short_group_and_only_it_ran_again() {
    let (mut yard, agents) = set_up(refilled(8));
    agents[1..].iter().for_each(|agent| win(&mut yard, agent));
    let mut lost = agents[0].clone();
    for round in 1..=2 {
        yard.end(&lost, Some(FailureCode::NodeLost), None);
        yard.later(Millis(1_000));
        lost = yard.starts().remove(0);
        assert_eq!(lost.attempt.rollout.refill, round);
    }
    yard.end(&lost, Some(FailureCode::NodeLost), None);
    assert_eq!((refills(&yard), closed(&yard)), (vec![(0, 1), (0, 2)], Some((GroupClosedAs::Short, 7))));
}

#[test]
fn only_what_infrastructure_lost_is_replaced() {
    for (code, replaced) in [
        (FailureCode::NodeLost, true),
        (FailureCode::StorageFailed, true),
        (FailureCode::ModelUnavailable, true),
        (FailureCode::EgressFailed, true),
        (FailureCode::LeaseLost, true),
        (FailureCode::OutcomeUnknown, true),
        (FailureCode::NotFound, false),
        (FailureCode::Cancelled, false),
    ] {
        let mut plan = refilled(2);
        // What is graded all the same has its grade here, and it is not valid.
        plan.steps.truncate(2);
        let (mut yard, agents) = set_up(plan);
        for agent in &agents {
            yard.end(agent, Some(code), None);
        }
        assert_eq!(!refills(&yard).is_empty(), replaced, "{code}");
        assert_eq!(closed(&yard).is_none(), replaced, "{code}");
    }
}

#[test]
fn a_group_closes_as_the_table_says() {
    use GroupClosedAs::{Dropped, Full, Short};
    use OnIncomplete::{Deliver, Drop, Refill};
    for (rule, valid, closes) in [
        (Refill, 4, Full),
        (Refill, 3, Short),
        (Refill, 2, Dropped),
        (Drop, 4, Full),
        (Drop, 3, Short),
        (Drop, 2, Dropped),
        (Deliver, 4, Full),
        (Deliver, 3, Short),
        (Deliver, 2, Short),
    ] {
        let mut plan = refilled(4);
        (plan.group.on_incomplete, plan.group.min_valid) = (rule, 3);
        let (mut yard, agents) = set_up(plan);
        for (number, agent) in (0..).zip(&agents) {
            if number < valid {
                win(&mut yard, agent);
            } else {
                // Of the task's domain: never replaced.
                yard.end(agent, Some(FailureCode::NotFound), None);
            }
        }
        assert_eq!(closed(&yard), Some((closes, valid)), "{rule:?} {valid}");
    }
}

#[test]
fn a_set_up_that_was_lost_gets_one_more_try_a_round() {
    let mut plan = refilled(2);
    plan.group.refill_limit = 1;
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 64_000);
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::StartFailed), None);
    assert_eq!(refills(&yard), [(0, 1), (1, 1)]);
    yard.restart();
    yard.attach("n1", 1, 64_000);
    yard.later(Millis(1_000));
    let again = yard.open().remove(0);
    assert!(again.attempt.rollout.is_shared() && again.attempt.attempt == 1);
    yard.end(&again, Some(FailureCode::StartFailed), None);
    assert_eq!(closed(&yard), Some((GroupClosedAs::Dropped, 0)));
}

#[test]
fn a_refill_keeps_the_place_of_what_it_replaces() {
    let mut plan = refilled(2);
    plan.admission.max_running = 4;
    let mut yard = Yard::with(plan, 9);
    yard.attach("n1", 1, 64_000);
    let setups = yard.open();
    assert_eq!(setups.len(), 2, "two groups of two");
    yard.end_saved(&setups[0], None, None);
    let agents = yard.starts();
    yard.end(&agents[0], Some(FailureCode::NodeLost), None);
    assert_eq!(yard.cluster.counts(JOB).unwrap().rollouts_admitted, 4, "its place is taken");
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap().lines.join("\n");
    assert!(explained.contains("3 rollouts are alive and 1 place is kept for refills"), "{explained}");
    win(&mut yard, &agents[1]);
    yard.later(Millis(1_000));
    let again = yard.starts().remove(0);
    assert_eq!(yard.cluster.counts(JOB).unwrap().rollouts_admitted, 4);
    win(&mut yard, &again);
    assert_eq!(yard.cluster.counts(JOB).unwrap().rollouts_admitted, 6, "the group has closed");
}

#[test]
fn a_cancelled_job_refills_nothing() {
    let (mut yard, agents) = set_up(refilled(2));
    yard.end(&agents[0], Some(FailureCode::NodeLost), None);
    yard.event(Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() });
    yard.end(&agents[1], Some(FailureCode::Cancelled), None);
    assert_eq!((refills(&yard), closed(&yard)), (vec![], Some((GroupClosedAs::Cancelled, 0))));
}

#[test]
fn reports_of_a_replaced_rollout_change_nothing() {
    let (mut yard, agents) = set_up(refilled(1));
    yard.end(&agents[0], Some(FailureCode::NodeLost), None);
    let fenced = yard.cluster.fenced_count();
    yard.end(&agents[0], None, None);
    assert_eq!(yard.cluster.fenced_count(), fenced + 1);
    let target = ExplainTarget::Rollout(agents[0].attempt.rollout);
    let explained = yard.cluster.explain(yard.now, target).unwrap();
    assert_eq!(explained.lines, ["the rollout was replaced by a refill"]);
}

#[test]
fn members_beyond_the_size_are_cancelled_as_stragglers_once_there_are_enough() {
    let mut plan = refilled(2);
    plan.group.over_sample = 2;
    let (mut yard, agents) = set_up(plan);
    assert_eq!(agents.len(), 4);
    win(&mut yard, &agents[0]);
    yard.end(&agents[2], None, None);
    let grade = yard.starts().remove(0);
    win(&mut yard, &agents[3]);
    let killed = yard.commands.iter().filter_map(|c| match c {
        scheduler_core::Command::Kill { attempt, code, .. } => Some((*attempt, *code)),
        _ => None,
    });
    let killed: Vec<_> = killed.collect();
    let code = FailureCode::Straggler;
    assert_eq!(killed, [(agents[1].attempt, code), (grade.attempt, code)]);
    yard.end(&agents[1], Some(FailureCode::Straggler), None);
    // Its end was on its way already.
    yard.end(&grade, None, Some(0.5));
    assert_eq!(closed(&yard), Some((GroupClosedAs::Full, 3)));
    let straggler = yard.stored.ends[&agents[1].attempt.rollout][0].clone();
    assert_eq!((straggler.status, straggler.stop_reason.as_deref()), (Status::Cancelled, Some("straggler")));
    assert_eq!(refills(&yard), [], "a straggler is not replaced");
}

#[test]
fn stragglers_are_stopped_after_a_restart_too() {
    let mut plan = refilled(1);
    plan.group.over_sample = 1;
    let (mut yard, agents) = set_up(plan);
    win(&mut yard, &agents[0]);
    yard.restart();
    assert_eq!(closed(&yard), None, "one may still run on its node");
    yard.attach("n1", 1, 64_000);
    assert_eq!(closed(&yard), Some((GroupClosedAs::Full, 1)), "it does not");
}

#[test]
fn of_a_group_that_started_more_only_the_missing_are_replaced() {
    let mut plan = refilled(2);
    plan.group.over_sample = 1;
    let (mut yard, agents) = set_up(plan);
    yard.end(&agents[0], Some(FailureCode::NodeLost), None);
    yard.end(&agents[1], Some(FailureCode::NodeLost), None);
    win(&mut yard, &agents[2]);
    assert_eq!(refills(&yard), [(0, 1)]);
}

#[test]
fn a_row_that_cannot_be_run_is_not_refilled() {
    let mut yard = Yard::new();
    let plan = std::sync::Arc::new(refilled(2));
    let (job, created_at) = (JOB, yard.now.wall);
    yard.stored.submit(job, plan.clone(), 1, created_at);
    yard.cluster.apply(yard.now, Event::JobSubmitted { job, plan, groups_total: 1, created_at });
    let _ = yard.cluster.plan(yard.now);
    let failure = rollout::failure::Failure::new(FailureCode::StorageFailed, "the row cannot be read");
    let group = scheduler_core::event::ExpandedGroup { broken: Some(failure), ..Default::default() };
    yard.event(Event::GroupsExpanded { job, first: 0, groups: vec![group] });
    assert_eq!((refills(&yard), closed(&yard)), (vec![], Some((GroupClosedAs::Dropped, 0))));
}
