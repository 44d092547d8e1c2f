//! Schedules on a clock that the test turns. No job here ends by itself unless an executor is attached.

use std::time::Duration;

use rollout::Timestamp;
use rollout_wire::v1;
use scheduler::ScheduleClock;
use scheduler::store::CommitPoint;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::executor::{Behaviour, Executor};
use crate::restarts::die_at;
use crate::yard::{HANG, HELLO, Running, Yard, code, finished, hello};

const HOUR_US: i64 = 3_600_000_000;
/// 2026-03-28T00:00:00Z.
const START_US: i64 = 1_774_656_000_000_000;

/// A yard and its clock, at midnight.
fn yard(dir: &std::path::Path) -> (Yard, watch::Sender<Timestamp>) {
    let (clock, set) = watch::channel(Timestamp(START_US));
    (Yard { clock: ScheduleClock::Set(set), ..Yard::new(dir) }, clock)
}

/// Minutes since midnight.
fn turn(clock: &watch::Sender<Timestamp>, minutes: i64) {
    clock.send_replace(Timestamp(START_US + minutes * HOUR_US / 60));
}

fn scheduled(yard: &Yard, key: &str, schedule: &str) -> v1::SubmitRequest {
    v1::SubmitRequest { document: format!("{HELLO}schedule: {{{schedule}}}\n"), ..hello(yard, key) }
}

async fn register(yard: &Yard, key: &str, schedule: &str) -> v1::SubmitReply {
    let reply = yard.client().await.submit(scheduled(yard, key, schedule)).await.unwrap().into_inner();
    assert_eq!(reply.job, None, "a schedule is no job");
    reply
}

async fn show(yard: &Yard, schedule: &str) -> v1::Schedule {
    let request = v1::GetScheduleRequest { schedule: schedule.to_owned() };
    yard.client().await.get_schedule(request).await.unwrap().into_inner()
}

async fn jobs(yard: &Yard) -> Vec<v1::Job> {
    let request = v1::ListRequest { page_size: 100, ..v1::ListRequest::default() };
    yard.client().await.list(request).await.unwrap().into_inner().jobs
}

/// Waits until the schedule is as wanted.
async fn until(yard: &Yard, schedule: &str, wanted: impl Fn(&v1::Schedule) -> bool) -> v1::Schedule {
    let look = async {
        loop {
            let row = show(yard, schedule).await;
            if wanted(&row) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, look).await.expect("the schedule comes to that")
}

/// Until it has ended.
async fn cancel(yard: &Yard, job: &str) {
    let request = v1::CancelRequest { job: job.to_owned(), reason: "test".to_owned() };
    yard.client().await.cancel(request).await.unwrap();
    finished(yard, job).await;
}

async fn fire(yard: &Yard, schedule: &str, key: &str) -> v1::FireScheduleReply {
    let request = v1::FireScheduleRequest { schedule: schedule.to_owned(), idempotency_key: key.to_owned() };
    yard.client().await.fire_schedule(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_schedule_is_kept_with_its_next_fires_and_replaced_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, clock) = yard(dir.path());
    let running = yard.start().await;
    let nightly = "cron: \"30 2 * * *\", timezone: Europe/Berlin";
    let reply = register(&yard, "a", nightly).await;
    let first = reply.schedule.unwrap();
    // 02:30 is skipped on the 29th.
    assert_eq!(first.next, ["2026-03-28 02:30", "2026-03-29 03:00", "2026-03-30 02:30"]);
    assert_eq!((first.enabled, first.overlap.as_str(), reply.replaced), (true, "skip", false));
    // The same request again is the same schedule; the same key for another is refused.
    let again = register(&yard, "a", nightly).await;
    assert_eq!((again.schedule.unwrap().id, again.replaced), (first.id.clone(), false));
    let other = scheduled(&yard, "a", "cron: \"0 5 * * *\"");
    let refused = yard.client().await.submit(other).await.unwrap_err();
    assert_eq!(code(&refused), "idempotency_request_mismatch");

    turn(&clock, 10);
    let replacing = register(&yard, "b", "cron: \"0 5 * * *\", overlap: queue, enabled: false").await;
    let second = replacing.schedule.unwrap();
    assert_eq!((second.id.as_str(), replacing.replaced), (first.id.as_str(), true));
    assert_eq!(
        (second.enabled, second.overlap.as_str(), second.cron.as_str()),
        (false, "queue", "0 5 * * *")
    );
    let list = yard.client().await.list_schedules(v1::ListSchedulesRequest {}).await.unwrap().into_inner();
    assert_eq!(list.schedules, std::slice::from_ref(&second));

    // Another project has names of its own, and a name of two is none.
    let mut elsewhere = scheduled(&yard, "c", nightly);
    elsewhere.document = elsewhere.document.replace("name: hello", "name: hello\nproject: b");
    let third = yard.client().await.submit(elsewhere).await.unwrap().into_inner().schedule.unwrap();
    assert_ne!(third.id, first.id);
    let request = v1::GetScheduleRequest { schedule: "hello".to_owned() };
    let refused = yard.client().await.get_schedule(request).await.unwrap_err();
    assert_eq!(code(&refused), "bad_request");
    assert!(refused.message().contains(&third.id) && refused.message().contains(&first.id), "{refused:?}");

    let request = v1::RemoveScheduleRequest { schedule: third.id.clone() };
    yard.client().await.remove_schedule(request.clone()).await.unwrap();
    assert_eq!(code(&yard.client().await.remove_schedule(request).await.unwrap_err()), "not_found");
    assert_eq!(show(&yard, "hello").await.id, first.id);
    assert!(jobs(&yard).await.is_empty());

    // Whoever wants a job of it now gets one.
    let once = v1::SubmitRequest { once: true, ..scheduled(&yard, "d", nightly) };
    let reply = yard.client().await.submit(once).await.unwrap().into_inner();
    assert!(reply.job.is_some() && reply.schedule.is_none());
    running.stop().await;
}

#[tokio::test]
async fn each_fire_time_starts_one_job_over_the_files_of_the_submit() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, clock) = yard(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let rows = "{\"n\": \"1\", \"want\": \"7\"}\n{\"n\": \"2\", \"want\": \"14\"}\n{\"n\": \"3\", \"want\": \"21\"}\n";
    let sha256 = hex::encode(Sha256::digest(rows));
    let size = rows.len() as u64;
    let chunk = v1::BlobChunk { sha256: sha256.clone(), data: rows.into(), size: Some(size) };
    yard.client().await.put_blob(tokio_stream::iter([chunk])).await.unwrap();
    let mut request = scheduled(&yard, "a", "cron: \"0 * * * *\"");
    let inline = "{inline: [{n: \"6\", want: \"42\"}, {n: \"7\", want: \"49\"}]}";
    request.document = request.document.replace(inline, "{jsonl: rows.jsonl}");
    assert_eq!(code(&yard.client().await.submit(request.clone()).await.unwrap_err()), "file_missing");
    request.files = vec![v1::ClientFile { path: "rows.jsonl".to_owned(), sha256, size }];
    let schedule = yard.client().await.submit(request).await.unwrap().into_inner().schedule.unwrap().id;

    for hour in 1..=3 {
        // Nothing happens in between.
        turn(&clock, hour * 60 - 1);
        turn(&clock, hour * 60);
        let fires = u64::try_from(hour).unwrap();
        let row = until(&yard, &schedule, |row| row.fired == fires).await;
        assert_eq!(row.last_fire_at_us, Some(START_US + hour * HOUR_US));
        let job = finished(&yard, &row.last_job.unwrap()).await;
        assert_eq!((job.state.as_str(), job.counts.unwrap().groups_sealed), ("finished", 3));
    }
    assert_eq!(jobs(&yard).await.len(), 3);
    drop(executor);
    running.stop().await;
}

#[tokio::test]
async fn a_fire_that_meets_the_job_before_is_left_out_waits_or_replaces_it() {
    for overlap in ["skip", "queue", "replace"] {
        let dir = tempfile::tempdir().unwrap();
        let (yard, clock) = yard(dir.path());
        let running = yard.start().await;
        let reply = register(&yard, "a", &format!("cron: \"0 * * * *\", overlap: {overlap}")).await;
        let id = reply.schedule.unwrap().id;
        turn(&clock, 60);
        let first = until(&yard, &id, |row| row.fired == 1).await.last_job.unwrap();
        turn(&clock, 120);
        match overlap {
            "skip" => {
                let row = until(&yard, &id, |row| row.skipped == 1).await;
                assert_eq!((row.fired, row.last_job.as_ref()), (1, Some(&first)));
                assert!(
                    row.problem.starts_with("the fire of 2026-03-28 02:00 was left out"),
                    "{}",
                    row.problem
                );
                cancel(&yard, &first).await;
                turn(&clock, 180);
                until(&yard, &id, |row| row.fired == 2 && row.problem.is_empty()).await;
            }
            "queue" => {
                let row = until(&yard, &id, |row| row.waiting_at_us.is_some()).await;
                assert_eq!((row.fired, row.waiting_at_us), (1, Some(START_US + 2 * HOUR_US)));
                turn(&clock, 180);
                let row = until(&yard, &id, |row| row.skipped == 1).await;
                assert!(row.problem.contains("WAITING_FIRES_MAX"), "{}", row.problem);
                assert_eq!(row.waiting_at_us, Some(START_US + 2 * HOUR_US));
                // The end of the first job, and not the clock, starts what waits.
                cancel(&yard, &first).await;
                let row = until(&yard, &id, |row| row.fired == 2).await;
                assert_eq!((row.waiting_at_us, row.last_fire_at_us), (None, Some(START_US + 2 * HOUR_US)));
                assert_ne!(row.last_job, Some(first));
            }
            _ => {
                let row = until(&yard, &id, |row| row.fired == 2).await;
                let job = finished(&yard, &first).await;
                assert_eq!(job.state, "cancelled");
                let why = job.failure_message.unwrap();
                assert_eq!(
                    why,
                    format!("replaced by job {}, which schedule {id} fired", row.last_job.unwrap())
                );
            }
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn fires_missed_while_no_scheduler_ran_are_counted_once_and_caught_up_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, clock) = yard(dir.path());
    let running = yard.start().await;
    let drops = register(&yard, "a", "cron: \"0 * * * *\"").await.schedule.unwrap().id;
    let mut request = scheduled(&yard, "b", "cron: \"0 * * * *\", overlap: queue, catch_up: true");
    request.document = request.document.replace("name: hello", "name: catches");
    let catches = yard.client().await.submit(request).await.unwrap().into_inner().schedule.unwrap().id;
    running.stop().await;

    turn(&clock, 5 * 60 + 30);
    let running = yard.start().await;
    let row = until(&yard, &drops, |row| row.missed > 0).await;
    assert_eq!((row.missed, row.fired, row.last_job), (5, 0, None));
    assert_eq!(row.problem, "5 fire times passed while no scheduler ran or could take them");
    let row = until(&yard, &catches, |row| row.waiting_at_us.is_some()).await;
    assert_eq!((row.missed, row.fired, row.last_fire_at_us), (3, 1, Some(START_US + 4 * HOUR_US)));
    assert_eq!(row.waiting_at_us, Some(START_US + 5 * HOUR_US));
    running.stop().await;

    // Told again, nothing is counted twice.
    let running = yard.start().await;
    turn(&clock, 5 * 60 + 31);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((show(&yard, &drops).await.missed, show(&yard, &catches).await.missed), (5, 3));
    running.stop().await;
}

async fn restarted(yard: &Yard) -> Running {
    loop {
        match yard.try_start().await {
            Ok(running) => return running,
            Err(error) => assert!(matches!(error.code(), "data_dir_locked" | "listen_failed"), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn killed_around_any_commit_a_fire_starts_exactly_one_job() {
    let mut kills = 0;
    for point in [CommitPoint::Before, CommitPoint::Answer] {
        for nth in 1..10 {
            let dir = tempfile::tempdir().unwrap();
            let (mut yard, clock) = yard(dir.path());
            let first = yard.start().await;
            let id = register(&yard, "a", "cron: \"0 * * * *\"").await.schedule.unwrap().id;
            first.stop().await;
            turn(&clock, 60);
            yard.hook = Some(die_at(point, nth));
            let second = yard.start().await;
            let died = tokio::select! {
                ended = second.handle.wait() => {
                    assert_eq!(ended.unwrap_err().code(), "internal");
                    true
                }
                // A death after the commit is seen a little later than what it stored.
                () = async {
                    until(&yard, &id, |row| row.fired == 1).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                } => false,
            };
            second.stop.cancel();
            yard.hook = None;
            let third = restarted(&yard).await;
            let row = until(&yard, &id, |row| row.fired == 1).await;
            assert_eq!((row.missed, row.last_fire_at_us), (0, Some(START_US + HOUR_US)), "{point:?} {nth}");
            let jobs = jobs(&yard).await;
            assert_eq!(jobs.len(), 1, "{point:?} {nth}");
            assert_eq!(row.last_job.as_ref(), Some(&jobs[0].id), "{point:?} {nth}");
            third.stop().await;
            if !died {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills >= 2, "only {kills} commits were tried");
}

#[tokio::test]
async fn a_caller_can_fire_switch_and_remove_a_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, clock) = yard(dir.path());
    let running = yard.start().await;
    let id = register(&yard, "a", "cron: \"0 * * * *\", enabled: false").await.schedule.unwrap().id;
    turn(&clock, 61);
    let started = fire(&yard, "hello", "x").await;
    assert_eq!((started.result.as_str(), started.schedule.unwrap().fired), ("started", 1));
    // The same key is the same fire, over a restart too.
    running.stop().await;
    let running = yard.start().await;
    let again = fire(&yard, &id, "x").await;
    assert_eq!((again.result.as_str(), &again.job), ("started", &started.job));
    let skipped = fire(&yard, &id, "y").await;
    assert_eq!((skipped.result.as_str(), skipped.job), ("skipped", None));
    assert_eq!(jobs(&yard).await.len(), 1);

    cancel(&yard, &started.job.unwrap()).await;
    let set = |enabled| v1::SetScheduleRequest { schedule: "hello".to_owned(), enabled };
    let row = yard.client().await.set_schedule(set(true)).await.unwrap().into_inner();
    // What came due while it was disabled is neither run nor missed.
    assert_eq!((row.enabled, row.missed, row.fired), (true, 0, 1));
    turn(&clock, 120);
    until(&yard, &id, |row| row.fired == 2).await;
    yard.client().await.set_schedule(set(false)).await.unwrap();
    turn(&clock, 180);
    let request = v1::RemoveScheduleRequest { schedule: "hello".to_owned() };
    assert_eq!(yard.client().await.remove_schedule(request).await.unwrap().into_inner().id, id);
    let request = v1::GetScheduleRequest { schedule: id };
    assert_eq!(code(&yard.client().await.get_schedule(request).await.unwrap_err()), "not_found");
    assert_eq!(jobs(&yard).await.len(), 2, "the jobs it fired stay");
    running.stop().await;
}

#[tokio::test]
async fn a_fire_whose_files_are_gone_is_counted_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let (yard, clock) = yard(dir.path());
    let running = yard.start().await;
    let rows = "{\"n\": \"1\", \"want\": \"7\"}\n";
    let sha256 = hex::encode(Sha256::digest(rows));
    let size = rows.len() as u64;
    let chunk = v1::BlobChunk { sha256: sha256.clone(), data: rows.into(), size: Some(size) };
    yard.client().await.put_blob(tokio_stream::iter([chunk])).await.unwrap();
    let mut request = scheduled(&yard, "a", "cron: \"0 * * * *\"");
    let inline = "{inline: [{n: \"6\", want: \"42\"}, {n: \"7\", want: \"49\"}]}";
    request.document = request.document.replace(inline, "{jsonl: rows.jsonl}");
    request.files = vec![v1::ClientFile { path: "rows.jsonl".to_owned(), sha256: sha256.clone(), size }];
    let id = yard.client().await.submit(request).await.unwrap().into_inner().schedule.unwrap().id;
    std::fs::remove_dir_all(yard.dir.join("data/blobs")).unwrap();
    turn(&clock, 60);
    let row = until(&yard, &id, |row| row.failed == 1).await;
    assert_eq!((row.fired, row.last_job), (0, None));
    assert!(row.problem.contains(&sha256), "{}", row.problem);
    running.stop().await;
}
