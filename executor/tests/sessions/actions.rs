//! Recorded actions and claims.

use rollout_wire::v1::{self, act_request::Payload, run_command};

use crate::driver::{Lab, code, failure, shell};

crate::sessions![
    an_action_is_done_once_whatever_is_sent_again,
    actions_that_run_at_once_are_waited_for_by_all_who_ask,
    an_action_has_its_input_user_and_deadline,
    output_past_the_cap_is_counted,
    a_session_is_held_by_one_driver,
    streams_of_a_driver_that_lost_its_claim_end_and_place_nothing,
    a_driver_gives_the_reward_and_the_count_is_told,
    actions_past_the_limit_end_the_session,
    what_an_action_leaves_in_the_background_goes_on,
];

async fn an_action_is_done_once_whatever_is_sent_again(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let count = || shell("echo x >> n; wc -l < n; exit 3");
    let first = session.act("a.1", count()).await.unwrap();
    let result = first.result.clone().unwrap();
    assert_eq!((result.exit_code, result.stdout.as_slice()), (Some(3), &b"1\n"[..]));
    assert!(result.started_at_us > 0 && result.finished_at_us >= result.started_at_us);
    let again = session.act("a.1", count()).await.unwrap();
    assert!(again.repeated);
    assert_eq!((again.result, again.ordinal, again.state), (first.result, 0, first.state));
    let conflict = session.act("a.1", shell("true")).await.unwrap_err();
    assert_eq!(code(&conflict), "action_conflict");
    let second = session.act("a.2", count()).await.unwrap();
    assert_eq!((second.ordinal, second.result.unwrap().stdout), (1, b"2\n".to_vec()));
    for bad in ["", "a b", "a/b", &"x".repeat(129)] {
        assert_eq!(code(&session.act(bad, count()).await.unwrap_err()), "bad_request", "{bad:?}");
    }
    let list = v1::ListActionsRequest { sandbox: session.name.clone(), from: 0, page_size: 1 };
    let page = lab.client.list_actions(list.clone()).await.unwrap().into_inner();
    assert_eq!((page.actions.len(), page.more), (1, true));
    let rest = v1::ListActionsRequest { from: 1, page_size: 1000, ..list };
    let page = lab.client.list_actions(rest).await.unwrap().into_inner();
    let ids: Vec<_> = page.actions.iter().map(|action| (action.action_id.as_str(), action.ordinal)).collect();
    assert_eq!((ids, page.more), (vec![("a.2", 1)], false));
    assert_eq!(lab.finish(&session).await.actions, Some(2));
    // What was recorded can be asked when the session is over; nothing new is begun.
    let past = session.act("a.1", count()).await.unwrap();
    assert!(past.repeated && past.result.unwrap().exit_code == Some(3));
    assert_eq!(code(&session.act("a.3", count()).await.unwrap_err()), "sandbox_ended");
    assert_eq!(code(&session.act("a.1", shell("true")).await.unwrap_err()), "action_conflict");
}

async fn actions_that_run_at_once_are_waited_for_by_all_who_ask(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let wait = || shell("echo x >> begun; while [ ! -e go ]; do sleep 0.01; done; wc -l < begun");
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.act("slow", wait()).await.unwrap() })
        })
        .collect();
    session.said("until", "while [ ! -e begun ]; do sleep 0.01; done").await;
    assert_eq!(code(&session.act("slow", shell("true")).await.unwrap_err()), "action_conflict");
    session.said("go", "touch go").await;
    let mut news = 0;
    for call in calls {
        let reply = call.await.unwrap();
        news += u32::from(!reply.repeated);
        assert_eq!(reply.result.unwrap().stdout, b"1\n", "it ran once");
    }
    assert_eq!(news, 1);
    lab.finish(&session).await;
}

async fn an_action_has_its_input_user_and_deadline(lab: &mut Lab) {
    let session = lab.sandbox().await;
    let run = |run: v1::RunCommand| Payload::Run(run);
    let argv = |items: &[&str]| {
        let items = items.iter().map(|item| (*item).to_owned()).collect();
        Some(run_command::Command::Argv(v1::Argv { items }))
    };
    let result = session
        .done(
            "in",
            run(v1::RunCommand {
                command: argv(&["sh", "-c", "cat; id -un; pwd; echo $A $HOME; ls /proc/self/fd | wc -l"]),
                env: [("A".to_owned(), "b".to_owned())].into(),
                cwd: "/tmp".to_owned(),
                user: "root".to_owned(),
                stdin: vec![b'y'; 300_000],
                ..v1::RunCommand::default()
            }),
        )
        .await;
    let rest = String::from_utf8(result.stdout[300_000..].to_vec()).unwrap();
    assert_eq!(rest, "root\n/tmp\nb /workspace\n4\n", "and ls has the directory it lists");
    let late = v1::RunCommand {
        command: argv(&["sh", "-c", "echo begun; (setsid sleep 1004 &); sleep 1004"]),
        timeout_ms: Some(300),
        ..v1::RunCommand::default()
    };
    let result = session.done("late", run(late)).await;
    assert!(result.timed_out && result.exit_code.is_none(), "{result:?}");
    assert_eq!((result.stdout.as_slice(), result.signal), (&b"begun\n"[..], Some(9)));
    assert_eq!(session.said("gone", "pgrep -xc -f 'sleep 1004'; true").await, "0", "its whole tree");
    let missing = v1::RunCommand { command: argv(&["/no/such/program"]), ..v1::RunCommand::default() };
    let result = session.done("missing", run(missing)).await;
    assert_eq!((result.code.as_str(), result.exit_code), ("command_not_started", None), "{result:?}");
    let put = v1::PutFile {
        path: "put/it".to_owned(),
        data: b"data".to_vec(),
        mode: Some(0o600),
        user: String::new(),
    };
    session.done("put", Payload::Put(put)).await;
    assert_eq!(session.said("stat", "stat -c '%a %U' put/it").await, "600 rollout");
    let get = |path: &str| Payload::Get(v1::GetFile { path: path.to_owned() });
    assert_eq!(session.done("get", get("put/it")).await.data, b"data");
    assert_eq!(session.done("none", get("nothing")).await.code, "no_such_file");
    session.said("large", "truncate -s 2M large").await;
    assert_eq!(session.done("big", get("large")).await.code, "file_too_large");
    lab.finish(&session).await;
}

async fn output_past_the_cap_is_counted(lab: &mut Lab) {
    let session = lab.sandbox().await;
    let script = "yes | head -c 30000000; printf '\\377\\033[31m' >&2";
    let mut run = v1::RunCommand {
        command: Some(run_command::Command::Shell(script.to_owned())),
        ..v1::RunCommand::default()
    };
    let result = session.done("yes", Payload::Run(run.clone())).await;
    assert_eq!((result.stdout.len(), result.stdout_bytes), (1 << 20, 30_000_000));
    assert!(result.capture_truncated);
    assert_eq!(result.stderr, b"\xff\x1b[31m");
    run.output_bytes_max = Some(10);
    let result = session.done("ten", Payload::Run(run.clone())).await;
    assert_eq!((result.stdout.len(), result.stdout_bytes, result.stderr.len()), (10, 30_000_000, 6));
    run.output_bytes_max = Some((1 << 20) + 1);
    assert_eq!(code(&session.act("more", Payload::Run(run)).await.unwrap_err()), "bad_request");
    lab.finish(&session).await;
}

async fn a_session_is_held_by_one_driver(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let rollout = session.name.split('@').next().unwrap().to_owned();
    assert!(lab.claim(&rollout, "another").await.is_none());
    let same = lab.claim(&rollout, "driver").await.expect("it gets back what it holds");
    assert_eq!(same.claim, session.claim);
    let thief = crate::driver::Driven { claim: "0".repeat(32), ..session.clone() };
    for id in ["a", "b"] {
        assert_eq!(code(&thief.act(id, shell("true")).await.unwrap_err()), "claim_lost");
    }
    assert_eq!(code(&thief.stat("/").await.unwrap_err()), "claim_lost");
    assert_eq!(session.said("mine", "echo here").await, "here", "the allow twin");
    // By its job, too; and of another job there is none.
    for (job, found) in [("j0000000000007", true), ("j0000000000008", false)] {
        let request = v1::ClaimSessionRequest {
            job: job.to_owned(),
            driver: "driver".to_owned(),
            ttl_ms: 1000,
            ..v1::ClaimSessionRequest::default()
        };
        assert_eq!(lab.client.claim(request).await.unwrap().into_inner().session.is_some(), found);
    }
    // Its ttl is a second now: who waits for a call for longer keeps it.
    let (held, other) = tokio::join!(session.said("long", "sleep 1.5; echo held"), async {
        tokio::time::sleep(std::time::Duration::from_millis(1300)).await;
        let request = v1::ClaimSessionRequest {
            driver: "another".to_owned(),
            ttl_ms: 1000,
            rollout: rollout.clone(),
            ..v1::ClaimSessionRequest::default()
        };
        lab.client.clone().claim(request).await.unwrap().into_inner().session
    });
    assert!(held == "held" && other.is_none(), "{other:?}");
    // Silent for its ttl: another may have it, and the first is told.
    let taken = loop {
        if let Some(taken) = lab.claim(&rollout, "another").await {
            break taken;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(taken.actions, 2);
    assert_eq!(code(&session.act("late", shell("true")).await.unwrap_err()), "claim_lost");
    let driven = crate::driver::Driven { claim: taken.claim, ..session };
    assert!(driven.act("mine", shell("echo here")).await.unwrap().repeated, "what was recorded stays");
    lab.finish(&driven).await;
}

async fn a_driver_gives_the_reward_and_the_count_is_told(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    session.said("one", "echo made > made").await;
    assert_eq!(code(&lab.finish_with(&session, Some(f64::NAN), "").await.unwrap_err()), "bad_request");
    lab.finish_with(&session, Some(0.5), "").await.unwrap();
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!(failure(&outcome), "", "{:?}", outcome.failure);
    assert_eq!((outcome.reward.unwrap().value, outcome.actions), (0.5, Some(1)));
    let graded = lab.session_with(|step| step.session.as_mut().unwrap().takes_reward = false).await;
    let refused = lab.finish_with(&graded, Some(1.0), "").await.unwrap_err();
    assert_eq!(code(&refused), "reward_not_taken");
    lab.finish_with(&graded, None, "the model was away").await.unwrap();
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!((failure(&outcome), outcome.reward.is_none()), ("step_exit", true));
    assert!(outcome.failure.unwrap().message.contains("the model was away"));
}

async fn actions_past_the_limit_end_the_session(lab: &mut Lab) {
    let session = lab.session_with(|step| step.session.as_mut().unwrap().max_actions = Some(2)).await;
    session.said("1", "true").await;
    session.said("2", "true").await;
    assert!(session.act("2", shell("true")).await.unwrap().repeated, "no new one");
    assert_eq!(code(&session.act("3", shell("true")).await.unwrap_err()), "max_actions");
    let outcome = lab.yard.ended().await.outcome.unwrap();
    assert_eq!((failure(&outcome), outcome.actions), ("max_actions", Some(2)));
}

async fn what_an_action_leaves_in_the_background_goes_on(lab: &mut Lab) {
    let session = lab.sandbox().await;
    let begun =
        "(i=0; while :; do i=$((i+1)); echo $i; echo $i > n.new; mv n.new n; sleep 0.01; done) & echo begun";
    let result = session.done("begin", shell(begun)).await;
    // What it left in the background may write before it and after it.
    assert!(result.stdout.windows(6).any(|said| said == b"begun\n"), "{result:?}");
    let first: u64 = session.said("1", "while [ ! -e n ]; do sleep 0.01; done; cat n").await.parse().unwrap();
    let wait = format!("while [ $(cat n) -lt {} ]; do sleep 0.01; done; cat n", first + 30);
    let later: u64 = session.said("2", &wait).await.parse().unwrap();
    assert!(later >= first + 30);
    lab.finish(&session).await;
}

async fn streams_of_a_driver_that_lost_its_claim_end_and_place_nothing(lab: &mut Lab) {
    use tokio_stream::wrappers::ReceiverStream;
    use v1::write_file_chunk::Chunk;
    let first = lab.session_with(|_| {}).await;
    first.said("large", "truncate -s 8M large").await;
    first.said("serve", crate::exec::ECHO).await;
    let mut forward = crate::exec::Forward::until_there(&first, 8080).await;
    let read = v1::ReadFileRequest {
        sandbox: first.name.clone(),
        claim: first.claim.clone(),
        path: "large".to_owned(),
        ..v1::ReadFileRequest::default()
    };
    let mut reading = first.client.clone().read_file(read).await.unwrap().into_inner();
    reading.message().await.unwrap().unwrap();
    let (chunks, queue) = tokio::sync::mpsc::channel(4);
    let start = v1::WriteFileStart {
        sandbox: first.name.clone(),
        claim: first.claim.clone(),
        path: "late".to_owned(),
        size: 4,
        ..v1::WriteFileStart::default()
    };
    let chunk = |chunk: Chunk| v1::WriteFileChunk { chunk: Some(chunk) };
    chunks.send(chunk(Chunk::Start(start))).await.unwrap();
    chunks.send(chunk(Chunk::Data(b"ab".to_vec()))).await.unwrap();
    let mut client = first.client.clone();
    let writing = tokio::spawn(async move { client.write_file(ReceiverStream::new(queue)).await });
    // Silent for a second from here on, while another takes over.
    let rollout = first.name.split('@').next().unwrap().to_owned();
    let claim = |driver: &str| v1::ClaimSessionRequest {
        driver: driver.to_owned(),
        ttl_ms: 1000,
        rollout: rollout.clone(),
        ..v1::ClaimSessionRequest::default()
    };
    lab.client.claim(claim("driver")).await.unwrap();
    let taken = loop {
        if let Some(taken) = lab.client.claim(claim("another")).await.unwrap().into_inner().session {
            break taken;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let second = crate::driver::Driven { claim: taken.claim, ..first };
    let input = v1::forward_input::Input::Data(b"late".to_vec());
    forward.send(input).await;
    assert_eq!(code(&forward.outputs.message().await.unwrap_err()), "claim_lost");
    chunks.send(chunk(Chunk::Data(b"cd".to_vec()))).await.unwrap();
    drop(chunks);
    assert_eq!(code(&writing.await.unwrap().unwrap_err()), "claim_lost");
    let end = loop {
        match reading.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert_eq!(code(&end.unwrap_err()), "claim_lost");
    assert_eq!(code(&second.stat("late").await.unwrap_err()), "no_such_file");
    lab.finish(&second).await;
}
