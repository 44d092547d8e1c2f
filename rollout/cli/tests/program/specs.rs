//! `check` and `submit`.

use rollout_wire::v1::{Counts, FailureCount, Job};
use serde_json::Value;

use crate::support::{Script, Yard, job, json, rollyard};

const HELLO: &str = include_str!("../../../../docs/examples/hello.yaml");
const FORTY: &str = include_str!("../../../../docs/examples/forty.yaml");

fn with_rows(rows: &str) -> String {
    HELLO.replace("{inline: [{n: \"6\", want: \"42\"}]}", rows)
}

#[test]
fn the_examples_are_valid_without_a_yard() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [("hello.yaml", HELLO), ("forty.yaml", FORTY)] {
        std::fs::write(dir.path().join(name), text).expect("written");
        for args in [&["check", name][..], &["submit", name, "--dry-run"]] {
            let ran = rollyard(dir.path(), args);
            assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        }
    }
}

#[test]
fn every_problem_is_told_at_once_with_its_place_and_ends_with_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = HELLO.replace("timeout: 30s", "tiemout: 30s").replace("needs: [work]", "needs: [wrok]");
    std::fs::write(dir.path().join("bad.yaml"), text).expect("written");
    for args in [&["check", "bad.yaml"][..], &["submit", "bad.yaml"], &["submit", "--dry-run", "bad.yaml"]] {
        let people = rollyard(dir.path(), args);
        assert_eq!(people.code, 2, "{args:?}");
        assert!(people.stdout.is_empty() || people.stdout.ends_with('\n'), "{:?}", people.stdout);
        let said = people.stdout + &people.stderr;
        for part in [
            "bad.yaml:",
            "unknown_field",
            "timeout",
            "unknown_step",
            "error[bad_spec]: the spec has 2 errors",
        ] {
            assert!(said.contains(part), "{args:?} does not say {part}: {said}");
        }
        let json = rollyard(dir.path(), &json(args));
        assert_eq!(json.code, 2, "{args:?}");
        let findings: Vec<Value> = serde_json::from_str(&json.stdout).expect("an array");
        let codes: Vec<&str> = findings.iter().filter_map(|finding| finding["code"].as_str()).collect();
        assert_eq!(codes, ["unknown_field", "unknown_step"], "{args:?}");
        assert_eq!(findings[0]["nearest"], "timeout");
    }
}

#[test]
fn what_is_no_spec_at_all_ends_with_2() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("latin.yaml"), b"name: \xe9").expect("written");
    std::fs::write(dir.path().join("large.yaml"), vec![b'#'; (1 << 20) + 1]).expect("written");
    for (name, code) in
        [("none.yaml", "read_failed"), ("latin.yaml", "not_text"), ("large.yaml", "too_large")]
    {
        let ran = rollyard(dir.path(), &["check", name]);
        assert_eq!(ran.code, 2, "{name}");
        assert!(ran.stderr.contains(&format!("error[{code}]")), "{name}: {}", ran.stderr);
    }
}

#[test]
fn warnings_pass_unless_they_are_denied() {
    let yard = Yard::start(Script::default());
    let grader = HELLO.find("  - {name: grade").expect("a grader");
    let output = HELLO.find("output:").expect("an output");
    yard.file("plain.yaml", &(HELLO[..grader].to_owned() + &HELLO[output..]));
    for command in ["check", "submit"] {
        let ran = yard.ask(&[command, "plain.yaml"]);
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
        let ran = yard.ask(&[command, "plain.yaml", "--deny-warnings"]);
        assert_eq!(ran.code, 2, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("error[warnings_denied]"), "{command}: {}", ran.stderr);
    }
    assert_eq!(yard.seen.lock().expect("unpoisoned").submits.len(), 1);
}

#[test]
fn a_submit_sends_files_first_and_an_absolute_table() {
    let yard = Yard::start(Script::default());
    yard.file("rows.jsonl", "{\"n\": \"6\", \"want\": \"42\"}\n");
    yard.file("spec.yaml", &with_rows("{jsonl: rows.jsonl}"));
    let ran = yard.ask(&["submit", "spec.yaml", "--idempotency-key", "key-1", "--output", "quiet"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "j0000000000007\n"), "{}", ran.stderr);
    let seen = yard.seen.lock().expect("unpoisoned");
    let submit = &seen.submits[0];
    let here = yard.dir.path().canonicalize().expect("a path");
    assert_eq!(submit.table_root, here.join("out").display().to_string());
    assert_eq!((submit.idempotency_key.as_str(), submit.files.len()), ("key-1", 1));
    assert_eq!(submit.files[0].path, "rows.jsonl");
    assert_eq!(seen.blobs[0].0, submit.files[0].sha256);
    assert_eq!(seen.blobs[0].1.len() as u64, submit.files[0].size);
    assert!(submit.document.contains("rows.jsonl"));
}

#[test]
fn a_file_that_is_not_there_is_told_before_anything_is_submitted() {
    let yard = Yard::start(Script::default());
    yard.file("spec.yaml", &with_rows("{jsonl: rows.jsonl}"));
    let ran = yard.ask(&["submit", "spec.yaml"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("rows.jsonl"), "{}", ran.stderr);
    assert!(yard.seen.lock().expect("unpoisoned").submits.is_empty());
}

#[test]
fn a_relative_table_is_refused_for_a_yard_elsewhere() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("hello.yaml"), HELLO).expect("written");
    let ran = rollyard(dir.path(), &["submit", "hello.yaml", "--yard", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("error[output_relative]"), "{}", ran.stderr);
}

#[test]
fn waiting_ends_as_the_job_does() {
    let failed = |state: &str| Job {
        counts: Some(Counts { rollouts_total: 4, rollouts_ended: 4, ..Counts::default() }),
        failures: vec![FailureCount {
            domain: "task".into(),
            code: "step_exit".into(),
            rollouts: 4,
            ..FailureCount::default()
        }],
        ..job(state)
    };
    let held = Job { reason: "too many failures".into(), ..failed("held") };
    for (last, code, says) in [
        (job("finished"), 0, ""),
        (failed("finished"), 1, "no rollout ended well"),
        (job("cancelled"), 1, "ended as cancelled"),
        (held, 1, "too many failures"),
    ] {
        let state = last.state.clone();
        let yard = Yard::start(Script { watch: vec![job("running"), last], ..Script::default() });
        yard.file("hello.yaml", HELLO);
        let ran = yard.ask(&["submit", "hello.yaml", "--wait", "--output", "json"]);
        assert_eq!(ran.code, code, "{state}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{state}: {}", ran.stderr);
        let summary: Value = serde_json::from_str(&ran.stdout).expect("the summary");
        assert_eq!(summary["job"]["state"], state.as_str());
    }
}

#[test]
fn every_problem_of_the_rows_is_told_at_once_with_its_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec =
        with_rows("{jsonl: rows.jsonl}, id: \"${row.n}\"").replace("timeout: 30s", "timeout: \"${row.t}\"");
    std::fs::write(dir.path().join("spec.yaml"), spec).expect("written");
    let rows = [
        r#"{"n": "1", "want": "42", "t": "30s"}"#,
        r#"{"n": "2", "wnat": "42", "t": "30s"}"#,
        r#"{"n": ["3"], "want": "42", "t": "30s"}"#,
        r#"{"n": "4", "want": "42", "t": "soon"}"#,
        r#"{"n": "5", "want": "42", "t": "#,
        r#"{"n": "1", "want": "42", "t": "30s"}"#,
        r#"{"n": "2", "t": "30s"}"#,
    ];
    std::fs::write(dir.path().join("rows.jsonl"), rows.join("\n")).expect("written");
    for args in [&["check", "spec.yaml"][..], &["submit", "--dry-run", "spec.yaml"]] {
        let people = rollyard(dir.path(), args);
        assert_eq!(people.code, 2, "{args:?}: {}", people.stderr);
        assert!(
            people.stderr.contains("error[bad_rows]: the task rows in `rows.jsonl` have 7 errors"),
            "{}",
            people.stderr
        );
        let said = people.stdout + &people.stderr;
        assert!(said.contains(" --> rows.jsonl:2:1") && said.contains("did you mean `wnat`?"), "{said}");
        assert!(said.contains("column `want` is missing in 2 of 7 rows, first on line 2"), "{said}");
        let json = rollyard(dir.path(), &json(args));
        let findings: Vec<Value> = serde_json::from_str(&json.stdout).expect("an array");
        let told: Vec<_> = findings
            .iter()
            .map(|f| {
                (
                    f["line"].as_u64().unwrap_or(0),
                    f["code"].as_str().unwrap_or(""),
                    f["path"].as_str().unwrap_or(""),
                )
            })
            .collect();
        let expected = [
            (2, "row_missing_column", "row.want"),
            (3, "row_bad_value", "row.n"),
            // Both steps look it up.
            (4, "row_bad_value", ""),
            (4, "row_bad_value", ""),
            (5, "row_bad_value", ""),
            (6, "duplicate_task", "tasks.id"),
            (7, "duplicate_task", "tasks.id"),
        ];
        assert_eq!((json.code, told.as_slice()), (2, &expected[..]), "{args:?}");
    }
}

#[test]
fn past_the_bound_the_bad_rows_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("spec.yaml"), with_rows("{jsonl: rows.jsonl}")).expect("written");
    std::fs::write(dir.path().join("rows.jsonl"), "{\"n\": 1}\n".repeat(50)).expect("written");
    let ran = rollyard(dir.path(), &["check", "spec.yaml"]);
    assert!(
        ran.stdout.contains("column `want` is missing in 50 of 50 rows, first on line 1"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("have 1 error"), "{}", ran.stderr);
    std::fs::write(dir.path().join("rows.jsonl"), "{\"n\": [], \"want\": 1}\n".repeat(50)).expect("written");
    let ran = rollyard(dir.path(), &["check", "spec.yaml"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stdout.contains("and 30 more; the limit is 20 at once (ROW_FINDINGS_MAX)"), "{}", ran.stdout);
    assert!(ran.stderr.contains("have 50 errors"), "{}", ran.stderr);
}

#[test]
fn submit_starts_over_unless_told_to_resume() {
    use rollout_wire::v1::submit_request::IfUnfinished;
    let yard = Yard::start(Script { jobs: vec![job("running")], ..Script::default() });
    yard.file("hello.yaml", HELLO);
    for args in [&["submit", "hello.yaml"][..], &["submit", "hello.yaml", "--resume"]] {
        let ran = yard.ask(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    }
    let asked: Vec<_> = yard.seen.lock().expect("seen").submits.iter().map(|s| s.if_unfinished()).collect();
    assert_eq!(asked, [IfUnfinished::New, IfUnfinished::Resume]);
}
