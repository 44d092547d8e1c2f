//! Sessions without a sandbox: charged to no node, back at the next call before anything new, ended at
//! their deadlines without a node, and the same after every restart.

use rollout::failure::{Failure, Status};
use rollout::outcome::{Outcome, Parked, ParkedClaim};
use rollout::{FailureCode, Millis, RolloutId, StepIndex, Timestamp};
use scheduler_core::event::RefusalClass;
use scheduler_core::sessions::Whereabouts;
use scheduler_core::{Command, Event, ExplainTarget};

use crate::builders::*;

const TALK: StepIndex = StepIndex(0);

fn rollout(sample: u32) -> RolloutId {
    RolloutId { group: JOB_GROUP, sample, refill: 0 }
}

fn begin(yard: &mut Yard, started: &Started) {
    let (at, attempt) = (started.fence.clone(), started.attempt);
    yard.event(Event::AttemptStarted { at, attempt, started_at: Timestamp(5) });
}

fn parked(yard: &Yard, of: &Started, time_left: u64, idle_left: u64) -> Box<Outcome> {
    let mut parked = outcome(None, None);
    parked.checkpoint = Some(workspace_of(of.attempt));
    parked.actions = Some(2);
    parked.times.ended_at = yard.now.wall;
    let claim = ParkedClaim { driver: "d".into(), token: "t".into(), ttl: Millis(5_000) };
    parked.parked = Some(Box::new(Parked {
        log: None,
        claim: Some(claim),
        ran: Millis(1_000),
        time_left: Millis(time_left),
        idle_left: Millis(idle_left),
        version: 3,
    }));
    parked
}

/// A session that was parked on `n1`.
fn away() -> (Yard, Started) {
    let mut yard = Yard::with(plan(1, vec![session("talk", &[], true)]), 1);
    yard.attach("n1", 1, 1000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    let outcome = parked(&yard, &talk, 50_000, 20_000);
    yard.end_with(&talk, outcome);
    (yard, talk)
}

fn call(yard: &mut Yard) {
    yard.event(Event::Thaw { rollout: rollout(0), step: TALK });
}

/// What the first start takes along of the session it goes on with.
fn sent_along(yard: &Yard) -> Option<Parked> {
    yard.commands.iter().find_map(|command| match command {
        Command::Start { parked, .. } => parked.as_deref().cloned(),
        _ => None,
    })
}

fn used(yard: &Yard) -> u64 {
    yard.cluster.nodes().iter().map(|node| node.used.cpu.0 + node.used.memory.0).sum()
}

#[test]
fn a_parked_session_takes_nothing_and_the_next_call_brings_it_back_with_its_files() {
    let (mut yard, talk) = away();
    for restarts in 0..2 {
        assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Parked, "{restarts}");
        assert_eq!((used(&yard), yard.ends().len(), yard.starts().len()), (0, 0, 0));
        assert!(yard.cluster.has_sessions_left(JOB));
        let found = yard.cluster.parked_sessions(yard.now, JOB);
        assert_eq!((found.len(), found[0].driver.as_deref()), (1, Some("d")));
        let why = yard.cluster.explain(yard.now, ExplainTarget::Step(rollout(0), TALK)).unwrap();
        assert!(why.lines[0].contains("resumes on the next call"), "{why:?}");
        let whole = yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap();
        assert!(
            whole.lines.iter().any(|line| line.contains("0 wait for a retry, 1 is parked;")),
            "{whole:?}"
        );
        yard.restart();
    }
    yard.attach("n1", 1, 1000);
    call(&mut yard);
    let start = yard.commands.iter().find_map(|command| match command {
        Command::Start { attempt, base, parked, to, .. } => Some((attempt, base, parked, to)),
        _ => None,
    });
    let (attempt, base, parked, to) = start.expect("it is placed");
    assert_eq!((attempt.attempt, to.generation > talk.fence.generation), (1, true));
    assert_eq!(base.as_deref(), Some(&workspace_of(talk.attempt)));
    assert_eq!(parked.as_ref().map(|parked| parked.version), Some(3));
    assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Thaws);
    let back = yard.starts().remove(0);
    begin(&mut yard, &back);
    assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Runs(node("n1")));
    call(&mut yard);
    assert!(yard.starts().is_empty(), "it runs already");
    yard.end(&back, None, Some(0.5));
    let end = yard.ends()[0];
    assert_eq!((end.status, end.reward.as_ref().map(|r| r.value)), (Status::Completed, Some(0.5)));
}

#[test]
fn it_outlives_its_node_and_goes_on_elsewhere() {
    let (mut yard, _) = away();
    yard.attach("n1", 2, 1000);
    yard.later(Millis(1_000));
    yard.attach("n2", 3, 1000);
    yard.event(Event::LeaseMissing { node: node("n1"), incarnation: rollout::IncarnationId::from_bits(2) });
    assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Parked);
    call(&mut yard);
    assert_eq!(yard.starts()[0].fence.node, node("n2"));
}

#[test]
fn a_sandbox_lost_before_it_is_ready_costs_a_delay_and_too_many_end_it() {
    let (mut yard, _) = away();
    for tries in 0..10 {
        call(&mut yard);
        yard.later(Millis(1_000));
        let starts = yard.starts();
        let Some(start) = starts.first() else {
            if yard.cluster.whereabouts(rollout(0), TALK) != Whereabouts::Thaws {
                break;
            }
            continue;
        };
        assert!(tries < 9, "it is tried for ever");
        let failed = outcome(Some(FailureCode::StartFailed), None);
        yard.end_with(&start.clone(), failed);
        yard.restart();
        yard.attach("n1", 1, 1000);
    }
}

#[test]
fn a_refusal_leaves_it_parked_and_a_bad_checkpoint_is_the_end_of_what_it_had() {
    let (mut yard, _) = away();
    call(&mut yard);
    let start = yard.starts().remove(0);
    yard.refuse(&start, RefusalClass::Busy, "no room");
    assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Thaws);
    yard.later(Millis(2_000));
    let again = yard.starts().remove(0);
    assert_eq!(again.base, start.base, "from the same files");
    yard.refuse(&again, RefusalClass::CheckpointBad, "damaged");
    yard.restart();
    yard.attach("n1", 1, 1000);
    yard.later(Millis(2_000));
    let anew = yard.starts().remove(0);
    assert_eq!(anew.base, None, "as after any loss, by its retries");
    assert_eq!(sent_along(&yard), None, "an old session over an empty image");
}

#[test]
fn a_bad_checkpoint_ends_it_though_an_older_one_of_its_attempt_is_kept() {
    let mut steps = vec![session("talk", &[], true)];
    steps[0].checkpoint.keep = rollout::plan::Keep::Newest(2);
    let mut yard = Yard::with(plan(1, steps), 1);
    yard.attach("n1", 1, 1000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    let older = workspace_of(rollout::AttemptId { attempt: 9, ..talk.attempt });
    let (at, attempt) = (talk.fence.clone(), talk.attempt);
    yard.event(Event::CheckpointTaken { at, attempt, checkpoint: Box::new(older) });
    let away = parked(&yard, &talk, 50_000, 20_000);
    yard.end_with(&talk, away);
    call(&mut yard);
    let back = yard.starts().remove(0);
    yard.refuse(&back, RefusalClass::CheckpointBad, "damaged");
    yard.restart();
    yard.attach("n1", 1, 1000);
    yard.later(Millis(2_000));
    assert_eq!(sent_along(&yard), None);
    assert_eq!(yard.starts().len(), 1);
}

#[test]
fn what_is_sent_with_it_is_what_is_left_of_its_deadlines() {
    let (mut yard, _) = away();
    yard.later(Millis(7_000));
    call(&mut yard);
    let left = |yard: &Yard| sent_along(yard).map(|sent| (sent.time_left.0, sent.idle_left.0, sent.ran.0));
    assert_eq!(left(&yard), Some((43_000, 13_000, 1_000)));
    // Its node does not hold it: it is sent again, later.
    yard.later(Millis(2_000));
    yard.attach("n1", 1, 1000);
    assert_eq!(left(&yard), Some((41_000, 11_000, 1_000)));
}

#[test]
fn a_claim_lapses_its_time_after_its_session_was_parked_last() {
    let driver = |yard: &Yard| yard.cluster.parked_sessions(yard.now, JOB).remove(0).driver;
    let sent = |yard: &Yard| sent_along(yard).map(|sent| sent.claim.map(|claim| claim.driver));
    for restarts in [false, true] {
        let (mut yard, _) = away();
        if restarts {
            yard.restart();
            yard.attach("n1", 1, 1000);
        }
        yard.later(Millis(4_999));
        assert_eq!(driver(&yard).as_deref(), Some("d"));
        yard.later(Millis(1));
        assert_eq!(driver(&yard), None);
        call(&mut yard);
        assert_eq!(sent(&yard), Some(None), "any driver may have it");
        let back = yard.starts().remove(0);
        begin(&mut yard, &back);
        let again = parked(&yard, &back, 50_000, 20_000);
        yard.end_with(&back, again);
        yard.later(Millis(4_000));
        assert_eq!(driver(&yard).as_deref(), Some("d"), "it was held when it was parked again");
        call(&mut yard);
        assert_eq!(sent(&yard), Some(Some("d".to_owned())));
        // A sandbox to go on in that failed changes nothing.
        let back = yard.starts().remove(0);
        yard.end(&back, Some(FailureCode::StartFailed), None);
        yard.later(Millis(1_000));
        assert_eq!(sent(&yard), Some(None), "sent again it is nobody's");
    }
}

#[test]
fn its_end_is_an_end_after_a_restart_too() {
    let mut yard = Yard::with(plan(1, vec![session("talk", &[], true)]), 1);
    yard.attach("n1", 1, 1000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    let away = parked(&yard, &talk, 50_000, 20_000);
    yard.end_with(&talk, away);
    yard.later(Millis(20_000));
    yard.restart();
    yard.attach("n1", 1, 1000);
    yard.later(Millis(2_000));
    assert_eq!(
        (yard.starts().len(), sent_along(&yard)),
        (1, None),
        "another try, and nothing of the old one"
    );
}

#[test]
fn called_without_room_it_is_parked_again_and_its_deadlines_go_on() {
    let other = rollout::JobId::from_bits(2);
    for (time_left, restarts) in [(500_000, false), (500_000, true), (30_000, false)] {
        let mut steps = vec![session("talk", &[], true)];
        steps[0].retry.limit = 0;
        let mut yard = Yard::with(plan(1, steps), 1);
        yard.attach("n1", 1, 1000);
        let talk = yard.starts().remove(0);
        begin(&mut yard, &talk);
        let away = parked(&yard, &talk, time_left, 900_000);
        yard.end_with(&talk, away);
        yard.submit(other, plan(1, vec![step("work", rollout::plan::StepKind::Run, &[])]), 2);
        let taken = yard.starts().remove(0);
        begin(&mut yard, &taken);
        call(&mut yard);
        for _ in 0..8 {
            yard.later(Millis(8_000));
            yard.attach("n1", 1, 1000);
        }
        if time_left == 30_000 {
            let failure = yard.ends()[0].failure.as_ref().map(|failure| failure.code);
            assert_eq!(failure, Some(FailureCode::AgentTimeout), "while it was called");
            continue;
        }
        assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Thaws);
        yard.later(Millis(8_000));
        assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Parked);
        if restarts {
            yard.restart();
            yard.attach("n1", 1, 1000);
        }
        yard.end(&taken, None, None);
        assert_eq!(yard.starts()[0].attempt.rollout.group.job, other, "its node takes what is new");
        yard.attach("n2", 2, 1000);
        call(&mut yard);
        assert_eq!(yard.starts()[0].fence.node, node("n2"));
    }
}

#[test]
fn a_call_leaves_the_hold_of_its_job_as_it_is() {
    let mut yard = Yard::with(plan(1, vec![session("talk", &[], true)]), 33);
    yard.attach("n1", 1, 1_000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    let away = parked(&yard, &talk, 500_000, 500_000);
    yard.end_with(&talk, away);
    while yard.stored.job_state(JOB) == Some(rollout::state::JobState::Running) {
        let next = yard.starts().remove(0);
        begin(&mut yard, &next);
        yard.end(&next, Some(FailureCode::StepExit), None);
    }
    let reason = |yard: &Yard| yard.cluster.explain(yard.now, ExplainTarget::Job(JOB)).unwrap().lines;
    assert!(reason(&yard)[0].contains("failed with"), "{:?}", reason(&yard));
    // No node is large enough any more.
    yard.attach("n1", 2, 500);
    call(&mut yard);
    assert!(reason(&yard)[0].contains("failed with"), "{:?}", reason(&yard));
    let told = yard.records.iter().filter(|r| matches!(r, scheduler_core::Record::JobState { .. }));
    assert_eq!(told.count(), 0);
    yard.attach("n2", 3, 1000);
    assert_eq!(yard.starts().len(), 1, "it comes back in a job that is held");
    assert_eq!(yard.stored.job_state(JOB), Some(rollout::state::JobState::Held));
}

#[test]
fn sandboxes_lost_before_they_are_ready_take_none_of_its_retries() {
    let (mut yard, _) = away();
    call(&mut yard);
    for tries in 0..3 {
        let back = yard.starts().remove(0);
        yard.end(&back, Some(FailureCode::StartFailed), None);
        if tries == 2 {
            yard.restart();
            yard.attach("n1", 1, 1000);
        }
        yard.later(Millis(1_000));
    }
    let back = yard.starts().remove(0);
    begin(&mut yard, &back);
    // Its `retry.limit` is 2.
    yard.end(&back, Some(FailureCode::NodeLost), None);
    yard.later(Millis(2_000));
    assert_eq!((yard.starts().len(), yard.ends().len()), (1, 0));
}

#[test]
fn its_deadlines_end_it_without_a_node() {
    for (time_left, idle_left, code) in
        [(50_000, 20_000, FailureCode::DriverLost), (3_000, 20_000, FailureCode::AgentTimeout)]
    {
        let mut steps = vec![session("talk", &[], true)];
        steps[0].retry.limit = 0;
        let mut yard = Yard::with(plan(1, steps), 1);
        yard.attach("n1", 1, 1000);
        let talk = yard.starts().remove(0);
        begin(&mut yard, &talk);
        let away = parked(&yard, &talk, time_left, idle_left);
        yard.end_with(&talk, away);
        yard.restart();
        yard.later(Millis(2_000));
        assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Parked);
        let until = yard.cluster.parked_until(yard.now, rollout(0), TALK).expect("it is parked");
        assert!(until > yard.now.wall, "{until:?}");
        yard.later(Millis(20_000));
        let failure = yard.ends()[0].failure.as_ref().map(|failure| failure.code);
        assert_eq!((failure, used(&yard)), (Some(code), 0));
        assert_eq!(yard.cluster.parked_until(yard.now, rollout(0), TALK), None);
        call(&mut yard);
        assert_eq!(yard.cluster.whereabouts(rollout(0), TALK), Whereabouts::Over);
    }
}

#[test]
fn a_cancelled_job_ends_what_is_parked_and_what_parks_meanwhile() {
    let cancel = || Event::JobCancelled { job: JOB, code: FailureCode::Cancelled, reason: "enough".into() };
    let (mut yard, _) = away();
    yard.event(cancel());
    assert_eq!((yard.ends()[0].status, used(&yard)), (Status::Cancelled, 0));
    let mut yard = Yard::with(plan(1, vec![session("talk", &[], true)]), 1);
    yard.attach("n1", 1, 1000);
    let talk = yard.starts().remove(0);
    begin(&mut yard, &talk);
    yard.event(cancel());
    let away = parked(&yard, &talk, 50_000, 20_000);
    yard.end_with(&talk, away);
    assert_eq!((yard.ends()[0].status, used(&yard)), (Status::Cancelled, 0));
}

#[test]
fn what_is_called_comes_before_what_is_new_and_keeps_a_node_for_itself() {
    let (mut yard, _) = away();
    let other = rollout::JobId::from_bits(2);
    let mut work = plan(4, vec![step("work", rollout::plan::StepKind::Run, &[])]);
    work.admission.priority = 100;
    yard.submit(other, work, 1);
    let taken = yard.starts().remove(0);
    assert_eq!(taken.attempt.rollout.group.job, other, "there was room while it was away");
    call(&mut yard);
    assert!(yard.starts().is_empty(), "the node is full");
    yard.end(&taken, None, None);
    assert_eq!(yard.starts()[0].attempt.rollout, rollout(0), "before three that were ready long before");
}

#[test]
fn only_a_session_with_its_files_and_no_end_of_its_own_is_parked() {
    for spoil in [
        |outcome: &mut Outcome| outcome.checkpoint = None,
        |outcome: &mut Outcome| outcome.failure = Some(Failure::new(FailureCode::StepExit, "no")),
    ] {
        let mut steps = vec![session("talk", &[], true)];
        steps[0].retry.limit = 0;
        let mut yard = Yard::with(plan(1, steps), 1);
        yard.attach("n1", 1, 1000);
        let talk = yard.starts().remove(0);
        begin(&mut yard, &talk);
        let mut away = parked(&yard, &talk, 50_000, 20_000);
        spoil(&mut away);
        yard.end_with(&talk, away);
        let failure = yard.ends()[0].failure.as_ref().map(|failure| failure.code);
        assert_eq!(failure, Some(FailureCode::OutcomeUnknown));
    }
}
