//! Looking at a data directory without a scheduler changes nothing and is in nobody's way.

use rollout_wire::v1;
use rollout_wire::v1::jobs_client::JobsClient;
use scheduler::store::DATABASE_FILE;
use scheduler::{Config, Reader};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HANG, HELLO_ROLLOUTS, Yard, code, finished, hello};

const TABLES: [&str; 9] =
    ["meta", "jobs", "files", "groups", "rollouts", "attempts", "step_states", "nodes", "shards"];

/// Every row of every table, as text.
async fn dump(yard: &Yard) -> Vec<String> {
    let options = SqliteConnectOptions::new().filename(yard.dir.join("data").join(DATABASE_FILE));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let mut rows = Vec::new();
    for table in TABLES {
        let columns = format!(
            "SELECT group_concat('quote(' || name || ')', ' || '','' || ') FROM pragma_table_info('{table}')"
        );
        let columns: String =
            sqlx::query(AssertSqlSafe(columns)).fetch_one(&mut connection).await.unwrap().get(0);
        let all = sqlx::query(AssertSqlSafe(format!("SELECT {columns} FROM {table} ORDER BY 1")));
        for row in all.fetch_all(&mut connection).await.unwrap() {
            rows.push(format!("{table}: {}", row.get::<String, _>(0)));
        }
    }
    connection.close().await.unwrap();
    rows
}

#[tokio::test]
async fn looking_at_an_unfinished_job_changes_nothing_and_keeps_no_scheduler_out() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let holder = Executor::attach(&yard, Behaviour { hold: true, ..Behaviour::default() });
    let mut request = hello(&yard, "a");
    request.document = request.document.replace("group: {", "timeout: 1d\ngroup: {");
    let id = yard.client().await.submit(request).await.unwrap().into_inner().job.unwrap().id;
    let placed = async {
        while holder.seen.lock().unwrap().runs.len() < 8 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, placed).await.expect("every first step is placed");
    drop(holder);
    running.stop().await;

    // Two days on: a scheduler that started would find the job's timeout used up.
    let options = SqliteConnectOptions::new().filename(yard.dir.join("data").join(DATABASE_FILE));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let age = "UPDATE jobs SET created_at = created_at - 172800000000";
    sqlx::query(age).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();

    let before = dump(&yard).await;
    assert!(before.len() > 20, "{before:?}");
    let reader = Reader::open(&Config::new(yard.dir.join("data"), "yard".parse().unwrap())).await.unwrap();
    let mut client = JobsClient::new(reader.channel());
    let job = client.get(v1::GetRequest { job: id.clone() }).await.unwrap().into_inner();
    assert_eq!((job.state.as_str(), job.counts.unwrap().rollouts_admitted), ("running", HELLO_ROLLOUTS));
    let list = v1::ListRequest { page_size: 10, ..v1::ListRequest::default() };
    assert_eq!(client.list(list).await.unwrap().into_inner().jobs.len(), 1);
    let list = v1::ListRolloutsRequest { job: id.clone(), page_size: 100, page_token: String::new() };
    let rollouts = client.list_rollouts(list).await.unwrap().into_inner().rollouts;
    assert_eq!(rollouts.len() as u64, HELLO_ROLLOUTS);
    let rollout = rollouts[0].id.clone();
    let steps = client.list_steps(v1::ListStepsRequest { rollout: rollout.clone() }).await.unwrap();
    assert_eq!(steps.into_inner().steps[0].state, "running");
    let logs =
        v1::LogsRequest { rollout, step: "work".to_owned(), follow: true, ..v1::LogsRequest::default() };
    let away = client.logs(logs).await.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(code(&away), "log_unavailable");
    let lines = client.explain(v1::ExplainRequest { target: id.clone() }).await.unwrap().into_inner().lines;
    assert!(lines[0].starts_with("No yard is running"), "{lines:?}");
    let nodes = client.list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes;
    assert_eq!(nodes.len(), 1);
    // What would change something is refused by name.
    let cancel = v1::CancelRequest { job: id.clone(), reason: String::new() };
    assert_eq!(code(&client.cancel(cancel).await.unwrap_err()), "no_yard");
    assert_eq!(code(&client.submit(hello(&yard, "b")).await.unwrap_err()), "no_yard");
    assert_eq!(code(&client.watch(v1::GetRequest { job: id.clone() }).await.unwrap_err()), "no_yard");
    assert_eq!(dump(&yard).await, before);

    // A scheduler starts while the reader is open, and both answer.
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour { node: "n2", ..Behaviour::default() });
    assert_eq!(client.get(v1::GetRequest { job: id.clone() }).await.unwrap().into_inner().id, id);
    let other = yard.client().await.submit(hello(&yard, "c")).await.unwrap().into_inner().job.unwrap();
    assert_eq!(finished(&yard, &other.id).await.state, "finished");
    assert_eq!(client.get(v1::GetRequest { job: other.id }).await.unwrap().into_inner().state, "finished");
    drop(client);
    tokio::time::timeout(HANG, reader.close()).await.expect("in time").unwrap();
    running.stop().await;
}
