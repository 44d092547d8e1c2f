//! How steps end, and what is reported of it.

use rollout_wire::v1::{self, command, output::Source};

use crate::fake::{Fault, Point};
use crate::yard::{Yard, attempt, order, output};

fn code(outcome: &v1::Outcome) -> &str {
    outcome.failure.as_ref().map_or("", |failure| &failure.code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_succeeds_is_reported_with_what_it_wrote() {
    let mut yard = Yard::start().await;
    let mut order = order("run", "out hello; err oops");
    order.step.as_mut().unwrap().env.insert("HOME".to_owned(), "/elsewhere".to_owned());
    yard.send(command::Kind::Start(order)).await;
    let started = yard.started().await;
    let ended = yard.ended().await;
    let outcome = ended.outcome.unwrap();
    assert_eq!((outcome.failure.as_ref(), outcome.exit_code, outcome.signal), (None, Some(0), None));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "hello");
    assert_eq!(yard.blob(outcome.stderr.as_ref().unwrap()).await, "oops");
    assert_eq!((outcome.image_digest.as_str(), ended.kept), ("host:fake", false));
    let times = outcome.times.unwrap();
    assert_eq!(times.started_at_us, Some(started.started_at_us));
    assert!(times.taken_at_us <= started.started_at_us && started.started_at_us <= times.ended_at_us);
    assert!(times.boot_ms.is_some() && times.run_ms.is_some());
    {
        let state = yard.backend.state();
        let spawned = &state.spawned[0];
        assert_eq!(spawned.argv, ["/bin/sh", "-e", "-c", "out hello; err oops"]);
        assert_eq!((spawned.cwd.as_str(), spawned.user.as_str()), ("/workspace", "rollout"));
        let env: Vec<_> = spawned.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert_eq!(env, ["HOME=/elsewhere", "LANG=C.UTF-8", path, "USER=rollout"]);
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_way_to_end_has_its_code() {
    let mut yard = Yard::start().await;
    for (index, (kind, script, timeout_ms, code_expected, exit_code, signal, timed_out)) in [
        ("agent", "exit 3", 600_000, "agent_exit", Some(3), None, false),
        ("agent", "exit 124", 600_000, "agent_exit", Some(124), None, false),
        ("agent", "signal 11", 600_000, "agent_exit", None, Some(11), false),
        ("agent", "oom; signal 9", 600_000, "oom_guest", None, Some(9), false),
        ("agent", "oom; exit 0", 600_000, "", Some(0), None, false),
        ("agent", "full; exit 1", 600_000, "disk_quota", Some(1), None, false),
        ("agent", "inodes; exit 1", 600_000, "disk_quota", Some(1), None, false),
        ("agent", "forks; exit 2", 600_000, "pids_limit", Some(2), None, false),
        ("agent", "sleep", 40, "agent_timeout", None, Some(15), true),
        ("agent", "stubborn; sleep", 40, "agent_timeout", None, Some(9), true),
        ("agent", "term 0; sleep", 40, "agent_timeout", Some(0), None, true),
        ("agent", "die", 600_000, "node_lost", None, None, false),
        ("agent", "oom; die", 600_000, "oom_guest", None, None, false),
        ("run", "exit 3", 600_000, "step_exit", Some(3), None, false),
        ("run", "oom; signal 9", 600_000, "step_exit", None, Some(9), false),
        ("run", "sleep", 40, "step_timeout", None, Some(15), true),
        ("run", "die", 600_000, "node_lost", None, None, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut order = order(kind, script);
        order.attempt = Some(attempt(u32::try_from(index).unwrap(), 0));
        order.step.as_mut().unwrap().timeout_ms = timeout_ms;
        let outcome = yard.run(order).await;
        let seen = (code(&outcome), outcome.exit_code, outcome.signal, outcome.timed_out);
        assert_eq!(seen, (code_expected, exit_code, signal, timed_out), "{kind}: {script}");
        assert_eq!(outcome.oom, script.contains("oom"), "{kind}: {script}");
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_there_is_the_tasks_fault() {
    let mut yard = Yard::start().await;
    let mut order = order("agent", "");
    let argv = v1::Argv { items: vec!["no-such-program".to_owned()] };
    order.step.as_mut().unwrap().command = Some(v1::step::Command::Argv(argv));
    let outcome = yard.run(order).await;
    assert_eq!((code(&outcome), outcome.exit_code), ("not_found", None));
    assert!(outcome.failure.unwrap().message.contains("no-such-program"));
    assert_eq!(outcome.times.unwrap().started_at_us, None);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_in_the_background_neither_delays_the_end_nor_outlives_it() {
    let mut yard = Yard::start().await;
    let outcome = yard.run(order("agent", "background; out done")).await;
    assert_eq!((code(&outcome), outcome.exit_code), ("", Some(0)));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "done");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_cannot_be_ended_make_the_sandbox_lost() {
    let mut yard = Yard::start().await;
    yard.backend.inject(Point::KillAll, Fault::Fail);
    let outcome = yard.run(order("agent", "out x")).await;
    assert_eq!(code(&outcome), "node_lost");
    assert!(outcome.failure.unwrap().message.contains("could not be ended"));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_past_the_cap_is_dropped_counted_and_flagged() {
    let mut yard = Yard::start_with(|config| config.capture_bytes_max = rollout::Bytes(1000)).await;
    let outcome = yard.run(order("agent", "spam 3000000; out tail")).await;
    assert_eq!(code(&outcome), "");
    let stdout = outcome.stdout.unwrap();
    assert_eq!((stdout.stored_bytes, stdout.written_bytes, stdout.truncated), (1000, 3_000_004, true));
    assert_eq!(yard.blob(&stdout).await, vec![b'y'; 1000]);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_is_no_text_is_stored_byte_for_byte() {
    let mut yard = Yard::start().await;
    let mut order = order("agent", "hex");
    order.attempt = Some(attempt(1, 0));
    yard.set_acknowledges_ends(false);
    let outcome = yard.run(order).await;
    let expected: Vec<u8> = (0..=255).collect();
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, expected);
    let log = yard.log(1, attempt(1, 0), "stdout", 250).await;
    assert_eq!((log.data.as_slice(), log.gone), (&expected[250..], false));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_are_whole_or_a_problem() {
    let mut yard = Yard::start().await;
    let path = |path: &str| Source::Path(path.to_owned());
    let command = |text: &str| Source::Command(text.to_owned());
    for (index, (script, source, max, code_expected, words, content)) in [
        ("write /workspace/p data", path("p"), 4, "", "", Some("data")),
        ("write /tmp/p data", path("/tmp/p"), 4, "", "", Some("data")),
        ("true", path("p"), 4, "output_missing", "nothing at /workspace/p", None),
        ("node /workspace/p FIFO", path("p"), 4, "output_missing", "FIFO", None),
        ("node /workspace/p symlink", path("p"), 4, "output_missing", "symlink", None),
        ("write /workspace/p large", path("p"), 4, "output_too_large", "5 bytes", None),
        ("huge /workspace/p", path("p"), 4, "output_too_large", "1073741824 bytes", None),
        ("true", command("out data"), 4, "", "", Some("data")),
        ("true", command("out large"), 4, "output_too_large", "5 bytes", None),
        ("true", command("out data; exit 1"), 4, "output_missing", "exited with code 1", None),
        ("true", command("signal 9"), 4, "output_missing", "signal 9", None),
        ("true", command("die"), 4, "node_lost", "init is gone", None),
        ("exit 1; write /workspace/p data", path("p"), 4, "agent_exit", "code 1", Some("data")),
        ("exit 1", path("p"), 4, "agent_exit", "code 1", None),
    ]
    .into_iter()
    .enumerate()
    {
        let mut order = order("agent", script);
        order.attempt = Some(attempt(u32::try_from(index).unwrap(), 0));
        order.step.as_mut().unwrap().outputs = vec![output("patch", source, max)];
        let outcome = yard.run(order).await;
        assert_eq!(code(&outcome), code_expected, "{script}: {:?}", outcome.failure);
        let message = outcome.failure.map(|failure| failure.message).unwrap_or_default();
        assert!(message.contains(words), "{script}: {message}");
        let stored = outcome.artifacts.first();
        assert_eq!(stored.is_some(), content.is_some(), "{script}");
        if let (Some(artifact), Some(content)) = (stored, content) {
            assert_eq!(yard.blobs.get(&artifact.sha256, 100).await.unwrap(), content);
        }
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_cut_at_its_deadline_still_hands_in_what_it_made() {
    let mut yard = Yard::start().await;
    let mut order = order("agent", "write /workspace/p data; out partial; sleep");
    let step = order.step.as_mut().unwrap();
    step.timeout_ms = 40;
    step.outputs = vec![output("patch", Source::Path("p".to_owned()), 100)];
    let outcome = yard.run(order).await;
    assert_eq!((code(&outcome), outcome.artifacts.len()), ("agent_timeout", 1));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "partial");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_store_that_fails_is_a_failure_of_storage() {
    let mut yard = Yard::start().await;
    assert_eq!(code(&yard.run(order("agent", "out x")).await), "");
    let store = yard.config.data_dir.parent().unwrap().join("blobs");
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::write(&store, "not a directory").unwrap();
    let mut again = order("agent", "out y");
    again.attempt = Some(attempt(1, 0));
    let outcome = yard.run(again).await;
    assert_eq!(code(&outcome), "storage_failed", "{:?}", outcome.failure);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_can_be_read_by_offset() {
    let mut yard = Yard::start().await;
    yard.send(command::Kind::Start(order("agent", "out hello; sleep"))).await;
    yard.started().await;
    let mut request = 0;
    loop {
        request += 1;
        let log = yard.log(request, attempt(0, 0), "stdout", 0).await;
        assert!(!log.gone);
        if !log.data.is_empty() {
            assert_eq!(log.data, b"hello");
            break;
        }
        assert!(request < 10_000, "hang guard");
    }
    assert_eq!(yard.log(100_001, attempt(0, 0), "stdout", 3).await.data, b"lo");
    assert_eq!(yard.log(100_002, attempt(0, 0), "stdout", u64::MAX).await.data, b"");
    assert!(yard.log(100_003, attempt(9, 0), "stdout", 0).await.gone, "never held");
    assert!(yard.log(100_004, attempt(0, 0), "../stdout", 0).await.gone, "no such stream");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_paths_are_one_artifact_that_goes_back_where_it_was() {
    let mut yard = Yard::start().await;
    let paths = |paths: &[&str]| {
        Source::Paths(v1::Paths { items: paths.iter().map(|&path| path.to_owned()).collect() })
    };
    let mut first = order("agent", "write /app/out/a one; write /app/out/b/c two; write /app/log three");
    let declared = ["/app/out/b", "/none", "/app/out", "/app/log"];
    first.step.as_mut().unwrap().outputs = vec![output("made", paths(&declared), 10_000)];
    let outcome = yard.run(first).await;
    assert_eq!(outcome.failure, None);
    let artifact = outcome.artifacts[0].clone();
    yard.backend.until_empty().await;

    let input = |path: &str| v1::Input {
        path: path.to_owned(),
        sha256: artifact.sha256.clone(),
        size: artifact.size,
        tree: true,
    };
    let cases = [
        ("/", "/app/out/b/c", "two"),
        ("/in", "/in/app/log", "three"),
        ("in", "/workspace/in/app/out/a", "one"),
    ];
    for (sample, (below, at, content)) in (1..).zip(cases) {
        let mut second = order("agent", "true");
        second.attempt = Some(attempt(sample, 0));
        second.inputs = vec![input(below)];
        second.step.as_mut().unwrap().outputs = vec![output("got", Source::Path(at.to_owned()), 100)];
        let outcome = yard.run(second).await;
        assert_eq!(outcome.failure, None, "{at}");
        assert_eq!(yard.blobs.get(&outcome.artifacts[0].sha256, 100).await.unwrap(), content, "{at}");
        yard.backend.until_empty().await;
    }

    let refused = [
        ("write /app/out/a one", &["/none"][..], 10_000, "output_missing", "nothing at /none"),
        ("node /app/out/l symlink", &["/app/out"], 10_000, "output_missing", "is a symlink"),
        ("write /app/out/a 0123456789", &["/app/out"], 9, "output_too_large", ""),
        ("write /app/out/a 0123456789", &["/app/out"], 100, "output_too_large", ""),
        ("true", &[], 100, "", ""),
    ];
    for (sample, (script, declared, max, code_expected, words)) in (10..).zip(refused) {
        let mut order = order("agent", script);
        order.attempt = Some(attempt(sample, 0));
        order.step.as_mut().unwrap().outputs = vec![output("made", paths(declared), max)];
        let outcome = yard.run(order).await;
        assert_eq!((code(&outcome), outcome.artifacts.len()), (code_expected, 0), "{script}");
        let message = outcome.failure.map(|failure| failure.message).unwrap_or_default();
        assert!(message.contains(words), "{script}: {message}");
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}
