//! Heartbeats while the store is stuck: acknowledged, whatever work waits before and behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rollout_wire::v1;
use rollout_wire::v1::command::Kind as Command;
use rollout_wire::v1::report::Kind as Report;
use scheduler::store::{CommitHook, CommitPoint, InjectedFault};

use crate::executor::{Behaviour, Executor};
use crate::liar::{Liar, ended, greeting};
use crate::yard::{HELLO_ROLLOUTS, Yard, finished, hello};

/// Longer than what an acknowledgement takes on a busy machine, and shorter than a lease.
const ACK_WITHIN: Duration = Duration::from_secs(5);

/// A yard, and the switch that makes its store fail.
fn yard(dir: &std::path::Path) -> (Yard, Arc<AtomicBool>) {
    let stuck = Arc::new(AtomicBool::new(false));
    let switch = stuck.clone();
    let mut yard = Yard::new(dir);
    yard.hook = Some(CommitHook(Arc::new(move |at, _| {
        (at == CommitPoint::Before && stuck.load(Ordering::Relaxed)).then_some(InjectedFault)
    })));
    (yard, switch)
}

async fn acknowledged(liar: &mut Liar, sequence: u64) {
    let sent_at = Instant::now();
    liar.say(vec![Report::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() })]).await;
    liar.next(|command| match command {
        Command::HeartbeatAck(ack) => (ack.sequence == sequence).then_some(()),
        Command::Refuse(refuse) => panic!("{refuse:?}"),
        _ => None,
    })
    .await;
    assert!(sent_at.elapsed() < ACK_WITHIN, "{:?}", sent_at.elapsed());
}

/// The end of an attempt nobody placed, with `change` done to its outcome.
fn of(index: usize, change: impl FnOnce(&mut v1::Outcome)) -> Report {
    let mut report = ended(&format!("j0000000000007-g{index}-s0"), 0, 1);
    if let Report::Ended(ended) = &mut report {
        change(ended.outcome.as_mut().unwrap());
    }
    report
}

/// Keeps the driver busy with the store.
async fn stick(liar: &mut Liar, switch: &AtomicBool) {
    switch.store(true, Ordering::Relaxed);
    for index in 0..2 {
        liar.say(vec![of(index, |_| {})]).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn serves(yard: &Yard) {
    let _executor = Executor::attach(yard, Behaviour { node: "honest", ..Behaviour::default() });
    let id = yard.client().await.submit(hello(yard, "after")).await.unwrap().into_inner().job.unwrap().id;
    let counts = finished(yard, &id).await.counts.unwrap();
    assert_eq!(counts.rollouts_valid, HELLO_ROLLOUTS);
}

#[tokio::test]
async fn they_are_acknowledged_behind_forty_mebibytes_of_reports() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, switch) = yard(dir.path());
    let running = yard.start().await;
    let mut liar = Liar::attach(&yard, greeting("n")).await;
    acknowledged(&mut liar, 1).await;
    stick(&mut liar, &switch).await;
    let message = "x".repeat(1 << 20);
    for index in 0..40 {
        let failure = v1::Failure {
            code: "step_exit".into(),
            domain: "task".into(),
            message: message.clone(),
            hint: String::new(),
        };
        liar.say(vec![of(index, |outcome| outcome.failure = Some(failure))]).await;
    }
    acknowledged(&mut liar, 2).await;
    switch.store(false, Ordering::Relaxed);
    serves(&yard).await;
    running.stop().await;
}

#[tokio::test]
async fn a_session_past_the_bound_is_ended_by_name_and_the_next_one_has_its_heartbeats_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, switch) = yard(dir.path());
    let running = yard.start().await;
    let hello = greeting("n");
    let mut liar = Liar::attach(&yard, hello.clone()).await;
    stick(&mut liar, &switch).await;
    let component = |_| v1::Component { name: "c".to_owned(), value: 1.0 };
    let components: Vec<_> = (0..32_768).map(component).collect();
    let large = |index| {
        let reward = v1::Reward { value: 1.0, components: components.clone() };
        of(index, |outcome| outcome.reward = Some(reward))
    };
    for index in 0..40 {
        liar.say(vec![large(index)]).await;
    }
    let refuse = liar.refused().await;
    assert_eq!(refuse.code, "too_many_reports", "{refuse:?}");
    // The same executor again, and what it left still waits: each attach is a heartbeat of its own.
    for _ in 0..3 {
        let mut again = Liar::attach(&yard, hello.clone()).await;
        acknowledged(&mut again, 1).await;
        for index in 0..40 {
            again.say(vec![large(index)]).await;
        }
        assert_eq!(again.refused().await.code, "too_many_reports");
    }
    let mut quiet = Liar::attach(&yard, hello).await;
    acknowledged(&mut quiet, 1).await;
    switch.store(false, Ordering::Relaxed);
    serves(&yard).await;
    acknowledged(&mut quiet, 2).await;
    running.stop().await;
}
