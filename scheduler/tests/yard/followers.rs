//! Followers by the thousand, and clients that never read: bounded, and everyone else is served.

use std::time::{Duration, Instant};

use rollout_wire::v1;
use tonic::Code;
use tonic::Streaming;

use crate::executor::{Behaviour, Executor};
use crate::uploads::resident_bytes;
use crate::yard::{HANG, Yard, code, finished, hello};

/// The most followers at once.
const STREAMS_MAX: usize = 2_048;

async fn held_job(yard: &Yard) -> (Executor, v1::Job) {
    let executor = Executor::attach(yard, Behaviour { hold: true, sandboxes: 8, ..Behaviour::default() });
    let submitted = yard.client().await.submit(hello(yard, "held")).await.unwrap().into_inner();
    let placed = async {
        while executor.seen.lock().unwrap().runs.len() < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, placed).await.unwrap();
    (executor, submitted.job.unwrap())
}

#[tokio::test]
async fn followers_are_bounded_by_name_and_a_thousand_idle_ones_slow_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let (_executor, job) = held_job(&yard).await;
    let before = resident_bytes();
    let mut followers: Vec<Streaming<v1::Job>> = Vec::new();
    let mut refusals = 0;
    for _ in 0..12 {
        let mut client = yard.client().await;
        for _ in 0..200 {
            match client.watch(v1::GetRequest { job: job.id.clone() }).await {
                Ok(stream) => followers.push(stream.into_inner()),
                Err(status) => {
                    let both = (status.code(), code(&status));
                    assert_eq!(both, (Code::ResourceExhausted, "too_many_streams"), "{status:?}");
                    refusals += 1;
                }
            }
        }
    }
    assert_eq!((followers.len(), refusals), (STREAMS_MAX, 12 * 200 - STREAMS_MAX));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 512 << 20, "{grown} bytes more");

    // Another job runs to its end meanwhile, and its questions are answered.
    let _other = Executor::attach(&yard, Behaviour { node: "n2", ..Behaviour::default() });
    let mut client = yard.client().await;
    let id = client.submit(hello(&yard, "other")).await.unwrap().into_inner().job.unwrap().id;
    let ended = async {
        loop {
            let asked_at = Instant::now();
            let job = client.get(v1::GetRequest { job: id.clone() }).await.unwrap().into_inner();
            assert!(asked_at.elapsed() < Duration::from_secs(5), "{:?}", asked_at.elapsed());
            if job.finished_at_us.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, ended).await.unwrap();
    drop(followers);
    let again = async {
        while client.watch(v1::GetRequest { job: job.id.clone() }).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, again).await.expect("places come back");
    running.stop().await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_told_so_and_gives_its_place_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.reader_stall = Duration::from_millis(500);
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour { stdout_bytes: 16 << 20, ..Behaviour::default() });
    let id = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap().id;
    finished(&yard, &id).await;
    let logs = v1::LogsRequest {
        rollout: format!("{id}-g0-s0"),
        step: "work".to_owned(),
        follow: true,
        ..v1::LogsRequest::default()
    };
    let before = resident_bytes();
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut client = yard.narrow_client().await;
        idle.push(client.logs(logs.clone()).await.unwrap().into_inner());
    }
    // Twenty times as long as each may stall: on a busy machine the last of them stall late.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes more");
    for mut stream in idle {
        let ended = async {
            loop {
                match stream.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("a log that ends as if it were whole"),
                    Err(status) => return status,
                }
            }
        };
        let status = tokio::time::timeout(HANG, ended).await.unwrap();
        assert_eq!(code(&status), "client_too_slow", "{status:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_reader_that_pauses_for_longer_than_a_sender_may_gets_the_whole_log() {
    const LOG_BYTES: usize = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.client_stall = Duration::from_millis(300);
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour { stdout_bytes: LOG_BYTES, ..Behaviour::default() });
    let id = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap().id;
    finished(&yard, &id).await;
    let logs = v1::LogsRequest {
        rollout: format!("{id}-g0-s0"),
        step: "work".to_owned(),
        stream: "stdout".to_owned(),
        ..v1::LogsRequest::default()
    };
    let mut stream = yard.client().await.logs(logs).await.unwrap().into_inner();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut bytes = 0;
    while let Some(chunk) = stream.message().await.expect("the log goes on") {
        bytes += chunk.data.len();
    }
    assert_eq!(bytes, "hello from work\n".len() + LOG_BYTES);
    running.stop().await;
}
