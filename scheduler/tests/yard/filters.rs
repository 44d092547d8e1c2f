//! Task files of every kind, and which of their rows run.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use rollout::plan::Filter;
use rollout::selection::Selection;
use rollout_wire::v1;
use sha2::{Digest, Sha256};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO, Yard, code, finished, hello};

fn parquet(rows: i64) -> Vec<u8> {
    let n: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let want: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|n| (n * 7).to_string())));
    let batch = RecordBatch::try_from_iter([("n", n), ("want", want)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

async fn submit(yard: &Yard, tasks: &str, file: &[u8]) -> Result<String, tonic::Status> {
    let sha256 = hex::encode(Sha256::digest(file));
    let size = file.len() as u64;
    let chunk = v1::BlobChunk { sha256: sha256.clone(), data: file.to_vec(), size: Some(size) };
    let mut client = yard.client().await;
    client.put_blob(tokio_stream::iter([chunk])).await.unwrap();
    let inline = "tasks: {from: {inline: [{n: \"6\", want: \"42\"}, {n: \"7\", want: \"49\"}]}}";
    let path = if tasks.contains("parquet") { "rows.parquet" } else { "rows.jsonl" };
    let request = v1::SubmitRequest {
        document: HELLO.replace(inline, tasks).replace("size: 4", "size: 1"),
        files: vec![v1::ClientFile { path: path.to_owned(), sha256, size }],
        ..hello(yard, &format!("k{:x}", Sha256::digest(tasks)))
    };
    Ok(client.submit(request).await?.into_inner().job.unwrap().id)
}

/// Task ids of the groups, in their order.
async fn tasks(yard: &Yard, job: &str) -> Vec<String> {
    let request = v1::ListRolloutsRequest { job: job.to_owned(), page_size: 1000, ..Default::default() };
    let reply = yard.client().await.list_rollouts(request).await.unwrap().into_inner();
    reply.rollouts.into_iter().map(|rollout| rollout.task_id).collect()
}

#[tokio::test]
async fn a_shuffled_window_of_a_parquet_file_runs_in_its_order_and_another_in_each_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let spec = "tasks: {from: {parquet: rows.parquet}, id: \"t${row.n}\", epochs: 2, \
                filter: {shuffle_seed: 9, offset: 1, limit: 4}}";
    let job = submit(&yard, spec, &parquet(50)).await.unwrap();
    assert_eq!(finished(&yard, &job).await.state, "finished");
    let filter = Filter { shuffle_seed: Some(9), offset: 1, limit: Some(4), ids: None };
    let selection = Selection::new(&filter, 50, None);
    let expected = [0, 1].map(|epoch| (0..4).map(move |at| (epoch, at)));
    let expected = expected.into_iter().flatten().map(|(epoch, at)| selection.row(epoch, at).unwrap());
    let expected: Vec<String> = expected.map(|row| format!("t{row}")).collect();
    assert_eq!(tasks(&yard, &job).await, expected);
    drop(executor);
    running.stop().await;

    // The order is that of the job, whoever asks and after any restart.
    let running = yard.start().await;
    assert_eq!(tasks(&yard, &job).await, expected);
    running.stop().await;
}

#[tokio::test]
async fn only_the_tasks_named_run_and_the_others_may_be_unusable() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let rows = b"{\"n\":1,\"want\":\"7\"}\n{\"n\":2}\n{\"n\":3,\"want\":\"21\"}\n";
    let of = |filter: &str| format!("tasks: {{from: {{jsonl: rows.jsonl}}, filter: {filter}}}");
    let job = submit(&yard, &of("{ids: [row-2, row-0]}"), rows).await.unwrap();
    assert_eq!(finished(&yard, &job).await.state, "finished");
    assert_eq!(tasks(&yard, &job).await, ["row-0", "row-2"]);
    for (filter, said) in [
        ("{ids: [row-2, row-9]}", "no row has the task id `row-9`"),
        ("{ids: [row-1]}", "row 1: column `want` is missing"),
        ("{offset: 3}", "`tasks.filter` leaves no row"),
        ("{offset: 1, limit: 1}", "row 1: column `want` is missing"),
    ] {
        let refused = submit(&yard, &of(filter), rows).await.unwrap_err();
        assert_eq!(code(&refused), "rows_invalid", "{filter}");
        assert!(refused.message().contains(said), "{filter}: {}", refused.message());
    }
    drop(executor);
    running.stop().await;
}
