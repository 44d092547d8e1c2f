//! Bench `density`: idle sandboxes with every wall and without gateway listeners, held at once by a whole
//! yard: scheduler and executor in processes of their own, each sandbox made by the call of a client. Some
//! of them, spread over all, then run a command each and have a file read; at last all are ended and what
//! is left is counted.
//!
//! `density [--sandboxes N] [--probe-percent P]`: how many to hold (default 10,000), and how many of a
//! hundred are probed (default 1).
//!
//! Measurements: `create`, `exec`, `read`, `destroy`. Figures: `held`; `kib_each`, what the machine
//! has less of for each, and what that is made of; `descriptors` of each process; `lost`, probes that
//! failed; `leaks`, what is left at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use executor::census;
use rollout_wire::v1;
use serde_json::json;
use tokio::task::JoinSet;

use crate::create::floor::build_true;
use crate::report::{Round, cpu_time, figure, measurement, option, tell};
use crate::yard::{Client, Yard, program, small};

const BENCH: &str = "density";
/// Creations asked for at once.
const WIDTH: usize = 8;
/// Named by one call that ends them.
const KILLED_AT_ONCE: usize = 500;
/// Between two looks whether the kernel's memory has settled.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);
/// Looks until two in a row differ by less than a thousandth, at most.
const SETTLE_TRIES_MAX: u32 = 60;
/// A hang guard.
const HEARTBEAT_WAIT: Duration = Duration::from_secs(60);
/// A hang guard, for all of them to end.
const END_WAIT: Duration = Duration::from_secs(1_800);

pub fn main(args: &[String]) -> Result<()> {
    let sandboxes = option(args, "--sandboxes", 10_000)?.max(1);
    let probed = (sandboxes * option(args, "--probe-percent", 1)? / 100).max(1);
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    build_true(&rootfs)?;
    // What is reserved for them is more cores than there are.
    let cores = (sandboxes / 500 + 2).to_string();
    let mut yard = Yard::start(&dir.path().join("home"), &["--cpu", &cores])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let held =
        runtime.block_on(bench(&yard, move |n| idle(&format!("idle-{n}"), &rootfs), sandboxes, probed));
    drop(runtime);
    yard.stop()?;
    held?;
    let left = yard.left()?;
    figure(BENCH, "leaks", &[("census", json!(left))], left.len() as f64);
    Ok(())
}

/// With a disk in memory that is hardly more than its directories: all of it is reserved.
fn idle(key: &str, rootfs: &Path) -> v1::CreateSandboxRequest {
    v1::CreateSandboxRequest { limit_disk: "1Mi".to_owned(), ..small(key, rootfs) }
}

/// What is reserved for one of them: its disk, and its request.
const RESERVED_BYTES: u64 = 2 << 20;

async fn bench(
    yard: &Yard,
    request: impl Fn(usize) -> v1::CreateSandboxRequest,
    sandboxes: usize,
    probed: usize,
) -> Result<()> {
    let client = Client::new(&yard.socket())?;
    let node = client.attached().await?;
    let ceiling = node.capacity.as_ref().map_or(0, |capacity| capacity.sandboxes);
    ensure!(
        u64::from(ceiling) >= sandboxes as u64,
        "this host has room for {ceiling}: see `rollyard doctor`"
    );
    let memory = node.capacity.as_ref().map_or(0, |capacity| capacity.memory_bytes);
    ensure!(
        memory / RESERVED_BYTES >= sandboxes as u64,
        "{memory} bytes of memory are offered, and {RESERVED_BYTES} are reserved for each"
    );
    // What is made once and kept is made before anything is counted.
    let first = client.create(request(sandboxes)).await?;
    end(&client, &[first.id]).await?;
    no_more(yard, &client).await?;
    let before = settled().await?;

    let (made, round) = all(sandboxes, |n| {
        let (client, request) = (client.clone(), request(n));
        async move { client.create(request).await }
    })
    .await?;
    measurement(BENCH, "create", "rollyard", &[round]);
    let after = settled().await?;
    let node = all_held(&client, sandboxes).await?;
    figure(BENCH, "held", &[], f64::from(node.held));
    let each = |key: &str| {
        let (before, after) = (before.get(key).copied(), after.get(key).copied());
        (after.unwrap_or_default() - before.unwrap_or_default()) / made.len() as f64
    };
    let parts = ["Slab", "PageTables", "KernelStack", "Percpu", "AnonPages", "Shmem"];
    let parts = json!(parts.map(|key| (key, each(key))).into_iter().collect::<BTreeMap<_, _>>());
    figure(BENCH, "kib_each", &[("n", json!(made.len())), ("of_which", parts)], -each("MemAvailable"));
    for (who, pids) in processes(yard)? {
        let count = |what: &str| -> usize {
            pids.iter()
                .map(|pid| std::fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count))
                .sum()
        };
        let fields =
            [("of", json!(who)), ("processes", json!(pids.len())), ("threads", json!(count("task")))];
        figure(BENCH, "descriptors", &fields, count("fd") as f64);
    }

    let mut lost = 0;
    for case in ["exec", "read"] {
        let (mut latencies, cpu, begun) = (Vec::with_capacity(probed), cpu_time(), Instant::now());
        for n in 0..probed {
            // Each another one, far from the last.
            let id = &made[n * made.len() / probed].id;
            let begin = Instant::now();
            let answered = match case {
                "exec" => client.act(program(id, "", "probe", &["/true"]), 0).await.map(drop),
                _ => read_true(&client, id).await,
            };
            match answered {
                Ok(()) => latencies.push(begin.elapsed()),
                Err(error) => {
                    tell(&format!("{case}: {error:#}"));
                    lost += 1;
                }
            }
        }
        let round = Round { latencies, wall: begun.elapsed(), cpu: cpu_time().saturating_sub(cpu) };
        if lost == 0 {
            measurement(BENCH, case, "rollyard", &[round]);
        }
    }
    figure(BENCH, "lost", &[("probed", json!(probed))], f64::from(lost));

    let (cpu, begun) = (cpu_time(), Instant::now());
    for some in made.chunks(KILLED_AT_ONCE) {
        end(&client, &some.iter().map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>()).await?;
    }
    no_more(yard, &client).await?;
    let wall = begun.elapsed();
    let share = wall / u32::try_from(made.len())?;
    // They end together: each is told as its share.
    let round = Round { latencies: vec![share; made.len()], wall, cpu: cpu_time().saturating_sub(cpu) };
    measurement(BENCH, "destroy", "rollyard", &[round]);
    Ok(())
}

async fn end(client: &Client, sandboxes: &[String]) -> Result<()> {
    let request = v1::KillSandboxesRequest {
        sandboxes: sandboxes.to_vec(),
        reason: "bench".to_owned(),
        ..v1::KillSandboxesRequest::default()
    };
    let reply = client.sandboxes.clone().kill(request).await?.into_inner();
    ensure!(reply.failed.is_empty(), "not ended: {:?}", reply.failed.first());
    ensure!(reply.killed.len() == sandboxes.len(), "only {} were there to end", reply.killed.len());
    Ok(())
}

/// Waits until the node says what it holds: with each heartbeat.
async fn all_held(client: &Client, sandboxes: usize) -> Result<v1::Node> {
    let begun = Instant::now();
    loop {
        let node = client.attached().await?;
        if node.held as usize == sandboxes && node.sandboxes as usize == sandboxes {
            return Ok(node);
        }
        ensure!(
            begun.elapsed() < HEARTBEAT_WAIT,
            "the node holds {}, the ledger {}",
            node.held,
            node.sandboxes
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until nothing of a sandbox is on the node, and nothing in the ledger.
async fn no_more(yard: &Yard, client: &Client) -> Result<()> {
    let begun = Instant::now();
    loop {
        let node = client.attached().await?;
        if node.held == 0 && node.sandboxes == 0 && census::take(&yard.sandboxes_dir())?.holds_no_sandbox() {
            return Ok(());
        }
        ensure!(begun.elapsed() < END_WAIT, "{} sandboxes do not end", node.held);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs `op` for 0..n, [`WIDTH`] at once, and takes the times.
async fn all<T, F>(n: usize, mut op: impl FnMut(usize) -> F) -> Result<(Vec<T>, Round)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (cpu, start) = (cpu_time(), Instant::now());
    let (mut running, mut done, mut latencies) =
        (JoinSet::new(), Vec::with_capacity(n), Vec::with_capacity(n));
    for index in 0..n + WIDTH {
        if index >= WIDTH.min(n) {
            let Some(ended) = running.join_next().await else { break };
            let (value, latency) = ended??;
            done.push(value);
            latencies.push(latency);
        }
        if index < n {
            let future = op(index);
            running.spawn(async move {
                let begin = Instant::now();
                let value = future.await?;
                Ok::<_, anyhow::Error>((value, begin.elapsed()))
            });
        }
    }
    Ok((done, Round { latencies, wall: start.elapsed(), cpu: cpu_time().saturating_sub(cpu) }))
}

/// Reads a file, through the root that a keeper lends.
async fn read_true(client: &Client, sandbox: &str) -> Result<()> {
    let request = v1::ReadFileRequest {
        sandbox: sandbox.to_owned(),
        path: "/true".to_owned(),
        ..v1::ReadFileRequest::default()
    };
    let mut chunks = client.sandboxes.clone().read_file(request).await?.into_inner();
    let first = chunks.message().await?.context("a first chunk")?;
    ensure!(first.info.is_some_and(|info| info.size > 0), "the file is not there");
    while chunks.message().await?.is_some() {}
    Ok(())
}

/// /proc/meminfo in KiB, once the kernel has let go of what it frees late.
async fn settled() -> Result<BTreeMap<String, f64>> {
    let read = || -> Result<BTreeMap<String, f64>> {
        let text = std::fs::read_to_string("/proc/meminfo")?;
        let pairs = text.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            Some((key.to_owned(), value.trim().strip_suffix(" kB")?.parse().ok()?))
        });
        Ok(pairs.collect())
    };
    let mut last = read()?;
    for _ in 0..SETTLE_TRIES_MAX {
        tokio::time::sleep(SETTLE_PAUSE).await;
        let now = read()?;
        let moved = |key: &str| (now[key] - last[key]).abs() / now[key];
        if moved("Slab") < 0.001 && moved("MemAvailable") < 0.001 {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

/// The scheduler, the executor, its broker and its keepers.
fn processes(yard: &Yard) -> Result<BTreeMap<String, Vec<u32>>> {
    let parts = [("scheduler", yard.scheduler_pid()), ("executor", yard.executor_pid())];
    let parts = parts.into_iter().filter_map(|(name, pid)| Some((name.to_owned(), pid?)));
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (name, pid) in parts.chain(yard.helpers()?) {
        found.entry(name).or_default().push(pid);
    }
    Ok(found)
}
