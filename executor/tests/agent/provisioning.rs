//! Creation that fails, hangs or is killed, at every await: nothing stays.

use executor::sandbox::CreateError;
use rollout_wire::v1::{self, attempt_refused::Class, command, output::Source};

use crate::fake::{CreateFault, Fault, Point};
use crate::yard::{Yard, attempt, grader, order, output};

/// A grader with a file, an input, an output and a reward outside of its directory: it passes
/// every point there is.
async fn everything(yard: &Yard, sample: u32) -> v1::StartAttempt {
    let blob = yard.blobs.put(bytes::Bytes::from_static(b"data")).await.unwrap();
    let mut order = grader("write /r/reward.txt 1");
    order.attempt = Some(attempt(sample, 0));
    order.inputs = vec![v1::Input {
        path: "/workspace/in".to_owned(),
        sha256: blob.sha256.clone(),
        size: blob.size,
        tree: false,
    }];
    let step = order.step.as_mut().unwrap();
    let text = v1::file::Content::Text("x".to_owned());
    let stored = v1::file::Content::BlobSha256(blob.sha256);
    step.files = [("/etc/a", text), ("/etc/b", stored)]
        .map(|(path, content)| v1::File { path: path.to_owned(), content: Some(content), mode: 0o644 })
        .to_vec();
    step.outputs = vec![output("log", Source::Command("out log".to_owned()), 100)];
    let paths = vec!["/r/reward.txt".to_owned()];
    step.grader.as_mut().unwrap().source =
        Some(v1::grader::Source::File(v1::RewardFile { paths, key: None }));
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_inputs_are_placed_before_the_work() {
    let mut yard = Yard::start().await;
    let order = everything(&yard, 0).await;
    let outcome = yard.run(order).await;
    assert_eq!((outcome.failure, outcome.reward.unwrap().value), (None, 1.0));
    assert_eq!(outcome.artifacts[0].name, "log");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_at_any_await_leaves_nothing() {
    let mut yard = Yard::start().await;
    for (sample, (point, code)) in [
        (Point::Create, "start_failed"),
        (Point::WriteFile, "start_failed"),
        (Point::ResetDir, "start_failed"),
        (Point::OpenFile, "reward_bad"),
        (Point::Spawn, "start_failed"),
        (Point::KillAll, "grader_lost"),
        (Point::Destroy, ""),
    ]
    .into_iter()
    .enumerate()
    {
        yard.backend.inject(point, Fault::Fail);
        let order = everything(&yard, u32::try_from(sample).unwrap()).await;
        let outcome = yard.run(order).await;
        assert_eq!(outcome.failure.unwrap_or_default().code, code, "{point:?}");
        yard.backend.release();
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_await_leaves_nothing_and_says_who_asked() {
    let mut yard = Yard::start().await;
    for (sample, point) in [Point::Create, Point::WriteFile, Point::ResetDir, Point::OpenFile, Point::Spawn]
        .into_iter()
        .enumerate()
    {
        let sample = u32::try_from(sample).unwrap();
        let before = yard.backend.state().hanging;
        yard.backend.inject(point, Fault::Hang);
        let order = everything(&yard, sample).await;
        yard.send(command::Kind::Start(order)).await;
        yard.backend.until("a call that hangs", |state| state.hanging > before).await;
        yard.send(kill(sample, "job_timeout")).await;
        let outcome = yard.ended().await.outcome.unwrap();
        let failure = outcome.failure.unwrap();
        assert_eq!(
            (failure.code.as_str(), failure.domain.as_str()),
            ("job_timeout", "scheduler"),
            "{point:?}"
        );
        assert!(failure.message.contains("no longer wanted"), "{}", failure.message);
        assert_eq!(outcome.times.unwrap().started_at_us, None, "{point:?}");
        yard.backend.release();
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

fn kill(sample: u32, code: &str) -> command::Kind {
    let (code, reason) = (code.to_owned(), "no longer wanted".to_owned());
    command::Kind::Kill(v1::KillAttempt { attempt: Some(attempt(sample, 0)), generation: 1, code, reason })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_running_or_collecting_work_ends_it_with_its_code() {
    let mut yard = Yard::start().await;
    yard.send(command::Kind::Start(order("agent", "out partial; stubborn; sleep"))).await;
    yard.started().await;
    yard.send(kill(0, "cancelled")).await;
    let outcome = yard.ended().await.outcome.unwrap();
    assert_eq!((outcome.failure.unwrap().code.as_str(), outcome.signal), ("cancelled", Some(9)));
    assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await.len() % 7, 0, "whole or not there yet");

    let mut collecting = order("agent", "true");
    collecting.attempt = Some(attempt(1, 0));
    let source = Source::Command("out x; sleep".to_owned());
    collecting.step.as_mut().unwrap().outputs = vec![output("log", source, 100)];
    yard.send(command::Kind::Start(collecting)).await;
    yard.backend.until("the output's command", |state| state.spawned.len() == 3).await;
    yard.send(kill(1, "no_such_code")).await;
    let outcome = yard.ended().await.outcome.unwrap();
    let failure = outcome.failure.unwrap();
    assert_eq!((failure.code.as_str(), outcome.artifacts.len()), ("cancelled", 0));
    assert!(failure.message.contains("`no_such_code` is not a failure code"), "{}", failure.message);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_timeout_covers_everything_before_the_command() {
    let mut yard = Yard::start().await;
    for (sample, point) in [Point::Create, Point::WriteFile, Point::ResetDir, Point::OpenFile, Point::Spawn]
        .into_iter()
        .enumerate()
    {
        yard.backend.inject(point, Fault::Hang);
        let mut order = everything(&yard, u32::try_from(sample).unwrap()).await;
        order.step.as_mut().unwrap().start_timeout_ms = 50;
        let outcome = yard.run(order).await;
        let failure = outcome.failure.unwrap();
        assert_eq!(failure.code, "start_timeout", "{point:?}");
        assert!(failure.message.contains("start timeout of 50ms"), "{}", failure.message);
        // A sandbox that comes too late is destroyed when it comes.
        yard.backend.release();
        yard.backend.until_empty().await;
    }
    let created = yard.backend.state().created.len();
    assert_eq!(created, 5);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_reason_not_to_create_is_a_failure_or_a_refusal() {
    let mut yard = Yard::start().await;
    let cases: [(CreateFault, &str, &str, &str); 3] = [
        (
            || CreateError::BadRootfs { image: "dir:/x".into(), problem: "no shell".into() },
            "not_found",
            "task",
            "bad_rootfs: image `dir:/x`",
        ),
        (
            || CreateError::UnknownUser { user: "bob".into(), image: "host".into() },
            "not_found",
            "task",
            "unknown_user: user `bob`",
        ),
        (
            || CreateError::Failed { action: "mount".into(), source: std::io::Error::from_raw_os_error(1) },
            "start_failed",
            "sandbox",
            "mount: Operation not permitted",
        ),
    ];
    for (sample, (error, code, domain, words)) in (0..).zip(cases) {
        yard.backend.state().create_error = Some(error);
        let mut order = order("run", "true");
        order.attempt = Some(attempt(sample, 0));
        let failure = yard.run(order).await.failure.unwrap();
        assert_eq!((failure.code.as_str(), failure.domain.as_str()), (code, domain));
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    let cases: [(CreateFault, Class, &str); 4] = [
        (
            || CreateError::ImageMissing { image: "dir:/x".into(), problem: "no such file".into() },
            Class::NeverFits,
            "image_missing: image `dir:/x` is not on this node: no such file",
        ),
        (
            || CreateError::Ended { reason: "the broker is gone".into() },
            Class::Unhealthy,
            "the sandbox backend ended: the broker is gone",
        ),
        (
            || CreateError::Busy { ceiling: "loop devices", used: 8, limit: 8 },
            Class::Busy,
            "loop devices is at its limit: 8 of 8",
        ),
        (
            || CreateError::NotEnforceable { guarantee: "limit.disk", problem: "no quota".into() },
            Class::NeverFits,
            "not_enforceable: this host cannot enforce limit.disk",
        ),
    ];
    for (sample, (error, class, words)) in (10..).zip(cases) {
        yard.backend.state().create_error = Some(error);
        let mut order = order("run", "true");
        order.attempt = Some(attempt(sample, 0));
        yard.send(command::Kind::Start(order)).await;
        let refused = yard.refused().await;
        assert_eq!(refused.class(), class);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_is_not_stored_or_not_as_announced_is_a_failure_of_storage() {
    let mut yard = Yard::start().await;
    let blob = yard.blobs.put(bytes::Bytes::from_static(b"data")).await.unwrap();
    for (sample, (sha256, size)) in (0..).zip([("0".repeat(64), 4), (blob.sha256, 5), ("junk".to_owned(), 4)])
    {
        let mut order = order("run", "true");
        order.attempt = Some(attempt(sample, 0));
        order.inputs = vec![v1::Input { path: "in".to_owned(), sha256: sha256.clone(), size, tree: false }];
        let failure = yard.run(order).await.failure.unwrap();
        assert_eq!(failure.code, "storage_failed", "{}", failure.message);
        assert!(failure.message.contains(&sha256), "{}", failure.message);
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_has_the_last_word_on_its_room() {
    let mut yard = Yard::start_with(|config| config.capacity.sandboxes = Some(1)).await;
    yard.send(command::Kind::Start(order("run", "sleep"))).await;
    yard.started().await;
    let mut second = order("run", "true");
    second.attempt = Some(attempt(1, 0));
    yard.send(command::Kind::Start(second.clone())).await;
    let refused = yard.refused().await;
    assert_eq!((refused.class(), refused.message.as_str()), (Class::Busy, "sandboxes: 1 of 1 in use"));

    second.step.as_mut().unwrap().kind = "dance".to_owned();
    yard.send(command::Kind::Start(second)).await;
    let refused = yard.refused().await;
    assert_eq!(refused.class(), Class::NeverFits);
    assert!(refused.message.contains("step.kind"), "{}", refused.message);
    yard.stop().await;
}

fn checked(sample: u32, check: &str, retries: u32) -> v1::StartAttempt {
    let mut order = order("run", "exit 0");
    order.attempt = Some(attempt(sample, 0));
    order.step.as_mut().unwrap().health_check = Some(v1::HealthCheck {
        command: check.to_owned(),
        interval_ms: 1,
        timeout_ms: 60_000,
        start_period_ms: 0,
        start_interval_ms: 1,
        retries,
    });
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_starts_once_its_sandbox_is_healthy() {
    let mut yard = Yard::start().await;
    let outcome = yard.run(checked(0, "exit 0", 3)).await;
    assert_eq!((outcome.failure, outcome.exit_code), (None, Some(0)));
    assert_eq!(yard.backend.state().spawned.len(), 2);

    let outcome = yard.run(checked(1, "out no; exit 3", 3)).await;
    let failure = outcome.failure.unwrap();
    assert_eq!((failure.code.as_str(), failure.domain.as_str()), ("start_failed", "sandbox"));
    assert!(
        failure.message.contains("the health check failed 3 times, at last: it exited with code 3: no"),
        "{}",
        failure.message
    );
    // The step itself was never spawned.
    assert_eq!((yard.backend.state().spawned.len(), outcome.exit_code), (5, None));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_counts_in_the_start_timeout() {
    let mut yard = Yard::start().await;
    let mut order = checked(0, "exit 1", u32::MAX);
    order.step.as_mut().unwrap().start_timeout_ms = 200;
    let failure = yard.run(order).await.failure.unwrap();
    assert_eq!(failure.code, "start_timeout", "{}", failure.message);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_not_here_is_refused_by_name_and_nothing_is_made() {
    let mut yard = Yard::start().await;
    let mut order = order("agent", "out hi");
    order.step.as_mut().unwrap().backend = "fncall".to_owned();
    yard.send(command::Kind::Start(order)).await;
    let refused = yard.refused().await;
    assert_eq!(refused.class(), Class::NeverFits);
    assert_eq!(refused.message, "not_enforceable: backend fncall is not offered here");
    assert!(yard.backend.state().created.is_empty());
    yard.stop().await;
}
