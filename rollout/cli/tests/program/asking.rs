//! Commands that ask a yard something.

use rollout_wire::v1::{FailureCount, Job, LogsChunk, StepRow};
use serde_json::Value;
use tonic::Code;

use crate::support::{JOB, Script, Yard, job, rollyard};

const ASKING: [&[&str]; 9] = [
    &["ps"],
    &["ps", JOB],
    &["show", JOB],
    &["show", "j0000000000007-g0-s1"],
    &["explain", JOB],
    &["logs", "j0000000000007-g0-s1/work"],
    &["artifact", "j0000000000007-g0-s1/work", "answer"],
    &["cancel", JOB],
    &["nodes"],
];

fn step(name: &str) -> StepRow {
    StepRow { step: name.into(), started_at_us: Some(1), attempt: Some(0), ..StepRow::default() }
}

#[test]
fn without_a_yard_every_question_ends_with_3_and_says_how_to_get_one() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in ASKING {
        let ran = rollyard(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error[yard_unreachable]: "), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("because: No such file or directory (os error 2)"), "{}", ran.stderr);
        assert!(ran.stderr.contains("hint: start one with `rollyard dev`"), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_refusal_of_the_yard_keeps_its_code_and_hint_in_both_forms() {
    let refuse = Some((Code::FailedPrecondition, "job_final", "the job is finished", "submit it again"));
    let yard = Yard::start(Script { refuse, ..Script::default() });
    for args in ASKING {
        let ran = yard.ask(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(
            ran.stderr, "error[job_final]: the job is finished\n  hint: submit it again\n",
            "{args:?}"
        );
        let ran = yard.ask_json(args);
        let error: Value = serde_json::from_str(&ran.stderr).expect("JSON on standard error");
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(error["error"]["code"], "job_final");
        assert_eq!(error["error"]["hint"], "submit it again");
    }
}

#[test]
fn every_answer_is_one_json_document_on_standard_output() {
    let script = Script { jobs: vec![job("running")], steps: vec![step("work")], ..Script::default() };
    let yard = Yard::start(script);
    for args in ASKING.iter().filter(|args| !["logs", "artifact"].contains(&args[0])) {
        let ran = yard.ask_json(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        serde_json::from_str::<Value>(&ran.stdout).expect("JSON on standard output");
        assert_eq!(ran.stderr, "", "{args:?}");
    }
}

#[test]
fn logs_are_one_json_object_a_line() {
    let chunk = |data: &[u8]| LogsChunk { stream: "stdout".into(), data: data.to_vec(), dropped_bytes: 0 };
    let logs = vec![chunk(b"a\nb\n"), chunk(b"\xff\x1b")];
    let yard = Yard::start(Script { logs, steps: vec![step("work")], ..Script::default() });
    let ran = yard.ask_json(&["logs", "j0000000000007-g0-s1/work"]);
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!((ran.code, lines.len(), ran.stderr.as_str()), (0, 2, ""));
    assert_eq!((&lines[0]["text"], &lines[1]["hex"]), (&"a\nb\n".into(), &"ff1b".into()));
}

#[test]
fn without_a_command_there_is_help_whatever_the_environment_sets() {
    let dir = tempfile::tempdir().expect("a directory");
    let ran = rollyard(dir.path(), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("Commands:\n  run ") && !ran.stderr.starts_with("error"), "{}", ran.stderr);
}

#[test]
fn an_output_is_written_byte_for_byte() {
    let yard = Yard::start(Script::default());
    let args = ["artifact", "j0000000000007-g0-s1/work", "answer", "--attempt", "2"];
    let output = yard.command(&args).output().expect("the program starts");
    assert_eq!(output.stdout, b"work answer 2\n\xff\x1b[2J");
    let ran = yard.ask_json(&args);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (0, "{\"text\":\"work answer 2\\n\"}\n{\"hex\":\"ff1b5b324a\"}\n")
    );
    let ran = yard.ask(&["artifact", "j0000000000007-g0-s1", "answer"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("expected ROLLOUT/STEP"), "{}", ran.stderr);
}

#[test]
fn a_job_that_has_ended_is_not_cancelled_and_that_is_said() {
    let yard = Yard::start(Script { jobs: vec![job("finished")], ..Script::default() });
    let ran = yard.ask(&["cancel", JOB]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stderr, format!("job {JOB} is finished already: there was nothing to cancel\n"));
    assert!(ran.stdout.contains("state     finished\n"), "{}", ran.stdout);
    assert!(yard.seen.lock().expect("unpoisoned").cancels.is_empty());
}

#[test]
fn the_reason_of_a_cancelled_job_is_told_once() {
    let cancelled = Job {
        reason: "no more money".into(),
        failure_message: Some("no more money".into()),
        ..job("cancelled")
    };
    let yard = Yard::start(Script { jobs: vec![cancelled], ..Script::default() });
    let ran = yard.ask(&["show", JOB]);
    assert_eq!(ran.stdout.matches("no more money").count(), 1, "{}", ran.stdout);
}

#[test]
fn printed_commands_name_the_yard_as_the_command_line_did() {
    let failed = FailureCount {
        code: "step_exit".into(),
        example_rollout: format!("{JOB}-g0-s1"),
        rollouts: 1,
        ..FailureCount::default()
    };
    let yard = Yard::start(Script {
        jobs: vec![Job { failures: vec![failed], ..job("finished") }],
        ..Script::default()
    });
    let show = format!("show {JOB}-g0-s1\n");
    // The environment names the data directory.
    let ran = yard.ask(&["show", JOB]);
    assert!(ran.stdout.contains(&format!(" rollyard {show}")), "{}", ran.stdout);
    let dir = yard.dir.path().display().to_string();
    let ran = yard.ask(&["show", JOB, "--data-dir", &dir]);
    assert!(ran.stdout.contains(&format!(" rollyard --data-dir {dir} {show}")), "{}", ran.stdout);
}

#[test]
fn a_wrong_command_line_is_one_json_object_too() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        &["--output", "json"][..],
        &["--output", "json", "frobnicate"],
        &["ps", "--frob", "--output=json"],
        &["ps", "--limit", "0", "--output", "json"],
        &["show", "--output", "json"],
        &["executor", "--output", "json"],
        &["submit", "a.yaml", "--dry-run", "--wait", "--output", "json"],
    ] {
        let ran = rollyard(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {}", ran.stderr);
        let error: Value = serde_json::from_str(&ran.stderr).expect("one JSON object");
        let error = &error["error"];
        assert_eq!((&error["code"], &error["exit_code"]), (&"bad_usage".into(), &2.into()), "{args:?}");
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{args:?}: {error}");
    }
    let help = rollyard(dir.path(), &["--help", "--output", "json"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
}

#[test]
fn a_data_directory_that_cannot_be_one_says_why() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().expect("a directory");
    let deep = dir.path().join("d".repeat(100));
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    for (data_dir, says) in [(dir.path().join(bytes), "not UTF-8"), (deep, "the limit is 107")] {
        for command in ["ps", "scheduler", "dev"] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_rollyard"))
                .args([command, "--data-dir"])
                .arg(&data_dir)
                .output()
                .expect("the program starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command}: {said}");
            assert!(said.starts_with("error[bad_data_dir]: ") && said.contains(says), "{command}: {said}");
            assert!(!data_dir.exists(), "{command} made {}", data_dir.display());
        }
    }
}

#[test]
fn pages_are_followed_and_a_limit_that_hides_rows_is_said() {
    let yard = Yard::start(Script { jobs: (0..5).map(|_| job("running")).collect(), ..Script::default() });
    let all = yard.ask(&["ps", "--output", "quiet"]);
    assert_eq!((all.code, all.stdout.lines().count(), all.stderr.as_str()), (0, 5, ""));
    let some = yard.ask(&["ps", "--output", "quiet", "--limit", "3"]);
    assert_eq!((some.code, some.stdout.lines().count()), (0, 3));
    assert_eq!(some.stderr, "there are more; see them with --limit above 3\n");
}

#[test]
fn logs_go_to_the_stream_they_came_from_byte_for_byte() {
    let chunk = |stream: &str, data: &[u8], dropped_bytes| LogsChunk {
        stream: stream.into(),
        data: data.to_vec(),
        dropped_bytes,
    };
    let logs =
        vec![chunk("stdout", b"out \x1b[0m\n", 0), chunk("stderr", b"err\n", 0), chunk("stdout", b"", 4096)];
    let yard = Yard::start(Script { logs, steps: vec![step("work")], ..Script::default() });
    let ran = yard.ask(&["logs", "j0000000000007-g0-s1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "out \u{1b}[0m\n"));
    assert_eq!(
        ran.stderr,
        "step work\nerr\nstdout: 4Ki more were written and not kept (capture_truncated)\n"
    );
}

#[test]
fn an_unknown_step_is_refused_with_the_nearest_one() {
    let yard = Yard::start(Script { steps: vec![step("work"), step("grade")], ..Script::default() });
    for command in ["show", "logs"] {
        let ran = yard.ask(&[command, "j0000000000007-g0-s1/wokr"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{command}");
        assert!(ran.stderr.ends_with("  hint: did you mean `work`?\n"), "{command}: {}", ran.stderr);
    }
}

#[test]
fn wrong_words_end_with_2_before_any_yard_is_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        &["show", "nothing"][..],
        &["ps", "j1"],
        &["explain", "a/b"],
        &["ps", "--yard", "https://yard.example"],
        &["ps", "--yard", "yard.example:80"],
        &["frobnicate"],
        &["ps", "--limit", "0"],
    ] {
        let ran = rollyard(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error"), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_retry_carries_what_it_asks_for_and_says_who_is_run_again() {
    let yard = Yard::start(Script { jobs: vec![job("running")], ..Script::default() });
    let group = format!("{JOB}-g3");
    let ran = yard.ask(&["retry", &group, "--all-failed", "--idempotency-key", "k"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("again     2 rollouts\nnot       1 are data\n"), "{}", ran.stdout);
    let seen = yard.seen.lock().expect("unpoisoned").retries.remove(0);
    assert_eq!((seen.target, seen.all_failed, seen.cancelled), (group, true, false));
    assert_eq!(seen.idempotency_key, "k");
    assert_eq!(yard.ask(&["retry", "everything"]).code, 2);
}

#[test]
fn a_cancel_carries_its_reason() {
    let yard = Yard::start(Script { jobs: vec![job("running")], ..Script::default() });
    let ran = yard.ask(&["cancel", JOB, "--reason", "wrong data", "--output", "quiet"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "cancelling\n"));
    let seen = yard.seen.lock().expect("unpoisoned");
    assert_eq!((seen.cancels[0].job.as_str(), seen.cancels[0].reason.as_str()), (JOB, "wrong data"));
}
