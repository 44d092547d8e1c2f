//! Commands about sandboxes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;

use rollout_wire::v1::FileInfo;
use serde_json::{Value, json};

use crate::sandbox_yard::{ENDED, SANDBOX, SESSION, SandboxYard};
use crate::support::{Ran, rollyard};

fn ok(ran: Ran) -> Ran {
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    ran
}

#[test]
fn without_a_yard_each_ends_with_3_and_a_name_that_is_none_with_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = format!("{SANDBOX}:/a");
    let lines: [&[&str]; 9] = [
        &["sandbox", "create"],
        &["sandbox", "ls"],
        &["sandbox", "show", SANDBOX],
        &["exec", SANDBOX, "--", "true"],
        &["cp", &copy, "a"],
        &["fork", SANDBOX],
        &["pause", SANDBOX],
        &["kill", SANDBOX],
        &["checkpoint", "take", SANDBOX],
    ];
    for args in lines {
        let ran = rollyard(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error[yard_unreachable]: "), "{args:?}: {}", ran.stderr);
    }
    for args in
        [&["exec", "nobody", "--", "true"][..], &["kill", "j1"], &["cp", "a", "b:c"], &["pause", "x@y"]]
    {
        let ran = rollyard(dir.path(), args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error[bad_target]: "), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("rollyard sandbox ls"), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_sandbox_is_created_with_what_was_said_and_its_id_is_the_answer() {
    let yard = SandboxYard::start();
    let ran = ok(yard.ask(&[
        "sandbox",
        "create",
        "--image",
        "debian:12",
        "--cpu",
        "500m",
        "--limit-pids",
        "9",
        "--label",
        "run=a",
        "--label",
        "who=me",
        "-e",
        "A=b=c",
        "--idle-timeout",
        "90s",
        "--timeout",
        "2h",
        "--idempotency-key",
        "k-1",
    ]));
    assert_eq!(ran.stdout, format!("{SANDBOX}\n"));
    ok(yard.ask(&["sandbox", "create"]));
    let seen = yard.seen.lock().expect("unpoisoned");
    let [first, second] = seen.creates.as_slice() else { panic!("two creates") };
    assert_eq!(
        (first.image.as_str(), first.request_cpu.as_str(), first.limit_pids),
        ("debian:12", "500m", Some(9))
    );
    assert_eq!(first.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["run=a", "who=me"]);
    assert_eq!((first.env["A"].as_str(), first.idempotency_key.as_str()), ("b=c", "k-1"));
    assert_eq!(
        (first.idle_timeout_ms, first.timeout_ms, first.start_timeout_ms),
        (Some(90_000), Some(7_200_000), None)
    );
    assert_eq!((second.image.as_str(), second.idempotency_key.len()), ("host", 32));
}

#[test]
fn the_list_follows_its_pages_and_stops_at_the_limit() {
    let yard = SandboxYard::start();
    let all: Value =
        serde_json::from_str(&ok(yard.ask(&["sandbox", "ls", "--output", "json"])).stdout).expect("JSON");
    assert_eq!(all.as_array().expect("a list").len(), 5);
    let some = ok(yard.ask(&["sandbox", "ls", "--limit", "3", "--output", "quiet", "-l", "a=b,c=d"]));
    assert_eq!(some.stdout.lines().count(), 3);
    assert!(some.stderr.contains("--limit above 3"), "{}", some.stderr);
    let seen = yard.seen.lock().expect("unpoisoned");
    let last = seen.lists.last().expect("a list");
    assert_eq!(last.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["a=b", "c=d"]);
}

#[test]
fn a_kill_names_what_it_ended_and_what_it_could_not() {
    let yard = SandboxYard::start();
    let (a, b, c) = ("j0000000000001-g0-s0@n", "j0000000000002-g0-s0@n", "j0000000000003-g0-s0@n");
    let ran = yard.ask(&["kill", a, b, c]);
    assert_eq!((ran.code, ran.stdout), (1, format!("{a}\n{c}\n")));
    assert!(ran.stderr.contains(&format!("{b}: its node does not answer (node_lost)")), "{}", ran.stderr);
    assert!(ran.stderr.contains("error[kill_failed]: 1 of the sandboxes"), "{}", ran.stderr);
    let ran = yard.ask(&["kill", a, b, "--output", "json"]);
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        (ran.code, &told["killed"], &told["failed"][0]["code"]),
        (1, &json!([a]), &json!("node_lost"))
    );
    ok(yard.ask(&["kill", "--selector", "run=a", "--reason", "enough"]));
    let seen = yard.seen.lock().expect("unpoisoned");
    let last = seen.kills.last().expect("a kill");
    assert_eq!((last.sandboxes.len(), last.labels["run"].as_str(), last.reason.as_str()), (0, "a", "enough"));
}

#[test]
fn a_session_is_its_drivers_and_its_job_is_cancelled() {
    let yard = SandboxYard::start();
    let ran = yard.ask(&["exec", SESSION, "--", "true"]);
    let words =
        format!("error[claim_lost]: {SESSION} is a session of job j0000000000008: its driver holds it");
    assert!(ran.code == 1 && ran.stderr.starts_with(&words), "{}", ran.stderr);
    assert!(ran.stderr.contains("client.drive"), "{}", ran.stderr);
    let ran = yard.ask(&["kill", SESSION]);
    assert!(ran.code == 1 && ran.stderr.contains("`rollyard cancel j0000000000008`"), "{}", ran.stderr);
}

#[test]
fn a_kill_that_ended_nothing_says_so() {
    let yard = SandboxYard::start();
    for (args, words) in [
        (&["kill", ENDED][..], "nothing was ended: it had ended before\n"),
        (&["kill", "--selector", "run=none"], "nothing was ended: no sandbox that runs has these labels\n"),
    ] {
        let ran = ok(yard.ask(args));
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", words));
    }
    assert_eq!(ok(yard.ask(&["kill", SANDBOX])).stderr, "");
}

#[test]
fn a_command_that_stands_beside_sandbox_is_pointed_at() {
    let dir = tempfile::tempdir().expect("a directory");
    for command in ["kill", "exec", "fork"] {
        let ran = rollyard(dir.path(), &["sandbox", command, SANDBOX]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(&format!("use `rollyard {command}`")), "{}", ran.stderr);
    }
    let ran = rollyard(dir.path(), &["sandbox", "lst"]);
    assert!(ran.stderr.contains("'ls'") && !ran.stderr.contains("use `"), "{}", ran.stderr);
}

#[test]
fn forks_pauses_and_checkpoints_print_what_a_script_needs() {
    let yard = SandboxYard::start();
    let forks = ok(yard.ask(&["fork", SANDBOX, "-n", "3", "--label", "x=y"]));
    assert_eq!(forks.stdout.lines().count(), 3);
    let paused = ok(yard.ask(&["pause", SANDBOX, "--version", "3", "--output", "json"]));
    let told: Value = serde_json::from_str(&paused.stdout).expect("JSON");
    assert_eq!(
        (&told["rung"], &told["version"], &told["sandbox"]),
        (&json!("frozen"), &json!(4), &json!(SANDBOX))
    );
    assert_eq!(ok(yard.ask(&["resume", SANDBOX, "--output", "quiet"])).stdout, "running\n");
    assert_eq!(ok(yard.ask(&["checkpoint", "take", SANDBOX])).stdout, "sha256:7\n");
    assert_eq!(ok(yard.ask(&["sandbox", "show", SANDBOX, "--output", "quiet"])).stdout, "paused\n");
    let seen = yard.seen.lock().expect("unpoisoned");
    assert_eq!((seen.forks[0].count, seen.forks[0].labels["x"].as_str()), (3, "y"));
    assert_eq!(seen.pauses[0].version, Some(3));
}

/// Runs `rollyard` with this on its standard input.
fn fed(yard: &SandboxYard, args: &[&str], input: &[u8]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rollyard"));
    command.args(args).current_dir(yard.dir.path()).env("ROLLYARD_DATA_DIR", yard.dir.path());
    command.env_remove("ROLLYARD_YARD").env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    // A command that does not read it may be gone.
    _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("ended")
}

#[test]
fn exec_passes_streams_and_the_exit_code_on() {
    let yard = SandboxYard::start();
    let script = "cat; echo out; echo err >&2; exit 7";
    let ran = fed(&yard, &["exec", "-i", SANDBOX, "--", "sh", "-c", script], b"in\0\xff\n");
    assert_eq!(ran.status.code(), Some(7));
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (&b"in\0\xff\nout\n"[..], &b"err\n"[..]));
    // More than waits anywhere on the way.
    let much = vec![b'x'; 3 << 20];
    assert_eq!(fed(&yard, &["exec", "-i", SANDBOX, "cat"], &much).stdout, much);
    // Without -i nothing is read, and the command sees the end at once.
    let ran = fed(&yard, &["exec", SANDBOX, "--", "cat"], b"not this");
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0));
    let ran = yard.ask(&["exec", SANDBOX, "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(ran.code, 137, "{}", ran.stderr);
    for (command, code, is_hinted) in
        [("/nowhere", 127, false), ("/etc/passwd", 126, false), ("echo a", 127, true)]
    {
        let ran = yard.ask(&["exec", SANDBOX, "--", command]);
        assert_eq!(ran.code, code, "{command}");
        assert!(ran.stderr.starts_with("error[command_not_started]: "), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("-- sh -c '...'"), is_hinted, "{}", ran.stderr);
    }
    let ran = yard.ask(&["exec", "-t", SANDBOX, "--", "true"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.starts_with("error[no_terminal]: "), "{}", ran.stderr);
}

#[test]
fn exec_as_json_is_an_object_a_piece_and_the_end() {
    let yard = SandboxYard::start();
    let line = ["exec", SANDBOX, "-e", "A=b", "-w", "/d", "--timeout", "3s", "--output", "json", "--"];
    let ran = yard.ask(&[&line[..], &["printf", "ab\\377"]].concat());
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0], json!({ "stream": "stdout", "hex": "6162ff" }));
    assert_eq!(lines.last(), Some(&json!({ "exit_code": 0, "signal": null, "timed_out": false })));
    let seen = yard.seen.lock().expect("unpoisoned");
    let start = &seen.execs[0];
    assert_eq!((start.env["A"].as_str(), start.cwd.as_str(), start.timeout_ms), ("b", "/d", Some(3000)));
    assert_eq!((start.pty, start.detach), (None, false));
}

#[test]
fn a_persistent_shell_is_fed_line_by_line() {
    let yard = SandboxYard::start();
    let ran = fed(&yard, &["attach", SANDBOX, "--shell", "main", "--timeout", "9s"], b"one\n\n  \nthree\r\n");
    assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(5), &b"one\nthree\n"[..]));
    let ran = fed(&yard, &["attach", SANDBOX, "--shell", "main"], b"one\nlost\nnever\n");
    assert_eq!(ran.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&ran.stderr).starts_with("error[outcome_unknown]: "));
    let ran = fed(&yard, &["attach", SANDBOX, "--shell", "main", "--output", "json"], b"one");
    let told: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(
        (&told["command"], &told["exit_code"], &told["stdout"]),
        (&json!("one"), &json!(3), &json!("one\n"))
    );
    let ran = fed(&yard, &["attach", SANDBOX], b"");
    assert_eq!(ran.status.code(), Some(2), "no terminal");
    let seen = yard.seen.lock().expect("unpoisoned");
    let runs: Vec<_> = seen.acts.iter().map(|act| act.action_id.clone()).collect();
    assert_eq!(runs.iter().collect::<std::collections::BTreeSet<_>>().len(), runs.len(), "{runs:?}");
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let yard = SandboxYard::start();
    fs::create_dir_all(yard.here("tree/sub/empty")).expect("made");
    for (name, text, mode) in [("a", "one", 0o600), ("run.sh", "#!/bin/sh\n", 0o755), ("sub/b", "", 0o444)] {
        fs::write(yard.here("tree").join(name), text).expect("written");
        fs::set_permissions(yard.here("tree").join(name), fs::Permissions::from_mode(mode)).expect("set");
    }
    let to = format!("{SANDBOX}:/copy");
    let ran = ok(yard.ask(&["cp", "tree", &to, "--output", "json"]));
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((&told["files"], &told["directories"], &told["bytes"]), (&json!(3), &json!(3), &json!(13)));
    ok(yard.ask(&["cp", &to, "back"]));
    for (name, text, mode) in [("a", "one", 0o600), ("run.sh", "#!/bin/sh\n", 0o755), ("sub/b", "", 0o444)] {
        for at in [yard.there("copy").join(name), yard.here("back").join(name)] {
            assert_eq!(fs::read_to_string(&at).expect("there"), text, "{}", at.display());
            assert_eq!(
                fs::metadata(&at).expect("there").permissions().mode() & 0o777,
                mode,
                "{}",
                at.display()
            );
        }
    }
    assert!(yard.here("back/sub/empty").is_dir());
    // Below a directory that is there, and never over one.
    ok(yard.ask(&["cp", "tree/a", &to]));
    assert_eq!(fs::read_to_string(yard.there("copy/a")).expect("there"), "one");
    ok(yard.ask(&["cp", &to, "back"]));
    assert!(yard.here("back/copy/run.sh").exists());
    for line in
        [["cp", to.as_str(), "back"], ["cp", "tree", &format!("{SANDBOX}:/")]].iter().zip([true, false])
    {
        if !line.1 {
            fs::create_dir(yard.there("tree")).expect("made");
        }
        let ran = yard.ask(line.0);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.starts_with("error[output_exists]: "), "{}", ran.stderr);
    }
    let ran = yard.ask(&["cp", &format!("{SANDBOX}:/nothing"), "x"]);
    assert!(ran.stderr.starts_with("error[no_such_file]: "), "{}", ran.stderr);
}

#[test]
fn links_come_out_as_links_and_what_is_left_out_is_named() {
    let yard = SandboxYard::start();
    fs::create_dir(yard.there("d")).expect("made");
    symlink("/etc/passwd", yard.there("d/link")).expect("made");
    nix::unistd::mkfifo(&yard.there("d/pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    fs::write(yard.there("d/z"), "z").expect("written");
    let ran = yard.ask(&["cp", &format!("{SANDBOX}:/d"), "out"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("/d/pipe") && ran.stdout.contains("fifo"), "{}", ran.stdout);
    assert!(ran.stderr.starts_with("error[copy_incomplete]: 1 of what"), "{}", ran.stderr);
    assert_eq!(fs::read_link(yard.here("out/link")).expect("a link").to_str(), Some("/etc/passwd"));
    assert_eq!(fs::read_to_string(yard.here("out/z")).expect("there"), "z");
    // The other way a link cannot be made: it is named, the rest is copied.
    fs::remove_file(yard.there("d/pipe")).expect("removed");
    let ran = yard.ask(&["cp", "out", &format!("{SANDBOX}:/e")]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("out/link"), "{}", ran.stdout);
    assert!(yard.there("e/z").exists() && !yard.there("e/link").exists());
}

#[test]
fn no_name_leads_out_of_a_copy() {
    let file = |path: &str, kind: &str, size| FileInfo {
        path: path.into(),
        kind: kind.into(),
        size,
        symlink_target: "/tmp".into(),
        ..FileInfo::default()
    };
    let lies = [
        vec![file("..", "directory", 0)],
        vec![file("/d/..", "directory", 0)],
        vec![file("", "file", 0)],
        // A link, and then a directory of its name: what is in it would go where the link leads.
        vec![file("a", "symlink", 0), file("a", "directory", 0)],
    ];
    for lie in lies {
        let yard = SandboxYard::lying(lie.clone());
        fs::create_dir(yard.there("d")).expect("made");
        fs::create_dir(yard.here("in")).expect("made");
        let ran = yard.ask(&["cp", &format!("{SANDBOX}:/d"), "in/out"]);
        assert!(ran.code == 1 || ran.code == 2, "{lie:?}: {}{}", ran.stdout, ran.stderr);
        let told = ["error[bad_answer]: ", "error[output_exists]: "];
        assert!(told.iter().any(|code| ran.stderr.starts_with(code)), "{lie:?}: {}", ran.stderr);
        assert_eq!(fs::read_dir(yard.here("in")).expect("there").count(), 1, "{lie:?}");
    }
}

#[test]
fn a_copy_is_of_one_version_and_within_its_bound() {
    let grown = FileInfo { path: "f".into(), kind: "file".into(), size: 1, ..FileInfo::default() };
    let yard = SandboxYard::lying(vec![grown]);
    fs::create_dir(yard.there("d")).expect("made");
    fs::write(yard.there("d/f"), "more than it said").expect("written");
    let ran = yard.ask(&["cp", &format!("{SANDBOX}:/d"), "out"]);
    assert!(ran.stderr.contains("has more bytes than it is said to have"), "{}", ran.stderr);
    assert_eq!(fs::read_dir(yard.here("out")).expect("there").count(), 0, "nothing of it is left");

    let yard = SandboxYard::start();
    fs::write(yard.there("big"), vec![0; 5000]).expect("written");
    for (from, to) in
        [(format!("{SANDBOX}:/big"), "x".to_owned()), ("big".to_owned(), format!("{SANDBOX}:/y"))]
    {
        fs::write(yard.here("big"), vec![0; 5000]).expect("written");
        let ran = yard.ask(&["cp", &from, &to, "--max-bytes", "4Ki"]);
        assert_eq!(ran.code, 1);
        assert!(
            ran.stderr.starts_with("error[copy_too_large]: the copy has more than 4096 bytes"),
            "{}",
            ran.stderr
        );
        let copy = if to == "x" { yard.here("x") } else { yard.there("y") };
        assert!(!copy.exists());
        ok(yard.ask(&["cp", &from, &to, "--max-bytes", "5000"]));
    }
}
