//! What has ended costs nothing: lists of jobs with many old rollouts behind them.
//!
//! `ROLLYARD_OLD_ROLLOUTS=n` makes the history as long.

use rollout_wire::v1;
use scheduler::store::DATABASE_FILE;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO_ROLLOUTS, Yard, finished, hello};

/// Jobs of the made history.
const OLD_JOBS: u64 = 100;
const PAGE: u32 = 20;

async fn page(yard: &Yard, unfinished_only: bool) -> Vec<v1::Job> {
    let request = v1::ListRequest { page_size: PAGE, unfinished_only, ..v1::ListRequest::default() };
    yard.client().await.list(request).await.unwrap().into_inner().jobs
}

async fn database(yard: &Yard) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(yard.dir.join("data").join(DATABASE_FILE));
    SqliteConnection::connect_with(&options).await.unwrap()
}

/// Copies of `job` with all it says, made older, each with its share of `rollouts`.
async fn make_history(database: &mut SqliteConnection, job: &str, rollouts: u64) {
    let share = rollouts / OLD_JOBS;
    let copies = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {OLD_JOBS}) \
        INSERT INTO jobs (job, name, document, source_name, spec_hash, table_root, idempotency_key, \
            request_hash, groups_total, group_size, state, reason, next_group, next_seq, created_at, \
            finished_at, sums) \
        SELECT printf('j%013d', i), name, document, source_name, spec_hash, table_root, 'old' || i, \
            request_hash, groups_total, group_size, state, reason, next_group, next_seq, created_at - i, \
            finished_at, sums \
        FROM jobs, n WHERE job = '{job}'"
    );
    let old = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {OLD_JOBS}), \
            g(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM g WHERE k + 1 < {share}) \
        INSERT INTO rollouts (job, group_index, sample, refill, created_at, ended_at, status, reward_value) \
        SELECT printf('j%013d', i), k, 0, 0, 0, 1, 'completed', 1.0 FROM n, g"
    );
    for statement in [copies, old] {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut *database).await.unwrap();
    }
}

/// How a stored statement finds its rows.
async fn query_plan(database: &mut SqliteConnection, statement: &'static str) -> String {
    let text = format!("EXPLAIN QUERY PLAN {statement}");
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(database).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail")).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn a_page_of_jobs_looks_at_none_of_their_rollouts() {
    let wanted = std::env::var("ROLLYARD_OLD_ROLLOUTS").ok().map(|n| n.parse().expect("a number"));
    let old_rollouts = wanted.unwrap_or(20_000);
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let live = finished(&yard, &job.id).await;
    assert_eq!(live.rewards.as_ref().unwrap().pass_at_k.len(), 4, "{live:?}");
    running.stop().await;
    drop(executor);

    let mut database = database(&yard).await;
    make_history(&mut database, &job.id, old_rollouts).await;
    let running = yard.start().await;
    let jobs = page(&yard, false).await;
    assert_eq!((jobs.len(), &jobs[0]), (PAGE as usize, &live));
    for old in &jobs[1..] {
        assert_eq!((&old.counts, &old.rewards, &old.failures), (&live.counts, &live.rewards, &live.failures));
    }
    assert!(page(&yard, true).await.is_empty());
    running.stop().await;

    // Without the rollouts it is the same page.
    let deleted = sqlx::query("DELETE FROM rollouts").execute(&mut database).await.unwrap();
    assert_eq!(deleted.rows_affected(), old_rollouts / OLD_JOBS * OLD_JOBS + HELLO_ROLLOUTS);
    let running = yard.start().await;
    assert_eq!(page(&yard, false).await, jobs);
    running.stop().await;

    // A page is read off an index; what is not on it is not met.
    let statements = [
        (include_str!("../../queries/common/list_jobs.sql"), "jobs_listed"),
        (include_str!("../../queries/common/list_unfinished_jobs.sql"), "jobs_listed_unfinished"),
        (include_str!("../../queries/common/list_all_jobs.sql"), "jobs_by_age"),
        (include_str!("../../queries/common/list_all_unfinished_jobs.sql"), "jobs_unfinished_by_age"),
        (include_str!("../../queries/sqlite/list_sandboxes.sql"), "jobs_of_sandboxes"),
        (include_str!("../../queries/sqlite/list_live_sandboxes.sql"), "jobs_of_live_sandboxes"),
    ];
    for (statement, index) in statements {
        let plan = query_plan(&mut database, statement).await;
        assert!(
            (plan.starts_with("SEARCH jobs USING") || plan.starts_with("SEARCH j USING"))
                && plan.contains(index),
            "{plan}"
        );
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
    database.close().await.unwrap();
}
