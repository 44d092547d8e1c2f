//! Killed at any commit, restarted: every rollout ends once, every row is written once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollout_wire::v1;
use scheduler::store::{CommitHook, CommitPoint};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO_ROLLOUTS, Yard, finished, hello};

/// Commits after which a run without faults is surely done; the loop ends earlier when a run
/// needed fewer.
const COMMITS_MAX: u64 = 60;

/// Dies by a panic at its `nth` commit since this start.
pub fn die_at(point: CommitPoint, nth: u64) -> CommitHook {
    let commits = AtomicU64::new(0);
    CommitHook(Arc::new(move |at, _seq| {
        let dies = at == point && commits.fetch_add(1, Ordering::SeqCst) + 1 == nth;
        assert!(!dies, "killed by the test at commit {nth}, {point:?}");
        None
    }))
}

async fn one_kill(point: CommitPoint, nth: u64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    // The first life submits; the second one dies; the third one must finish.
    let first = yard.start().await;
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    first.stop().await;
    let _executor = Executor::attach(&yard, Behaviour::default());
    yard.hook = Some(die_at(point, nth));
    let second = yard.start().await;
    let died = tokio::select! {
        ended = second.handle.wait() => {
            assert_eq!(ended.unwrap_err().code(), "internal");
            true
        }
        _ = finished(&yard, &job.id) => false,
    };
    second.stop.cancel();
    yard.hook = None;
    let third = loop {
        // The second life may still be closing down.
        match yard.try_start().await {
            Ok(running) => break running,
            Err(error) => assert!(matches!(error.code(), "data_dir_locked" | "listen_failed"), "{error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    let ended = finished(&yard, &job.id).await;
    let counts = ended.counts.unwrap();
    assert_eq!((counts.rollouts_ended, counts.groups_sealed), (HELLO_ROLLOUTS, 2), "{point:?} {nth}");
    let summary = yard.summary(&job.id);
    assert_eq!((summary.groups, summary.trajectories), (2, HELLO_ROLLOUTS), "{point:?} {nth}");
    assert_eq!(summary.statuses.get("completed"), Some(&HELLO_ROLLOUTS), "{point:?} {nth}");
    let request = v1::ListRolloutsRequest { job: job.id, page_size: 100, page_token: String::new() };
    let rollouts = yard.client().await.list_rollouts(request).await.unwrap().into_inner().rollouts;
    assert_eq!(rollouts.len() as u64, HELLO_ROLLOUTS);
    third.stop().await;
    died
}

#[tokio::test]
async fn killed_between_any_commit_and_its_commands_every_rollout_ends_once() {
    let mut kills = 0;
    for nth in 1..COMMITS_MAX {
        if !one_kill(CommitPoint::Answer, nth).await {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 4, "only {kills} commits were tried");
}

#[tokio::test]
async fn killed_before_any_commit_every_rollout_ends_once() {
    let mut kills = 0;
    for nth in 1..COMMITS_MAX {
        if !one_kill(CommitPoint::Before, nth).await {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 4, "only {kills} commits were tried");
}

#[tokio::test]
async fn a_second_scheduler_of_the_same_directory_is_refused_and_told_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let config = scheduler::Config::new(yard.dir.join("data"), "other".parse().unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let refused = scheduler::Scheduler::start(config, Vec::new(), stop).await.unwrap_err();
    assert_eq!(refused.code(), "data_dir_locked");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    running.stop().await;
    yard.start().await.stop().await;
}
