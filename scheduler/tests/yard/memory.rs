//! What steps held in memory: counted once whatever is told twice, committed twice or interrupted, and told
//! to those who ask for a job, a step or the reason why.

use std::sync::Arc;
use std::time::Duration;

use rollout_wire::v1;
use scheduler::store::{CommitHook, CommitPoint, DATABASE_FILE, InjectedFault};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO, HELLO_ROLLOUTS, Yard, finished, hello};

const MIB: u64 = 1 << 20;

fn measured(outcome: &mut v1::Outcome) {
    outcome.usage = Some(v1::Usage {
        memory_held_peak_bytes: Some(80 * MIB),
        memory_peak_bytes: Some(190 * MIB),
        ..v1::Usage::default()
    });
}

fn executor(yard: &Yard) -> Executor {
    Executor::attach(yard, Behaviour { lie: Some(measured), twice: true, ..Behaviour::default() })
}

async fn submit(yard: &Yard, request: v1::SubmitRequest) -> String {
    yard.client().await.submit(request).await.unwrap().into_inner().job.unwrap().id
}

async fn memory(yard: &Yard, job: &str) -> Vec<v1::StepMemory> {
    let job = yard.client().await.get(v1::GetRequest { job: job.to_owned() }).await.unwrap().into_inner();
    job.memory.expect("it is told").steps
}

async fn explained(yard: &Yard, target: String) -> v1::ExplainReply {
    yard.client().await.explain(v1::ExplainRequest { target }).await.unwrap().into_inner()
}

/// Of both steps of a job of which every attempt held as much.
fn check_all_counted_once(steps: &[v1::StepMemory]) {
    let counted: Vec<_> = steps
        .iter()
        .map(|s| (s.step.as_str(), s.attempts, s.held_most_bytes, s.held_p95_bytes, s.kernel_peak_bytes))
        .collect();
    let of_step = |name| (name, HELLO_ROLLOUTS, 80 * MIB, 80 * MIB, Some(190 * MIB));
    assert_eq!(counted, [of_step("work"), of_step("grade")]);
}

#[tokio::test]
async fn every_attempt_counts_once_whatever_a_commit_meets_and_outlives_the_scheduler() {
    for point in [CommitPoint::Before, CommitPoint::Lost, CommitPoint::Answer] {
        let dir = tempfile::tempdir().unwrap();
        let mut yard = Yard::new(dir.path());
        let failed = std::sync::Mutex::new(std::collections::BTreeSet::new());
        yard.hook = Some(CommitHook(Arc::new(move |at, seq| {
            (at == point && failed.lock().unwrap().insert(seq)).then_some(InjectedFault)
        })));
        let mut running = yard.start().await;
        let _executor = executor(&yard);
        let job = submit(&yard, hello(&yard, "a")).await;
        // Ends are on their way while schedulers come and go.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            running.stop().await;
            running = yard.start().await;
        }
        finished(&yard, &job).await;
        let before = memory(&yard, &job).await;
        check_all_counted_once(&before);
        running.stop().await;
        let running = yard.start().await;
        assert_eq!(memory(&yard, &job).await, before, "{point:?}");
        running.stop().await;
    }
}

#[tokio::test]
async fn a_job_a_step_and_the_reason_tell_it_with_what_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let _executor = executor(&yard);
    let job = submit(&yard, hello(&yard, "a")).await;
    assert!(finished(&yard, &job).await.memory.is_none(), "a watch is not told");
    let work = memory(&yard, &job).await.remove(0);
    assert_eq!((work.request_bytes, work.kept_bytes), (Some(512 * MIB), Some(768 * MIB)));
    assert_eq!(
        work.told,
        "asks 512Mi and 256Mi for files in memory, held at most 80Mi, p95 80Mi over 8 attempts"
    );
    let advice = work.advice.expect("it asks for too much");
    assert_eq!(
        (advice.code.as_str(), advice.field.as_str(), advice.suggested_bytes),
        ("asks_too_much", "resources.request.memory", 112 * MIB)
    );

    let step = explained(&yard, format!("{job}-g0-s1/work")).await;
    let told = format!("Memory of step `work`: {}.", work.told);
    assert!(step.lines.contains(&told), "{:?}", step.lines);
    let whole = explained(&yard, job.clone()).await;
    assert!(!whole.lines.contains(&told), "{:?}", whole.lines);
    for reply in [step, whole] {
        assert!(
            reply.lines.iter().any(|line| line.contains("`resources.request.memory: 112Mi`")),
            "{reply:?}"
        );
        let json: serde_json::Value = serde_json::from_str(&reply.json).unwrap();
        let facts = json["facts"].as_array().unwrap();
        let fact = facts.iter().find(|fact| fact["code"] == "asks_too_much").expect("the advice");
        assert_eq!((&fact["step"], &fact["held_p95_bytes"]), (&"work".into(), &(80 * MIB).into()));
        assert_eq!(fact["suggested_bytes"], 112 * MIB);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_request_that_is_right_or_of_the_row_gets_no_advice() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let _executor = executor(&yard);
    let right = HELLO.replace("timeout: 30s}", "timeout: 30s, resources: {request: {memory: 128Mi}}}");
    let of_row = HELLO
        .replace("timeout: 30s}", "timeout: 30s, resources: {request: {memory: \"${row.memory}\"}}}")
        .replace("{n: ", "{memory: 512Mi, n: ");
    for (key, document, request) in [("a", right, Some(128 * MIB)), ("b", of_row, None)] {
        let job = submit(&yard, v1::SubmitRequest { document, ..hello(&yard, key) }).await;
        finished(&yard, &job).await;
        let steps = memory(&yard, &job).await;
        check_all_counted_once(&steps);
        assert!(steps.iter().all(|step| step.advice.is_none() && step.request_bytes == request), "{steps:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn of_what_was_not_measured_nothing_is_told_and_a_wrong_row_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let job = submit(&yard, hello(&yard, "a")).await;
    finished(&yard, &job).await;
    assert_eq!(memory(&yard, &job).await, []);
    drop(executor);

    let options = SqliteConnectOptions::new().filename(yard.dir.join("data").join(DATABASE_FILE));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let insert = sqlx::query("INSERT INTO step_memory VALUES ($1, 0, 4711, 1, 1, NULL)").bind(&job);
    insert.execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let refused = yard.client().await.get(v1::GetRequest { job: job.clone() }).await.unwrap_err();
    assert!(refused.message().contains("step_memory"), "{refused:?}");
    running.stop().await;
}
