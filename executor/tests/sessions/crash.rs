//! kill -9 of the executor with actions in flight: what was done is told, what was not is unknown, and
//! nothing is done twice.

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::driver::{Driven, Lab, assert_empty, connect, host_yard, session, shell};

crate::sessions![an_executor_killed_with_actions_in_flight_tells_what_it_knows];

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
        yard.send(rollout_wire::v1::command::Kind::Start(order)).await;
        yard.started().await;
        println!("ready");
        drop(client);
        std::future::pending::<()>().await;
    });
}

async fn an_executor_killed_with_actions_in_flight_tells_what_it_knows(lab: &mut Lab) {
    // The one of this test is not needed; it shows that executors do not mind each other.
    let own = lab.sandbox().await;
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("victim");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .env(VICTIM, &data_dir)
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
    let driven = Driven { client: connect(&data_dir).await, name, claim: String::new() };
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
    let mut next = host_yard(&data_dir).await;
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
    assert_eq!(crate::driver::code(&refused), "action_conflict");
    let said = driven.said("new", "ls | grep -c begun; ps -e | grep -c sleep || true").await;
    assert_eq!(said, "5\n0", "its files are there, and nothing runs unseen");
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
    assert_eq!(own.said("here", "echo here").await, "here");
    lab.finish(&own).await;
}
