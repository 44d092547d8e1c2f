//! A yard whose blobs are in a bucket: the real program, a real S3 server on loopback, and two nodes
//! that have no directory in common.

#[allow(dead_code, reason = "the tests of the store look closer")]
#[path = "../../../../datasets/blobs/tests/support/s3.rs"]
mod s3;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::run::sandboxes;

/// The set-up is made on one node; what works from it is lost with that node and done on another.
const SPEC: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: bucket
tasks: {from: {jsonl: rows.jsonl}}
group: {size: 1}
defaults: {image: host, timeout: 120s, workdir: /root, retry: {limit: 3, backoff: 10ms, max_backoff: 10ms}}
steps:
  - {name: setup, per: group, run: "echo made > mark; echo old > other"}
  - {name: work, needs: [setup], from: setup, checkpoint: {after: true}, outputs: [{name: log, path: log}],
     run: "grep -q made mark && sleep 3 && echo new > other && rm mark && echo done > log"}
  - {name: grade, needs: [work], from: image, run: "grep -q done /in/log", grader: {exit: {0: 1}},
     inputs: [{artifact: work.log, path: /in/log}]}
output: {table: ./out, retain: {checkpoints: 0s, failed_workspaces: 0s}}
"#;
const HANG: Duration = Duration::from_secs(180);

struct Yard {
    dir: tempfile::TempDir,
    environment: [(&'static str, String); 4],
    parts: Vec<Child>,
}

impl Yard {
    fn command(&self, data_dir: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollyard"));
        command.current_dir(self.dir.path()).arg("--data-dir").arg(self.dir.path().join(data_dir)).args(args);
        command.env_remove("ROLLYARD_YARD").env_remove("RUST_LOG").envs(self.environment.clone());
        command
    }

    /// Serves until the test ends; its place in `parts`.
    fn serve(&mut self, data_dir: &str, args: &[&str]) -> usize {
        let mut command = self.command(data_dir, args);
        self.parts.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"));
        self.parts.len() - 1
    }

    fn executor(&mut self, name: &str) -> usize {
        let url = format!("unix:{}", self.dir.path().join("s/yard.sock").display());
        self.serve(name, &["executor", "--name", name, "--scheduler", &url])
    }

    fn ask(&self, args: &[&str]) -> Result<Value, String> {
        let output = self.command("s", args).args(["--output", "json"]).output().expect("starts");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    fn until<T>(&self, args: &[&str], wanted: impl Fn(&Value) -> Option<T>) -> T {
        let began_at = Instant::now();
        loop {
            let said = self.ask(args);
            if let Some(found) = said.as_ref().ok().and_then(&wanted) {
                return found;
            }
            assert!(began_at.elapsed() < HANG, "{args:?}: {said:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        for part in self.parts.iter_mut().rev() {
            // One that was killed by its test is gone already.
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn objects(root: &Path) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![root.join(s3::BUCKET).join("runs/sha256")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed") {
            let path = entry.expect("listed").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn a_job_over_a_bucket_survives_the_loss_of_a_node_and_leaves_what_is_needed() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = tempfile::tempdir().expect("a directory");
    let server = runtime.block_on(s3::Server::start(store.path()));
    std::fs::write(dir.path().join("bucket.yaml"), SPEC).expect("written");
    std::fs::write(dir.path().join("rows.jsonl"), "{\"n\": 1}\n").expect("written");
    let mut yard = Yard { dir, environment: server.environment(), parts: Vec::new() };
    yard.serve("s", &["scheduler", "--blobs", "s3://yard/runs"]);
    let lost = yard.executor("n1");
    yard.until(&["nodes"], |nodes| (nodes.as_array()?.len() == 1).then_some(()));
    let job = text(&yard.ask(&["submit", "bucket.yaml"]).expect("submitted")["job"], "id").to_owned();
    let rollout = format!("{job}-g0-s0");
    let placed = |steps: &Value, step: &str, node: &str| {
        let rows = steps["steps"].as_array().cloned().unwrap_or_default();
        rows.iter().any(|row| text(row, "step") == step && text(row, "node") == node)
    };
    yard.until(&["show", &rollout], |steps| placed(steps, "work", "n1").then_some(()));

    yard.executor("n2");
    yard.until(&["nodes"], |nodes| (nodes.as_array()?.len() == 2).then_some(()));
    yard.parts[lost].kill().expect("killed");
    let ended = yard.until(&["show", &job], |job| (text(job, "state") == "finished").then(|| job.clone()));
    assert_eq!(ended["rewards"]["successes"], 1, "{ended}");
    let steps = yard.ask(&["show", &rollout]).expect("steps");
    assert!(placed(&steps, "work", "n2"), "{steps}");
    let log = yard.command("s", &["artifact", &format!("{rollout}/work"), "log"]).output().expect("starts");
    assert_eq!(log.stdout, b"done\n");

    let listed = yard.ask(&["checkpoint", "ls", &job]).expect("checkpoints");
    let id = |step: &str| {
        let rows = listed.as_array().expect("rows");
        let row = rows.iter().find(|row| text(row, "step") == step).expect("a checkpoint");
        text(row, "id").to_owned()
    };
    let shown = yard.ask(&["checkpoint", "show", &id("setup")]).expect("a checkpoint");
    assert_eq!(shown["users"].as_array().expect("users").len(), 2, "{shown}");
    let diff = yard.ask(&["checkpoint", "diff", &id("setup"), &id("work")]).expect("a diff");
    let changes: Vec<(&str, &str)> = diff["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(|change| (text(change, "change"), text(change, "path")))
        .filter(|(_, path)| path.starts_with("root/"))
        .collect();
    assert_eq!(changes, [("added", "root/log"), ("removed", "root/mark"), ("changed", "root/other")]);

    for object in objects(store.path()) {
        let file = std::fs::OpenOptions::new().append(true).open(object).expect("opened");
        file.set_modified(SystemTime::now() - Duration::from_secs(7_200)).expect("set");
    }
    let before = objects(store.path()).len();
    let short = yard.ask(&["gc", "--grace", "1m"]).expect_err("a bucket keeps for an hour");
    assert!(short.contains("bad_request"), "{short}");
    let dry = yard.ask(&["gc", "--grace", "1h", "--dry-run"]).expect("collected");
    let done = yard.ask(&["gc", "--grace", "1h"]).expect("collected");
    assert_eq!(
        (&dry["layers"], &dry["expired_checkpoints"]),
        (&done["layers"], &done["expired_checkpoints"])
    );
    assert_eq!(done["expired_checkpoints"], 2, "{done}");
    let freed = done["layers"]["blobs"].as_u64().expect("a count");
    assert!(freed >= 2, "{done}");
    let gone = before - objects(store.path()).len();
    assert_eq!(gone as u64, freed + done["unnamed"]["blobs"].as_u64().expect("a count"));
    let log = yard.command("s", &["artifact", &format!("{rollout}/work"), "log"]).output().expect("starts");
    assert_eq!(log.stdout, b"done\n", "outputs stay");
    let none = yard.ask(&["checkpoint", "ls", &job]).expect("checkpoints");
    assert_eq!(none, serde_json::json!([]));
}
