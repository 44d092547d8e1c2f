//! Directories of Harbor tasks, from their files to rewards.

use std::fs;
use std::path::Path;

use nix::unistd::geteuid;
use serde_json::Value;

use crate::support::{Ran, Script, Yard, rollyard};

const QUIET: &str =
    "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"no-network\"\nmemory_mb = 128\n";

/// A task whose grader wants `42` in /workspace/answer, and finds nothing planted beside it.
const TESTS: &str = "#!/bin/sh\n\
    if [ -e /tests/conftest.py ]; then echo planted; exit 1; fi\n\
    if grep -qx 42 /workspace/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";

fn task(dir: &Path, name: &str, config: &str) {
    let dir = dir.join("tasks").join(name);
    for (file, text) in [
        ("task.toml", config),
        ("instruction.md", "Write 42 into answer.\n"),
        ("tests/test.sh", TESTS),
        ("solution/solve.sh", "echo 42 > answer\n"),
    ] {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }
}

fn run(dir: &Path, agent: &str) -> Ran {
    let args = ["run", "--harbor", "tasks", "--agent", agent, "--image", "host", "--output", "json", "--new"];
    rollyard(dir, &args)
}

/// Rewards by task, in the order of the tasks.
fn rewards(ran: &Ran) -> (u64, u64) {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("the summary as JSON");
    let rewards = &summary["job"]["rewards"];
    (rewards["count"].as_u64().expect("a count"), rewards["successes"].as_u64().expect("a count"))
}

#[test]
fn what_an_agent_sees_and_leaves_changes_no_reward_but_by_the_work() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    task(dir.path(), "answer", QUIET);
    let separate = QUIET.replace("[environment]", "artifacts = [\"/workspace/answer\", \"/workspace/more\"]\n[verifier]\nenvironment_mode = \"separate\"\n[environment]");
    for config in [QUIET, &separate] {
        task(dir.path(), "answer", config);
        for (agent, expected) in [
            ("oracle", (1, 1)),
            ("echo 42 > answer", (1, 1)),
            ("grep -q 42 /in/instruction.md && echo 42 > answer", (1, 1)),
            ("echo 41 > answer", (1, 0)),
            // Neither tests nor solution are anywhere in its sandbox.
            (
                "[ ! -e /tests ] && [ ! -e /solution ] && ! grep -rqs reward.txt /tests /workspace && echo 42 > answer",
                (1, 1),
            ),
            // A grader, a helper and a reward planted where the real ones will be.
            (
                "mkdir -p /tests /logs/verifier && echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh && \
                 touch /tests/conftest.py && echo 1 > /logs/verifier/reward.txt && echo 41 > answer",
                (1, 0),
            ),
            ("ln -s /nowhere /tests && echo 41 > answer", (1, 0)),
            (
                "(while :; do echo 1 > /logs/verifier/reward.txt; done) & mkdir -p /logs/verifier; echo 41 > answer",
                (1, 0),
            ),
        ] {
            let ran = run(dir.path(), agent);
            assert_eq!(rewards(&ran), expected, "{agent}: {}", ran.stderr);
        }
    }
}

/// A job over `tasks`, graded where its agent worked.
fn run_in_place(dir: &Path, agent: &str) -> Ran {
    let spec = format!(
        "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ndefaults: {{image: host}}\n\
         tasks: {{from: {{harbor: tasks, shared_as: reuse, agent: [/bin/sh, -c, {}]}}}}\n",
        Value::from(agent)
    );
    fs::write(dir.join("reuse.yaml"), spec).expect("written");
    rollyard(dir, &["run", "reuse.yaml", "--output", "json", "--new"])
}

#[test]
fn in_the_sandbox_of_the_agent_the_hidden_tests_win_over_what_it_planted() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    task(dir.path(), "answer", QUIET);
    // Only the agent's own sandbox has the socket that it leaves: no checkpoint holds one.
    let tests = TESTS
        .replace("if grep", "[ -S /workspace/alive ] && [ \"$(cat /tests/data/want)\" = 42 ] && if grep");
    fs::write(dir.path().join("tasks/answer/tests/test.sh"), tests).expect("written");
    fs::create_dir(dir.path().join("tasks/answer/tests/data")).expect("made");
    fs::write(dir.path().join("tasks/answer/tests/data/want"), "42\n").expect("written");
    let alive = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/workspace/alive\")'";
    let forged = "echo 'echo 1 > /logs/verifier/reward.txt'";
    for (work, expected) in [
        ("echo 42 > answer".to_owned(), (1, 1)),
        ("[ ! -e /tests ] && [ ! -e /solution ] && echo 42 > answer".to_owned(), (1, 1)),
        ("echo 41 > answer".to_owned(), (1, 0)),
        (
            format!(
                "echo 41 > answer; mkdir -p /tests/data; {forged} > /tests/test.sh; echo 41 > /tests/data/want; \
                 touch /tests/conftest.py"
            ),
            (1, 0),
        ),
        (
            format!("echo 41 > answer; mkdir mine; {forged} > mine/test.sh; ln -s /workspace/mine /tests"),
            (1, 0),
        ),
        ("echo 42 > answer; ln -s /nowhere /tests".to_owned(), (1, 1)),
        (
            format!(
                "mkdir -p /logs/verifier /tests; echo 41 > answer; \
                 (while :; do {forged} > /tests/test.sh; echo 1 > /logs/verifier/reward.txt; done) &"
            ),
            (1, 0),
        ),
        // What failed is graded there too.
        ("echo 42 > answer; exit 3".to_owned(), (1, 1)),
    ] {
        let ran = run_in_place(dir.path(), &format!("{alive}; {work}"));
        assert_eq!(rewards(&ran), expected, "{work}: {}", ran.stderr);
    }
}

#[test]
fn a_grader_that_failed_in_the_sandbox_of_the_agent_is_run_again_over_what_the_agent_left() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    task(dir.path(), "answer", QUIET);
    let tests =
        "if [ -S /workspace/alive ]; then echo mine > /workspace/answer; exit 0; fi\n".to_owned() + TESTS;
    fs::write(dir.path().join("tasks/answer/tests/test.sh"), tests).expect("written");
    let alive = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/workspace/alive\")'";
    let ran = run_in_place(
        dir.path(),
        &format!("{alive}; mkdir /tests; touch /tests/conftest.py; echo 42 > answer"),
    );
    assert_eq!(rewards(&ran), (1, 1), "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("the summary as JSON");
    // The agent once, the grader twice.
    assert_eq!(summary["detail"]["attempts"], 3, "{summary}");
}

/// The check makes two of three tries fail, and what it leaves is there for the agent.
#[test]
fn a_task_starts_when_its_health_check_succeeds_and_fails_with_its_words() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let checked = |command: &str, retries: u32| {
        format!("{QUIET}healthcheck = {{command = '{command}', interval_sec = 0.01, retries = {retries}}}\n")
    };
    let third = "echo x >> tries; [ $(wc -l < tries) -ge 3 ]";
    task(dir.path(), "answer", &checked(third, 3));
    let agent = "[ $(wc -l < tries) -eq 3 ] && echo 42 > answer";
    assert_eq!(rewards(&run(dir.path(), agent)), (1, 1));

    task(dir.path(), "answer", &checked("echo no database >&2; exit 3", 2));
    let spec = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks: {from: {harbor: tasks, agent: oracle}}\n\
                group: {on_incomplete: deliver}\ndefaults: {image: host, retry: {limit: 1, backoff: 1ms, max_backoff: 1ms}}\n";
    fs::write(dir.path().join("spec.yaml"), spec).expect("written");
    let ran = rollyard(dir.path(), &["run", "spec.yaml", "--output", "json", "--new"]);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("the summary as JSON");
    let failure = &summary["job"]["failures"][0];
    assert_eq!(
        (&failure["code"], &failure["domain"]),
        (&"start_failed".into(), &"sandbox".into()),
        "{summary}"
    );
    let words = failure["example"].as_str().expect("a message");
    assert!(
        words.contains("the health check failed 2 times, at last: it exited with code 3: no database"),
        "{words}"
    );
}

#[test]
fn tasks_that_cannot_run_stop_the_job_or_are_left_out_and_said_to_be() {
    let dir = tempfile::tempdir().expect("a directory");
    task(dir.path(), "a", QUIET);
    task(dir.path(), "b", "");
    task(dir.path(), "c", &format!("{QUIET}gpus = 1\n"));
    let spec = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\n\
                tasks: {from: {harbor: tasks, agent: oracle}, on_unsupported: skip}\ndefaults: {image: host}\n";
    fs::write(dir.path().join("skip.yaml"), spec).expect("written");
    fs::write(dir.path().join("error.yaml"), spec.replace("skip", "error")).expect("written");

    let ran = rollyard(dir.path(), &["check", "error.yaml", "--output", "json"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    let findings: Vec<Value> = serde_json::from_str(&ran.stdout).expect("an array");
    let codes: Vec<&str> = findings.iter().filter_map(|finding| finding["code"].as_str()).collect();
    let expected = ["grader_sees_agent_workspace", "no_token_columns", "network_public", "not_available_yet"];
    assert_eq!(codes, expected);
    assert!(
        findings[2]["message"].as_str().is_some_and(|text| text.starts_with("task `b`: its agent wants"))
    );

    let ran = rollyard(dir.path(), &["submit", "skip.yaml", "--dry-run", "--output", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let plan: Value = serde_json::from_str(&ran.stdout).expect("an object");
    assert_eq!((&plan["rows"], &plan["source"]), (&1.into(), &"harbor".into()));
    for part in ["1 of 3 tasks run", "1 network_public (b)", "1 not_available_yet (c)"] {
        assert!(ran.stderr.contains(part), "no {part} in {}", ran.stderr);
    }

    task(dir.path(), "a", "");
    let ran = rollyard(dir.path(), &["check", "skip.yaml"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!((ran.stdout + &ran.stderr).contains("none of 3 tasks can run here"));
}

#[test]
fn a_submit_stores_the_trees_that_are_used_and_rows_that_name_them() {
    let yard = Yard::start(Script::default());
    let dir = yard.file("job.yaml", "").parent().expect("a directory").to_owned();
    task(&dir, "a", QUIET);
    task(&dir, "b", QUIET);
    let spec = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\n\
                tasks: {from: {harbor: tasks, agent: [x]}}\ndefaults: {image: host}\n";
    yard.file("job.yaml", spec);
    let ran = yard.ask(&["submit", "job.yaml", "--table", "out"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let seen = yard.seen.lock().expect("seen");
    let submit = seen.submits.first().expect("a submit");
    assert_eq!(submit.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["tasks"]);
    let (_, rows) = seen.blobs.iter().find(|(sha256, _)| *sha256 == submit.files[0].sha256).expect("rows");
    let rows: Vec<Value> = str::from_utf8(rows)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    assert_eq!(rows.iter().map(|row| row["task"].as_str()).collect::<Vec<_>>(), [Some("a"), Some("b")]);
    for row in &rows {
        assert!(row["tests"].as_str().is_some_and(|layer| layer.starts_with("layer:")), "{row}");
        // The agent is no oracle: nobody looks the solution up.
        assert_eq!((&row["solution"], &row["environment"]), (&Value::Null, &Value::Null));
    }
    // The same tree is one blob.
    assert_eq!(rows[0]["tests"], rows[1]["tests"]);
    assert_eq!(seen.blobs.len(), 2);
}

#[test]
fn a_command_line_becomes_a_spec_that_can_be_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    task(dir.path(), "a", QUIET);
    let agent = "my-agent \"${HOME}\" /in/instruction.md";
    let args = ["run", "--harbor", "tasks", "--agent", agent, "--n", "8", "--image", "host", "--print-spec"];
    let ran = rollyard(dir.path(), &args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in
        ["name: \"tasks\"", "group: {size: 8}", "image: \"host\"", "  - name: grade", "isolate: fresh"]
    {
        assert!(ran.stdout.contains(part), "no {part} in {}", ran.stdout);
    }
    let model = rollyard(dir.path(), &["run", "--harbor", "tasks", "--agent", "x", "--model", "http://m/v1"]);
    assert_eq!(model.code, 2);
    assert!(model.stderr.contains("error[not_available_yet]: --model `http://m/v1`"), "{}", model.stderr);
    for args in
        [&["run"][..], &["run", "--harbor", "tasks"], &["run", "--agent", "x"], &["run", "a", "--n", "2"]]
    {
        let ran = rollyard(dir.path(), args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
    }
}
