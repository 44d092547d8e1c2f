//! Bench `density`: idle sandboxes with every wall and without network, held at once. Some of them,
//! spread over all, then run a command each and have a file read; at last all are destroyed and a
//! census is taken.
//!
//! `density [--sandboxes N] [--probe-percent P]`: how many to hold (default 10,000), and how many of a
//! hundred are probed (default 1).
//!
//! Measurements: `create`, `exec`, `read`, `destroy`. Figures: `held`; `kib_each`, what the machine
//! has less of for each, and what that is made of; `descriptors` of each process; `lost`, probes that
//! failed; `leaks`, what the census found at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use executor::census;
use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::{Backend, Exit, Sandbox, SandboxSpec, Spawn};
use rollout::quantity::Limit;
use rollout::{Bytes, MilliCpu};
use serde_json::json;
use tokio::task::JoinSet;

use crate::create::floor::build_true;
use crate::report::{Round, cpu_time, figure, measurement};

const BENCH: &str = "density";
/// Creations and ends asked for at once.
const WIDTH: usize = 8;
/// Between two looks whether the kernel's memory has settled.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);
/// Looks until two in a row differ by less than a thousandth, at most.
const SETTLE_TRIES_MAX: u32 = 60;
/// How long the broker may take to end what is left: a hang guard.
const END_WAIT: Duration = Duration::from_secs(600);

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let sandboxes = option("--sandboxes", 10_000)?.max(1);
    let probed = (sandboxes * option("--probe-percent", 1)? / 100).max(1);
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    build_true(&rootfs)?;
    let data_dir = dir.path().join("yard");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(bench(&rootfs, &data_dir, sandboxes, probed))
}

async fn bench(rootfs: &Path, data_dir: &Path, sandboxes: usize, probed: usize) -> Result<()> {
    let backend = Arc::new(Container::start(&ContainerConfig { data_dir: data_dir.to_owned() })?);
    let ceiling = backend.ceilings().sandboxes;
    ensure!(
        u64::from(ceiling) >= sandboxes as u64,
        "this host has room for {ceiling}: see `rollyard doctor`"
    );
    // What is made once and kept is made before anything is counted.
    create(&backend, rootfs, sandboxes).await?.destroy().await?;
    let before = settled().await?;

    let (held, round) = all(sandboxes, |n| {
        let (backend, rootfs) = (Arc::clone(&backend), rootfs.to_owned());
        async move { create(&backend, &rootfs, n).await }
    })
    .await?;
    measurement(BENCH, "create", "rollyard", &[round]);
    let after = settled().await?;
    figure(BENCH, "held", &[], held.len() as f64);
    let each = |key: &str| {
        let (before, after) = (before.get(key).copied(), after.get(key).copied());
        (after.unwrap_or_default() - before.unwrap_or_default()) / held.len() as f64
    };
    let parts = ["Slab", "PageTables", "KernelStack", "Percpu", "AnonPages", "Shmem"];
    let parts = json!(parts.map(|key| (key, each(key))).into_iter().collect::<BTreeMap<_, _>>());
    figure(BENCH, "kib_each", &[("n", json!(held.len())), ("of_which", parts)], -each("MemAvailable"));
    for (who, pids) in processes()? {
        let fds: usize = pids
            .iter()
            .map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count))
            .sum();
        figure(BENCH, "descriptors", &[("of", json!(who)), ("processes", json!(pids.len()))], fds as f64);
    }

    let mut lost = 0;
    for case in ["exec", "read"] {
        let (mut latencies, cpu, begun) = (Vec::with_capacity(probed), cpu_time(), Instant::now());
        for n in 0..probed {
            // Each another one, far from the last.
            let sandbox = &*held[n * held.len() / probed];
            let begin = Instant::now();
            let answered = match case {
                "exec" => run_true(sandbox).await,
                _ => read_true(sandbox).await,
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

    let mut held: Vec<Option<Box<dyn Sandbox>>> = held.into_iter().map(Some).collect();
    let count = held.len();
    let (_, round) = all(count, |n| {
        let sandbox = held[n].take();
        async move {
            if let Some(sandbox) = sandbox {
                sandbox.destroy().await?;
            }
            Ok(())
        }
    })
    .await?;
    measurement(BENCH, "destroy", "rollyard", &[round]);
    let left = census::take(&data_dir.canonicalize()?)?;
    let leaks = left.cgroups.len() + left.processes.len() + left.loops.len() + left.files.len();
    figure(BENCH, "leaks", &[("census", json!(left.to_string()))], leaks as f64);
    drop(backend);
    wait_for_the_end(data_dir).await
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

async fn create(backend: &Container, rootfs: &Path, n: usize) -> Result<Box<dyn Sandbox>> {
    let spec = SandboxSpec {
        id: format!("idle-{n}"),
        image: format!("dir:{}", rootfs.display()),
        base: None,
        image_digest: None,
        layers: Vec::new(),
        limits: Limit { cpu: MilliCpu(1000), memory: Bytes(512 << 20), disk: Bytes(64 << 20), pids: 256 },
        user: "0".to_owned(),
        workdir: "/workspace".to_owned(),
    };
    Ok(backend.create(spec).await?)
}

async fn run_true(sandbox: &dyn Sandbox) -> Result<()> {
    let sink = || -> Result<_> { Ok(std::fs::OpenOptions::new().write(true).open("/dev/null")?.into()) };
    let process = sandbox
        .spawn(Spawn {
            argv: vec!["/true".to_owned()],
            env: BTreeMap::new(),
            cwd: "/".to_owned(),
            user: "0".to_owned(),
            stdout: sink()?,
            stderr: sink()?,
        })
        .await?;
    let exit = process.wait().await?;
    ensure!(exit == Exit::Code(0), "{exit:?}");
    Ok(())
}

/// Opens a file, through the root that a keeper lends.
async fn read_true(sandbox: &dyn Sandbox) -> Result<()> {
    ensure!(sandbox.open_file("/true").await?.is_some(), "the file is not there");
    Ok(())
}

#[expect(clippy::print_stderr, reason = "what a bench says beside its data")]
fn tell(what: &str) {
    eprintln!("{what}");
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

/// The executor, its broker and its keepers.
fn processes() -> Result<BTreeMap<String, Vec<u32>>> {
    let me = std::process::id();
    let mut found = BTreeMap::from([("executor".to_owned(), vec![me])]);
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        if rest.split(' ').nth(1) == Some(&me.to_string())
            && let Some((_, name)) = name.split_once("(rollyard-")
        {
            found.entry(name.to_owned()).or_default().push(pid);
        }
    }
    Ok(found)
}

/// The directory goes when nothing uses it any more.
async fn wait_for_the_end(data_dir: &Path) -> Result<()> {
    let lock = std::fs::File::open(data_dir.join("lock"))?;
    let released = tokio::task::spawn_blocking(move || lock.lock());
    tokio::time::timeout(END_WAIT, released).await.context("the broker or a keeper does not end")???;
    let left = census::take(&data_dir.canonicalize()?)?;
    ensure!(left.is_empty(), "left: {left}");
    Ok(())
}
