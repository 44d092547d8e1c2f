//! Schedules from the command line, and over `kill -9` of a real scheduler.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{JOB, Ran, Script, Yard, rollyard};

const HELLO: &str = include_str!("../../../../docs/examples/hello.yaml");

#[test]
fn every_question_about_schedules_has_an_answer_for_people_programs_and_scripts() {
    let yard = Yard::start(Script::default());
    for (args, expected) in [
        (vec!["schedule", "ls", "--output", "quiet"], "c0000000000007\n"),
        (vec!["schedule", "show", "a", "--output", "quiet"], "enabled\n"),
        (vec!["schedule", "disable", "a", "--output", "quiet"], "disabled\n"),
        (vec!["schedule", "enable", "a", "--output", "quiet"], "enabled\n"),
        (vec!["schedule", "rm", "a"], "c0000000000007\n"),
        (vec!["schedule", "fire", "a"], "j0000000000007\n"),
        (vec!["schedule", "fire", "a", "--idempotency-key", "again"], ""),
    ] {
        let ran = yard.ask(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, expected), "{args:?}: {}", ran.stderr);
    }
    let skipped = yard.ask(&["schedule", "fire", "a", "--idempotency-key", "again"]);
    assert!(skipped.stderr.contains("no job: the job before runs"), "{}", skipped.stderr);
    let listed = yard.ask(&["schedule", "ls"]);
    assert!(listed.stdout.contains("0 2 * * *  2026-12-01 02:00  UTC"), "{}", listed.stdout);
    let fired: Value = serde_json::from_str(&yard.ask_json(&["schedule", "fire", "a"]).stdout).expect("JSON");
    assert_eq!((&fired["job"], &fired["result"]), (&JOB.into(), &"started".into()));
}

#[test]
fn a_dry_run_prints_the_next_three_fire_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("{HELLO}schedule: {{cron: \"0 2 * * *\", enabled: false}}\n");
    std::fs::write(dir.path().join("spec.yaml"), spec).expect("written");
    let ran = rollyard(dir.path(), &["submit", "--dry-run", "spec.yaml"]);
    let line = ran.stdout.lines().find(|line| line.starts_with("schedule")).expect("a line on the schedule");
    let next = line.strip_prefix("schedule").map(str::trim_start).expect("it starts so");
    assert!(next.starts_with("disabled; next 20") && next.ends_with(" UTC"), "{line}");
    assert_eq!(next.matches(" 02:00").count(), 3, "{line}");
    let ran = rollyard(dir.path(), &["submit", "--dry-run", "spec.yaml", "--output", "json"]);
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(plan["schedule"]["next_at_us"].as_array().map(Vec::len), Some(3));
}

/// A scheduler of its own process; killed when dropped.
struct Scheduler(Child);

impl Scheduler {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rollyard"))
            .args(["scheduler", "-v", "--data-dir", "yard"])
            .current_dir(dir)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        // It answers from its socket, once that is there.
        while !dir.join("yard/yard.sock").exists() || ask(dir, &["ps"]).code != 0 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert_eq!(child.try_wait().expect("waited").map(|status| status.code()), None, "it has ended");
        }
        std::thread::spawn(move || while stderr.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {});
        Self(child)
    }

    /// `kill -9`.
    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited");
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(dir: &Path, args: &[&str]) -> Ran {
    rollyard(dir, &[args, &["--data-dir", "yard"]].concat())
}

#[test]
fn a_schedule_and_what_it_fired_outlive_a_kill_of_the_scheduler() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    // Never by itself while this runs, unless it is the 29th of a February.
    let spec =
        format!("{HELLO}schedule: {{cron: \"0 2 29 2 *\", timezone: Europe/Berlin, overlap: queue}}\n");
    std::fs::write(dir.join("spec.yaml"), spec).expect("written");
    let first = Scheduler::start(dir);
    let kept = ask(dir, &["submit", "spec.yaml"]);
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    assert!(kept.stdout.contains("02-29 02:00"), "{}", kept.stdout);
    assert!(kept.stderr.contains("the schedule is kept"), "{}", kept.stderr);
    assert_eq!(ask(dir, &["ps", "--output", "quiet"]).stdout, "", "a schedule is no job");
    let fired = ask(dir, &["schedule", "fire", "hello", "--idempotency-key", "one"]);
    assert_eq!(fired.code, 0, "{}", fired.stderr);
    first.kill();

    let second = Scheduler::start(dir);
    let again = ask(dir, &["schedule", "fire", "hello", "--idempotency-key", "one"]);
    assert_eq!((again.code, &again.stdout), (0, &fired.stdout), "{}", again.stderr);
    let waits = ask(dir, &["schedule", "fire", "hello", "--idempotency-key", "two"]);
    assert_eq!((waits.code, waits.stdout.as_str()), (0, ""), "{}", waits.stderr);
    second.kill();

    // What waited is stored too, and can be looked at without a yard.
    let shown = ask(dir, &["schedule", "show", "hello", "--output", "json"]);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!((&shown["fired"], shown["waiting_at_us"].is_i64()), (&1.into(), true));
    assert_eq!(ask(dir, &["ps", "--output", "quiet"]).stdout, fired.stdout);
    let replaced = Scheduler::start(dir);
    assert!(ask(dir, &["submit", "spec.yaml"]).stderr.contains("the schedule was replaced"));
    replaced.kill();
    // Switched and removed where no yard runs.
    assert_eq!(ask(dir, &["schedule", "disable", "hello", "--output", "quiet"]).stdout, "disabled\n");
    assert_eq!(ask(dir, &["schedule", "rm", "hello"]).code, 0);
    let gone = ask(dir, &["schedule", "show", "hello"]);
    assert!(gone.code == 1 && gone.stderr.contains("not_found"), "{} {}", gone.code, gone.stderr);
}
