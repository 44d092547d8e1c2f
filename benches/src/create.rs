//! Bench `create`: make a sandbox with every wall, run one static binary in it, tear it down.
//! Case `cold` (nothing pooled), beside the kernel's floor, `bwrap --unshare-all` and `runc run`,
//! in turn within one run.
//!
//! `create [--rounds N] [--ops N]`: rounds (default 5), operations a round (default 200; a tenth
//! for the peers that start processes of their own).

mod cgroups;
pub mod floor;
mod peers;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::{Backend, Exit, SandboxSpec, Spawn};
use rollout::quantity::Limit;
use rollout::{Bytes, MilliCpu};

use crate::report::{Round, comparison, measurement, round, skipped};

const BENCH: &str = "create";
const CASE: &str = "cold";
const WARM_UP_OPS: usize = 20;

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let (rounds, ops) = (option("--rounds", 5)?.max(3), option("--ops", 200)?.max(10));
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    floor::build_true(&rootfs)?;

    let _netns = floor::NetnsGuard::new()?;
    let floor = floor::Floor::new(&rootfs, &dir.path().join("floor"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let container = Container::start(&ContainerConfig { data_dir: dir.path().join("yard") })?;
    let runc = peers::Runc::new(dir.path(), &rootfs)?;
    let bwrap = peers::Bwrap::new(&rootfs);
    if runc.is_none() {
        skipped(BENCH, CASE, "runc", "not installed");
    }
    if bwrap.is_none() {
        skipped(BENCH, CASE, "bwrap", "not installed");
    }

    let few = (ops / 10).max(10);
    let mut ours: Vec<Round> = Vec::new();
    let mut to: [(&str, Vec<Round>); 3] = [("floor", vec![]), ("bwrap", vec![]), ("runc", vec![])];
    let rollyard = |n: usize| runtime.block_on(once(&container, &rootfs, n));
    round(WARM_UP_OPS, rollyard)?;
    round(WARM_UP_OPS, |n| floor.run(n))?;
    for r in 0..rounds {
        let base = (r + 1) * 1_000_000;
        ours.push(round(ops, |n| rollyard(base + n))?);
        to[0].1.push(round(ops, |n| floor.run(base + n))?);
        if let Some(bwrap) = &bwrap {
            to[1].1.push(round(few, |_| bwrap.run())?);
        }
        if let Some(runc) = &runc {
            to[2].1.push(round(few, |n| runc.run(base + n))?);
        }
    }
    drop(container);
    drop(entered);

    measurement(BENCH, CASE, "rollyard", &ours);
    for (subject, rounds) in to.iter().filter(|(_, rounds)| !rounds.is_empty()) {
        measurement(BENCH, CASE, subject, rounds);
        comparison(BENCH, CASE, ("rollyard", &ours), (subject, rounds));
    }
    Ok(())
}

/// One operation: create, run, tear down; the exit code is the kernel's.
async fn once(backend: &Container, rootfs: &Path, n: usize) -> Result<()> {
    let spec = SandboxSpec {
        id: format!("bench-{n}"),
        image: format!("dir:{}", rootfs.display()),
        base: None,
        image_digest: None,
        layers: Vec::new(),
        limits: Limit { cpu: MilliCpu(1000), memory: Bytes(512 << 20), disk: Bytes(64 << 20), pids: 256 },
        user: "0".to_owned(),
        workdir: "/workspace".to_owned(),
    };
    let sandbox = backend.create(spec).await?;
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
    sandbox.destroy().await?;
    Ok(())
}
