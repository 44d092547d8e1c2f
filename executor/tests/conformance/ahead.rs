//! What is made ahead: only of what was asked for, bounded, each used once.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor::sandbox::fncall::{FnCall, PARKED_MAX};
use executor::sandbox::{Backend, Exit, Sandbox, SandboxSpec};
use rollout::Bytes;
use rollout::backend::FNCALL_DISK;
use rollout::quantity::{Limit, Resources};

use crate::processes::{said, shell};
use crate::rule::SOON;
use crate::subject::{Started, fncall, left_at_the_end, spec};

pub type Test = for<'a> fn(&'a Pool) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

pub const TESTS: &[(&str, Test)] = &[
    ("a_call_is_handed_what_was_made_before", |pool| Box::pin(a_call_is_handed_what_was_made_before(pool))),
    ("a_handout_has_the_limits_that_were_asked_for", |pool| {
        Box::pin(a_handout_has_the_limits_that_were_asked_for(pool))
    }),
    ("nothing_is_ahead_of_the_first_call", |pool| Box::pin(nothing_is_ahead_of_the_first_call(pool))),
    ("what_waits_is_bounded", |pool| Box::pin(what_waits_is_bounded(pool))),
    ("nothing_waits_behind_the_end", |pool| Box::pin(nothing_waits_behind_the_end(pool))),
    ("what_died_while_it_waited_is_not_handed_out", |pool| {
        Box::pin(what_died_while_it_waited_is_not_handed_out(pool))
    }),
];

pub struct Pool {
    backend: Arc<FnCall>,
    started: Started,
}

/// Runs a test; then nothing may be left.
pub fn run(test: Test) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let (backend, started) = fncall(dir.path());
        test(&Pool { backend, started }).await;
    });
    drop(runtime);
    gone(dir.path());
}

fn gone(dir: &Path) {
    let deadline = Instant::now() + SOON * 2;
    while let Some(left) = left_at_the_end(dir) {
        assert!(Instant::now() < deadline, "left after the backend: {left}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn limits() -> Limit {
    Limit { disk: FNCALL_DISK, memory: Bytes(64 << 20), ..Resources::default().limit }
}

impl Pool {
    async fn create(&self, id: &str) -> Box<dyn Sandbox> {
        self.backend.create(spec(id.to_owned(), limits())).await.expect("created")
    }

    async fn until(&self, what: &str, holds: impl Fn(&FnCall) -> bool) {
        let deadline = Instant::now() + SOON * 2;
        while !holds(&self.backend) {
            assert!(Instant::now() < deadline, "never {what}: {:?}", self.backend.counts());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn a_call_is_handed_what_was_made_before(pool: &Pool) {
    let cold = pool.create("one").await;
    assert_eq!((pool.backend.counts().handouts, pool.backend.counts().creations), (0, 1));
    pool.until("full", |backend| backend.counts().parked == 4).await;
    let waited = pool.backend.parked();
    let began = Instant::now();
    let warm = pool.create("two").await;
    eprintln!("a handout took {} us", began.elapsed().as_micros());
    assert_eq!((pool.backend.counts().handouts, pool.backend.counts().creations), (1, 1));
    said(&*warm, "echo mine > f; id -u").await;
    warm.destroy().await.unwrap();
    cold.destroy().await.unwrap();
    // Each is used once: those that come next are others, and have nothing of it.
    pool.until("full again", |backend| backend.counts().parked == 4).await;
    let later = pool.backend.parked();
    assert_eq!(later.iter().filter(|id| waited.contains(id)).count(), 3, "{waited:?}, then {later:?}");
    for id in ["three", "four", "five", "six"] {
        let next = pool.create(id).await;
        assert_eq!(said(&*next, "ls -A /workspace").await, "");
        next.destroy().await.unwrap();
    }
    assert_eq!(pool.backend.counts().handouts, 5);
}

async fn a_handout_has_the_limits_that_were_asked_for(pool: &Pool) {
    let asked = SandboxSpec { limits: Limit { pids: 8, ..limits() }, ..spec("few".to_owned(), limits()) };
    pool.backend.warm(&asked).await.unwrap();
    pool.until("full", |backend| backend.counts().parked == 4).await;
    let few = pool.backend.create(asked).await.unwrap();
    let many = pool.create("many").await;
    assert_eq!(pool.backend.counts().handouts, 2, "{:?}", pool.backend.counts());
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait; echo all";
    assert_eq!(shell(&*few, script).await.stdout, "");
    assert_eq!(shell(&*many, script).await.stdout, "all\n");
    // 64 MiB and the disk, where a default has 2 GiB.
    let bomb = shell(&*many, "tail /dev/zero").await;
    assert!(matches!(bomb.exit, Exit::Signal(9) | Exit::Code(137)), "{bomb:?}");
    assert!(
        many.stats().await.memory_peak.unwrap() <= Bytes((64 << 20) + FNCALL_DISK.0),
        "{:?}",
        many.stats().await
    );
    for sandbox in [few, many] {
        sandbox.destroy().await.unwrap();
    }
}

async fn nothing_is_ahead_of_the_first_call(pool: &Pool) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(pool.backend.counts(), executor::sandbox::fncall::Counts::default());
    assert_eq!((pool.started.left)(), None);
}

async fn what_waits_is_bounded(pool: &Pool) {
    for n in 0..7 {
        let id = format!("s{n}");
        let asked = SandboxSpec { workdir: format!("/work{n}"), ..spec(id, limits()) };
        pool.backend.create(asked).await.unwrap().destroy().await.unwrap();
    }
    pool.until("full", |backend| backend.counts().parked == PARKED_MAX).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(pool.backend.counts().parked, PARKED_MAX);
    // The shapes asked for last are the ones that are there.
    let warm = SandboxSpec { workdir: "/work6".to_owned(), ..spec("again".to_owned(), limits()) };
    pool.backend.create(warm).await.unwrap().destroy().await.unwrap();
    assert_eq!(pool.backend.counts().handouts, 1);
    assert_eq!(pool.backend.ahead_max() as usize, PARKED_MAX);
}

async fn nothing_waits_behind_the_end(pool: &Pool) {
    pool.backend.warm(&spec("warm".to_owned(), limits())).await.unwrap();
    pool.backend.wind_up().await;
    assert_eq!(pool.backend.parked(), Vec::<String>::new());
    assert_eq!((pool.started.left)(), None, "wound up, and something is left");
}

async fn what_died_while_it_waited_is_not_handed_out(pool: &Pool) {
    pool.backend.warm(&spec("warm".to_owned(), limits())).await.unwrap();
    pool.until("full", |backend| backend.counts().parked == 4).await;
    (pool.started.crash)();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sandbox = pool.create("one").await;
    assert_eq!(said(&*sandbox, "echo ok").await, "ok");
    sandbox.destroy().await.unwrap();
    assert_eq!(pool.backend.counts().handouts, 0);
}
