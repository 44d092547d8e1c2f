//! The idle ladder, and what counts as silence.

use std::time::Duration;

use rollout_wire::v1::{self, command, forward_input, forward_output};

use crate::driver::{Driven, Lab, code, failure, in_shell, session, shell};
use crate::exec::{ECHO, Exec, Forward, start};
use crate::yard::output;

crate::sessions![
    a_paused_sandbox_goes_on_at_the_next_call,
    a_change_of_another_version_is_refused,
    a_pause_while_an_action_starts_loses_nothing,
    deadlines_go_on_while_it_is_paused,
    the_timeout_of_one_that_was_parked_has_gone_on,
    a_sandbox_nobody_calls_is_paused_by_itself,
    forwarded_bytes_and_streams_are_no_silence,
    calls_are_told_that_it_is_parked_until_the_scheduler_knows,
    what_is_not_parked_after_all_goes_on,
    what_it_ran_before_it_was_parked_is_told_once,
];

pub async fn pause(driven: &Driven, version: Option<u64>) -> Result<v1::LifecycleReply, tonic::Status> {
    let request = v1::PauseSandboxRequest {
        sandbox: driven.name.clone(),
        claim: driven.claim.clone(),
        version,
        park: false,
    };
    driven.client.clone().pause(request).await.map(tonic::Response::into_inner)
}

async fn park(driven: &Driven) -> Result<v1::LifecycleReply, tonic::Status> {
    let (sandbox, claim) = (driven.name.clone(), driven.claim.clone());
    let request = v1::PauseSandboxRequest { sandbox, claim, version: None, park: true };
    driven.client.clone().pause(request).await.map(tonic::Response::into_inner)
}

pub async fn resume(driven: &Driven, version: Option<u64>) -> Result<v1::LifecycleReply, tonic::Status> {
    let request =
        v1::ResumeSandboxRequest { sandbox: driven.name.clone(), claim: driven.claim.clone(), version };
    driven.client.clone().resume(request).await.map(tonic::Response::into_inner)
}

/// Whether its processes stand still, as the kernel says: looked at from outside, it wakes nobody.
pub fn stands_still(data_dir: &std::path::Path) -> bool {
    let leaves = executor::census::leaves(&data_dir.canonicalize().unwrap()).unwrap();
    let own = leaves.iter().filter(|(name, _)| !name.starts_with("pool.")).map(|(_, leaf)| leaf);
    // In the v2 tree alone.
    let events: Vec<_> =
        own.filter_map(|leaf| std::fs::read_to_string(leaf.join("cgroup.events")).ok()).collect();
    assert_eq!(events.len(), 1, "one sandbox");
    events[0].contains("frozen 1")
}

async fn a_paused_sandbox_goes_on_at_the_next_call(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let count = "(i=0; while :; do i=$((i+1)); echo $i > n.new; mv n.new n; done) > /dev/null 2>&1 & echo up";
    session.said("count", count).await;
    session.done("sh", in_shell("main", "A=kept", None)).await;
    for turn in 0..3u64 {
        let paused = pause(&session, None).await.unwrap();
        assert!(["frozen", "reclaimed"].contains(&paused.rung.as_str()), "{paused:?}");
        assert_eq!((paused.version, paused.rung == "reclaimed"), (2 * turn + 1, paused.reclaimed_bytes > 0));
        assert!(stands_still(&lab.yard.config.data_dir));
        assert_eq!(pause(&session, None).await.unwrap(), paused, "there already");
        let said = session.done(&format!("sh{turn}"), in_shell("main", "echo $A", None)).await;
        assert_eq!(said.stdout, b"kept\n", "the caller sees only a delay");
        assert!(!stands_still(&lab.yard.config.data_dir));
    }
    pause(&session, None).await.unwrap();
    assert_eq!(session.stat("n").await.unwrap().kind, "file");
    assert_eq!(resume(&session, None).await.unwrap().rung, "running");
    pause(&session, None).await.unwrap();
    // It ends from where it stands.
    assert_eq!(failure(&lab.finish(&session).await), "");
}

async fn a_change_of_another_version_is_refused(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    assert_eq!(code(&pause(&sandbox, Some(1)).await.unwrap_err()), "version_conflict");
    assert_eq!(pause(&sandbox, Some(0)).await.unwrap().version, 1);
    assert_eq!(code(&resume(&sandbox, Some(0)).await.unwrap_err()), "version_conflict");
    assert_eq!(resume(&sandbox, Some(1)).await.unwrap().version, 2);
    lab.finish(&sandbox).await;
}

/// Whatever comes first: the action is done once it may go on, and soon.
async fn a_pause_while_an_action_starts_loses_nothing(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let began = std::time::Instant::now();
    for turn in 0..40 {
        let (pauses, resumes) = (session.clone(), session.clone());
        let paused_and_resumed = async move {
            tokio::time::sleep(Duration::from_micros(turn * 100)).await;
            pause(&pauses, None).await.unwrap();
            resume(&resumes, None).await.unwrap();
        };
        let action = format!("a{turn}");
        let (said, ()) = tokio::join!(session.done(&action, shell("echo said")), paused_and_resumed);
        assert_eq!(said.stdout, b"said\n", "{said:?}");
    }
    // The time that a process may take to start.
    assert!(began.elapsed() < Duration::from_secs(30), "a hang guard: {:?}", began.elapsed());
    lab.finish(&session).await;
}

async fn deadlines_go_on_while_it_is_paused(lab: &mut Lab) {
    for (idle_timeout_ms, timeout_ms, expected) in
        [(500, 600_000, "driver_lost"), (600_000, 1000, "agent_timeout")]
    {
        let session = lab
            .session_with(|step| {
                step.session.as_mut().unwrap().idle_timeout_ms = idle_timeout_ms;
                step.timeout_ms = timeout_ms;
            })
            .await;
        pause(&session, None).await.unwrap();
        let outcome = lab.yard.ended().await.outcome.unwrap();
        assert_eq!(failure(&outcome), expected, "{:?}", outcome.failure);
    }
}

/// What the time it was parked for left of its timeout is all it has, on this node and the next.
async fn the_timeout_of_one_that_was_parked_has_gone_on(lab: &mut Lab) {
    let back = |time_left_ms| v1::Parked {
        ran_ms: 1_000,
        time_left_ms,
        idle_left_ms: 600_000,
        ..v1::Parked::default()
    };
    let mut order = session(lab.sample());
    order.step.as_mut().unwrap().timeout_ms = 600_000;
    order.parked = Some(back(60_000));
    let again = lab.started(order, "").await;
    let rollout = again.name.split('@').next().unwrap().to_owned();
    let claim = lab.claim(&rollout, "driver").await.expect("it is free").claim;
    let request = v1::PauseSandboxRequest { sandbox: again.name.clone(), claim, version: None, park: true };
    again.client.clone().pause(request).await.unwrap();
    let parked = lab.yard.ended().await.outcome.unwrap().parked.unwrap();
    assert!((1..60_000).contains(&parked.time_left_ms), "{parked:?}");
    let mut order = session(lab.sample());
    order.step.as_mut().unwrap().timeout_ms = 600_000;
    order.parked = Some(back(1_000));
    lab.started(order, "").await;
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!(failure(&outcome), "agent_timeout", "{:?}", outcome.failure);
    assert!(outcome.failure.unwrap().message.contains("ran 10m"));
}

async fn a_sandbox_nobody_calls_is_paused_by_itself(lab: &mut Lab) {
    let sandbox = lab
        .sandbox_with(|step| step.idle = Some(v1::Idle { park_after_ms: 100, mode: "freeze".to_owned() }))
        .await;
    sandbox.said("up", "(while :; do :; done) > /dev/null 2>&1 & echo up").await;
    while !stands_still(&lab.yard.config.data_dir) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(sandbox.said("again", "echo again").await, "again");
    // What somebody waits for is not paused under them.
    assert_eq!(sandbox.said("long", "sleep 0.5; echo long").await, "long");
    while !stands_still(&lab.yard.config.data_dir) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lab.finish(&sandbox).await;
}

async fn forwarded_bytes_and_streams_are_no_silence(lab: &mut Lab) {
    let limit = Duration::from_millis(600);
    let idle = |step: &mut v1::Step| {
        step.session.as_mut().unwrap().idle_timeout_ms = u64::try_from(limit.as_millis()).unwrap();
    };
    let sandbox = lab.sandbox_with(idle).await;
    sandbox.said("serve", ECHO).await;
    let mut forward = Forward::until_there(&sandbox, 8080).await;
    let began = std::time::Instant::now();
    let mut bytes = 0;
    while began.elapsed() < 4 * limit {
        forward.send(forward_input::Input::Data(b"x".to_vec())).await;
        match forward.outputs.message().await.unwrap().unwrap().output.unwrap() {
            forward_output::Output::Data(data) => bytes += data.len(),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(limit / 12).await;
    }
    assert!(bytes > 10);
    // One that was paused meanwhile is woken by them.
    pause(&sandbox, None).await.unwrap();
    forward.send(forward_input::Input::Data(b"y".to_vec())).await;
    let woken = forward.outputs.message().await.unwrap().unwrap().output.unwrap();
    assert_eq!(woken, forward_output::Output::Data(b"Y".to_vec()));
    // A connection over which nothing comes is silence.
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!(failure(&outcome), "");
    let ended = loop {
        match forward.outputs.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("closed without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(code(&ended), "sandbox_ended");
    let sandbox = lab.sandbox_with(idle).await;
    let exec = Exec::new(&sandbox, start(&sandbox, "sleep 2; echo done")).await.unwrap();
    assert_eq!(exec.rest().await.0, b"done\n", "somebody waits for it");
    assert!(sandbox.act("late", shell("true")).await.is_ok());
    lab.yard.ended().await;
}

async fn calls_are_told_that_it_is_parked_until_the_scheduler_knows(lab: &mut Lab) {
    lab.yard.set_acknowledges_ends(false);
    let session = lab.session_with(|_| {}).await;
    session.said("one", "echo one > f; echo one").await;
    assert_eq!(park(&session).await.unwrap().rung, "parked");
    let told = async |session: &Driven| {
        let mut client = session.client.clone();
        let list = v1::ListActionsRequest { sandbox: session.name.clone(), ..Default::default() };
        let acted = session.act("two", shell("true")).await.map(drop);
        let listed = client.list_actions(list).await.map(drop);
        [acted, session.stat("f").await.map(drop), listed].map(|told| code(&told.unwrap_err()).to_owned())
    };
    assert_eq!(told(&session).await[..2], ["sandbox_parked", "sandbox_parked"]);
    let ended = lab.yard.ended().await;
    let log = ended.outcome.unwrap().parked.unwrap().log.unwrap();
    // Its sandbox is gone. Its log stays until the scheduler has the name of the blob.
    assert_eq!(told(&session).await, ["sandbox_parked"; 3]);
    let logs = || std::fs::read_dir(lab.yard.config.data_dir.join("actions")).unwrap().count();
    assert_eq!((logs(), log.size > 0), (1, true));
    let ack = v1::EndedAck { attempt: ended.attempt, generation: ended.generation };
    lab.yard.send(command::Kind::EndedAck(ack)).await;
    while logs() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(told(&session).await, ["not_found"; 3]);
    lab.yard.set_acknowledges_ends(true);
}

async fn what_is_not_parked_after_all_goes_on(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let called = sandbox.clone();
    let long = tokio::spawn(async move { called.said("long", "echo > up; sleep 1; echo long").await });
    while sandbox.stat("up").await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(code(&park(&sandbox).await.unwrap_err()), "version_conflict");
    assert!(!stands_still(&lab.yard.config.data_dir));
    assert_eq!(long.await.unwrap(), "long");
    lab.finish(&sandbox).await;

    let outputs = vec![output("out", v1::output::Source::Path("out".to_owned()), 100)];
    let sandbox = lab.sandbox_with(|step| step.outputs = outputs).await;
    let refused = park(&sandbox).await.unwrap_err();
    assert_eq!(code(&refused), "not_parkable", "{refused:?}");
    assert!(refused.message().contains("outputs") && !stands_still(&lab.yard.config.data_dir), "{refused:?}");
    sandbox.said("out", "echo > out; echo").await;
    lab.finish(&sandbox).await;
}

async fn what_it_ran_before_it_was_parked_is_told_once(lab: &mut Lab) {
    let mut order = session(lab.sample());
    order.step.as_mut().unwrap().session.as_mut().unwrap().unclaimed = true;
    let before = 100_000;
    let parked =
        v1::Parked { ran_ms: before, time_left_ms: 60_000, idle_left_ms: 60_000, ..Default::default() };
    order.parked = Some(parked);
    let sandbox = lab.started(order, "").await;
    assert_eq!(park(&sandbox).await.unwrap().rung, "parked");
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert!(outcome.parked.unwrap().ran_ms >= before, "all of it counts in its timeout");
    assert!(outcome.times.unwrap().run_ms.unwrap() < before, "and each stretch once");
}
