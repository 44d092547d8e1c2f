//! `run` from end to end: real sandboxes, real tables. Where this host cannot make sandboxes, the
//! program must say so with exit code 4, and that is what is tested.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

use crate::support::{Ran, rollyard};

const HELLO: &str = include_str!("../../../../docs/examples/hello.yaml");
const FORTY: &str = include_str!("../../../../docs/examples/forty.yaml");

/// Takes longer than it takes to interrupt it.
const SLOW: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: slow
tasks: {from: {inline: [{n: "1"}]}}
defaults: {image: host, timeout: 60s, retry: {limit: 3, backoff: 10ms, max_backoff: 10ms}}
steps:
  - {name: work, run: "sleep 3; echo done > log", outputs: [{name: log, path: log}]}
  - {name: grade, needs: [work], from: image, run: "grep -q done /in/log", grader: {exit: {0: 1}},
     inputs: [{artifact: work.log, path: /in/log}]}
"#;

fn summary(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("the summary as JSON")
}

/// Whether sandboxes can be made here; if not, `run` has to refuse.
fn sandboxes(dir: &Path) -> bool {
    if geteuid().is_root() {
        return true;
    }
    std::fs::write(dir.join("hello.yaml"), HELLO).expect("written");
    let ran = rollyard(dir, &["run", "hello.yaml"]);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("error[not_root]"), "{}", ran.stderr);
    false
}

#[test]
fn hello_runs_and_can_be_looked_at_when_its_yard_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("hello.yaml"), HELLO).expect("written");
    let summary = summary(&rollyard(dir.path(), &["run", "hello.yaml", "--output", "json"]));
    assert_eq!(summary["job"]["rewards"]["successes"], 4);
    assert_eq!(summary["job"]["groups"]["sealed"], 1);
    let job = summary["job"]["id"].as_str().expect("an id");
    let shards = dir.path().join("out").join(job).join("trajectories");
    assert!(std::fs::read_dir(&shards).is_ok_and(|mut files| files.next().is_some()), "{}", shards.display());

    let listed = rollyard(dir.path(), &["ps", "--output", "quiet"]);
    assert_eq!((listed.code, listed.stdout.trim()), (0, job), "{}", listed.stderr);
    let shown = rollyard(dir.path(), &["show", &format!("{job}-g0-s3"), "--output", "quiet"]);
    assert_eq!((shown.code, shown.stdout.as_str()), (0, "work\ngrade\n"), "{}", shown.stderr);
    let explained = rollyard(dir.path(), &["explain", job]);
    assert_eq!(explained.code, 0, "{}", explained.stderr);
}

#[test]
fn a_step_that_was_never_started_is_explained_by_the_one_that_failed() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("spec.yaml"), SLOW.replace("sleep 3", "exit 3")).expect("written");
    let ran = rollyard(dir.path(), &["run", "spec.yaml", "--output", "quiet"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let rollout = format!("{}-g0-s0", ran.stdout.trim());
    let grade = format!("{rollout}/grade");
    let why = "step `work`: step_exit (exited with code 3 after ";
    for (target, begins) in [
        (&rollout, "The rollout ended as failed: "),
        (&grade, "Step `grade` was never started: the rollout ended as failed: "),
    ] {
        let said = rollyard(dir.path(), &["explain", target]);
        assert!(said.stdout.starts_with(&format!("{begins}{why}")), "{}", said.stdout);
    }
    let logs = rollyard(dir.path(), &["logs", &grade]);
    assert!(logs.stderr.contains("the step was never started"), "{}", logs.stderr);
}

#[test]
fn forty_tells_every_misbehaviour_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("forty.yaml"), FORTY).expect("written");
    let summary = summary(&rollyard(dir.path(), &["run", "forty.yaml", "--output", "json"]));
    let job = &summary["job"];
    let failures = job["failures"].as_array().expect("failures");
    let mut codes: Vec<(&str, &str, u64)> = failures
        .iter()
        .map(|f| {
            let text = |key: &str| f[key].as_str().expect("text");
            (text("domain"), text("code"), f["rollouts"].as_u64().expect("a count"))
        })
        .collect();
    codes.sort_unstable();
    let expected = ["agent_timeout", "disk_quota", "oom_guest", "pids_limit"].map(|code| ("agent", code, 4));
    assert_eq!(codes, expected);
    assert_eq!((&job["rollouts"]["ended"], &job["rollouts"]["valid"]), (&40.into(), &40.into()));
    let rewards = summary["detail"]["clean_rewards"].as_array().expect("rewards");
    let rewards: Vec<_> = rewards.iter().map(|r| (r["reward"].as_f64(), r["rollouts"].as_u64())).collect();
    assert_eq!(rewards, [(Some(1.0), Some(18)), (Some(0.0), Some(6))]);
    assert_eq!(summary["detail"]["capture_truncated"], 4);
}

/// Starts a run and reads what it says until `until`.
fn started(dir: &Path, until: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rollyard"))
        .args(["run", "slow.yaml"])
        .current_dir(dir)
        .env("ROLLYARD_DATA_DIR", dir)
        .env_remove("ROLLYARD_YARD")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains(until) {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it ended without saying `{until}`");
    }
    (child, said)
}

fn signal(child: &Child) {
    let pid = Pid::from_raw(child.id().try_into().expect("a pid"));
    kill(pid, Signal::SIGINT).expect("signalled");
}

#[test]
fn an_interrupted_run_stays_and_the_same_command_goes_on_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (mut child, mut said) = started(dir.path(), "running 1");
    signal(&child);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).expect("text");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{rest}");
    assert!(rest.contains("the same command goes on with it"), "{rest}");

    let left = rollyard(dir.path(), &["ps"]);
    assert!(left.stdout.contains("running (yard is down)"), "{}", left.stdout);
    let left = rollyard(dir.path(), &["ps", "--output", "json"]);
    let left: Value = serde_json::from_str(&left.stdout).expect("the jobs");
    assert_eq!((&left[0]["state"], &left[0]["yard_runs"]), (&"running".into(), &false.into()));

    let again = rollyard(dir.path(), &["run", "slow.yaml", "--output", "json"]);
    assert!(again.stderr.contains(" goes on: 0 of 1 rollouts have ended"), "{}", again.stderr);
    let summary = summary(&again);
    assert_eq!(summary["job"]["rewards"]["successes"], 1);
    let jobs = rollyard(dir.path(), &["ps", "--output", "quiet"]);
    assert_eq!(jobs.stdout.lines().count(), 1, "{}", jobs.stdout);
}

#[test]
fn a_second_interrupt_ends_at_once_and_the_next_run_starts_clean() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (mut child, mut said) = started(dir.path(), "running 1");
    signal(&child);
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    assert!(line.contains("Ctrl-C again exits at once"), "{line}");
    signal(&child);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    let again = rollyard(dir.path(), &["run", "slow.yaml", "--output", "json"]);
    assert_eq!(summary(&again)["job"]["rewards"]["successes"], 1);
}

#[test]
fn a_data_directory_in_use_is_refused_with_the_way_around() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (mut child, _said) = started(dir.path(), "job ");
    let ran = rollyard(dir.path(), &["run", "slow.yaml"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("error[data_dir_locked]"), "{}", ran.stderr);
    assert!(ran.stderr.contains("rollyard submit"), "{}", ran.stderr);
    signal(&child);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
}

/// The broker of a program: its child of that name.
fn broker(program: &Child) -> Pid {
    let stats = std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // `pid (comm) state ppid ...`
        let (comm, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let parent: u32 = rest.split(' ').nth(1)?.parse().ok()?;
        (comm == "rollyard-broker" && parent == program.id()).then(|| Pid::from_raw(pid))
    });
    let found: Vec<Pid> = stats.collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[test]
fn a_run_whose_broker_was_killed_ends_with_the_reason_and_the_same_command_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (mut child, mut said) = started(dir.path(), "running 1");
    kill(broker(&child), Signal::SIGKILL).expect("killed");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).expect("text");
    assert_eq!(child.wait().expect("ended").code(), Some(1), "{rest}");
    assert!(rest.contains("error[backend_ended]"), "{rest}");

    let again = rollyard(dir.path(), &["run", "slow.yaml", "--output", "json"]);
    assert!(again.stderr.contains(" goes on: 0 of 1 rollouts have ended"), "{}", again.stderr);
    assert_eq!(summary(&again)["job"]["rewards"]["successes"], 1);
}
