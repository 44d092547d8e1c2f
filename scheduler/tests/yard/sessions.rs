//! Session steps of jobs: claimed through the scheduler, finished with a reward.

use std::time::Duration;

use rollout_wire::v1;
use rollout_wire::v1::sandboxes_client::SandboxesClient;

use crate::executor::{Behaviour, Executor};
use crate::keeper::{Serving, serve};
use crate::yard::{HANG, Running, Yard, channel, code, finished};

const DRIVEN: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: driven
tasks: {from: {inline: [{n: "6"}]}, id: "task-${row.n}"}
group: {size: 2, on_incomplete: deliver}
defaults: {image: host}
steps:
  - {name: setup, run: make}
  - {name: talk, needs: [setup], session: {max_actions: 9}}
"#;

fn claim(job: &str, driver: &str, wait_ms: u64) -> v1::ClaimSessionRequest {
    v1::ClaimSessionRequest {
        job: job.to_owned(),
        wait_ms,
        driver: driver.to_owned(),
        ttl_ms: 5_000,
        ..v1::ClaimSessionRequest::default()
    }
}

fn driven(yard: &Yard) -> v1::SubmitRequest {
    v1::SubmitRequest {
        document: DRIVEN.to_owned(),
        source_name: "driven.yaml".to_owned(),
        table_root: yard.tables().display().to_string(),
        idempotency_key: "k".to_owned(),
        ..v1::SubmitRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_has_one_driver_whose_reward_is_that_of_the_rollout() {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.reconcile_every = Duration::from_millis(100);
    let running = yard.start().await;
    let keeper = serve(dir.path());
    let job = yard.client().await.submit(driven(&yard)).await.unwrap().into_inner().job.unwrap().id;
    let client = SandboxesClient::new(channel(&yard.socket()).await);
    let ask = async |driver: &str, wait_ms: u64| {
        let asked = client.clone().claim(claim(&job, driver, wait_ms)).await;
        asked.unwrap().into_inner()
    };

    // There is none yet, and one that waits gets the first.
    let none = ask("early", 0).await;
    assert_eq!((none.session, none.drained), (None, false));
    let waiting = tokio::spawn({
        let (mut client, request) = (client.clone(), claim(&job, "ada", 60_000));
        async move { client.claim(request).await.unwrap().into_inner() }
    });
    let behaviour =
        Behaviour { hold_step: Some("talk"), sandboxes_url: keeper.url.clone(), ..Behaviour::default() };
    let executor = Executor::attach(&yard, behaviour);
    keeper.kept.lock().unwrap().executor = Some(executor.seen.clone());
    let first = tokio::time::timeout(HANG, waiting).await.expect("in time").unwrap().session.unwrap();
    assert_eq!((first.step.as_str(), first.group.as_str()), ("talk", format!("{job}-g0").as_str()));
    assert_eq!((first.task_id.as_str(), first.row.as_str()), ("task-6", r#"{"n":"6"}"#));
    assert_eq!(first.sandbox, format!("{}.1@n1", first.rollout));
    assert_eq!((first.claim.as_str(), first.actions, first.takes_reward), ("token-of-ada", 3, true));

    // The same driver gets back what it holds, another one the other, and a third none.
    assert_eq!(ask("ada", 0).await.session.unwrap().rollout, first.rollout);
    let second = ask("bob", 30_000).await.session.unwrap();
    assert_ne!(second.rollout, first.rollout);
    let none = ask("eve", 100).await;
    assert_eq!((none.session, none.drained), (None, false));
    let named = |rollout: &str, driver| v1::ClaimSessionRequest {
        rollout: rollout.to_owned(),
        ..claim(&job, driver, 0)
    };
    let held = client.clone().claim(named(&first.rollout, "eve")).await.unwrap().into_inner();
    assert_eq!(held.session, None);
    // A driver that is gone frees its session, and nobody has to tell that here.
    keeper.kept.lock().unwrap().claims.remove(&first.rollout);
    let freed = ask("eve", 30_000).await.session.unwrap();
    assert_eq!(freed.rollout, first.rollout);

    let got = client.clone().get(v1::GetSandboxRequest { sandbox: freed.sandbox.clone() }).await;
    let got = got.unwrap().into_inner();
    assert_eq!((got.id, got.state.as_str(), got.job), (freed.sandbox, "running", job.clone()));
    for (rollout, reward) in [(&first.rollout, Some(1.0)), (&second.rollout, None)] {
        executor.finish.send((format!("{rollout}.1.0"), reward)).unwrap();
    }
    let done = finished(&yard, &job).await;
    let rewards = done.rewards.unwrap();
    assert_eq!((rewards.count, rewards.sum), (1, 1.0));
    let drained = ask("ada", 60_000).await;
    assert_eq!((drained.session, drained.drained), (None, true));
    assert_eq!(yard.summary(&job).trajectories, 2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_nothing_are_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let submitted = yard.client().await.submit(crate::yard::hello(&yard, "k")).await.unwrap().into_inner();
    let job = submitted.job.unwrap().id;
    let client = SandboxesClient::new(channel(&yard.socket()).await);
    let drained = client.clone().claim(claim(&job, "ada", 60_000)).await.unwrap().into_inner();
    assert_eq!((drained.session, drained.drained), (None, true), "a job without sessions");
    type Break = fn(&mut v1::ClaimSessionRequest);
    let cases: [(&str, Break); 6] = [
        ("not_found", |r| r.job = "j0000000000007".to_owned()),
        ("not_found", |r| r.rollout = "x".to_owned()),
        ("bad_request", |r| r.driver = String::new()),
        ("bad_request", |r| r.wait_ms = 60_001),
        ("bad_request", |r| r.ttl_ms = 999),
        ("bad_request", |r| r.ttl_ms = 600_001),
    ];
    for (expected, break_it) in cases {
        let mut bad = claim(&job, "ada", 0);
        break_it(&mut bad);
        assert_eq!(code(&client.clone().claim(bad).await.unwrap_err()), expected);
    }
    running.stop().await;
}

/// A job whose two sessions run on a node each.
struct Two {
    yard: Yard,
    running: Running,
    job: String,
    nodes: Vec<(Executor, Serving)>,
    dirs: [tempfile::TempDir; 2],
}

impl Two {
    async fn new() -> Self {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let yard = Yard::new(dirs[0].path());
        let running = yard.start().await;
        let job = yard.client().await.submit(driven(&yard)).await.unwrap().into_inner().job.unwrap().id;
        let nodes = ["n1", "n2"].iter().zip(&dirs).map(|(&node, dir)| {
            let keeper = serve(dir.path());
            let sandboxes_url = keeper.url.clone();
            let hold_step = Some("talk");
            let behaviour =
                Behaviour { node, hold_step, sandboxes: 1, sandboxes_url, ..Behaviour::default() };
            let executor = Executor::attach(&yard, behaviour);
            keeper.kept.lock().unwrap().executor = Some(executor.seen.clone());
            (executor, keeper)
        });
        let two = Self { nodes: nodes.collect(), yard, running, job, dirs };
        let both = async {
            while two.nodes.iter().any(|(executor, _)| executor.seen.lock().unwrap().running.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG, both).await.expect("both run");
        two
    }

    async fn ask(&self, driver: &str, rollout: &str, wait_ms: u64) -> Option<v1::Session> {
        let mut client = SandboxesClient::new(channel(&self.yard.socket()).await);
        let request =
            v1::ClaimSessionRequest { rollout: rollout.to_owned(), ..claim(&self.job, driver, wait_ms) };
        client.claim(request).await.unwrap().into_inner().session
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_gets_back_what_it_holds_also_from_a_scheduler_that_was_never_told() {
    let mut two = Two::new().await;
    let free =
        |two: &Two| two.nodes.iter().for_each(|(_, keeper)| keeper.kept.lock().unwrap().claims.clear());
    for sample in ["s0", "s1"] {
        let name = format!("{}-g0-{sample}", two.job);
        assert_eq!(two.ask("ada", &name, 30_000).await.unwrap().rollout, name);
        assert_eq!(two.ask("ada", "", 0).await.unwrap().rollout, name, "nobody else asked meanwhile");
        two.running.stop().await;
        two.running = two.yard.start().await;
        assert_eq!(two.ask("ada", "", 30_000).await.unwrap().rollout, name);
        free(&two);
    }
    assert_eq!(two.dirs.len(), two.nodes.len());
    two.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_is_waited_for_once() {
    let two = Two::new().await;
    two.nodes[0].1.kept.lock().unwrap().hangs = true;
    let began_at = std::time::Instant::now();
    let first = two.ask("ada", "", 100).await.expect("the other node has one");
    assert!(first.sandbox.ends_with("@n2"), "{first:?}");
    for driver in ["bob", "eve"] {
        assert_eq!(two.ask(driver, "", 100).await, None);
    }
    assert!(began_at.elapsed() < Duration::from_secs(4), "{:?}", began_at.elapsed());
    assert_eq!(two.nodes[0].1.count("Claim"), 1);
    two.running.stop().await;
}
