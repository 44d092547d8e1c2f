//! Bench `rollout`: one task, an agent and a grader in sandboxes of their own, from the command to the
//! reward. Case `local`: `rollyard run` beside the same commands by `runc`, and beside Harbor's own run
//! on this machine, as many at a time as there are cores.
//!
//! `rollout [--rounds N] [--ops N] [--clone]`: rounds (default 3), rollouts a round (default 100; 4 for
//! Harbor). With `--clone`, figure `clone_to_first_reward_s`: from `git clone` of this repository over
//! its build to the reward of hello.yaml; the crates are those of cargo's cache.

mod harbor;
mod runc;
pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::report::{self, Round, figure, measurement, skipped, walls};

const BENCH: &str = "rollout";
const CASE: &str = "local";
const HARBOR_OPS: usize = 4;

const AGENT: &str = "echo 42 > /workspace/answer";
const GRADE: &str =
    r#"if [ "$(cat /in/answer)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"#;

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let (rounds, ops) = (option("--rounds", 3)?.max(3), option("--ops", 100)?.clamp(1, 1_000));
    let parallel = std::thread::available_parallelism()?.get();
    let program = built()?;
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    tree::build(&rootfs)?;
    let spec = dir.path().join("rollout.yaml");
    fs::write(&spec, job(&rootfs, ops))?;
    let runc = runc::Runc::new(&dir.path().join("runc"), &rootfs)?;
    if runc.is_none() {
        skipped(BENCH, CASE, "runc", "not installed");
    }
    fs::create_dir_all(dir.path().join("harbor"))?;
    let mut harbor = harbor::Harbor::new(&dir.path().join("harbor"), &rootfs)?;

    let (mut ours, mut scripts, mut trials) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let home = dir.path().join(format!("yard-{round}"));
        ours.push(whole(ops, || run(&program, &home, &spec))?);
        fs::remove_dir_all(&home)?;
        if let Some(runc) = &runc {
            scripts.push(whole(ops, || script(runc, ops, parallel))?);
        }
        if let Ok(running) = &harbor {
            match whole(HARBOR_OPS, || running.job(HARBOR_OPS, parallel)) {
                Ok(round) => trials.push(round),
                // A peer that does not get through is not compared.
                Err(error) => harbor = Err(format!("it failed here: {error}")),
            }
        }
    }
    if let Err(reason) = &harbor {
        skipped(BENCH, CASE, "harbor", reason);
        trials.clear();
    }
    measurement(BENCH, CASE, "rollyard", &ours);
    for (subject, rounds) in [("runc", &scripts), ("harbor", &trials)] {
        if !rounds.is_empty() {
            measurement(BENCH, CASE, subject, rounds);
            walls(BENCH, CASE, ("rollyard", &ours), (subject, rounds));
        }
    }
    if args.iter().any(|arg| arg == "--clone") {
        let began = Instant::now();
        clone_and_run(dir.path())?;
        figure(
            BENCH,
            "clone_to_first_reward_s",
            &[("subject", json!("rollyard"))],
            began.elapsed().as_secs_f64(),
        );
    }
    Ok(())
}

fn job(rootfs: &Path, size: usize) -> String {
    let image = rootfs.display();
    format!(
        "apiVersion: rollyard/v1
kind: RolloutJob
name: rollout
tasks: {{from: {{inline: [{{}}]}}}}
group: {{size: {size}}}
defaults: {{image: 'dir:{image}', timeout: 60s, resources: {{request: {{cpu: 1000m, memory: 64Mi}}, limit: {{cpu: 1, memory: 256Mi, disk: 32Mi, pids: 64}}}}}}
steps:
  - {{name: work, run: '{AGENT}', outputs: [{{name: answer, path: answer}}]}}
  - {{name: grade, needs: [work], inputs: [{{artifact: work.answer, path: /in/answer}}], run: '{GRADE}', grader: {{}}}}
"
    )
}

/// The program that `ROLLYARD_BIN` names; else it is built, as this bench is.
pub fn built() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("ROLLYARD_BIN") {
        return Ok(program.into());
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "-q", "-p", "rollout-cli"]).current_dir(repository());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    ensure!(command.status().context("cargo")?.success(), "the program cannot be built");
    Ok(std::env::current_exe()?.parent().context("a folder")?.join("rollyard"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Takes the time of `n` rollouts as a whole; each is told as its share of it.
fn whole(n: usize, work: impl FnOnce() -> Result<()>) -> Result<Round> {
    let (cpu, start) = (report::cpu_time(), Instant::now());
    work()?;
    let wall = start.elapsed();
    let share = wall / u32::try_from(n)?;
    Ok(Round { latencies: vec![share; n], wall, cpu: report::cpu_time().saturating_sub(cpu) })
}

fn run(program: &Path, home: &Path, spec: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(home.join("yard")).args(["--output", "json", "run"]).arg(spec);
    let output = command.arg("--table").arg(home.join("out")).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "rollyard run: {}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let (ended, mean) = (&summary["job"]["rollouts"]["ended"], &summary["job"]["rewards"]["mean"]);
    ensure!(mean == &json!(1.0) && ended == &summary["job"]["rollouts"]["total"], "{summary}");
    Ok(())
}

fn script(runc: &runc::Runc, ops: usize, parallel: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= ops {
                return Ok(());
            }
            runc.rollout(n)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..parallel).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker that panicked is a bug"))
    })
}

fn clone_and_run(dir: &Path) -> Result<()> {
    let clone = dir.join("clone");
    let done = |command: &mut Command| -> Result<()> {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        ensure!(status.success(), "{command:?}: {status}");
        Ok(())
    };
    done(Command::new("git").args(["clone", "-q"]).arg(repository()).arg(&clone))?;
    done(
        Command::new("cargo")
            .args(["build", "--locked", "-q"])
            .env_remove("CARGO_TARGET_DIR")
            .current_dir(&clone),
    )?;
    let home = dir.join("first");
    run(&clone.join("target/debug/rollyard"), &home, &clone.join("docs/examples/hello.yaml"))
}
