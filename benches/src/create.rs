//! Bench `create`: make a sandbox with every wall, run one static binary in it, tear it down.
//! Case `cold` (nothing made ahead) and case `pooled` (what is made ahead is as full at the end of a
//! round as at its start, and is made within it), each over a writable layer in memory (`upper`
//! tmpfs) and on a disk in a file (loop), beside the kernel's floor, `bwrap --unshare-all` and `runc
//! run`, in turn within one run.
//!
//! `create [--rounds N] [--ops N] [--case CASE] [--upper UPPER]`: rounds (default 5), operations a
//! round (default 200; a tenth for the peers that start processes of their own), and which of ours
//! to run (default all).

mod cgroups;
pub mod floor;
mod peers;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use executor::sandbox::container::{Container, ContainerConfig, Levels};
use executor::sandbox::{Backend, Exit, SandboxSpec, Spawn};
use rollout::quantity::Limit;
use rollout::{Bytes, MilliCpu};

use serde_json::{Value, json};

use crate::report::{Round, comparison_at, cpu_time, measurement, measurement_at, round, skipped};

const BENCH: &str = "create";
/// A hang guard.
const FULL_WAIT: Duration = Duration::from_secs(120);
const WARM_UP_OPS: usize = 20;

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let (rounds, ops) = (option("--rounds", 5)?.max(3), option("--ops", 200)?.max(10));
    let wanted = |name: &str, value: &str| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|at| args.get(at + 1)).is_none_or(|given| given == value)
    };
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    floor::build_true(&rootfs)?;

    let _netns = floor::NetnsGuard::new()?;
    let floor = floor::Floor::new(&rootfs, &dir.path().join("floor"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let cold = Container::start_cold(&ContainerConfig { data_dir: dir.path().join("cold") })?;
    let pooled = Container::start(&ContainerConfig { data_dir: dir.path().join("pooled") })?;
    let runc = peers::Runc::new(dir.path(), &rootfs)?;
    let bwrap = peers::Bwrap::new(&rootfs);
    for (peer, is_there) in [("runc", runc.is_some()), ("bwrap", bwrap.is_some())] {
        if !is_there {
            skipped(BENCH, "cold", peer, "not installed");
        }
    }

    // Formatting a disk takes longer than all else, as the start of a peer does.
    let few = (ops / 10).max(10);
    let mut ours: Vec<Subject> = Vec::new();
    for (upper, disk, ops) in [("tmpfs", 64 << 20, ops), ("loop", 300 << 20, few)] {
        ours.push(Subject {
            case: "cold",
            upper,
            disk,
            ops,
            container: &cold,
            rounds: vec![],
            parts: Parts::default(),
            levels: vec![],
        });
        ours.push(Subject {
            case: "pooled",
            upper,
            disk,
            ops,
            container: &pooled,
            rounds: vec![],
            parts: Parts::default(),
            levels: vec![],
        });
    }
    ours.retain(|subject| wanted("--case", subject.case) && wanted("--upper", subject.upper));
    let mut to: [(&str, Vec<Round>); 3] = [("floor", vec![]), ("bwrap", vec![]), ("runc", vec![])];
    for subject in &ours {
        round(WARM_UP_OPS.min(subject.ops), |n| {
            runtime.block_on(once(subject.container, &rootfs, subject.disk, n)).map(|_| ())
        })?;
    }
    round(WARM_UP_OPS, |n| floor.run(n))?;
    for r in 0..rounds {
        let base = (r + 1) * 1_000_000;
        for subject in &mut ours {
            subject.round(&runtime, &rootfs, base)?;
        }
        to[0].1.push(round(ops, |n| floor.run(base + n))?);
        if let Some(bwrap) = &bwrap {
            to[1].1.push(round(few, |_| bwrap.run())?);
        }
        if let Some(runc) = &runc {
            to[2].1.push(round(few, |n| runc.run(base + n))?);
        }
    }
    for (subject, rounds) in to.iter().filter(|(_, rounds)| !rounds.is_empty()) {
        measurement(BENCH, "cold", subject, rounds);
    }
    for subject in &ours {
        let upper = [("upper", json!(subject.upper))];
        let mut fields = upper.to_vec();
        let operations = subject.rounds.iter().map(|round| round.latencies.len()).sum::<usize>().max(1);
        let Parts { create, command, destroy } = subject.parts;
        for (name, time) in [("create_us", create), ("command_us", command), ("destroy_us", destroy)] {
            fields.push((name, json!(time.as_secs_f64() * 1e6 / operations as f64)));
        }
        if subject.case == "pooled" {
            fields.push(("levels", json!(subject.levels)));
        }
        measurement_at(BENCH, subject.case, "rollyard", &fields, &subject.rounds);
        for (peer, rounds) in to.iter().filter(|(_, rounds)| !rounds.is_empty()) {
            comparison_at(BENCH, subject.case, &upper, ("rollyard", &subject.rounds), (peer, rounds));
        }
    }
    drop((cold, pooled));
    drop(entered);
    Ok(())
}

/// One way of ours to create, and how it did.
struct Subject<'a> {
    case: &'static str,
    upper: &'static str,
    disk: u64,
    ops: usize,
    container: &'a Container,
    rounds: Vec<Round>,
    /// Of all its operations.
    parts: Parts,
    /// What was ready before each round, after its last operation, and at its end.
    levels: Vec<Value>,
}

impl Subject<'_> {
    fn round(&mut self, runtime: &tokio::runtime::Runtime, rootfs: &Path, base: usize) -> Result<()> {
        let (disk, container) = (self.disk, self.container);
        let parts = &mut self.parts;
        let mut operation = |n: usize| -> Result<()> {
            *parts += runtime.block_on(once(container, rootfs, disk, base + n))?;
            Ok(())
        };
        if self.case == "cold" {
            self.rounds.push(round(self.ops, operation)?);
            return Ok(());
        }
        let start = runtime.block_on(full(container))?;
        let (cpu, begun) = (cpu_time(), Instant::now());
        let mut done = round(self.ops, &mut operation)?;
        let low = runtime.block_on(container.levels())?;
        // What it took is made again within the time that counts.
        let end = runtime.block_on(full(container))?;
        done.wall = begun.elapsed();
        done.cpu = cpu_time().saturating_sub(cpu);
        self.rounds.push(done);
        let counts = |l: Levels| json!({"blanks": l.blanks, "networks": l.networks, "groups": l.groups, "disks": l.disks});
        self.levels.push(json!({"start": counts(start), "low": counts(low), "end": counts(end)}));
        ensure!(
            end.blanks >= start.blanks && end.networks >= start.networks && end.disks >= start.disks,
            "the pools end less full than they began: {start:?}, {end:?}"
        );
        Ok(())
    }
}

/// Waits until everything that is made ahead is there.
async fn full(container: &Container) -> Result<Levels> {
    let begun = Instant::now();
    loop {
        let levels = container.levels().await?;
        if levels.is_full {
            return Ok(levels);
        }
        ensure!(begun.elapsed() < FULL_WAIT, "the pools do not fill up: {levels:?}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

/// One operation: create, run, tear down; the exit code is the kernel's.
pub async fn once(backend: &Container, rootfs: &Path, disk: u64, n: usize) -> Result<Parts> {
    let mut parts = Parts::default();
    let mut begun = Instant::now();
    let mut part = |time: &mut Duration| *time = std::mem::replace(&mut begun, Instant::now()).elapsed();
    let spec = SandboxSpec {
        id: format!("bench-{n}"),
        image: format!("dir:{}", rootfs.display()),
        base: None,
        image_digest: None,
        layers: Vec::new(),
        limits: Limit { cpu: MilliCpu(1000), memory: Bytes(512 << 20), disk: Bytes(disk), pids: 256 },
        user: "0".to_owned(),
        workdir: "/workspace".to_owned(),
    };
    let sandbox = backend.create(spec).await?;
    part(&mut parts.create);
    let sink = || -> Result<_> { Ok(std::fs::OpenOptions::new().write(true).open("/dev/null")?.into()) };
    let process = sandbox
        .spawn(Spawn {
            argv: vec!["/true".to_owned()],
            env: std::collections::BTreeMap::new(),
            cwd: "/".to_owned(),
            user: "0".to_owned(),
            stdout: sink()?,
            stderr: sink()?,
        })
        .await?;
    let exit = process.wait().await?;
    ensure!(exit == Exit::Code(0), "{exit:?}");
    drop(process);
    part(&mut parts.command);
    sandbox.destroy().await?;
    part(&mut parts.destroy);
    Ok(parts)
}

/// Where the time of an operation went.
#[derive(Debug, Default, Clone, Copy)]
pub struct Parts {
    create: Duration,
    command: Duration,
    destroy: Duration,
}

impl std::ops::AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.create += other.create;
        self.command += other.command;
        self.destroy += other.destroy;
    }
}
