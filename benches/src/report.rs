//! What every bench prints: one JSON object per line on stdout, all else on stderr.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// How a subject did in one round.
#[derive(Debug, Clone)]
pub struct Round {
    /// One duration per operation.
    pub latencies: Vec<Duration>,
    pub wall: Duration,
    /// CPU time of the process and its children.
    pub cpu: Duration,
}

impl Round {
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.wall.as_secs_f64()
    }
    pub fn cpu_us_per_op(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.latencies.len() as f64
    }
}

#[derive(Debug, Serialize)]
struct Measurement<'a> {
    bench: &'a str,
    case: &'a str,
    subject: &'a str,
    n: usize,
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us_per_op: f64,
    load1: f64,
}

#[expect(clippy::print_stdout, reason = "a bench's data")]
fn line(value: &Value) {
    println!("{value}");
}

/// One line for a subject over all its rounds.
pub fn measurement(bench: &str, case: &str, subject: &str, rounds: &[Round]) {
    measurement_at(bench, case, subject, &[], rounds);
}

/// The same with further fields.
pub fn measurement_at(bench: &str, case: &str, subject: &str, fields: &[(&str, Value)], rounds: &[Round]) {
    let mut all: Vec<Duration> = rounds.iter().flat_map(|r| r.latencies.iter().copied()).collect();
    all.sort_unstable();
    let at = |q: f64| {
        let index = ((all.len() - 1) as f64 * q).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index below the length"
        )]
        let index = index as usize;
        all[index].as_secs_f64() * 1e6
    };
    let wall: Duration = rounds.iter().map(|r| r.wall).sum();
    let cpu: Duration = rounds.iter().map(|r| r.cpu).sum();
    let measurement = Measurement {
        bench,
        case,
        subject,
        n: all.len(),
        ops_per_s: all.len() as f64 / wall.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / all.len() as f64,
        load1: load1(),
    };
    line(&with(json!(measurement), fields));
}

fn with(mut object: Value, at: &[(&str, Value)]) -> Value {
    for (key, at) in at {
        object[*key] = at.clone();
    }
    object
}

/// `ratio > 1` means `of` is better. Median over rounds measured alternately in this run.
pub fn comparison(bench: &str, case: &str, of: (&str, &[Round]), to: (&str, &[Round])) {
    comparison_at(bench, case, &[], of, to);
}

/// The same with further fields.
pub fn comparison_at(
    bench: &str,
    case: &str,
    at: &[(&str, Value)],
    of: (&str, &[Round]),
    to: (&str, &[Round]),
) {
    let median = |mut ratios: Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let pairs = || of.1.iter().zip(to.1);
    let rate = median(pairs().map(|(a, b)| a.rate() / b.rate()).collect());
    let cpu = median(pairs().map(|(a, b)| b.cpu_us_per_op() / a.cpu_us_per_op()).collect());
    for (metric, ratio) in [("rate", rate), ("cpu", cpu)] {
        let object =
            json!({"bench": bench, "case": case, "of": of.0, "to": to.0, "metric": metric, "ratio": ratio});
        line(&with(object, at));
    }
}

/// As [`comparison`], of the wall time an operation takes when many are done as one.
pub fn walls(bench: &str, case: &str, of: (&str, &[Round]), to: (&str, &[Round])) {
    let wall = |round: &Round| 1.0 / round.rate();
    let mut ratios: Vec<f64> = of.1.iter().zip(to.1).map(|(a, b)| wall(b) / wall(a)).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    line(&json!({"bench": bench, "case": case, "of": of.0, "to": to.0, "metric": "wall", "ratio": ratio}));
}

/// One value, with what it was measured at.
pub fn figure(bench: &str, case: &str, at: &[(&str, Value)], value: f64) {
    line(&with(json!({"bench": bench, "case": case, "value": value, "load1": load1()}), at));
}

pub fn skipped(bench: &str, case: &str, to: &str, reason: &str) {
    line(&json!({"bench": bench, "case": case, "to": to, "skipped": reason}));
}

/// A figure that is not to be had here.
pub fn not_here(bench: &str, case: &str, reason: &str) {
    line(&json!({"bench": bench, "case": case, "skipped": reason}));
}

pub fn load1() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(f64::NAN)
}

/// CPU time of this process, of all that live below it, and of the children these waited for.
pub fn cpu_time() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let own =
        [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().filter_map(|who| getrusage(who).ok());
    let own: i64 = own
        .map(|u| {
            let (user, system) = (u.user_time(), u.system_time());
            (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec()
        })
        .sum();
    let ticks: u64 = below(std::process::id()).into_values().sum();
    Duration::from_micros(u64::try_from(own).unwrap_or(0)) + Duration::from_millis(ticks * 10)
}

/// The processes that live below one, with the ticks (10 ms) that each and what it waited for have used.
pub fn below(top: u32) -> BTreeMap<u32, u64> {
    let stats = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // After the parenthesised name: state ppid ... utime stime cutime cstime (fields 14-17).
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
        Some((u32::try_from(number(1)?).ok()?, (pid, ticks)))
    });
    let mut children: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for (parent, child) in stats {
        children.entry(parent).or_default().push(child);
    }
    let (mut found, mut next) = (BTreeMap::new(), vec![top]);
    while let Some(parent) = next.pop() {
        for (pid, ticks) in children.remove(&parent).unwrap_or_default() {
            found.insert(pid, ticks);
            next.push(pid);
        }
    }
    found
}

/// Runs `op` `n` times in a row and takes the times.
pub fn round(n: usize, mut op: impl FnMut(usize) -> anyhow::Result<()>) -> anyhow::Result<Round> {
    let (cpu, start) = (cpu_time(), std::time::Instant::now());
    let mut latencies = Vec::with_capacity(n);
    for i in 0..n {
        let begin = std::time::Instant::now();
        op(i)?;
        latencies.push(begin.elapsed());
    }
    Ok(Round { latencies, wall: start.elapsed(), cpu: cpu_time().saturating_sub(cpu) })
}

/// `--NAME N` of the arguments.
pub fn option(args: &[String], name: &str, default: usize) -> anyhow::Result<usize> {
    use anyhow::Context;
    match args.iter().position(|arg| arg == name) {
        Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
        None => Ok(default),
    }
}

#[expect(clippy::print_stderr, reason = "what a bench says beside its data")]
pub fn tell(what: &str) {
    eprintln!("{what}");
}
