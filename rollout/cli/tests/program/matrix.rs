//! A spec with a matrix: one job per combination.

use nix::unistd::geteuid;
use serde_json::Value;

use crate::support::{Script, Yard, rollyard};

const SPEC: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: cells
tasks: {from: {inline: [{want: "1"}]}}
defaults: {image: host, timeout: 30s}
steps:
  - {name: grade, from: image, env: {GOT: "${matrix.got}", WANT: "${row.want}"}, run: 'test "$GOT" != bad && { [ "$GOT" = "$WANT" ] || exit 2; }',
     grader: {exit: {0: 1, 2: 0}, regrades: 0}}
matrix: {values: {got: ["1", "0", bad], seed: ["7"]}}
"#;

#[test]
fn every_combination_is_submitted_as_a_job_of_its_own() {
    let yard = Yard::start(Script::default());
    yard.file("cells.yaml", SPEC);
    let ran =
        yard.ask(&["submit", "cells.yaml", "--table", "out", "--output", "json", "--idempotency-key", "k"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).expect("an array");
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[2]["values"], serde_json::json!({"got": "bad", "seed": "7"}));
    let seen = yard.seen.lock().expect("seen");
    let submits: Vec<_> = seen
        .submits
        .iter()
        .map(|submit| {
            let folder = submit.table_root.rsplit('/').next().expect("a folder").to_owned();
            (folder, submit.idempotency_key.clone())
        })
        .collect();
    let expected = [("got=1,seed=7", "k-0"), ("got=0,seed=7", "k-1"), ("got=bad,seed=7", "k-2")];
    assert_eq!(submits, expected.map(|(folder, key)| (folder.to_owned(), key.to_owned())));
    let document: Value = serde_json::from_str(&seen.submits[1].document).expect("JSON");
    assert_eq!(document["matrix"], serde_json::json!({"values": {"got": ["0"], "seed": ["7"]}}));
}

#[test]
fn what_needs_somebody_who_waits_is_refused_without_one() {
    let yard = Yard::start(Script::default());
    for field in ["max_parallel: 2", "fail_fast: true"] {
        yard.file("cells.yaml", &SPEC.replace("seed: [\"7\"]}", &format!("seed: [\"7\"]}}, {field}")));
        let ran = yard.ask(&["submit", "cells.yaml", "--table", "out"]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("error[matrix_waits]"), "{}", ran.stderr);
    }
    assert!(yard.seen.lock().expect("seen").submits.is_empty());
}

#[test]
fn a_combination_with_an_error_stops_all() {
    let yard = Yard::start(Script::default());
    yard.file(
        "cells.yaml",
        &SPEC.replace("image: host", "image: \"${matrix.got}\"").replace("\"1\", \"0\", bad", "host, Bad"),
    );
    for args in [&["check", "cells.yaml"][..], &["submit", "cells.yaml", "--table", "out"]] {
        let ran = yard.ask(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("cells.yaml (got=Bad,seed=7)"), "{}", ran.stderr);
    }
    assert!(yard.seen.lock().expect("seen").submits.is_empty());
}

#[test]
fn a_matrix_runs_to_its_end_and_the_worst_cell_is_the_exit_code() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let run = |spec: &str| {
        std::fs::write(dir.path().join("cells.yaml"), spec).expect("written");
        let ran = rollyard(dir.path(), &["run", "cells.yaml", "--output", "json", "--new"]);
        let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        (ran, rows)
    };
    let (ran, rows) = run(&SPEC.replace("seed: [\"7\"]}", "seed: [\"7\"]}, max_parallel: 1"));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("1 of the 3 jobs of the matrix did not end well"), "{}", ran.stderr);
    let rewards: Vec<_> = rows.iter().map(|row| row["job"]["rewards"]["mean"].as_f64()).collect();
    assert_eq!(rewards, [Some(1.0), Some(0.0), None]);
    assert_eq!(rows.iter().map(|row| &row["exit_code"]).collect::<Vec<_>>(), [0, 0, 1]);
    for row in &rows[..2] {
        let cell = row["cell"].as_str().expect("a name");
        let job = row["job"]["id"].as_str().expect("an id");
        assert!(dir.path().join("out").join(cell).join(job).join("trajectories").is_dir(), "{cell}");
    }

    let (ran, rows) = run(&SPEC
        .replace("\"1\", \"0\", bad", "bad, \"1\", \"0\"")
        .replace("seed: [\"7\"]}", "seed: [\"7\"]}, max_parallel: 1, fail_fast: true"));
    assert_eq!((ran.code, rows.len()), (1, 3), "{}", ran.stderr);
    assert!(rows[1]["job"].is_null() && rows[2]["job"].is_null());
    assert_eq!((&rows[0]["error"], &rows[1]["error"]), (&"job_ended".into(), &"fail_fast".into()));
}
