//! A store that fails: definitely, with unknown outcome, for good, by a full disk, or by hand.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rollout_wire::v1;
use scheduler::store::{CommitHook, CommitPoint, DATABASE_FILE, InjectedFault};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HANG, HELLO_ROLLOUTS, Yard, code, finished, hello};

/// Polls a job until it is in `state`.
async fn in_state(yard: &Yard, job: &str, state: &str) -> v1::Job {
    let mut client = yard.client().await;
    let wait = async {
        loop {
            let found = client.get(v1::GetRequest { job: job.to_owned() }).await.unwrap().into_inner();
            if found.state == state {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("job {job} never was {state}"))
}

/// Every commit fails once at this point, then goes through.
fn every_commit_fails_once(point: CommitPoint) -> CommitHook {
    let failed = std::sync::Mutex::new(std::collections::BTreeSet::new());
    CommitHook(Arc::new(move |at, seq| {
        (at == point && failed.lock().unwrap().insert(seq)).then_some(InjectedFault)
    }))
}

async fn a_job_under(point: CommitPoint) {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.hook = Some(every_commit_fails_once(point));
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let ended = finished(&yard, &job.id).await;
    assert_eq!(ended.counts.unwrap().rollouts_ended, HELLO_ROLLOUTS);
    let summary = yard.summary(&job.id);
    assert_eq!((summary.groups, summary.trajectories), (2, HELLO_ROLLOUTS));
    assert!(executor.seen.lock().unwrap().runs.values().all(|runs| *runs == 1));
    running.stop().await;
}

#[tokio::test]
async fn a_commit_that_definitely_failed_is_tried_again() {
    a_job_under(CommitPoint::Before).await;
}

#[tokio::test]
async fn a_commit_of_unknown_outcome_that_was_lost_is_committed_again() {
    a_job_under(CommitPoint::Lost).await;
}

#[tokio::test]
async fn a_commit_of_unknown_outcome_that_was_stored_is_not_committed_twice() {
    a_job_under(CommitPoint::Answer).await;
}

async fn by_hand(yard: &Yard, statement: &str) {
    let options = SqliteConnectOptions::new().filename(yard.dir.join("data").join(DATABASE_FILE));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_scheduler_that_lost_the_epoch_steps_down_and_acknowledges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    by_hand(&yard, "UPDATE meta SET epoch = epoch + 1").await;
    assert!(client.submit(hello(&yard, "a")).await.is_err());
    let ended = tokio::time::timeout(HANG, running.handle.wait()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), "epoch_lost");
    let running = yard.start().await;
    let list = v1::ListRequest { page_size: 10, ..v1::ListRequest::default() };
    assert!(yard.client().await.list(list).await.unwrap().into_inner().jobs.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn lease_rows_deleted_by_hand_are_restored_and_the_work_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let holder = Executor::attach(&yard, Behaviour { hold: true, ..Behaviour::default() });
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let until = async |test: &dyn Fn() -> bool| {
        let wait = async {
            while !test() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG, wait).await.expect("in time");
    };
    until(&|| holder.seen.lock().unwrap().runs.len() == 8).await;
    by_hand(&yard, "DELETE FROM nodes").await;
    // The node is told, and comes back as the same incarnation: its row is there again.
    until(&|| holder.seen.lock().unwrap().welcomes.len() >= 2).await;
    let refusals: Vec<_> = holder.seen.lock().unwrap().refusals.iter().map(|r| r.code.clone()).collect();
    assert_eq!(refusals, ["lease_lost"]);
    drop(holder);
    let _worker = Executor::attach(&yard, Behaviour::default());
    let ended = finished(&yard, &job.id).await;
    assert_eq!(ended.counts.unwrap().rollouts_ended, HELLO_ROLLOUTS);
    running.stop().await;
}

/// Set in the process that runs inside its own mount namespace.
const SMALL_DISK: &str = "ROLLYARD_TEST_SMALL_DISK";

#[tokio::test]
async fn on_a_full_disk_nothing_is_acknowledged_and_nothing_is_lost() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return on_a_small_disk(Path::new(&disk)).await;
    }
    let mount = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=4m,mode=700 none \"$0\" && exec \"$@\"";
    let name = "faults::on_a_full_disk_nothing_is_acknowledged_and_nothing_is_lost";
    let spawned = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(mount.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(SMALL_DISK, mount.path())
        .output();
    match spawned {
        Ok(output) if output.status.success() => {}
        Ok(output)
            if !std::fs::metadata("/proc/self")
                .is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0) =>
        {
            skipped(&format!("a private mount namespace needs root ({})", output.status));
        }
        Ok(output) => panic!(
            "{}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => skipped(&format!("no `unshare` ({error})")),
    }
}

#[allow(clippy::print_stderr)]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

async fn on_a_small_disk(disk: &Path) {
    let roomy = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(roomy.path());
    std::os::unix::fs::symlink(disk, roomy.path().join("data")).unwrap();
    yard.blobs = Some(format!("file://{}", roomy.path().join("blobs").display()));
    let running = yard.start().await;
    let mut client = yard.client().await;
    let before = client.submit(hello(&yard, "before")).await.unwrap().into_inner().job.unwrap();
    let filler = disk.join("filler");
    let mut size = 4 << 20;
    while size > 0 {
        // As much as goes in, to the last page.
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&filler).unwrap();
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
    let _executor = Executor::attach(&yard, Behaviour::default());
    let told = async {
        loop {
            let request = v1::ExplainRequest { target: before.id.clone() };
            let lines = client.explain(request).await.unwrap().into_inner().lines;
            if lines[0].contains("does not take writes") {
                return lines;
            }
        }
    };
    let lines = tokio::time::timeout(HANG, told).await.expect("explain tells of the full disk");
    assert!(lines[0].contains("no room"), "{lines:?}");
    let (mut late, request) = (client.clone(), hello(&yard, "late"));
    let pending = tokio::spawn(async move { late.submit(request).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!pending.is_finished(), "nothing is acknowledged while nothing can be stored");
    std::fs::remove_file(&filler).unwrap();
    let late = pending.await.unwrap();
    let late =
        late.unwrap_or_else(|status| panic!("{}: {status:?}", code(&status))).into_inner().job.unwrap();
    for job in [before.id, late.id] {
        assert_eq!(finished(&yard, &job).await.counts.unwrap().rollouts_ended, HELLO_ROLLOUTS);
        assert_eq!(yard.summary(&job).trajectories, HELLO_ROLLOUTS);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_row_that_contradicts_its_type_stops_the_start_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    running.stop().await;
    by_hand(&yard, "UPDATE jobs SET state = 'dancing'").await;
    let refused = yard.try_start().await.err().expect("a refusal");
    assert_eq!(refused.code(), "row_contradicts_type");
    let text = refused.to_string();
    assert!(["`jobs`", "`state`", &job.id, "dancing"].iter().all(|part| text.contains(part)), "{text}");
    by_hand(&yard, "UPDATE jobs SET state = 'running'").await;
    yard.start().await.stop().await;
}

/// The first group of any job closes with more valid members than it has: no row can say so.
const IMPOSSIBLE: &str = "CREATE TRIGGER impossible AFTER UPDATE OF closed_seq ON groups WHEN NEW.group_index = 0 \
    BEGIN UPDATE groups SET closed_valid = 99 WHERE job = NEW.job AND group_index = 0; END";

/// A yard whose first job is held for its first group.
async fn held_for_a_row(yard: &Yard) -> (crate::yard::Running, Executor, v1::Job) {
    let running = yard.start().await;
    by_hand(yard, IMPOSSIBLE).await;
    let executor = Executor::attach(yard, Behaviour::default());
    let job = yard.client().await.submit(hello(yard, "a")).await.unwrap().into_inner().job.unwrap();
    let held = in_state(yard, &job.id, "held").await;
    (running, executor, held)
}

/// Cancelled, with everything that is known of it; asked again, nothing changes.
async fn cancelled_without_a_row(yard: &Yard, job: &str) {
    let ended = finished(yard, job).await;
    assert_eq!(ended.state, "cancelled");
    let said = ["enough; without all of its rows: ", &format!("{job}-g0"), "group_valid is 99"];
    assert!(said.iter().all(|part| ended.reason.contains(part)), "{}", ended.reason);
    let counts = ended.counts.unwrap();
    assert_eq!((counts.groups_closed, counts.groups_sealed), (2, 1));
    assert_eq!(counts.rollouts_ended, HELLO_ROLLOUTS);
    assert_eq!(yard.summary(job).trajectories, HELLO_ROLLOUTS / 2);
}

fn cancel(job: &str) -> v1::CancelRequest {
    v1::CancelRequest { job: job.to_owned(), reason: "enough".to_owned() }
}

#[tokio::test]
async fn a_job_held_for_a_group_that_cannot_be_recorded_ends_when_it_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let (running, _executor, job) = held_for_a_row(&yard).await;
    yard.client().await.cancel(cancel(&job.id)).await.unwrap();
    cancelled_without_a_row(&yard, &job.id).await;
    running.stop().await;
    // It has ended for good: the next start does not take it up.
    let running = yard.start().await;
    cancelled_without_a_row(&yard, &job.id).await;
    running.stop().await;
}

#[tokio::test]
async fn a_job_held_for_a_group_that_cannot_be_recorded_is_tried_again_and_can_be_cancelled_then() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let (running, _executor, job) = held_for_a_row(&yard).await;
    running.stop().await;
    let running = yard.start().await;
    // Told anew or not yet: either way nothing else is left to do.
    yard.client().await.cancel(cancel(&job.id)).await.unwrap();
    cancelled_without_a_row(&yard, &job.id).await;
    running.stop().await;
}

#[tokio::test]
async fn a_group_that_cannot_be_recorded_is_named_and_holds_its_job_while_the_others_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let (running, _executor, held) = held_for_a_row(&yard).await;
    let job = held.id.clone();
    let named = |text: &str| text.contains(&format!("{job}-g0")) && text.contains("group_valid is 99");
    assert!(named(&held.reason), "{}", held.reason);
    assert_eq!(held.counts.unwrap().groups_sealed, 1);
    let summary = yard.summary(&job);
    assert_eq!((summary.groups, summary.trajectories), (1, HELLO_ROLLOUTS / 2));
    let explain = v1::ExplainRequest { target: job.clone() };
    let lines = yard.client().await.explain(explain).await.unwrap().into_inner().lines;
    assert!(lines.iter().any(|line| named(line)), "{lines:?}");
    // It is no trouble of the yard: other jobs go on to their end.
    by_hand(&yard, "DROP TRIGGER impossible").await;
    let mut other = hello(&yard, "b");
    other.document.push_str("# another\n");
    let other = yard.client().await.submit(other).await.unwrap().into_inner().job.unwrap();
    assert_eq!(finished(&yard, &other.id).await.counts.unwrap().groups_sealed, 2);
    running.stop().await;
    // The next start tries again: a group that can be recorded by then ends the job.
    by_hand(&yard, "UPDATE groups SET closed_valid = 4").await;
    let running = yard.start().await;
    assert_eq!(finished(&yard, &job).await.state, "finished");
    assert_eq!(yard.summary(&job).trajectories, HELLO_ROLLOUTS);
    running.stop().await;
}
