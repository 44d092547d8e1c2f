//! Every way a session ends.

use rollout_wire::v1::{self, command};

use crate::driver::{Lab, code, failure, shell};

crate::sessions![
    a_session_nobody_calls_is_given_up,
    a_sandbox_of_a_client_ends_by_itself_without_blame,
    a_session_ends_at_its_deadline_with_what_it_made,
    a_killed_session_takes_its_calls_along,
    a_session_whose_sandbox_dies_is_lost,
    a_finish_is_recorded_before_it_is_acknowledged_and_told_again,
    a_step_goes_on_in_the_sandbox_a_session_left,
];

async fn a_session_nobody_calls_is_given_up(lab: &mut Lab) {
    let session = lab.session_with(|step| step.session.as_mut().unwrap().idle_timeout_ms = 400).await;
    // A command that somebody waits for is no silence, however long it is.
    session.said("long", "sleep 1").await;
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!((failure(&outcome), outcome.actions), ("driver_lost", Some(1)), "{:?}", outcome.failure);
    assert_eq!(code(&session.act("late", shell("true")).await.unwrap_err()), "sandbox_ended");
    let never = lab.session_with(|_| {}).await;
    let unknown = crate::driver::Driven { name: "j0000000000009-g0-s0@node-1".to_owned(), ..never.clone() };
    assert_eq!(code(&unknown.act("a", shell("true")).await.unwrap_err()), "not_found");
    let elsewhere = crate::driver::Driven { name: never.name.replace("node-1", "node-2"), ..never.clone() };
    assert_eq!(code(&elsewhere.act("a", shell("true")).await.unwrap_err()), "not_found");
    lab.finish(&never).await;
}

async fn a_sandbox_of_a_client_ends_by_itself_without_blame(lab: &mut Lab) {
    for (idle_timeout_ms, timeout_ms) in [(100, 600_000), (600_000, 300)] {
        lab.sandbox_with(|step| {
            step.session.as_mut().unwrap().idle_timeout_ms = idle_timeout_ms;
            step.timeout_ms = timeout_ms;
        })
        .await;
        let outcome = lab.yard.ended().await.outcome.unwrap();
        assert_eq!(failure(&outcome), "", "{:?}", outcome.failure);
        assert_eq!(outcome.timed_out, timeout_ms == 300);
    }
}

async fn a_session_ends_at_its_deadline_with_what_it_made(lab: &mut Lab) {
    let output = crate::yard::output("made", v1::output::Source::Path("made".to_owned()), 100);
    let session = lab
        .session_with(|step| {
            step.timeout_ms = 1500;
            step.outputs = vec![output];
        })
        .await;
    session.said("make", "echo made > made").await;
    let running = session.act("long", shell("echo begun; sleep 1000")).await.unwrap();
    let result = running.result.unwrap();
    // Its own deadline is that of the step at most; which of the two came first is chance.
    assert!(result.timed_out || result.code == "sandbox_ended", "{result:?}");
    assert_eq!((result.stdout.as_slice(), result.exit_code), (&b"begun\n"[..], None));
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!((failure(&outcome), outcome.timed_out), ("agent_timeout", true));
    assert_eq!(outcome.artifacts.iter().map(|made| made.size).collect::<Vec<_>>(), [5]);
}

async fn a_killed_session_takes_its_calls_along(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let mut exec =
        crate::exec::Exec::new(&session, crate::exec::start(&session, "echo up; sleep 1000")).await.unwrap();
    exec.until("up\n").await;
    let acting = {
        let session = session.clone();
        tokio::spawn(async move { session.act("long", shell("touch begun; sleep 1000")).await })
    };
    session.said("begun", "while [ ! -e begun ]; do sleep 0.01; done").await;
    let rollout = session.name.split('@').next().unwrap().to_owned();
    let kill = v1::KillAttempt {
        attempt: Some(v1::AttemptRef { rollout, step: 0, attempt: 0 }),
        generation: 1,
        code: "cancelled".to_owned(),
        reason: "enough".to_owned(),
    };
    lab.yard.send(command::Kind::Kill(kill)).await;
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!((failure(&outcome), outcome.actions), ("cancelled", Some(2)));
    let result = acting.await.unwrap().unwrap().result.unwrap();
    assert_eq!((result.code.as_str(), result.exit_code), ("sandbox_ended", None), "{result:?}");
    let refused = loop {
        match exec.outputs.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended as if nothing were"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(code(&refused), "sandbox_ended");
    let again = session.act("long", shell("touch begun; sleep 1000")).await.unwrap();
    assert!(again.repeated && again.result.unwrap().code == "sandbox_ended", "it is recorded so");
}

async fn a_session_whose_sandbox_dies_is_lost(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    session.said("up", "true").await;
    let census = executor::census::take(&lab.yard.config.data_dir).unwrap();
    let init = nix::unistd::Pid::from_raw(census.processes[0]);
    nix::sys::signal::kill(init, nix::sys::signal::Signal::SIGKILL).unwrap();
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!(failure(&outcome), "node_lost", "{:?}", outcome.failure);
    assert!(session.act("late", shell("true")).await.is_err());
}

async fn a_finish_is_recorded_before_it_is_acknowledged_and_told_again(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    session.said("up", "true").await;
    let logs = lab.yard.config.data_dir.join("actions");
    let log = std::fs::read_dir(&logs).unwrap().next().unwrap().unwrap().path();
    let before = std::fs::metadata(&log).unwrap().len();
    lab.finish_with(&session, Some(0.25), "").await.unwrap();
    assert!(std::fs::metadata(&log).unwrap().len() > before, "what was promised is on disk");
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!(
        (failure(&outcome), outcome.reward.as_ref().unwrap().value, outcome.actions),
        ("", 0.25, Some(1))
    );
    // Its answer may have been lost.
    lab.finish_with(&session, Some(0.25), "").await.unwrap();
    let other = lab.finish_with(&session, Some(1.0), "").await.unwrap_err();
    assert_eq!(code(&other), "sandbox_ended");
}

async fn a_step_goes_on_in_the_sandbox_a_session_left(lab: &mut Lab) {
    let mut order = crate::driver::session(7);
    order.keep = true;
    let step = order.step.as_mut().unwrap();
    step.session.as_mut().unwrap().unclaimed = true;
    step.checkpoint_after = true;
    let session = lab.started(order, "").await;
    session.said("make", "echo left > f").await;
    let outcome = lab.finish(&session).await;
    assert_eq!(outcome.checkpoint.unwrap().layers.len(), 1);
    let mut next = crate::yard::order("run", "cat f");
    next.attempt = Some(crate::yard::attempt(7, 1));
    next.continue_from = Some(crate::yard::attempt(7, 0));
    let outcome = lab.yard.run(next).await;
    assert_eq!(lab.yard.blob(outcome.stdout.as_ref().unwrap()).await, "left\n");
}
