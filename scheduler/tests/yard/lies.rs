//! Executors that report what cannot be: the attempt ends as unknown, and the job goes on.

use rollout_wire::v1;

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO_ROLLOUTS, Yard, finished, hello};

type Lie = fn(&mut v1::Outcome);

fn artifact(name: &str, size: u64, sha256: &str) -> v1::Artifact {
    let (media_type, sha256) = ("text/plain".to_owned(), sha256.to_owned());
    v1::Artifact { name: name.to_owned(), media_type, size, sha256 }
}

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[tokio::test]
async fn an_end_that_cannot_be_a_row_ends_the_attempt_as_unknown_and_the_group_all_the_same() {
    let lies: [(&str, Lie); 11] = [
        ("times", |o| o.times = None),
        ("taken_at_us", |o| o.times.as_mut().unwrap().taken_at_us = -5),
        ("run_ms", |o| o.times.as_mut().unwrap().run_ms = Some(u64::MAX)),
        ("memory_peak_bytes", |o| {
            o.usage = Some(v1::Usage { memory_peak_bytes: Some(u64::MAX), ..v1::Usage::default() });
        }),
        ("signal", |o| o.signal = Some(70_000)),
        ("stdout.sha256", |o| o.stdout.as_mut().unwrap().sha256 = Some("../../etc/shadow".to_owned())),
        ("artifacts.sha256", |o| o.artifacts.push(artifact("a", 1, "ABC"))),
        ("artifacts.name", |o| o.artifacts.push(artifact("\u{1b}[2J", 0, EMPTY))),
        ("artifacts", |o| o.artifacts = vec![artifact("a", 0, EMPTY); 100_000]),
        ("reward.value", |o| o.reward = Some(v1::Reward { value: f32::NAN, components: Vec::new() })),
        ("failure.code", |o| {
            let (code, message) = ("invented".to_owned(), "x".repeat(1 << 20));
            o.failure = Some(v1::Failure { code, domain: "node".to_owned(), message, hint: String::new() });
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    for (field, lie) in lies {
        let executor = Executor::attach(&yard, Behaviour { lie: Some(lie), ..Behaviour::default() });
        let submitted = yard.client().await.submit(hello(&yard, &field.replace(['.', '_'], "-"))).await;
        let job = submitted.unwrap().into_inner().job.unwrap();
        let ended = finished(&yard, &job.id).await;
        assert_eq!(ended.failures.len(), 1, "{field}");
        let failure = &ended.failures[0];
        assert_eq!((failure.code.as_str(), failure.rollouts), ("outcome_unknown", HELLO_ROLLOUTS), "{field}");
        assert!(failure.example.contains(field), "{field}: {}", failure.example);
        let summary = yard.summary(&job.id);
        assert_eq!((summary.groups, summary.trajectories), (2, HELLO_ROLLOUTS), "{field}");
        assert!(executor.seen.lock().unwrap().runs.values().all(|runs| *runs == 1), "{field}");
    }
    running.stop().await;
}

#[tokio::test]
async fn an_artifact_that_is_not_as_large_as_reported_is_named_without_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let lie: Lie = |o| o.artifacts.iter_mut().for_each(|artifact| artifact.size += 1);
    let _executor = Executor::attach(&yard, Behaviour { lie: Some(lie), ..Behaviour::default() });
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    finished(&yard, &job.id).await;
    assert_eq!(yard.summary(&job.id).trajectories, HELLO_ROLLOUTS);
    running.stop().await;
}
