//! One rule, one case.

use rollout::failure::Status;
use rollout::plan::{OnAgentTimeout, OnGraderTimeout, OnIncomplete, Piece, StepKind, Template};
use rollout::state::{GroupClosedAs, JobState};
use rollout::{BackendKind, Bytes, Domain, FailureCode, IncarnationId, Millis, StepIndex, Timestamp};
use scheduler_core::event::{Held, HeldPhase, RefusalClass};
use scheduler_core::{Cluster, Command, Config, Event, ExplainTarget, Record};

use crate::builders::*;

#[test]
fn agent_then_grader_gives_a_reward_and_a_full_group() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", 1, 8000);
    let agents = yard.starts();
    assert_eq!(agents.len(), 2);
    for agent in &agents {
        yard.end(agent, None, None);
        let grader = yard.starts().remove(0);
        assert_eq!(grader.continue_from, None, "graders run in a fresh sandbox");
        yard.end(&grader, None, Some(1.0));
    }
    let closed = |r: &Record| {
        matches!(r, Record::GroupClosed { seq: 0, closed_as: GroupClosedAs::Full, valid: 2, .. })
    };
    assert!(yard.records.iter().any(closed));
    assert!(yard.commands.iter().any(|c| matches!(c, Command::Record { seq: 0, .. })));
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Finished));
    assert_eq!(yard.cluster.counts(JOB).unwrap().totals.reward_sum, 2.0);
    assert!(yard.cluster.nodes().iter().all(|n| n.sandboxes == 0));
}

#[test]
fn what_an_agent_does_is_graded_and_never_retried() {
    for code in
        [FailureCode::AgentExit, FailureCode::AgentTimeout, FailureCode::OomGuest, FailureCode::DiskQuota]
    {
        let mut yard = Yard::with(graded(1), 1);
        yard.attach("n1", 1, 8000);
        let agent = yard.starts().remove(0);
        yard.end(&agent, Some(code), None);
        let grader = yard.starts().remove(0);
        assert_eq!(grader.attempt.step, StepIndex(1));
        yard.end(&grader, None, Some(0.5));
        let end = yard.ends()[0].clone();
        assert_eq!(end.reward.map(|r| r.value), Some(0.5));
        assert_eq!(end.failure.map(|f| f.code), Some(code));
        assert_eq!(end.status, code.consequence().status);
    }
}

#[test]
fn a_failed_run_step_skips_everything_and_leaves_no_reward() {
    let steps = vec![step("setup", StepKind::Run, &[]), step("grade", StepKind::Grader, &[0])];
    let mut yard = Yard::with(plan(1, steps), 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    yard.end(&setup, Some(FailureCode::StepExit), None);
    assert!(yard.starts().is_empty());
    let end = yard.ends()[0];
    assert_eq!((end.status, &end.reward), (Status::Failed, &None));
    assert_eq!(end.failure.as_ref().unwrap().domain, Domain::Task);
}

#[test]
fn infrastructure_is_retried_up_to_the_limit_with_growing_generations() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let started = yard.starts().remove(0);
        seen.push((started.attempt.attempt, started.fence.generation.0));
        yard.end(&started, Some(FailureCode::StartFailed), None);
        assert!(yard.starts().is_empty(), "it backs off first");
        yard.later(Millis(2_000));
    }
    assert_eq!(seen, [(0, 1), (1, 2), (2, 3)]);
    let end = yard.ends()[0];
    assert_eq!((end.failure.as_ref().unwrap().code, &end.reward), (FailureCode::StartFailed, &None));
}

#[test]
fn a_bad_grader_is_tried_again_apart_from_retries_and_never_gives_zero() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let agent = yard.starts().remove(0);
    yard.end(&agent, None, None);
    for _ in 0..2 {
        let grader = yard.starts().remove(0);
        yard.end(&grader, Some(FailureCode::RewardBad), None);
    }
    assert!(yard.starts().is_empty(), "one re-grade, no more");
    let end = yard.ends()[0];
    assert_eq!((&end.reward, end.failure.as_ref().unwrap().domain), (&None, Domain::Grader));
}

#[test]
fn rules_after_an_agent_timeout_and_a_grader_timeout_are_kept() {
    let table = [(OnAgentTimeout::Zero, Some(0.0)), (OnAgentTimeout::Invalid, None)];
    for (rule, reward) in table {
        let mut plan = graded(1);
        plan.steps[1].grader.as_mut().unwrap().on_agent_timeout = rule;
        let mut yard = Yard::with(plan, 1);
        yard.attach("n1", 1, 8000);
        let agent = yard.starts().remove(0);
        yard.end(&agent, Some(FailureCode::AgentTimeout), None);
        assert!(yard.starts().is_empty(), "no grader runs");
        let end = yard.ends()[0];
        assert_eq!(end.reward.as_ref().map(|r| r.value), reward);
        assert_eq!(end.status, Status::Truncated);
    }
    for (rule, reward) in [(OnGraderTimeout::Zero, Some(0.0)), (OnGraderTimeout::Invalid, None)] {
        let mut plan = graded(1);
        plan.steps[1].grader.as_mut().unwrap().on_timeout = rule;
        let mut yard = Yard::with(plan, 1);
        yard.attach("n1", 1, 8000);
        let agent = yard.starts().remove(0);
        yard.end(&agent, None, None);
        for _ in 0..2 {
            let grader = yard.starts().remove(0);
            yard.end(&grader, Some(FailureCode::GraderTimeout), None);
        }
        assert_eq!(yard.ends()[0].reward.as_ref().map(|r| r.value), reward);
    }
}

#[test]
fn a_chain_goes_on_in_its_sandbox_on_its_node_and_frees_it_at_the_end() {
    let mut yard = Yard::with(chained(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.attach("n2", 2, 8000);
    assert!(a.keep);
    yard.end(&a, None, None);
    let b = yard.starts().remove(0);
    assert_eq!((b.continue_from, &b.fence.node, b.keep), (Some(a.attempt), &a.fence.node, false));
    assert_eq!(yard.cluster.nodes().iter().map(|n| n.sandboxes).sum::<u32>(), 1, "one sandbox serves both");
    yard.end(&b, None, None);
    let grader = yard.starts().remove(0);
    yard.end(&grader, None, Some(1.0));
    assert_eq!(yard.cluster.nodes().iter().map(|n| n.sandboxes).sum::<u32>(), 0);
}

#[test]
fn a_lost_chain_starts_again_at_its_head() {
    let mut yard = Yard::with(chained(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end(&a, None, None);
    let b = yard.starts().remove(0);
    // Another life of the node: the sandbox is gone with the old one.
    yard.attach("n1", 2, 8000);
    yard.later(Millis(2_000));
    let again = yard.starts().remove(0);
    assert_eq!((again.attempt.step, again.attempt.attempt), (StepIndex(0), 1));
    assert!(again.fence.generation > a.fence.generation);
    // The old b speaks late: fenced, nothing changes.
    let fenced = yard.cluster.fenced_count();
    yard.end(&b, None, None);
    assert_eq!(yard.cluster.fenced_count(), fenced + 1);
    assert!(yard.ends().is_empty());
}

#[test]
fn a_failed_chain_step_releases_what_was_kept_and_its_grader_still_grades() {
    let mut yard = Yard::with(chained(1), 1);
    yard.attach("n1", 1, 8000);
    let a = yard.starts().remove(0);
    yard.end(&a, None, None);
    let b = yard.starts().remove(0);
    yard.end(&b, Some(FailureCode::AgentExit), None);
    let grader = yard.starts().remove(0);
    assert_eq!(grader.attempt.step, StepIndex(2));
    yard.end(&grader, None, Some(0.0));
    assert_eq!(yard.ends()[0].reward.as_ref().map(|r| r.value), Some(0.0));
    assert!(yard.cluster.nodes().iter().all(|n| n.sandboxes == 0));
}

#[test]
fn a_refusal_is_not_an_attempt() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    let (at, attempt) = (first.fence.clone(), first.attempt);
    yard.event(Event::AttemptRefused { at, attempt, class: RefusalClass::Busy, message: "full".into() });
    assert!(yard.records.iter().any(|r| matches!(r, Record::AttemptWithdrawn { .. })));
    yard.later(Millis(10_000));
    let second = yard.starts().remove(0);
    assert_eq!(second.attempt, first.attempt, "the same attempt number");
    assert!(second.fence.generation > first.fence.generation, "under a new fence");
}

#[test]
fn capacity_is_never_oversold_and_excess_queues() {
    let mut yard = Yard::with(graded(8), 4);
    yard.attach("n1", 1, 3000);
    assert_eq!(yard.starts().len(), 3, "3 of 32 fit");
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    let fact = explained.facts.iter().find(|f| f.code == "no_room").expect("says what it waits for");
    assert_eq!((fact.resource, fact.node.as_deref()), (Some("cpu"), Some("n1")));
    assert!(fact.text.contains("asks cpu 1, node n1 has 0 free of 3"), "{}", fact.text);
}

#[test]
fn without_an_executor_the_job_waits_and_says_so() {
    let yard = Yard::with(graded(1), 1);
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    assert_eq!(explained.facts[0].code, "no_executor");
}

#[test]
fn a_refused_step_says_what_the_node_said_until_it_is_placed_again() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let Started { fence: at, attempt, .. } = yard.starts().remove(0);
    let message = "disk of the machine: 1Gi available, less than the reserve of 2Gi".to_owned();
    yard.event(Event::AttemptRefused { at, attempt, class: RefusalClass::Busy, message });
    let said =
        |yard: &Yard| yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap().lines.join("\n");
    assert!(said(&yard).contains("node n1 refused it: disk of the machine: 1Gi"), "{}", said(&yard));
    yard.later(Millis(5_000));
    assert_eq!(yard.starts().len(), 1);
    assert!(!said(&yard).contains("refused it"), "{}", said(&yard));
}

#[test]
fn a_node_that_hands_back_gets_nothing_more_until_it_attaches_again() {
    let mut yard = Yard::with(graded(1), 2);
    yard.attach("n1", 1, 1000);
    let Started { fence: at, attempt, .. } = yard.starts().remove(0);
    let message = "the executor was told to end".to_owned();
    yard.event(Event::AttemptRefused { at, attempt, class: RefusalClass::Unhealthy, message });
    yard.later(Millis(5_000));
    assert!(yard.starts().is_empty(), "neither it nor the one that waited");
    yard.attach("n1", 2, 1000);
    let again = yard.starts().remove(0);
    assert_eq!(again.attempt.attempt, 0, "it costs no try");
}

/// A graph of 64 steps has more ways through it than anything can walk.
#[test]
fn a_full_graph_that_ends_without_a_failure_to_name_settles_at_once() {
    let needs: Vec<u8> = (0..64).rev().collect();
    let name = |n: u8| format!("s{n}");
    let mut steps: Vec<_> =
        (0..64).map(|n| step(&name(n), StepKind::Run, &needs[64 - usize::from(n)..])).collect();
    // The last one comes to the first only through all others.
    for step in steps.iter_mut().skip(2) {
        step.needs.retain(|need| need.0 != 0);
    }
    let mut yard = Yard::with(plan(1, steps), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    yard.end(&first, Some(FailureCode::Cancelled), None);
    assert_eq!(yard.ends()[0].status, Status::Cancelled);
}

#[test]
fn a_step_no_node_can_hold_holds_the_job_until_one_comes() {
    let mut plan = graded(1);
    plan.steps[0].resources = rollout::plan::ResourcesPlan::Fixed(resources(1000, 1 << 20));
    let mut yard = Yard::with(plan, 1);
    yard.attach("small", 1, 8000);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    assert!(explained.lines[0].contains("too_big_for_yard"), "{:?}", explained.lines);
    assert!(
        explained.lines[0].contains("memory 1Ti") && explained.lines[0].contains("64Gi"),
        "{:?}",
        explained.lines
    );
    let mut large = capacity(8000);
    large.total.memory = Bytes(2 << 40);
    let incarnation = IncarnationId::from_bits(9);
    yard.event(Event::NodeAttached { node: node("large"), incarnation, capacity: large, held: vec![] });
    assert_eq!(yard.starts()[0].fence.node, node("large"));
}

#[test]
fn a_step_runs_where_its_backend_is_offered_and_nowhere_else() {
    let mut plan = graded(1);
    plan.steps[0].backend = BackendKind::Fncall;
    let mut yard = Yard::with(plan, 1);
    yard.attach("plain", 1, 64_000);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    for part in ["no_backend", "asks backend fncall, which no node offers"] {
        assert!(explained.lines[0].contains(part), "{:?}", explained.lines);
    }
    let mut both = capacity(8000);
    both.backends.insert(BackendKind::Fncall);
    let incarnation = IncarnationId::from_bits(9);
    yard.event(Event::NodeAttached { node: node("both"), incarnation, capacity: both, held: vec![] });
    assert_eq!(yard.starts()[0].fence.node, node("both"));
}

#[test]
fn a_lease_without_reports_ends_and_its_work_starts_elsewhere() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    yard.event(Event::NodeDetached { node: node("n1"), incarnation: IncarnationId::from_bits(1) });
    yard.later(Millis(11_000));
    assert!(yard.commands.is_empty(), "ttl and margin have not passed");
    yard.attach("n2", 2, 8000);
    yard.later(Millis(2_000));
    let lost = |c: &Command| matches!(c, Command::Disconnect { node, .. } if node.0.as_str() == "n1");
    assert!(yard.commands.iter().any(lost));
    yard.later(Millis(1_000));
    let second = yard.starts().remove(0);
    assert_eq!(second.fence.node, node("n2"));
    assert!(second.fence.generation > first.fence.generation);
}

#[test]
fn a_node_that_comes_back_as_itself_gets_what_it_does_not_hold_and_loses_what_is_not_wanted() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", 1, 8000);
    let started = yard.starts();
    let foreign = started[0].attempt.rollout;
    let stranger = rollout::AttemptId { rollout: foreign, step: StepIndex(1), attempt: 7 };
    let held = vec![
        Held {
            attempt: started[0].attempt,
            generation: started[0].fence.generation,
            phase: HeldPhase::Running,
        },
        Held { attempt: stranger, generation: rollout::Generation(3), phase: HeldPhase::Running },
    ];
    let (now, snapshot) = (yard.now, yard.stored.snapshot());
    let (cluster, records) = Cluster::restore(Config::default(), now, snapshot);
    assert!(records.is_empty(), "{records:?}");
    yard.cluster = cluster;
    yard.check();
    let incarnation = IncarnationId::from_bits(1);
    yard.event(Event::NodeAttached { node: node("n1"), incarnation, capacity: capacity(8000), held });
    let again = yard.starts();
    assert_eq!(again.len(), 1, "only the one it does not hold");
    assert_eq!(
        (again[0].attempt, again[0].fence.generation),
        (started[1].attempt, started[1].fence.generation)
    );
    assert!(yard.commands.iter().any(|c| matches!(c, Command::Kill { attempt, .. } if *attempt == stranger)));
}

#[test]
fn cancel_kills_what_runs_and_closes_the_groups_as_cancelled() {
    let mut yard = Yard::with(graded(2), 3);
    yard.attach("n1", 1, 2000);
    let started = yard.starts();
    let (code, reason) = (FailureCode::Cancelled, "enough".to_owned());
    yard.event(Event::JobCancelled { job: JOB, code, reason: reason.clone() });
    let kills = yard.commands.iter().filter(|c| matches!(c, Command::Kill { .. })).count();
    assert_eq!(kills, started.len());
    assert!(yard.starts().is_empty());
    let mut closed = yard.records.clone();
    for s in &started {
        yard.end(s, Some(FailureCode::Cancelled), None);
        closed.extend(yard.records.clone());
    }
    assert!(yard.ends().iter().all(|e| e.status == Status::Cancelled && e.reward.is_none()));
    yard.records = closed;
    yard.seal_all();
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Cancelled));
    // Terminal states are final.
    yard.event(Event::JobCancelled { job: JOB, code, reason });
    assert!(yard.records.is_empty());
}

#[test]
fn a_cancel_reaches_a_node_that_was_away_and_ends_what_it_does_not_hold() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", 1, 8000);
    let started = yard.starts();
    let incarnation = IncarnationId::from_bits(1);
    yard.event(Event::NodeDetached { node: node("n1"), incarnation });
    let (code, reason) = (FailureCode::Cancelled, "enough".to_owned());
    // The kills of this are lost with the connection; the scheduler restarts as well.
    yard.event(Event::JobCancelled { job: JOB, code, reason });
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    assert!(records.is_empty(), "{records:?}");
    yard.cluster = cluster;
    let (generation, phase) = (started[0].fence.generation, HeldPhase::Running);
    let held = vec![Held { attempt: started[0].attempt, generation, phase }];
    yard.event(Event::NodeAttached { node: node("n1"), incarnation, capacity: capacity(8000), held });
    assert!(yard.starts().is_empty(), "nothing of a cancelled job starts");
    let kills: Vec<_> = yard.commands.iter().filter(|c| matches!(c, Command::Kill { .. })).collect();
    assert!(
        matches!(kills[..], [Command::Kill { attempt, .. }] if *attempt == started[0].attempt),
        "{kills:?}"
    );
    assert_eq!(yard.ends().len(), 1, "the one it does not hold has ended");
    yard.end(&started[0], Some(FailureCode::Cancelled), None);
    assert!(yard.ends().iter().all(|e| e.status == Status::Cancelled && e.reward.is_none()));
    assert_eq!(yard.ends().len(), 2);
}

#[test]
fn an_attempt_whose_lease_row_is_gone_at_a_restart_is_lost_and_tried_again() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    let mut snapshot = yard.stored.snapshot();
    snapshot.nodes.clear();
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, snapshot);
    assert!(records.iter().any(|r| matches!(r, Record::AttemptEnded { .. })), "{records:?}");
    records.iter().for_each(|r| yard.stored.apply(r));
    yard.cluster = cluster;
    yard.check();
    yard.attach("n1", 2, 8000);
    yard.later(Millis(1_000));
    assert!(yard.starts()[0].fence.generation > first.fence.generation);
}

#[test]
fn a_wall_clock_set_back_before_a_restart_makes_no_step_wait_longer_than_its_longest_wait() {
    let mut yard = Yard::new();
    yard.now.wall = Timestamp(10 * 86_400_000_000);
    yard.submit(JOB, graded(1), 1);
    yard.attach("n1", 1, 8000);
    let refused = yard.starts().remove(0);
    let (at, attempt, class) = (refused.fence.clone(), refused.attempt, RefusalClass::Busy);
    yard.event(Event::AttemptRefused { at, attempt, class, message: "full".into() });
    yard.now.wall = Timestamp(86_400_000_000);
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    assert!(records.is_empty(), "{records:?}");
    yard.cluster = cluster;
    yard.attach("n1", 1, 8000);
    assert!(yard.starts().is_empty(), "it still waits");
    yard.later(Millis(5_000));
    assert_eq!(yard.starts().len(), 1);
}

#[test]
fn a_sandbox_lost_too_often_is_never_a_zero_whatever_restarts() {
    let mut plan = chained(1);
    plan.steps[1].retry.limit = 0;
    plan.steps.push(step("late", StepKind::Run, &[0]));
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 8000);
    let setup = yard.starts().remove(0);
    yard.end(&setup, None, None);
    let starts = yard.starts();
    let (b, late) = (
        starts.iter().find(|s| s.attempt.step == StepIndex(1)).unwrap().clone(),
        starts.iter().find(|s| s.attempt.step == StepIndex(3)).unwrap().clone(),
    );
    let (at, attempt) = (b.fence.clone(), b.attempt);
    yard.event(Event::AttemptRefused {
        at,
        attempt,
        class: RefusalClass::SandboxGone,
        message: "gone".into(),
    });
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    records.iter().for_each(|r| yard.stored.apply(r));
    yard.cluster = cluster;
    let held =
        vec![Held { attempt: late.attempt, generation: late.fence.generation, phase: HeldPhase::Running }];
    let incarnation = IncarnationId::from_bits(1);
    yard.event(Event::NodeAttached { node: node("n1"), incarnation, capacity: capacity(8000), held });
    yard.end(&late, None, None);
    let end = yard.ends()[0];
    assert_eq!((&end.reward, end.failure.as_ref().map(|f| f.code)), (&None, Some(FailureCode::NodeLost)));
}

#[test]
fn a_report_of_a_member_that_does_not_exist_is_fenced() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let mut agent = yard.starts().remove(0);
    agent.attempt.rollout.refill = 1;
    yard.end(&agent, None, None);
    assert!(yard.records.iter().all(|r| matches!(r, Record::Fenced { .. })), "{:?}", yard.records);
}

#[test]
fn another_life_of_a_node_is_asked_again() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    let (at, attempt) = (first.fence.clone(), first.attempt);
    yard.event(Event::AttemptRefused { at, attempt, class: RefusalClass::NeverFits, message: "no".into() });
    yard.later(Millis(1_000));
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held), "the only node will never hold it");
    yard.attach("n1", 2, 8000);
    assert_eq!(yard.starts().len(), 1);
}

/// As an image that lies on some nodes only: it is asked for on each, and where it is it runs.
#[test]
fn a_step_refused_for_good_is_tried_on_every_node_and_then_held_with_their_words() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    yard.attach("n2", 1, 8000);
    refuse_for_good(&mut yard, &first, "no dir:/x here");
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Running), "another node may have it");
    let second = yard.starts().remove(0);
    assert_ne!(second.fence.node, first.fence.node);
    refuse_for_good(&mut yard, &second, "nor here");
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    let held = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    for words in
        ["refused_by_every_node", "node n1 refused it: no dir:/x here", "node n2 refused it: nor here"]
    {
        assert!(held.lines[0].contains(words), "{:?}", held.lines);
    }
    assert!(!held.lines[0].contains("too_big"), "{:?}", held.lines);
    yard.attach("n3", 1, 8000);
    let third = yard.starts().remove(0);
    assert_eq!((third.fence.node.to_string().as_str(), third.attempt.attempt), ("n3", 0));
    yard.end(&third, None, None);
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Running));
}

/// As `image: ${row.img}` where one row names what is on no node: the other rows run.
#[test]
fn a_row_whose_image_every_node_refuses_ends_alone_with_their_words() {
    let mut plan = graded(1);
    let looked_up = Piece::Lookup(vec!["row".into(), "img".into()]);
    plan.steps[0].image = Template(vec![looked_up]);
    let mut yard = Yard::with(plan, 3);
    yard.attach("n1", 1, 8000);
    let starts = yard.starts();
    yard.attach("n2", 2, 8000);
    let mut bad = starts[1].clone();
    for said in ["no dir:/x here", "nor here"] {
        refuse_for_good(&mut yard, &bad, said);
        bad = yard.starts().first().cloned().unwrap_or(bad);
    }
    let end = yard.ends()[0];
    let failure = end.failure.as_ref().unwrap();
    assert_eq!((failure.code, failure.domain, &end.reward), (FailureCode::NotFound, Domain::Task, &None));
    for words in ["refused_by_every_node: step `agent`", "n1 refused it: no dir:/x", "n2 refused it: nor"] {
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Running));
    for good in [&starts[0], &starts[2]] {
        yard.end(good, None, None);
        let grader = yard.starts().remove(0);
        yard.end(&grader, None, Some(1.0));
    }
    assert_eq!(yard.ends().len(), 3);
    assert_eq!(yard.ends().iter().filter(|end| end.reward.is_some()).count(), 2);
    let told = yard.stored.attempts.values().filter_map(|a| a.outcome.as_ref()?.failure.as_ref());
    assert_eq!(told.count(), 1, "its attempt tells why, after a restart too");
}

#[test]
fn a_row_every_attached_node_refuses_waits_for_the_one_that_is_away() {
    let mut plan = graded(1);
    plan.steps[0].image = Template(vec![Piece::Lookup(vec!["row".into(), "img".into()])]);
    let mut yard = Yard::with(plan, 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    yard.attach("n2", 2, 8000);
    yard.event(Event::NodeDetached { node: node("n2"), incarnation: IncarnationId::from_bits(2) });
    refuse_for_good(&mut yard, &first, "no dir:/x here");
    assert!(yard.ends().is_empty());
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    assert!(explained.facts.iter().any(|f| f.code == "node_detached"), "{:?}", explained.lines);
    yard.attach("n2", 2, 8000);
    assert_eq!(yard.starts()[0].fence.node, node("n2"));
}

#[test]
fn rows_that_every_node_refuses_in_bulk_hold_the_job() {
    let mut plan = plan(1, vec![step("work", StepKind::Run, &[])]);
    plan.steps[0].image = Template(vec![Piece::Lookup(vec!["row".into(), "img".into()])]);
    let mut yard = Yard::with(plan, 60);
    yard.attach("n1", 1, 1000);
    for _ in 0..60 {
        let Some(start) = yard.starts().first().cloned() else { break };
        refuse_for_good(&mut yard, &start, "no dir:/x here");
    }
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    assert_eq!(yard.ends().len(), 32);
}

fn refuse_for_good(yard: &mut Yard, start: &Started, message: &str) {
    let (at, attempt, message) = (start.fence.clone(), start.attempt, message.to_owned());
    yard.event(Event::AttemptRefused { at, attempt, class: RefusalClass::NeverFits, message });
    if yard.starts().is_empty() {
        yard.later(Millis(1_000));
    }
}

/// A job whose only group is closed, and its rows cannot be written.
fn unrecorded() -> Yard {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let agent = yard.starts().remove(0);
    yard.event(Event::GroupsUnrecorded { job: JOB, problem: "g9 is odd".into(), last: false });
    assert_eq!(yard.cluster.job_state(JOB), Some(JobState::Running), "there is work left");
    yard.end(&agent, None, None);
    let grader = yard.starts().remove(0);
    yard.end(&grader, None, Some(1.0));
    yard.event(Event::GroupsUnrecorded { job: JOB, problem: "g0 is odd".into(), last: true });
    yard
}

#[test]
fn rows_that_cannot_be_written_hold_the_job_and_a_restart_tries_again() {
    let mut yard = unrecorded();
    assert_eq!(yard.cluster.job_state(JOB), Some(JobState::Held));
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Held));
    let explained = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    assert_eq!(explained.facts[0].code, "unrecorded");
    assert!(explained.lines[0].contains("rows are missing: g0 is odd"), "{:?}", explained.lines);
    assert!(explained.facts.iter().all(|f| f.code != "held"), "said once: {:?}", explained.lines);
    yard.attach("n2", 2, 8000);
    assert_eq!(yard.cluster.job_state(JOB), Some(JobState::Held), "no node helps");
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    let told = |r: &Record| {
        matches!(r, Record::JobState { state: JobState::Running, hold: None, unrecorded: None, .. })
    };
    assert!(records.iter().any(told), "the store is told too: {records:?}");
    records.iter().for_each(|r| yard.stored.apply(r));
    yard.cluster = cluster;
    yard.stored.seal(JOB_GROUP);
    yard.event(Event::GroupsSealed { groups: vec![JOB_GROUP] });
    assert_eq!(yard.stored.job_state(JOB), Some(JobState::Finished));
}

#[test]
fn a_job_held_for_its_rows_ends_when_it_is_cancelled() {
    let mut yard = unrecorded();
    let (code, reason) = (FailureCode::Cancelled, "rows are missing: my own words".to_owned());
    yard.event(Event::JobCancelled { job: JOB, code, reason });
    let ended = yard.records.iter().rev().find_map(|r| match r {
        Record::JobState { state, reason, unrecorded, .. } => {
            Some((*state, reason.clone(), unrecorded.clone()))
        }
        _ => None,
    });
    let said = "rows are missing: my own words; without all of its rows: g0 is odd".to_owned();
    assert_eq!(ended, Some((JobState::Cancelled, said, None)));
}

/// What a user writes as a reason is no word of ours, and a hold is what it was made as.
#[test]
fn a_restart_reads_no_state_from_a_reason() {
    let mut yard = Yard::with(graded(2), 1);
    yard.attach("n1", 1, 8000);
    let (code, reason) = (FailureCode::Cancelled, "too_big_for_yard: rows are missing: mine".to_owned());
    yard.event(Event::JobCancelled { job: JOB, code, reason: reason.clone() });
    let (cluster, records) = Cluster::restore(Config::default(), yard.now, yard.stored.snapshot());
    assert!(records.is_empty(), "{records:?}");
    let explained = cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
    assert_eq!(explained.facts[0].code, "cancelling");
    assert!(explained.lines[0].contains(&reason), "{:?}", explained.lines);
    assert!(explained.facts.iter().all(|f| f.code != "unrecorded"), "{:?}", explained.lines);
}

#[test]
fn a_second_report_of_an_accepted_end_is_acknowledged_and_changes_nothing() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let agent = yard.starts().remove(0);
    yard.end(&agent, None, None);
    yard.end(&agent, Some(FailureCode::NodeLost), None);
    assert!(yard.records.is_empty(), "{:?}", yard.records);
    assert!(matches!(yard.commands[..], [Command::AckEnded { .. }]));
}

#[test]
fn a_deleted_lease_returns_the_capacity() {
    let mut yard = Yard::with(graded(1), 1);
    yard.attach("n1", 1, 8000);
    let first = yard.starts().remove(0);
    yard.event(Event::LeaseMissing { node: node("n1"), incarnation: IncarnationId::from_bits(1) });
    assert!(yard.cluster.nodes().is_empty());
    yard.attach("n1", 2, 8000);
    yard.later(Millis(1_000));
    assert!(yard.starts()[0].fence.generation > first.fence.generation);
}

#[test]
fn incomplete_groups_close_as_the_spec_says() {
    for (rule, closed) in
        [(OnIncomplete::Deliver, GroupClosedAs::Short), (OnIncomplete::Drop, GroupClosedAs::Dropped)]
    {
        let mut plan = graded(2);
        plan.group.on_incomplete = rule;
        let mut yard = Yard::with(plan, 1);
        yard.attach("n1", 1, 8000);
        let mut all = Vec::new();
        for agent in yard.starts() {
            yard.end(&agent, None, None);
            for _ in 0..2 {
                let grader = yard.starts().remove(0);
                yard.end(&grader, Some(FailureCode::RewardBad), None);
                all.extend(yard.records.clone());
            }
        }
        assert!(
            all.iter().any(
                |r| matches!(r, Record::GroupClosed { closed_as, valid: 0, .. } if *closed_as == closed)
            )
        );
    }
}

#[test]
fn failing_in_bulk_holds_the_job_but_what_agents_do_never_does() {
    for (code, held) in [(FailureCode::StepExit, true), (FailureCode::AgentExit, false)] {
        let kind = if held { StepKind::Run } else { StepKind::Agent };
        let mut yard = Yard::with(plan(1, vec![step("work", kind, &[])]), 60);
        yard.attach("n1", 1, 1000);
        for _ in 0..40 {
            match yard.starts().first().cloned() {
                Some(started) => yard.end(&started, Some(code), None),
                None => break,
            }
        }
        assert_eq!(yard.stored.job_state(JOB) == Some(JobState::Held), held, "{code}");
        assert_eq!(yard.ends().len() == 32, held);
    }
}

#[test]
fn priority_then_age_orders_jobs_and_begun_groups_come_first() {
    let mut yard = Yard::new();
    let mut high = graded(1);
    high.admission.priority = 90;
    yard.submit(JOB, graded(1), 3);
    yard.submit(rollout::JobId::from_bits(2), high, 1);
    yard.attach("n1", 1, 1000);
    let first = yard.starts().remove(0);
    assert_eq!(first.attempt.rollout.group.job.bits(), 2, "priority");
    yard.end(&first, None, None);
    let second = yard.starts().remove(0);
    assert_eq!(second.attempt.step, StepIndex(1), "its grader before any new agent");
}
