//! kill -9 of the executor with actions in flight: what was done is told, what was not is unknown, and
//! nothing is done twice.

use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rollout_wire::v1;

use crate::driver::{Driven, HostYard, Lab, assert_empty, code, connect, host_yard, session, shell};
use crate::idle::{pause, resume, stands_still};

crate::sessions![
    an_executor_killed_with_actions_in_flight_tells_what_it_knows,
    what_was_paused_stands_still_under_the_next_executor,
];

const VICTIM: &str = "ROLLYARD_TEST_SESSIONS_VICTIM";

/// The process that is killed: an executor with one sandbox, and a scheduler for it.
pub fn be_the_victim_if_asked() {
    let Some(data_dir) = std::env::var_os(VICTIM) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let data_dir = std::path::PathBuf::from(data_dir);
        let yard = host_yard(&data_dir).await;
        let client = connect(&data_dir).await;
        let mut order = session(1);
        order.step.as_mut().unwrap().session.as_mut().unwrap().unclaimed = true;
        let mut yard = yard;
        yard.send(v1::command::Kind::Start(order)).await;
        yard.started().await;
        println!("ready");
        drop(client);
        std::future::pending::<()>().await;
    });
}

/// It runs, with its one sandbox.
async fn victim(data_dir: &Path) -> (Child, Driven) {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .env(VICTIM, data_dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = victim.stdout.take().unwrap();
    let ready = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufReader::new(out).read_line(&mut line).unwrap();
        line
    });
    assert_eq!(ready.await.unwrap(), "ready\n");
    let name = "j0000000000007-g0-s1@node-1".to_owned();
    (victim, Driven { client: connect(data_dir).await, name, claim: String::new() })
}

/// The next executor ends in order, and its broker with it.
async fn end(mut next: HostYard, data_dir: &Path) {
    next.end().await;
    drop(next);
    let path = data_dir.canonicalize().unwrap();
    tokio::task::spawn_blocking(move || {
        assert_empty(&path);
        std::thread::sleep(Duration::from_millis(1));
        // Its broker removes the parents at its own end, which frees the lock.
        std::fs::File::open(path.join("lock")).unwrap().lock().unwrap();
    })
    .await
    .unwrap();
}

async fn an_executor_killed_with_actions_in_flight_tells_what_it_knows(lab: &mut Lab) {
    // The one of this test is not needed; it shows that executors do not mind each other.
    let own = lab.sandbox().await;
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("victim");
    let (mut victim, driven) = victim(&data_dir).await;
    let done = driven.done("done", shell("echo done; exit 4")).await;
    let mut waiting = Vec::new();
    for n in 0..5 {
        let driven = driven.clone();
        waiting.push(tokio::spawn(async move {
            driven.act(&format!("flight.{n}"), shell(&format!("touch begun{n}; sleep 1000"))).await
        }));
    }
    driven.said("begun", "while [ $(ls | grep -c begun) -lt 5 ]; do sleep 0.01; done").await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    for call in waiting {
        assert!(call.await.unwrap().is_err(), "nobody answers any more");
    }
    // The next life of the executor goes on with the session: what was recorded is told, what was on its
    // way is unknown, and something new can be done.
    let next = host_yard(&data_dir).await;
    let driven = Driven { client: connect(&data_dir).await, ..driven };
    let again = driven.act("done", shell("echo done; exit 4")).await.unwrap();
    assert!(again.repeated, "{again:?}");
    assert_eq!((again.state.as_str(), again.result), ("done", Some(done)));
    for n in 0..5 {
        let payload = shell(&format!("touch begun{n}; sleep 1000"));
        let reply = driven.act(&format!("flight.{n}"), payload).await.unwrap();
        assert_eq!((reply.state.as_str(), reply.result), ("unknown", None), "never begun again");
    }
    let refused = driven.act("flight.0", shell("true")).await.unwrap_err();
    assert_eq!(code(&refused), "action_conflict");
    let said = driven.said("new", "ls | grep -c begun; ps -e | grep -c sleep || true").await;
    assert_eq!(said, "5\n0", "its files are there, and nothing runs unseen");
    end(next, &data_dir).await;
    assert_eq!(own.said("here", "echo here").await, "here");
    lab.finish(&own).await;
}

/// At the version that was told, until somebody resumes or calls it. Its processes have ended all the same.
async fn what_was_paused_stands_still_under_the_next_executor(_: &mut Lab) {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("victim");
    let (mut victim, driven) = victim(&data_dir).await;
    driven.said("up", "sleep 1000 > /dev/null 2>&1 & echo kept > f; echo up").await;
    let paused = pause(&driven, None).await.unwrap();
    let state = async |driven: &Driven| {
        let request = v1::GetSandboxRequest { sandbox: driven.name.clone() };
        driven.client.clone().get(request).await.unwrap().into_inner().state
    };
    victim.kill().unwrap();
    victim.wait().unwrap();
    let next = host_yard(&data_dir).await;
    let driven = Driven { client: connect(&data_dir).await, ..driven };
    assert_eq!(state(&driven).await, "paused");
    assert!(stands_still(&data_dir));
    assert_eq!(pause(&driven, None).await.unwrap(), paused, "there already");
    let refused = resume(&driven, Some(paused.version + 1)).await.unwrap_err();
    assert_eq!(code(&refused), "version_conflict");
    let resumed = resume(&driven, Some(paused.version)).await.unwrap();
    assert_eq!((resumed.rung.as_str(), resumed.version), ("running", paused.version + 1));
    assert!(!stands_still(&data_dir));
    assert_eq!(driven.said("here", "cat f; ps -e | grep -c sleep || true").await, "kept\n0");
    // A call wakes it as ever.
    pause(&driven, None).await.unwrap();
    assert_eq!(driven.said("again", "cat f").await, "kept");
    assert_eq!(state(&driven).await, "running");
    end(next, &data_dir).await;
}
