//! Bench `burst`: 1,000 rollouts of one step, submitted at once to a scheduler and an executor in processes
//! of their own. The step waits for half a minute, so that all of them live at once. A rollout of another job goes
//! before, as a creation goes before those that are kept up: the node has come, has its image and has
//! measured itself. Figures:
//!
//! - `failures`: steps that did not end well, and rollouts without a step.
//! - `p99_over_p50`: of the time from when the node took a step until its sandbox was ready.
//! - `makespan_ratio`: from submit until the command in the last sandbox began, over the time so many creations take at
//!   the rate that is kept up without a scheduler (many at a time in this process: creation, a command, the
//!   end). Nothing else runs.
//! - `others_p99_ratio`: p99 of the run time of steps of another job that go on beside a second burst,
//!   over the same without one. They keep two CPUs busy.
//! - `to_end_ratio`: of a third burst, whose step does nothing, from submit until the job has ended with its
//!   tables, over the same time as `makespan_ratio`: what rollouts cost beyond sandboxes.
//!
//! A burst of silent steps makes 2,000 files and directories. Where thousands were removed on the same file system in the minutes before,
//! ext4 makes that several times as expensive (`recently_deleted` in the kernel's profile).
//!
//! `burst [--rounds N] [--ops N]`: rounds (default 3), rollouts in a burst (default 1,000).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use executor::sandbox::container::{Container, ContainerConfig};
use serde_json::{Value, json};

use crate::create::{floor, once};
use crate::report::{figure, measurement, round};
use crate::rollout::{built, tree};

const BENCH: &str = "burst";
/// Creations at a time and in all while the rate that is kept up is measured.
const SUSTAINED_WIDTH: usize = 16;
const SUSTAINED_OPS: usize = 400;
/// Steps beside the burst, two at a time.
const OTHERS: usize = 100;
const OTHERS_COMMAND: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
/// How long the step of a burst waits: longer than it takes until all are ready.
const HOLD: Duration = Duration::from_secs(30);
/// A hang guard.
const LISTEN_WAIT: Duration = Duration::from_secs(60);

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let (rounds, ops) = (option("--rounds", 3)?.max(1), option("--ops", 1_000)?.max(10));
    let program = built()?;
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    // What a creation alone runs, in the image of the burst: its shell is replaced by a real one.
    floor::build_true(&rootfs)?;
    floor::build_hold(&rootfs, HOLD.as_secs())?;
    tree::build(&rootfs)?;
    let mut figures: [(&str, Vec<f64>); 5] = [
        ("failures", vec![]),
        ("p99_over_p50", vec![]),
        ("makespan_ratio", vec![]),
        ("others_p99_ratio", vec![]),
        ("to_end_ratio", vec![]),
    ];
    let mut sustained = Vec::new();
    for n in 0..rounds {
        let home = dir.path().join(format!("r{n}"));
        fs::create_dir_all(&home)?;
        let kept_up = kept_up(&home.join("alone"), &rootfs)?;
        let yard = Yard::start(&program, &home)?;
        let _first =
            yard.submit("first", &job("first", &rootfs, 1, 1, "agent: {command: [/true]}"))?.end()?;
        let agent = |program: &str| format!("agent: {{command: [{program}]}}");
        let burst = job("burst", &rootfs, ops, ops, &agent("/hold"));
        let ended = job("ended", &rootfs, ops, ops, &agent("/true"));
        let others = job("others", &rootfs, OTHERS, 2, &format!("run: '{OTHERS_COMMAND}'"));
        let begun = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let first = yard.submit("burst", &burst)?;
        let tables = first.tables.clone();
        let steps = first.end()?;
        let makespan = last_start(&yard.rows(&tables, "trajectories")?)?.saturating_sub(begun);
        ensure!(makespan < HOLD, "after {makespan:?} some had ended before the last was ready");
        let before = yard.submit("before", &others)?.end()?;
        let beside = yard.submit("beside", &others)?;
        let second = yard.submit("second", &burst)?.end()?;
        let beside = beside.end()?;
        let begun = Instant::now();
        let third = yard.submit("third", &ended)?.end()?;
        let to_end = begun.elapsed();
        // What it left is removed when all rounds are over: for some minutes ext4 goes through the inodes that were
        // given back last whenever it makes a new one, and the next round would pay for the clean-up of this.
        drop(yard);

        let failures = |steps: &[Value]| {
            let failed = steps.iter().filter(|step| !step["failure_code"].is_null()).count();
            failed + ops.saturating_sub(steps.len())
        };
        let boots = sorted(&steps, "boot_ms");
        let alone = ops as f64 / kept_up.rate();
        let values = [
            [&steps, &second, &third].map(|steps| failures(steps)).iter().sum::<usize>() as f64,
            at(&boots, 0.99) / at(&boots, 0.5),
            makespan.as_secs_f64() / alone,
            at(&sorted(&beside, "run_ms"), 0.99) / at(&sorted(&before, "run_ms"), 0.99),
            to_end.as_secs_f64() / alone,
        ];
        for ((_, all), value) in figures.iter_mut().zip(values) {
            all.push(value);
        }
        sustained.push(kept_up);
    }
    measurement(BENCH, "sustained", "rollyard", &sustained);
    for (name, mut values) in figures {
        values.sort_by(f64::total_cmp);
        // Of failures all count, of the rest the median.
        let value = if name == "failures" { values.iter().sum() } else { values[values.len() / 2] };
        figure(
            BENCH,
            name,
            &[("subject", json!("rollyard")), ("n", json!(ops)), ("rounds", json!(values))],
            value,
        );
    }
    Ok(())
}

/// Creations, many at a time, without a scheduler; what they took is made again within the time.
fn kept_up(data_dir: &Path, rootfs: &Path) -> Result<crate::report::Round> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _entered = runtime.enter();
    let container = Container::start(&ContainerConfig { data_dir: data_dir.to_owned() })?;
    runtime.block_on(once(&container, rootfs, 8 << 20, 0))?;
    let begun = Instant::now();
    let mut done = round(SUSTAINED_OPS / SUSTAINED_WIDTH, |batch| {
        let each =
            (1..=SUSTAINED_WIDTH).map(|n| once(&container, rootfs, 8 << 20, batch * SUSTAINED_WIDTH + n));
        runtime.block_on(futures::future::try_join_all(each)).map(|_| ())
    })?;
    done.wall = begun.elapsed();
    // A batch's time is shared by its creations.
    let share = |batch: &Duration| *batch / u32::try_from(SUSTAINED_WIDTH).unwrap_or(1);
    done.latencies = done.latencies.iter().flat_map(|batch| [share(batch); SUSTAINED_WIDTH]).collect();
    Ok(done)
}

fn job(name: &str, rootfs: &Path, rollouts: usize, max_running: usize, work: &str) -> String {
    let (image, rows) = (rootfs.display(), vec!["{}"; rollouts].join(", "));
    format!(
        "apiVersion: rollyard/v1
kind: RolloutJob
name: {name}
tasks: {{from: {{inline: [{rows}]}}}}
group: {{size: 1}}
admission: {{max_running: {max_running}}}
defaults: {{image: 'dir:{image}', timeout: 120s, resources: {{request: {{cpu: 1m, memory: 1Mi}}, limit: {{cpu: 1, memory: 64Mi, disk: 8Mi, pids: 32}}}}}}
steps:
  - {{name: work, {work}}}
"
    )
}

/// A scheduler and an executor, ended when this is dropped.
struct Yard {
    program: PathBuf,
    home: PathBuf,
    processes: Vec<Child>,
}

impl Yard {
    fn start(program: &Path, home: &Path) -> Result<Self> {
        let mut yard = Self { program: program.to_owned(), home: home.to_owned(), processes: Vec::new() };
        let socket = format!("unix:{}", home.join("s").display());
        let scheduler = yard.command("yard").args(["scheduler", "--listen", &socket]).spawn()?;
        yard.processes.push(scheduler);
        let begun = Instant::now();
        while !home.join("s").exists() {
            ensure!(begun.elapsed() < LISTEN_WAIT, "the scheduler does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let executor =
            yard.command("node").args(["executor", "--name", "n1", "--scheduler", &socket]).spawn()?;
        yard.processes.push(executor);
        Ok(yard)
    }

    fn command(&self, data_dir: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(self.home.join(data_dir));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Submits a job and waits for it in a process of its own.
    fn submit(&self, name: &str, spec: &str) -> Result<Submitted<'_>> {
        let (file, tables) = (self.home.join(format!("{name}.yaml")), self.home.join(name));
        fs::write(&file, spec)?;
        let mut command = self.command("yard");
        command.arg("--yard").arg(format!("unix:{}", self.home.join("s").display()));
        command.args(["--output", "json", "submit"]).arg(&file).arg("--table").arg(&tables).arg("--wait");
        let waiting = command.stderr(Stdio::piped()).spawn()?;
        Ok(Submitted { yard: self, waiting, tables })
    }

    /// Of one table of the only job whose tables are there.
    fn rows(&self, tables: &Path, table: &str) -> Result<Vec<Value>> {
        let job = fs::read_dir(tables)?.next().context("a table")??.path();
        let copies = tables.with_extension(table);
        let mut export = self.command("yard");
        export.arg("export").arg(job.join(table)).args(["--format", "jsonl", "--out"]).arg(&copies);
        let status = export.status()?;
        ensure!(status.success(), "export: {status}");
        let text = fs::read_to_string(copies.join(format!("{table}.jsonl")))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        for mut process in self.processes.drain(..).rev() {
            let pid = nix::unistd::Pid::from_raw(process.id().cast_signed());
            // One that ended is reaped all the same.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = process.wait();
        }
    }
}

struct Submitted<'a> {
    yard: &'a Yard,
    waiting: Child,
    tables: PathBuf,
}

impl Submitted<'_> {
    /// Its steps, when it has ended.
    fn end(self) -> Result<Vec<Value>> {
        let output = self.waiting.wait_with_output()?;
        ensure!(output.status.success(), "submit: {}", String::from_utf8_lossy(&output.stderr));
        self.yard.rows(&self.tables, "steps")
    }
}

/// When the last command began, since the epoch: its sandbox was ready by then.
fn last_start(rollouts: &[Value]) -> Result<Duration> {
    let started = |rollout: &Value| -> Result<Duration> {
        let at = rollout["started_at"].as_str().context("`started_at` of a rollout")?;
        let at = chrono::DateTime::parse_from_rfc3339(at)?.timestamp_micros();
        Ok(Duration::from_micros(u64::try_from(at)?))
    };
    let started: Vec<Duration> = rollouts.iter().map(started).collect::<Result<_>>()?;
    started.into_iter().max().context("no rollout began")
}

fn sorted(steps: &[Value], column: &str) -> Vec<f64> {
    let mut values: Vec<f64> = steps.iter().filter_map(|step| step[column].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// A quantile of sorted values, in whole milliseconds and at least one.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
    let index = (sorted.len().saturating_sub(1) as f64 * quantile).round() as usize;
    sorted.get(index).map_or(f64::NAN, |value| value.max(1.0))
}
