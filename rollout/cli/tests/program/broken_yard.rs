//! A `run` whose own yard fails under it: it says what failed, not what that led to.

use std::io::{BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command};
use std::time::{Duration, Instant};

use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::run::{SLOW, sandboxes, signal, started, summary};
use crate::support::rollyard;

/// Changes the books of a yard behind its back.
fn by_hand(dir: &Path, statement: &'static str) -> u64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = SqliteConnectOptions::new().filename(dir.join("yard.db"));
        let mut connection = SqliteConnection::connect_with(&options).await.expect("opened");
        let done = sqlx::query(statement).execute(&mut connection).await.expect("done");
        connection.close().await.expect("closed");
        done.rows_affected()
    })
}

fn ended(mut child: Child, mut said: BufReader<ChildStderr>) -> (i32, String) {
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    (child.wait().expect("ended").code().expect("an exit code"), rest)
}

#[test]
fn a_run_whose_scheduler_stopped_says_why_it_did() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (child, said) = started(dir.path(), "running 1");
    assert_eq!(by_hand(dir.path(), "DELETE FROM attempts WHERE ended_at IS NULL"), 1);
    let (code, said) = ended(child, said);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("error[store_diverged]"), "{said}");
    assert!(!said.contains("error[stopping]"), "{said}");
}

#[test]
fn a_run_whose_books_cannot_be_read_does_not_say_that_no_yard_answers() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let (child, said) = started(dir.path(), "running 1");
    by_hand(dir.path(), "ALTER TABLE rollouts RENAME TO away");
    let (code, said) = ended(child, said);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("error[store_failed]"), "{said}");
}

#[test]
fn an_interrupt_ends_a_run_that_waits_for_its_submit_to_be_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    let first = rollyard(dir.path(), &["run", "slow.yaml", "--output", "json"]);
    assert_eq!(summary(&first)["job"]["rewards"]["successes"], 1);
    // What a full disk does, at no cost to the machine.
    by_hand(
        dir.path(),
        "CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'no room for jobs'); END",
    );
    let (child, said) = started(dir.path(), "the store does not take writes");
    let asked_at = Instant::now();
    signal(&child);
    let (code, said) = ended(child, said);
    assert_eq!(code, 130, "{said}");
    // It gives up a submit only after 30 s.
    assert!(asked_at.elapsed() < Duration::from_secs(15), "{:?}: {said}", asked_at.elapsed());
}

#[test]
fn a_data_directory_that_takes_no_writes_is_named_with_the_way_around() {
    let dir = tempfile::tempdir().expect("a directory");
    if !sandboxes(dir.path()) {
        return;
    }
    std::fs::write(dir.path().join("slow.yaml"), SLOW).expect("written");
    // Root writes anywhere but on a file system that is read-only. The mount is the shell's own.
    let script =
        r#"mount -t tmpfs -o ro,size=1m none "$1/yard" && exec "$0" --data-dir "$1/yard" run "$1/slow.yaml""#;
    std::fs::create_dir(dir.path().join("yard")).expect("made");
    let ran = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .args([Path::new(env!("CARGO_BIN_EXE_rollyard")), dir.path()])
        .output()
        .expect("unshare starts");
    let said = String::from_utf8(ran.stderr).expect("text");
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for part in ["error[data_dir_failed]", "Read-only file system", "hint: ", "choose another data directory"]
    {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
}
