//! Sessions over the wire: what is sent is what arrives, and what cannot be one is refused.

use rollout::failure::Failure;
use rollout::outcome::{Outcome, Parked, ParkedClaim, StoredLog, Times};
use rollout::plan::{
    IdleMode, IdlePlan, Per, ResolvedCheckpoint, ResolvedCommand, ResolvedStep, ResolvedWork, SessionPlan,
    StepKind,
};
use rollout::{BackendKind, Bytes, FailureCode, Millis, Resources, Timestamp};
use rollout_wire::{from_wire, to_wire, v1};

fn step(kind: StepKind, work: ResolvedWork, idle: Option<IdlePlan>) -> ResolvedStep {
    ResolvedStep {
        name: "talk".parse().unwrap(),
        kind,
        per: Per::Rollout,
        checkpoint: ResolvedCheckpoint::default(),
        work,
        backend: BackendKind::default(),
        image: "host".into(),
        layers: vec![],
        user: "rollout".into(),
        workdir: "/workspace".into(),
        env: [].into(),
        files: vec![],
        outputs: vec![],
        resources: Resources::default(),
        timeout: Millis(1000),
        start_timeout: Millis(1000),
        grace: Millis(0),
        health_check: None,
        idle,
        best_effort: true,
        grader: None,
    }
}

fn session(max_actions: Option<u64>, takes_reward: bool, unclaimed: bool) -> ResolvedWork {
    let idle_timeout = Millis(90_000);
    ResolvedWork::Session(SessionPlan { idle_timeout, max_actions, takes_reward, unclaimed })
}

fn command() -> ResolvedWork {
    ResolvedWork::Command(ResolvedCommand::Shell("true".into()))
}

#[test]
fn steps_arrive_as_they_were_sent() {
    let idle = |mode| Some(IdlePlan { park_after: Millis(5_000), mode });
    for sent in [
        step(StepKind::Session, session(None, false, true), None),
        step(StepKind::Session, session(Some(7), true, false), idle(IdleMode::Freeze)),
        step(StepKind::Session, session(Some(7), false, false), idle(IdleMode::Checkpoint)),
        step(StepKind::Run, command(), idle(IdleMode::Freeze)),
        step(StepKind::Agent, command(), None),
        ResolvedStep { backend: BackendKind::Fncall, ..step(StepKind::Grader, command(), None) },
    ] {
        assert_eq!(from_wire::step(&to_wire::step(&sent)), Ok(sent));
    }
}

#[test]
fn what_is_half_a_session_is_refused_by_its_field() {
    let good =
        to_wire::step(&step(StepKind::Session, session(None, false, false), Some(IdlePlan::default())));
    let shell = || Some(v1::step::Command::Shell("true".into()));
    let (kind, later) = ("agent".to_owned(), v1::Idle { park_after_ms: 1, mode: "later".into() });
    for (field, message) in [
        ("step.session", v1::Step { session: None, ..good.clone() }),
        ("step.session", v1::Step { session: None, command: shell(), ..good.clone() }),
        ("step.command", v1::Step { command: shell(), ..good.clone() }),
        ("step.session", v1::Step { kind: kind.clone(), command: shell(), ..good.clone() }),
        ("step.command", v1::Step { kind, session: None, ..good.clone() }),
        ("step.idle.mode", v1::Step { idle: Some(later), ..good }),
    ] {
        assert_eq!(from_wire::step(&message).map_err(|error| error.field), Err(field.to_owned()));
    }
}

#[test]
fn the_count_of_actions_is_bounded_and_may_be_missing() {
    let failure = Failure::new(FailureCode::DriverLost, "silent");
    let ended = Outcome::unmeasured(failure, Times::at(Timestamp(5)));
    for actions in [None, Some(0), Some(12)] {
        let sent = Outcome { actions, ..ended.clone() };
        assert_eq!(from_wire::outcome(&to_wire::outcome(&sent)), Ok(sent));
    }
    let sent = Outcome { actions: Some(u64::MAX), ..ended };
    let error = from_wire::outcome(&to_wire::outcome(&sent)).unwrap_err();
    assert_eq!(error.field, "outcome.actions");
}

#[test]
fn what_a_parked_session_has_beside_its_files_goes_there_and_back() {
    let log = StoredLog { sha256: "ab".repeat(32), size: Bytes(700) };
    let claim = ParkedClaim { driver: "d".into(), token: "t".into(), ttl: Millis(60_000) };
    for (log, claim) in [(None, None), (Some(log), Some(claim))] {
        let parked =
            Parked { log, claim, ran: Millis(1), time_left: Millis(2), idle_left: Millis(3), version: 4 };
        let sent = to_wire::parked(&parked);
        assert_eq!(from_wire::parked("parked", &sent), Ok(parked));
        if let Some(log) = sent.log.clone() {
            let bad = v1::StoredLog { sha256: "ab".to_owned(), ..log };
            let error = from_wire::parked("parked", &v1::Parked { log: Some(bad), ..sent }).unwrap_err();
            assert_eq!(error.field, "parked.log.sha256");
        }
    }
}
