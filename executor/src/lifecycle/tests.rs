use proptest::prelude::*;
use rollout::failure::{Failure, FailureCode};
use rollout::outcome::{Captured, Outcome, Times, Usage};
use rollout::plan::{Per, ResolvedCheckpoint, ResolvedCommand, ResolvedStep, ResolvedWork, StepKind};
use rollout::quantity::Request;
use rollout::{
    AttemptId, Bytes, Generation, GroupId, JobId, MilliCpu, Millis, Resources, RolloutId, StepIndex,
    Timestamp,
};
use rollout_wire::HELD_ATTEMPTS_MAX;

use super::*;
use crate::capacity::{Capacity, Measured};
use crate::config::Reserves;

/// Room for three default sandboxes (500m cpu, 768 MiB each).
fn book() -> Book {
    let total = Request { cpu: MilliCpu(1500), memory: Bytes(8 << 30), disk: Bytes(1 << 30) };
    let capacity = Capacity { total, sandboxes: 4, disk_limit_max: Bytes(1 << 30) };
    let reserves = Reserves { memory: Bytes(1 << 30), disk: Bytes(1 << 30) };
    Book::new(capacity, reserves, plenty())
}

fn plenty() -> Measured {
    Measured { memory_available: Bytes(8 << 30), disk_available: Bytes(8 << 30), load_milli: 0 }
}

fn attempt(sample: u32, step: u8) -> AttemptId {
    let group = GroupId { job: JobId::from_bits(1), index: 0 };
    AttemptId { rollout: RolloutId { group, sample, refill: 0 }, step: StepIndex(step), attempt: 0 }
}

fn order(attempt: AttemptId, generation: u64) -> Order {
    let step = ResolvedStep {
        name: "solve".parse().unwrap(),
        kind: StepKind::Run,
        per: Per::Rollout,
        checkpoint: ResolvedCheckpoint::default(),
        work: ResolvedWork::Command(ResolvedCommand::Shell("true".into())),
        backend: rollout::BackendKind::default(),
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
        idle: None,
        best_effort: false,
        grader: None,
    };
    let generation = Generation(generation);
    Order {
        attempt,
        generation,
        step,
        continue_from: None,
        keep: false,
        inputs: vec![],
        base: None,
        parked: None,
    }
}

fn at(attempt: AttemptId, generation: u64) -> At {
    At { attempt, generation: Generation(generation) }
}

fn outcome() -> Box<Outcome> {
    Box::new(Outcome {
        failure: None,
        exit_code: Some(0),
        signal: None,
        oom: false,
        timed_out: false,
        silent: false,
        stdout: Captured::default(),
        stderr: Captured::default(),
        artifacts: vec![],
        reward: None,
        times: Times::default(),
        usage: Usage::default(),
        image_digest: String::new(),
        checkpoint: None,
        actions: None,
        parked: None,
    })
}

fn ended(kept: bool) -> Finish {
    Finish::Ended { outcome: outcome(), kept }
}

fn cancel() -> Kill {
    Kill { code: FailureCode::Cancelled, reason: "no longer wanted".into(), should_store: true }
}

/// Actions in short.
fn words(actions: &[Action]) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Launch { order, sandbox_of: None } => format!("launch {}", order.generation),
        Action::Launch { sandbox_of: Some(_), .. } => "launch in the kept sandbox".to_owned(),
        Action::Interrupt { at, kill } => format!("interrupt {} {}", at.generation, kill.code),
        Action::Destroy { .. } => "destroy".to_owned(),
        Action::Discard { .. } => "discard".to_owned(),
        Action::Report(Report::Started { .. }) => "started".to_owned(),
        Action::Report(Report::Ended { kept, .. }) => format!("ended, kept {kept}"),
        Action::Report(Report::Checkpoint { .. }) => "checkpoint".to_owned(),
        Action::Report(Report::Refused { refusal, .. }) => format!("refused {:?}", refusal.class),
    };
    actions.iter().map(word).collect()
}

fn refusal(actions: &[Action]) -> &Refusal {
    match actions {
        [Action::Report(Report::Refused { refusal, .. })] => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn an_attempt_runs_ends_and_is_forgotten_once_acknowledged() {
    let (mut book, a) = (book(), attempt(0, 0));
    assert_eq!(words(&book.start(order(a, 1))), ["launch 1"]);
    let running = Phase::Running { started_at: Timestamp(5) };
    assert_eq!(words(&book.advance(at(a, 1), running)), ["started"]);
    assert_eq!(words(&book.advance(at(a, 1), Phase::Collecting { started_at: Timestamp(5) })), [""; 0]);
    assert_eq!(book.held(), [(at(a, 1), HeldPhase::Running)]);
    assert_eq!(words(&book.finish(at(a, 1), ended(false))), ["ended, kept false"]);
    assert_eq!((book.sandboxes(), book.held()), (0, vec![(at(a, 1), HeldPhase::Ended)]));
    assert_eq!(words(&book.acknowledge(at(a, 1))), ["discard"]);
    assert!(book.is_empty());
}

#[test]
fn an_end_is_told_again_until_it_is_acknowledged() {
    let (mut book, a) = (book(), attempt(0, 0));
    book.start(order(a, 1));
    book.finish(at(a, 1), ended(true));
    for _ in 0..2 {
        assert!(matches!(book.untold().as_slice(), [Report::Ended { kept: true, .. }]));
        assert_eq!(words(&book.start(order(a, 1))), ["ended, kept true"]);
    }
    assert_eq!(words(&book.acknowledge(at(a, 1))), ["discard"]);
    assert_eq!((book.untold(), book.held()), (vec![], vec![(at(a, 1), HeldPhase::Kept)]));
    assert_eq!(words(&book.acknowledge(at(a, 1))), [""; 0]);
    assert_eq!(words(&book.release(at(a, 1))), ["destroy", "discard"]);
    assert!(book.is_empty());
}

#[test]
fn a_step_goes_on_in_a_kept_sandbox_acknowledged_or_not() {
    for is_acknowledged in [false, true] {
        let (mut book, a, b) = (book(), attempt(0, 0), attempt(0, 1));
        book.start(order(a, 1));
        book.finish(at(a, 1), ended(true));
        if is_acknowledged {
            book.acknowledge(at(a, 1));
        }
        let next = Order { continue_from: Some(a), ..order(b, 2) };
        assert_eq!(words(&book.start(next)).last().unwrap(), "launch in the kept sandbox");
        assert_eq!((book.sandboxes(), book.check()), (1, Ok(())));
        book.acknowledge(at(a, 1));
        assert_eq!(book.held(), [(at(b, 2), HeldPhase::Running)]);
        let again = Order { continue_from: Some(a), ..order(attempt(0, 2), 3) };
        assert_eq!(refusal(&book.start(again)).class, RefusalClass::SandboxGone);
    }
}

#[test]
fn a_newer_generation_ends_the_old_attempt_and_then_begins() {
    let (mut book, a) = (book(), attempt(0, 0));
    book.start(order(a, 2));
    assert_eq!(words(&book.start(order(a, 1))), [""; 0], "older");
    assert_eq!(words(&book.start(order(a, 2))), [""; 0], "the same");
    assert_eq!(words(&book.start(order(a, 3))), ["interrupt 2 lease_lost"]);
    assert_eq!(words(&book.start(order(a, 4))), [""; 0], "already ending");
    assert_eq!(words(&book.finish(at(a, 2), ended(true))), ["destroy", "discard", "launch 4"]);
    assert_eq!(words(&book.finish(at(a, 3), ended(false))), [""; 0], "never begun");
    assert_eq!(words(&book.finish(at(a, 4), ended(true))), ["ended, kept true"]);
    assert_eq!(words(&book.start(order(a, 5))), ["destroy", "discard", "launch 5"]);
    assert_eq!(book.check(), Ok(()));
}

#[test]
fn a_kill_reaches_an_attempt_in_every_state() {
    let (mut book, a) = (book(), attempt(0, 0));
    assert_eq!(words(&book.kill(at(a, 1), cancel())), [""; 0], "unknown");
    book.start(order(a, 2));
    assert_eq!(words(&book.kill(at(a, 1), cancel())), [""; 0], "late");
    assert_eq!(words(&book.kill(at(a, 2), cancel())), ["interrupt 2 cancelled"]);
    assert_eq!(words(&book.kill(at(a, 2), cancel())), [""; 0], "twice");
    book.finish(at(a, 2), ended(true));
    assert_eq!(words(&book.kill(at(a, 2), cancel())), ["destroy"]);
    assert!(matches!(book.untold().as_slice(), [Report::Ended { kept: false, .. }]));
    assert_eq!(words(&book.acknowledge(at(a, 2))), ["discard"]);

    let b = attempt(1, 0);
    book.start(order(b, 1));
    book.finish(at(b, 1), ended(true));
    book.acknowledge(at(b, 1));
    assert_eq!(words(&book.kill(at(b, 1), cancel())), ["destroy", "discard"]);

    book.start(order(b, 2));
    book.start(order(b, 3));
    assert_eq!(words(&book.kill(at(b, 3), cancel())), ["refused Busy"], "the waiting one");
    assert_eq!(words(&book.finish(at(b, 2), ended(false))), ["ended, kept false"]);
}

#[test]
fn refusals_name_the_limit_its_value_and_the_use() {
    let mut book = book();
    for (change, class, message) in [
        (
            (|o| o.step.resources.request.cpu = MilliCpu(1501)) as fn(&mut Order),
            RefusalClass::NeverFits,
            "request.cpu (milli-cores): 1501 asked, this node has 1500 in all",
        ),
        (
            |o| o.step.resources.limit.disk = Bytes(2 << 30),
            RefusalClass::NeverFits,
            "limit.disk (bytes): 2147483648 asked, this node has 1073741824 in all",
        ),
    ] {
        let mut order = order(attempt(9, 0), 1);
        change(&mut order);
        let refused = book.start(order);
        assert_eq!((refusal(&refused).class, refusal(&refused).message.as_str()), (class, message));
    }
    for sample in 0..3 {
        assert_eq!(words(&book.start(order(attempt(sample, 0), 1))), ["launch 1"]);
    }
    let refused = book.start(order(attempt(3, 0), 1));
    assert_eq!(refusal(&refused).message, "cpu: 500m asked, 1500m of 1500m in use");
    book.finish(at(attempt(0, 0), 1), ended(false));
    assert_eq!(words(&book.start(order(attempt(3, 0), 1))), ["launch 1"]);

    book.finish(at(attempt(1, 0), 1), ended(false));
    book.observe(Measured { memory_available: Bytes(1000), ..plenty() });
    let refused = book.start(order(attempt(4, 0), 1));
    let words = "memory of the machine: 1000 available, less than the reserve of 1Gi";
    assert_eq!((refusal(&refused).class, refusal(&refused).message.as_str()), (RefusalClass::Busy, words));
}

#[test]
fn what_is_held_always_fits_a_list() {
    let (mut book, kept, ended_last) = (book(), attempt(0, 0), attempt(1, 0));
    book.start(order(kept, 1));
    book.finish(at(kept, 1), ended(true));
    book.acknowledge(at(kept, 1));
    for sample in 2..u32::try_from(HELD_ATTEMPTS_MAX).unwrap() {
        book.start(order(attempt(sample, 0), 1));
        book.finish(at(attempt(sample, 0), 1), ended(false));
    }
    book.start(order(ended_last, 1));
    book.finish(at(ended_last, 1), ended(true));
    assert_eq!(book.held().len(), HELD_ATTEMPTS_MAX);
    // One more entry each: a fresh attempt, and one that leaves an end to be acknowledged behind.
    let goes_on = |from: AttemptId| Order {
        continue_from: Some(from),
        ..order(AttemptId { step: StepIndex(1), ..from }, 2)
    };
    for refused in [order(attempt(u32::MAX, 0), 1), goes_on(ended_last)] {
        let actions = book.start(refused);
        assert_eq!(refusal(&actions).class, RefusalClass::Busy);
        assert_eq!(refusal(&actions).message, "attempts held: 65536 of 65536");
    }
    let actions = book.start(goes_on(kept));
    assert_eq!(words(&actions).last().unwrap(), "launch in the kept sandbox");
    assert_eq!(usize::try_from(book.attempts()), Ok(HELD_ATTEMPTS_MAX));
    assert_eq!((book.held().len(), book.check()), (HELD_ATTEMPTS_MAX, Ok(())));
}

#[test]
fn a_stop_kills_tells_and_takes_nothing_new() {
    let (mut book, a, b, c) = (book(), attempt(0, 0), attempt(1, 0), attempt(2, 0));
    book.start(order(a, 1));
    book.start(order(b, 1));
    book.finish(at(b, 1), ended(true));
    book.acknowledge(at(b, 1));
    let kill = Kill { code: FailureCode::NodeLost, ..cancel() };
    assert_eq!(words(&book.stop(&kill)), ["interrupt 1 node_lost", "destroy", "discard"]);
    assert_eq!(refusal(&book.start(order(c, 1))).class, RefusalClass::Unhealthy);
    // What the stop interrupts goes back; what ended by itself is told as it ended.
    assert_eq!(words(&book.finish(at(a, 1), ended(true))), ["ended, kept false", "destroy"]);
    assert!(book.is_idle() && !book.is_settled());
    book.acknowledge(at(a, 1));
    assert!(book.is_settled() && book.is_empty());
}

#[test]
fn a_stop_hands_back_what_it_interrupts_but_no_session() {
    for (actions, told) in [(None, "refused"), (Some(0), "ended, kept false"), (Some(3), "ended, kept false")]
    {
        let mut book = book();
        book.start(order(attempt(0, 0), 1));
        let kill = Kill { code: FailureCode::NodeLost, ..cancel() };
        book.stop(&kill);
        let failure = Failure::new(FailureCode::NodeLost, "the executor was told to end");
        let outcome = Outcome { actions, ..Outcome::unmeasured(failure, Times::default()) };
        let finish = Finish::Ended { outcome: Box::new(outcome), kept: false };
        let said = words(&book.finish(at(attempt(0, 0), 1), finish));
        assert!(said.last().is_some_and(|said| said.starts_with(told)), "{actions:?}: {said:?}");
    }
}

#[test]
fn after_the_lease_nothing_is_told_and_nothing_stays() {
    let (mut book, a, b, c) = (book(), attempt(0, 0), attempt(1, 0), attempt(2, 0));
    for x in [a, b, c] {
        book.start(order(x, 1));
    }
    book.finish(at(b, 1), ended(false));
    book.finish(at(c, 1), ended(true));
    let kill = Kill { code: FailureCode::LeaseLost, ..cancel() };
    assert_eq!(words(&book.abandon(&kill)), ["interrupt 1 lease_lost", "destroy", "discard", "discard"]);
    assert_eq!(words(&book.finish(at(a, 1), ended(true))), ["destroy", "discard"]);
    assert!(book.is_empty() && book.untold().is_empty());
    book.renew();
    assert_eq!(words(&book.start(order(a, 2))), ["launch 2"]);
}

#[derive(Debug, Clone)]
enum Event {
    Start { generation: u64, continue_from: Option<u8>, keep: bool },
    Advance,
    Finish { kept: bool, is_refused: bool },
    Kill { newer: bool },
    Release,
    Acknowledge,
    Observe { is_full: bool },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..5u64, proptest::option::of(0..4u8), any::<bool>())
            .prop_map(|(generation, continue_from, keep)| Event::Start { generation, continue_from, keep }),
        1 => Just(Event::Advance),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(kept, is_refused)| Event::Finish { kept, is_refused }),
        1 => any::<bool>().prop_map(|newer| Event::Kill { newer }),
        1 => Just(Event::Release),
        2 => Just(Event::Acknowledge),
        1 => any::<bool>().prop_map(|is_full| Event::Observe { is_full }),
    ]
}

proptest! {
    /// The model knows only what the agent does: which runners and kept sandboxes exist.
    #[test]
    fn any_events_keep_the_sums_right_and_leak_no_sandbox(events in proptest::collection::vec((0..4u8, event()), 1..60)) {
        let mut book = book();
        let mut runners: Vec<At> = Vec::new();
        let mut kept: Vec<AttemptId> = Vec::new();
        for (step, event) in events {
            let a = attempt(0, step);
            let now = at(a, book.generation(a).map_or(0, |g| g.0));
            let mut handed_back = false;
            let actions = match event {
                Event::Start { generation, continue_from, keep } => {
                    let continue_from = continue_from.map(|s| attempt(0, s)).filter(|from| *from != a);
                    book.start(Order { continue_from, keep, ..order(a, generation) })
                }
                Event::Advance => book.advance(now, Phase::Running { started_at: Timestamp(1) }),
                Event::Finish { kept: is_kept, is_refused } if runners.contains(&now) => {
                    runners.retain(|r| *r != now);
                    let refusal = Refusal { class: RefusalClass::Busy, message: String::new() };
                    if is_refused {
                        book.finish(now, Finish::Refused(refusal))
                    } else {
                        handed_back = is_kept;
                        book.finish(now, ended(is_kept))
                    }
                }
                Event::Finish { .. } => vec![],
                Event::Kill { newer } => book.kill(At { generation: Generation(now.generation.0 + u64::from(newer)), ..now }, cancel()),
                Event::Release => book.release(now),
                Event::Acknowledge => book.acknowledge(now),
                Event::Observe { is_full } => {
                    book.observe(if is_full { Measured::default() } else { plenty() });
                    vec![]
                }
            };
            if handed_back {
                kept.push(a);
            }
            for action in &actions {
                match action {
                    Action::Launch { order, sandbox_of } => {
                        let at = At { attempt: order.attempt, generation: order.generation };
                        prop_assert!(!runners.iter().any(|r| r.attempt == at.attempt), "two runners of one attempt");
                        runners.push(at);
                        if let Some(from) = sandbox_of {
                            prop_assert!(kept.contains(from));
                            kept.retain(|k| k != from);
                        }
                    }
                    Action::Destroy { attempt } => {
                        prop_assert!(kept.contains(attempt), "destroyed twice");
                        kept.retain(|k| k != attempt);
                    }
                    Action::Interrupt { at, .. } => prop_assert!(runners.contains(at)),
                    Action::Discard { .. } | Action::Report(_) => {}
                }
            }
            prop_assert_eq!(book.check(), Ok(()));
            prop_assert_eq!(usize::try_from(book.sandboxes()).unwrap(), runners.len() + kept.len());
        }
    }
}

#[test]
fn a_failed_step_is_an_end_like_any_other() {
    let (mut book, a) = (book(), attempt(0, 0));
    book.start(order(a, 1));
    let failure = Some(Failure::new(FailureCode::AgentExit, "exited with code 1"));
    let outcome = Box::new(Outcome { failure, ..*outcome() });
    assert_eq!(words(&book.finish(at(a, 1), Finish::Ended { outcome, kept: true })), ["ended, kept true"]);
}
