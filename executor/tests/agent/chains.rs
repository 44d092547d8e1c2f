//! Steps that go on in one sandbox, and starts that come twice.

use rollout_wire::v1::{self, attempt_refused::Class, command};

use crate::yard::{Yard, attempt, order};

fn kept(sample: u32, step: u32, script: &str) -> v1::StartAttempt {
    let mut order = order("agent", script);
    order.attempt = Some(attempt(sample, step));
    order.keep = true;
    if step > 0 {
        order.continue_from = Some(attempt(sample, step - 1));
    }
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_uses_one_sandbox_until_it_is_released() {
    let mut yard = Yard::start().await;
    for step in 0..3 {
        yard.send(command::Kind::Start(kept(0, step, "out x"))).await;
        let ended = yard.ended().await;
        assert!(ended.kept && ended.outcome.unwrap().failure.is_none());
    }
    {
        let state = yard.backend.state();
        assert_eq!((state.created.len(), state.limits_set, state.census.len()), (1, 2, 1));
    }
    let release = v1::ReleaseSandbox { attempt: Some(attempt(0, 2)), generation: 1 };
    yard.send(command::Kind::Release(release)).await;
    yard.backend.until_empty().await;
    yard.send(command::Kind::Start(kept(0, 3, "true"))).await;
    assert_eq!(yard.refused().await.class(), Class::SandboxGone);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_kept_after_a_failure_that_is_graded_and_after_no_other() {
    let mut yard = Yard::start().await;
    for (sample, (kind, script, is_kept)) in (0..).zip([
        ("agent", "exit 1", true),
        ("run", "exit 1", false),
        ("agent", "die", false),
        ("agent", "", true),
    ]) {
        let mut order = order(kind, script);
        order.attempt = Some(attempt(sample, 0));
        order.keep = true;
        yard.send(command::Kind::Start(order)).await;
        let ended = yard.ended().await;
        assert_eq!(ended.kept, is_kept, "{kind}: {script}");
    }
    assert_eq!(yard.backend.state().census.len(), 2);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_comes_twice_runs_once() {
    let mut yard = Yard::start().await;
    let start = command::Kind::Start(order("run", "sleep"));
    yard.send_all(vec![start.clone(), start.clone()]).await;
    yard.started().await;
    yard.send(start).await;
    let kill = v1::KillAttempt {
        attempt: Some(attempt(0, 0)),
        generation: 1,
        code: "cancelled".to_owned(),
        reason: "enough".to_owned(),
    };
    yard.send(command::Kind::Kill(kill)).await;
    yard.ended().await;
    assert_eq!(yard.backend.state().created.len(), 1);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_generation_takes_over_and_the_older_is_silent() {
    let mut yard = Yard::start().await;
    yard.send(command::Kind::Start(order("run", "sleep"))).await;
    yard.started().await;
    let mut newer = order("run", "out second");
    newer.generation = 2;
    yard.send(command::Kind::Start(newer)).await;
    let ended = yard.ended().await;
    assert_eq!(ended.generation, 2);
    assert_eq!(yard.blob(ended.outcome.unwrap().stdout.as_ref().unwrap()).await, "second");
    assert!(!yard.has_unread(|report| matches!(report, v1::report::Kind::Ended(_))));
    yard.stop().await;
}
