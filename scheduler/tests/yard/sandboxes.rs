//! Sandboxes of clients: created, found, ended, forked, and called through the scheduler.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message as _;
use rollout_wire::v1;
use rollout_wire::v1::exec_input::Input;
use rollout_wire::v1::exec_output::Output;
use rollout_wire::v1::sandboxes_client::SandboxesClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tower::ServiceExt as _;

use crate::executor::{Behaviour, Executor};
use crate::garbage::{age, blobs, collect};
use crate::keeper::{Serving, serve};
use crate::yard::{HANG, Running, Yard, channel, code, hello};

/// A scheduler, a node that holds every session, and its end of the calls.
struct World {
    yard: Yard,
    running: Running,
    executor: Executor,
    keeper: Serving,
    client: SandboxesClient<Channel>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new(behaviour: Behaviour) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let yard = Yard::new(dir.path());
        let running = yard.start().await;
        let keeper = serve(dir.path());
        let hold = behaviour.lie.is_none();
        let behaviour = Behaviour { hold, sandboxes_url: keeper.url.clone(), ..behaviour };
        let executor = Executor::attach(&yard, behaviour);
        let client = client(&yard).await;
        Self { yard, running, executor, keeper, client, _dir: dir }
    }

    async fn create(&self, key: &str) -> v1::Sandbox {
        self.client.clone().create(request(key)).await.expect("it is created").into_inner()
    }

    async fn list(&self, labels: &[(&str, &str)], ended_too: bool) -> Vec<String> {
        let (mut found, mut page_token) = (Vec::new(), String::new());
        loop {
            let request =
                v1::ListSandboxesRequest { labels: map(labels), ended_too, page_size: 2, page_token };
            let reply = self.client.clone().list(request).await.expect("a page").into_inner();
            found.extend(reply.sandboxes.into_iter().map(|sandbox| sandbox.id));
            page_token = reply.next_page_token;
            if page_token.is_empty() {
                return found;
            }
        }
    }

    async fn kill(&self, names: &[&str], labels: &[(&str, &str)]) -> v1::KillSandboxesReply {
        let sandboxes = names.iter().map(|&name| name.to_owned()).collect();
        let request = v1::KillSandboxesRequest { sandboxes, labels: map(labels), reason: String::new() };
        self.client.clone().kill(request).await.expect("an answer").into_inner()
    }
}

async fn client(yard: &Yard) -> SandboxesClient<Channel> {
    SandboxesClient::new(channel(&yard.socket()).await)
}

fn map(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn request(key: &str) -> v1::CreateSandboxRequest {
    v1::CreateSandboxRequest { idempotency_key: key.to_owned(), ..v1::CreateSandboxRequest::default() }
}

fn act(sandbox: &str, action_id: &str) -> v1::ActRequest {
    v1::ActRequest {
        sandbox: sandbox.to_owned(),
        action_id: action_id.to_owned(),
        ..v1::ActRequest::default()
    }
}

/// Until it is so, or this hangs.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_created_found_and_ended() {
    let world = World::new(Behaviour::default()).await;
    let wanted = v1::CreateSandboxRequest {
        labels: map(&[("team", "blue")]),
        env: map(&[("A", "${row.x}")]),
        timeout_ms: Some(60_000),
        ..request("one")
    };
    let made = world.client.clone().create(wanted).await.unwrap().into_inner();
    assert_eq!((made.state.as_str(), made.node.as_str(), made.image.as_str()), ("running", "n1", "host"));
    assert_eq!(made.id, format!("{}-g0-s0@n1", made.job));
    assert_eq!((&made.labels, made.adopted), (&map(&[("team", "blue")]), false));
    assert_eq!(made.expires_at_us, made.started_at_us.map(|at| at + 60_000_000));
    for name in [made.id.clone(), format!("{}-g0-s0", made.job)] {
        let request = v1::GetSandboxRequest { sandbox: name };
        assert_eq!(world.client.clone().get(request).await.unwrap().into_inner(), made);
    }
    for name in
        ["x", "j0000000000007-g0-s0", &format!("{}-g0-s1", made.job), &format!("{}-g0-s0.1", made.job)]
    {
        let request = v1::GetSandboxRequest { sandbox: name.to_owned() };
        let refused = world.client.clone().get(request).await.unwrap_err();
        assert_eq!(code(&refused), "not_found", "{name}");
    }
    {
        let seen = world.executor.seen.lock().unwrap();
        let step = &seen.steps[&format!("{}-g0-s0.0.0", made.job)];
        let session = step.session.unwrap();
        assert!((session.unclaimed, session.takes_reward, step.command.is_none()) == (true, false, true));
        assert_eq!(step.env["A"], "${row.x}");
    }
    // It is no job of anybody's list, and one that asks for such sees it.
    let mut jobs = world.yard.client().await;
    let list = |sandboxes_too| v1::ListRequest { page_size: 10, sandboxes_too, ..v1::ListRequest::default() };
    assert_eq!(jobs.list(list(false)).await.unwrap().into_inner().jobs, []);
    let listed = jobs.list(list(true)).await.unwrap().into_inner().jobs;
    assert_eq!(listed.iter().map(|job| &job.id).collect::<Vec<_>>(), [&made.job]);

    let killed = world.kill(&[&made.id], &[]).await;
    assert_eq!((killed.killed, killed.failed), (vec![made.id.clone()], vec![]));
    assert!(world.executor.seen.lock().unwrap().running.is_empty());
    let ended = world.client.clone().get(v1::GetSandboxRequest { sandbox: made.id.clone() }).await;
    let ended = ended.unwrap().into_inner();
    assert_eq!((ended.state.as_str(), ended.failure), ("ended", None));
    let end = ended.end.expect("how it ended");
    assert_eq!((end.cause.as_str(), end.hint.as_str()), ("killed", ""));
    assert!(end.message.starts_with("ended by a caller"), "{end:?}");
    assert!(end.ended_at_us >= made.created_at_us, "{end:?}");
    let again = world.kill(&[&made.id], &[]).await;
    assert_eq!((again.killed, again.failed), (vec![], vec![]), "it had ended");
    assert_eq!((world.list(&[], false).await, world.list(&[], true).await), (vec![], vec![made.id]));
    assert!(!world.yard.tables().exists(), "nothing of it is recorded");
    world.running.stop().await;
}

/// What a node says of one end, and what is told of it: its cause, and a part of its words.
type Told = (fn(&mut v1::Outcome), &'static str, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_a_sandbox_is_told_wherever_it_is_shown() {
    let fails = |outcome: &mut v1::Outcome| {
        let (code, domain) = ("node_lost".to_owned(), "node".to_owned());
        outcome.failure =
            Some(v1::Failure { code, domain, message: "its init\nis gone".to_owned(), hint: String::new() });
    };
    let runs_out = |outcome: &mut v1::Outcome| {
        let (code, domain) = ("oom_guest".to_owned(), "agent".to_owned());
        let message = "at the memory limit 1Gi".to_owned();
        outcome.failure = Some(v1::Failure { code, domain, message, hint: String::new() });
    };
    let ends: [Told; 4] = [
        (|outcome| outcome.silent = true, "idle_timeout", "no call came for its idle timeout of 1m30s"),
        (|outcome| outcome.timed_out = true, "timeout", "its timeout of 2m was over"),
        (fails, "node_lost", "its init is gone"),
        (runs_out, "oom_guest", "at the memory limit 1Gi"),
    ];
    for (lie, cause, message) in ends {
        let world = World::new(Behaviour { lie: Some(lie), ..Behaviour::default() }).await;
        let wanted = v1::CreateSandboxRequest {
            idle_timeout_ms: Some(90_000),
            timeout_ms: Some(120_000),
            ..request("one")
        };
        let made = world.client.clone().create(wanted).await.unwrap().into_inner();
        let shown = tokio::time::timeout(HANG, async {
            loop {
                let request = v1::GetSandboxRequest { sandbox: made.id.clone() };
                let shown = world.client.clone().get(request).await.unwrap().into_inner();
                if shown.state == "ended" {
                    return shown;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let shown = shown.await.expect("it ends");
        let end = shown.end.clone().expect("how it ended");
        assert_eq!((end.cause.as_str(), end.message.as_str()), (cause, message));
        assert!(!end.hint.is_empty() && !end.hint.contains("resources."), "{end:?}");
        assert!(shown.failure.iter().all(|failure| failure.hint == end.hint), "{shown:?}");
        let list = v1::ListSandboxesRequest { ended_too: true, page_size: 9, ..Default::default() };
        let listed = world.client.clone().list(list).await.unwrap().into_inner();
        assert_eq!(listed.sandboxes, [v1::Sandbox { adopted: false, ..shown.clone() }]);
        let rollout = made.id.replace("@n1", "");
        let gone = world.client.clone().act(act(&rollout, "late")).await.unwrap_err();
        let told = format!("sandbox {rollout} has ended ({cause}): {message}");
        assert_eq!((code(&gone), gone.message()), ("sandbox_gone", told.as_str()));
        let explain = v1::ExplainRequest { target: rollout };
        let lines = world.yard.client().await.explain(explain).await.unwrap().into_inner().lines;
        assert_eq!(lines, [format!("The sandbox has ended ({cause}): {message}.")]);
        world.running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_end_those_that_have_them_all_and_no_others() {
    let world = World::new(Behaviour::default()).await;
    let labels: [&[(&str, &str)]; 7] = [
        &[("run", "7"), ("user", "ada")],
        &[("run", "7"), ("user", "ada"), ("more", "x")],
        &[("run", "7"), ("user", "ada")],
        &[("run", "7"), ("user", "ad")],
        &[("run", "77"), ("user", "ada")],
        &[("user", "ada")],
        &[],
    ];
    let mut made = Vec::new();
    for (index, labels) in labels.iter().enumerate() {
        let wanted = v1::CreateSandboxRequest { labels: map(labels), ..request(&format!("k{index}")) };
        made.push(world.client.clone().create(wanted).await.unwrap().into_inner().id);
    }
    let selector = [("run", "7"), ("user", "ada")];
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(world.list(&selector, false).await), sorted(made[..3].to_vec()));
    let killed = world.kill(&[], &selector).await;
    assert_eq!((sorted(killed.killed), killed.failed), (sorted(made[..3].to_vec()), vec![]));
    assert_eq!(sorted(world.list(&[], false).await), sorted(made[3..].to_vec()));
    assert_eq!(world.kill(&[], &selector).await, v1::KillSandboxesReply::default());
    let nothing = v1::KillSandboxesRequest::default();
    assert_eq!(code(&world.client.clone().kill(nothing).await.unwrap_err()), "bad_request");
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_goes_on_past_what_it_cannot_end() {
    let world = World::new(Behaviour::default()).await;
    let (first, last) = (world.create("a").await.id, world.create("b").await.id);
    let submitted = world.yard.client().await.submit(hello(&world.yard, "job")).await.unwrap().into_inner();
    let of_a_job = format!("{}-g0-s0", submitted.job.unwrap().id);
    let reply = world.kill(&[&first, "nonsense", &of_a_job, "j0000000000007-g0-s0@n1", &last], &[]).await;
    let mut killed = reply.killed;
    killed.sort();
    let mut both = vec![first, last];
    both.sort();
    assert_eq!(killed, both);
    let mut failed: Vec<_> = reply.failed.iter().map(|f| (f.sandbox.as_str(), f.code.as_str())).collect();
    failed.sort_unstable();
    let mut expected = [
        ("nonsense", "not_found"),
        (of_a_job.as_str(), "bad_request"),
        ("j0000000000007-g0-s0@n1", "not_found"),
    ];
    expected.sort_unstable();
    assert_eq!(failed, expected);
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_kills_at_once_one_has_ended_a_sandbox() {
    let world = World::new(Behaviour::default()).await;
    for round in 0..10 {
        let made = world.create(&format!("k{round}")).await;
        let names = [made.id.as_str()];
        let kills = futures::future::join_all((0..4).map(|_| world.kill(&names, &[]))).await;
        let killed: Vec<String> = kills.into_iter().flat_map(|kill| kill.killed).collect();
        assert_eq!(killed, names);
    }
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_sandbox_however_often_it_is_asked_for() {
    let world = World::new(Behaviour::default()).await;
    let calls = (0..8).map(|_| {
        let mut client = world.client.clone();
        async move { client.create(request("same")).await.unwrap().into_inner() }
    });
    let made = futures::future::join_all(calls).await;
    assert_eq!(made.iter().filter(|sandbox| !sandbox.adopted).count(), 1);
    assert!(made.iter().all(|sandbox| sandbox.id == made[0].id));
    assert_eq!(world.executor.seen.lock().unwrap().runs.len(), 1);
    let other = v1::CreateSandboxRequest { user: "root".to_owned(), ..request("same") };
    let refused = world.client.clone().create(other).await.unwrap_err();
    assert_eq!(code(&refused), "idempotency_request_mismatch");
    world.kill(&[&made[0].id], &[]).await;
    let late = world.create("same").await;
    assert_eq!((late.id, late.state.as_str(), late.adopted), (made[0].id.clone(), "ended", true));
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_waits_for_room_and_none_of_it_fails() {
    let world = World::new(Behaviour { sandboxes: 8, ..Behaviour::default() }).await;
    let calls = (0..60).map(|index| {
        let (world, mut client) = (&world, world.client.clone());
        async move {
            let made = client.create(request(&format!("k{index}"))).await.unwrap().into_inner();
            assert_eq!(world.kill(&[&made.id], &[]).await.killed, [made.id]);
        }
    });
    tokio::time::timeout(HANG, futures::future::join_all(calls)).await.expect("all of them had a turn");
    assert_eq!(world.executor.seen.lock().unwrap().runs.len(), 60);
    assert_eq!(world.list(&[], false).await, [""; 0]);
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_in_time_is_given_up_with_the_reason() {
    let world = World::new(Behaviour { sandboxes: 1, ..Behaviour::default() }).await;
    let first = world.create("first").await;
    let hasty = v1::CreateSandboxRequest { start_timeout_ms: Some(1_000), ..request("second") };
    let refused = world.client.clone().create(hasty.clone()).await.unwrap_err();
    assert_eq!(code(&refused), "sandbox_start_timeout", "{refused:?}");
    assert!(refused.message().contains("not ready 1s after it was asked for"), "{refused:?}");
    assert!(refused.message().contains("-g0-s0"), "it names the sandbox: {refused:?}");
    assert!(refused.message().contains("asked for: the sandbox waits for room"), "{refused:?}");
    let explained = world.yard.client().await.explain(v1::ExplainRequest { target: first.job.clone() }).await;
    assert_eq!(explained.unwrap().into_inner().lines, ["The sandbox runs on node n1."]);
    assert_eq!(world.list(&[], false).await, [first.id]);
    assert_eq!(code(&world.client.clone().create(hasty).await.unwrap_err()), "sandbox_start_timeout");
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_has_a_class_of_its_own() {
    let world = World::new(Behaviour::default()).await;
    type Break = fn(&mut v1::CreateSandboxRequest);
    let cases: [(&str, &str, Break); 5] = [
        ("too_big_for_yard", "asks memory", |r| {
            (r.request_memory, r.limit_memory) = ("1Ti".to_owned(), "1Ti".to_owned());
        }),
        ("bad_request", "`timeout_ms`", |r| r.timeout_ms = Some(0)),
        ("bad_request", "idempotency_key", |r| r.idempotency_key = "NO".to_owned()),
        ("not_found", "checkpoint", |r| r.checkpoint = "sha256:00".to_owned()),
        ("image_unsent", "lies on the client's machine", |r| r.image = "oci-layout:x".to_owned()),
    ];
    for (index, (expected, words, break_it)) in cases.into_iter().enumerate() {
        let mut wanted = request(&format!("k{index}"));
        break_it(&mut wanted);
        let refused = world.client.clone().create(wanted).await.unwrap_err();
        assert_eq!(code(&refused), expected, "{refused:?}");
        assert!(refused.message().contains(words), "{refused:?}");
    }
    eventually("nothing is left", || world.executor.seen.lock().unwrap().running.is_empty()).await;
    assert_eq!(world.list(&[], false).await, [""; 0]);
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_there_after_a_restart_and_its_deadlines_too() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let asked = |key, start_timeout_ms| v1::CreateSandboxRequest { start_timeout_ms, ..request(key) };
    let patient = tokio::spawn({
        let mut client = client(&yard).await;
        async move { client.create(asked("patient", None)).await }
    });
    let hasty = tokio::spawn({
        let mut client = client(&yard).await;
        async move { client.create(asked("hasty", Some(1_500))).await }
    });
    let list = v1::ListSandboxesRequest { page_size: 9, ..v1::ListSandboxesRequest::default() };
    loop {
        let listed = client(&yard).await.list(list.clone()).await.unwrap().into_inner().sandboxes;
        assert!(listed.iter().all(|sandbox| sandbox.state == "waiting"), "{listed:?}");
        if listed.len() == 2 {
            break;
        }
    }
    running.stop().await;
    assert!(patient.await.unwrap().is_err() && hasty.await.unwrap().is_err());
    let running = yard.start().await;
    let refused = client(&yard).await.create(asked("hasty", Some(1_500))).await.unwrap_err();
    assert_eq!(code(&refused), "sandbox_start_timeout", "{refused:?}");
    let _executor = Executor::attach(&yard, Behaviour { hold: true, ..Behaviour::default() });
    let made = client(&yard).await.create(asked("patient", None)).await.unwrap().into_inner();
    assert_eq!((made.state.as_str(), made.adopted), ("running", true));
    running.stop().await;
    let running = yard.start().await;
    let known = client(&yard).await.get(v1::GetSandboxRequest { sandbox: made.id.clone() }).await;
    assert_eq!(known.unwrap().into_inner(), v1::Sandbox { adopted: false, ..made });
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_node_with_all_that_came_and_its_words_come_back() {
    let world = World::new(Behaviour::default()).await;
    let made = world.create("one").await;
    let mut client = world.client.clone();
    let payload = v1::PutFile { data: vec![9; 900_000], ..v1::PutFile::default() };
    let put = v1::ActRequest {
        payload: Some(v1::act_request::Payload::Put(payload.clone())),
        ..act(&made.id, "put")
    };
    let mut tagged = tonic::Request::new(put);
    tagged.metadata_mut().insert("x-tag", "kept".parse().unwrap());
    let reply = client.act(tagged).await.unwrap().into_inner();
    assert_eq!(reply.result.unwrap().data, payload.data);
    assert_eq!(world.keeper.kept.lock().unwrap().tag.as_deref(), Some("kept"));
    let refused = client.act(act(&made.id, "conflict")).await.unwrap_err();
    assert_eq!((code(&refused), refused.message()), ("action_conflict", "in a node's own words"));
    // By the name without the node, too.
    client
        .renew(v1::RenewSessionRequest { sandbox: made.id.replace("@n1", ""), ..Default::default() })
        .await
        .unwrap();

    for (name, expected) in [
        (format!("{}-g0-s0@nowhere", made.job), "node_lost"),
        ("j0000000000007-g0-s0".to_owned(), "sandbox_gone"),
        ("nonsense".to_owned(), "not_found"),
        (String::new(), "bad_message"),
    ] {
        assert_eq!(code(&client.act(act(&name, "x")).await.unwrap_err()), expected, "{name}");
    }
    let stat = v1::StatFileRequest { sandbox: made.id.clone(), ..Default::default() };
    assert_eq!(code(&client.stat_file(stat).await.unwrap_err()), "not_available_yet");
    let chunk = |chunk| v1::WriteFileChunk { chunk: Some(chunk) };
    let start = v1::WriteFileStart { sandbox: made.id.clone(), path: "/x".to_owned(), ..Default::default() };
    let mut chunks = vec![chunk(v1::write_file_chunk::Chunk::Start(start))];
    chunks.extend((0..40).map(|n| chunk(v1::write_file_chunk::Chunk::Data(vec![n; 50_000]))));
    let info = client.write_file(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    assert_eq!((info.path.as_str(), info.size), ("/x", 2_000_000));
    assert_eq!(world.keeper.kept.lock().unwrap().written[1_999_999], 39);
    world.kill(&[&made.id], &[]).await;
    let gone = client.act(act(&made.id.replace("@n1", ""), "late")).await.unwrap_err();
    assert_eq!(code(&gone), "sandbox_gone");
    assert!(gone.message().contains("has ended (killed): ended by a caller"), "{gone:?}");
    // Its node says no more than that it is over.
    world.keeper.kept.lock().unwrap().over.insert(made.id.clone());
    let ended = client.act(act(&made.id, "ended")).await.unwrap_err();
    assert_eq!(code(&ended), "sandbox_ended");
    assert!(ended.message().contains("has ended (killed): ended by a caller"), "{ended:?}");
    assert!(ended.metadata().contains_key("rollyard-hint"), "{ended:?}");
    world.running.stop().await;
}

struct Exec {
    inputs: mpsc::Sender<v1::ExecInput>,
    outputs: tonic::Streaming<v1::ExecOutput>,
}

impl Exec {
    async fn start(world: &World, sandbox: &str, user: &str) -> Self {
        let (inputs, stream) = mpsc::channel(4);
        let (sandbox, user) = (sandbox.to_owned(), user.to_owned());
        let start = Input::Start(v1::ExecStart { sandbox, user, ..v1::ExecStart::default() });
        inputs.send(v1::ExecInput { input: Some(start) }).await.unwrap();
        let outputs = world.client.clone().exec(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut exec = Self { inputs, outputs };
        assert_eq!(exec.next().await, Output::Started(v1::ExecStarted { pid: 7 }));
        exec
    }

    async fn send(&self, input: Input) {
        self.inputs.send(v1::ExecInput { input: Some(input) }).await.unwrap();
    }

    async fn next(&mut self) -> Output {
        let next = tokio::time::timeout(HANG, self.outputs.message()).await.expect("an output");
        next.unwrap().expect("not the end").output.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_both_ways_one_message_after_the_other() {
    let world = World::new(Behaviour::default()).await;
    let made = world.create("one").await;
    let mut exec = Exec::start(&world, &made.id, "").await;
    for line in [&b"one"[..], b"two", &[7; 60_000]] {
        exec.send(Input::Stdin(line.to_vec())).await;
        assert_eq!(exec.next().await, Output::Stdout(line.to_vec()), "before the next is sent");
    }
    exec.send(Input::CloseStdin(true)).await;
    assert!(matches!(exec.next().await, Output::Ended(v1::ExecEnded { exit_code: Some(3), .. })));
    assert_eq!(world.keeper.kept.lock().unwrap().open, 1);
    drop(exec);
    eventually("the call is over on the node too", || world.keeper.kept.lock().unwrap().open == 0).await;
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_takes_nothing_stops_its_own_call_and_no_other() {
    let mut world = World::new(Behaviour::default()).await;
    // As many windows as there are calls fit into that of its connection.
    world.client = SandboxesClient::new(world.yard.narrow_channel().await);
    let made = world.create("one").await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(Exec::start(&world, &made.id, "flood").await);
    }
    let mut exec = Exec::start(&world, &made.id, "").await;
    exec.send(Input::Stdin(b"hello".to_vec())).await;
    assert_eq!(exec.next().await, Output::Stdout(b"hello".to_vec()));
    // What was held up goes on where it was.
    for _ in 0..100 {
        assert_eq!(stalled[0].next().await, Output::Stdout(vec![b'x'; 60_000]));
    }
    drop((stalled, exec));
    eventually("nothing runs on", || world.keeper.kept.lock().unwrap().open == 0).await;
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_go_with_the_call_and_a_lost_node_is_told() {
    let world = World::new(Behaviour::default()).await;
    let made = world.create("one").await;
    let mut never = tonic::Request::new(act(&made.id, "never"));
    never.set_timeout(Duration::from_millis(300));
    let status = world.client.clone().act(never).await.unwrap_err();
    assert!(matches!(status.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded), "{status:?}");
    eventually("the node let go of it", || world.keeper.kept.lock().unwrap().open == 0).await;

    let mut exec = Exec::start(&world, &made.id, "").await;
    let World { keeper, client, running, .. } = world;
    drop(keeper);
    let broken = tokio::time::timeout(HANG, exec.outputs.message()).await.expect("an end").unwrap_err();
    assert_eq!(code(&broken), "node_lost", "{broken:?}");
    assert!(broken.message().contains("node n1"), "{broken:?}");
    let refused = client.clone().act(act(&made.id, "late")).await.unwrap_err();
    assert_eq!(code(&refused), "node_lost", "{refused:?}");
    running.stop().await;
}

/// The beginning of a request, and nothing after it.
struct Stalled(Option<bytes::Bytes>);

impl http_body::Body for Stalled {
    type Data = bytes::Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, tonic::Status>>> {
        self.0.take().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(http_body::Frame::data(data)))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_message_stalls_behind_the_name_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.client_stall = Duration::from_millis(300);
    let running = yard.start().await;
    let keeper = serve(dir.path());
    let behaviour = Behaviour { hold: true, sandboxes_url: keeper.url.clone(), ..Behaviour::default() };
    let _executor = Executor::attach(&yard, behaviour);
    let made = client(&yard).await.create(request("one")).await.unwrap().into_inner();
    let message = act(&made.id, "x").encode_to_vec();
    let whole = [&[0][..], &u32::try_from(message.len() + 9_000).unwrap().to_be_bytes(), &message].concat();
    let call = tonic::codegen::http::Request::post("http://yard/rollyard.v1.Sandboxes/Act")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Stalled(Some(whole.into()))))
        .unwrap();
    let answer = tokio::time::timeout(HANG, channel(&yard.socket()).await.oneshot(call)).await;
    let answer = answer.expect("it ends").unwrap();
    let told = tonic::Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(code(&told), "client_too_slow", "{told:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_begin_with_the_files_and_a_repeated_call_makes_no_others() {
    let world = World::new(Behaviour::default()).await;
    let wanted = v1::CreateSandboxRequest {
        env: map(&[("A", "${x}")]),
        limit_memory: "1Gi".to_owned(),
        timeout_ms: Some(70_000),
        labels: map(&[("old", "1")]),
        ..request("one")
    };
    let made = world.client.clone().create(wanted).await.unwrap().into_inner();
    let fork = v1::ForkSandboxRequest {
        sandbox: made.id.clone(),
        count: 3,
        idempotency_key: "fork".to_owned(),
        labels: map(&[("new", "1")]),
    };
    let forked = world.client.clone().fork(fork.clone()).await.unwrap().into_inner();
    assert_eq!(forked.sandboxes.len(), 3);
    {
        let seen = world.executor.seen.lock().unwrap();
        let first = &seen.steps[&format!("{}-g0-s0.0.0", made.job)];
        for sandbox in &forked.sandboxes {
            assert_eq!((sandbox.state.as_str(), &sandbox.labels), ("running", &map(&[("new", "1")])));
            let attempt = format!("{}-g0-s0.0.0", sandbox.job);
            assert_eq!(seen.bases[&attempt].len(), 1, "one layer");
            let mut step = seen.steps[&attempt].clone();
            // Who it is, and nothing else.
            step.env.retain(|name, _| !name.starts_with("ROLLYARD_"));
            let mut expected = first.clone();
            expected.env.retain(|name, _| !name.starts_with("ROLLYARD_"));
            assert_eq!(step, expected);
        }
        assert!(seen.missing.is_empty(), "{:?}", seen.missing);
    }
    let again = world.client.clone().fork(fork.clone()).await.unwrap().into_inner();
    assert_eq!(again.checkpoint, forked.checkpoint);
    let names = |reply: &v1::ForkSandboxReply| {
        reply.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&again), names(&forked));
    assert!(again.sandboxes.iter().all(|sandbox| sandbox.adopted));
    assert_eq!(world.keeper.count("TakeCheckpoint"), 1);
    let other = v1::ForkSandboxRequest { count: 4, ..fork.clone() };
    assert_eq!(code(&world.client.clone().fork(other).await.unwrap_err()), "idempotency_request_mismatch");
    let many = v1::ForkSandboxRequest { count: 65, ..fork.clone() };
    assert_eq!(code(&world.client.clone().fork(many).await.unwrap_err()), "bad_request");
    world.keeper.kept.lock().unwrap().away.insert(made.id.clone());
    let gone = v1::ForkSandboxRequest { idempotency_key: "late".to_owned(), ..fork };
    assert_eq!(code(&world.client.clone().fork(gone).await.unwrap_err()), "sandbox_gone");
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_at_once_with_one_key_all_begin_with_the_same_files() {
    let world = World::new(Behaviour::default()).await;
    let made = world.create("one").await;
    world.keeper.kept.lock().unwrap().saves_together = 2;
    let fork = v1::ForkSandboxRequest {
        sandbox: made.id.clone(),
        count: 3,
        idempotency_key: "fork".to_owned(),
        ..v1::ForkSandboxRequest::default()
    };
    let mut clients = [world.client.clone(), world.client.clone()];
    let calls = clients.iter_mut().map(|client| client.fork(fork.clone()));
    let replies = futures::future::join_all(calls).await;
    let replies: Vec<_> = replies.into_iter().map(|reply| reply.unwrap().into_inner()).collect();
    assert_eq!(world.keeper.count("TakeCheckpoint"), 2, "both saved the files");
    assert_eq!(replies[0].checkpoint, replies[1].checkpoint);
    let jobs =
        |reply: &v1::ForkSandboxReply| reply.sandboxes.iter().map(|s| s.job.clone()).collect::<Vec<_>>();
    assert_eq!(jobs(&replies[0]), jobs(&replies[1]));
    {
        let seen = world.executor.seen.lock().unwrap();
        let bases: Vec<_> =
            jobs(&replies[0]).iter().map(|job| seen.bases[&format!("{job}-g0-s0.0.0")].clone()).collect();
        assert!(bases[0].len() == 1 && bases.iter().all(|base| *base == bases[0]), "{bases:?}");
    }
    world.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sandboxes_began_with_outlives_restarts_and_collections_and_not_them() {
    let world = World::new(Behaviour { sandboxes: 2, ..Behaviour::default() }).await;
    let made = world.create("one").await;
    let fork = v1::ForkSandboxRequest {
        sandbox: made.id.clone(),
        count: 2,
        idempotency_key: "fork".to_owned(),
        ..v1::ForkSandboxRequest::default()
    };
    let calling = tokio::spawn({
        let (mut client, fork) = (world.client.clone(), fork.clone());
        async move { client.fork(fork).await }
    });
    // The second one finds no room.
    while world.list(&[], false).await.len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let World { yard, running, executor, keeper, client, _dir } = world;
    running.stop().await;
    assert!(calling.await.unwrap().is_err());
    let running = yard.start().await;
    let world = World { yard, running, executor, keeper, client, _dir };
    let store = blobs(&world.yard);
    let collect = async || {
        age(&store).await;
        let collected = world.yard.client().await.collect_garbage(collect(false)).await.unwrap().into_inner();
        collected.unnamed.unwrap().blobs + collected.layers.unwrap().blobs
    };
    assert_eq!(world.kill(&[&made.id], &[]).await.killed, [made.id]);
    assert_eq!(collect().await, 0, "nobody but the forks names it");
    let forked = tokio::time::timeout(HANG, world.client.clone().fork(fork)).await.expect("in time");
    let forked = forked.unwrap().into_inner().sandboxes;
    assert_eq!(world.keeper.count("TakeCheckpoint"), 1);
    {
        let seen = world.executor.seen.lock().unwrap();
        let bases: Vec<_> = forked.iter().map(|f| &seen.bases[&format!("{}-g0-s0.0.0", f.job)]).collect();
        assert!(bases[0].len() == 1 && bases[0] == bases[1], "{bases:?}");
        assert_eq!(seen.missing, [""; 0]);
    }
    let names: Vec<&str> = forked.iter().map(|sandbox| sandbox.id.as_str()).collect();
    assert_eq!(world.kill(&names, &[]).await.killed.len(), 2);
    assert_eq!(collect().await, 1, "with them it goes");
    world.running.stop().await;
}
