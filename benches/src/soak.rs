//! Bench `soak`: sandboxes of clients that work, are killed, run out of memory, are forked, paused and
//! resumed at once, idle out or are left alone, and small jobs beside them, while executor, scheduler and
//! broker are killed again and again. At the end every sandbox and every rollout has ended exactly once,
//! no action was done twice, no answer was wrong, the ledger is empty and nothing is left on the machine.
//! Only a broker takes sandboxes along: an executor that is killed and started again within their lease
//! loses none, and at most breaks off what it was doing.
//!
//! `soak [--sandboxes N] [--seed N] [--width N] [--executor-every N] [--scheduler-every N]
//! [--broker-every N] [--job-every N]`: sandboxes (default 10,000; forks come on top), the seed (default: a
//! new one, printed), sandboxes at a time (default 24), and after how many sandboxes each is killed with
//! SIGKILL (500, 1,000, 2,000) and a job is submitted (500).
//!
//! Figures: `leaks`, what is left on the machine and in the ledger; `wrong`, answers and ends that should
//! not be. Each is told on stderr, and any of them fails the run.

mod books;
mod faults;
mod life;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use rand::Rng;
use serde_json::json;

use crate::report::{figure, option, tell};
use crate::rollout::tree;
use crate::yard::{Client, Yard};

const BENCH: &str = "soak";
/// The label of every sandbox of a run, and the one that tells them apart.
const LABEL: &str = "soak";
const NUMBER: &str = "n";
/// The label of those that are left to their idle timeout.
const IDLE: &str = "idle";
/// Of what is wrong, so much is told.
const TOLD_MAX: usize = 50;

/// After how many sandboxes each happens.
#[derive(Debug, Clone, Copy)]
struct Every {
    executor: usize,
    scheduler: usize,
    broker: usize,
    job: usize,
}

/// What became of one sandbox, as its worker saw it.
#[derive(Debug, Clone)]
struct Seen {
    /// None: it was refused.
    id: Option<String>,
    /// Whether it may have been lost with its broker or its lease.
    may_be_lost: bool,
    /// Its worker ended it.
    is_killed: bool,
}

/// Times without something. Odd meanwhile; grows with each change.
#[derive(Debug, Default)]
struct Absence(AtomicU64);

impl Absence {
    fn begins(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn ends(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn mark(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether there was such a time since, or at, this mark.
    fn was_since(&self, mark: u64) -> bool {
        mark % 2 == 1 || self.mark() != mark
    }
}

/// A time of a run, to ask what happened since.
#[derive(Debug, Clone, Copy)]
struct Mark {
    lost: u64,
    executor: u64,
}

/// What all workers share.
#[derive(Debug)]
struct Run {
    client: Client,
    image: PathBuf,
    seed: u64,
    /// Sandboxes begun.
    begun: AtomicUsize,
    /// When sandboxes may be lost: their broker was killed, or no executor came within their lease.
    lost: Absence,
    /// When the executor is away, and what it was doing breaks off.
    executor: Absence,
    /// By their label [`NUMBER`].
    seen: Mutex<BTreeMap<String, Seen>>,
    wrong: Mutex<Vec<String>>,
    /// Why sandboxes ended or calls were refused, counted.
    ends: Mutex<BTreeMap<String, usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    fn count(&self, what: &str) {
        *lock(&self.ends).entry(what.to_owned()).or_default() += 1;
    }

    fn mark(&self) -> Mark {
        Mark { lost: self.lost.mark(), executor: self.executor.mark() }
    }

    /// Whether a sandbox that was there may be no more, by what was done to the yard.
    fn may_be_lost_since(&self, mark: Mark) -> bool {
        self.lost.was_since(mark.lost)
    }

    /// Whether anything may have been lost in this run.
    fn lost_any(&self) -> bool {
        self.lost.mark() > 0
    }

    /// Whether what was being done may have broken off.
    fn may_break_off_since(&self, mark: Mark) -> bool {
        self.may_be_lost_since(mark) || self.executor.was_since(mark.executor)
    }

    fn see(&self, number: &str, seen: Seen) {
        if let Some(before) = lock(&self.seen).insert(number.to_owned(), seen) {
            self.wrong(format!("{number} was there before: {before:?}"));
        }
    }
}

pub fn main(args: &[String]) -> Result<()> {
    let sandboxes = option(args, "--sandboxes", 10_000)?.max(1);
    let width = option(args, "--width", 24)?.max(1);
    let seed = option(args, "--seed", rand::rng().random_range(1..u32::MAX as usize))? as u64;
    let every = Every {
        executor: option(args, "--executor-every", 500)?.max(1),
        scheduler: option(args, "--scheduler-every", 1_000)?.max(1),
        broker: option(args, "--broker-every", 2_000)?.max(1),
        job: option(args, "--job-every", 500)?.max(1),
    };
    tell(&format!("seed {seed}"));
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let image = dir.path().join("rootfs");
    tree::build(&image)?;
    let mut yard = Yard::start(&dir.path().join("home"), &["--cpu", "64"])?;
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (run, kills) = runtime.block_on(work(&mut yard, image, seed, sandboxes, width, every))?;
    drop(runtime);
    if let Err(error) = yard.stop() {
        run.wrong(format!("stopping the yard: {error:#}"));
    }
    let left = yard.left()?;
    let wrong = lock(&run.wrong).clone();
    for what in left.iter().map(|what| format!("left: {what}")).chain(wrong.iter().cloned()).take(TOLD_MAX) {
        tell(&what);
    }
    let ends = lock(&run.ends).clone();
    let seen = lock(&run.seen).len();
    let fields = [
        ("n", json!(seen)),
        ("seed", json!(seed)),
        ("kills", json!(kills)),
        ("ends", json!(ends)),
        ("seconds", json!(begun.elapsed().as_secs())),
    ];
    figure(BENCH, "leaks", &fields, left.len() as f64);
    figure(BENCH, "wrong", &[("n", json!(seen)), ("seed", json!(seed))], wrong.len() as f64);
    if !left.is_empty() || !wrong.is_empty() {
        tell(&yard.logs());
    }
    ensure!(left.is_empty() && wrong.is_empty(), "{} left, {} wrong, seed {seed}", left.len(), wrong.len());
    Ok(())
}

async fn work(
    yard: &mut Yard,
    image: PathBuf,
    seed: u64,
    sandboxes: usize,
    width: usize,
    every: Every,
) -> Result<(Arc<Run>, BTreeMap<&'static str, usize>)> {
    let client = Client::new(&yard.socket())?;
    client.attached().await?;
    let run = Arc::new(Run {
        client,
        image,
        seed,
        begun: AtomicUsize::new(0),
        lost: Absence::default(),
        executor: Absence::default(),
        seen: Mutex::default(),
        wrong: Mutex::default(),
        ends: Mutex::default(),
    });
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..width {
        let run = Arc::clone(&run);
        workers.spawn(async move {
            loop {
                let n = run.begun.fetch_add(1, Ordering::SeqCst);
                if n >= sandboxes {
                    return;
                }
                life::live(&run, n).await;
            }
        });
    }
    let mut faults = faults::Faults::new(Arc::clone(&run), every);
    while !workers.is_empty() {
        tokio::select! {
            Some(ended) = workers.join_next() => ended?,
            () = tokio::time::sleep(faults::LOOK_EVERY) => faults.look(yard, sandboxes).await?,
        }
    }
    faults.settle(yard).await?;
    books::close(&run, yard, faults.jobs()).await?;
    Ok((run, faults.kills()))
}
